"""A layer's own rules for its chunked forms, each of which begins with `chunk`."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from archc.ir.graph import Node
from archc.source import Span


@dataclass(frozen=True)
class Bound:
    """A promise of the spec: at every token the value `name` lies between `low` and `high`.

    `span` is where that value comes from, so that another of the same name is not meant; None for
    an input. `text` is the rule as it was written, "" for one that the compiler has found out.
    """

    name: str
    low: float | Fraction
    high: float | Fraction
    open_low: bool = False
    open_high: bool = False
    span: Span | None = None
    text: str = ""

    def of(self, node: Node) -> bool:
        """Whether it is about the value of a node."""
        return node.name == self.name and self.span in (None, node.span)


@dataclass(frozen=True)
class ChunkRules:
    """The `chunk` rules of a layer: tokens of a chunk (None: `usual_tokens`), that the loop is
    meant, promises about its values, and the composition laws that it gives, as they were
    written."""

    size: int | None = None
    sequential: bool = False
    bounds: tuple[Bound, ...] = ()
    laws: tuple[str, ...] = ()

    def lines(self) -> tuple[str, ...]:
        """The rules as a spec writes them."""
        size = [f"size {self.size}"] if self.size is not None else []
        written = [bound.text for bound in self.bounds if bound.text]
        loop = ["sequential"] if self.sequential else []
        return (*size, *loop, *self.laws, *dict.fromkeys(written))


NO_RULES = ChunkRules()

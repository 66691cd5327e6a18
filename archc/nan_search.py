"""The first value of a layer that is not a number: its token, and its name in the spec.

    print(archc.first_nan(layer, x))     # `z` is NaN at token 17 of row 0: mine.arch:12  z = log(u)

By chunks, a NaN of a token reaches earlier tokens of its chunk too (never another sequence, nor
another row of a batch), so that outputs do not tell. Here the layer is computed token by token, by
its meaning, with every value looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from archc.backends.renamed import at_path
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.initial import all_params
from archc.ir.meaning import evaluate
from archc.ir.named import Named
from archc.mixer import by_name, given_layers
from archc.origin import origin_of


@dataclass(frozen=True)
class FirstNaN:
    """A value that is NaN: the earliest in dataflow at the first token that has one. `token` and
    `row` are None for one that is the same for all, as a parameter is."""

    value: str
    token: int | None
    row: int | None
    where: str

    def __str__(self) -> str:
        at = "" if self.token is None else f" at token {self.token}"
        at += "" if self.row is None else f" of row {self.row}"
        return f"`{self.value}` is NaN{at}: {self.where}"


def first_nan(layer: nn.Module, *inputs: Tensor, **named: Tensor) -> FirstNaN | None:
    """The first NaN that a layer which `Spec.module` has made, or a layer in one, computes from
    these inputs, in the precision of its parameters; None if there is none.

    Takes one token after the other in plain PyTorch: for finding a fault, not for training. Raises
    ValueError for a layer that archc has not made, TypeError for inputs that are missing.
    """
    origin = origin_of(layer)
    params = {p: at_path(layer, p) for p, _, _ in all_params(origin.layer, origin.sizes)}
    given = by_name(origin.layer, inputs, named)
    real = [x.dtype for x in (*params.values(), *given.values()) if x.is_floating_point()]
    watcher = Watcher({id(node) for node in bodies(origin.layer.graph)})
    with torch.no_grad():
        evaluate(
            origin.layer,
            given,
            params,
            origin.sizes,
            layers={path: at_path(layer, path) for path in given_layers(origin.layer)},
            dtype=real[0] if real else torch.float32,
            watch=watcher,
        )
    return watcher.first()


def bodies(graph: Graph) -> Iterator[Node]:
    """The nodes in recurrences, which are shown at one token after the other."""
    for node in graph:
        if isinstance(node.op, ir.Recurrence):
            yield from node.op.body
        elif isinstance(node.op, ir.Call):
            yield from bodies(node.op.callee.graph)


@dataclass
class Watcher:
    """Is shown every value in dataflow order, and keeps the first NaN of each token."""

    inner: set[int]
    seen: Counter[tuple[int, str]] = field(default_factory=Counter)
    found: dict[int, FirstNaN] = field(default_factory=dict)

    def __call__(self, node: Node, prefix: str, operands: Any, value: Any) -> None:
        key = (id(node), prefix)
        step = self.seen[key] if id(node) in self.inner else None
        self.seen[key] += 1
        if isinstance(value, Named) and value.data.is_floating_point():
            self._look(node, prefix, value, step)

    def _look(self, node: Node, prefix: str, value: Named, step: int | None) -> None:
        nan = value.data.isnan()
        if not nan.any():
            return
        names = {name: place for place, name in enumerate(value.names)}
        places = nan.nonzero()
        token, row = step, None
        if step is None and "t" in names:
            tokens = places[:, names["t"]]
            token = int(tokens.min())
            places = places[tokens == token]
        if "batch" in names:
            row = int(places[:, names["batch"]].min())
        span = node.span
        where = "" if span is None else f"{span.where}  {' '.join(span.text.split())}"
        name = node.name or getattr(node.op, "name", None)
        name = f"{prefix}{name}" if name else (" ".join(span.text.split()) if span else "a value")
        self.found.setdefault(-1 if token is None else token, FirstNaN(name, token, row, where))

    def first(self) -> FirstNaN | None:
        """The NaN at the earliest token."""
        return self.found[min(self.found)] if self.found else None

"""Sums of several lots of pairs of rows, which kernels make in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

import sympy

from archc.ir.chunk_ops.op import MadeByGradients
from archc.ir.chunk_ops.pairs import GateGradient, Mix
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, join

if TYPE_CHECKING:
    from torch import Tensor

    from archc.ir.meaning_ops import Scope

Term = tuple[Mix | GateGradient, tuple[int, ...]]
"""An op on one lot of pairs, and the places of its operands."""


@dataclass(frozen=True)
class JointPairs(MadeByGradients, part=True):
    """An op on several lots of pairs that decay by the same gates, which are its last operand;
    before them stand the other operands of each lot."""

    terms: tuple[Mix | GateGradient, ...]

    @property
    def row(self) -> str:
        """The axis of the rows."""
        return self.terms[0].row

    @property
    def col(self) -> str:
        """The axis of the columns."""
        return self.terms[0].col

    @property
    def exclusive(self) -> bool:
        """Whether a pair decays by the gates between its rows alone."""
        return self.terms[0].exclusive

    @property
    def anchor(self) -> str:
        """How exponents are made."""
        return self.terms[0].anchor

    def parts(self, operands: Sequence[int]) -> list[Term]:
        """Each lot with its own operands."""
        size = (len(operands) - 1) // len(self.terms)
        lots = (tuple(operands[at * size : (at + 1) * size]) for at in range(len(self.terms)))
        return [(op, (*lot, operands[-1])) for op, lot in zip(self.terms, lots, strict=True)]

    def typed(self, types: Types) -> Type:
        parts = self.parts(range(len(types)))
        return Type(join([op.typed([types[at] for at in places]) for op, places in parts]))

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        parts = self.parts(range(len(types)))
        every = (op.operations(node, [types[at] for at in own], lengths) for op, own in parts)
        return sympy.Add(*every)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)

    def text(self, operands: tuple[str, ...]) -> str:
        if not operands:
            return super().text(operands)
        parts = self.parts(range(len(operands)))
        return " + ".join(op.text(tuple(operands[at] for at in places)) for op, places in parts)


@dataclass(frozen=True)
class MixSum(JointPairs):
    """The sum of a Mix of each lot: operands A, b of each, and g."""

    held = "mixed"

    def meaning(self, node: Node, scope: Scope, *operands: Named) -> Named:
        names = list(node.type.names)
        parts = self.parts(range(len(operands)))
        made = [op.meaning(node, scope, *(operands[at] for at in own)) for op, own in parts]
        return Named(_total([each.to(names) for each in made]), tuple(names))


@dataclass(frozen=True)
class GateShares(JointPairs):
    """The shares of pairs in the gates between their rows: the sum that enters at the later row of
    a pair, less the sum that leaves at the earlier one; operands dA, a, b of each lot, and g.

        shares[r] = sum over j < r of P[r, j] - sum over i > r of P[i, r]
        P[i, j] = a[i] dA[i, j] exp(span[i, j]) b[j]

    Its sum from a row on is the GateGradient; where gates are exclusive, without what enters at the
    row itself. `entering`: only what enters.
    """

    held = "gate_shares"
    entering: bool = False

    def meaning(self, node: Node, scope: Scope, *operands: Named) -> Named:
        names = list(node.type.names)
        made: list[Tensor] = []
        for op, places in self.parts(range(len(operands))):
            d, a, b, g = (operands[at] for at in places)
            mixed = Mix(op.row, op.col, True, op.exclusive, anchor=op.anchor)
            made.append(a.to(names) * mixed.meaning(node, scope, d, b, g).to(names))
            if not self.entering:
                mixed = replace(mixed, transpose=True)
                made.append(-b.to(names) * mixed.meaning(node, scope, d, a, g).to(names))
        return Named(_total(made), tuple(names))

    def text(self, operands: tuple[str, ...]) -> str:
        word = "entering" if self.entering else "shares"
        return super().text(operands).replace("gate_gradient[", f"gate_{word}[")


def _total(made: Sequence[Tensor]) -> Tensor:
    return reduce(add, made)

"""A convolution of tokens with weights by distance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import MadeByGradients
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, elements, require

if TYPE_CHECKING:
    from archc.ir.meaning_ops import Scope


@dataclass(frozen=True)
class Convolved(MadeByGradients):
    """The sums of an attend over the past, for operands: the weights of the last reader for each
    token read, and what is read.

        y[t] = sum over s <= t of w[s + (last - t)] x[s]

    `reader` are the last of the tokens that `read` has. PyTorch differentiates it.
    """

    held = "convolution"
    read: str
    reader: Axis
    axes: tuple[Axis, ...]

    def typed(self, types: Types) -> Type:
        made = {name for type in types for name in type.names}
        require(all(self.read in type.names for type in types), f"convolved along {self.read}")
        require(made - {self.read} | {self.reader.name} == {a.name for a in self.axes}, "its axes")
        return Type(self.axes)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        size = lengths.get(self.reader.name, self.reader.size)
        return 3 * elements(node.type.axes, lengths) * sympy.log(1 + size, 2)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.read,)

    def meaning(self, node: Node, scope: Scope, w: Named, x: Named) -> Named:
        import torch

        names = [n for n in node.type.names if n != self.reader.name]
        weights, read = (each.to([*names, self.read]) for each in (w, x))
        (count,), length = scope.shape([self.reader]), read.shape[-1]
        rows = []
        for seen in range(length - count + 1, length + 1):
            rows.append((weights[..., length - seen :] * read[..., :seen]).sum(-1))
        data = torch.stack(rows, -1) if rows else read[..., :0]
        return Named(data, (*names, self.reader.name))

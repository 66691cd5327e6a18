"""Chunk ops along a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk_ops.op import ChunkOp, Cotangents, Gradients, Moving
from archc.ir.chunk_ops.stacks import Expand
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, arrange, elements, join, require, without

if TYPE_CHECKING:
    from archc.ir.meaning_ops import Scope


@dataclass(frozen=True)
class Last(Moving):
    """The last value along `stream` (with `reverse` the first), for operands: a value along it, and
    what stands for it where the stream is empty. Of a state of a Recurrence: the state in the
    end."""

    stream: str
    reverse: bool = False

    def typed(self, types: Types) -> Type:
        value, empty = types
        require(self.stream in value.names, f"last along {self.stream} of {value.names}")
        require(self.stream not in empty.names, "what an empty stream ends with has no stream")
        return Type(join([without(value, (self.stream,)), empty]), value.dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.stream,)

    def meaning(self, node: Node, scope: Scope, x: Named, empty: Named) -> Named:
        names = node.type.names
        along, shape = x.names.index(self.stream), scope.shape(node.type.axes)
        if not x.data.shape[along]:
            return Named(scope.real(empty.to(names)).expand(shape), names)
        taken = x.data.select(along, 0 if self.reverse else -1)
        return Named(Named(taken, tuple(x.but(self.stream))).to(names).expand(shape), names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x at the last position, or e if there is none: dx = dy there, else 0; de = dy if
        there is none, else 0."""
        value, empty = node.operands
        found = self.of_value(b, node, d)
        nothing = b.add(Expand((b.type(value).axis(self.stream),)), b.zero())
        return [found, b.fit(b.add(self, nothing, d), node.type, b.type(empty))]

    def of_value(self, b: Gradients, node: Node, d: int) -> int:
        """The cotangent of the first operand: dy at the last position, else 0."""
        type = b.type(node.operands[0])
        stream = type.axis(self.stream)
        wide = Type((*node.type.axes, stream))
        return b.fit(b.add(AtLast(stream, self.reverse), d), wide, type)


@dataclass(frozen=True)
class AtLast(Moving):
    """The transpose of Last: its operand at the last position of `stream` (with `reverse` the
    first), and 0 elsewhere."""

    stream: Axis
    reverse: bool = False

    def typed(self, types: Types) -> Type:
        return Type(arrange((*types[0].axes, self.stream)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return ()  # its operand is the same all along the stream

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        (length,) = scope.shape([self.stream])
        data = x.data.new_zeros((length, *x.data.shape))
        data[: 1 if self.reverse else None][-1:] = x.data
        return Named(data, (self.stream.name, *x.names))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x at the last position, else 0: dx = dy there; 0 if there is none."""
        last = Last(self.stream.name, self.reverse)
        return [b.add(last, b.full(d, [self.stream]), b.zero())]


@dataclass(frozen=True)
class Unwindow(ChunkOp):
    """The transpose of Window: at each token of `stream` the sum over the places in which the runs
    hold it. Without a stride the operand runs along `stream`, else along `blocks`."""

    stream: Axis
    width: str
    stride: sympy.Expr | None = None
    blocks: str | None = None

    def typed(self, types: Types) -> Type:
        runs = self.blocks or self.stream.name
        require({runs, self.width} <= set(types[0].names), f"unwindow of {types[0].names}")
        rest = without(types[0], (runs, self.width)).axes
        return Type(arrange((self.stream, *rest)), types[0].dtype)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(types[0].axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.stream.name, self.width, *([] if self.blocks is None else [self.blocks]))

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        """Every place of every run adds its value to the token that it came from."""
        import torch

        runs = self.blocks or self.stream.name
        rest = x.but(runs, self.width)
        data = x.to([runs, self.width, *rest])
        (length,), (count, width) = scope.shape([self.stream]), data.shape[:2]
        stride = 1 if self.stride is None else int(scope.number(self.stride))
        before = width - 1 if self.stride is None else 0
        starts = torch.arange(count, device=data.device)[:, None] * stride - before
        tokens = (starts + torch.arange(width, device=data.device)).flatten()
        kept = (tokens >= 0) & (tokens < length)
        sums = data.new_zeros([length, *data.shape[2:]])
        sums = sums.index_add(0, tokens[kept], data.flatten(0, 1)[kept])
        return Named(sums, (self.stream.name, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """The transpose of Window: dx = the runs of dy."""
        type = b.type(node.operands[0])
        blocks = None if self.blocks is None else type.axis(self.blocks)
        back = ir.Window(self.stream.name, type.axis(self.width), self.stride, blocks)
        return [b.add(back, b.full(d, [self.stream]))]

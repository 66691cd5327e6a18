"""Chunk ops that move values between tokens and chunks, and along new dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import Cotangents, Gradients, MadeByGradients, Moving
from archc.ir.graph import Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, arrange, elements, require, without

if TYPE_CHECKING:
    from archc.ir.meaning_ops import Scope


@dataclass(frozen=True)
class Chunks(Moving):
    """A value along `stream`, cut into chunks: `chunk` and `row` take the stream's place.

    The last chunk is filled up with `fill`. With `steps`, the micro-steps of a token (an axis of
    the operand) are rows one after the other. The dims `outer` (heads) stand before the row.
    """

    changed = "chunks"
    stream: str
    chunk: Axis
    row: Axis
    fill: int = 0
    steps: str | None = None
    outer: tuple[str, ...] = ()

    def typed(self, types: Types) -> Type:
        gone = {self.stream, self.steps}
        require(self.stream in types[0].names, f"chunks of {self.stream}")
        rest = [a for a in types[0].axes if a.name not in gone]
        outer = [a for a in rest if a.name in self.outer]
        inner = [a for a in rest if a.name not in self.outer]
        return Type(arrange((self.chunk, *outer, self.row, *inner)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        """The chunks of a value stand where its tokens do."""
        return () if self.steps is None else (self.steps,)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        steps = [] if self.steps is None else [self.steps]
        rest = x.but(self.stream, *steps)
        data = x.to([self.stream, *steps, *rest])
        if steps:
            data = data.flatten(0, 1)
        count, rows = scope.shape([self.chunk, self.row])
        filled = data.new_full((count * rows, *data.shape[1:]), self.fill)
        filled[: len(data)] = data
        return Named(filled.unflatten(0, (count, rows)), (self.chunk.name, self.row.name, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x in chunks: dx = dy as tokens."""
        type = b.type(node.operands[0])
        steps = None if self.steps is None else type.axis(self.steps)
        back = Tokens(self.chunk.name, self.row.name, type.axis(self.stream), steps)
        return [b.add(back, b.full(d, [self.chunk, self.row]))]


@dataclass(frozen=True)
class Tokens(Moving):
    """The inverse of Chunks: rows of chunks as tokens along `stream` again, without the filling."""

    changed = "tokens"
    chunk: str
    row: str
    stream: Axis
    steps: Axis | None = None

    def typed(self, types: Types) -> Type:
        require({self.chunk, self.row} <= set(types[0].names), "tokens of chunks")
        rest = without(types[0], (self.chunk, self.row)).axes
        steps = () if self.steps is None else (self.steps,)
        return Type(arrange((self.stream, *steps, *rest)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        """The tokens of a value stand where its chunks do."""
        return () if self.steps is None else (self.steps.name,)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        rest = x.but(self.chunk, self.row)
        data = x.to([self.chunk, self.row, *rest]).flatten(0, 1)
        (length,) = scope.shape([self.stream])
        if self.steps is None:
            return Named(data[:length], (self.stream.name, *rest))
        (steps,) = scope.shape([self.steps])
        data = data[: length * steps].unflatten(0, (length, steps))
        return Named(data, (self.stream.name, self.steps.name, *rest))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x as tokens: dx = dy in chunks, 0 in the filling."""
        type = b.type(node.operands[0])
        inner = [axis.name for axis in type.axes if axis.kind == "dim"]
        outer = tuple(inner[: inner.index(self.row)])
        steps = [] if self.steps is None else [self.steps]
        name = None if self.steps is None else self.steps.name
        chunk, row = type.axis(self.chunk), type.axis(self.row)
        back = Chunks(self.stream.name, chunk, row, 0, name, outer)
        return [b.add(back, b.full(d, [self.stream, *steps]))]


@dataclass(frozen=True)
class Stack(Moving):
    """Its operands, all of one type, along a new first dim."""

    changed = "stacked"
    axis: Axis

    def typed(self, types: Types) -> Type:
        require(len(set(types)) == 1, "stack of one type")
        return Type(arrange((self.axis, *types[0].axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis.name,)

    def meaning(self, node: Node, scope: Scope, *operands: Named) -> Named:
        import torch

        names = operands[0].names
        data = torch.stack([operand.to(names) for operand in operands])
        return Named(data, (self.axis.name, *names))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y[n] = x_n: dx_n = dy[n]."""
        return [_at(b, d, self.axis.name, n) for n in range(len(node.operands))]


@dataclass(frozen=True)
class Select(Moving):
    """The element of an axis at a fixed index; -1 is the last."""

    changed = "one"
    axis: str
    index: int

    def typed(self, types: Types) -> Type:
        require(self.axis in types[0].names, f"select along {self.axis}")
        return without(types[0], (self.axis,))

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        data = x.data.select(x.names.index(self.axis), self.index)
        return Named(data, tuple(x.but(self.axis)))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x[n]: dx = dy at n, else 0."""
        return [b.add(Place(b.type(node.operands[0]).axis(self.axis), self.index), d)]


@dataclass(frozen=True)
class Place(Moving):
    """The transpose of Select: its operand at `index` of a new dim `axis`, and 0 elsewhere."""

    changed = "placed"
    axis: Axis
    index: int

    def typed(self, types: Types) -> Type:
        return Type(arrange((self.axis, *types[0].axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis.name,)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        (length,) = scope.shape([self.axis])
        data = x.data.new_zeros((length, *x.data.shape))
        data[self.index] = x.data
        return Named(data, (self.axis.name, *x.names))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x at n, else 0: dx = dy[n]."""
        return [_at(b, d, self.axis.name, self.index)]


@dataclass(frozen=True)
class Expand(Moving):
    """Its operand, the same at every position of further axes."""

    changed = "wide"
    axes: tuple[Axis, ...]

    def typed(self, types: Types) -> Type:
        names = {axis.name for axis in self.axes}
        require(not names & set(types[0].names), "expand along an axis it has")
        return Type(arrange((*types[0].axes, *self.axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return ()

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        names = node.type.names
        return Named(x.to(names).expand(scope.shape(node.type.axes)), names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """y = x along further axes: dx = the sum of dy over them."""
        return [b.fit(d, node.type, b.type(node.operands[0]))]


@dataclass(frozen=True)
class BlockSums(MadeByGradients):
    """Its operand, added up over each block of `length` indices of an axis: a last axis counts the
    blocks in place of it."""

    axis: str
    length: int

    def block(self, axis: Axis) -> Axis:
        """The axis that counts the blocks of another one."""
        return Axis(f"{axis.name}_block", sympy.ceiling(axis.size / self.length))

    def typed(self, types: Types) -> Type:
        require(self.axis in types[0].names, f"sums of blocks of {self.axis}")
        axis, rest = types[0].axis(self.axis), without(types[0], (self.axis,))
        return Type(arrange((*rest.axes, self.block(axis))), types[0].dtype)

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return elements(types[0].axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        """The last block may be shorter."""
        rest = x.but(self.axis)
        data = x.to([*rest, self.axis])
        filled = data.new_zeros((*data.shape[:-1], -(-data.shape[-1] // self.length) * self.length))
        filled[..., : data.shape[-1]] = data
        blocks = filled.unflatten(-1, (-1, self.length)).sum(-1)
        return Named(blocks, (*rest, node.type.axes[-1].name))


@dataclass(frozen=True)
class Detach(Moving):
    """Its operand; no gradient passes."""

    def typed(self, types: Types) -> Type:
        return types[0]

    def reduction_dims(self) -> tuple[str, ...]:
        return ()

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        return Named(x.data.detach(), x.names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        return [None]


def _at(b: Gradients, d: int, axis: str, index: int) -> int:
    """A value at an index; one without the axis is the same at all."""
    return b.add(Select(axis, index), d) if axis in b.names(d) else d

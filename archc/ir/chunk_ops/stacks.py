"""Chunk ops that move values between tokens and chunks, and along new dims."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import ChunkOp, Moving
from archc.ir.graph import Node, Type
from archc.ir.shapes import Lengths, Types, arrange, elements, require, without


@dataclass(frozen=True)
class Chunks(Moving):
    """A value along `stream`, cut into chunks: `chunk` and `row` take the stream's place.

    The last chunk is filled up with `fill`. With `steps`, the micro-steps of a token (an axis of
    the operand) are rows one after the other. The dims `outer` (heads) stand before the row.
    """

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


@dataclass(frozen=True)
class Tokens(Moving):
    """The inverse of Chunks: rows of chunks as tokens along `stream` again, without the filling."""

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


@dataclass(frozen=True)
class Stack(Moving):
    """Its operands, all of one type, along a new first dim."""

    axis: Axis

    def typed(self, types: Types) -> Type:
        require(len(set(types)) == 1, "stack of one type")
        return Type(arrange((self.axis, *types[0].axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis.name,)


@dataclass(frozen=True)
class Select(Moving):
    """The element of an axis at a fixed index; -1 is the last."""

    axis: str
    index: int

    def typed(self, types: Types) -> Type:
        require(self.axis in types[0].names, f"select along {self.axis}")
        return without(types[0], (self.axis,))

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis,)


@dataclass(frozen=True)
class Place(Moving):
    """The transpose of Select: its operand at `index` of a new dim `axis`, and 0 elsewhere."""

    axis: Axis
    index: int

    def typed(self, types: Types) -> Type:
        return Type(arrange((self.axis, *types[0].axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.axis.name,)


@dataclass(frozen=True)
class Expand(Moving):
    """Its operand, the same at every position of further axes."""

    axes: tuple[Axis, ...]

    def typed(self, types: Types) -> Type:
        names = {axis.name for axis in self.axes}
        require(not names & set(types[0].names), "expand along an axis it has")
        return Type(arrange((*types[0].axes, *self.axes)), types[0].dtype)

    def reduction_dims(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class BlockSums(ChunkOp):
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


@dataclass(frozen=True)
class Detach(Moving):
    """Its operand; no gradient passes."""

    def typed(self, types: Types) -> Type:
        return types[0]

    def reduction_dims(self) -> tuple[str, ...]:
        return ()

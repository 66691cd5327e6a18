"""Chunk ops along a stream."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir.chunk_ops.op import ChunkOp, Moving
from archc.ir.graph import Node, Type
from archc.ir.shapes import Lengths, Types, arrange, elements, join, require, without


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

"""Chunk ops: the type of each op's result from its operands' types; one entry an op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.graph import Type
from archc.ir.shapes import Types, arrange, join, require


def chunks(op: ck.Chunks, types: Types) -> Type:
    gone = {op.stream, op.steps}
    require(op.stream in types[0].names, f"chunks of {op.stream}")
    rest = [a for a in types[0].axes if a.name not in gone]
    outer = [a for a in rest if a.name in op.outer]
    inner = [a for a in rest if a.name not in op.outer]
    return Type(arrange((op.chunk, *outer, op.row, *inner)), types[0].dtype)


def tokens(op: ck.Tokens, types: Types) -> Type:
    require({op.chunk, op.row} <= set(types[0].names), "tokens of chunks")
    rest = tuple(a for a in types[0].axes if a.name not in (op.chunk, op.row))
    steps = () if op.steps is None else (op.steps,)
    return Type(arrange((op.stream, *steps, *rest)), types[0].dtype)


def stack(op: ck.Stack, types: Types) -> Type:
    require(len(set(types)) == 1, "stack of one type")
    return Type(arrange((op.axis, *types[0].axes)), types[0].dtype)


def select(op: ck.Select, types: Types) -> Type:
    require(op.axis in types[0].names, f"select along {op.axis}")
    return _without(types[0], (op.axis,))


def place(op: ck.Place, types: Types) -> Type:
    return Type(arrange((op.axis, *types[0].axes)), types[0].dtype)


def last(op: ck.Last, types: Types) -> Type:
    require(op.stream in types[0].names, f"last along {op.stream} of {types[0].names}")
    require(op.stream not in types[1].names, "what an empty stream ends with has no stream")
    return Type(join([_without(types[0], (op.stream,)), types[1]]), types[0].dtype)


def at_last(op: ck.AtLast, types: Types) -> Type:
    return Type(arrange((*types[0].axes, op.stream)), types[0].dtype)


def unwindow(op: ck.Unwindow, types: Types) -> Type:
    runs = op.blocks or op.stream.name
    require({runs, op.width} <= set(types[0].names), f"unwindow of {types[0].names}")
    rest = _without(types[0], (runs, op.width)).axes
    return Type(arrange((op.stream, *rest)), types[0].dtype)


def expand(op: ck.Expand, types: Types) -> Type:
    require(not {a.name for a in op.axes} & set(types[0].names), "expand along an axis it has")
    return Type(arrange((*types[0].axes, *op.axes)), types[0].dtype)


def along(op: ck.Sums | ck.Move, types: Types) -> Type:
    require(op.axis in types[0].names, f"along {op.axis} of {types[0].names}")
    return types[0]


def scan(op: ck.Scan, types: Types) -> Type:
    a, b, first = types
    require(op.axis not in first.names, "scan starts from a value before its rows")
    if op.matrix is not None:
        row, col = op.matrix
        require({row, col} <= set(a.names) and col in b.names, "scan with a matrix")
        a = _without(a, (row,))
    joined = Type(join([b, a, first]))
    require(op.axis in joined.names, f"scan along {op.axis}")
    return joined


def spans(op: ck.Spans, types: Types) -> Type:
    return _with_column(types[0], op.row, op.col)


def spans_gradient(op: ck.SpansGradient, types: Types) -> Type:
    return _without(types[0], (op.col,))


def gram(op: ck.Gram, types: Types) -> Type:
    for type in types:
        require(op.row in type.names, f"gram along {op.row} of {type.names}")
    joined = join([_without(type, op.over) for type in types])
    return _with_column(Type(joined), op.row, op.col)


def mix(op: ck.Mix, types: Types) -> Type:
    weights, value, gate = types
    require({op.row, op.col} <= set(weights.names), f"mix of {weights.names}")
    require(op.row in value.names and op.row in gate.names, "mix of values along rows")
    return Type(join([_without(weights, (op.col,)), value, gate]))


def gate_gradient(op: ck.GateGradient, types: Types) -> Type:
    return types[3]


def inverse(op: ck.Inverse, types: Types) -> Type:
    require({op.row, op.col} <= set(types[0].names), "inverse of a matrix")
    return types[0]


def conjugate(op: ck.Conjugate, types: Types) -> Type:
    require(len(types) == 1 + len(op.captures), "an operand for each capture")
    return op.body[op.body.outputs["product"]].type


def _without(type: Type, names: tuple[str, ...]) -> Type:
    return Type(tuple(a for a in type.axes if a.name not in names), type.dtype)


def _with_column(type: Type, row: str, col: Axis) -> Type:
    """The type with `col` right after `row`."""
    axes: list[Axis] = []
    for axis in type.axes:
        axes += [axis, col] if axis.name == row else [axis]
    return Type(tuple(axes), type.dtype)


CHUNK_RULES: dict[type, Callable[[Any, Types], Type]] = {
    ck.Chunks: chunks,
    ck.Tokens: tokens,
    ck.Stack: stack,
    ck.Select: select,
    ck.Place: place,
    ck.Last: last,
    ck.AtLast: at_last,
    ck.Unwindow: unwindow,
    ck.Expand: expand,
    ck.Sums: along,
    ck.Move: along,
    ck.Scan: scan,
    ck.Spans: spans,
    ck.SpansGradient: spans_gradient,
    ck.Gram: gram,
    ck.Mix: mix,
    ck.GateGradient: gate_gradient,
    ck.Inverse: inverse,
    ck.Detach: lambda op, types: types[0],
    ck.Conjugate: conjugate,
}

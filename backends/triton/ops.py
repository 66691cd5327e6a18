"""The writer of each op: a function that writes the op's lines in a kernel."""

from __future__ import annotations

from collections.abc import Callable

from archc.backends.triton.algebra import (
    constant,
    delta,
    elementwise,
    position,
    reduce,
)
from archc.backends.triton.linear import any_scan
from archc.backends.triton.pairs import paired
from archc.backends.triton.places import (
    at_last,
    chunks,
    detach,
    expand,
    gather,
    last,
    place_,
    result,
    select,
    tokens,
)
from archc.backends.triton.products import contract
from archc.backends.triton.rows import (
    inverse,
    move,
    spans,
    spans_gradient,
    sums,
)
from archc.backends.triton.solve import conjugate
from archc.backends.triton.tile import Tile

from archc.ir import chunk as ck
from archc.ir import layer as ir

OPS: dict[type, Callable[..., Tile]] = {
    ir.Constant: constant, ir.Position: position, ir.Delta: delta, ir.Elementwise: elementwise,
    ir.Reduce: reduce, ir.Contract: contract, ir.Result: result, ck.Chunks: chunks,
    ck.Tokens: tokens, ck.Select: select, ck.Place: place_, ck.AtLast: at_last, ck.Last: last,
    ck.Expand: expand, ck.Detach: detach, ck.Move: move, ck.Sums: sums, ck.Scan: any_scan,
    ck.Spans: spans, ck.SpansGradient: spans_gradient, ck.Gram: paired, ck.Mix: paired,
    ck.GateGradient: paired, ck.Inverse: inverse,
    ck.Conjugate: conjugate, ir.Gather: gather,
}  # fmt: skip

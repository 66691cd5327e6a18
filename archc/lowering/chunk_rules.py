"""The lowering rule of each op of a chunk kernel: a function that makes the op's tile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.lowering.chunks import at_last, block_sums, chunks, last, result, tokens
from archc.lowering.paired import paired
from archc.lowering.rows import (
    differences,
    less,
    middle,
    move,
    rest,
    scan,
    spans,
    spans_gradient,
    sums,
)
from archc.lowering.rules import RULES
from archc.lowering.systems import conjugate, inverse

CHUNK_RULES: dict[type, Callable[..., Any]] = {
    **RULES, ir.Result: result, ck.Chunks: chunks, ck.Tokens: tokens, ck.AtLast: at_last,
    ck.Last: last, ck.Move: move, ck.Sums: sums, ck.Scan: scan, ck.Spans: spans,
    ck.SpansGradient: spans_gradient, ck.Inverse: inverse, ck.Conjugate: conjugate,
    ck.Gram: paired, ck.Mix: paired, ck.MixSum: paired, ck.GateShares: paired,
    ck.GateGradient: paired, ck.BlockSums: block_sums, ck.Rest: rest, ck.Differences: differences,
    ck.NearGram: paired, ck.Less: less, ck.Middle: middle,
}  # fmt: skip

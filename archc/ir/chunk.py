"""Chunk ops: what the chunked form of a recurrence needs beyond the ops of the layer IR.

A chunked form is layer IR whose values run along tokens, or along chunks `n` (a stream) of C rows
`i` (a dim), the last chunk filled up with zeros. What does not depend on the carried state is
computed for all chunks at once; a `Recurrence` along the chunks carries the state.

Between two rows of a chunk a value decays by exp(span[i, j]), where

    span[i, j] = sum of the log gates of the rows r with j < r <= i    ("exclusive": j < r < i)

Spans are sums, never differences of longer sums, so that gates of -1000 lose no digits and gates of
-inf are no NaN. Ops that keep the pairs j <= i, or with `strict` j < i, leave out the others.

Ops: `chunk_ops`, a class each with all that is known of it whatever the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import sympy

from archc.dims import free_symbols, size_symbol
from archc.ir.chunk_ops.convolved import Convolved
from archc.ir.chunk_ops.joint_pairs import GateShares, JointPairs, MixSum
from archc.ir.chunk_ops.op import ChunkOp
from archc.ir.chunk_ops.pairs import (
    SUMS,
    Differences,
    GateGradient,
    Gram,
    Mix,
    NearGram,
    Spans,
    SpansGradient,
)
from archc.ir.chunk_ops.rows import (
    FAR,
    LARGEST_SCALE,
    LEAST_GATE,
    NEAREST,
    NEAREST_NARROW,
    Less,
    Middle,
    Move,
    Rest,
    Scan,
    Sums,
)
from archc.ir.chunk_ops.stacks import (
    BlockSums,
    Chunks,
    Detach,
    Expand,
    Place,
    Select,
    Stack,
    Tokens,
)
from archc.ir.chunk_ops.streams import AtLast, Last, Unwindow
from archc.ir.chunk_ops.systems import Conjugate, Inverse
from archc.ir.graph import Graph
from archc.ir.sizes import Number, evaluate

CHUNK = size_symbol("chunk")
"""The number of tokens in a chunk: chosen when the form runs."""

MOST_ROWS, FEWEST_TOKENS = 64, 16
"""Rows that a chunk has unless more is asked for: products inside it, and the solve of its
triangle, grow with their square; and tokens that it has however many rows they are."""

SCANNED_ROWS = 32
"""Rows of a chunk whose scan is all that is done: the registers of a thread hold that many.
On an H200 32 is faster than 16 forward, 3.8 against 4.7 ms, and the same with gradients."""


def _defined(op: type[ChunkOp]) -> Iterator[type[ChunkOp]]:
    """The ops among the classes derived from one."""
    for each in op.__subclasses__():
        if not each.part:
            yield each
        yield from _defined(each)


CHUNK_OPS = tuple(dict.fromkeys(_defined(ChunkOp)))
"""Every op that a file of `chunk_ops` defines; tables about ops have these, too."""


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The chunked form of a Recurrence, derived from its body.

    `forward`: inputs named as the Recurrence's captures, as they are outside (along the stream),
    and `S[0]` for each state; outputs: the Recurrence's results that are read, along the stream,
    `S[T]` for each state after the last token, and the values `saved` for the gradient. `backward`:
    inputs of `forward` that it still needs, the saved values, and `d.<output>` for each output that
    is no saved value; outputs `d.<input>` for each real input. `notes` say, for a reader, how and
    why.
    """

    forward: Graph
    backward: Graph | None = None
    saved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def rows_of_token(graph: Graph, sizes: Mapping[str, Number] = MappingProxyType({})) -> int:
    """The rows that a token has in a chunk: several where it takes several steps, or writes at a
    rank. As many as the fewest tokens have room for where `sizes` do not say."""
    axes = {axis for node in graph for axis in node.type.axes if axis.kind == "dim"}
    counts = [axis.size / CHUNK for axis in axes if axis.size.has(CHUNK)]
    return max((_rows(each, sizes) for each in counts if not each.has(CHUNK)), default=1)


def _rows(count: sympy.Expr, sizes: Mapping[str, Number]) -> int:
    known = {symbol.name for symbol in free_symbols(count)} <= {*sizes}
    return int(evaluate(count, sizes)) if known else MOST_ROWS // FEWEST_TOKENS


def rows_are_masked(graph: Graph) -> bool:
    """Whether kernels mask all rows of a chunk, so that it may have any number of tokens: each
    token has several rows, and a tile of them is a power of 2."""
    axes = {axis for node in graph for axis in node.type.axes if axis.kind == "dim"}
    rows = {axis.size for axis in axes if axis.size.has(CHUNK)}
    return bool(rows) and CHUNK not in rows


def tokens_of_rows(graph: Graph, sizes: Mapping[str, Number] = MappingProxyType({})) -> int:
    """The most tokens that have at most `MOST_ROWS` rows: a power of 2, or where all rows are
    masked a multiple of 4, so that rows of matrices begin at multiples of 8 bytes."""
    most = max(FEWEST_TOKENS, MOST_ROWS // rows_of_token(graph, sizes))
    return most - most % 4 if rows_are_masked(graph) else power_of_2(most)


def tokens_of_tile(
    graph: Graph, tokens: int, sizes: Mapping[str, Number] = MappingProxyType({})
) -> int:
    """The tokens that a tile has room for which is long enough for a chunk of `tokens`."""
    rows = rows_of_token(graph, sizes)
    most = (1 << (tokens * rows - 1).bit_length()) // rows
    return most - most % 4 if rows_are_masked(graph) else tokens


def power_of_2(most: int) -> int:
    """The largest power of 2 that is at most so much."""
    return 1 << (most.bit_length() - 1)


def usual_tokens(form: ChunkForm, sizes: Mapping[str, Number] = MappingProxyType({})) -> int:
    """The tokens of a chunk where nobody says: as many as have at most `MOST_ROWS` rows, or
    `SCANNED_ROWS` where a scan begins with the state before its chunk."""
    graph = form.forward
    scans = [node for node in graph if isinstance(node.op, Scan) and node.op.matrix is None]
    if any(graph[node.operands[2]].type.axes for node in scans):
        return SCANNED_ROWS
    return tokens_of_rows(graph, sizes)


def start(state: str) -> str:
    """The name of a state before the first token, in a chunked form."""
    return f"{state}[0]"


def final(state: str) -> str:
    """The name of a state after the last token, in a chunked form."""
    return f"{state}[T]"


def is_end(name: str) -> bool:
    """Whether a value is a state before the first token or after the last, or its gradient."""
    return name.endswith((start(""), final("")))

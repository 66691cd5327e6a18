"""The body of the Recurrence along the chunks: from the state before a chunk to that after it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_at_start
from archc.recurrence.chunk.frame import Frame, input_of

SO_FAR, TO_COME = "values so far", "values to come"
"""The decays of values from the start of a chunk to each row, and from there to its end, beside
terms that read the state."""

PARTS = re.compile(r"(W|U|X|Y|write)(?=[\d.])")


def part_of(name: str) -> str:
    """The part of a value in the loop along the chunks: W, U, X, Y, write, or "" for others."""
    found = PARTS.match(name)
    return found[1] if found else ""


def carrying(
    frame: Frame,
    keys: Sequence[str],
    captured: Mapping[str, int],
    states: Sequence[ir.State],
    unknown: int,
) -> Graph:
    """The body for `unknown` terms that read the state, from what is computed for all chunks.

    Captured, for term u and state k: `Wu` and `Uu.k` (rows: Y = U + W S), `Xu` (left vectors,
    decayed to the end of the chunk), `write.k` (what the other terms leave), `key decay` and
    `value decay` of the whole chunk, SO_FAR and TO_COME. Outputs: for each state S its value after
    the chunk, `S@start` the one before it, and the rows `Yu.k`.
    """
    body = replace(frame, graph=layer_graph())
    inputs = {
        name: input_of(body.graph, name, _in_chunk(frame.graph[id].type, frame.chunk.name))
        for name, id in captured.items()
    }
    for k, state in enumerate(states):
        before = input_of(body.graph, state.before, Type(state.axes))
        kept = body.times(before, inputs.get("key decay"), inputs.get("value decay"))
        parts = [kept, inputs.get(f"write.{k}")]
        for u in range(unknown):
            read = body.product(inputs[f"W{u}"], before, keys)
            read = body.times(read, inputs.get(SO_FAR))
            rows = body.total([inputs.get(f"U{u}.{k}"), read])
            assert rows is not None, "a term that reads writes"
            body.graph.outputs[f"Y{u}.{k}"] = rows
            left = body.times(rows, inputs.get(TO_COME))
            assert left is not None, "rows are written"
            parts.append(body.product(inputs[f"X{u}"], left, (frame.row.name,)))
        after = body.total(parts)
        assert after is not None, "a state stays"
        body.graph.outputs[state.name] = after
        body.graph.outputs[state_at_start(state.name)] = before
    return body.graph


def _in_chunk(type: Type, chunk: str) -> Type:
    return Type(tuple(axis for axis in type.axes if axis.name != chunk), type.dtype)

"""The least that the memory of a layer can do, whatever computes it.

Bytes: every input is read once and every output written once; of a whole sequence the last state is
written, for one token a state is read and written. A gradient reads the inputs and the outputs'
gradients and writes those of the inputs. Operations: those of the recurrence itself, token by
token, twice as many for its gradient. A form in chunks does more of them, and none can do with
fewer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from archc.bench.job import BACKWARD, DECODE, FORWARD, Work
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.count import cost
from archc.ir.graph import Type
from archc.ir.sizes import Number, evaluate
from archc.ir.value_names import gate_of

WIDE = 4
"""Bytes of a number of a state, and of a gate that is given as its logarithm."""


def compulsory(
    memory: ir.Layer, sizes: Mapping[str, Number], batch: int, tokens: int, width: int
) -> dict[str, Work]:
    """The work of a forward, of a forward with its gradients, and of one token (`tokens` 1), of a
    memory whose numbers have `width` bytes."""
    found = cost(memory)
    known: dict[str, Number] = {**sizes, "batch": batch, str(TIME.size): tokens}
    for symbol in found.flops.free_symbols:
        known.setdefault(str(symbol), tokens)  # the length of another sequence
    widths = [max(width, WIDE) if stays_wide(op) else width for _, op in memory.inputs]
    entering = zip(memory.inputs, widths, strict=True)
    read = sum(_bytes(op.type, known, each) for (_, op), each in entering)
    graph = memory.graph
    made = sum(_bytes(graph[id].type, known, width) for id in graph.outputs.values())
    flops = batch * float(evaluate(found.flops, known))
    state = WIDE * batch * float(evaluate(found.state, known))
    forward = read + made + state
    return {
        FORWARD: Work(forward, flops),
        BACKWARD: Work(forward + read + made + read, 3 * flops),
        DECODE: Work(forward + state, flops),
    }


def stays_wide(entering: ir.Input) -> bool:
    """Whether an input is float32 beside narrower ones: a decay's logarithm, a weight."""
    return gate_of(entering.name) is not None or "t" not in entering.type.names


def _bytes(type: Type, known: Mapping[str, Number], width: int) -> float:
    count = 1.0
    for axis in type.axes:
        count *= float(evaluate(axis.size, known))
    return count * width

"""The dtypes of values in memory: parts of results are as narrow as these."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.compile import for_kernels, lowered
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.kernel import NARROW, WIDE
from archc.ir.meaning import evaluate_graph
from archc.schedule.levels import Levels
from archc.schedule.partition import partition
from archc.schedule.widths import Widths
from tests.lowering.launches import SIZES, SMALL, drawn
from tests.schedule.same import symbols


def gradient_of(spec: str) -> tuple[ir.Recurrence, Graph]:
    """A spec's one recurrence, and the graph of its gradient."""
    layer = for_kernels(lowered(archc.load(spec).layer))
    (recurrence,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    return recurrence, recurrence.chunked.backward


def widths_of(spec: str) -> dict[str, str]:
    """The dtypes of what the gradient's kernels hand on, by name."""
    recurrence, graph = gradient_of(spec)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
    return {buffer.name: buffer.width for buffer in found.buffers}


def results(graph: Graph, part: int | None = None) -> dict[str, Tensor]:
    """What a gradient gives for drawn values, with one value of it in bfloat16."""
    sizes = {name: SIZES.get(name, 2 if name == "H" else SMALL) for name in symbols(graph)}
    draw = torch.Generator().manual_seed(0)
    inputs = [node for node in graph if isinstance(node.op, ir.Input)]
    values = {node.op.name: drawn(node, sizes, draw) for node in inputs}
    graph = graph.copy()
    if part is not None:
        wanted = graph.copy()
        wanted.outputs = {"part": part}
        values["part"] = evaluate_graph(wanted, values, sizes)["part"].bfloat16().double()
        graph.substitute(part, graph.add(ir.Input("part", graph[part].type)))
        graph.prune()
    return evaluate_graph(graph, values, sizes)


@pytest.mark.parametrize("spec", ["delta", "mamba2"])
def test_parts_of_results_round_no_result_further(spec: str) -> None:
    recurrence, graph = gradient_of(spec)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
    widths = Widths(graph, Levels(graph, recurrence.heads, {}), recurrence.heads)
    stored = {id for each in found.kernels for id in each.stores.values()}
    narrow = [id for id in sorted(stored) if widths.of(id) == NARROW]
    parts = [id for id in narrow if not widths.only_multiplied(id)]
    assert parts
    exact = results(graph)
    for part in parts:
        for name, found in results(graph, part).items():
            far = (found - exact[name]).norm() / exact[name].norm()
            assert far < 2**-8, (name, str(graph[part].op), float(far))


def test_what_a_walk_back_leaves_is_narrow_and_gradients_of_gates_are_not() -> None:
    assert widths_of("gated_delta")["d.U0.0"] == NARROW
    assert widths_of("gated_delta_product")["spansgradient"] == WIDE
    kda = widths_of("kda")
    assert kda["d.U0.0"] == NARROW
    assert {width for name, width in kda.items() if "sums" in name} == {WIDE}


def test_what_a_quotient_is_made_of_is_as_it_was() -> None:
    """Its gradient is what is left of parts that cancel."""
    mlstm = widths_of("mlstm")
    assert mlstm["q_scaled"] == WIDE

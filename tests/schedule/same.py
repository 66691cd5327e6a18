"""Whether two layers, or two chunked forms of one recurrence, compute the same."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate, evaluate_graph
from archc.ir.plan import examples
from tests.lowering.launches import SIZES, SMALL, drawn


def check_same(layer: ir.Layer, moved: ir.Layer) -> None:
    """Two layers with the same parameters and inputs, in float64."""
    torch.manual_seed(0)
    sizes = next(examples(layer, 4))
    x = torch.randn(2, 9, sizes["d"], dtype=torch.float64)
    params = {
        op.name: torch.randn([length(a, sizes) for a in op.axes], dtype=torch.float64)
        for op in (n.op for n in layer.graph)
        if isinstance(op, ir.Param)
    }
    before, after = (evaluate(each, {"x": x}, params, sizes).outputs for each in (layer, moved))
    assert [*before] == [*after]
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-12, atol=1e-12)


def length(axis: Axis, sizes: Mapping[str, int]) -> int:
    """How long an axis of a parameter is."""
    return int(axis.size) if axis.size.is_Integer else sizes.get(str(axis.size), 4)


def check_same_form(before: ChunkForm, after: ChunkForm) -> None:
    """Two chunked forms with the same inputs and cotangents, in float64: outputs and gradients. A
    layer's meaning is its loops, and shows nothing of them."""
    draw = torch.Generator().manual_seed(0)
    values: dict[str, torch.Tensor] = {}
    found = []
    for form in (before, after):
        own: dict[str, torch.Tensor] = {}
        for graph in (form.forward, form.backward):
            assert graph is not None
            sizes = {name: SIZES.get(name, 2 if name == "H" else SMALL) for name in symbols(graph)}
            for node in graph:
                if isinstance(node.op, ir.Input) and node.op.name not in {*values, *own}:
                    values[node.op.name] = drawn(node, sizes, draw)
            own |= evaluate_graph(graph, {**values, **own}, sizes)
        found.append({name: x for name, x in own.items() if name not in form.saved})
    assert [*found[0]] == [*found[1]]
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-9, atol=1e-11, msg=name)


def symbols(graph: Graph) -> list[str]:
    """The sizes of a graph's values, by name."""
    return sorted({s.name for n in graph for axis in n.type.axes for s in axis.size.free_symbols})

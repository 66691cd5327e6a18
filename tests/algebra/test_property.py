"""Random products and sums: simplified, they mean the same and cost no more."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archc.algebra import cost
from archc.algebra.product import step_cost
from archc.algebra.simplify import simplify
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.verify import verify
from tests.graphs import Sketch, axis, layer, run

SIZES = {"H": 2, "K": 3, "V": 4}
NAMES = ("H", "K", "K'", "V")
Draw = st.DrawFn


def leaf(draw: Draw, s: Sketch) -> int:
    """A parameter with some axes, an identity matrix, or a number."""
    kind = draw(st.sampled_from(["param", "param", "param", "delta", "number"]))
    if kind == "delta":
        return s.add(ir.Delta(axis("K"), axis("K'")))
    if kind == "number":
        return s.number(draw(st.integers(1, 3)))
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3))
    return s.param(f"p{len(s.graph)}", " ".join(names))


def contraction(draw: Draw, s: Sketch, a: int, b: int) -> int:
    """Axes of one length are joined or kept apart, summed or kept, in any order."""
    ins: list[tuple[str, ...]] = []
    found: dict[str, Axis] = {}
    for id in (a, b):
        labels = []
        for own in s.graph[id].type.axes:
            label = f"{own.base}{draw(st.integers(0, 1))}"
            found[label] = own
            labels.append(label)
        ins.append(tuple(labels))
    kept = draw(st.lists(st.sampled_from(sorted(found)), unique=True)) if found else []
    out, names = [], set()
    for label in kept:
        name = found[label].base
        while name in names:
            name += "'"
        names.add(name)
        out.append((label, found[label].renamed(name)))
    return s.add(ir.Contract(tuple(ins), tuple(out)), a, b)


@st.composite
def sketches(draw: Draw) -> Sketch:
    """A handful of leaves and up to eight steps, of which one or two are outputs."""
    s = Sketch()
    values = [leaf(draw, s) for _ in range(draw(st.integers(2, 4)))]
    for _ in range(draw(st.integers(1, 8))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        step = draw(
            st.sampled_from(["contract", "contract", "mul", "add", "sub", "neg", "div", "sum"])
        )
        if step == "contract":
            new = contraction(draw, s, a, b)
        elif step == "neg":
            new = s.fn("neg", a)
        elif step == "div":
            new = s.fn("div", a, s.number(draw(st.integers(1, 3))))
        elif step == "sum":
            names = s.graph[a].type.names
            summed = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
            new = s.add(ir.Reduce("sum", tuple(summed)), a)
        else:
            new = s.fn(step, a, b)
        if len(s.graph[new].type.axes) <= 4:
            values.append(new)
    s.outputs(y=values[-1], z=draw(st.sampled_from(values)))
    return s


def total(graph: Graph) -> cost.Cost:
    """What a graph costs, at every sample point."""
    return cost.total(cost.FREE, *(step_cost(graph, n) for n in graph if n.operands))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(sketches())
def test_simplified_is_equal_and_no_dearer(s: Sketch) -> None:
    model = layer(s, "H K V")
    s.graph.prune([n.id for n in s.graph if isinstance(n.op, ir.Param)])
    verify(model)
    simple = simplify(model)
    verify(simple)
    before, after = run(model, **SIZES).outputs, run(simple, **SIZES).outputs
    for name, value in before.items():
        assert after[name].shape == value.shape
        scale = value.abs().max() + 1 if value.numel() else 1
        assert torch.allclose(after[name] / scale, value / scale, atol=1e-10)
    assert not cost.cheaper(total(model.graph), total(simple.graph))
    assert simplify(simple) is simple

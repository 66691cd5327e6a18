"""Layer IR by hand, for tests: `Sketch` adds nodes by names of axes, `layer` makes a layer."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch

from archc.dims import BATCH, TIME, Axis, size_symbol, stream
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node, Type
from archc.ir.initial import sample_layer
from archc.ir.meaning import Evaluation, evaluate
from archc.ir.rewrite import Rule, rewrite
from archc.ir.text import as_text
from archc.ir.typing import layer_graph
from archc.ir.verify import verify
from archc.source import Source, Span


def axis(name: str) -> Axis:
    """`batch`, `t`, `s` and `r` (positions of t), `m` (another sequence), or a dim; `K'` is as long
    as `K`."""
    if name in ("batch", "t"):
        return {"batch": BATCH, "t": TIME}[name]
    if name in ("s", "r"):
        return stream(name, TIME.size)
    if name == "m":
        return stream(name)
    return Axis(name, size_symbol(name.rstrip("'")))


def axes(names: str) -> tuple[Axis, ...]:
    """Axes from names with spaces between them."""
    return tuple(axis(name) for name in names.split())


class Sketch(Builder):
    """A graph that is being written."""

    def __init__(self) -> None:
        super().__init__(layer_graph())

    def add(self, op: object, *operands: int, name: str | None = None) -> int:
        return self.graph.add(op, *operands, name=name)

    def input(self, name: str, dims: str = "", dtype: str = "real") -> int:
        return self.add(ir.Input(name, Type(axes(dims), dtype)), name=name)

    def param(self, name: str, dims: str = "") -> int:
        init = ir.Init("normal", (sympy.Integer(0), sympy.Integer(1)))
        return self.add(ir.Param(name, axes(dims), init), name=name)

    def einsum(self, text: str, *operands: int) -> int:
        """`einsum("batch K, batch V -> batch K V", k, v)`: every label is the name of its axis in
        the result; `i:K` is label i, in the result as axis K."""
        left, right = text.split("->")
        ins = [part.split() for part in left.split(",")]
        out = []
        for entry in right.split():
            label, _, name = entry.partition(":")
            out.append((label, axis(name or label)))
        return self.add(ir.Contract(tuple(tuple(i) for i in ins), tuple(out)), *operands)

    def outputs(self, **ids: int) -> Sketch:
        self.graph.outputs = dict(ids)
        return self


def layer(sketch: Sketch, sizes: str = "", **more: object) -> ir.Layer:
    """A layer of a sketch whose arguments are the named sizes."""
    source = Source("test.arch", "layer Test()")
    args = tuple(ir.Arg(name, size_symbol(name)) for name in sizes.split())
    span = Span(source, 0, 5)
    return ir.Layer("Test", "layer", "", args, sketch.graph, source, span, **more)


SIZES = {"batch": 2, "T#": 5, "T_m#": 4, "B": 2}
"""Sizes of batch and streams in tests."""


def random_inputs(layer: ir.Layer, sizes: Mapping[str, int], seed: int = 0) -> dict:
    """Random real inputs of a layer, of 2 sequences of 5 tokens unless `sizes` say otherwise."""
    generator = torch.Generator().manual_seed(seed)
    known = {**SIZES, **sizes}
    return {
        op.name: torch.randn(
            [known[str(a.size)] for a in op.type.axes], generator=generator, dtype=torch.float64
        )
        for _, op in layer.inputs
    }


def run(layer: ir.Layer, seed: int = 0, **sizes: int) -> Evaluation:
    """A layer on random inputs and parameters."""
    named = {arg.name: sizes[arg.name] for arg in layer.args}
    inputs = random_inputs(layer, sizes, seed)
    return evaluate(layer, inputs, sample_layer(layer, named, seed), named)


def single(sketch: Sketch, **inputs: torch.Tensor) -> torch.Tensor:
    """The output `y` of a sketch without arguments: sizes come with the inputs."""
    return evaluate(layer(sketch), inputs, {}, {}).outputs["y"]


def lines(graph: Graph) -> list[str]:
    """A graph's values that are neither inputs nor parameters, as text."""
    sketch = Sketch()
    sketch.graph = graph
    text = as_text(layer(sketch, ""), spans=False).split("\n")
    shown = [line for line in text if " = " in line and not line.startswith(("axis ", "->"))]
    return [line for line in shown if " = input" not in line and " = param" not in line]


def fire(rule: Rule, model: ir.Layer, times: int = 1, **sizes: int) -> ir.Layer:
    """The layer after a rule, which must fire so often, in a graph that is in order, and mean the
    same on random numbers."""
    fired: list[int] = []

    def counted(graph: Graph, node: Node) -> int | None:
        new = rule(graph, node)
        fired.extend([] if new is None else [new])
        return new

    verify(model)
    before = as_text(model)
    changed = rewrite(model, [counted])
    assert len(fired) == times
    assert as_text(model) == before, "the layer that was given changed"
    assert (changed is model) == (times == 0)
    old, new = run(model, **sizes).outputs, run(changed, **sizes).outputs
    assert {name: value.shape for name, value in old.items()} == {
        name: value.shape for name, value in new.items()
    }
    for name, value in old.items():
        assert torch.allclose(new[name], value, atol=1e-10)
    return changed

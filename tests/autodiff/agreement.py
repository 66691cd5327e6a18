"""A gradient graph against torch's autograd of the oracle."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from torch import Tensor

from archc.autodiff.keep import Gradient
from archc.autodiff.reverse import gradient
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate_graph
from archc.ir.sizes import evaluate
from archc.ir.verify import check_graph

LENGTHS = {"batch": 2, "t": 5, "T#": 5, "T_m#": 4, "n": 2, "i": 3, "chunk": 3}


def agree(
    graph: Graph,
    values: Mapping[str, Tensor] | None = None,
    wanted: tuple[str, ...] | None = None,
    sizes: Mapping[str, int] | None = None,
    tolerance: float = 1e-9,
    ways: tuple[bool, ...] = (True, False),
) -> Gradient:
    """Check the gradient of every real output by every real input (or those wanted), computed with
    and without saved values (`ways`); returns the one that saves."""
    sizes = {**LENGTHS, **(sizes or {})}
    given_values = {
        name: value.double() if value.is_floating_point() else value
        for name, value in (values or {}).items()
    }
    inputs = random_inputs(graph, sizes) | given_values
    reals = {n.op.name for n in graph if isinstance(n.op, ir.Input) and n.type.dtype == "real"}
    wanted = tuple(name for name in inputs if name in reals) if wanted is None else wanted
    given = [name for name, id in graph.outputs.items() if graph[id].type.dtype == "real"]
    before = {node.id: node for node in graph}
    sizes |= {
        str(axis.size): size
        for node in graph
        if isinstance(node.op, ir.Input)
        for axis, size in zip(node.type.axes, inputs[node.op.name].shape, strict=True)
    }
    expected, cotangents = autograd(graph, inputs, wanted, given, sizes)
    found = {save: gradient(graph, wanted, given, save) for save in ways}
    assert {node.id: node for node in graph} == before, "the graph that was given changed"
    for made in found.values():
        check_graph(made.forward, "forward")
        check_graph(made.backward, "backward")
        mine = run(made, inputs, cotangents, sizes)
        for name in wanted:
            assert mine[f"d.{name}"].shape == inputs[name].shape, name
            scale = 1 + largest(expected[name])
            difference = largest(mine[f"d.{name}"] - expected[name])
            assert difference <= tolerance * scale, f"d.{name} differs by {difference}"
    assert False not in ways or not found[False].saved
    return found[True]


def random_inputs(graph: Graph, sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """A random tensor for every real input of a graph; axes are as long as `sizes` say, or 4."""
    generator = torch.Generator().manual_seed(0)
    return {
        node.op.name: torch.randn(
            [length(axis.size, sizes) for axis in node.type.axes],
            generator=generator,
            dtype=torch.float64,
        )
        for node in graph
        if isinstance(node.op, ir.Input)
    }


def largest(values: Tensor) -> float:
    """The largest magnitude; NaN if one is."""
    return values.abs().max().item() if values.numel() else 0.0


def length(size: sympy.Expr, sizes: Mapping[str, int]) -> int:
    """A size as a number; a symbol without one is 4."""
    return int(evaluate(size, {str(s): sizes.get(str(s), 4) for s in size.free_symbols}))


def autograd(
    graph: Graph,
    inputs: Mapping[str, Tensor],
    wanted: tuple[str, ...],
    given: list[str],
    sizes: Mapping[str, int],
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients of the wanted inputs, and the random cotangents they are of."""
    leaves = {name: inputs[name].clone().requires_grad_() for name in wanted}
    outputs = evaluate_graph(graph, {**inputs, **leaves}, sizes)
    generator = torch.Generator().manual_seed(1)
    cotangents = {
        f"d.{name}": torch.randn(outputs[name].shape, generator=generator, dtype=torch.float64)
        for name in given
    }
    reached = [name for name in given if outputs[name].requires_grad]
    grads: tuple[Tensor | None, ...] = (None,) * len(leaves)
    if reached:
        grads = torch.autograd.grad(
            [outputs[name] for name in reached],
            list(leaves.values()),
            [cotangents[f"d.{name}"] for name in reached],
            allow_unused=True,
        )
    found = zip(leaves.items(), grads, strict=True)
    return {
        name: torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in found
    }, cotangents


def run(
    made: Gradient,
    inputs: Mapping[str, Tensor],
    cotangents: Mapping[str, Tensor],
    sizes: Mapping[str, int],
) -> dict[str, Tensor]:
    """The gradients that the two graphs compute."""
    values = evaluate_graph(made.forward, inputs, sizes)
    saved = {each.name: values[each.name] for each in made.saved}
    known = {**inputs, **saved, **cotangents}
    needed = [n.op.name for n in made.backward if isinstance(n.op, ir.Input)]
    return evaluate_graph(made.backward, {name: known[name] for name in needed}, sizes)

"""The gradient of a chunked form is that of the loop: from results and states to inputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archc.algebra.simplify import simplify
from archc.compile import in_chunks, in_logs
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph, Node
from archc.ir.meaning import evaluate_graph
from archc.ir.value_names import cotangent
from archc.numerics.propagation import intervals
from archc.specfile import import_source, read
from archc.syntax.parse import parse
from tests.elaborate.specs import layer
from tests.recurrence.chunk.test_derive import CHUNKED, HEAD, UPDATES
from tests.recurrence.forms import random_inputs, sizes_of, step_graph


def gradients(
    graph: Graph, node: Node, tokens: int, chunk: int, gates: float | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """By autograd through the loop, and by the derived backward; `gates` replaces some of them."""
    form = node.op.chunked
    assert isinstance(form, ChunkForm) and form.backward is not None
    step = step_graph(graph, node)
    sizes = sizes_of(step, tokens, chunk) | sizes_of(form.forward, tokens, chunk)
    lies = intervals(graph)
    known = {name: lies[id] for name, id in zip(node.op.captures, node.operands, strict=False)}
    inputs = random_inputs(step, sizes, known)
    for name, x in inputs.items():
        if gates is not None and name in known and known[name].nonpositive:
            inputs[name] = torch.where(torch.rand(x.shape) < 0.3, gates, x)
    real = [name for name, x in inputs.items() if x.is_floating_point()]
    leaves = {n: x.clone().requires_grad_(n in real) for n, x in inputs.items()}
    outputs = evaluate_graph(step, leaves, sizes)
    generator = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(y.shape, generator=generator, dtype=y.dtype)
        for name, y in outputs.items()
    }
    loss = torch.stack([(outputs[n] * w).sum() for n, w in weights.items()]).sum()
    found = torch.autograd.grad(loss, [leaves[n] for n in real], allow_unused=True)
    by_loop = {
        name: torch.zeros_like(inputs[name]) if g is None else g
        for name, g in zip(real, found, strict=True)
    }
    forward = evaluate_graph(form.forward, inputs, sizes)
    given = {cotangent(name): w for name, w in weights.items()}
    saved = {name: forward[name] for name in form.saved}
    made = evaluate_graph(form.backward, {**inputs, **saved, **given}, sizes)
    return by_loop, {name: made[cotangent(name)] for name in real}


def ready(spec: ir.Layer) -> list[tuple[Graph, Node]]:
    """The recurrences of a layer with their chunked forms."""
    made = in_chunks(in_logs(simplify(spec)))
    return [(made.graph, node) for node in made.graph if isinstance(node.op, ir.Recurrence)]


def agree(by_loop: dict[str, Tensor], made: dict[str, Tensor]) -> None:
    """Gradients that are equal, and finite."""
    for name, g in by_loop.items():
        assert made[name].isfinite().all(), name
        size = max(1e-3, float(g.abs().max())) if g.numel() else 1.0
        assert (made[name] - g).abs().max() / size < 1e-8 if g.numel() else True, name


@pytest.mark.default("kda", "gla", "mamba", "mlstm", "mesa", "rwkv7")
@pytest.mark.parametrize("name", CHUNKED)
def test_the_gradient_of_a_bundled_spec(name: str) -> None:
    for graph, node in ready(elaborate(parse(read(name)), None, {}, import_source)):
        for tokens, chunk in ((7, 3), (1, 4), (0, 2)):
            agree(*gradients(graph, node, tokens, chunk))


@pytest.mark.default(
    "no decay",
    "channel",
    "scalar, corrected",
    "reads another vector",
    "two micro-steps",
    "two sides",
)
@pytest.mark.parametrize("update", UPDATES)
def test_the_gradient_of_any_update(update: str) -> None:
    text = HEAD + (
        f"    recurrence S[K, V] over H:\n        {UPDATES[update]}\n"
        "        o = tanh(S[t].T @ q) + S[t-1].T @ k\n    output o\n"
    )
    ((graph, node),) = ready(layer(text))
    agree(*gradients(graph, node, 9, 4))


@pytest.mark.default("scalar", "corrected after the decay")
@pytest.mark.parametrize("gates", [-1000.0, -torch.inf, 0.0])
@pytest.mark.parametrize("update", ["scalar", "channel", "two sides", "corrected after the decay"])
def test_gates_at_their_ends(update: str, gates: float) -> None:
    """A gate that closes gives finite gradients, and so does one that never does."""
    text = HEAD + (
        f"    recurrence S[K, V] over H:\n        {UPDATES[update]}\n"
        "        o = S[t].T @ q\n    output o\n"
    )
    ((graph, node),) = ready(layer(text))
    agree(*gradients(graph, node, 9, 4, gates))

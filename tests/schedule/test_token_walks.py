"""Kernels that walk tokens: what a program has, and what is done before the walk."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import archc
from archc.compile import lowered, with_gradient
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.kernel import Kernel
from archc.schedule.token_walks import is_checkpointed, steps, tokenwise

MIXED = """
layer Mixed(d, H, K, V):
    input x[d]
    param W_k[d, H, K]; W_v[d, H, V]; A[H, K, K']
    k = x @ W_k
    v = x @ W_v
    chunk: sequential
    recurrence S[K, V] over H:
        S[t] = tanh(A @ S[t-1] + k @ v.T)
        o = S[t].T @ k
    output o
"""

SHARED = """
layer Shared(d, H, D):
    input x[d]
    param W[d, H, D]; gain[D] = 1; R[D, D']
    u = x @ W
    r = position(x) / (1 + position(x))
    chunk: sequential
    recurrence h[D] over H:
        h[t] = tanh(gain * h[t-1] + (1 - r) * r * u + R @ h[t-1])
    output h
"""


def alone(layer: ir.Layer) -> Graph:
    """The recurrence of a layer by itself, with its results."""
    (node,) = (node for node in layer.graph if isinstance(node.op, ir.Recurrence))
    read = {layer.graph[user].op.name for user in layer.graph.users(node.id)}
    return tokenwise(layer.graph, node, [name for name in node.op.body.outputs if name in read])


def kernel_of(layer: ir.Layer) -> Kernel:
    return steps(alone(layer), "step")


@pytest.mark.parametrize(
    ("spec", "split", "rows"),
    [("kda", "V", None), ("mlstm", "V", None), ("mamba", "D", None), ("lstm", None, "batch")],
)
def test_what_a_program_has(spec: str, split: str | None, rows: str | None) -> None:
    """A block of a dim that no op crosses; several sequences where they share weights."""
    kernel = kernel_of(lowered(archc.load(spec).layer))
    assert (kernel.split and kernel.split.name) == split
    assert (kernel.rows and kernel.rows.name) == rows
    assert kernel.grid[0].name == "batch" and kernel.ends


def test_weights_of_a_matrix_are_for_one_sequence() -> None:
    """A product of matrices has no third dim for sequences."""
    kernel = kernel_of(lowered(archc.parse(MIXED).layer))
    assert kernel.rows is None and kernel.split is not None and kernel.split.name == "V"


def dear(graph: Graph) -> Iterator[tuple[str, ...]]:
    """The operands of products in the bodies of a graph's walks: inputs by name, "" for others."""
    for node in graph:
        if isinstance(node.op, ir.Recurrence):
            body = node.op.body
            for inner in body:
                if isinstance(inner.op, ir.Contract) and len(inner.operands) == 2:
                    yield tuple(getattr(body[o].op, "name", "") for o in inner.operands)


def test_products_without_a_state_are_made_before_the_walk() -> None:
    """The gradient walks back with the cotangent times the weights alone."""
    form = with_gradient(alone(lowered(archc.load("lstm").layer)))
    assert form is not None and form.backward is not None
    names = sorted(sorted(each) for each in dear(form.backward))
    assert names == [["", "R_f"], ["", "R_g"], ["", "R_i"], ["", "R_o"]]
    outside = [n for n in form.backward if isinstance(n.op, ir.Contract) and len(n.operands) == 2]
    assert len(outside) == 8


def test_sums_over_sequences_and_heads_are_made_after_the_walk() -> None:
    """A program has one head, and some of the sequences: what follows from such a sum, as for
    (1 - r) * r here, is made after it too."""
    form = with_gradient(alone(lowered(archc.parse(SHARED).layer)))
    assert form is not None and form.backward is not None
    (walk,) = (node for node in form.backward if isinstance(node.op, ir.Recurrence))
    for node in walk.op.body:
        axes = {axis for operand in node.operands for axis in walk.op.body[operand].type.names}
        assert not {"batch", "H"} & axes - {*node.type.names}, node
    shapes = {name: form.backward[id].type.names for name, id in form.backward.outputs.items()}
    assert shapes["d.r"] == ("batch", "t") and shapes["d.gain"] == ("D",)


@pytest.mark.parametrize(("given", "spans"), [("x[d]", True), ("x[d, N]", False)])
def test_states_larger_than_what_is_given_are_learned_from_in_spans(
    given: str, spans: bool
) -> None:
    """Those of each head beside a number a token, or beside as many numbers."""
    layer = lowered(archc.parse(WIDER.format(given)).layer)
    (walk,) = (node for node in layer.graph if isinstance(node.op, ir.Recurrence))
    assert is_checkpointed(walk.op) is spans


WIDER = """
layer Wider(d, N):
    input {}
    param A[d, N]
    recurrence h[N] over d:
        h[t] = tanh(A * h[t-1] + x)
    output h
"""

MATRIX = """
layer Matrix(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H, K]
    chunk: sequential
    recurrence S[K, V] over H:
        S[t] = {} + k @ v.T
        o = S[t].T @ q
    output o
"""


@pytest.mark.parametrize(
    ("update", "split", "summed"),
    [
        ("tanh(a) * S[t-1]", "K", {"d.v"}),
        ("tanh(sum[K](a * k)) * S[t-1]", "V", {"d.a", "d.k", "d.q"}),
        ("diag(a) @ S[t-1] @ diag(tanh(S[t-1].T @ k))", "V", {"d.a", "d.k", "d.q"}),
        ("a.T @ a / (1 + sum[K, V](S[t-1] ** 2)) * S[t-1]", None, set()),
    ],
)
def test_gradients_are_parts_of_sums_over_what_programs_share(
    update: str, split: str | None, summed: set[str]
) -> None:
    """The dim of the fewest sums; none where the gradient of a state follows from a sum over it,
    and for few tokens, as in generation, where a sum would be a launch of its own."""
    form = with_gradient(alone(lowered(archc.parse(MATRIX.format(update)).layer)))
    assert form is not None and form.backward is not None
    (walk,) = (node for node in form.backward if isinstance(node.op, ir.Recurrence))
    results = [name for name in walk.op.body.outputs if "carried" not in name]
    graph = tokenwise(form.backward, walk, results)
    kernel = steps(graph, "walk", parts=True)
    assert (kernel.split and kernel.split.name) == split
    assert {name[:3] for name in kernel.summed} == summed
    assert not steps(graph, "walk").summed

"""Scans of states that are larger than what they are made of: nothing with all of their dims is
materialised for every token."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from archc.backends.load import load
from torch.utils._pytree import tree_leaves

import archc
from archc.compile import (
    SCHEDULE,
    for_kernels,
    lowered,
    whole_in_kernels,
    with_epilogues,
    with_prologues,
)
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.chunk import usual_tokens
from archc.ir.kernel import Kernels
from archc.ir.plan import Plan
from archc.schedule.axes import scans_numbers

READ = """
layer Read(d, F = 3 * d, S = 5):
    input x[d]
    param W_g, W_w[d, F]; W_k, W_q[d, S]; rate[F, S] = 1; W_o[F, d]
    gate  = softplus(x @ W_g)
    decay = exp(-exp(rate) * gate)
    value = x @ W_w
    key   = x @ W_k
    query = x @ W_q

    recurrence m[F, S]:
        m[t] = decay * m[t-1] + (gate * value) @ key.T
        o    = m[t] @ query

    output y[d] = o @ W_o
"""
"""A recurrence of the class that no bundled spec is."""


def forms(spec: str) -> list[ir.Recurrence]:
    """The recurrences of a layer as kernels do them."""
    layer = lowered(archc.load(spec).layer)
    layer = for_kernels(with_prologues(with_epilogues(layer)))
    return [n.op for n in layer.graph if isinstance(n.op, ir.Recurrence)]


def plans(recurrence: ir.Recurrence) -> list[Kernels]:
    """The kernels of a recurrence and of its gradient."""
    form = recurrence.chunked
    assert form is not None
    assert form.backward is not None
    made = []
    for graph in (form.forward, form.backward):
        ready = SCHEDULE.prepare(graph, recurrence.heads)
        made.append(SCHEDULE.partition(ready, "m", recurrence.stream, recurrence.heads, {}))
    return made


@pytest.fixture
def read(tmp_path: Path) -> str:
    """The file of a spec of that class."""
    file = tmp_path / "read.arch"
    file.write_text(READ, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("spec", ["mamba", "ssm_selective", ""])
def test_nothing_has_both_dims_for_every_token(spec: str, read: str) -> None:
    (recurrence,) = forms(spec or read)
    dims = {axis.name for axis in recurrence.states[0].axes if axis.kind == "dim"}
    assert recurrence.chunked is not None
    assert usual_tokens(recurrence.chunked) == ck.SCANNED_ROWS
    assert recurrence.chunked.saved == (f"saved.{recurrence.states[0].name}@start",)
    for plan in plans(recurrence):
        inputs = [n.type for n in plan.graph if isinstance(n.op, ir.Input)]
        for type in (*inputs, *(buffer.type for buffer in plan.buffers)):
            rows = any(a.name == "t" or a.size == ck.CHUNK for a in type.axes)
            assert not (rows and dims <= {*type.names}), type


def test_a_gradient_scans_each_chunk_once_either_way(read: str) -> None:
    """What its end hands on takes one scan more, before the states: its cotangent comes from there,
    not from scans of its own."""
    (recurrence,) = forms(read)
    assert recurrence.chunked is not None
    assert recurrence.chunked.backward is not None
    scans = [n.op for n in recurrence.chunked.backward if scans_numbers(n)]
    back = [op for op in scans if op.reverse]
    assert sorted(op.exclusive for op in back) == [False, True]
    assert not any(isinstance(n.op, ck.Move) for n in recurrence.chunked.backward)


def test_kernels_go_index_by_index(read: str) -> None:
    (recurrence,) = forms(read)
    for plan in plans(recurrence):
        turned = [kernel for kernel in plan.kernels if kernel.turn is not None]
        assert [kernel.turn.name for kernel in turned if kernel.turn] == ["S", "S"]
        assert all(kernel.split is not None and kernel.split.name == "F" for kernel in turned)


def test_rows_of_blocks_add_up_to_the_sum(read: str) -> None:
    """What programs have a part of is summed part by part, and what these come to by PyTorch."""
    (recurrence,) = forms(read)
    plan = plans(recurrence)[1]
    blocks = [n for n in plan.graph if isinstance(n.op, ck.BlockSums)]
    assert len(blocks) == 2
    for node in blocks:
        (user,) = plan.graph.users(node.id)
        assert user in plan.fallback


SQUARE = """
layer Square(d, K):
    input x[d]
    param W[d, K]
    k = x @ W
    e = where(index[K] == position(x) % K, 1, 0)
    recurrence S[K, K']:
        S[t] = S[t-1] * (1 - e @ e.T) + e @ k.T
        o    = S[t].T @ k
    output o
"""


def test_a_dim_that_is_only_called_otherwise_is_no_sum(tmp_path: Path) -> None:
    """What is read along K', one for each token, is called K again; the gradient sums over K."""
    (tmp_path / "square.arch").write_text(SQUARE, encoding="utf-8")
    (recurrence,) = forms(str(tmp_path / "square.arch"))
    assert recurrence.chunked is not None
    assert recurrence.chunked.backward is not None
    ready = SCHEDULE.prepare(recurrence.chunked.backward, recurrence.heads)
    assert sum(isinstance(n.op, ck.BlockSums) for n in ready) == 1


def test_the_form_for_kernels_has_the_gradient_of_the_layer(read: str) -> None:
    """In PyTorch, where there is no GPU; with gates that forget everything, and some that forget
    nothing."""
    spec = archc.load(read)
    layer = spec.module(d=2, dtype=torch.float64)
    with torch.no_grad():
        layer.rate[::3] = 12.0
        layer.rate[1::3] = -60.0
    plan = Plan(lowered(spec.layer), runtime="import")
    other = load(whole_in_kernels(plan).text(plan), "read").Read
    same = other(d=2).double()
    same.load_state_dict(layer.state_dict())
    x = torch.randn(2, 37, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    made = []
    for each in (layer, same):
        given = x.clone().requires_grad_()
        (y, state) = each(given, return_state=True)
        loss = y.square().sum() + sum(s.square().sum() for s in tree_leaves(state))
        made.append([y, *torch.autograd.grad(loss, [given, *each.parameters()])])
    torch.testing.assert_close(made[1], made[0])

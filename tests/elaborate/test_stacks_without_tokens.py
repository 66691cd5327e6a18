"""A `repeat` that carries or reads values of positions or of parameters alone: they have no row for
each sequence, what the layers of the stack keep has one."""

from __future__ import annotations

import pytest
import torch
from archc.backends.eager.emit import emit

import archc
from archc.compile import lowered, text_of
from archc.file_check import checked
from archc.ir.plan import Plan

CARRIED = """
layer Earlier(p):
    input x[p]
    output y[p] = x[t-2]

layer Whole(d, vocab):
    input x[d]
    param w[vocab, d]
    h = w[position(x)]
    repeat 3 as l:
        h = h + Earlier(h)
    output y[d] = x + h
"""

READ = CARRIED.replace("h = w[position(x)]", "i = w[position(x)]\n    h = x").replace(
    "Earlier(h)", "Earlier(i)"
)

PARAMETERS = """
layer Whole(d):
    input x[d]
    param w[d]
    h = w
    repeat 3 as l:
        param m[d, d']
        h = h @ m
    output y[d] = x * h
"""

POSITIONS = PARAMETERS.replace("h @ m", "h @ m + sin(position(x))")

ATTENDED = """
layer Whole(d, vocab, K):
    input x[d]
    param w[vocab, d]
    h = w[position(x)]
    repeat 2 as l:
        param m, n[d, K]
        q = h @ m
        k = h @ n
        attend s <= t:
            o = softmax(q[t].T @ k[s]) @ h[s]
        h = h + o
    output y[d] = x + h
"""


def earlier(h: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros_like(h[:2]), h[:-2]])


@pytest.mark.parametrize(("text", "carried"), [(CARRIED, True), (READ, False)])
def test_what_is_kept_of_positions_is_of_each_sequence(text: str, carried: bool) -> None:
    layer = archc.parse(text).module(d=3, vocab=40, dtype=torch.float64)
    x = torch.randn(2, 18, 3, dtype=torch.float64)
    i = layer.w[:18]
    h = i.expand_as(x) if carried else x
    for _ in range(3):
        h = h + torch.stack([earlier(row) for row in (h if carried else i.expand_as(x))])
    wanted = x + h
    torch.testing.assert_close(layer(x), wanted)
    first, state = layer(x[:, :5], return_state=True)
    torch.testing.assert_close(torch.cat([first, layer(x[:, 5:], state=state)], 1), wanted)
    packed = layer(x[:1], cu_seqlens=torch.tensor([0, 7, 18]))
    torch.testing.assert_close(packed[:, 7:], layer(x[:1, 7:]))


@pytest.mark.parametrize("text", [CARRIED, READ, PARAMETERS, POSITIONS, ATTENDED])
def test_every_backend_writes_them(text: str) -> None:
    layer = archc.parse(text).layer
    compile(text_of(layer, "triton"), "triton", "exec")
    compile(checked(Plan(lowered(layer)), layer, emit), "eager", "exec")

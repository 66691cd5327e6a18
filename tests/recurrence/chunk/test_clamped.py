"""A state that is scaled, moved and kept within bounds, in chunks, with the loop's gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, maximum, minimum, relu, where

import archc
from archc.compile import before_chunks
from archc.recurrence.chunk.loops import loops

HEAD = (
    "layer L(d):\n    input x[d], y[d], b[d], new[]\n    f = {f}\n"
    "    recurrence m[d] = 0.5:\n        m[t] = {update}\n    output m\n"
)


def text(update: str, f: str = "sigmoid(y)") -> str:
    return HEAD.format(f=f, update=update)


Update = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""m, f, x, b and whether something new begins -> the state after the token."""

UPDATES: dict[str, Update] = {
    "max(f * m[t-1], b)": lambda m, f, x, b, new: maximum(f * m, b),
    "max(f * m[t-1] + x, b)": lambda m, f, x, b, new: maximum(f * m + x, b),
    "min(f * m[t-1] - x, b)": lambda m, f, x, b, new: minimum(f * m - x, b),
    "relu(f * m[t-1] + x)": lambda m, f, x, b, new: relu(f * m + x),
    "relu(m[t-1] + x)": lambda m, f, x, b, new: relu(m + x),
    "min(max(m[t-1] + x, b), b + 1)": lambda m, f, x, b, new: minimum(maximum(m + x, b), b + 1),
    "max(min(m[t-1] / 2 + x, 1), -1)": lambda m, f, x, b, new: maximum(
        minimum(m / 2 + x, 0 * m + 1), 0 * m - 1
    ),
    "where(new > 1, b, 0.9 * max(f * m[t-1] - x, 2 * b) + 0.1)": lambda m, f, x, b, new: where(
        new > 1, b, 0.9 * maximum(f * m - x, 2 * b) + 0.1
    ),
}


@pytest.mark.parametrize("update", UPDATES)
def test_it_is_the_loop(update: str) -> None:
    """In chunks of 64; without a slope of inputs that make values equal, whose gradient torch
    divides."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(2, 150, 3)] * 3 + [(2, 150)]
    drawn = [torch.randn(each, generator=draw, dtype=torch.float64) for each in shapes]
    x, y, b, new = [each.mul(2).round().div(2) for each in drawn] if "f" not in update else drawn
    given = [each.requires_grad_() for each in (x, y, b)]
    m, rows = torch.full((2, 3), 0.5, dtype=torch.float64), []
    for t in range(150):
        m = UPDATES[update](m, y[:, t].sigmoid(), x[:, t], b[:, t], new[:, t, None])
        rows.append(m)
    wanted = torch.stack(rows, 1)
    spec = archc.parse(text(update))
    assert loops(before_chunks(spec.layer)) == ()
    found = spec.module(d=3, backend="eager")(x, y, b, new)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    assert not update.startswith("relu") or float(found.detach().min()) == 0
    along = torch.randn(found.shape, generator=draw, dtype=torch.float64)
    made, true = (
        torch.autograd.grad((each * along).sum(), given, materialize_grads=True)
        for each in (found, wanted)
    )
    torch.testing.assert_close(made, true, rtol=0, atol=1e-11)


LOOPS = {
    text("max(f * m[t-1], b)", "y"): "E0602",
    text("relu(x - m[t-1])"): "E0601",
    text("max(f * m[t-1], b)").replace("= 0.5:", "= -inf:"): "E0601",
    text("max(relu(f * m[t-1]), b)"): "E0601",
    text("max(f * m[t-1], m[t-1] - b)"): "E0601",
    "layer L(H, K, V):\n    input k[H, K], v[H, V]\n    recurrence S[K, V] over H:\n"
    "        S[t] = relu(0.9 * S[t-1] + k @ v.T)\n    output S\n": "E0601",
}


@pytest.mark.parametrize("spec", LOOPS)
def test_what_may_grow_or_turn_or_is_larger_than_its_inputs_is_a_loop(spec: str) -> None:
    (found,) = loops(before_chunks(archc.parse(spec).layer))
    assert found.code == LOOPS[spec]

"""Gates a channel that may be negative or 0, in chunks: beside a loop in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.compile import before_chunks
from archc.recurrence.chunk.loops import loops

SOURCE = """
layer Signed(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H, K], b[H]
    f = min(max(a, -1), 1)
    recurrence S[K, V] over H:
        S[t] = (I - sigmoid(b) * k @ k.T) @ diag(f) @ S[t-1] + k @ v.T
        o = S[t].T @ q
    output o
"""

VALUES = "diag(f) @ S[t-1]", "S[t-1] @ diag(f)"
"""Gates of the keys, and the same of the values."""


def drawn(tokens: int) -> list[Tensor]:
    """q, k, v, a and b of one sequence, two heads; gates of all sizes down to 0."""
    g = torch.Generator().manual_seed(0)
    q, k, v, a = (torch.randn(1, tokens, 2, 6, generator=g).double() for _ in range(4))
    gates = torch.tanh(a)
    for start, step, size in ((0, 7, 1e-4), (0, 11, 1e-9), (5, 50, 1e-30), (3, 17, 0.0)):
        gates[:, start::step] *= size
    k = torch.nn.functional.normalize(k, dim=-1)
    every = (q, k, v, gates, torch.randn(1, tokens, 2, generator=g))
    return [x.float().double().requires_grad_() for x in every]


def loop(q: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, of: str = "K") -> Tensor:
    """The outputs, token by token, with gates of the keys or of the values (`of`)."""
    state, found = torch.zeros(1, 2, 6, 6, dtype=torch.float64), []
    for t in range(q.shape[1]):
        state = state * (a[:, t, :, :, None] if of == "K" else a[:, t, :, None])
        read = torch.einsum("bhk,bhkv->bhv", k[:, t], state) * b[:, t].sigmoid()[..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t] - read)
        found.append(torch.einsum("bhk,bhkv->bhv", q[:, t], state))
    return torch.stack(found, 1)


@pytest.mark.default("dtype0", "dtype1-1e-13-K")
@pytest.mark.parametrize("of", ["K", "V"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 5e-6), (torch.float64, 1e-13)])
def test_gradients_of_gates_near_0_have_all_digits(
    dtype: torch.dtype, limit: float, of: str
) -> None:
    """What follows from a gate is linear in it, so that its gradient is no smaller near 0 or at 0:
    that of the logarithm of its size, divided by it, where nothing was subtracted before."""
    given, weights = drawn(200), torch.linspace(-1, 1, 200 * 12).view(1, 200, 2, 6)
    wanted = loop(*given, of=of)
    slopes = torch.autograd.grad((wanted * weights).sum(), given)
    source = SOURCE if of == "K" else SOURCE.replace(*VALUES).replace("a[H, K]", "a[H, V]")
    layer = archc.parse(source).module(H=2, K=6, V=6, dtype=dtype, backend="eager")
    own = [x.detach().to(dtype).requires_grad_() for x in given]
    found = layer(*own)
    learned = torch.autograd.grad((found * weights).sum(), own)
    for x, y in zip((found, *learned), (wanted, *slopes), strict=True):
        assert float(((x - y).abs().max() / y.abs().max()).detach()) < limit


@pytest.mark.parametrize("gate", ["tanh(a)", "tanh(a) * sigmoid(b)", "min(max(a, 0), 1)"])
def test_what_is_in_chunks(gate: str) -> None:
    """Gates from -1 to 1, those with other factors, and those that may be exactly 0."""
    spec = archc.parse(SOURCE.replace("min(max(a, -1), 1)", gate))
    assert not loops(before_chunks(spec.layer))


@pytest.mark.parametrize("gate", ["a", "1.5 * tanh(a)", "2 - tanh(a)"])
def test_what_may_grow_stays_a_loop(gate: str) -> None:
    (found,) = loops(before_chunks(archc.parse(SOURCE.replace("min(max(a, -1), 1)", gate)).layer))
    assert found.code == "E0602"

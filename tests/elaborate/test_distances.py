"""Gates of pairs that no attend reads make no NaN in gradients, however long a sequence is."""

from __future__ import annotations

import pytest
import torch

import archc

T, H, K = 300, 2, 3
WEIGHTS = {
    "a distance": ("", "exp(-slope * (t - s))"),
    "sums of gates": ("", "exp(c[t] - c[s])"),
    "a power": ("", "(1 - slope * (c[t] - c[s])) ** -1"),
    "with a name": ("decay = exp(c[t] - c[s] - slope * (t - s))", "decay"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_an_exponential_of_later_tokens_is_not_infinite(name: str) -> None:
    """In float32, where exp of more than 88 is: as masks inside of it have it in torch."""
    line, weight = WEIGHTS[name]
    spec = archc.parse(
        "layer L(H, K):\n    input q[H, K], k[H, K], c[H]\n    param slope[H] = 1\n"
        f"    attend s <= t over H:\n        {line or 'u = 0 * slope'}\n"
        f"        w = (q[t].T @ k[s] + {'0' if line else 'u'}) * {weight}\n"
        "        o = w @ k[s]\n    output o\n"
    )
    torch.manual_seed(0)
    q, k = torch.randn(1, T, H, K), torch.randn(1, T, H, K)
    leaves = [q, k, -torch.rand(1, T, H).cumsum(1)]
    module = spec.module(H=H, K=K, backend="eager")
    rate = module.get_parameter("slope")
    wide = [x.double().requires_grad_() for x in [*leaves, rate.data]]
    q_, k_, c, slope = wide
    late = torch.ones(T, T, dtype=torch.bool).triu(1)
    gap = torch.arange(T)[:, None] - torch.arange(T)
    far, sums = -slope[:, None, None] * gap, c.mT[..., :, None] - c.mT[..., None, :]
    fallen = -torch.log(1 - slope[:, None, None] * sums.masked_fill(late, 0))
    powers = {"a distance": far[None], "sums of gates": sums, "a power": fallen}
    power = powers.get(name, far + sums)
    share = power.masked_fill(late, -torch.inf).exp()
    expected = torch.einsum("bthk,bshk,bhts,bshv->bthv", q_, k_, share, k_)
    own = [x.requires_grad_() for x in leaves] + [rate]
    found = module(*own[:3])
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    got = torch.autograd.grad(found.sum(), own, allow_unused=True)
    want = torch.autograd.grad(expected.sum(), wide, allow_unused=True)
    for slope_, other in zip(got, want, strict=True):
        if other is not None and slope_ is not None:
            torch.testing.assert_close(slope_.double(), other, rtol=1e-3, atol=1e-2)

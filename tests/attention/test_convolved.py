"""Sums over the past whose weights depend on the distance alone are convolutions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import archc
from archc.attention.convolved import convolved
from archc.ir import layer as ir
from archc.ir.meaning import evaluate

FAR = "exp(-exp(a) * (t - s))"
CONVOLVED = {
    "a filter": ("param h[P, H, V]", "s <= t", "sum[s](h[min(t - s, P - 1)] * v[s])"),
    "a window": ("param a[H, V], c[V]", "t - 5 < s <= t", f"sum[s]({FAR} * c * v[s])"),
    "the past": ("param a[H, V]", "s < t", f"sum[s]({FAR} * cos(a * (t - s)) * v[s]) + v[t]"),
    "some tokens": (
        "input m[H]; param a[H, V]", "s <= t", f"sum[s](where(m[s] > 0, {FAR} * v[s], 0))",
    ),
    "a table that ends": (
        "param h[P, H, V]", "s <= t", "sum[s](where(t - s < P, h[min(t - s, P - 1)], 0) * v[s])",
    ),
    "a weight that grows": (
        "param a[H, V]", "t - 5 < s <= t", "sum[s](exp(sigmoid(a) * (t - s)) * v[s])",
    ),
    "a sum of waves": (
        "param w[P]; h[P, H, V]", "s <= t", "sum[s](sum[P](sin(w * (t - s)) * h) * v[s])",
    ),
    "a small network": (
        "param w[P]; A[P, P']; B[P, V]; a[H, V]", "s <= t",
        f"sum[s]((B.T @ sin(A.T @ sin(w * (t - s)))) * {FAR} * v[s])",
    ),
}  # fmt: skip
OTHERS = {
    "by place": ("param a[H, V]", "s <= t", "sum[s](exp(-exp(a) * (t + s)) * v[s])"),
    "a gate of the reader": (
        "input m[H]; param a[H, V]", "s <= t", f"sum[s](sigmoid(m[t]) * {FAR} * v[s])",
    ),
    "a window of the reader": (
        "input m[H]; param a[H, V]", "s <= t", f"sum[s](where(t - s < 9 * m[t], {FAR}, 0) * v[s])",
    ),
    "blocks": ("param a[H, V]", "s <= t", f"sum[s](where(t // 4 == s // 4, {FAR}, 0) * v[s])"),
    "later tokens": ("param a[H, V]", "all s", "sum[s](exp(-abs(a) * abs(t - s)) * v[s])"),
}  # fmt: skip
SIZES: dict[str, Any] = {"H": 2, "V": 3, "P": 4}
LOOSE = {"retain_graph": True, "allow_unused": True}


@pytest.mark.default("a filter", "by place", "a gate of the reader", "blocks", "a table that ends")
@pytest.mark.parametrize("name", [*CONVOLVED, *OTHERS])
def test_they_are_what_was_written(name: str) -> None:
    """With gradients, and in pieces; what is not by distance stays as it is."""
    declared, tokens, text = (CONVOLVED | OTHERS)[name]
    spec = archc.parse(
        "layer L(H, V, P):\n    input v[H, V]\n"
        + "".join(
            f"    {line.strip()}\n" for line in declared.replace("; p", "\n    p").split("\n")
        )
        + f"    attend {tokens} over H:\n        o = {text}\n    output o\n"
    )
    (attend,) = (n.op for n in spec.layer.graph if isinstance(n.op, ir.Attend))
    assert (convolved(attend) is not attend) == (name in CONVOLVED)
    torch.manual_seed(0)
    module = spec.module(dtype=torch.float64, **SIZES)
    shapes = {op.name: (2, 19, *(2, 3)[: len(op.type.axes) - 2]) for _, op in spec.layer.inputs}
    given = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    leaves = [each.requires_grad_() for each in (*given.values(), *module.parameters())]
    params = dict(module.named_parameters())
    (want,) = evaluate(spec.layer, given, params, SIZES).outputs.values()
    made, slopes = [module(**given)], torch.linspace(-1, 1, want.numel()).view_as(want).double()
    if "all" not in tokens:
        first, state = module(**{n: x[:, :7] for n, x in given.items()}, return_state=True)
        then, state = module(
            **{n: x[:, 7:8] for n, x in given.items()}, state=state, return_state=True
        )
        rest = module(**{n: x[:, 8:] for n, x in given.items()}, state=state)
        made.append(torch.cat([first, then, rest], 1))
    expected = torch.autograd.grad((want * slopes).sum(), leaves, **LOOSE)
    for found in made:
        torch.testing.assert_close(found, want)
        torch.testing.assert_close(
            torch.autograd.grad((found * slopes).sum(), leaves, **LOOSE), expected
        )


def test_no_number_of_a_pair_is_made_and_no_token_is_rounded_as_another() -> None:
    """Of 4,096 tokens and 32 elements, 500 million would be; the last ones are 10^8 as large."""
    spec = archc.parse(
        "layer L(d, P):\n    input u[d]\n    param h[P, d]\n"
        "    attend s <= t:\n        o = sum[s](h[min(t - s, P - 1)] * u[s])\n    output o\n"
    )
    torch.manual_seed(0)
    module = spec.module(d=32, P=4096, dtype=torch.float32)
    x = torch.randn(1, 4096, 32)
    x[:, -96:] *= 1e8
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as found:
        y = module(x)
    assert max(abs(event.cpu_memory_usage) for event in found.events()) < 1 << 24
    wide = torch.zeros(4096, 32, dtype=torch.float64)
    taps, tokens = module.h.detach().double(), x[0].double()
    for back in range(4096):
        wide[back:].addcmul_(taps[back], tokens[: 4096 - back])
    for part in (slice(0, 16), slice(0, 4000), slice(4000, None)):
        assert (y[0, part] - wide[part]).abs().max() < 1e-6 * wide[part].abs().max()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("of", ["a token", "a weight"])
def test_what_is_not_finite_reaches_no_earlier_token(of: str, wrong: float) -> None:
    """Each token of its own sequence and element: the 10th, or what is read 9 tokens back."""
    text = "attend s <= t over H:\n        o = sum[s](h[min(t - s, P - 1)] * v[s])\n    output o\n"
    spec = archc.parse(f"layer L(H, V, P):\n    input v[H, V]\n    param h[P, H, V]\n    {text}")
    sizes: dict[str, Any] = {"H": 2, "V": 3, "P": 19}
    module = spec.module(dtype=torch.float64, **sizes)
    v = torch.randn(2, 19, 2, 3, dtype=torch.float64)
    before = module(v)
    place = (1, slice(9, None)) if of == "a token" else (slice(None), slice(9, None))
    with torch.no_grad():
        (v[1] if of == "a token" else module.h)[9, 1, 2] = wrong
    found = module(v.requires_grad_())
    params = dict(module.named_parameters())
    (want,) = evaluate(spec.layer, {"v": v}, params, sizes).outputs.values()
    there = torch.zeros(found.shape, dtype=torch.bool)
    there[(*place, 1, 2)] = True
    assert torch.equal(want.isfinite(), ~there) and torch.equal(found.isnan(), there)
    torch.testing.assert_close(found[~there], before[~there])
    (slope,) = torch.autograd.grad(found[~there].sum(), v)
    assert slope.isfinite().all()


def test_a_loop_in_an_attend_is_looked_at_once_for_each_value() -> None:
    """A threshold by halving: each step reads the one before it twice and more."""
    spec = archc.parse(
        "layer L(H, V, P = 40):\n    input v[H, V]\n    attend s <= t over H:\n"
        "        z = v[t].T @ v[s]\n        low = max[s](z) - 1\n        high = low + 1\n"
        "        repeat P as i:\n            mid = (low + high) / 2\n"
        "            more = sum[s](relu(z - mid) ** 2) - 1\n"
        "            low = where(more >= 0, mid, low)\n"
        "            high = where(more >= 0, high, mid)\n"
        "        o = (relu(z - low) ** 2) @ v[s]\n    output o\n"
    )
    v = torch.randn(1, 9, 2, 3, dtype=torch.float64)
    found = spec.module(H=2, V=3, dtype=torch.float64)(v)
    score = torch.einsum("bthv,bshv->bhts", v, v)
    score = score.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -torch.inf)
    low = score.amax(-1, keepdim=True) - 1
    for step in range(1, 41):
        low = low + ((score - low - 2.0**-step).relu() ** 2).sum(-1, keepdim=True).ge(1) / 2**step
    weights = (score - low).relu() ** 2
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 9, dtype=torch.float64))
    torch.testing.assert_close(found, torch.einsum("bhts,bshv->bthv", weights, v))

"""Plain softmax attentions are one call of torch's own; any other score is not."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.runtime import listings
from archc.runtime.layers import softmax_attention

PARAMS = {
    "q": "W_q[d, H, K]", "k": "W_k[d, G, K]", "v": "W_v[d, G, K]", "r": "W_r[d, K]", "b": "b[H]"
}  # fmt: skip
PLAIN = {
    "causal": ("attend s <= t over H grouped G:", "softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]"),
    "both ways": ("attend all s over H grouped G:", "softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]"),
    "two products": (
        "attend s <= t over H grouped G:",
        "softmax((q[t].T @ k[s] + q[t].T @ r[s]) / sqrt(2 * K)) @ v[s]",
    ),
    "two scales": (
        "attend s <= t over H grouped G:",
        "softmax(-3 * (q[t].T @ k[s]) + q[t].T @ r[s] / sqrt(K)) @ v[s]",
    ),
    "one key for all heads": ("attend s <= t over H:", "softmax(q[t].T @ r[s]) @ r[s]"),
}
OTHER = {
    "a window": ("attend t - 3 < s <= t over H grouped G:", "softmax(q[t].T @ k[s]) @ v[s]"),
    "a cap": ("attend s <= t over H grouped G:", "softmax(tanh(q[t].T @ k[s])) @ v[s]"),
    "a bias": ("attend s <= t over H grouped G:", "softmax(q[t].T @ k[s] + b * (s - t)) @ v[s]"),
    "earlier tokens alone": ("attend s < t over H grouped G:", "softmax(q[t].T @ k[s]) @ v[s]"),
    "no softmax": ("attend s <= t over H grouped G:", "exp(q[t].T @ k[s]) @ v[s]"),
}


def module(case: tuple[str, str], **sizes: int) -> torch.nn.Module:
    """A layer with one attention."""
    used = [name for name in "kvrb" if re.search(rf"\b{name}\b", case[1])]
    lines = [f"    param {PARAMS[name]}" for name in ("q", *used)]
    lines += [f"    {name} = x @ W_{name}" for name in ("q", *used) if name != "b"]
    body = "\n".join([*lines, "", f"    {case[0]}", f"        o = {case[1]}", ""])
    text = f"layer Read(d, H, G = H, K = 8):\n    input x[d]\n{body}\n    output y[H, K] = o\n"
    torch.manual_seed(0)
    return archc.parse(text).module(d=12, dtype=torch.float64, **{"H": 4, **sizes})


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that an op makes."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else [made]:
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.default("2")
@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("name", [*PLAIN, *OTHER])
def test_plain_ones_make_nothing_of_two_lengths(name: str, groups: int) -> None:
    layer = module({**PLAIN, **OTHER}[name], G=groups)
    x = torch.randn(1, 200, 12, dtype=torch.float64, requires_grad=True)
    with Largest() as largest:
        layer(x).sum().backward()
    assert (largest.elements < 200 * 200) is (name in PLAIN)


def test_one_that_drops_weights_is_plain_when_it_drops_none() -> None:
    layer = module((PLAIN["causal"][0], "dropout(softmax(q[t].T @ k[s]), 0.5) @ v[s]")).eval()
    with Largest() as largest:
        layer(torch.randn(1, 200, 12, dtype=torch.float64))
    assert largest.elements < 200 * 200


@pytest.mark.parametrize("name", PLAIN)
def test_values_gradients_and_prompts_that_go_on(name: str) -> None:
    layer = module(PLAIN[name], G=2)
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    wanted = written_out(layer, x, name)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=1e-12)
    weights = torch.randn_like(y)
    for made, other in zip(
        torch.autograd.grad((y * weights).sum(), [x, *layer.parameters()], allow_unused=True),
        torch.autograd.grad((wanted * weights).sum(), [x, *layer.parameters()], allow_unused=True),
        strict=True,
    ):
        if other is not None:
            torch.testing.assert_close(made, other, rtol=1e-11, atol=1e-12)
    if name != "both ways":
        parts, state = [], None
        for piece in x.split([2, 0, 3, 1, 1], 1):
            made, state = layer(piece, state=state, return_state=True)
            parts.append(made)
        torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=1e-12, atol=1e-12)


def written_out(layer: Any, x: Tensor, name: str) -> Tensor:
    """The same with all weights laid out."""
    made = {n: torch.einsum("btd,d...k->b...tk", x, w) for n, w in layer.named_parameters()}
    q = made["W_q"]
    r = made["W_r"][:, None] if "W_r" in made else None
    k, v = (made[n].repeat_interleave(2, 1) if n in made else r for n in ("W_k", "W_v"))
    score = q @ k.mT / math.sqrt(8)
    if name == "two products":
        score = (q @ k.mT + q @ r.mT) / math.sqrt(16)
    if name == "two scales":
        score = -3 * (q @ k.mT) + q @ r.mT / math.sqrt(8)
    if name == "one key for all heads":
        score = q @ r.mT
    if name != "both ways":
        score = score.masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    return (score.softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize(
    ("name", "scale"), [("causal", 8**-0.5), ("two products", 0.25), ("two scales", 1.0)]
)
def test_a_number_before_every_product_takes_no_pass_of_its_own(
    name: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's function is told of it: queries are read as they are."""
    given, run = list[float](), torch.nn.functional.scaled_dot_product_attention

    def spy(*tensors: Tensor, **options: Any) -> Tensor:
        given.append(options["scale"])
        return run(*tensors, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    module(PLAIN[name], G=2)(torch.randn(1, 7, 12, dtype=torch.float64))
    assert given == [pytest.approx(scale)]


@pytest.mark.default("4-2-2")
@pytest.mark.parametrize(("T", "S"), [(0, 0), (3, 0), (0, 5), (1, 5), (3, 5), (5, 5)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("H", "G", "E"), [(4, 4, 4), (4, 2, 2), (4, 1, 1), (4, 2, 1)])
def test_the_function_by_itself(T: int, S: int, causal: bool, H: int, G: int, E: int) -> None:
    """Heads of any ratio, keys and values of other lengths, and nothing to read."""
    shapes = ((2, T, H, 6), (2, S, G, 6), (2, S, E, 3))
    q, k, v = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in shapes)
    o = softmax_attention(q, k, v, causal)
    keys, values = (z.repeat_interleave(H // z.shape[2], 2) for z in (k, v))
    score = torch.einsum("bthk,bshk->bhts", q, keys)
    if causal:
        hidden = torch.ones(T, S).tril(S - T) == 0
        score = score.masked_fill(hidden, -math.inf)
    wanted = torch.einsum("bhts,bshk->bthk", score.softmax(-1), values)
    torch.testing.assert_close(o, wanted, rtol=1e-12, atol=1e-12)
    found = torch.autograd.grad(o.sum(), [q, k, v])
    assert all(torch.isfinite(each).all() for each in found)


PAIRS = """layer Pairs(d, H, K, W = 9):
    input x[d]
    param W_q[d, H, K]; W_o[H, K, d]; a[W, H, K]{more}
    q = x @ W_q
    attend s <= t over H:
        {body}
    output y[d] = o @ W_o
"""
BODIES = {
    "values by distance": "o = softmax(q[t].T @ q[s]) @ (q[s] + a[min(t - s, W - 1)])",
    "keys by distance": "o = softmax(q[t].T @ q[s] + q[s].T @ a[min(t - s, W - 1)]) @ q[s]",
    "weights that leave": (
        "p = softmax(q[t].T @ q[s])\n        u = p @ q[s]\n    attend s <= t over H:\n"
        "        o = softmax(p + q[s].T @ a[min(t - s, W - 1)]) @ q[s] + u[t]"
    ),
    "mixed heads": (
        "u = softmax(q[t].T @ q[s] + q[s].T @ a[min(t - s, W - 1)]) @ q[s]\n    attend s <= t:\n"
        "        o = sum[s]((m @ softmax(m.T @ sum[K](q[t] * q[s]))) * q[s]) + u[t]"
    ),
    "a small network": "o = softmax(q[t].T @ q[s] + sum[W, K](relu(a * log(1 + t - s)))) @ q[s]",
}


@pytest.mark.default("keys by distance", "weights that leave")
@pytest.mark.parametrize("name", BODIES)
def test_pairs_without_kernels_are_made_of_some_readers_at_a_time(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of as many as there is room for, of packed sequences too; in float64 against all pairs at
    once, and each sequence alone."""
    more = "; m[H, H']" if name == "mixed heads" else ""
    spec = archc.parse(PAIRS.format(body=BODIES[name], more=more))
    plain, made = (
        spec.module(d=6, H=2, K=3, backend=backend, dtype=torch.float64)
        for backend in ("eager", "triton")
    )
    made.load_state_dict(plain.state_dict())
    x = torch.randn(1, 64, 6, dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(listings, "PAIRS", 64 * 2 * 3 * 4)
    found, sizes, borders = [], [], torch.tensor([0, 4, 64])
    for layer in (plain, made):
        with Largest() as seen:
            y = layer(x)
            packed = layer(x, cu_seqlens=borders)
            slopes = torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])
        alone = torch.cat([layer(x[:, :4]), layer(x[:, 4:])], 1)
        torch.testing.assert_close(packed, alone)
        past, state = layer(x[:, :40], return_state=True)
        found.append([y, torch.cat([past, layer(x[:, 40:], state=state)], 1), *slopes])
        sizes.append(seen.elements)
    torch.testing.assert_close(found[1], found[0])
    assert sizes[1] <= sizes[0] / 3 or name == "weights that leave"
    vectors = 64 * 64 * 2 * 3  # of each pair: what is looked up by distance is none
    assert sizes[0] < vectors or "distance" not in name


def test_an_op_takes_a_gate_that_is_wider_than_the_rest() -> None:
    """As its kernels do: it is computed in the widest dtype, by tokens too."""
    op = archc.parse("""
layer Gated(H, K):
    input q[H, K], k[H, K], v[H, K], g[H]
    attend s <= t over H:
        o = softmax(q[t].T @ k[s] + g[s]) @ v[s]
    output o
""").op
    q, k, v = (torch.randn(2, 6, 3, 4).bfloat16() for _ in range(3))
    g = torch.randn(2, 6, 3)
    wanted, _ = op(q.float(), k.float(), v.float(), g)
    made, state = op(*(x[:, :4] for x in (q, k, v, g)))
    rest, _ = op(*(x[:, 4:] for x in (q, k, v, g)), state=state)
    torch.testing.assert_close(torch.cat([made, rest], 1), wanted)

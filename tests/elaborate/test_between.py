"""Groups of heads in a recurrence, tokens before the reader alone, positions, and what lies between
two tokens: against formulas in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.elaborate.forms import randn, same
from tests.elaborate.specs import codes, refusal

HEAD = "layer L(H, G, K, V):\n    input q[H, K], k[{heads}, K], v[{heads}, V], g[H]\n"


def given(groups: int) -> dict[str, Tensor]:
    shapes = {"q": (4, 3), "k": (groups, 3), "v": (groups, 2), "g": (4,)}
    return {name: randn(*shape, seed=n) for n, (name, shape) in enumerate(shapes.items())}


def weights(score: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over the allowed; nothing where none is."""
    some = allowed.any(-1, keepdim=True)
    masked = score.masked_fill(~allowed & some, -torch.inf)
    return masked.softmax(-1) * some


@pytest.mark.slow
def test_heads_of_a_recurrence_share_what_their_group_has() -> None:
    text = HEAD.format(heads="G") + (
        "    recurrence S[K, V] over H grouped G:\n        S[t] = sigmoid(g) * S[t-1] + k @ v.T\n"
        "        o = S[t].T @ q\n    output o\n"
    )

    def formula(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        k, v = k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)
        state, read = q.new_zeros(2, 4, 3, 2), []
        for t in range(q.shape[1]):
            state = g[:, t].sigmoid()[..., None, None] * state
            state = state + k[:, t, :, :, None] * v[:, t, :, None]
            read.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        return torch.stack(read, 1)

    same(text, given(2), formula, H=4, G=2, K=3, V=2)


def test_the_first_token_reads_nothing_where_only_earlier_ones_are_read() -> None:
    """`t` and `s` alone are the positions of the reader and of the token read, from 0."""
    text = HEAD.format(heads="H") + (
        "    attend s < t over H:\n"
        "        o = softmax(q[t].T @ k[s] - g[t] * (t - s) / (1 + s)) @ v[s]\n"
        "    output o\n"
    )

    def formula(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        at = torch.arange(q.shape[1])
        apart = (at[:, None] - at) / (1 + at)
        score = torch.einsum("bthk,bshk->bhts", q, k) - g.mT[..., None] * apart
        return torch.einsum("bhts,bshv->bthv", weights(score, at < at[:, None]), v)

    inputs = given(4)
    same(text, inputs, formula, H=4, G=2, K=3, V=2)
    assert torch.equal(formula(**inputs)[:, 0], torch.zeros(2, 4, 2, dtype=torch.float64))


def test_the_token_at_hand_has_a_position_in_a_recurrence() -> None:
    text = (
        "layer Mean(d):\n    input x[d]\n    recurrence m[d]:\n"
        "        m[t] = (t * m[t-1] + x) / (t + 1)\n    output m\n"
    )

    def formula(x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]

    same(text, {"x": randn(3)}, formula, d=3)


def test_vectors_and_matrices_are_summed_between_two_tokens() -> None:
    text = HEAD.format(heads="H") + (
        "    attend s <= t over H:\n"
        "        c = (sum r in (s, t]: g[r] * k[r]).T @ k[s]\n"
        "        M = sum r in (s, t]: k[r] @ q[r].T\n"
        "        o = softmax(c + (q[t].T @ M) @ k[s]) @ v[s]\n    output o\n"
    )

    def formula(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        rows = q.shape[1]
        at = torch.arange(rows)
        between = (at[:, None, None] >= at) & (at > at[:, None])  # [t, s, r]
        between = between.to(q.dtype)
        c = torch.einsum("tsr,brh,brhk,bshk->bhts", between, g, k, k)
        m = torch.einsum("tsr,brhk,brhj->bhtskj", between, k, q)
        score = c + torch.einsum("bthk,bhtskj,bshj->bhts", q, m, k)
        return torch.einsum("bhts,bshv->bthv", weights(score, at <= at[:, None]), v)

    same(text, given(4), formula, H=4, G=2, K=3, V=2)


def test_a_value_of_each_pair_is_summed_between_two_tokens() -> None:
    """`p[r]` is the reader's value for a token between, here a weight that a softmax has made."""
    text = HEAD.format(heads="H") + (
        "    attend t - 3 < s <= t over H:\n        p = softmax(q[t].T @ k[s])\n"
        "        later = sum r in (s, t]: p[r]\n        o = (p * later) @ v[s]\n    output o\n"
    )

    def formula(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        at = torch.arange(q.shape[1])
        near = (at <= at[:, None]) & (at > at[:, None] - 3)
        p = weights(torch.einsum("bthk,bshk->bhts", q, k), near)
        later = p.flip(-1).cumsum(-1).flip(-1) - p
        return torch.einsum("bhts,bshv->bthv", p * later, v) + 0 * g[..., None]

    inputs = given(4)
    text = text.replace("@ v[s]\n", "@ v[s] + 0 * g[t]\n")
    same(text, inputs, formula, H=4, G=2, K=3, V=2)


@pytest.mark.parametrize(
    ("line", "code", "help"),
    [
        ("c = sum r in (s, t]: g[r] * (k[r].T @ k[s])", "E0315", "take what depends on `s` out"),
        ("p = q[t].T @ k[s]; c = sum r in (s, t]: p[r] * g[s]", "E0315", "depends on `s`"),
        ("c = product r in (s, t]: g[r]", "E0304", "exp(sum r in (s, t]: log(a[r]))"),
        ("c = product r in (s, t]: k[r]", "E0304", "is of matrices"),
        ("p = q[t].T @ q[t]; c = sum r in (s, t]: p[r]", "E0309", "before the block"),
    ],
)
def test_what_cannot_be_added_between_two_tokens(line: str, code: str, help: str) -> None:
    body = (
        f"    attend s <= t over H:\n        {line}\n        o = (c + g[s]) @ v[s]\n    output o\n"
    )
    text = HEAD.format(heads="H") + body
    assert codes(text) == [code]
    assert help in refusal(text)


@pytest.mark.parametrize("what", ["r", "r * g2[r]", "1 / (1 + r)"])
def test_a_sum_of_positions_alone_is_the_same_for_all_sequences(what: str) -> None:
    text = HEAD.format(heads="H") + (
        "    g2 = 1 / (1 + position(q))\n" * ("g2" in what) + "    attend s <= t over H:\n"
        f"        o = softmax(q[t].T @ k[s] - g[t] * (sum r in (s, t]: {what})) @ v[s]\n"
        "    output o\n"
    )

    def formula(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        at = torch.arange(q.shape[1]).double()
        each = {"r": at, "r * g2[r]": at / (1 + at), "1 / (1 + r)": 1 / (1 + at)}[what]
        total = each.cumsum(0)
        score = torch.einsum("bthk,bshk->bhts", q, k)
        score = score - g.mT[..., None] * (total[:, None] - total)
        seen = at <= at[:, None]
        return torch.einsum("bhts,bshv->bthv", weights(score, seen), v)

    same(text, given(4), formula, H=4, G=4, K=3, V=2)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("3 + g[t] * g[t] + t - s", "3 + g[t] * g[t] + (t - s)"),
        ("t - (s - g[s] * g[s]) + 1", "1 + g[s] * g[s] + (t - s)"),
        ("2 * (t + g[t] * g[t]) - 2 * s + 4", "4 + 2 * g[t] * g[t] + 2 * (t - s)"),
    ],
)
@pytest.mark.parametrize("fn", ["log({})", "sqrt({})", "1 / ({})"])
def test_positions_of_a_sum_are_found_between_other_terms(fn: str, written: str, meant: str):
    """Of pairs that are not read the argument is 0 here, and the slope of the function infinite."""
    import archc

    slopes = []
    for each in (written, meant):
        text = HEAD.format(heads="H") + (
            "    attend s <= t over H:\n"
            f"        o = softmax(q[t].T @ k[s] - {fn.format(each)}) @ v[s]\n    output o\n"
        )
        made = archc.parse(text).module(H=2, G=2, K=3, V=2, dtype=torch.float64)
        q, k, v = (
            torch.randn(2, 9, 2, n, generator=SEEDED, dtype=torch.float64) for n in (3, 3, 2)
        )
        g = torch.zeros(2, 9, 2, dtype=torch.float64, requires_grad=True)
        x = [y.requires_grad_() for y in (q, k, v)] + [g]
        with torch.no_grad():
            g[:, ::2] = 0.5
        slopes.append(torch.autograd.grad(made(*x).square().sum(), x))
        SEEDED.manual_seed(0)
    assert all(y.isfinite().all() for y in slopes[0])
    torch.testing.assert_close(*slopes)


SEEDED = torch.Generator().manual_seed(0)

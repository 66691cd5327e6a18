"""Dims cut, joined and counted otherwise, each by name, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import archc
from archc.compile import with_chunked_forms
from archc.ir import layer as ir
from tests.elaborate.forms import randn, same
from tests.elaborate.specs import codes, layer, refusal

LAYER = """layer Cut(d, H, G, N, R, K = N + R, F = H + G):
    input x[d]
    {body}
"""
SIZES = {"d": 12, "H": 4, "G": 2, "N": 1, "R": 2, "F": 6}


def turned(x: Tensor) -> Tensor:
    """Rotary positions on the two halves of the last dim."""
    half = x.shape[-1] // 2
    at = torch.arange(x.shape[1], dtype=x.dtype)
    angle = at[:, None] * 10.0 ** (-2 * torch.arange(half) / x.shape[-1])
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def grouped(x: Tensor) -> Tensor:
    """Attention of four heads that see two groups, of one projection."""
    (q, k, v), rows = x.split([8, 2, 2], -1), x.shape[1]
    q, k, v = q.unflatten(-1, (4, 2)), k.unflatten(-1, (2, 1)), v.unflatten(-1, (2, 1))
    k, v = (each.repeat_interleave(2, 2) for each in (k, v))
    score = torch.einsum("bthk,bshk->bhts", q, k.repeat(1, 1, 1, 2))
    masked = score.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
    return torch.einsum("bhts,bshv->bthv", masked.softmax(-1), v).flatten(2)


BODIES: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("output y[d] = merge[K, H as d](tanh(split[d as H, K](x)))",
     lambda x: x.unflatten(-1, (4, 3)).tanh().transpose(-1, -2).flatten(2)),
    ("q, k = x by [H, R], [G, R]\n"
     "    output y = join[H, G as F](tanh(q), k) * index[F]",
     lambda x: torch.cat([x[..., :8].tanh(), x[..., 8:]], -1).unflatten(-1, (6, 2))
     * torch.arange(6)[:, None]),
    ("q = split[d as H, K](x); plain, turning = q by N, R\n"
     "    output y = join[N, R as K](plain, rope_half[R](turning, 10))",
     lambda x: torch.cat([x.unflatten(-1, (4, 3))[..., :1],
                          turned(x.unflatten(-1, (4, 3))[..., 1:])], -1)),
]  # fmt: skip


@pytest.mark.parametrize(("body", "formula"), BODIES)
def test_dims_of_a_layer(body: str, formula: Callable[[Tensor], Tensor]) -> None:
    same(LAYER.format(body=body), {"x": randn(12)}, formula, **SIZES)


def test_one_projection_is_cut_into_queries_keys_and_values() -> None:
    text = """layer Fused(d, H, G, K, V, F = H * V):
    input x[d]
    q, k, v = x by [H, K], [G, V], [G, V]
    wide = join[V, V as K](k, k)
    attend s <= t over H grouped G:
        o = softmax(q[t].T @ wide[s]) @ v[s]
    output y = merge[H, V as F](o)
"""
    same(text, {"x": randn(12)}, grouped, d=12, H=4, G=2, K=2, V=1)


def test_a_joined_value_is_the_same_for_all_heads() -> None:
    """`r` has no heads: it is joined to what each head has."""
    text = """layer Shared(H, N, R, K = N + R):
    input c[H, N], r[R]
    output k[H, K] = join[R, N as K](r, c)
"""
    inputs = {"c": randn(3, 2), "r": randn(4, seed=1)}

    def formula(c: Tensor, r: Tensor) -> Tensor:
        return torch.cat([r[:, :, None].expand(-1, -1, 3, -1), c], -1)

    same(text, inputs, formula, H=3, N=2, R=4)


PARTED = """layer Parted(H, N, R, K = N + R):
    input k[H, N], r[H, R]
    f = join[N, R as K](k, r)
    recurrence S[K, K'] over H:
        S[t] = 0.9 * S[t-1] + f @ f.T
        a, b = S[t].T @ f by N, R
        o = join[R, N as K](tanh(b), a)
    output o
"""


@pytest.mark.slow
def test_parts_inside_a_recurrence_leave_it_its_chunks() -> None:
    inputs = {"k": randn(2, 3) / 2, "r": randn(2, 2, seed=1) / 2}

    def formula(k: Tensor, r: Tensor) -> Tensor:
        f, read = torch.cat([k, r], -1), []
        state = f.new_zeros(2, 2, 5, 5)
        for t in range(f.shape[1]):
            state = 0.9 * state + f[:, t, :, :, None] * f[:, t, :, None]
            whole = torch.einsum("bhkj,bhk->bhj", state, f[:, t])
            read.append(torch.cat([whole[..., 3:].tanh(), whole[..., :3]], -1))
        return torch.stack(read, 1)

    same(PARTED, inputs, formula, H=2, N=3, R=2)
    (recurrence,) = [
        n.op for n in with_chunked_forms(layer(PARTED)).graph if isinstance(n.op, ir.Recurrence)
    ]
    assert recurrence.chunked is not None


def test_a_state_whose_parts_are_joined_is_a_loop() -> None:
    text = """layer Loop(H, N, R, K = N + R):
    chunk: sequential
    input q[H, K]
    recurrence S[K] over H:
        a, b = S[t-1] by N, R
        S[t] = 0.9 * join[R, N as K](b, tanh(a)) + q
    output S
"""

    def formula(q: Tensor) -> Tensor:
        state, states = torch.zeros_like(q[:, 0]), []
        for t in range(q.shape[1]):
            state = 0.9 * torch.cat([state[..., 3:], state[..., :3].tanh()], -1) + q[:, t]
            states.append(state)
        return torch.stack(states, 1)

    same(text, {"q": randn(2, 5)}, formula, H=2, N=3, R=2)


def test_packed_sequences_are_cut_each_alone() -> None:
    text = LAYER.format(body=BODIES[0][0])
    module = archc.parse(text).module(dtype=torch.float64, **SIZES)
    x = randn(12)[:1]
    borders = torch.tensor([0, 2, 6])
    alone = torch.cat([module(x[:, :2]), module(x[:, 2:])], 1)
    assert torch.equal(module(x, cu_seqlens=borders), alone)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("a, b = x by N, R, K\n    output y = a", "E0214"),
        ("a, b = x by 5, [H, 6]\n    output y = a", None),
        ("a, b = x by 5, H\n    output y = join[5, H as H](a, b)", "E0401"),
        ("output y = join[d, d](x, x)", "E0225"),
        ("output y = join[d as K](x, x)", "E0225"),
        ("output y = split[d, d as K](x)", "E0225"),
        ("output y = split(x)", "E0225"),
        ("output y = rmsnorm[d as K](x)", "E0225"),
        ("y = x[d as K]\n    output y", "E0225"),
        ("output y = merge[H as K](x)", "E0301"),
        ("output y = split[d as H, H](x)", "E0206"),
        ("p = split[d as H, K](x)\n    output y = split[K as N, H](p)", "E0206"),
        ("output y = split[d as 5, 7](x)\n    require d == 12", None),
    ],
)
def test_what_cannot_be_cut_is_refused(body: str, code: str | None) -> None:
    found = codes(LAYER.format(body=body))
    assert found == ([code] if code else [])


@pytest.mark.parametrize("body", ["output y = k * split[K as K'](e)", "z = split[K as K'](k)"])
def test_a_split_that_would_be_undone_is_refused(body: str) -> None:
    """A lone `K'` is `K` again, so that a product of all pairs would be one of elements."""
    text = f"layer L(K):\n    input k[K], e[K]\n    {body}\n"
    text += "" if "output" in body else "    output y = z * e\n"
    assert codes(text) == ["E0303"] and "`J = K` among the sizes" in refusal(text)
    kept = "layer L(K):\n    input k[K], M[K, K']\n    output y = M * split[K as K'](k)\n"
    same(kept, {"k": randn(3), "M": randn(3, 3)}, lambda k, M: M * k[..., None, :], K=3)


def test_sizes_that_do_not_fit_are_refused() -> None:
    text = "layer L(d = 12):\n    input x[12]\n    output y = split[12 as 5, 7](x)\n"
    assert "`12 == 35` does not hold" in refusal(text)
    made = layer(LAYER.format(body=BODIES[0][0]))
    assert [r.text for r in made.requirements] == ["d == H*K", "H*K == d"]


def test_heads_of_a_block_are_not_cut_inside_it() -> None:
    text = """layer L(H, G, K, P = H / G):
    input x[H, K]
    recurrence S[K] over H:
        S[t] = S[t-1] + sum[G, P](split[H as G, P](x))
    output S
"""
    assert codes(text) == ["E0301"] and "do it before the block" in refusal(text)


def test_a_function_of_the_file_has_its_own_name() -> None:
    text = "function merge(a, b):\n    return a + 2 * b\n\n" + (
        "layer L(d):\n    input x[d]\n    output y = merge(x, x)\n"
    )
    same(text, {"x": randn(3)}, lambda x: 3 * x, d=3)

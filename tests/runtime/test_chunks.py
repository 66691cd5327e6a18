"""What chunked forms call: decays between rows, their gradients, inverses, scans."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from archc.runtime import chunks as runtime

ROWS = (1, 2, 3, 8, 13)


def decay(g: Tensor, exclusive: bool, strict: bool) -> Tensor:
    """exp of each sum of gates [..., i, j, K], 0 where the pair is left out."""
    rows = g.shape[-2]
    out = g.new_zeros(*g.shape[:-2], rows, rows, g.shape[-1])
    for i in range(rows):
        for j in range(i if strict or exclusive else i + 1):
            out[..., i, j, :] = g[..., j + 1 : i + (not exclusive), :].sum(-2).exp()
    return out


def values(rows: int, gates: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(rows)
    a, b, g = torch.randn(3, 2, rows, 4, dtype=torch.float64)
    g = -g.abs()
    return a, b, g if gates is None else torch.where(torch.rand(g.shape) < 0.3, gates, g)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("rows", ROWS)
def test_products_and_their_gradients(rows: int, exclusive: bool, strict: bool) -> None:
    a, b, g = (x.requires_grad_() for x in values(rows))
    wanted = torch.einsum("nik,nijk,njk->nij", a, decay(g, exclusive, strict), b)
    decays, strict = runtime.decays_between(g, exclusive), strict or exclusive
    torch.testing.assert_close(runtime.decayed_gram(a, b, decays, strict), wanted)
    d = torch.randn_like(wanted)
    loss = (wanted * d).sum() + 0.0 * (a.sum() + b.sum() + g.sum())
    d_a, d_b, d_g = torch.autograd.grad(loss, (a, b, g))
    with torch.no_grad():
        made = runtime.decayed_gram_gradients(d, a, b, decays, strict, exclusive)
        torch.testing.assert_close(made, (d_a, d_b, d_g))
        torch.testing.assert_close(runtime.decayed_mix(d, b, decays, strict), d_a)
        torch.testing.assert_close(runtime.decayed_mix(d, a, decays, strict, True), d_b)


@pytest.mark.parametrize("gates", [-1000.0, -torch.inf, 0.0])
def test_closed_gates_in_float32(gates: float) -> None:
    a, b, g = values(13, gates)
    wanted = torch.einsum("nik,nijk,njk->nij", a, decay(g, False, False), b)
    a, b, g = (x.float() for x in (a, b, g))
    decays = runtime.decays_between(g)
    made = runtime.decayed_gram(a, b, decays).double()
    assert (made - wanted).abs().max() < 1e-4 * wanted.abs().max()
    for x in runtime.decayed_gram_gradients(made.float(), a, b, decays):
        assert x.isfinite().all()
    kept = g[..., 0]
    assert not runtime.spans(kept).isnan().any() and (runtime.spans(kept).exp() <= 1).all()


@pytest.mark.parametrize("rows", ROWS)
def test_inverse(rows: int) -> None:
    a = torch.randn(2, 3, rows, rows, dtype=torch.float64).tril(-1)
    wanted = torch.linalg.inv(torch.eye(rows, dtype=torch.float64) - a)
    torch.testing.assert_close(runtime.inverse_unit_lower(a), wanted)


@pytest.mark.parametrize("exclusive", [False, True])
def test_spans_and_their_gradient(exclusive: bool) -> None:
    g = values(7)[2][..., 0].requires_grad_()
    wanted = decay(g[..., None], exclusive, False)[..., 0]
    made = runtime.spans(g, exclusive=exclusive).exp()
    torch.testing.assert_close(made, wanted)
    d = torch.randn_like(wanted)
    (by_autograd,) = torch.autograd.grad((wanted * d).sum(), g)
    torch.testing.assert_close(runtime.spans_gradient(d * wanted, exclusive).detach(), by_autograd)


def test_rows_that_move() -> None:
    x = torch.tensor([1.0, 2.0, 3.0])
    assert runtime.moved(x, 0, 1).tolist() == [0, 1, 2]
    assert runtime.moved(x, 0, -2, 9.0).tolist() == [3, 9, 9]
    assert runtime.moved(x, 0, 7).tolist() == runtime.moved(x, 0, -7).tolist() == [0, 0, 0]
    assert runtime.sums_before(x, 0).tolist() == [0, 1, 3]
    assert runtime.sums_after(x, 0).tolist() == [5, 3, 0]


@pytest.mark.parametrize("tokens", [0, 1, 4, 9])
def test_chunks_and_back(tokens: int) -> None:
    x = torch.randn(2, tokens, 3, 5)
    chunks = runtime.to_chunks(x, 4, 1, fill=7.0)
    assert chunks.shape == (2, -(-tokens // 4), 3, 4, 5)
    assert torch.equal(runtime.to_tokens(chunks, tokens, 1), x)


def test_conjugate_gradients() -> None:
    root = torch.randn(3, 6, 6, dtype=torch.float64)
    matrix, b = root @ root.mT + torch.eye(6), torch.randn(3, 6, dtype=torch.float64)
    b[0] = 0.0
    found = runtime.conjugate_gradients(lambda p: (matrix @ p[..., None])[..., 0], b, (-1,), 12)
    torch.testing.assert_close(found, torch.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rows", ROWS)
def test_the_last_factors_are_those_of_the_whole_chunk(rows: int) -> None:
    _, _, g = values(rows)
    until, since = runtime.decays_between(g)[-1]
    torch.testing.assert_close(since, g.cumsum(-2).exp())
    torch.testing.assert_close(until, runtime.sums_after(g, -2).exp())


def test_runs_of_chunks() -> None:
    x, y = torch.randn(2, 40, 1 << 12), torch.randn(2, 40)
    runs = runtime.runs_of_chunks([x, y], 16)
    assert [part.shape[1] for part, _ in runs] == [32, 8]
    torch.testing.assert_close(torch.cat([part for _, part in runs], 1), y)
    assert [part.shape[1] for part, _ in runtime.runs_of_chunks([x, y], 16, True)] == [8, 32]
    assert len(runtime.runs_of_chunks([y], 16)) == 1
    assert [part.shape[1] for part, _ in runtime.runs_of_chunks([x, y], 40)] == [40]

"""Attention to chosen tokens: compressed, selected and windowed; and chosen by an indexer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from archc.backends.load import load as loaded
from torch import Tensor

import archc
from archc.compile import text_of
from archc.runtime import listings
from tests.specs.agreement import agree, difference
from tests.specs.references import sparse
from tests.specs.references.weights import randomise

VARIANTS = Path(__file__).parent / "variants"
NSA = {"d": 16, "H": 4, "G": 2, "K": 6, "V": 5, "size": 4, "stride": 2, "pick": 4, "n": 4, "w": 5}
DSA = {
    "d": 16, "H": 2, "K": 4, "R": 6, "V": 5, "C": 7, "Q": 8, "HI": 8, "KI": 16, "n": 6,
    "base": 100.0, "eps": 1e-6,
}  # fmt: skip


def values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    "sizes", [{}, {"pick": 8, "n": 3}, {"stride": 4}, {"pick": 2, "stride": 1, "n": 9}]
)
def test_nsa(sizes: dict[str, int]) -> None:
    """Blocks that overlap, that lie side by side, and selection blocks of other sizes."""
    sizes = NSA | sizes
    layer = randomise(archc.load("nsa").module(**sizes, dtype=torch.float64), seed=0)
    x = 2 * values(2, 33, 16)
    given = {name: sizes[name] for name in ("stride", "pick", "n", "w")}
    theirs = sparse.nsa(layer.state_dict(), x, **given)
    said = ", ".join(f"{name} {sizes[name]}" for name in ("size", "stride", "pick"))
    agree("nsa", f"a loop from the formulas, {said}", layer(x), theirs)


def test_nsa_with_means() -> None:
    sizes = {"d": 16, "H": 4, "G": 2, "K": 6, "V": 5, "size": 4, "n": 4, "w": 5}
    spec = archc.load(str(VARIANTS / "nsa_with_means.arch"))
    layer = randomise(spec.module(**sizes, dtype=torch.float64), seed=0)
    x = values(2, 30, 16)
    theirs = sparse.nsa_with_means(layer.state_dict(), x, size=4, n=4, w=5)
    agree("nsa", "fla naive pieces, means of adjacent blocks", layer(x), theirs)


@pytest.mark.default("4")
@pytest.mark.parametrize("turns", [0, 4])
def test_dsa(turns: int) -> None:
    layer = randomise(archc.load("dsa").module(**DSA, turns=turns, dtype=torch.float64), seed=0)
    x = values(2, 25, 16)
    given = {name: DSA[name] for name in ("n", "base", "eps")}
    theirs = sparse.dsa(layer.state_dict(), x, **given, turned=turns > 0)
    how = "with" if turns else "without"
    agree("dsa", f"fla naive, {how} a Hadamard rotation by scipy", layer(x), theirs)


@pytest.mark.parametrize("n", [6, 25])
def test_the_loss_of_the_indexer(n: int) -> None:
    """Over the chosen, and over all as in a dense warm-up; it trains the indexer alone."""
    layer = randomise(archc.load("dsa").module(**DSA | {"n": n}, dtype=torch.float64), seed=0)
    x, align = values(2, 25, 16).requires_grad_(), values(2, 25)
    y, loss = layer(x, align)
    own = {name: p.detach().clone().requires_grad_() for name, p in layer.named_parameters()}
    theirs = sparse.dsa_loss(own, x, align, n=n, base=DSA["base"], eps=DSA["eps"])
    agree("dsa", f"torch's divergence for each token, {n} chosen: loss of the index", loss, theirs)
    assert torch.equal(y, layer(x))
    index = ("W_qi", "W_ki", "W_w")
    borders = torch.tensor([0, 9, 10, 25])
    packed = layer(x[:1], align[:1], cu_seqlens=borders)[1]
    alone = [layer(x[:1, i:j], align[:1, i:j])[1] for i, j in ((0, 9), (9, 10), (10, 25))]
    assert difference(packed, torch.cat(alone, 1)) < 1e-12
    loss.sum().backward()
    assert x.grad is None
    assert {name for name, p in layer.named_parameters() if p.grad is not None} == {*index}
    wanted = torch.autograd.grad(theirs.sum(), [own[name] for name in index])
    for name, gradient in zip(index, wanted, strict=True):
        assert difference(getattr(layer, name).grad, gradient) < 1e-10


def test_some_readers_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with kernels make what has none of a few readers at a time, and again for gradients;
    a sequence that goes on as well."""
    whole = randomise(archc.load("dsa").module(**DSA, dtype=torch.float64), seed=0)
    file: Any = loaded(text_of(archc.load("dsa").layer, "triton"), "dsa_in_pieces")
    pieces = file.DSA(**DSA, dtype=torch.float64)
    pieces.load_state_dict(whole.state_dict())
    x, align = values(2, 25, 16), values(2, 25)
    made, run = [], file.dsa_memory_apart
    monkeypatch.setattr(listings, "PAIRS", 4 * 2 * 25 * DSA["HI"])
    monkeypatch.setattr(file, "dsa_memory_apart", lambda *given: made.append(0) or run(*given))
    found, wanted = (
        [y, loss, *torch.autograd.grad(y.sum() + (loss * loss).sum(), [*layer.parameters()])]
        for layer in (pieces, whole) for y, loss in [layer(x, align)]
    )  # fmt: skip
    assert len(made) == 2 * 7
    assert max(difference(a, b) for a, b in zip(found, wanted, strict=True)) < 1e-10
    first, state = pieces(x[:, :9], align[:, :9], return_state=True)
    rest = pieces(x[:, 9:], align[:, 9:], state)
    for own, there, all_of_it in zip(first, rest, wanted, strict=False):
        assert difference(torch.cat([own, there], 1), all_of_it) < 1e-10


def test_a_rotation_of_the_indexer_changes_no_choice() -> None:
    plain, turned = (
        randomise(archc.load("dsa").module(**DSA, turns=turns, dtype=torch.float64), seed=0)
        for turns in (0, 4)
    )
    x = values(2, 25, 16)
    assert difference(turned(x), plain(x)) < 1e-12


@pytest.mark.parametrize("n", [33, 1000])
def test_more_tokens_than_there_are(n: int) -> None:
    """An indexer that may choose all tokens leaves plain attention."""
    all_of_them, more = (
        randomise(archc.load("dsa").module(**DSA | {"n": size}, dtype=torch.float64), seed=0)
        for size in (25, n)
    )
    x = values(2, 25, 16)
    assert torch.equal(more(x), all_of_them(x))

"""Routed experts by one grouped product of torch, the branch of `grouped_product` that only a GPU
takes, against a loop over the pairs in float64; and that nothing in it waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from archc.runtime import routed
from archc.runtime.routed import Routed, grouped_product, groups, routed_by

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
        reason="torch has no grouped product here: it needs a CUDA device of Hopper or later",
    ),
]

DEVICE = "cuda"
CLOSE = 5e-3
"""The largest error against the largest value: one rounding to bfloat16 is 2 ** -9."""

CHOICES: dict[str, Callable[[int, int], Tensor]] = {
    "any": lambda tokens, places: torch.rand(tokens, places).topk(2).indices,
    "one place": lambda tokens, places: torch.tensor([[2, 3]]).expand(tokens, 2),
    "first and last": lambda tokens, places: torch.tensor([[0, places - 1]]).expand(tokens, 2),
}
"""Which two places each token chooses: of most choices some place has no token at all."""


def pairs_of(which: str, tokens: int, places: int) -> Routed:
    """A choice, routed."""
    torch.manual_seed(0)
    chosen = torch.zeros(tokens, places, dtype=torch.bool)
    return routed_by(chosen.scatter(1, CHOICES[which](tokens, places), True).to(DEVICE), 2)


def given_to(pairs: int, places: int, read: int, made: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is multiplied, and the gradient of the products, in bfloat16."""
    shapes = ((pairs, read), (places, read, made), (pairs, made))
    x, weight, slope = (torch.randn(shape).to(DEVICE, torch.bfloat16) for shape in shapes)
    return x.requires_grad_(), weight.requires_grad_(), slope


def one_by_one(x: Tensor, weight: Tensor, slope: Tensor, places: Tensor) -> list[Tensor]:
    """Products and gradients of every pair by itself, in float64."""
    wide = [each.detach().double().requires_grad_() for each in (x, weight)]
    rows = [wide[0][i] @ wide[1][place] for i, place in enumerate(places.tolist())]
    made = torch.stack(rows)
    return [made.detach(), *torch.autograd.grad(made, wide, slope.double())]


@pytest.mark.parametrize("which", CHOICES)
@pytest.mark.parametrize("tokens", [1, 7, 64])
def test_grouped_products(which: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, and gradients of both; a place without tokens has gradients of 0."""
    places = pairs_of(which, tokens, 8)
    x, weight, slope = given_to(2 * tokens, 8, 32, 48)
    assert groups(x, weight)
    calls, product = [], routed.F.grouped_mm
    monkeypatch.setattr(
        routed.F, "grouped_mm", lambda *a, **k: calls.append(0) or product(*a, **k)
    )  # fmt: skip
    made = grouped_product(x, weight, places)
    assert calls
    found = [made.detach(), *torch.autograd.grad(made, (x, weight), slope)]
    for have, want in zip(found, one_by_one(x, weight, slope, places.places), strict=True):
        assert have.dtype == torch.bfloat16 and have.shape == want.shape
        assert (have.double() - want).abs().max() <= CLOSE * want.abs().max()
    empty = [place for place in range(8) if place not in places.places.tolist()]
    assert not found[2][empty].any()


def test_rows_that_are_not_aligned_take_another_way() -> None:
    places = pairs_of("any", 16, 8)
    x, weight, slope = given_to(32, 8, 31, 48)
    assert not groups(x, weight) and not groups(x.float(), weight.float())
    made = grouped_product(x, weight, places)
    want, *_ = one_by_one(x, weight, slope, places.places)
    assert (made.double() - want).abs().max() <= CLOSE * want.abs().max()


def test_another_choice_replays_a_graph() -> None:
    """A CUDA graph records a choice and the products of it, which waits for nothing; replayed, it
    routes what is chosen then."""
    torch.manual_seed(0)
    x, weight, slope = (each.detach() for each in given_to(32, 8, 32, 48))
    scores = torch.rand(16, 8, device=DEVICE)

    def routed_once() -> tuple[Tensor, Tensor]:
        best = torch.zeros_like(scores, dtype=torch.bool)
        places = routed_by(best.scatter(1, scores.topk(2).indices, True), 2)
        return grouped_product(x, weight, places), places.places

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        routed_once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made, places = routed_once()
    before = places.clone()
    scores.copy_(scores.flip(1))
    graph.replay()
    assert not torch.equal(before, places)
    want, *_ = one_by_one(x, weight, slope, places)
    assert (made.double() - want).abs().max() <= CLOSE * want.abs().max()

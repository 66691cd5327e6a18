"""Weights of a fold that are dropped at random: the same ones by every program, against autograd of
the formula with the factors that the seed gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_distances, by_readers, by_tokens
from archc.runtime.philox import factor_of_seed
from archc.verify.fold_trial import distance
from tests.attention.cases import PLAIN, Launch, launch, packed, refusals, spec

SEED = torch.tensor(2**40 + 12345)
DROPPED = "dropout(softmax({}), 0.3) @ v[s]"
BORDERS = (0, 0, 1, 4, 37, 55)
CASES = {
    "capped, grouped": (spec(f"softcap({PLAIN}, 3)", groups=True, read=DROPPED), {"G": 2}),
    "window, sink": (
        spec(f"{PLAIN}, sink", "t - w < s <= t", params="sink[H]", sizes="w", read=DROPPED),
        {"w": 20},
    ),
    "unnormalised": (spec(read="dropout({}, 0.3) @ v[s]"), {}),
    "a table by distance": (
        spec(f"{PLAIN} + bias[min(t - s, W - 1)]", params="bias[W, H]", sizes="W", read=DROPPED),
        {"W": 9},
    ),
    "an option": (
        spec(f"{PLAIN} - rate * (t - s)", params="rate[H]", sizes="p",
             read="dropout(softmax({}), p) @ v[s]"), {"p": 0.3},
    ),
}  # fmt: skip
SIZES = {"H": 4, "K": 20, "V": 24}


def factors(case: Launch) -> Tensor:
    """The factor of each pair, [B, H, T, S]."""
    B, T, S = (int(case.known[name]) for name in ("batch", "T#", "T_seen#"))
    return factor_of_seed(SEED, (B, SIZES["H"], T, S), 0.3, torch.zeros((), dtype=torch.float64))


def of_formula(name: str, factor: Tensor, x: dict[str, Tensor]) -> Tensor:
    """What the layer computes of [B, T, H, K], in torch."""
    q, k, v = x["q"], *(x[n].repeat_interleave(4 // x[n].shape[2], 2) for n in "kv")
    t, s = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    score, seen = torch.einsum("bthk,bshk->bhts", q, k) / SIZES["K"] ** 0.5, s <= t
    if name == "unnormalised":
        return torch.einsum("bhts,bshv->bthv", score * seen * factor, v)
    alone = score[..., :0]
    if name == "capped, grouped":
        score = 3 * (score / 3).tanh()
    elif name == "a table by distance":
        score = score + x["bias"][(t - s).clamp(0, 8)].permute(2, 0, 1)
    elif name == "an option":
        score = score - x["rate"][:, None, None] * (t - s)
    else:
        seen = seen & (s > t - 20)
        alone = x["sink"][:, None, None].expand(*score.shape[:3], 1)
    score = score.masked_fill(~seen, -torch.inf)
    weights = torch.cat([score, alone], -1).softmax(-1)[..., : score.shape[-1]]
    return torch.einsum("bhts,bshv->bthv", weights * factor, v)


@pytest.mark.default("capped, grouped", "an option")
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_have_the_same_weights(name: str) -> None:
    text, sizes = CASES[name]
    case = launch(text, 50, **SIZES, **sizes)
    learned = {n: x.detach().clone().requires_grad_() for n, x in case.inputs.items()}
    wanted = of_formula(name, factors(case), learned)
    slope = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(3)).double()
    theirs = torch.autograd.grad(wanted, [*learned.values()], slope)
    given = {**case.sources(), "seed": SEED}
    known = given | case.interpreted(forward(case.fold), given) | {"d_o": slope}
    assert distance(known["o"], wanted.detach()) < 1e-12
    assert 0.2 < (factors(case) == 0).double().mean() < 0.4
    for make in (by_readers, by_tokens, *([by_distances] if case.fold.lookups else [])):
        known |= case.interpreted(make(case.fold), known)
    for source in map(case.fold.source, case.fold.learned):
        (at,) = [n for n in learned if n == source.name]
        own = case.of_table(source, known) if source.table else None
        own = case.of_own(source, known[f"d_{at}"]) if own is None else own
        assert distance(own, theirs[[*learned].index(at)]) < 1e-11, at


def test_each_packed_sequence_drops_its_own() -> None:
    text, sizes = CASES["capped, grouped"]
    case = packed(text, BORDERS, **SIZES, **sizes)
    o = case.interpreted(forward(case.fold), {**case.sources(), "seed": SEED})["o"]
    for begin, end in pairwise(BORDERS):
        own = {n: x[:, begin:end].detach() for n, x in case.inputs.items()}
        factor = factors(case)[:, :, begin:end, : end - begin]
        assert distance(o[:, begin:end], of_formula("capped, grouped", factor, own)) < 1e-12


@pytest.mark.parametrize("name", ["capped, grouped", "unnormalised"])
def test_nothing_is_dropped_without_a_seed(name: str) -> None:
    text, sizes = CASES[name]
    launch(text, 37, **SIZES, **sizes).check()


def test_what_has_no_place_for_it_is_refused() -> None:
    part = spec(read="(dropout(softmax({}), 0.1) * exp(q[t].T @ k[s])) @ v[s]")
    assert refusals(part) == ["a part of its weights is dropped at random"]

"""Pairs of rows that decay: right for every gate, padded dims, and chunks of every length."""

from __future__ import annotations

import pytest
import torch

from archc.ir import chunk as ck
from archc.ir import row_pairs
from archc.lowering import row_decays
from archc.tile.interpreter import run
from archc.tile.pretty import listing
from archc.tile.resources import Room
from archc.tile.verifier import verify, verify_launch
from tests.lowering.chunk_cases import scores, scores_gradient
from tests.tile.cases import Case, Drawn, errors

HARD = ("hard", "deep", "never")
ROOM = Room(shared=232_448)


def is_right(case: Case, exact: bool = True, limit: float = 1e-12) -> None:
    """Verify and run a program."""
    assert not verify(case.program)
    assert not verify_launch(case.program, case.known, ROOM)
    run(case.program, case.tensors, case.sizes, case.constants, exact=exact)
    assert max(errors(case).values()) < limit, errors(case)


@pytest.mark.default("soft", "hard", "never")
@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize("kind", ["soft", "strong", "none", "edge", *HARD])
def test_pairs_are_right_for_every_gate(make, kind: str) -> None:
    is_right(make(Drawn(), kind=kind))


@pytest.mark.default("32-60-64")
@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize(("C", "K", "BLOCK"), [(16, 100, 64), (32, 60, 64), (64, 60, 32)])
def test_pairs_are_right_in_padded_blocks(make, C: int, K: int, BLOCK: int) -> None:
    is_right(make(Drawn(), T=C + 9, H=1, K=K, C=C, BLOCK=BLOCK, kind="hard"))


@pytest.mark.default("hard")
@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize("kind", ["soft", "hard", "never"])
def test_a_pair_may_decay_by_the_gates_between_its_rows_alone(make, kind: str) -> None:
    is_right(make(Drawn(), kind=kind, exclusive=True))


@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_sums_need_not_stand_in_memory(make, kind: str) -> None:
    is_right(make(Drawn(), kind=kind, from_memory=False, C=32))


@pytest.mark.default("dtype1-scores")
@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_factors_have_room_up_to_the_limit(make, dtype: torch.dtype) -> None:
    """Numbers a thousand times as large or as small change nothing."""
    limit = 1e-2 if dtype == torch.bfloat16 else 1e-5
    for size in (1e-3, 1.0, 1e3):
        is_right(make(Drawn(dtype, size=size), kind="edge", C=64), exact=False, limit=limit)


@pytest.mark.default("hard")
@pytest.mark.parametrize("make", [scores, scores_gradient])
@pytest.mark.parametrize("kind", ["soft", *HARD])
def test_bfloat16_costs_its_rounding_alone(make, kind: str) -> None:
    """Products of operands that are rounded once; no gate makes that worse."""
    is_right(make(Drawn(torch.bfloat16), kind=kind, C=32), exact=False, limit=1e-2)


@pytest.mark.default("hard")
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_float32_keeps_its_digits(kind: str) -> None:
    is_right(scores_gradient(Drawn(torch.float32), kind=kind), exact=False, limit=1e-6)


def test_only_gates_that_are_not_moderate_go_down_the_tree() -> None:
    """What is the rule stands before the branch, in a loop of nothing else."""
    text = listing(scores(Drawn(), C=32).program)
    at_once, again, tree = (text.index(each) for each in ("for part", "if hard", "for level"))
    assert at_once < again < tree and "if" not in text[at_once:again]


@pytest.mark.parametrize("limit", [-1.0, 1e6])
def test_both_ways_agree_where_gates_are_moderate(monkeypatch, limit: float) -> None:
    """Nothing counts as moderate, and everything does."""
    monkeypatch.setattr(row_decays, "LIMIT", limit)
    is_right(scores_gradient(Drawn(), kind="soft"))
    is_right(scores(Drawn(), kind="soft", exclusive=True))


def test_half_the_tree_may_be_enough() -> None:
    """Gates that are moderate in halves of the chunk, and not in all of it."""
    case = scores(Drawn(), C=64, T=64, H=1, kind="strong")
    sums = case.tensors["sums"]
    assert (sums[..., 63, :] - sums[..., 31, :]).abs().max() > row_decays.LIMIT
    assert (sums[..., 31, :] - sums[..., 15, :]).abs().max() < row_decays.LIMIT
    is_right(case)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_sums_of_gates_mean_what_the_gates_do(strict: bool, exclusive: bool) -> None:
    """The reference semantics of pairs whose operand is sums."""
    gates = -torch.rand(12, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = [
        row_pairs.decays(given, strict, exclusive, anchor == ck.SUMS)
        for anchor, given in (("halves", gates), (ck.SUMS, gates.cumsum(0)))
    ]
    torch.testing.assert_close(*found)

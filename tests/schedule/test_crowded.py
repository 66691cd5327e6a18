"""Chunked forms that no program could hold: their recurrences go token by token."""

from __future__ import annotations

from pathlib import Path

import archc
from archc.compile import for_kernels, lowered
from archc.derivation.plan_listing import as_text
from archc.derivation.planned import conditions, plans_of
from archc.ir import layer as ir

OWN = Path(__file__).parents[1] / "backends/triton/recurrences"


def is_chunked(name: str) -> list[bool]:
    """Whether the recurrences of a spec are in chunks before and on a GPU."""
    before = lowered(archc.load(OWN / f"{name}.arch").layer)
    return [
        node.op.chunked is not None
        for layer in (before, for_kernels(before))
        for node in layer.graph
        if isinstance(node.op, ir.Fold)
    ]


def test_matrices_that_feed_one_another_go_token_by_token() -> None:
    assert is_chunked("trend") == [True, False]


def test_what_a_program_can_hold_stays_in_chunks() -> None:
    """States at every row, but of few numbers: a pair of vectors, a matrix."""
    assert is_chunked("turning") == is_chunked("by_element") == [True, True]


def test_the_plan_says_why() -> None:
    layer = archc.load(OWN / "trend.arch").layer
    (plan,) = plans_of(layer, conditions({}))
    assert plan.crowded
    assert "token by token: in chunks a value would be 16 times" in as_text([plan])

"""Chunked forms that no program could hold: their recurrences go token by token."""

from __future__ import annotations

from pathlib import Path

import pytest

import archc
from archc.compile import for_kernels, lowered
from archc.ir import layer as ir
from archc.show.plan_listing import as_text
from archc.show.planned import conditions, plans_of

OWN = Path(__file__).parents[1] / "backends/triton"


def is_chunked(name: str) -> list[bool]:
    """Whether the recurrences of a spec are in chunks before and on a GPU."""
    before = lowered(archc.load(OWN / f"{name}.arch").layer)
    return [
        node.op.chunked is not None
        for layer in (before, for_kernels(before))
        for node in layer.graph
        if isinstance(node.op, ir.Recurrence)
    ]


def test_states_that_feed_one_another_go_token_by_token() -> None:
    """Two vectors, of which every element has a matrix of its own."""
    assert is_chunked("cells/feeding") == [True, False]


def test_what_a_program_can_hold_stays_in_chunks() -> None:
    """A state at every row; a matrix between the elements of one; two that numbers link, or that
    are turned as one complex number is."""
    assert is_chunked("recurrences/by_element") == [True, True]
    assert is_chunked("recurrences/dense_mix") == [True, True]
    assert is_chunked("recurrences/trend") == [True, True]
    assert is_chunked("recurrences/turning") == [True, True]


@pytest.mark.parametrize(
    ("given", "state", "write", "walks"),
    [
        ("A[H, K, K'], v[H, K]", "S[K] over H", "v", True),
        ("A[K, K'], v[H, K]", "S[K] over H", "v", False),
        ("A[K, K'], k[H, K], v[H, V]", "S[K, V] over H", "k @ v.T", True),
        ("A[K, K'], k[K], v[V]", "S[K, V]", "k @ v.T", False),
    ],
)
def test_matrices_or_states_of_every_token_and_head_are_not_in_memory(
    given: str, state: str, write: str, walks: bool
) -> None:
    """A matrix that all heads share, of states that are given as such, is; and a layer without
    heads has no other programs."""
    layer = archc.parse(
        f"layer Moved(H, K, V):\n    input {given}\n    recurrence {state}:\n"
        f"        S[t] = A @ S[t-1] + {write}\n    output S\n"
    ).layer
    before = lowered(layer)
    found = [
        node.op.chunked is None
        for each in (before, for_kernels(before))
        for node in each.graph
        if isinstance(node.op, ir.Recurrence)
    ]
    assert found == [False, walks]
    (plan,) = plans_of(layer, conditions({}))
    text = " ".join(as_text([plan]).split())
    assert ("in chunks, matrices of every token and head" in text) is walks


def test_the_plan_says_why() -> None:
    layer = archc.load(OWN / "cells/feeding.arch").layer
    (plan,) = plans_of(layer, conditions({}))
    assert "token by token: in chunks, with dims of 64, a value would be" in as_text([plan])


def test_a_matrix_that_stays_a_loop_takes_what_reads_it_along() -> None:
    """A momentum that decays by channels has no chunks; all of it goes into the memory."""
    spec = archc.parse(
        "layer L(H, K, V):\n    input q[H, K], k[H, K], v[H, V], a[H, K], e[H, K]\n"
        "    recurrence M[K, V], S[K, V] over H:\n"
        "        S[t] = diag(sigmoid(e)) @ S[t-1] + k @ v.T\n"
        "        M[t] = diag(sigmoid(a)) @ M[t-1] + S[t]\n"
        "        o = M[t].T @ q\n    output o\n"
    )
    (plan,) = plans_of(spec.layer, conditions({}))
    text = " ".join(as_text([plan]).split())
    assert "in chunks, a matrix that stays a loop would be in memory at every token" in text
    assert "`S` token by token: every element of `S` is used at every token" in text
    (forward, *_) = plan.parts
    assert forward.title == "token by token"

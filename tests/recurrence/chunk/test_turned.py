"""Matrices that a turn mixes: which blocks are one, and what stays as it was. Their numbers are
those of `tests/recurrence/test_inventions.py`, and of a complex state in `tests/newcomers`."""

from __future__ import annotations

import pytest

from archc.compile import before_chunks
from archc.ir import layer as ir
from archc.recurrence.affine.form import NormalForm
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.chunk.loops import loops
from tests.elaborate.specs import layer

HEAD = """layer L(H, K, V):
    input q[H, K], k[H, K], v[H, V], th[H, K], a[H, K]
    c = cos(th)
    s = sin(th)
    g = sigmoid(a)
    recurrence S[K, V], P[K, V] over H:
        """


def made(*lines: str) -> ir.Layer:
    """A layer with two matrices."""
    return before_chunks(layer(f"{HEAD}{(chr(10) + ' ' * 8).join(lines)}\n    output o\n"))


def form_of(of: ir.Layer) -> NormalForm:
    (recurrence,) = (node.op for node in of.graph if isinstance(node.op, ir.Recurrence))
    (form,) = normal_forms(recurrence)
    return form


READ = "o = S[t].T @ q + P[t].T @ k"
C, D = "diag(c)", "diag(s)"
TURNS = {
    "forward": (
        f"S[t] = {C} @ S[t-1] - {D} @ P[t-1] + k @ v.T", f"P[t] = {D} @ S[t-1] + {C} @ P[t-1]",
    ),
    "backward": (
        f"S[t] = {C} @ S[t-1] + {D} @ P[t-1] + k @ v.T", f"P[t] = {C} @ P[t-1] - {D} @ S[t-1]",
    ),
    "with a decay": (
        "S[t] = diag(g * c) @ S[t-1] - diag(g * s) @ P[t-1] + k @ v.T",
        f"P[t] = diag(g) @ ({D} @ S[t-1] + {C} @ P[t-1])",
    ),
    "with a decay that is a sum": (
        f"S[t] = diag(1 - g / 2) @ ({C} @ S[t-1] - {D} @ P[t-1]) + k @ v.T",
        f"P[t] = diag(1 - g / 2) @ ({D} @ S[t-1] + {C} @ P[t-1])",
    ),
    "in steps": (
        f"A = {C} @ S[t-1] - {D} @ P[t-1]", f"B = {D} @ S[t-1] + {C} @ P[t-1]",
        "e = A.T @ q + B.T @ k - v",
        "S[t] = A - 0.1 * q @ e.T", "P[t] = B - 0.1 * k @ e.T",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNS)
def test_a_turn_is_seen(name: str) -> None:
    found = made(*TURNS[name], READ)
    links = form_of(found).links
    assert links is not None and links.turn is not None
    assert links.turn.angle != 0
    assert not loops(found)


def test_states_that_are_read_together_have_gates_of_their_own() -> None:
    found = made(
        "e = S[t-1].T @ q + P[t-1].T @ k - v",
        "S[t] = diag(g) @ S[t-1] - 0.1 * q @ e.T",
        "P[t] = diag(g * g) @ P[t-1] - 0.1 * k @ e.T",
        READ,
    )
    links = form_of(found).links
    assert links is not None and links.turn is not None
    assert links.turn.angle == 0
    assert not loops(found)


@pytest.mark.parametrize(
    "lines",
    [
        ("S[t] = diag(c) @ S[t-1] + diag(s) @ P[t-1] + k @ v.T",
         "P[t] = diag(s) @ S[t-1] + diag(c) @ P[t-1]"),
        ("S[t] = diag(c) @ S[t-1] - diag(g * s) @ P[t-1] + k @ v.T",
         "P[t] = diag(g * s) @ S[t-1] + diag(c) @ P[t-1]"),
    ],
)  # fmt: skip
def test_what_is_no_turn_is_not_taken_for_one(lines: tuple[str, ...]) -> None:
    links = form_of(made(*lines, READ)).links
    assert links is None or links.turn is None

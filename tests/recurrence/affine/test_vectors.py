"""Vectors of heads as rows of one state."""

from __future__ import annotations

import re

import pytest

from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.chunk import Gram
from tests.elaborate.specs import layer

SCAN = "h[t] = exp(-u * r) * h[t-1] + u * b; y = h[t].T @ c"
TURN = (
    "h[t] = r * (cos(w) * h[t-1] - sin(w) * g[t-1]) + u * b; "
    "g[t] = r * (sin(w) * h[t-1] + cos(w) * g[t-1]); y = h[t].T @ c - g[t].T @ b"
)


GIVEN = {"u": "D", "b": "N", "c": "N", "r": "D, N", "w": "D, N", "v": "D, V"}


def recurrence(states: str, body: str) -> ir.Recurrence:
    """That of a layer with vectors over D, which has the inputs that it reads; r is a decay."""
    read = [name for name in GIVEN if re.search(rf"\b{name}\b", body)]
    inputs = ", ".join(f"{name}[{GIVEN[name]}]" for name in read).replace("r[", "r0[")
    named = "    r = sigmoid(r0)\n" if "r" in read else ""
    found = layer(
        f"layer L(D, N, V = 2):\n    input {inputs}\n{named}"
        f"    recurrence {states} over D:\n        {body}\n    output y\n"
    )
    (op,) = (n.op for n in lowered(found).graph if isinstance(n.op, ir.Recurrence))
    return op


@pytest.mark.parametrize(("states", "body"), [("h[N]", SCAN), ("h[N], g[N]", TURN)])
def test_elements_that_decay_by_themselves_are_scanned(states: str, body: str) -> None:
    found = recurrence(states, body)
    assert found.heads == ()
    assert found.chunked is not None
    assert not any(isinstance(n.op, Gram) for n in found.chunked.forward)


@pytest.mark.parametrize(
    ("states", "body"),
    [
        ("S[N, V]", "S[t] = diag(exp(-u * r)) @ S[t-1] + b @ v.T; y = S[t].T @ c"),
        ("h[N]", "h[t] = exp(-softplus(u)) * h[t-1] + u * b; y = h[t].T @ c"),
        ("h[N]", "h[t] = h[t-1] - u * b * (h[t-1].T @ b) + c; y = h[t].T @ c"),
        ("h[N]", "h[t] = tanh(r * h[t-1] + u * b); y = h[t].T @ c"),
    ],
    ids=["a matrix", "one decay a head", "corrected", "a cell"],
)
def test_others_keep_their_heads(states: str, body: str) -> None:
    assert recurrence(states, body).heads == ("D",)

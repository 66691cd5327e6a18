"""Which states feed one another, and how a value depends on them."""

from __future__ import annotations

import pytest

from archc.ir import layer as ir
from archc.recurrence.analysis.degree import LINEAR, OTHER, degrees, reads, updates
from tests.elaborate.specs import layer

TEXT = """
layer Example(D):
    input x[D], a[D]
    recurrence S[D], P[D]:
        S[t] = {S}
        P[t] = {P}
    output S; output P
"""


def recurrence(**formulas: str) -> ir.Recurrence:
    (found,) = (
        n.op for n in layer(TEXT.format(**formulas)).graph if isinstance(n.op, ir.Recurrence)
    )
    return found


@pytest.mark.parametrize(
    ("formulas", "of_s", "of_p"),
    [
        ({"S": "a * S[t-1] + x", "P": "S[t-1]"}, {"S"}, {"S"}),
        ({"S": "a * S[t-1] + x", "P": "P[t-1] + S[t]"}, {"S"}, {"P", "S"}),
        ({"S": "a * P[t-1] + x", "P": "S[t-1]"}, {"P"}, {"S"}),
        ({"S": "x", "P": "P[t-1] + a"}, set(), {"P"}),
    ],
)
def test_a_state_reads_what_its_update_is_made_of(
    formulas: dict[str, str], of_s: set[str], of_p: set[str]
) -> None:
    found = recurrence(**formulas)
    assert (reads(found, "S"), reads(found, "P")) == (of_s, of_p)


def test_a_state_that_keeps_another_one_leaves_it_linear() -> None:
    """The node of S[t-1] is the update of P as well: S still depends on itself."""
    found = recurrence(S="a * S[t-1] + x", P="S[t-1]")
    after = updates(found)
    assert degrees(found, ["S"])[after["S"]].kind == LINEAR
    assert degrees(found, ["S"])[after["P"]].kind == LINEAR


@pytest.mark.parametrize("update", ["S[t-1] * S[t-1]", "exp(S[t-1])", "x / S[t-1]"])
def test_the_node_that_ends_linearity_is_kept(update: str) -> None:
    found = recurrence(S=f"a + {update}", P="x")
    degree = degrees(found, ["S"])[updates(found)["S"]]
    assert degree.kind == OTHER
    assert degree.culprit is not None and found.body[degree.culprit].span is not None

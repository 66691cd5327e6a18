"""Matrix states that scale one another by numbers: which ones are one form, and which stay loops.
Their numbers are those of `tests/recurrence/test_inventions.py`."""

from __future__ import annotations

from functools import partial

import pytest

from archc.compile import before_chunks
from archc.ir import layer as ir
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.chunk.loops import loops
from tests.elaborate.specs import layer

HEAD = """layer L(H, K, V, R = 2):
    input q[H, K], k[H, K], v[H, V], w[H, K], a[H], b[H], ks[H, R, K], vs[H, R, V]
    recurrence S[K, V], P[K, V] over H:
        """

CORRECTED = "S[t] = a * S[t-1] + k @ (v - P[t-1].T @ k).T"


def made(*lines: str, head: str = HEAD) -> ir.Layer:
    """A layer with two matrices."""
    return before_chunks(layer(f"{head}{(chr(10) + ' ' * 8).join(lines)}\n    output o\n"))


def kinds(of: ir.Layer) -> list[str]:
    (recurrence,) = (node.op for node in of.graph if isinstance(node.op, ir.Recurrence))
    return [form.kind for form in normal_forms(recurrence)]


@pytest.mark.parametrize(
    "lines",
    [
        (CORRECTED, "P[t] = b * P[t-1] + S[t]", "o = P[t].T @ q"),
        (CORRECTED, "P[t] = b * P[t-1] + S[t]", "o = (P[t] + S[t-1]).T @ q"),
        ("S[t] = a * S[t-1] + k @ v.T", "P[t] = b * P[t-1] + S[t]", "o = P[t].T @ q"),
        ("S[t] = a * S[t-1] + k @ (v - P[t-1].T @ k).T - b * P[t-1]", "P[t] = P[t-1] + S[t]",
         "o = P[t].T @ q"),
        ("S[t] = a * S[t-1] + k @ v.T", "P[t] = P[t-1] - w @ (P[t-1].T @ k).T + b * S[t-1]",
         "o = P[t].T @ q + S[t].T @ k"),
        ("S[t] = a * S[t-1] + ks.T @ (vs - ks @ P[t-1])", "P[t] = b * P[t-1] + S[t]",
         "o = P[t].T @ q"),
        ("S[t] = a * S[t-1] + ks.T @ vs", "P[t] = b * P[t-1] + S[t]", "o = P[t].T @ q"),
    ],
)  # fmt: skip
def test_numbers_between_matrices_link_them(lines: tuple[str, ...]) -> None:
    found = made(*lines)
    assert kinds(found) == ["linked"]
    assert not loops(found)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("S[t] = diag(w) @ S[t-1] + k @ (v - P[t-1].T @ k).T", "P[t] = P[t-1] + S[t]",
          "o = P[t].T @ q"), "element by element"),
        ((CORRECTED, "P[t] = b * P[t-1] + S[t]", "o = tanh(S[t]).T @ q + P[t].T @ q"),
         "every element"),
    ],
)  # fmt: skip
def test_what_is_no_number_stays_a_loop(lines: tuple[str, ...], reason: str) -> None:
    found = made(*lines)
    assert any(reason in str(finding) for finding in loops(found)), loops(found)


@pytest.mark.parametrize("first", [CORRECTED, "S[t] = a * S[t-1] + k @ v.T"])
def test_states_that_take_others_whole_join_them(first: str) -> None:
    """After a pair that scales one another, and where no sum goes along the first two."""
    head = HEAD.replace("P[K, V] over", "P[K, V], N[K, V] over")
    summed = made(first, "P[t] = b * P[t-1] + S[t]", "N[t] = a * N[t-1] + P[t-1]",
                  "o = N[t].T @ q", head=head)  # fmt: skip
    assert kinds(summed) == ["linked"]
    assert not loops(summed)
    turned = made(first, "P[t] = b * P[t-1] + S[t]", "N[t] = diag(w) @ N[t-1] + P[t-1]",
                  "o = N[t].T @ q", head=head)  # fmt: skip
    assert "every element" in str(loops(turned))


def test_more_rows_than_a_chunk_has_room_for_are_elements() -> None:
    """Where nothing is corrected; a correction of so many keys stays a loop, and says why."""
    lines = "P[t] = b * P[t-1] + S[t]", "o = P[t].T @ q"
    many = partial(made, head=HEAD.replace("R = 2", "R"))
    assert not loops(many("S[t] = a * S[t-1] + ks.T @ vs", *lines))
    found = loops(many("S[t] = a * S[t-1] + ks.T @ (vs - ks @ P[t-1])", *lines))
    assert "`R` is not known to be at most 4" in str(found)


def test_a_matrix_that_a_function_takes_whole_is_not_linked() -> None:
    first, read = "S[t] = a * S[t-1] + k @ v.T", "o = P[t].T @ q"
    found = made(first, "P[t] = 0.5 * P[t-1] + tanh(S[t])", read)
    assert "linked" not in kinds(found)

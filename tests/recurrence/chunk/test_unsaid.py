"""A state that may grow: what is not known is named, and saying it is enough."""

from __future__ import annotations

import pytest

from archc.compile import before_chunks
from archc.diagnostics import Diagnostic
from archc.elaborate.elaborate import elaborate
from archc.recurrence.chunk.loops import loops
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse


def warnings(gate: str, args: str = "", said: str = "", decay: str = "f") -> tuple[Diagnostic, ...]:
    """What is said about a memory that decays by a gate."""
    text = (
        f"layer Forget(d, H, K, V{args}):\n"
        "    input x[d], q[H, K], k[H, K], v[H, V], a[H, K], g[H, K]\n"
        "    param W[d, H, K]; A[H, K]\n"
        + "".join(f"    {line}\n" for line in (said, gate) if line)
        + "    recurrence S[K, V] over H:\n"
        f"        S[t] = diag({decay}) @ S[t-1] + k @ v.T\n"
        "        o    = S[t].T @ q\n"
        "    output o\n    output y = x @ W * A\n"
    )  # fmt: skip
    layer = elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    return loops(before_chunks(layer))


@pytest.mark.parametrize(
    ("gate", "args", "note", "said", "marked"),
    [
        (
            "f = sigmoid(x @ W) ** (1 / tau)", ", tau = 16", "`tau > 0` is not known",
            "require tau > 0", "f = sigmoid(x @ W) ** (1 / tau)",
        ),
        (
            "f = exp(-exp(A) * softplus(x @ W) * scale)", ", scale = 1.0",
            "`scale > 0` is not known", "require scale > 0", "-exp(A) * softplus(x @ W) * scale",
        ),
        (
            "f = 1 - rate * sigmoid(x @ W)", ", rate = 0.5",
            "`rate > 0 and rate <= 1` is not known", "require rate > 0; require rate <= 1",
            "f = 1 - rate * sigmoid(x @ W)",
        ),
        (
            "f = sigmoid(x @ W) * share", ", share = 0.5",
            "`share > 0 and share <= 1` is not known", "require share > 0; require share <= 1",
            "f = sigmoid(x @ W) * share",
        ),
        ("f = 2 * sigmoid(x @ W)", "", "", "chunk: bound f <= 1", "f = 2 * sigmoid(x @ W)"),
        (
            "f = 1.5 * tanh(x @ W)", "", "", "chunk: bound f > 0, bound f <= 1",
            "f = 1.5 * tanh(x @ W)",
        ),
        ("f = a", "", "", "chunk: bound a > 0, bound a <= 1", "a[H, K]"),
        ("f = exp(g)", "", "", "chunk: bound g <= 0", "g[H, K]"),
        ("f = exp(A)", "", "", "chunk: bound A <= 0", "A[H, K]"),
    ],
)  # fmt: skip
def test_saying_what_is_not_known_is_enough(
    gate: str, args: str, note: str, said: str, marked: str
) -> None:
    (found,) = warnings(gate, args)
    assert found.code == "E0602" and found.label is not None
    assert found.label.span.text == marked
    assert [each for each in found.notes if each.endswith("is not known")] == [note] * bool(note)
    parts = said.split("; ")
    assert any(all(f"`{part}`" in text for part in parts) for text in found.helps), found.render()
    assert warnings(gate, args, said) == ()


def test_nothing_is_advised_that_would_not_be_enough() -> None:
    """Two gates, of which each may grow: neither a requirement nor one promise helps."""
    (found,) = warnings("", decay="a * exp(g)")
    assert not any("require" in text or "promise" in text for text in found.helps)


def test_a_read_of_two_memories_at_once_is_two_or_is_told_how_to_be() -> None:
    text = (
        "layer Two(H, K, V):\n    input q[H, K], k[H, K], v[H, V]\n"
        "    recurrence A[K, V], B[K, V] over H:\n"
        "        A[t] = (I - k @ k.T) @ A[t-1] + k @ v.T\n        B[t] = B[t-1] + k @ v.T\n"
        "        o    = {}\n    output o\n"
    )

    def told(read: str) -> list[str]:
        source = Source("two.arch", text.format(read))
        layer = elaborate(parse(source), None, {}, import_source)
        return [found.render() for found in loops(before_chunks(layer))]

    assert told("A[t].T @ q + B[t].T @ q") == []
    assert told("(A[t] + B[t]).T @ q") == []
    assert told("q.T @ (2 * A[t-1] - B[t])") == []
    each = told("where(k[t-1].T @ k > 0, A[t], B[t]).T @ q")
    assert len(each) == 2
    assert all("one product reads the sum of several states" in text for text in each)
    assert all("help: read each by itself" in text for text in each)


def test_an_input_from_which_a_gate_is_made_is_named():
    """The least that a gate keeps, given from outside: a promise about it is enough."""
    gate, promise = "f = g + (1 - g) * sigmoid(x @ W)", "chunk: bound g >= 0, bound g <= 1"
    (found,) = warnings(gate)
    helps = f"if the input `g` lies between 0 and 1, promise that: `{promise}`"
    assert helps in found.helps
    assert warnings(gate, said=promise) == ()


def test_what_makes_a_matrix_definite_is_named():
    """An option on the diagonal of what is solved, which nobody says to be positive."""
    text = """layer Ridge(H, K, V, eps = 0.1):
    input q[H, K], k[H, K], v[H, V]
    recurrence L[K, K'], Y[K, V] over H:
        L[t] = L[t-1] + k @ k.T
        Y[t] = Y[t-1] + k @ v.T
        o = Y[t].T @ solve(L[t] + eps * I, q, iterations = 20)
    output o
"""
    layer = elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    (found,) = loops(before_chunks(layer))
    assert (found.code, *found.notes) == ("E0606", "`eps > 0` is not known")
    assert "say `require eps > 0`" in found.helps
    text = text.replace("    input", "    require eps > 0\n    input", 1)
    layer = elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    assert loops(before_chunks(layer)) == ()

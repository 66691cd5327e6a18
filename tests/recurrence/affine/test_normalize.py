"""Normal forms of recurrences: computed step by step they are the recurrence; spellings agree."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.ir.verify import verify
from archc.recurrence.affine.form import NormalForm
from archc.recurrence.affine.listing import as_text
from archc.recurrence.affine.normalize import normal_forms
from tests.elaborate.specs import layer, random_inputs
from tests.recurrence.rebuilt import rebuilt, recurrences

SIZES = {"H": 2, "K": 3, "V": 4}

VECTORS = "k[H, K], q[H, K], p[H, K], r[H, K], a[H, K], v[H, V], z[H, V], u[H, V], b[H], g[H]"


def spec(body: str, states: str = "S[K, V]", outputs: str = "S") -> ir.Layer:
    """A recurrence over H with vectors on the key side (k, q, p, r, a), on the value side (v, z, u)
    and scalars (b, g); inputs that it does not need are left out."""
    names = [entry for entry in VECTORS.split("], ") if uses(entry.split("[")[0], body)]
    inputs = ", ".join(entry.rstrip("]") + "]" for entry in names)
    lines = "\n        ".join(body.split("\n"))
    results = "; ".join(f"output {name}" for name in outputs.split(", "))
    return layer(
        f"layer L(H, K, V):\n    input {inputs}\n    recurrence {states} over H:\n"
        f"        {lines}\n    {results}\n"
    )


def uses(name: str, text: str) -> bool:
    """Whether a spec's text has a name in it."""
    return any(word == name for word in "".join(c if c.isalnum() else " " for c in text).split())


def forms(body: str, states: str = "S[K, V]", outputs: str = "S") -> tuple[NormalForm, ...]:
    """The normal forms of a recurrence after simplification."""
    (recurrence,) = recurrences(simplify(spec(body, states, outputs)))
    return normal_forms(recurrence)


def form(body: str, states: str = "S[K, V]", outputs: str = "S") -> NormalForm:
    (found,) = forms(body, states, outputs)
    return found


def check(made: ir.Layer) -> None:
    """The layer and the one computed from its normal forms have the same outputs and states."""
    other = rebuilt(made)
    verify(other)
    inputs = random_inputs(made, SIZES)
    want, got = (evaluate(each, inputs, {}, SIZES) for each in (made, other))
    for name, value in {**want.outputs, **want.states}.items():
        torch.testing.assert_close({**got.outputs, **got.states}[name], value)


# --- the form is the recurrence ------------------------------------------------------------------

DECAYS = {
    "none": "S[t-1]",
    "scalar": "exp(g) * S[t-1]",
    "number": "S[t-1] / 2",
    "key": "diag(exp(a)) @ S[t-1]",
    "value": "S[t-1] @ diag(sigmoid(u))",
    "both": "exp(g) * diag(a) @ S[t-1] @ diag(u)",
    "sum": "(1 - b * g) * S[t-1]",
}
CORRECTED = {
    "none": "R + k @ v.T",
    "two writes": "R + k @ v.T + q @ z.T",
    "delta": "R + b * k @ (v - R.T @ k).T",
    "delta before": "R + b * k @ (v - S[t-1].T @ k).T",
    "two vectors": "R - (b * p) @ (R.T @ k).T + q @ v.T",
    "both reads": "R + k @ (v - R.T @ k).T + p @ (S[t-1].T @ (a * q)).T",
}
READS = [
    "o = S[t].T @ q / sqrt(K)",
    "o = S[t-1].T @ q + v * (q.T @ k)",
    "o = (S[t-1] + k @ (u * v).T).T @ q",
    "o = tanh(R.T @ q) + S[t].T @ p",
]


@pytest.mark.default("none", "scalar")
@pytest.mark.parametrize(("decay", "update"), list(product(DECAYS, CORRECTED)))
def test_decays_and_corrections(decay: str, update: str) -> None:
    reads = READS[(list(DECAYS).index(decay) + list(CORRECTED).index(update)) % len(READS)]
    made = spec(f"R = {DECAYS[decay]}\nS[t] = {CORRECTED[update]}\n{reads}", outputs="S, o")
    check(made)
    check(simplify(made))
    (recurrence,) = recurrences(simplify(made))
    (found,) = normal_forms(recurrence)
    split = decay in ("value", "both") and update in ("delta before", "both reads")
    assert found.kind == ("sequential" if split else "matrix")


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("update", ["none", "delta", "two vectors"])
def test_reads(read: str, update: str) -> None:
    made = spec(f"R = {DECAYS['key']}\nS[t] = {CORRECTED[update]}\n{read}", outputs="o")
    check(simplify(made))
    found = form(f"R = {DECAYS['key']}\nS[t] = {CORRECTED[update]}\n{read}", outputs="o")
    assert found.forms[0].reads and not found.forms[0].whole
    assert [axis.name for axis in found.forms[0].key] == ["K"]


TURNED = [
    "S[t] = S[t-1] @ diag(exp(a)) + v @ k.T\no = S[t] @ q",
    "S[t] = S[t-1] @ diag(exp(a)) @ (I - b * k @ k.T) + b * v @ k.T\no = S[t] @ q",
    "S[t] = S[t-1] @ diag(a) - (S[t-1] @ k) @ (k * p).T + v @ k.T\no = S[t] @ q",
]


@pytest.mark.parametrize("body", TURNED)
def test_transposed_states(body: str) -> None:
    check(simplify(spec(body, "S[V, K]", "o")))
    (own,) = form(body, "S[V, K]", "o").forms
    assert ([a.name for a in own.key], [a.name for a in own.value]) == (["K"], ["V"])


MICRO = [
    ("R = S[t-1] - k @ (S[t-1].T @ k).T\nS[t] = R - q @ (R.T @ q).T + p @ v.T", 2),
    ("S[t] = (I - b * k @ k.T) @ (I - q @ q.T) @ diag(a) @ S[t-1] + k @ v.T", 2),
    ("S[t] = (I - k @ k.T) @ (I - q @ q.T) @ (I - b * p @ p.T) @ S[t-1]", 3),
    (
        "R = diag(a) @ (S[t-1] + k @ (v - S[t-1].T @ k).T)\n"
        "P = g * (R + q @ (z - R.T @ p).T)\nS[t] = P - p @ (P.T @ k).T\no = P.T @ q",
        3,
    ),
    ("R = S[t-1] + k @ v.T\nS[t] = R - q @ (R.T @ q).T", 1),
]


@pytest.mark.parametrize(("body", "steps"), MICRO)
def test_micro_steps(body: str, steps: int) -> None:
    made = spec(body, outputs="S, o" if "o =" in body else "S")
    check(made)
    check(simplify(made))
    found = form(body, outputs="S, o" if "o =" in body else "S")
    assert len(found.forms[0].steps) == steps


def test_a_read_two_versions_back_is_written_out() -> None:
    body = (
        "R = S[t-1] - k @ (S[t-1].T @ k).T\nP = R - q @ (R.T @ q).T\n"
        "S[t] = P + p @ (S[t-1].T @ k).T + k @ v.T"
    )
    check(simplify(spec(body)))
    assert len(form(body).forms[0].steps) == 1


def test_a_decay_of_two_sides_is_taken_apart() -> None:
    """(1 - a) (1 - u), not (a - 1) (u - 1): a decay is a number between 0 and 1, and has a log."""
    found = form("S[t] = diag(1 - a) @ S[t-1] @ diag(1 - u) + k @ v.T")
    (text,) = (line for line in as_text(found).split("\n") if "S' =" in line)
    assert text.strip() == "S' = (1 - a) (1 - u) S[t-1]"


def test_choices() -> None:
    """A state that moves only where a condition holds: the decay is a choice, the terms are 0."""
    body = "S[t] = where(b > 0, exp(g) * (I - k @ k.T) @ S[t-1] + k @ v.T, S[t-1])\no = S[t].T @ q"
    check(simplify(spec(body, outputs="o")))
    found = form(body, outputs="o")
    (step,) = found.forms[0].steps
    assert found.kind == "matrix" and [term.after for term in step.terms] == [True]


@pytest.mark.parametrize(
    "write",
    [
        "where(b > 0, k @ v.T, 0)",
        "where(b > 0, k @ v.T, q @ z.T)",
        "where(k > 0, 0, q @ v.T) + where(v > 0, k @ z.T, 0)",
    ],
)
def test_writes_that_are_chosen(write: str) -> None:
    """An outer product behind a condition stays one: no matrix a token is made of it."""
    body = f"S[t] = exp(g) * S[t-1] + {write}\no = S[t].T @ q"
    check(simplify(spec(body, outputs="o")))
    found = form(body, outputs="o")
    assert found.kind == "matrix" and all(term.after for term in found.forms[0].steps[0].terms)


def test_a_state_that_is_overwritten_after_it_is_read() -> None:
    body = "S[t] = k @ (v - S[t-1].T @ k).T"
    check(simplify(spec(body)))
    assert form(body).forms[0].steps[0].decay == 0


MOVES = [
    "exp(g) * {R}",
    "diag(exp(a)) @ {R}",
    "(1 - b) * {R}",
    "{R} + k @ v.T",
    "{R} + b * k @ (v - {R}.T @ k).T",
    "{R} - q @ ({R}.T @ p).T",
    "{R} + p @ (S[t-1].T @ k).T",
    "where(g > 0, {R}, S[t-1])",
    "{R} + where(g > 0, k @ v.T, p @ z.T)",
    "{R} / 2 + {R} * b",
    "({R} + k @ z.T) - r @ ({R}.T @ k + v).T",
]


@pytest.mark.slow
@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(st.lists(st.sampled_from(MOVES), min_size=1, max_size=5), st.integers(0, 5))
def test_any_sequence_of_moves(moves: list[str], read: int) -> None:
    """Scalings, writes, corrections and choices in any order, read anywhere."""
    lines = ["R0 = S[t-1] + 0 * k @ v.T"]
    lines += [f"R{i + 1} = {move.format(R=f'R{i}')}" for i, move in enumerate(moves)]
    lines += [f"S[t] = R{len(moves)}", f"o = R{min(read, len(moves))}.T @ q"]
    made = spec("\n".join(lines), outputs="S, o")
    check(made)
    (found,) = normal_forms(next(recurrences(made)))
    assert found.kind == "matrix"


# --- spellings -----------------------------------------------------------------------------------

SPELLINGS = [
    "S[t] = (I - b * k @ k.T) @ diag(a) @ S[t-1] + b * k @ v.T",
    "R = diag(a) @ S[t-1]\nS[t] = R + b * k @ (v - R.T @ k).T",
    "S[t] = diag(a) @ S[t-1] - b * k @ (k.T @ (diag(a) @ S[t-1])) + b * k @ v.T",
    "R = diag(a) @ S[t-1]\ny = b * (v - R.T @ k)\nS[t] = R + k @ y.T",
    "R = diag(a) @ S[t-1]\nS[t] = R + 2 * k @ (b * v - (b * R).T @ k).T / 2",
    "S[t] = (diag(a) - b * k @ (a * k).T) @ S[t-1] + (b * k) @ v.T",
    "S[t] = (diag(a) - b * k @ k.T @ diag(a)) @ S[t-1] + k @ (v * b).T",
]
TRANSPOSED = "S[t] = S[t-1] @ diag(a) @ (I - b * k @ k.T) + b * v @ k.T"


@pytest.mark.parametrize("body", SPELLINGS)
def test_spellings_of_one_update_are_equal(body: str) -> None:
    read = "\no = S[t].T @ q"
    want = form(SPELLINGS[0] + read, outputs="o")
    assert form(body + read, outputs="o").key() == want.key()
    (recurrence,) = recurrences(spec(body + read, outputs="o"))
    assert normal_forms(recurrence)[0].key() == want.key()
    check(simplify(spec(body + read, outputs="o")))


def test_a_transposed_spelling_is_equal() -> None:
    want = form(SPELLINGS[0] + "\no = S[t].T @ q", outputs="o")
    got = form(TRANSPOSED + "\no = S[t] @ q", "S[V, K]", "o")
    assert got.key() == want.key()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("exp(a + r)", "exp(r + a)"),
        ("1 - a * r", "-r * a + 1"),
        ("a * (1 - r)", "a - a * r"),
        ("max(a, r)", "max(r, a)"),
        ("a * (q.T @ k)", "(k.T @ q) * a"),
    ],
)
def test_gates_are_equal_as_polynomials(one: str, other: str) -> None:
    keys = {form(f"S[t] = diag({each}) @ S[t-1] + k @ v.T").key() for each in (one, other)}
    assert len(keys) == 1


def test_updates_that_differ_have_different_keys() -> None:
    bodies = [
        *SPELLINGS[:1],
        *(
            f"S[t] = {update}"
            for update in (
                "(I - k @ k.T) @ diag(a) @ S[t-1] + b * k @ v.T",
                "diag(a) @ (I - b * k @ k.T) @ S[t-1] + b * k @ v.T",
                "(I - b * k @ q.T) @ diag(a) @ S[t-1] + b * k @ v.T",
                "diag(a) @ S[t-1] + b * k @ v.T",
            )
        ),
    ]
    assert len({form(body).key() for body in bodies}) == len(bodies)


# --- kinds, groups, other states -----------------------------------------------------------------


def test_a_normaliser_is_one_more_column() -> None:
    body = (
        "S[t] = exp(g) * S[t-1] + b * k @ v.T\nn[t] = exp(g) * n[t-1] + b * k\n"
        "o = S[t].T @ q / max(abs(n[t].T @ q), 1)"
    )
    (found,) = forms(body, "S[K, V], n[K]", "o")
    assert (found.kind, found.states) == ("matrix", ("S", "n"))
    check(simplify(spec(body, "S[K, V], n[K]", "o")))


def test_a_stabiliser_is_a_running_maximum() -> None:
    body = (
        "m[t] = max(g + m[t-1], b)\n"
        "S[t] = exp(g + m[t-1] - m[t]) * S[t-1] + exp(b - m[t]) * k @ v.T\no = S[t].T @ q"
    )
    states = "S[K, V], m[]"
    assert [each.kind for each in forms(body, states, "o")] == ["tropical", "matrix"]
    check(simplify(spec(body, states, "o")))


def test_a_cascade_is_one_form_after_another() -> None:
    body = "P[t] = g * P[t-1] + k\nS[t] = S[t-1] + tanh(P[t]) @ v.T\no = S[t].T @ q"
    found = forms(body, "S[K, V], P[K]", "o")
    assert [each.states for each in found] == [("P",), ("S",)]
    assert found[0].forms[0].whole
    check(simplify(spec(body, "S[K, V], P[K]", "o")))


def test_a_read_of_an_earlier_state_is_one_value() -> None:
    body = (
        "P[t] = g * P[t-1] + k @ v.T\ny = P[t].T @ q\nS[t] = S[t-1] + k @ (b * y).T\no = S[t].T @ p"
    )
    first, second = forms(body, "S[K, V], P[K, V]", "o")
    assert [read.node for read in first.forms[0].reads]
    assert second.kind == "matrix"
    check(simplify(spec(body, "S[K, V], P[K, V]", "o")))


@pytest.mark.parametrize(
    ("body", "states"),
    [
        ("h[t] = a * h[t-1] + k", "h[K]"),
        ("S[t] = (k @ v.T) * S[t-1] + q @ z.T", "S[K, V]"),
        ("S[t] = exp(a @ u.T) * S[t-1] + q @ z.T\no = S[t].T @ q", "S[K, V]"),
        ("S[t] = g * S[t-1] + exp(a @ u.T)", "S[K, V]"),
    ],
)
def test_what_is_elementwise_is_diagonal(body: str, states: str) -> None:
    outputs = states[0] + (", o" if "o =" in body else "")
    assert form(body, states, outputs).kind == ("matrix" if "(k @ v.T)" in body else "diagonal")
    check(simplify(spec(body, states, outputs)))


def test_coupled_states_have_blocks() -> None:
    body = "S[t] = S[t-1] + P[t-1]\nP[t] = g * P[t-1] - b * S[t] + k @ v.T"
    (found,) = forms(body, "S[K, V], P[K, V]")
    assert (found.kind, found.states) == ("dense", ("P", "S"))
    check(simplify(spec(body, "S[K, V], P[K, V]", "S, P")))


@pytest.mark.parametrize(("several", "value"), [("V", "V'"), ("K'", "V")])
def test_a_matrix_that_is_a_sum_keeps_its_axes_apart(several: str, value: str) -> None:
    """The axis that makes the matrix, and the one that the matrix is summed along."""
    made = layer(
        f"layer L(H, K, V):\n    input k[{several}, H, K], v[{several}, H, {value}], q[H, K]\n"
        "    recurrence S[K, V] over H:\n        S[t] = S[t-1] - k.T @ (k @ S[t-1] - v)\n"
        "        o = S[t].T @ q\n    output o\n"
    )
    check(simplify(made))


def test_a_matrix_along_an_axis_is_dense() -> None:
    text = (
        "layer L(H, K, V):\n    input k[H, K], v[H, V], A[H, K, K']\n"
        "    recurrence S[K, V] over H:\n        S[t] = A @ S[t-1] + k @ v.T\n    output S\n"
    )
    made = simplify(layer(text))
    (recurrence,) = recurrences(made)
    (found,) = normal_forms(recurrence)
    step = found.forms[0].steps[0]
    assert (found.kind, step.row, step.decay) == ("dense", "K", 0)
    check(made)


def test_whole_uses_are_noted() -> None:
    found = form("S[t] = g * S[t-1] + k @ v.T\nR = tanh(S[t])\no = R.T @ q", outputs="o")
    assert len(found.forms[0].whole) == 1 and not found.forms[0].reads


# --- refusals ------------------------------------------------------------------------------------

REFUSED = [
    ("S[t] = g * S[t-1] + k @ tanh(S[t-1].T @ k).T", "`tanh` of a state"),
    ("S[t] = S[t-1] * S[t-1] + k @ v.T", "a state times a state"),
    ("S[t] = S[t-1] @ diag(u) - k @ (S[t-1].T @ k).T", "the decay varies along the value side"),
    ("S[t] = S[t-1] + k @ (u * (v - S[t-1].T @ k)).T", "scaled along the value side"),
    (
        "S[t] = S[t-1] - k @ (S[t-1].T @ k).T - (S[t-1] @ v) @ v.T",
        "corrections read the state along different axes",
    ),
    ("S[t] = exp(k @ v.T) * S[t-1] - k @ (S[t-1].T @ k).T + q @ z.T", None),
]


@pytest.mark.parametrize(("body", "reason"), REFUSED)
def test_refusals(body: str, reason: str | None) -> None:
    found = form(body)
    if reason is None:
        assert [axis.name for axis in found.forms[0].shared] == ["batch", "H", "V"]
        return
    assert found.kind == "sequential" and found.refusal is not None
    assert reason in found.refusal.reason


def test_coupled_states_that_read_one_another_are_refused() -> None:
    body = "S[t] = S[t-1] + P[t-1]\nP[t] = diag(a) @ P[t-1] - k @ (S[t-1].T @ k).T"
    (found,) = forms(body, "S[K, V], P[K, V]")
    assert found.refusal is not None and "element by element" in found.refusal.reason


def test_too_many_micro_steps_are_refused() -> None:
    lines = ["R0 = S[t-1]", *(f"R{i + 1} = R{i} - k @ (R{i}.T @ k).T" for i in range(17))]
    (recurrence,) = recurrences(spec("\n".join([*lines, "S[t] = R17"])))
    (found,) = normal_forms(recurrence)
    assert found.refusal is not None and "17 micro-steps" in found.refusal.reason

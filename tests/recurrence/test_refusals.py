"""What has no chunked form is refused, or stays a loop: with the reason, at the right place in the
spec, and with the right numbers."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch

import archc
from archc.compile import before_chunks
from archc.diagnostics import ArchError, ArchWarning, Diagnostic
from archc.ir.meaning import evaluate
from archc.recurrence.chunk.loops import loops
from tests.elaborate.specs import layer
from tests.recurrence.test_random import inputs_of, near, sizes_for

HEAD = """layer L(H, K, V):
    input q[H, K], k[H, K], u[H, K], y[H, K], x[H, K], v[H, V], z[H, V], a[H], b[H]
"""
READ = "\n        o = S[t].T @ q\n    output o\n"


def matrix(update: str, before: str = "", states: str = "S[K, V]") -> str:
    """A layer with a matrix state."""
    return f"{HEAD}{before}    recurrence {states} over H:\n        {update}{READ}"


@dataclass(frozen=True)
class Case:
    """A spec, the code of its warning, the states that stay a loop, what is underlined, and a part
    of the reason."""

    spec: str
    code: str
    states: str
    underlined: str
    reason: str


CORRECTED = f"""{HEAD}    recurrence S[K, V] over H:
        S[t] = S[t-1] - k @ (k.T @ S[t-1]) + k @ v.T
"""
CHAIN = "\n        ".join(f"R{i + 1} = R{i} - k @ (R{i}.T @ k).T" for i in range(17))

LOOPS = {
    "a gate without a bound": Case(
        matrix("S[t] = diag(x) @ S[t-1] + k @ v.T"), "E0602", "S", "x[H, K]", "no logarithm"),
    "a gate that grows": Case(
        matrix("S[t] = diag(exp(x)) @ S[t-1] + k @ v.T"), "E0602", "S", "exp(x)", "may grow"),
    "a gate above 1": Case(
        matrix("S[t] = diag(1.5 * sigmoid(x)) @ S[t-1] + k @ v.T"), "E0602", "S",
        "sigmoid(x)", "may grow"),
    "a gate of a sum": Case(
        matrix("S[t] = diag(sigmoid(x) + sigmoid(a)) @ S[t-1] + k @ v.T"), "E0602", "S",
        "sigmoid(x) + sigmoid(a)", "may grow"),
    "a gate below 0": Case(
        matrix("S[t] = S[t-1] @ diag(tanh(v) - 1) + k @ v.T"), "E0602", "S", "tanh(v)",
        "no logarithm"),
    "a gate that may be exactly 0": Case(
        matrix("S[t] = S[t-1] @ diag(relu(v)) + k @ v.T"), "E0602", "S", "relu(v)",
        "may be exactly 0"),
    "a cell": Case(
        matrix("S[t] = tanh(S[t-1]) + k @ v.T"), "E0601", "S", "tanh(S[t-1])", "`tanh` of a state"),
    "a state times itself": Case(
        matrix("S[t] = 0.5 * S[t-1] - k @ (S[t-1].T @ k).T * sum[K, V](S[t-1])"),
        "E0601", "S", "k @ (S[t-1].T @ k).T * sum[K, V](S[t-1])", "state"),
    "a correction that uses the state twice": Case(
        matrix("S[t] = S[t-1] - S[t-1] @ (S[t-1].T @ k) @ v.T"),
        "E0601", "S", "S[t-1] @ (S[t-1].T @ k) @ v.T", "a state times a state"),
    "a gate from the state itself": Case(
        matrix("S[t] = sigmoid(S[t-1].T @ k).T * S[t-1] + k @ v.T"),
        "E0601", "S", "sigmoid(S[t-1].T @ k)", "`sigmoid` of a state"),
    "a decay of the values, and a correction that reads the state before it": Case(
        matrix("S[t] = S[t-1] @ diag(sigmoid(z)) - k @ (k.T @ S[t-1]) + k @ v.T"),
        "E0603", "S", "S[t] = S[t-1] @ diag(sigmoid(z)) - k @ (k.T @ S[t-1]) + k @ v.T", "value"),
    "a decay of the keys, and a correction along the values that reads the state before it": Case(
        matrix("S[t] = diag(sigmoid(x)) @ S[t-1] - (S[t-1] @ z) @ z.T + k @ v.T"),
        "E0603", "S", "S[t] = diag(sigmoid(x)) @ S[t-1] - (S[t-1] @ z) @ z.T + k @ v.T", "value"),
    "decays of both sides, of which a correction reads neither": Case(
        matrix("S[t] = diag(sigmoid(x)) @ S[t-1] @ diag(sigmoid(z)) - k @ (k.T @ S[t-1])"),
        "E0603", "S", "S[t] = diag(sigmoid(x)) @ S[t-1] @ diag(sigmoid(z)) - k @ (k.T @ S[t-1])",
        "value"),
    "corrections along both sides": Case(
        matrix("S[t] = (I - k @ k.T) @ S[t-1] @ (I - z @ z.T) + k @ v.T"),
        "E0607", "S", "S[t] = (I - k @ k.T) @ S[t-1] @ (I - z @ z.T) + k @ v.T", "axes"),
    "a state that is used whole": Case(
        f"{CORRECTED}        o = sum[K](tanh(S[t]))\n    output o\n",
        "E0604", "S", "tanh(S[t])", "every element"),
    "a state that is the result": Case(
        f"{CORRECTED}    output S\n",
        "E0604", "S", "S[t] = S[t-1] - k @ (k.T @ S[t-1]) + k @ v.T", "every element"),
    "17 micro-steps": Case(
        matrix(f"R0 = S[t-1]\n        {CHAIN}\n        S[t] = R17 + u @ v.T"),
        "E0605", "S", "S[t] = R17 + u @ v.T", "micro-steps"),
}  # fmt: skip

SYSTEM = f"""{HEAD}    param lam[H, K]
    recurrence A[K, K'] over H:
        A[t] = {{update}}
        o = solve({{matrix}}, q)
    output o
"""


def system(update: str, matrix: str = "A[t] + diag(exp(lam))") -> str:
    return SYSTEM.format(update=update, matrix=matrix)


LOOPS |= {
    "a write that may be negative": Case(
        system("sigmoid(a) * A[t-1] + sin(b) * k @ k.T"), "E0606", "A",
        "A[t] = sigmoid(a) * A[t-1] + sin(b) * k @ k.T", "indefinite"),
    "nothing on the diagonal": Case(
        system("sigmoid(a) * A[t-1] + k @ k.T", "A[t] + diag(lam)"), "E0606", "A",
        "o = solve(A[t] + diag(lam), q)", "diagonal"),
    "a matrix that is not symmetric": Case(
        system("sigmoid(a) * A[t-1] + k @ u.T"), "E0606", "A",
        "A[t] = sigmoid(a) * A[t-1] + k @ u.T", "symmetric"),
}  # fmt: skip


def found(text: str) -> Diagnostic:
    (warning,) = loops(before_chunks(layer(text)))
    return warning


@pytest.mark.parametrize("name", LOOPS)
def test_what_stays_a_loop_says_why_and_where(name: str) -> None:
    case = LOOPS[name]
    warning = found(case.spec)
    assert (warning.code, warning.severity) == (case.code, "warning")
    assert warning.message == f"`{case.states}` stays a loop over the tokens"
    assert warning.label is not None
    span = warning.label.span
    assert span.source.text[span.start : span.end] == case.underlined
    assert case.reason in " ".join([warning.label.text, *warning.notes])
    assert "chunk: sequential" in warning.helps[-1]


SHARES = (
    "sigmoid(a) / (sigmoid(a) + sigmoid(b))", "exp(a) / (exp(a) + exp(b))",
    "softplus(a) / (1 + softplus(a))", "p + (1 - p) * sigmoid(a)",
)  # fmt: skip


@pytest.mark.parametrize("gate", SHARES)
def test_a_share_of_a_sum_is_a_decay(gate: str) -> None:
    """It is at most 1, as is a mean with weights; and what is required of an option holds."""
    head = HEAD.replace("V):\n", "V, p = 0.5):\n    require p > 0\n    require p < 1\n")
    text = matrix("S[t] = g * S[t-1] + k @ v.T", f"    g = {gate}\n").replace(HEAD, head)
    assert not loops(before_chunks(layer(text)))


def test_an_option_is_a_decay() -> None:
    """Of what is required of it."""
    head = HEAD.replace("V):\n", "V, p = 0.5):\n    require p > 0\n    require p < 1\n")
    text = matrix("S[t] = diag(p * sigmoid(x)) @ S[t-1] + k @ v.T").replace(HEAD, head)
    assert not loops(before_chunks(layer(text)))
    assert "say `require p > 0`" in found(text.replace("    require p > 0\n", "")).notes[0]


NUMBERS = [name for name in LOOPS if name != "17 micro-steps"]  # it is long; `algebra` is tested


@pytest.mark.default(
    "a gate that grows",
    "a gate below 0",
    "a gate of a sum",
    "a cell",
    "a state times itself",
    "decays of both sides, of which a correction reads neither",
    "a matrix that is not symmetric",
)
@pytest.mark.parametrize("name", NUMBERS)
def test_a_loop_gives_the_numbers_of_the_spec(name: str) -> None:
    """Values and gradients are those of the oracle, and whoever makes the module is told."""
    spec = archc.parse(LOOPS[name].spec)
    sizes, case = sizes_for(spec.layer), LOOPS[name]
    says = rf"warning\[{case.code}\]: `{case.states}` stays a loop"
    with pytest.warns(ArchWarning, match=says):
        module = spec.module(**sizes, dtype=torch.float64)
    given = inputs_of(spec.layer, 20)
    given = {n: (x / 3 if n in "kuz" else x).requires_grad_() for n, x in given.items()}
    o = next(iter(spec.layer.graph.outputs))
    wanted = evaluate(spec.layer, given, dict(module.state_dict()), sizes).outputs[o]
    found = module(**given)
    near(found.detach(), wanted.detach(), name)
    leaves = list(given.values())
    slopes = [
        torch.autograd.grad(y.square().sum(), leaves, allow_unused=True, materialize_grads=True)
        for y in (found, wanted)
    ]
    for one, other in zip(*slopes, strict=True):
        near(one, other, name)


def test_a_gate_that_may_be_negative_is_told_what_may() -> None:
    (found,) = loops(before_chunks(layer(matrix("S[t] = S[t-1] @ diag(tanh(v) - 1) + k @ v.T"))))
    assert "where it lies between -1 and 1" in found.helps[0]
    for gated in ("tanh(a) * S[t-1]", "diag(tanh(x)) @ S[t-1]", "S[t-1] @ diag(tanh(v))"):
        assert not loops(before_chunks(layer(matrix(f"S[t] = {gated} + k @ v.T"))))


def test_a_loop_that_is_meant_is_no_warning() -> None:
    meant = HEAD + "    chunk: sequential\n" + LOOPS["a cell"].spec.removeprefix(HEAD)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ArchWarning)
        archc.parse(meant).module(H=1, K=2, V=2)


@pytest.mark.slow
def test_16_micro_steps_are_chunked() -> None:
    steps = "\n        ".join(f"R{i + 1} = R{i} - k @ (R{i}.T @ k).T" for i in range(15))
    text = matrix(f"R0 = S[t-1]\n        {steps}\n        S[t] = R15 - u @ (R15.T @ u).T + u @ v.T")
    assert not loops(before_chunks(layer(text)))


EARLIER = {
    "S[t] = S[t-5] + k @ v.T": ("E0312", "S[t-5]"),
    "S[t] = 0.5 * S[t-1] + S[t-9] + k @ v.T": ("E0312", "S[t-9]"),
    "S[t] = S[t+1] + k @ v.T": ("E0308", "t+1"),
}


@pytest.mark.parametrize("update", EARLIER)
def test_a_state_of_another_token_is_refused(update: str) -> None:
    with pytest.raises(ArchError) as refused:
        layer(matrix(update))
    (finding,) = refused.value.diagnostics
    assert finding.label is not None
    span = finding.label.span
    assert (finding.code, span.source.text[span.start : span.end]) == EARLIER[update]

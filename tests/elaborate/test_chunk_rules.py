"""The rules of `chunk:`: what they are kept as, what they say about values, what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

import archc
from archc.compile import before_chunks, text_of, with_chunked_forms
from archc.diagnostics import ArchError
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.chunk import rows_of_token, usual_tokens
from archc.ir.chunk_section import NO_RULES, ChunkRules
from archc.numerics.stated import stated
from archc.recurrence.chunk.chunked import studies
from tests.elaborate.specs import codes, layer, refusal

SPEC = """
layer Example(H, K = 4, V = 4, tau = 16):
    input q[H, K], k[H, K], v[H, V], x[H, K], a[H]
    {rules}
    alpha = exp(x)
    recurrence S[K, V] over H:
        S[t] = diag(alpha) @ S[t-1] + k @ v.T
        o    = S[t].T @ q
    output o
"""

STEPS = """
layer Steps(H, K = 4, n = 2):
    input q[H, K], k[n, H, K], v[n, H, K], beta[n, H]
    recurrence S[K, K'] over H:
        R = S[t-1]
        repeat n as j:
            R = (I - beta[j] * k[j] @ k[j].T) @ R + beta[j] * k[j] @ v[j].T
        S[t] = R
        o    = S[t].T @ q
    output o
"""


def rules(text: str) -> ChunkRules:
    return layer(SPEC.format(rules=f"chunk: {text}")).chunk


def lies(made: ir.Layer, name: str) -> Interval:
    known = stated(made)
    (found,) = (known[node.id] for node in made.graph if node.name == name)
    return found


def test_a_layer_without_rules_has_none() -> None:
    assert layer(SPEC.format(rules="")).chunk == NO_RULES


def test_rules_are_kept_typed() -> None:
    found = rules("size 32, sequential")
    assert (found.size, found.sequential, found.bounds) == (32, True, ())
    assert found.lines() == ("size 32", "sequential")


def test_a_promise_about_an_input_is_an_interval() -> None:
    made = layer(SPEC.format(rules="chunk: bound a >= -5, bound 3/2 > a"))
    assert lies(made, "a") == Interval(-5, Fraction(3, 2), False, True)


def test_a_promise_about_a_logarithm_is_one_about_the_value_as_well() -> None:
    made = layer(SPEC.format(rules="chunk: bound log(alpha) >= -5, bound log(alpha) <= 0"))
    assert lies(made, "x") == Interval(-5, 0)
    found = lies(made, "alpha")
    assert math.isclose(found.low, math.exp(-5))
    assert found.high == 1


def test_a_promise_makes_a_decay_fit_for_chunks() -> None:
    for rule, chunked in (("", False), ("chunk: bound alpha <= 1", True)):
        ((_, _, derived),) = studies(before_chunks(layer(SPEC.format(rules=rule))))
        assert (derived.graph is not None) is chunked


def test_a_requirement_makes_a_decay_fit_for_chunks() -> None:
    text = SPEC.replace("exp(x)", "sigmoid(x) ** (1 / tau)")
    for rule, chunked in (("", False), ("require tau > 0", True)):
        ((_, _, derived),) = studies(before_chunks(layer(text.format(rules=rule))))
        assert (derived.graph is not None) is chunked


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("size", "takes the number of tokens"),
        ("size 0", "takes the number of tokens"),
        ("size 2000", "takes the number of tokens"),
        ("size K", "takes the number of tokens"),
        ("size 8, size 16", "given twice"),
        ("sequential 3", "stands alone"),
        ("bound", "compares a value with a number"),
        ("bound alpha", "compares a value with a number"),
        ("bound alpha <= K", "compares a value with a number"),
        ("bound 0 <= 1", "compares a value with a number"),
        ("bound alpha == 1", "takes no `==`"),
        ("bound K <= 1", "no real value of the layer"),
    ],
)
def test_a_wrong_rule_is_refused(rule: str, reason: str) -> None:
    assert codes(SPEC.format(rules=f"chunk: {rule}")) == ["E0223"]
    assert reason in refusal(SPEC.format(rules=f"chunk: {rule}"))


@pytest.mark.parametrize("word", ["lenght 64", "state f32", "gates log", "save all"])
def test_a_rule_that_has_no_effect_is_none(word: str) -> None:
    assert codes(SPEC.format(rules=f"chunk: {word}")) == ["E0215"]


def test_a_promise_about_an_unknown_name_is_refused() -> None:
    assert codes(SPEC.format(rules="chunk: bound gamma <= 1")) == ["E0201"]


def test_a_compiled_file_is_checked_with_values_that_keep_the_promises() -> None:
    rule = "chunk: bound a >= 2, bound a < 3"
    text = SPEC.format(rules=rule).replace("exp(x)", "exp(x - 2 - a)")
    values = archc.parse(text).source()
    assert "**kind) + 1) / 2 * 1.0 + 2.0" in values


def test_a_promise_that_an_instance_breaks_is_an_error() -> None:
    text = SPEC.format(rules="chunk: bound alpha <= 1").replace("exp(x)", "exp(x * x)")
    with pytest.raises(ArchError, match="does not hold: `alpha` is") as error:
        archc.parse(text).source()
    assert [finding.code for finding in error.value.diagnostics] == ["E0223"]


CALLS = (
    SPEC
    + """
layer Outer(H, K = 4, V = 4):
    input q[H, K], k[H, K], v[H, V], x[H, K], a[H]
    output o = Example(q, k, v, x, a)
"""
)


def test_rules_of_a_called_layer_are_its_own() -> None:
    outer = layer(CALLS.format(rules="chunk: size 8, bound alpha <= 1"))
    ((_, call),) = outer.calls
    assert (outer.chunk.size, call.callee.chunk.size) == (None, 8)
    with pytest.raises(ArchError, match="does not hold: `alpha` is"):
        text = CALLS.replace("exp(x)", "exp(x * x)").format(rules="chunk: bound alpha <= 1")
        archc.parse(text).source()


def test_the_size_is_the_length_of_a_chunk() -> None:
    text = SPEC.format(rules="chunk: size 8, bound alpha <= 1")
    assert "CHUNK = 8" in archc.parse(text).source()
    assert "CHUNK = 64" in archc.parse(text.replace("size 8, ", "")).source()
    assert "CHUNK" not in archc.parse(text.replace("chunk:", "chunk: sequential,")).source()


@pytest.mark.default("2-32")
@pytest.mark.parametrize(("steps", "tokens"), [(2, 32), (3, 20), (4, 16), (6, 16)])
def test_a_chunk_has_fewer_tokens_of_several_steps(steps: int, tokens: int) -> None:
    """Each step is a row, and the solve of a triangle grows with the square of its rows."""
    chunked = with_chunked_forms(archc.parse(STEPS, n=steps).layer)
    (form,) = (node.op.chunked for node in chunked.graph if isinstance(node.op, ir.Recurrence))
    assert (rows_of_token(form.forward), usual_tokens(form)) == (steps, tokens)
    assert f"CHUNK = {tokens} " in text_of(archc.parse(STEPS, n=steps).layer)
    asked = archc.parse(STEPS.replace("    input", "    chunk: size 64\n    input"), n=steps).layer
    assert "CHUNK = 64 " in text_of(asked)

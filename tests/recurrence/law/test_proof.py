"""What is proved of composition laws: each kind of formula, and nothing that is not true."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from archc.diagnostics import ArchError
from archc.dims import Axis, size_symbol
from archc.ir import layer as ir
from archc.recurrence.law.formulas import atom, index, total
from archc.recurrence.law.numbers import with_laws
from archc.recurrence.law.proof import same, simple
from tests.elaborate.specs import layer
from tests.recurrence.law.user_laws import EVERY, LOG_SPACE, PROVED

K = Axis("K", size_symbol("K"))
J = Axis("J", size_symbol("K"))
x, y, z = (atom(name, [K]) for name in "xyz")
exp, log, Max = sympy.exp, sympy.log, sympy.Max


def verdicts(text: str) -> list[bool | None]:
    return [
        law.proved
        for node in with_laws(layer(text)).graph
        if isinstance(node.op, ir.Recurrence)
        for law in node.op.laws
    ]


@pytest.mark.default("log space", "rotation", "affine", "phase", "beside")
@pytest.mark.parametrize("name", EVERY)
def test_laws_that_are_proved(name: str) -> None:
    assert set(verdicts(EVERY[name])) == {name in PROVED}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (x * (y + z), x * y + x * z),
        (log(exp(x) * exp(y)), x + y),
        (exp(log(exp(x) + exp(y)) + z), exp(x + z) + exp(y + z)),
        (z + log(exp(x - z) + exp(y - z)), log(exp(x) + exp(y))),
        (Max(x, y) + z, Max(x + z, z + y)),
        (exp(z) * Max(x, y), Max(exp(z) * x, exp(z) * y)),
        (Max(x, Max(y, z)), Max(z, y, x)),
        ((x + y) / (1 + x * y), (x**2 - y**2) / ((x - y) * (1 + x * y))),
        (sympy.sin(x + y), sympy.sin(x) * sympy.cos(y) + sympy.cos(x) * sympy.sin(y)),
        (sympy.Piecewise((x, z > 0), (y, True)), sympy.Piecewise((y, z <= 0), (x, True))),
        (
            sympy.Piecewise((x, Max(y, z) > 0), (0, True)),
            sympy.Piecewise((x, y > 0), (x, z > 0), (0, True)),
        ),
    ],
)
def test_formulas_that_are_equal(one: sympy.Expr, other: sympy.Expr) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (x - y, y - x),
        (-Max(x, y), Max(-x, -y)),
        (z * Max(x, y), Max(z * x, z * y)),
        (log(exp(x) + exp(y)), x + y),
        (sympy.Piecewise((x, z > 0), (y, True)), sympy.Piecewise((x, z >= 0), (y, True))),
    ],
)
def test_formulas_that_are_not_equal(one: sympy.Expr, other: sympy.Expr) -> None:
    assert not same(one, other)


def summed(*factors: sympy.Expr) -> sympy.Expr:
    """The sum of a product over K."""
    fresh = sympy.Symbol("?k:K", integer=True)
    return total(sympy.Mul(*factors).xreplace({index(K): fresh}), [fresh])


def test_sums_do_not_depend_on_how_they_are_written() -> None:
    a, b = atom("a", [J, K]), atom("b", [J, K])
    assert same(summed(a, x + y), summed(x, a) + summed(y, a))
    assert same(summed(b, summed(a, x)), summed(b) * summed(a, x))
    assert same(summed(a * a), summed(a**2))
    assert not same(summed(a, x), summed(a, y))


def test_what_does_not_depend_on_the_index_comes_out_of_a_sum() -> None:
    w = atom("w", [J])
    assert same(summed(w, x), w * summed(x))
    assert same(summed(exp(w + x)), exp(w) * summed(exp(x)))
    assert simple(summed(w)) == w * sympy.Symbol("size K", positive=True, integer=True)


PIECES = ("p + p'", "q + p'", "q'", "q", "exp(q)", "log(exp(q + p') + exp(q'))", "max(q, q')", "p")


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.sampled_from(PIECES), st.sampled_from(PIECES))
def test_a_law_that_is_proved_is_never_refuted(first: str, second: str) -> None:
    """Any merge: it is proved, or random numbers tell against it."""
    text = LOG_SPACE.replace("P[D] = p + p'", f"P[D] = {first}")
    text = text.replace("Q[D] = log(exp(q + p') + exp(q'))", f"Q[D] = {second}")
    right = (first, second) == ("p + p'", "log(exp(q + p') + exp(q'))")
    try:
        assert verdicts(text) == [True]
        assert right
    except ArchError as error:
        assert [finding.code for finding in error.diagnostics] == ["E0608"]
        assert not right

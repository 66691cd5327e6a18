"""Definitions of elementwise functions against their meaning in torch: every entry of the table."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import sympy
import torch

from archc.functions.definitions import FUNCTIONS, Function, Kind
from archc.ir.meaning_ops import FUNCTIONS as MEANING

LOGIC = ("not", "and", "or", "where")
OF_NUMBERS = [fn for name, fn in FUNCTIONS.items() if name not in LOGIC]
POINTS = (-2.25, -1.0, -0.5, 0.0, 0.25, 1.0, 3.0)


def given(fn: Function) -> list[tuple[float, ...]]:
    """Operands at which the function is a number."""
    found = product([x for x in POINTS if x in fn.domain], repeat=fn.arity)
    return [xs for xs in found if not fn.unbounded or fn.arity == 1 or xs[0] >= 0 < xs[1]]


def meant(fn: Function, *xs: float) -> float:
    return float(MEANING[fn.name](*(torch.tensor(x, dtype=torch.float64) for x in xs)))


@pytest.mark.parametrize("fn", OF_NUMBERS, ids=lambda fn: fn.name)
def test_the_formula_is_the_function(fn: Function) -> None:
    for xs in given(fn):
        exact = fn.formula(*(sympy.Rational(x) for x in xs))
        found = float(bool(exact)) if fn.kind == Kind.TRUTH else float(exact)
        assert found == pytest.approx(meant(fn, *xs), rel=1e-12, abs=1e-12), xs


@pytest.mark.parametrize("fn", OF_NUMBERS, ids=lambda fn: fn.name)
def test_the_range_holds_the_values(fn: Function) -> None:
    """Of single numbers, and of everything between two."""
    for xs in given(fn):
        ends = [sorted((x, xs[0])) for x in xs]
        for intervals in ([[x, x] for x in xs], ends):
            from_to = fn.range(*(type(fn.domain)(*pair) for pair in intervals))
            assert float(from_to.low) - 1e-12 <= meant(fn, *xs) <= float(from_to.high) + 1e-12


@pytest.mark.parametrize("fn", OF_NUMBERS, ids=lambda fn: fn.name)
def test_flags_say_what_the_function_does(fn: Function) -> None:
    """At 0, far out, outside of its domain, and with its operands swapped."""
    few = torch.tensor([-200.0, -1.5, -1.0, 0.0, 1.0, 2.5, 200.0])
    operands = torch.cartesian_prod(few, few)[:, : fn.arity].unbind(1)
    values = MEANING[fn.name](*operands)
    finite = values.isfinite().all() if values.is_floating_point() else True
    assert fn.unbounded == (not finite)
    assert not fn.zero_at_zero or not MEANING[fn.name](*torch.zeros(fn.arity, 1)).any()
    undefined = [float(x) not in fn.domain for x in few]
    assert fn.arity > 1 or all(not values[i].isfinite() for i, bad in enumerate(undefined) if bad)
    if fn.arity == 2:
        assert fn.commutes == torch.equal(values, MEANING[fn.name](*reversed(operands)))


def test_what_specs_call_is_told_to_those_who_write_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "language.md").read_text(encoding="utf-8")
    called = [name for name, fn in FUNCTIONS.items() if fn.called and fn.arity == 1]
    assert f"On each element: `{' '.join(called)}`" in text

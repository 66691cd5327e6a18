"""Sizes: defaults, what is refused and how it is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sympy

from archc.diagnostics import ArchError
from archc.dims import number_symbol, size_symbol, substituted
from archc.ir import layer as ir
from archc.ir.sizes import callee_sizes, evaluate, exact_number, resolve_sizes
from tests.graphs import Sketch, axis, layer

d, H, K, f = (size_symbol(name) for name in ("d", "H", "K", "f"))
eps = number_symbol("eps")


def heads(**more: Any) -> ir.Layer:
    """layer Test(d, H, K = d / H, f = 4 * K, eps = 1e-6, full = [3, 7]):"""
    s = Sketch()
    s.outputs(y=s.input("x", "batch t d"))
    args = (
        ir.Arg("d", d),
        ir.Arg("H", H),
        ir.Arg("K", K, d / H),
        ir.Arg("f", f, 4 * K),
        ir.Arg("eps", eps, sympy.Rational(1, 1000000)),
        ir.Arg("full", None, (3, 7)),
    )
    return replace(layer(s), args=args, **more)


def refused(layer: ir.Layer, **given: Any) -> list[str]:
    """What is said about sizes that are refused, rendered."""
    with pytest.raises(ArchError) as caught:
        resolve_sizes(layer, given)
    return [finding.render() for finding in caught.value.diagnostics]


def test_defaults_follow_from_earlier_arguments() -> None:
    found = resolve_sizes(heads(), {"d": 96, "H": 8})
    assert found == {"d": 96, "H": 8, "K": 12, "f": 48, "eps": 1e-6}
    assert list(found) == ["d", "H", "K", "f", "eps"]
    assert all(type(found[name]) is int for name in ("d", "K", "f"))


def test_a_given_value_wins_and_settled_options_may_be_repeated() -> None:
    found = resolve_sizes(heads(), {"d": 96, "H": 5, "K": 7, "full": [3, 7], "eps": 0.1})
    assert (found["K"], found["f"], found["eps"]) == (7, 28, 0.1)


def test_resolved_sizes_resolve_to_themselves() -> None:
    found = resolve_sizes(heads(), {"d": 96, "H": 8})
    assert resolve_sizes(heads(), found) == found


def test_an_unknown_name_gets_a_suggestion() -> None:
    (text,) = refused(heads(), d=96, H=8, epps=1)
    assert "E0501" in text and "no size or option `epps`" in text
    assert "did you mean `eps`?" in text and "`d`, `H`, `K`" in text


def test_every_missing_size_is_named_at_once() -> None:
    (text,) = refused(heads())
    assert "E0502" in text and "`d`, `H`" in text and "d=64, H=64" in text


@pytest.mark.parametrize("value", [2.5, -1, True, "8", None, float("nan"), float("inf"), [8]])
def test_a_size_is_a_whole_number(value: object) -> None:
    (text,) = refused(heads(), d=96, H=8, f=value)
    assert "E0503" in text and "`f` of `Test`" in text and "not negative" in text


@pytest.mark.parametrize("value", [True, "8", None, float("nan"), float("inf")])
def test_an_option_is_a_number(value: object) -> None:
    (text,) = refused(heads(), d=96, H=8, eps=value)
    assert "E0503" in text and "must be a number" in text


def test_a_size_of_zero_switches_something_off() -> None:
    assert resolve_sizes(heads(), {"d": 96, "H": 8, "f": 0})["f"] == 0


def test_a_default_that_is_no_size_is_explained() -> None:
    (text, *rest) = refused(heads(), d=100, H=8)
    assert "E0503" in text and "but it is 25/2" in text
    assert "its default is d/H, with H = 8, d = 100" in text and not rest


def test_division_by_zero_is_no_crash() -> None:
    (text,) = refused(heads(), d=100, H=0)
    assert "E0503" in text and "undefined" in text


def test_a_settled_option_cannot_change() -> None:
    (text,) = refused(heads(), d=96, H=8, full=[1])
    assert "E0505" in text and "(3, 7)" in text


def requiring(condition: Any, text: str, settled: bool = False) -> ir.Layer:
    return heads(requirements=(ir.Requirement(condition, text, None, settled),))


def test_a_requirement_names_both_sides() -> None:
    model = requiring(sympy.Eq(H * K, d), "H * K == d")
    assert resolve_sizes(model, {"d": 96, "H": 8})
    (text,) = refused(model, d=96, H=8, K=10)
    assert "E0504" in text and "`Test` requires `H * K == d`" in text
    assert "H*K is 80 and d is 96" in text and "H = 8, K = 10, d = 96" in text


def test_a_decision_that_comes_out_differently() -> None:
    model = requiring(f > 0, "f > 0", settled=True)
    (text,) = refused(model, d=96, H=8, f=0)
    assert "E0504" in text and "built for other sizes" in text and "f is 0" in text


def calling(size: sympy.Expr, *requirements: ir.Requirement) -> ir.Layer:
    """A layer of size d whose part `mixer` has K = `size`."""
    s, inner = Sketch(), Sketch()
    inner.outputs(y=inner.input("x", "batch t K"))
    callee = replace(layer(inner, "K"), name="Inner", requirements=requirements)
    op = ir.Call(callee, "mixer", (("K", size),), (("K", axis("d")),))
    s.outputs(y=s.add(ir.Result("y"), s.add(op, s.input("x", "batch t d"))))
    return layer(s, "d")


def test_called_layers_are_checked_too() -> None:
    even = ir.Requirement(sympy.Eq(sympy.Mod(K, 2), 0), "K % 2 == 0", None)
    model = calling(d / 2, even)
    assert resolve_sizes(model, {"d": 8}) == {"d": 8}
    (text,) = refused(model, d=10)
    assert "E0504" in text and "`Inner at mixer` requires `K % 2 == 0`" in text
    (text,) = refused(model, d=9)
    assert "E0503" in text and "`K` of `mixer`" in text and "d/2 = 9/2" in text


def test_sizes_of_a_called_layer() -> None:
    ((_, call),) = calling(d / 2 + 1).calls
    assert callee_sizes(call, {"d": 8}) == {"K": 5}


def test_numbers_are_exact_as_written() -> None:
    assert exact_number(0.1) == sympy.Rational(1, 10)
    assert evaluate(eps * 3, {"eps": 0.1}) == 0.3
    assert evaluate(-sympy.oo * (K + 1), {"K": 2}) == float("-inf")
    with pytest.raises(KeyError, match="K"):
        evaluate(K + 1, {"d": 2})


@pytest.mark.parametrize(
    "expr", [d, H, d / H + K, sympy.Mod(d, H), d > K, sympy.Integer(3), sympy.true]
)
@pytest.mark.parametrize(
    "known",
    [{}, {d: sympy.Integer(6)}, {d: H, H: d}, {d: K * 2, K: sympy.Integer(5)}, {d: d, H: d}],
)
def test_values_are_put_in_as_sympy_does(expr: Any, known: dict[Any, Any]) -> None:
    assert substituted(expr, known) == expr.subs(known)


def test_at_most_so_many_findings() -> None:
    broken = [ir.Requirement(sympy.Gt(d, n), f"d > {n}", None) for n in (100, 200, 300)]
    with pytest.raises(ArchError) as caught:
        resolve_sizes(heads(requirements=tuple(broken)), {"d": 96, "H": 8}, most=1)
    assert len(caught.value.diagnostics) == 1

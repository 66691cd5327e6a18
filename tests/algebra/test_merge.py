"""The rules that make equal values one, and numbers into fewer numbers."""

from __future__ import annotations

import pytest
import sympy

from archc.algebra.merge import (
    drop_neutral,
    join_constants,
    share,
    share_captures,
)
from archc.dims import TIME
from archc.ir import layer as ir
from tests.graphs import Sketch, axes, axis, fire, layer, lines
from tests.ir.test_meaning import attention

SIZES = {"H": 2, "K": 3, "V": 4}


def model(s: Sketch, y: int, **outputs: int) -> ir.Layer:
    return layer(s.outputs(y=y, **outputs), "H K V")


# --- equal values ------------------------------------------------------------------------------


def test_the_same_step_twice_is_one() -> None:
    s = Sketch()
    x, w = s.input("x", "batch t K"), s.input("w", "batch t K")
    y = s.fn("sub", s.fn("mul", x, w), s.fn("exp", s.fn("mul", w, x)))
    new = fire(share, model(s, y), **SIZES)
    assert lines(new.graph) == [
        "%0 = mul(x, w) : [batch, t, K]",
        "%1 = exp(%0) : [batch, t, K]",
        "%2 = sub(%0, %1) : [batch, t, K]",
    ]


def test_equal_chains_are_shared_from_the_leaves_up() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    one, other = (s.fn("exp", s.fn("mul", x, s.number(2))) for _ in range(2))
    new = fire(share, model(s, s.fn("div", one, other)), times=3, **SIZES)
    assert len(lines(new.graph)) == 4


def test_what_differs_in_order_op_or_type_stays_two() -> None:
    s = Sketch()
    x, w = s.input("x", "batch K"), s.input("w", "batch K'")
    both = s.fn("mul", x, w), s.fn("mul", w, x)  # [K, K'] and [K', K]
    y = s.fn("sub", s.fn("sub", x, s.fn("exp", x)), s.fn("sub", s.fn("exp", x), x))
    new = fire(share, model(s, y, one=both[0], other=both[1]), **SIZES)
    assert len(new.graph) == len(s.graph) - 1


def test_two_draws_of_noise_stay_two() -> None:
    s = Sketch()
    x = s.input("x", "batch K")
    one, other = (s.add(ir.Noise(sympy.Rational(1, 2)), x) for _ in range(2))
    fire(share, model(s, s.fn("add", one, other)), times=0, **SIZES)


def test_results_and_positions_are_shared_but_not_recurrences() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")

    def total() -> int:
        body = Sketch()
        body.outputs(S=body.fn("add", body.input("S[t-1]", "batch K"), body.input("x", "batch K")))
        states = (ir.State("S", axes("batch K")),)
        return s.add(ir.Recurrence(TIME, ("x",), states, body.graph), x, s.number(0))

    one, other = total(), total()
    results = [s.add(ir.Result("S"), recurrence) for recurrence in (one, one, other)]
    y = s.fn("add", s.fn("add", results[0], results[1]), results[2])
    new = fire(share, model(s, y), times=2, **SIZES)  # a number 0 and a Result
    assert sum(isinstance(node.op, ir.Recurrence) for node in new.graph) == 2


# --- numbers -----------------------------------------------------------------------------------


def scaled(s: Sketch, fn: str, a: object, then: str, b: object) -> int:
    return s.fn(then, s.fn(fn, s.input("x", "batch K"), s.number(a)), s.number(b))


@pytest.mark.parametrize(
    ("first", "a", "then", "b", "want"),
    [
        ("mul", 2, "mul", 3, ["%0 = 6 : int[]", "%1 = mul(x, %0) : [batch, K]"]),
        ("div", 2, "div", 3, ["%0 = 6 : int[]", "%1 = div(x, %0) : [batch, K]"]),
        ("mul", 2, "div", 4, ["%0 = 0.5 : []", "%1 = mul(x, %0) : [batch, K]"]),
        ("add", 2, "sub", 3, ["%0 = -1 : int[]", "%1 = add(x, %0) : [batch, K]"]),
        ("sub", 2, "sub", 3, ["%0 = 5 : int[]", "%1 = sub(x, %0) : [batch, K]"]),
    ],
)
def test_numbers_are_joined(first: str, a: int, then: str, b: int, want: list[str]) -> None:
    s = Sketch()
    new = fire(join_constants, model(s, scaled(s, first, a, then, b)), **SIZES)
    assert lines(new.graph) == want


def test_numbers_are_not_joined_across_other_steps_or_readers() -> None:
    s = Sketch()
    half = s.fn("mul", s.input("x", "batch K"), s.number(2))
    y = s.fn("add", s.fn("mul", half, s.number(3)), s.number(1))
    fire(join_constants, model(s, y, half=half), times=0, **SIZES)
    s = Sketch()
    fire(join_constants, model(s, scaled(s, "mul", 2, "mul", 0)), times=0, **SIZES)


@pytest.mark.parametrize(
    ("fn", "number"), [("mul", 1), ("div", 1), ("add", 0), ("sub", 0), ("pow", 1)]
)
def test_what_changes_nothing_is_dropped(fn: str, number: int) -> None:
    s = Sketch()
    y = s.fn("exp", s.fn(fn, s.input("x", "batch K"), s.number(number)))
    new = fire(drop_neutral, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = exp(x) : [batch, K]"]


def test_what_changes_nothing_is_dropped_on_either_side_and_twice() -> None:
    s = Sketch()
    x = s.fn("neg", s.fn("neg", s.input("x", "batch K")))
    y = s.fn("add", s.number(0), s.fn("mul", s.number(1), x))
    new = fire(drop_neutral, model(s, s.fn("exp", y)), times=3, **SIZES)
    assert lines(new.graph) == ["%0 = exp(x) : [batch, K]"]


def test_one_minus_x_zero_minus_x_and_a_number_that_becomes_a_real_stay() -> None:
    s = Sketch()
    x, at = s.input("x", "batch K"), s.add(ir.Position(axis("K")))
    y = s.fn("sub", s.number(0), s.fn("div", s.number(1), s.fn("exp", x)))
    real = s.fn("div", at, s.number(1))
    fire(drop_neutral, model(s, y, real=real), times=0, **SIZES)


# --- captures ----------------------------------------------------------------------------------


def recurrence(captures: tuple[str, ...], ids: dict[str, int], s: Sketch) -> int:
    """S[t] = S[t-1] + a * b, with these captures."""
    body = Sketch()
    product = body.fn("mul", body.input("a", "batch K"), body.input("b", "batch K"))
    body.outputs(S=body.fn("add", body.input("S[t-1]", "batch K"), product))
    op = ir.Recurrence(TIME, captures, (ir.State("S", axes("batch K")),), body.graph)
    return s.add(ir.Result("S"), s.add(op, *(ids[name] for name in captures), s.number(0)))


def test_a_value_captured_twice_or_for_nothing() -> None:
    s = Sketch()
    x, w = s.input("x", "batch t K"), s.input("w", "batch t K")
    y = recurrence(("a", "c", "b"), {"a": x, "b": x, "c": w}, s)
    new = fire(share_captures, model(s, y), **SIZES)
    (node,) = (node for node in new.graph if isinstance(node.op, ir.Recurrence))
    assert node.op.captures == ("a",) and len(node.operands) == 2
    inputs = {n.op.name for n in node.op.body if isinstance(n.op, ir.Input)}
    assert inputs == {"S[t-1]", "a"}


def test_captures_of_different_values_or_in_different_roles_stay() -> None:
    s = Sketch()
    x, w = s.input("x", "batch t K"), s.input("w", "batch t K")
    fire(share_captures, model(s, recurrence(("a", "b"), {"a": x, "b": w}, s)), times=0, **SIZES)
    both = attention("t", causal=True)
    (node,) = (node for node in both.graph if isinstance(node.op, ir.Attend))
    x = both.input("x", "batch t H K")
    pair = both.add(node.op, x, x, node.operands[2])  # q and k are one value, read in two roles
    both.outputs(y=both.add(ir.Result("o"), pair))
    both.graph.prune()
    fire(share_captures, layer(both, "H K V"), times=0, **SIZES)

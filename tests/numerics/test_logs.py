"""Logarithms of gates: equal in float64, finite in float32 where the gate is not."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import sympy
import torch

from archc.dims import Axis, number_symbol, size_symbol, stream
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.numerics.logs import NoLog, growth, log_of
from archc.numerics.propagation import intervals
from tests.graphs import Sketch, layer, lines, run

Made = Callable[[Sketch, int], int]
RATE = sympy.Rational(-606, 1000)


def log(s: Sketch, id: int, **known: Interval) -> int:
    """The logarithm of a node, which must exist."""
    found = log_of(s.graph, id, intervals(s.graph, known))
    assert isinstance(found, int), found
    return found


def no_log(s: Sketch, id: int) -> NoLog:
    found = log_of(s.graph, id, intervals(s.graph))
    assert isinstance(found, NoLog)
    return found


def above(s: Sketch, x: int, lower: int) -> int:
    """lower + (1 - lower) sigmoid(x)"""
    rest = s.fn("mul", s.fn("sub", s.number(1), lower), s.fn("sigmoid", x))
    return s.fn("add", lower, rest)


def retention(s: Sketch, x: int) -> int:
    heads = s.add(ir.Position(Axis("K", size_symbol("K"))))
    exponent = s.fn("sub", s.number(-5), heads)
    return s.fn("sub", s.number(1), s.fn("pow", s.number(2), exponent))


def written(s: Sketch, x: int) -> int:
    """1 - sigmoid(sum of x) where(x > 0, softmax(x), 0)"""
    e = s.fn("exp", x)
    share = s.fn("div", e, s.add(ir.Reduce("sum", ("K",)), e))
    chosen = s.fn("where", s.fn("gt", x, s.number(0)), share, s.number(0))
    strength = s.fn("sigmoid", s.add(ir.Reduce("sum", ("K",)), x))
    return s.fn("sub", s.number(1), s.fn("mul", strength, chosen))


def masked(s: Sketch, x: int, kept: int) -> int:
    """m kept + (1 - m) of m = where(x > 0, 1, 0)"""
    mask = s.fn("real", s.fn("where", s.fn("gt", x, s.number(0)), s.number(1), s.number(0)))
    return s.fn("add", s.fn("mul", mask, kept), s.fn("sub", s.number(1), mask))


GATES: dict[str, tuple[Made, bool]] = {
    "exp": (lambda s, x: s.fn("exp", x), False),
    "exp2": (lambda s, x: s.fn("exp2", x), False),
    "sigmoid": (lambda s, x: s.fn("sigmoid", x), True),
    "complement": (lambda s, x: s.fn("sub", s.number(1), s.fn("sigmoid", x)), True),
    "complement_exp": (
        lambda s, x: s.fn("sub", s.number(1), s.fn("exp", s.fn("neg", s.fn("softplus", x)))),
        True,
    ),
    "written": (written, True),
    "rate": (
        lambda s, x: s.fn(
            "exp", s.fn("mul", s.fn("neg", s.fn("exp", s.param("A", "K"))), s.fn("softplus", x))
        ),
        True,
    ),
    "root": (lambda s, x: s.fn("pow", s.fn("sigmoid", x), s.number(sympy.Rational(1, 16))), True),
    "bounded": (
        lambda s, x: s.fn("exp", s.fn("mul", s.number(RATE), s.fn("sigmoid", x))),
        True,
    ),
    "above": (lambda s, x: above(s, x, s.fn("sigmoid", s.param("p", "K"))), True),
    "above_number": (lambda s, x: above(s, x, s.number(sympy.Rational(9, 10))), True),
    "scaled": (
        lambda s, x: s.fn("exp", s.fn("div", s.fn("logsigmoid", x), s.number(16))),
        True,
    ),
    "retention": (retention, True),
    "product": (lambda s, x: s.fn("mul", s.fn("sigmoid", x), s.fn("exp", x)), False),
    "quotient": (lambda s, x: s.fn("div", s.fn("sigmoid", x), s.fn("exp", x)), False),
    "sqrt": (lambda s, x: s.fn("sqrt", s.fn("sigmoid", x)), True),
    "rsqrt": (lambda s, x: s.fn("rsqrt", s.fn("exp", x)), False),
    "largest": (
        lambda s, x: s.fn("max", s.fn("sigmoid", x), s.number(sympy.Rational(1, 10))),
        True,
    ),
    "chosen": (
        lambda s, x: s.fn("where", s.fn("lt", x, s.number(0)), s.fn("sigmoid", x), s.number(1)),
        True,
    ),
    "masked": (lambda s, x: masked(s, x, s.fn("sigmoid", x)), True),
    "reset": (lambda s, x: masked(s, x, s.number(0)), True),
    "before": (lambda s, x: s.add(ir.Shift("t", 2), s.fn("sigmoid", x)), True),
    "outer": (
        lambda s, x: s.einsum(
            "batch t K, K' -> batch t K K'", s.fn("sigmoid", x), s.fn("exp", s.param("p", "K'"))
        ),
        False,
    ),
    "renamed": (lambda s, x: s.einsum("batch t K -> K t batch", s.fn("sigmoid", x)), True),
    "prod": (lambda s, x: s.add(ir.Reduce("prod", ("K",)), s.fn("sigmoid", x)), True),
    "positive": (lambda s, x: s.fn("softplus", x), False),
    "segment": (
        lambda s, x: s.add(
            ir.Segment(
                "product", "r", stream("t", size_symbol("T")), stream("s", size_symbol("T"))
            ),
            s.einsum("batch t K -> batch t:r K", s.fn("sigmoid", x)),
        ),
        True,
    ),
    "rows": (
        lambda s, x: s.add(ir.Gather("K"), s.fn("sigmoid", x), s.number(0)),
        True,
    ),
    "number": (lambda s, x: s.fn("real", s.number(2)), False),
}


@pytest.mark.parametrize("name", GATES)
def test_the_logarithm_means_the_same(name: str) -> None:
    made, never = GATES[name]
    s = Sketch()
    gate = made(s, s.input("x", "batch t K"))
    known = intervals(s.graph)
    found = log_of(s.graph, gate, known)
    assert isinstance(found, int), found
    assert s.graph[found].type.axes == s.graph[gate].type.axes
    assert growth(s.graph, found, known).never is never
    outputs = run(layer(s.outputs(gate=gate, log=found), "K"), K=3).outputs
    assert torch.allclose(outputs["log"], outputs["gate"].log(), atol=1e-12, rtol=1e-10)


def test_no_logarithm_of_an_exponential_is_computed() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    gate = s.fn("sqrt", s.fn("mul", s.fn("exp", x), s.fn("sigmoid", x)))
    s.outputs(y=log(s, gate))
    s.graph.prune()
    assert lines(s.graph) == [
        "%0 = logsigmoid(x) : [batch, t, K]",
        "%1 = add(x, %0) : [batch, t, K]",
        "%2 = 0.5 : []",
        "%3 = mul(%1, %2) : [batch, t, K]",
    ]


@pytest.mark.parametrize("name", ["sigmoid", "complement", "rate", "root", "scaled", "product"])
def test_a_gate_that_underflows_has_a_finite_logarithm(name: str) -> None:
    s = Sketch()
    gate = GATES[name][0](s, s.input("x", "batch t K"))
    model = layer(s.outputs(log=log(s, gate)), "K")
    x = torch.tensor([-2000.0, 2000.0, -900.0]).reshape(1, 1, 3)
    params = {"A": torch.zeros(3)}
    value = evaluate(model, {"x": x}, params, {"K": 3}, dtype=torch.float32).outputs["log"]
    assert bool(value.isfinite().all())


def test_a_gate_that_rounding_makes_0_has_a_finite_logarithm_and_slopes() -> None:
    s = Sketch()
    gate = written(s, s.input("x", "batch t K"))
    model = layer(s.outputs(log=log(s, gate), gate=gate), "K")
    x = torch.tensor([60.0, 0.0, -30.0]).reshape(1, 1, 3).requires_grad_()
    outputs = evaluate(model, {"x": x}, {}, {"K": 3}, dtype=torch.float32).outputs
    assert outputs["gate"].flatten().tolist() == [0, 1, 1]
    (slopes,) = torch.autograd.grad(outputs["log"].sum(), x)
    assert bool(slopes.isfinite().all() and outputs["log"].isfinite().all())


def test_a_small_retention_keeps_its_digits() -> None:
    s = Sketch()
    gate = retention(s, s.input("x", "batch t"))
    model = layer(s.outputs(log=log(s, gate)), "K")
    single = evaluate(model, {"x": torch.zeros(1, 1)}, {}, {"K": 16}, dtype=torch.float32)
    wanted = torch.log1p(-(2.0 ** (-5 - torch.arange(16.0, dtype=torch.float64))))
    assert torch.allclose(single.outputs["log"].double(), wanted, rtol=1e-6, atol=0)


def test_a_reset_chooses_minus_infinity() -> None:
    s = Sketch()
    gate = s.fn("sigmoid", s.input("x", "batch t"))
    reset = s.fn("where", s.input("new", "batch t", "bool"), s.number(0), gate)
    found = log(s, reset)
    assert growth(s.graph, found, intervals(s.graph)).log == Interval(-math.inf, 0, False, True)


# --- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", ["relu", "tanh", "abs", "sqrt"])
def test_what_may_be_zero_has_no_logarithm(fn: str) -> None:
    s = Sketch()
    gate = s.fn(fn, s.input("x", "batch t"))
    s.graph.rename(gate, "alpha")
    found = no_log(s, s.fn("mul", s.fn("sigmoid", gate), gate))
    assert found.node == (0 if fn == "sqrt" else gate)
    assert "exp(...) or sigmoid(...)" in found.reason


def test_the_reason_names_what_stopped_it() -> None:
    s = Sketch()
    x = s.input("z", "batch t")
    gate = s.fn("mul", s.fn("sigmoid", x), x)
    assert no_log(s, gate) == NoLog(
        x,
        "`z`, as it enters, may be 0 or negative, where it has no logarithm: "
        "write the gate as exp(...) or sigmoid(...), which are above 0",
    )
    negative = s.fn("neg", s.fn("exp", x))
    assert no_log(s, negative).reason.startswith("`neg` is never above 0")
    relu = s.fn("relu", x)
    s.graph.rename(relu, "a")
    assert no_log(s, relu).reason.startswith("`a`, made by `relu`, may be exactly 0")
    shifted = s.add(ir.Shift("t", 1), relu)
    assert no_log(s, shifted).reason.startswith("`a`, made by `relu`, may be exactly 0")
    assert no_log(s, s.fn("sub", s.number(1), x)).node == s.graph.fresh - 1
    assert "name it above the recurrence" in no_log(s, s.fn("add", relu, relu)).reason


def test_a_parameter_that_is_known_to_be_positive_has_a_logarithm() -> None:
    s = Sketch()
    gate = s.param("a", "K")
    assert isinstance(no_log(s, gate), NoLog)
    assert s.graph[log(s, gate, a=Interval(0.5, 1))].op == ir.Elementwise("log")


# --- growth ------------------------------------------------------------------------------------


def test_growth_has_a_bound_where_the_gate_has() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    known = intervals(s.graph)
    bounded = growth(s.graph, log(s, GATES["bounded"][0](s, x)), known)
    assert bounded.never
    assert bounded.low == pytest.approx(-0.606)
    assert growth(s.graph, log(s, s.fn("sigmoid", x)), known).low is None
    option = s.fn("pow", s.fn("sigmoid", x), s.number(1 / number_symbol("tau")))
    assert not growth(s.graph, log(s, option), known).never
    positive = {"tau": Interval(0, math.inf, True, True)}
    facts = intervals(s.graph, positive)
    assert growth(s.graph, log(s, option), facts).never
    fixed = above(s, x, s.number(sympy.Rational(9, 10)))
    low = growth(s.graph, log(s, fixed), intervals(s.graph)).low
    assert low == pytest.approx(math.log(0.9))
    still = growth(s.graph, log(s, retention(s, x)), intervals(s.graph)).low
    assert still == pytest.approx(math.log(31 / 32))

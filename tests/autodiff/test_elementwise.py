"""Rules of elementwise functions against torch: slopes, ties, corners, and what is not chosen."""

from __future__ import annotations

import math

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archc.autodiff.elementwise import CHOOSING, slopes
from archc.functions.definitions import FUNCTIONS, SIGMOID, A, B, Slopes, Y
from archc.functions.interval import ANY
from archc.ir import layer as ir
from tests.autodiff.agreement import agree
from tests.graphs import Sketch

SMOOTH = [fn for fn in FUNCTIONS.values() if fn.slopes not in (Slopes.FLAT, Slopes.RULE)]
"""Functions that have a slope everywhere."""


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(fn: str, **operands: str) -> Sketch:
    """`y = fn(operands)`, each operand an input with the axes given."""
    s = Sketch()
    return s.outputs(y=s.fn(fn, *(s.input(name, axes) for name, axes in operands.items())))


def test_every_function_has_a_rule() -> None:
    assert {*CHOOSING} == {name for name, fn in FUNCTIONS.items() if fn.slopes is Slopes.RULE}
    assert all(len(slopes(fn)) == fn.arity for fn in SMOOTH)


@pytest.mark.parametrize("name", [fn.name for fn in SMOOTH if isinstance(fn.slopes, tuple)])
def test_a_slope_said_by_the_result_is_the_derivative(name: str) -> None:
    fn = FUNCTIONS[name]
    definition = fn.formula(*(A, B)[: fn.arity])
    for slope, symbol in zip(slopes(fn), (A, B), strict=False):
        said = slope.subs(Y, definition).replace(SIGMOID, lambda x: 1 / (1 + sympy.exp(-x)))
        for point in ({A: 0.7, B: 1.3}, {A: 2.1, B: -0.4}):
            difference = (said - sympy.diff(definition, symbol)).subs(point)
            assert abs(float(difference)) < 1e-12


@pytest.mark.parametrize("fn", [fn.name for fn in SMOOTH if fn.arity == 1])
def test_a_function_of_one_value(fn: str) -> None:
    x = torch.linspace(
        0.3 if FUNCTIONS[fn].domain.nonnegative else -3.0, 3.0, 10, dtype=torch.float64
    )
    agree(of(fn, x="batch t").graph, {"x": x.reshape(2, 5)})


@pytest.mark.parametrize("fn", ["add", "sub", "mul", "div", "max", "min", "pow", "mod"])
@pytest.mark.parametrize("other", ["batch t K", "K", "t", "", "K V"])
def test_a_function_of_two_values_sums_over_what_was_broadcast(fn: str, other: str) -> None:
    s = of(fn, a="batch t K", b=other)
    agree(s.graph, {"a": torch.rand(2, 5, 4, dtype=torch.float64) + 0.2})


@pytest.mark.parametrize("fn", ["max", "min"])
def test_equal_operands_get_half_each(fn: str) -> None:
    a, b = tensor(0.0, 1.0, -math.inf, 2.0), tensor(0.0, 1.0, -math.inf, 3.0)
    agree(of(fn, a="K", b="K").graph, {"a": a, "b": b})


@pytest.mark.parametrize("fn", ["abs", "relu"])
def test_corners(fn: str) -> None:
    agree(of(fn, x="K").graph, {"x": tensor(-2.0, 0.0, -0.0, 3.0)})


@pytest.mark.parametrize("fn", ["sign", "floor"])
def test_nothing_passes_a_step(fn: str) -> None:
    made = agree(of(fn, x="K").graph)
    assert [n.op.name for n in made.backward if isinstance(n.op, ir.Input)] == ["d.y"]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, sympy.Rational(1, 2), -1, -2])
def test_powers_with_a_number(exponent: sympy.Expr | int) -> None:
    s = Sketch()
    s.outputs(y=s.fn("pow", s.input("x", "K"), s.number(exponent)))
    agree(s.graph, {"x": tensor(0.5, 1.0, 2.0, 3.0)})


def test_powers_of_zero() -> None:
    a, b = tensor(0.0, 0.0, 2.0, 0.0), tensor(0.0, 2.0, 0.0, 1.0)
    agree(of("pow", a="K", b="K").graph, {"a": a, "b": b})


@pytest.mark.parametrize("fn", ["sigmoid", "logsigmoid", "softplus", "tanh", "exp"])
def test_far_out(fn: str) -> None:
    agree(of(fn, x="K").graph, {"x": tensor(-1000.0, -30.0, 30.0, 700.0 if fn == "exp" else 1e3)})


def test_what_is_not_chosen_does_not_reach_a_gradient() -> None:
    """where(x > 0, log(x) * sqrt(x) / x + x ** p, 0), at x = 0 and below, and an exp that
    overflows."""
    s = Sketch()
    x, p, zero = s.input("x", "K"), s.input("p", "K"), s.number(0)
    steep = s.fn("div", s.fn("mul", s.fn("log", x), s.fn("sqrt", x)), x)
    steep = s.fn("add", s.fn("add", steep, s.fn("pow", x, p)), s.fn("rsqrt", x))
    large = s.fn("mul", s.fn("exp", s.fn("mul", s.number(-1000), x)), x)
    chosen = s.fn("gt", x, zero)
    s.outputs(y=s.fn("where", chosen, s.fn("add", steep, large), zero))
    agree(s.graph, {"x": tensor(-2.0, 0.0, 1.0, 2.0)})


def test_a_choice_between_values() -> None:
    s = Sketch()
    a, b, c = s.input("a", "batch t"), s.input("b", "t"), s.input("c", "batch t")
    s.outputs(y=s.fn("where", s.fn("gt", c, s.number(0)), a, b))
    agree(s.graph)


def test_integers_and_conditions_take_no_gradient() -> None:
    s = Sketch()
    x, i = s.input("x", "t"), s.input("i", "t", "int")
    s.outputs(y=s.fn("mul", s.fn("real", i), s.fn("where", s.fn("eq", i, s.number(2)), x, i)))
    agree(s.graph, {"i": torch.arange(5)})


EVERYWHERE = [fn.name for fn in SMOOTH if fn.arity == 1 and fn.domain == ANY]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((*EVERYWHERE, "add", "sub", "mul", "max", "matmul", "mean")),
            st.integers(0, 30),
            st.integers(0, 30),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_random_graphs(steps: list[tuple[str, int, int]]) -> None:
    """Chains of functions, products of matrices and means, of values with any of two axes."""
    s = Sketch()
    made = [s.input("x", "t K"), s.input("w", "K"), s.input("m", "K' K")]
    for fn, i, j in steps:
        a, b = made[i % len(made)], made[j % len(made)]
        names = s.graph[a].type.names
        if fn in EVERYWHERE:
            made.append(s.fn(fn, s.fn("tanh", a)))
        elif fn == "matmul" and "K" in names and "K'" not in names:
            out = " ".join("J:K" if name == "K" else name for name in names)
            made.append(s.einsum(f"{' '.join(names)}, J K -> {out}", a, made[2]))
        elif fn == "mean" and "K" in names:
            made.append(s.add(ir.Reduce("mean", ("K",)), a))
        elif fn in ("add", "sub", "mul", "max"):
            made.append(s.fn(fn, s.fn("tanh", a), b))
    s.outputs(y=made[-1], z=made[-2])
    agree(s.graph)


def test_slopes_are_shared() -> None:
    """One node for a slope that two cotangents need."""
    s = Sketch()
    x = s.input("x", "K")
    s.outputs(y=s.fn("sin", x), z=s.fn("sin", x))
    made = agree(s.graph)
    assert sum(n.op == ir.Elementwise("cos") for n in made.backward) == 1
    assert slopes(FUNCTIONS["sin"]) == (sympy.cos(A),)

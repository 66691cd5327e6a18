"""Where values lie: gates found in the wild, structure, and a law on random graphs."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import sympy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from archc.dims import BATCH, TIME, Axis, number_symbol, size_symbol
from archc.functions.definitions import FUNCTIONS
from archc.functions.interval import ANY, FINITE, POSITIVE, Interval
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.ir.typing import layer_graph
from archc.numerics.constants import required
from archc.numerics.propagation import RULES, intervals
from tests.graphs import Sketch, layer

OPEN_UNIT = Interval(0, 1, True, True)
HALF = sympy.Rational(1, 2)


def found(s: Sketch, id: int, **known: Interval) -> Interval:
    return intervals(s.graph, known)[id]


def test_every_op_and_function_has_a_rule() -> None:
    assert set(RULES) == set(ir.OPS) == set(get_args(ir.Op))


# --- gates found in the wild -------------------------------------------------------------------


def test_exp_of_a_negative_rate_times_softplus() -> None:
    s = Sketch()
    rate = s.fn("neg", s.fn("exp", s.param("A", "H")))
    log = s.fn("mul", rate, s.fn("softplus", s.input("x", "batch t H")))
    assert found(s, log) == Interval(-math.inf, 0, True, True)
    assert found(s, s.fn("exp", log)) == OPEN_UNIT


def test_root_of_a_sigmoid() -> None:
    s = Sketch()
    gate = s.fn("sigmoid", s.input("x", "batch t K"))
    assert found(s, s.fn("pow", gate, s.number(sympy.Rational(1, 16)))) == OPEN_UNIT
    option = s.fn("pow", gate, s.number(1 / number_symbol("tau")))
    assert found(s, option).positive
    assert not found(s, option).within(Interval(0, 1)), "tau may be negative"
    assert found(s, option, tau=POSITIVE) == OPEN_UNIT


def test_exp_of_a_bounded_gate() -> None:
    s = Sketch()
    scale = s.number(sympy.Rational(-606, 1000))
    gate = s.fn("exp", s.fn("mul", scale, s.fn("sigmoid", s.input("w", "batch t K"))))
    assert found(s, gate) == Interval(math.exp(-0.606), 1, True, True)


@pytest.mark.parametrize("bound", ["learned", "fixed"])
def test_a_gate_above_a_lower_bound(bound: str) -> None:
    s = Sketch()
    lower = s.fn("sigmoid", s.param("p", "K"))
    if bound == "fixed":
        lower = s.number(sympy.Rational(9, 10))
    gate = s.fn("sigmoid", s.input("x", "batch t K"))
    rest = s.fn("mul", s.fn("sub", s.number(1), lower), gate)
    high = found(s, s.fn("add", lower, rest))
    assert high.positive
    assert high.high == 1
    assert high.low == (sympy.Rational(9, 10) if bound == "fixed" else 0)


@pytest.mark.parametrize("spelled", ["half", "sum", "share"])
def test_a_gate_that_goes_on_where_it_is_not_asked(spelled: str) -> None:
    """w + (1 - w) y, 1 - v + v y and 1 + v (y - 1), for w or v half of a sigmoid."""
    s = Sketch()
    half = s.fn("mul", s.number(sympy.Rational(1, 2)), s.fn("sigmoid", s.input("x", "batch t K")))
    y, rest = s.fn("sigmoid", s.input("y", "batch t K")), s.fn("sub", s.number(1), half)
    gate = {
        "half": s.fn("add", half, s.fn("mul", rest, y)),
        "sum": s.fn("add", rest, s.fn("mul", half, y)),
        "share": s.fn("add", s.number(1), s.fn("mul", half, s.fn("sub", y, s.number(1)))),
    }[spelled]
    gate = found(s, gate)
    assert gate.nonnegative
    assert gate.high == 1


def test_a_gate_between_a_square_and_its_mirror() -> None:
    """(1 - c) * a * a + c * (1 - (1 - a) * (1 - a)), multiplied from the left as it is written."""
    s = Sketch()
    a, c = (s.fn("sigmoid", s.input(name, "batch t K")) for name in "xy")
    kept, left = (s.fn("sub", s.number(1), gate) for gate in (a, c))
    mirror = s.fn("mul", c, s.fn("sub", s.number(1), s.fn("mul", kept, kept)))
    gate = found(s, s.fn("add", s.fn("mul", s.fn("mul", left, a), a), mirror))
    assert (gate.low, gate.high) == (0, 1)


def test_exp_of_a_scaled_logsigmoid() -> None:
    s = Sketch()
    log = s.fn("div", s.fn("logsigmoid", s.input("x", "batch t K")), s.number(16))
    assert found(s, s.fn("exp", log)) == OPEN_UNIT


def test_retention_constants() -> None:
    s = Sketch()
    heads = s.add(ir.Position(Axis("H", size_symbol("H"))))
    exponent = s.fn("sub", s.number(-5), heads)
    decay = s.fn("sub", s.number(1), s.fn("pow", s.number(2), exponent))
    assert found(s, decay) == Interval(31 / 32, 1, False, True)


def test_an_underflow_does_not_close_an_interval() -> None:
    s = Sketch()
    tiny = s.fn("exp", s.fn("sub", s.number(-1000), s.fn("exp", s.input("x", "batch t"))))
    assert found(s, tiny).positive


# --- structure ---------------------------------------------------------------------------------


def test_what_a_running_maximum_takes_off_leaves_nothing_positive() -> None:
    s = Sketch()
    f, i, old = s.input("f", "batch H"), s.input("i", "batch H"), s.input("m[t-1]", "batch H")
    new = s.fn("max", s.fn("add", f, old), i)
    assert found(s, s.fn("sub", i, new)).high == 0
    assert found(s, s.fn("sub", s.fn("add", old, f), new)).high == 0
    assert found(s, s.fn("add", f, s.fn("sub", old, new))).high == 0
    assert found(s, s.fn("sub", new, i)).low == 0
    assert found(s, s.fn("sub", s.fn("sub", i, new), s.fn("exp", f))).high == 0
    assert found(s, s.fn("sub", new, s.input("x"))).high == math.inf


def test_what_a_minimum_adds() -> None:
    s = Sketch()
    a, b = s.input("a"), s.input("b")
    least = s.fn("min", s.fn("min", a, s.input("c")), b)
    assert found(s, s.fn("sub", least, a)).high == 0
    assert found(s, s.fn("sub", a, least)).low == 0


def test_a_square_is_not_negative() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    again = s.fn("add", s.fn("neg", s.fn("neg", x)), s.number(0))
    assert found(s, s.fn("mul", x, again)).nonnegative
    assert found(s, s.einsum("batch t K, batch t K -> batch t", x, x)).nonnegative
    assert not found(s, s.einsum("batch t K, batch t J -> batch t", x, x)).nonnegative
    mean = s.add(ir.Reduce("mean", ("K",)), s.fn("mul", x, x))
    assert found(s, s.fn("add", mean, s.number(HALF))).low == HALF


def test_a_share_of_a_sum_is_at_most_1() -> None:
    s = Sketch()
    x, b = s.input("x", "batch t K"), s.fn("sigmoid", s.input("b", "batch t"))
    e, total = s.fn("exp", x), ir.Reduce("sum", ("K",))
    assert found(s, s.fn("div", e, s.add(total, e))) == Interval(0, 1)
    squares = s.fn("mul", x, x)
    below = s.fn("add", s.number(1), s.fn("mul", b, s.add(total, squares)))
    step = s.fn("mul", s.fn("div", b, below), squares)
    assert found(s, step) == Interval(0, 1, False, True)
    norm = s.fn(
        "rsqrt", s.fn("add", s.einsum("batch t K, batch t K -> batch t", x, x), s.number(HALF))
    )
    assert found(s, s.fn("mul", x, norm)) == Interval(-1, 1, True, True)


def test_what_is_no_share() -> None:
    """Sums of either sign, another index of a matrix, squares of a sum, what may be below 0, and
    sums over tokens, of which some may be left out."""
    s = Sketch()
    x, total = s.input("x", "batch K K'"), ir.Reduce("sum", ("K",))
    e = s.fn("exp", x)
    turned = s.einsum("batch K K' -> batch K' K", e)
    for part, whole in (
        (x, s.add(total, x)),
        (e, s.einsum("batch K K' -> batch K", turned)),
        (e, s.fn("sub", s.add(total, e), s.fn("exp", s.input("y", "batch K'")))),
        (s.fn("mul", x, x), s.fn("add", s.fn("pow", s.add(total, x), s.number(2)), s.number(1))),
        (s.fn("mul", x, x), s.fn("mul", s.add(total, x), s.add(total, x))),
        (e, s.fn("mul", s.add(total, e), s.number(HALF))),
        (
            over_tokens := s.fn("exp", s.input("z", "batch t")),
            s.add(ir.Reduce("sum", ("t",)), over_tokens),
        ),
    ):
        assert found(s, s.fn("div", part, whole)).high == math.inf, s.graph[whole]


def test_noise_is_not_the_same_twice() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    a, b = s.add(ir.Noise(HALF), x), s.add(ir.Noise(HALF), x)
    assert found(s, a) == Interval(0, 2)
    assert found(s, s.fn("sub", a, b)) == Interval(-2, 2)


# --- other ops ---------------------------------------------------------------------------------


def test_sums_keep_only_what_any_number_of_terms_keeps() -> None:
    s = Sketch()
    gate = s.fn("sigmoid", s.input("x", "batch t K"))
    total = s.add(ir.Reduce("sum", ("K",)), gate)
    assert found(s, total) == Interval(0, math.inf, False, True)
    assert found(s, total, K=Interval(1, math.inf, False, True)) == POSITIVE
    assert found(s, s.einsum("batch t K -> batch K t", gate)) == OPEN_UNIT
    assert found(s, s.add(ir.Reduce("prod", ("K",)), gate)) == Interval(0, 1, True, False)
    assert found(s, s.add(ir.Reduce("max", ("K",)), gate)).low == -math.inf
    assert found(s, s.add(ir.Reduce("mean", ("K",)), gate)) == OPEN_UNIT


def test_zeros_before_the_first_token_count() -> None:
    s = Sketch()
    gate = s.fn("sigmoid", s.input("x", "batch t K"))
    assert found(s, s.add(ir.Shift("t", 1), gate)) == Interval(0, 1, False, True)
    assert not found(s, s.add(ir.Window("t", Axis("w", sympy.Integer(4))), gate)).positive


def test_constants_in_sizes_and_options() -> None:
    s = Sketch()
    size, option = size_symbol("K"), number_symbol("tau")
    assert found(s, s.number(1 / sympy.sqrt(size))) == POSITIVE
    assert found(s, s.number(size)).nonnegative
    assert found(s, s.number(sympy.log(size + 1))).nonnegative
    assert found(s, s.number(option)) == FINITE
    assert found(s, s.number(-sympy.oo)) == Interval(-math.inf, -math.inf)


def test_requirements_of_a_layer_say_where_options_lie() -> None:
    tau, size = number_symbol("tau"), size_symbol("K")
    conditions = (tau > 0, sympy.Gt(16, tau, evaluate=False), size >= 4, sympy.Ne(tau, 3))
    needs = tuple(ir.Requirement(condition, "", None) for condition in conditions)
    known = required(layer(Sketch().outputs(), "", requirements=needs))
    assert known == {
        "tau": Interval(0, 16, True, True),
        "K": Interval(4, math.inf, False, True),
    }


def test_results_of_a_body_that_do_not_read_states() -> None:
    body = Sketch()
    old, x = body.input("S[t-1]", "batch K"), body.input("x", "batch K")
    body.outputs(S=body.fn("add", old, x), g=body.fn("mul", x, x), m=body.fn("exp", old))
    s = Sketch()
    gate = s.fn("sigmoid", s.input("x", "batch t K"))
    state = ir.State("S", (BATCH, Axis("K", size_symbol("K"))))
    recurrence = s.add(ir.Recurrence(TIME, ("x",), (state,), body.graph), gate, s.number(0))
    assert found(s, s.add(ir.Result("g"), recurrence)) == OPEN_UNIT
    assert found(s, s.add(ir.Result("S"), recurrence)) == ANY
    assert found(s, s.add(ir.Result("m"), recurrence)) == Interval(0, math.inf)


def test_a_call_is_looked_into() -> None:
    inner = Sketch()
    x = inner.input("x", "batch t K")
    inner.outputs(y=inner.fn("mul", inner.fn("sigmoid", x), inner.number(size_symbol("K"))))
    s = Sketch()
    outer = s.input("z", "batch t K")
    size = (("K", sympy.Integer(4)),)
    call = s.add(ir.Call(layer(inner, "K"), "f", size, ()), outer)
    assert found(s, s.add(ir.Result("y"), call)) == Interval(0, 4, True, True)


def test_unknown_ops_may_be_anything() -> None:
    graph = layer_graph()
    graph.infer = lambda op, operands: operands[0].type if operands else op.type
    x = graph.add(ir.Input("x", ir.Type(())))
    y = graph.add(object(), x)
    assert intervals(graph)[y] == ANY


def test_what_is_known_from_outside_is_believed() -> None:
    s = Sketch()
    x = s.input("x", "batch t")
    y = s.fn("sub", s.number(1), x)
    assert intervals(s.graph, {x: OPEN_UNIT})[y] == OPEN_UNIT
    assert intervals(s.graph, {"x": OPEN_UNIT})[y] == OPEN_UNIT


# --- a law -------------------------------------------------------------------------------------

JUMPS = ["sign", "floor", "mod", "floordiv"]
"""Where these jump, the last digit of an operand decides."""

SMOOTH = [fn for fn in FUNCTIONS if fn not in ("not", "and", "or", "where", *JUMPS)]
NUMBERS = [sympy.Rational(*pair) for pair in ((0, 1), (1, 1), (-1, 1), (1, 16), (-3, 5), (2, 1))]


@st.composite
def sketches(draw: st.DrawFn) -> Sketch:
    """A random graph of elementwise functions of two inputs, every node an output."""
    s = Sketch()
    s.input("x", "batch t")
    s.input("z", "batch t")
    for number in draw(st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3)):
        s.number(number)
    s.add(ir.Position(TIME))
    for fn in draw(st.lists(st.sampled_from(SMOOTH), min_size=1, max_size=12)):
        ids = st.integers(0, len(s.graph) - 1)
        operands = [draw(ids) for _ in range(FUNCTIONS[fn].arity)]
        if fn in ("eq", "ne", "lt", "le", "gt", "ge"):
            s.fn("where", s.fn(fn, *operands), *operands)
        else:
            s.fn(fn, *operands)
    return s.outputs(**{f"v{id}": id for id in range(len(s.graph))})


@given(sketches(), st.integers(0, 2**16), st.sampled_from([0.1, 1.0, 30.0]))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_every_value_lies_in_its_interval(s: Sketch, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs = {n: scale * torch.randn(2, 6, generator=generator).double() for n in ("x", "z")}
    check(s, inputs)


@pytest.mark.parametrize("fn", JUMPS)
@pytest.mark.parametrize("number", [-3, 1, 2])
def test_functions_that_jump(fn: str, number: int) -> None:
    s = Sketch()
    x = s.fn("mul", s.fn("sigmoid", s.input("x", "batch t")), s.number(7))
    below = s.fn("neg", x)
    for operand in (x, below, s.fn("sub", x, s.number(3))):
        s.fn(fn, operand, *[s.number(number)] * (FUNCTIONS[fn].arity - 1))
    s.outputs(**{f"v{id}": id for id in range(len(s.graph))})
    check(s, {"x": torch.linspace(-4, 4, 40).double()[None]})


def check(s: Sketch, inputs: dict[str, torch.Tensor]) -> None:
    """Every value lies in its interval, up to the rounding of the largest value."""
    outputs = evaluate(layer(s), inputs, {}, {}).outputs
    values = {id: outputs[f"v{id}"].double() for id in intervals(s.graph)}
    largest = max(float(v.abs().nan_to_num(0, posinf=0).max()) for v in values.values())
    slack = 1e-9 * (1 + largest)
    for id, interval in intervals(s.graph).items():
        value = values[id][~values[id].isnan()]
        assert bool((value >= float(interval.low) - slack).all()), (id, interval, value)
        assert bool((value <= float(interval.high) + slack).all()), (id, interval, value)

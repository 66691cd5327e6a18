"""Initial values of parameters: numbers, and distributions that a parameter may start from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import sympy

from archc.dims import Axis
from archc.elaborate.scope import Scope
from archc.ir.layer import Init
from archc.syntax import tree

DISTRIBUTIONS = {"normal": 2, "uniform": 2, "loguniform": 2}
FUNCTIONS = ("exp", "log", "neg", "inverse_softplus", "logit")


Sizes = Mapping[sympy.Expr, sympy.Expr]
"""Sizes, and the same as symbols that are not 0."""


def initial(scope: Scope, node: tree.Expr | None, dims: Iterable[Axis] = ()) -> Init:
    """`= 1`, `= log(uniform(1, 16))`, `= normal(0, 1 / sqrt(d))`; nothing means the default. What
    can be no finite number is refused, or where sizes decide it, becomes a requirement. `dims` are
    the parameter's, of which none is of size 0."""
    if node is None:
        return Init("default", ())
    return _checked(scope, node, {axis.size: _some(axis.size) for axis in dims})


def _some(size: sympy.Expr) -> sympy.Expr:
    """A size that is not 0."""
    return sympy.Symbol(str(size), integer=True, positive=True) if size.is_Symbol else size


def _checked(scope: Scope, node: tree.Expr, some: Sizes) -> Init:
    """An initial value that is always finite, if `some` sizes are those that are not 0."""
    found = _read(scope, node, some)
    for condition, rule in _rules(found, some):
        held = condition.xreplace(some)
        if held == sympy.false:
            text = " ".join(node.span.text.split())
            raise scope.error("E0218", f"`{text}` is no initial value: {rule}", node.span)
        if held != sympy.true:
            scope.require(condition, f"{node.span.text}: {rule}", node.span)
    return found


def _read(scope: Scope, node: tree.Expr, some: Sizes) -> Init:
    """An initial value as it is written."""
    if isinstance(node, tree.Unary) and node.op == "-":
        return Init("neg", (_checked(scope, node.arg, some),))
    if isinstance(node, tree.Call) and isinstance(node.func, tree.Name):
        name = node.func.id
        if name in DISTRIBUTIONS:
            return Init(name, _numbers(scope, node, DISTRIBUTIONS[name]))
        random = any(_is_random(argument.value) for argument in node.args)
        if (
            name in FUNCTIONS
            and len(node.args) == 1
            and (random or name in ("inverse_softplus", "logit"))
        ):
            return Init(name, (_checked(scope, node.args[0].value, some),))
    value = scope.evaluate(node)
    if isinstance(value, sympy.Expr):
        return Init("value", (value,))
    raise scope.error(
        "E0218",
        "a parameter starts from numbers",
        node.span,
        helps=[f"known: a number, {', '.join(DISTRIBUTIONS)}, and {', '.join(FUNCTIONS)} of these"],
    )


Rule = tuple[sympy.Basic, str]
"""A condition and what it says."""

LARGEST, SMALLEST = sympy.Float(1.7e308), sympy.Float(1e-300)
MOST_EXPONENT = 700
"""Numbers beyond these, and exponentials of more, are none in float64."""


def _rules(init: Init, some: Sizes) -> Iterator[Rule]:
    """The conditions under which every number drawn is finite."""
    for value in (arg for arg in init.args if isinstance(arg, sympy.Expr)):
        yield from _finite(value, some)
    low, high = _ends(init.args[0]) if init.fn in FUNCTIONS else (sympy.nan, sympy.nan)
    drawn = init.fn in FUNCTIONS and init.args[0].fn != "value"
    above = sympy.Ge if drawn else sympy.Gt  # an end of what is drawn is as good as never met
    match init.fn:
        case "normal":
            yield sympy.Ge(init.args[1], 0), "a deviation must not be negative"
        case "uniform":
            yield sympy.Le(*init.args), "the first number must be at most the second"
        case "loguniform":
            yield sympy.Gt(init.args[0], 0), "the first number must be above 0"
            yield sympy.Le(*init.args), "the first number must be at most the second"
        case "log" | "inverse_softplus":
            yield above(low, 0), f"{init.fn} is for numbers above 0"
        case "logit":
            yield sympy.And(above(low, 0), above(1, high)), "logit is for numbers between 0 and 1"
        case "exp" if high != sympy.oo:
            yield sympy.Le(high, MOST_EXPONENT), "its exponential is no number of float64"


def _finite(value: sympy.Expr, some: Sizes) -> Iterator[Rule]:
    """A number that float64 has."""
    if value.is_finite is False:
        yield sympy.false, "it is not finite"
    elif not value.is_number:
        sure = value.xreplace(some)
        if not sure.is_real or sure.has(sympy.exp):
            yield sympy.Le(sympy.Abs(value), LARGEST), "it must be a finite number"
    elif value != 0:
        size = sympy.Abs(value)
        yield sympy.Le(size, LARGEST), "it is too large for float64"
        yield sympy.Ge(size, SMALLEST), "it is too small for float64"


def _ends(init: Init) -> tuple[sympy.Expr, sympy.Expr]:
    """Between which numbers an initial value lies."""
    match init.fn:
        case "value":
            return init.args[0], init.args[0]
        case "uniform" | "loguniform":
            return init.args
        case "normal" | "default":
            return -sympy.oo, sympy.oo
    low, high = _ends(init.args[0])
    match init.fn:
        case "neg":
            return -high, -low
        case "exp":
            return sympy.exp(low), sympy.exp(high)
        case "log":
            return sympy.log(low), sympy.log(high)
        case "logit":
            return sympy.log(low / (1 - low)), sympy.log(high / (1 - high))
    return sympy.log(sympy.exp(low) - 1), sympy.log(sympy.exp(high) - 1)


def _is_random(node: tree.Expr) -> bool:
    """Whether an initial value draws random numbers."""
    if not isinstance(node, tree.Call) or not isinstance(node.func, tree.Name):
        return False
    return node.func.id in DISTRIBUTIONS or any(
        _is_random(argument.value) for argument in node.args
    )


def _numbers(scope: Scope, node: tree.Call, count: int) -> tuple[sympy.Expr, ...]:
    """The arguments of a distribution."""
    values = [scope.evaluate(argument.value) for argument in node.args]
    if len(values) != count or not all(isinstance(value, sympy.Expr) for value in values):
        raise scope.error(
            "E0218",
            f"`{node.func.span.text}` takes {count} numbers",
            node.span,
            helps=["write `normal(mean, std)`, `uniform(low, high)` or `loguniform(low, high)`"],
        )
    return tuple(value for value in values if isinstance(value, sympy.Expr))

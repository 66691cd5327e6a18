"""Initial values of parameters: numbers, and distributions that a parameter may start from."""

from __future__ import annotations

import sympy

from archc.elaborate.scope import Scope
from archc.ir.layer import Init
from archc.syntax import tree

DISTRIBUTIONS = {"normal": 2, "uniform": 2, "loguniform": 2}
FUNCTIONS = ("exp", "log", "neg", "inverse_softplus", "logit")


def initial(scope: Scope, node: tree.Expr | None) -> Init:
    """`= 1`, `= uniform(0, 1)`, `= log(uniform(1, 16))`; nothing means the default."""
    if node is None:
        return Init("default", ())
    if isinstance(node, tree.Unary) and node.op == "-":
        return Init("neg", (initial(scope, node.arg),))
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
            return Init(name, (initial(scope, node.args[0].value),))
    value = scope.evaluate(node)
    if isinstance(value, sympy.Expr):
        return Init("value", (value,))
    raise scope.error(
        "E0218",
        "a parameter starts from numbers",
        node.span,
        helps=[f"known: a number, {', '.join(DISTRIBUTIONS)}, and {', '.join(FUNCTIONS)} of these"],
    )


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
        raise scope.error("E0218", f"`{node.func.span.text}` takes {count} numbers", node.span)
    return tuple(value for value in values if isinstance(value, sympy.Expr))

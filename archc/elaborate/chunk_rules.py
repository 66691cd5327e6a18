"""`chunk:`: what a spec says about its chunked form. Every rule has an effect, or is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import sympy

from archc.diagnostics import Refused, did_you_mean
from archc.elaborate.law_rule import law
from archc.elaborate.scope import Scope
from archc.elaborate.values import Tensor
from archc.ir import layer as ir
from archc.ir.chunk_section import Bound
from archc.ir.value_names import log_name
from archc.syntax import tree

MOST_TOKENS = 1024
"""The longest chunk: what stands between its rows grows with the square of it."""

NUMBER_AGAIN = {"<=": ">=", ">=": "<=", "<": ">", ">": "<"}
"""A comparison read from right to left."""


def chunk(scope: Scope, stmt: tree.Chunk, exported: set[str]) -> None:
    """`chunk: size 64, bound log(alpha) >= -5`: kept for the passes that choose a form."""
    for rule in sorted(stmt.rules, key=lambda rule: rule.word != LAW):
        if rule.word not in RULES:
            helps = [*did_you_mean(rule.word, RULES), f"known: {', '.join(RULES)}"]
            raise scope.error("E0215", f"no chunk rule `{rule.word}`", rule.span, helps=helps)
        RULES[rule.word](scope, rule)


def chunk_order(stmt: tree.Stmt) -> int:
    """Rules speak of every value, so they are read last; laws before promises, which may need the
    value of a recurrence."""
    if not isinstance(stmt, tree.Chunk):
        return 0
    return 1 if any(rule.word == LAW for rule in stmt.rules) else 2


def _wrong(scope: Scope, rule: tree.Rule, message: str, help: str) -> Refused:
    return scope.error("E0223", message, rule.span, helps=[help])


def _size(scope: Scope, rule: tree.Rule) -> None:
    """`size 64`: tokens in a chunk."""
    help = f"`size 64`: a whole number from 1 to {MOST_TOKENS}"
    value = rule.args[0] if rule.args else None
    number = value.text if isinstance(value, tree.Number) else ""
    if not number.isdigit() or not 1 <= int(number) <= MOST_TOKENS:
        raise _wrong(scope, rule, "`size` takes the number of tokens in a chunk", help)
    if scope.context.chunk.size is not None:
        raise _wrong(scope, rule, "`size` is given twice", "leave one of them")
    scope.context.chunk = replace(scope.context.chunk, size=int(number))


def _sequential(scope: Scope, rule: tree.Rule) -> None:
    """`sequential`: no chunked form, and no warning that there is none."""
    if rule.args:
        raise _wrong(scope, rule, "`sequential` stands alone", "`chunk: sequential`")
    scope.context.chunk = replace(scope.context.chunk, sequential=True)


# --- promises -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Promise:
    """name <= number, or the like; `log`: it is about the logarithm of the value."""

    name: tree.Name
    log: bool
    op: str
    number: Fraction | float


def _bound(scope: Scope, rule: tree.Rule) -> None:
    """`bound log(alpha) >= -5`: a promise about a value of the layer."""
    promise = _promise(scope, rule)
    value = scope.evaluate(promise.name)
    graph = scope.context.frame.graph
    inside = isinstance(value, Tensor) and value.frame is scope.context.frame
    if not isinstance(value, Tensor) or not inside or graph[value.node].type.dtype != "real":
        what = f"`{promise.name.id}` is no real value of the layer"
        raise _wrong(scope, rule, what, "a promise is about an input or a named value")
    node, text = graph[value.node], " ".join(rule.span.text.split())
    if node.name is None:
        graph.rename(node.id, promise.name.id)
        node = graph[node.id]
    found = [_interval(promise, node.name, node.span, text, exp=promise.log)]
    if node.op == ir.Elementwise("exp"):
        inner = graph[node.operands[0]]
        if inner.name is None:
            graph.rename(inner.id, log_name(str(node.name)))
            inner = graph[inner.id]
        found.append(_interval(promise, inner.name, inner.span, text, log=not promise.log))
    bounds = (*scope.context.chunk.bounds, *(each for each in found if each is not None))
    scope.context.chunk = replace(scope.context.chunk, bounds=bounds)


def _promise(scope: Scope, rule: tree.Rule) -> _Promise:
    """A comparison of a name, or of its logarithm, with a number."""
    help = "`bound log(alpha) >= -5`, or `bound alpha <= 1`"
    compare = rule.args[0] if rule.args else None
    if not isinstance(compare, tree.Compare) or len(compare.ops) != 1:
        raise _wrong(scope, rule, "`bound` compares a value with a number", help)
    (left, right), op = compare.terms, compare.ops[0]
    if op not in NUMBER_AGAIN:
        raise _wrong(scope, rule, f"`bound` takes no `{op}`", help)
    found = _subject(left)
    if found is None:
        left, right, op = right, left, NUMBER_AGAIN[op]
        found = _subject(left)
    number = None if found is None else _number(scope, right)
    if found is None or number is None:
        raise _wrong(scope, rule, "`bound` compares a value with a number", help)
    return _Promise(*found, op, number)


def _subject(node: tree.Expr) -> tuple[tree.Name, bool] | None:
    """`alpha`, or `log(alpha)`, and whether it is a logarithm."""
    if isinstance(node, tree.Name):
        return node, False
    if not isinstance(node, tree.Call) or not isinstance(node.func, tree.Name):
        return None
    name = node.args[0].value if len(node.args) == 1 else None
    return (name, True) if node.func.id == "log" and isinstance(name, tree.Name) else None


def _number(scope: Scope, node: tree.Expr) -> Fraction | float | None:
    """A number that does not depend on sizes."""
    value: Any = scope.evaluate(node)
    if not isinstance(value, sympy.Expr) or not value.is_number or not value.is_extended_real:
        return None
    if isinstance(value, sympy.Rational):
        return Fraction(int(value.p), int(value.q))
    return float(value)


def _interval(
    promise: _Promise, name: str | None, span: Any, text: str, exp: bool = False, log: bool = False
) -> Bound | None:
    """The promise as an interval of a value, of its exponential, or of its logarithm."""
    assert name is not None, "what is promised has a name"
    number: Fraction | float = promise.number
    if exp:
        number = math.exp(number) if number < 709 else math.inf
    if log:
        number = math.log(number) if number > 0 else -math.inf
    upper, open_end = promise.op in ("<=", "<"), promise.op in ("<", ">")
    low = 0.0 if exp else -math.inf
    if upper:
        return Bound(name, low, number, exp, open_end, span, text)
    return Bound(name, number, math.inf, open_end or (exp and number == 0), False, span, text)


LAW = "law"
RULES: dict[str, Callable[[Scope, tree.Rule], None]] = {
    "size": _size,
    "sequential": _sequential,
    "bound": _bound,
    LAW: law,
}
"""The rules there are."""

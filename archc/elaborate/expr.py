"""Expressions: tree -> value, on numbers (sizes and options) or on tensors.

Numbers stay exact and symbolic; they become tensors only where they meet one.
"""

from __future__ import annotations

from typing import Any

import sympy
from sympy.logic.boolalg import Boolean

from archc.dims import TIME, Axis, Undefined, apply, exact
from archc.elaborate import chosen, matrix, ops
from archc.elaborate.scope import Scope
from archc.elaborate.values import Identity, Option, Tensor, Value
from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.syntax import tree

OPERATORS = {fn.symbol: fn for fn in FUNCTIONS.values() if fn.symbol and fn.arity == 2}
"""The functions that are written between their operands."""


LOGIC = ("and", "or")
LITERALS: dict[str, Value] = {
    "none": Option(None),
    "true": Option(True),
    "false": Option(False),
    "inf": sympy.oo,
    "I": Identity(),
}


def name(scope: Scope, node: tree.Name) -> Value:
    """A bare name: a value, a literal, an index variable's position, a layer or a function."""
    along = scope.index(node.id)
    if along is not None and scope.find(node.id) is None:
        return position(scope, along.axis, node.span)
    if scope.find(node.id) is None and node.id in LITERALS:
        return LITERALS[node.id]
    value = scope.lookup(node.id, node.span)
    if isinstance(value, Tensor):
        return inside(scope, value, node)
    return value


def inside(scope: Scope, value: Tensor, node: tree.Expr) -> Tensor:
    """A tensor without an index in this scope: at the reader's token, in its head's group."""
    if scope.attend is None or value.frame is scope.frame:
        return group(scope, scope.frame.bring(value), node)
    streams = [a.name for a in value.axes if a.kind == "stream"]
    readers = {along.axis.name for along in scope.indices.values()} | {"t"}
    if streams and not any(name in readers for name in streams):
        other = streams[0]
        helps = [f"index it: `{node.span.text}[{other}]`"]
        if scope.attend.source != other:
            helps = [
                f"tokens of `{other}` are read in a block `attend all {other}:`",
                f"to let them read, apply a layer along `{other}`: `Reads(...)(c, x)` of "
                "`input x[d]` and `input c[e] along n`, whose block is `attend all n:`",
            ]
        raise scope.error(
            "E0306",
            f"`{node.span.text}` runs along `{other}`, not along the reader's tokens",
            node.span,
            others=[(value.origin, "from here")],
            helps=helps,
        )
    brought = group(scope, scope.frame.bring(value), node)
    if (blocks := chosen.blocks_of(scope, value)) is not None:
        if value.type.dtype != "bool":
            raise scope.error(
                "E0306",
                f"`{node.span.text}` is for each block, `{blocks}`, and this reads tokens",
                node.span,
                others=[(value.origin, "from here")],
                helps=["a choice of blocks, `top(n, score)`, is one of their tokens too"],
            )
        return chosen.of_tokens(scope, brought, blocks, node.span)
    return brought


def group(scope: Scope, value: Tensor, node: tree.Expr) -> Tensor:
    """A value with a group axis as each head of it sees it: head h belongs to h // (H / G)."""
    if scope.grouped is None:
        return value
    heads, groups = scope.grouped
    if groups.name not in value.type.names:
        return value
    at = ops.node(scope, ir.Position(heads), span=node.span)
    share = ops.constant(scope, heads.size / groups.size, node.span)
    index = ops.node(scope, ir.Elementwise("floordiv"), at, _integer(scope, share), span=node.span)
    made = ops.node(scope, ir.Gather(groups.name), value, index, span=node.span)
    return Tensor(made.frame, made.node, value.row, value.origin)


def _integer(scope: Scope, value: Tensor) -> Tensor:
    """A constant that is an integer by a requirement, typed as one."""
    constant = scope.frame.graph[value.node].op
    assert isinstance(constant, ir.Constant)
    if constant.value.is_integer:
        return value
    span = scope.frame.graph[value.node].span
    return ops.constant(scope, sympy.floor(constant.value), span)


def position(scope: Scope, axis: Axis, span: Any) -> Tensor:
    """0, 1, 2, ... along an axis; in a recurrence, which of the tokens this is."""
    outer = scope.frame.parent
    if outer is not None and scope.frame.region and scope.attend is None and axis == TIME:
        made = outer.graph.add(ir.Position(axis), span=scope.site or span)
        return scope.frame.bring(Tensor(outer, made))
    return ops.node(scope, ir.Position(axis), span=span)


def number(scope: Scope, node: tree.Number) -> Value:
    return exact(node.text)


def text(scope: Scope, node: tree.Text) -> Value:
    return Option(node.value)


def list_of(scope: Scope, node: tree.ListOf) -> Value:
    """A list of numbers or options."""
    items = [scope.evaluate(item) for item in node.items]
    for item, value in zip(node.items, items, strict=True):
        if isinstance(value, Tensor):
            raise scope.error("E0207", "a list holds numbers and options", item.span)
    return Option(tuple(value.value if isinstance(value, Option) else value for value in items))


def unary(scope: Scope, node: tree.Unary) -> Value:
    value = scope.evaluate(node.arg)
    if node.op == "not":
        if isinstance(value, Option) and isinstance(value.value, bool):
            return Option(not value.value)
        if isinstance(value, Boolean):
            return apply(sympy.Not, value)
        return ops.elementwise(scope, "not", [value], node.span)
    if isinstance(value, sympy.Expr):
        return -value
    return ops.elementwise(scope, "neg", [value], node.span)


def binary(scope: Scope, node: tree.Binary) -> Value:
    """`left op right`: exact on numbers, settled on options and conditions, a node on tensors."""
    left, right = scope.evaluate(node.left), scope.evaluate(node.right)
    if node.op == "@":
        return matrix.matmul(scope, left, right, node.span, (node.left.span, node.right.span))
    if isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr) and node.op not in LOGIC:
        return apply(OPERATORS[node.op].formula, left, right)
    if isinstance(left, Option) and isinstance(right, Option) and node.op in LOGIC:
        return Option(
            bool(left.value and right.value)
            if node.op == "and"
            else bool(left.value or right.value)
        )
    conditions = [_as_condition(value) for value in (left, right)]
    if node.op in LOGIC and None not in conditions:
        return apply(OPERATORS[node.op].formula, *conditions)
    if node.op in ("/", "//", "%") and _is_zero(right):
        raise Undefined("division by zero")
    if node.op == "-" and _is_zero(left):
        return ops.elementwise(scope, "neg", [right], node.span)
    return ops.elementwise(scope, OPERATORS[node.op].name, [left, right], node.span)


def _as_condition(value: Any) -> Any:
    """A condition on sizes, or a settled one; None for anything else."""
    if isinstance(value, Option) and isinstance(value.value, bool):
        return sympy.true if value.value else sympy.false
    return value if isinstance(value, Boolean) else None


def _is_zero(value: Value) -> bool:
    return isinstance(value, sympy.Expr) and value == 0


def compare(scope: Scope, node: tree.Compare) -> Value:
    """A chain of comparisons: settled for options and sizes, a bool per token for tensors."""
    values = [scope.evaluate(term) for term in node.terms]
    result: Value | None = None
    for op, left, right, at in zip(node.ops, values, values[1:], node.terms[1:], strict=False):
        if op == "in":
            link: Value = Option(_member(scope, left, right, at))
        elif isinstance(left, Option) or isinstance(right, Option):
            link = Option(_options_equal(scope, op, left, right, node))
        elif isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr):
            link = _condition(op, left, right)
        else:
            link = ops.elementwise(scope, OPERATORS[op].name, [left, right], node.span)
        result = link if result is None else _both(scope, result, link, node)
    assert result is not None
    return result


def _condition(op: str, left: sympy.Expr, right: sympy.Expr) -> Any:
    """A condition on sizes, still symbolic."""
    return apply(OPERATORS[op].formula, left, right)


def _both(scope: Scope, left: Any, right: Any, node: tree.Compare) -> Value:
    """Two links of a chain."""
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        return ops.elementwise(scope, "and", [left, right], node.span)
    return apply(sympy.And, _as_condition(left), _as_condition(right))


def _member(scope: Scope, left: Value, right: Value, at: tree.Expr) -> bool:
    """`l in full`: decided when compiling."""
    if not isinstance(right, Option) or not isinstance(right.value, tuple):
        raise scope.error("E0207", f"`{at.span.text}` is not a list", at.span)
    if isinstance(left, sympy.Expr):
        known = scope.number(left)
        if known is None:
            raise scope.error(
                "E0402",
                f"`{left}` has no value here, so this cannot be decided",
                at.span,
                helps=[f"give a value, e.g. `--set {left}=64`, or a default"],
            )
        equal: list[Any] = [sympy.Eq(left, item) for item in right.value if _is_number(item)]
        return scope.decide(sympy.Or(*equal), at.span)
    return isinstance(left, Option) and left.value in right.value


def _is_number(item: object) -> bool:
    return isinstance(item, int | float | sympy.Expr) and not isinstance(item, bool)


def _options_equal(scope: Scope, op: str, left: Value, right: Value, node: tree.Compare) -> bool:
    """`base == none`, `gate == "exp"`."""
    if op not in ("==", "!="):
        raise scope.error("E0207", f"options are compared with `==` or `!=`, not `{op}`", node.span)
    a = left.value if isinstance(left, Option) else left
    b = right.value if isinstance(right, Option) else right
    same = type(a) is type(b) and a == b
    return same if op == "==" else not same


def decided(scope: Scope, value: Any, node: tree.Expr) -> bool:
    """A condition as true or false; data never decides."""
    if isinstance(value, Option) and isinstance(value.value, bool):
        return value.value
    if isinstance(value, Boolean):
        return scope.decide(value, node.span)
    if isinstance(value, Tensor):
        raise scope.error(
            "E0403",
            "a condition is decided when compiling, and this one depends on data",
            node.span,
            helps=["choose per token with `where(condition, a, b)`"],
        )
    raise scope.error("E0403", f"`{node.span.text}` is not a condition", node.span)


def settled_condition(scope: Scope, value: Any, node: tree.Expr) -> Any:
    """A value that a layer is given: a condition on sizes is settled, as an option. (sympy counts
    symbols, which are sizes, among conditions.)"""
    if isinstance(value, Boolean) and not isinstance(value, sympy.Expr):
        return Option(decided(scope, value, node))
    return value


def choice(scope: Scope, node: tree.Choice) -> Value:
    """`a if condition else b`: only the branch taken is elaborated."""
    condition = scope.evaluate(node.condition)
    return scope.evaluate(node.then if decided(scope, condition, node.condition) else node.orelse)


def transpose(scope: Scope, node: tree.Transpose) -> Value:
    return matrix.transpose(scope, scope.evaluate(node.arg), node.span)

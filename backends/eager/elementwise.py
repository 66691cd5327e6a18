"""Emission of elementwise functions: of tensors as torch has them, of numbers as Python does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import (
    BOOL,
    DATA,
    INT,
    KIND_OF,
    NUMBER,
    TOTAL,
    WIDE,
    Value,
    shape_text,
)
from archc.backends.expression import (
    ATOM,
    BITAND,
    BITOR,
    OPERATORS,
    Text,
    binary,
    call,
    negative,
    power,
    prefixed,
)
from archc.backends.index import aligned

from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.tables import complete

Layout = tuple[str, ...]

TENSOR: dict[str, Callable[..., Text]] = complete(
    "`TENSOR` of backends/eager/elementwise.py",
    {
        **{name: partial(call, f"torch.{fn.torch}") for name, fn in FUNCTIONS.items() if fn.torch},
        **{name: partial(binary, *operator) for name, operator in OPERATORS.items()},
        "neg": negative,
        "not": partial(prefixed, "~"),
        "and": partial(binary, "&", BITAND),
        "or": partial(binary, "|", BITOR),
        "pow": power,
        "real": lambda a: a,
        "logsigmoid": partial(call, "F.logsigmoid"),
        "softplus": partial(call, "F.softplus"),
    },
    FUNCTIONS,
)
"""Functions of operands of which at least one is a tensor: torch's own, or as written here."""

NUMBER_OF: dict[str, Callable[..., Text]] = complete(
    "`NUMBER_OF` of backends/eager/elementwise.py",
    {
        **{name: partial(call, fn.number) for name, fn in FUNCTIONS.items() if fn.number},
        **{name: partial(binary, *operator) for name, operator in OPERATORS.items()},
        "neg": negative,
        "not": lambda a: Text(f"(not {a.at(ATOM)})"),
        "and": lambda a, b: Text(f"({a.at(ATOM)} and {b.at(ATOM)})"),
        "or": lambda a, b: Text(f"({a.at(ATOM)} or {b.at(ATOM)})"),
        "pow": power,
        "where": lambda c, a, b: Text(f"({a} if {c} else {b})"),
        "real": lambda a: a if a.text.isdigit() else call("float", a),  # a whole one is as good
        "rsqrt": lambda a: Text(f"(1 / math.sqrt({a}))"),
        "sign": lambda a: Text(f"(({a} > 0) - ({a} < 0))"),
        "sigmoid": lambda a: Text(f"(1 / (1 + math.exp(-{a.at(ATOM)})))"),
        "logsigmoid": lambda a: Text(f"(-math.log1p(math.exp(-{a.at(ATOM)})))"),
        "softplus": lambda a: Text(f"math.log1p(math.exp({a}))"),
        "relu": lambda a: call("max", a, "0"),
        "detach": lambda a: a,
    },
    FUNCTIONS,
)
"""The same of Python numbers."""

IN_FLOAT32 = ("exp", "log", "rsqrt", "softplus", "pow")
"""Functions that torch's autocast does in float32."""

CLAMP = {"max": "min", "min": "max"}
"""max(x, 0) is `x.clamp(min=0)`."""


def elementwise(scope: Scope, node: Node) -> Value:
    """`fn` of its operands, each laid out to broadcast against the result."""
    if node.op.fn == "where":
        return _where(scope, node)
    values = [scope.value(operand) for operand in node.operands]
    return applied(scope, node, values, scope.node_layout(node))


def applied(scope: Scope, node: Node, values: Sequence[Value], layout: Layout) -> Value:
    """A function of one or two values, in the layout of the result."""
    fn = node.op.fn
    if all(value.kind == NUMBER for value in values):
        return Value(NUMBER_OF[fn](*(value.text for value in values)), (), NUMBER)
    kind = KIND_OF[node.type.dtype]
    if kind == DATA:
        values, kind = scope.joined(values)
    texts = [laid_out(value, layout) for value in values]
    if fn == "real" or (fn in ("mul", "div") and texts[1].text == "1"):
        return Value(texts[0], layout, kind)
    if fn in ("sin", "cos") and kind in (WIDE, TOTAL):
        return scope.as_data(Value(TENSOR[fn](*texts), layout, kind))
    numbers = [value.kind == NUMBER for value in values]
    if fn in CLAMP and any(numbers):
        bound, tensor = texts[numbers.index(True)], texts[numbers.index(False)]
        return Value(call(f"{tensor.at(ATOM)}.clamp", f"{CLAMP[fn]}={bound}"), layout, kind)
    if fn == "floordiv" and kind != INT:
        return Value(_quotient(texts, numbers), layout, kind)
    return Value(TENSOR[fn](*texts), layout, kind)


def _quotient(texts: Sequence[Text], numbers: Sequence[bool]) -> Text:
    """floor(a / b) of reals, whose gradient is 0; that of `//` is refused by torch."""
    above, below = texts
    if numbers[0]:
        above = call("torch.full_like", below, above)
    return call("torch.div", above, below, 'rounding_mode="floor"')


def laid_out(value: Value, layout: Layout) -> Text:
    """A value's text, ready to broadcast against a tensor of that layout."""
    return value.text if value.kind == NUMBER else aligned(value.text, value.layout, layout)


# --- where --------------------------------------------------------------------------------------


def _where(scope: Scope, node: Node) -> Value:
    """`torch.where`, its branches kept from overflowing where they are not chosen.

    The gradient of a branch that is not chosen is 0 times its slope, which is NaN where the
    slope is infinite. So a steep function of a branch sees 1 wherever the other branch is taken.
    """
    condition, layout = scope.value(node.operands[0]), scope.node_layout(node)
    if condition.kind == NUMBER:
        branches = [scope.value(operand) for operand in node.operands[1:]]
    else:
        chosen = (condition, Value(prefixed("~", condition.text), condition.layout, BOOL))
        branches = [
            _shielded(scope, operand, keep, layout)
            for operand, keep in zip(node.operands[1:], chosen, strict=True)
        ]
    kind = KIND_OF[node.type.dtype]
    if kind == DATA:
        branches, kind = scope.joined(branches)
        if kind == NUMBER and condition.kind != NUMBER:
            kind = DATA if "batch" in condition.layout else WIDE
            branches[0] = _as_tensor(scope, branches[0], kind)
    texts = [laid_out(value, layout) for value in (condition, *branches)]
    if condition.kind == NUMBER:
        return Value(Text(f"({texts[1]} if {texts[0]} else {texts[2]})"), layout, kind)
    return Value(call("torch.where", *texts), layout, kind)


def _as_tensor(scope: Scope, number: Value, kind: str) -> Value:
    """A number as a tensor: of two numbers, torch would make what is chosen float32."""
    dtype = scope.dtype if kind == DATA else scope.ask("wide")
    text = f"torch.full((), {number.text}, device={scope.device}, dtype={dtype})"
    return Value(Text(text), (), kind)


def _shielded(scope: Scope, id: int, keep: Value, outer: Layout) -> Value:
    """A branch whose steep functions see 1 where `keep` does not hold; `outer` orders the dims."""
    node = scope.graph[id]
    fn = getattr(node.op, "fn", "")
    inline = isinstance(node.op, ir.Elementwise) and node.name is None and fn != "where"
    if not inline or id in scope.values or id in scope.fused or scope.uses.get(id, 0) > 1:
        return scope.value(id)
    values = [_shielded(scope, operand, keep, outer) for operand in node.operands]
    place = FUNCTIONS[fn].steep
    real = place is not None and values[place].kind not in (NUMBER, INT, BOOL)
    if place is not None and real and not (fn == "exp" and _bounded(scope, node.operands[0])):
        if id not in scope.shielded:  # what does not fit a line is made again
            layout = _union(outer, [values[place], keep])
            texts = [laid_out(keep, layout), laid_out(values[place], layout)]
            name = scope.names.fresh(f"{scope.target(id)}_safe")
            safe = scope.shielded[id] = Value(Text(name), layout, values[place].kind)
            scope.writer.line(f"{name} = {call('torch.where', *texts, '1.0')}", shape_text(safe))
        values[place] = scope.shielded[id]
    return applied(scope, node, values, _union(outer, values))


def _bounded(scope: Scope, id: int) -> bool:
    """Whether a value is plainly below some number: min(x, 0), -softplus(x), ..."""
    node = scope.graph[id]
    inner = [scope.graph[operand] for operand in node.operands]
    if node.op == ir.Elementwise("min"):
        return any(isinstance(operand.op, ir.Constant) for operand in inner)
    if node.op == ir.Elementwise("neg"):
        return getattr(inner[0].op, "fn", "") in ("exp", "softplus", "abs", "relu", "sigmoid")
    return node.op == ir.Elementwise("logsigmoid")


def _union(outer: Layout, values: Sequence[Value]) -> Layout:
    """The dims that any of the values has."""
    return tuple(name for name in outer if any(name in value.layout for value in values))

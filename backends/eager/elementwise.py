"""Emission of elementwise functions: of tensors as torch has them, of numbers as Python does."""

from __future__ import annotations

from collections.abc import Sequence

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import (
    BOOL,
    DATA,
    INT,
    KIND_OF,
    NUMBER,
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

from archc.ir import layer as ir
from archc.ir.graph import Node

Layout = tuple[str, ...]

TENSOR: dict[str, str] = {
    **{fn: f"torch.{fn}" for fn in ("exp", "log", "sqrt", "rsqrt", "abs", "sign", "floor")},
    **{fn: f"torch.{fn}" for fn in ("sin", "cos", "erf", "sigmoid", "tanh", "relu")},
    "logsigmoid": "F.logsigmoid",
    "softplus": "F.softplus",
    "max": "torch.maximum",
    "min": "torch.minimum",
}
"""Functions of tensors that torch has under one name."""

SCALAR: dict[str, str] = {
    **{fn: f"math.{fn}" for fn in ("exp", "log", "sqrt", "floor", "sin", "cos", "erf", "tanh")},
    "abs": "abs",
    "max": "max",
    "min": "min",
    "real": "float",
}
"""The same for Python numbers."""


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
        return Value(_of_numbers(fn, [value.text for value in values]), (), NUMBER)
    kind = KIND_OF[node.type.dtype]
    if kind == DATA:
        values, kind = scope.joined(values)
    texts = [laid_out(value, layout) for value in values]
    if fn == "real" or (fn in ("mul", "div") and texts[1].text == "1"):
        return Value(texts[0], layout, kind)
    if fn in ("sin", "cos") and kind == WIDE:
        return scope.as_data(Value(_of_tensors(fn, texts), layout, kind))
    numbers = [value.kind == NUMBER for value in values]
    if fn in CLAMP and any(numbers):
        bound, tensor = texts[numbers.index(True)], texts[numbers.index(False)]
        return Value(call(f"{tensor.at(ATOM)}.clamp", f"{CLAMP[fn]}={bound}"), layout, kind)
    if fn == "floordiv" and kind != INT:
        return Value(_quotient(texts, numbers), layout, kind)
    return Value(_of_tensors(fn, texts), layout, kind)


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

STEEP = {"exp": 0, "log": 0, "sqrt": 0, "rsqrt": 0, "div": 1, "pow": 0}
"""Functions whose slope can be infinite, and in which operand."""


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
    place = STEEP.get(fn)
    real = place is not None and values[place].kind not in (NUMBER, INT, BOOL)
    if place is not None and real and not (fn == "exp" and _bounded(scope, node.operands[0])):
        layout = _union(outer, [values[place], keep])
        texts = [laid_out(keep, layout), laid_out(values[place], layout)]
        name = scope.names.fresh(f"{scope.target(id)}_safe")
        safe = values[place] = Value(Text(name), layout, values[place].kind)
        scope.writer.line(f"{name} = {call('torch.where', *texts, '1.0')}", shape_text(safe))
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


# --- texts --------------------------------------------------------------------------------------


def _of_tensors(fn: str, texts: Sequence[Text]) -> Text:
    """`fn` of operands of which at least one is a tensor."""
    if fn in OPERATORS:
        return binary(*OPERATORS[fn], *texts)
    if fn in TENSOR:
        return call(TENSOR[fn], *texts)
    return {
        "neg": negative,
        "not": lambda a: prefixed("~", a),
        "pow": power,
        "and": lambda a, b: binary("&", BITAND, a, b),
        "or": lambda a, b: binary("|", BITOR, a, b),
    }[fn](*texts)


def _of_numbers(fn: str, texts: Sequence[Text]) -> Text:
    """`fn` of Python numbers; an integer that is written out is as good as a real."""
    if fn == "real" and texts[0].text.isdigit():
        return texts[0]
    if fn in OPERATORS:
        return binary(*OPERATORS[fn], *texts)
    if fn in SCALAR:
        return call(SCALAR[fn], *texts)
    shown = [text.at(ATOM) for text in texts]
    return {
        "neg": lambda: negative(texts[0]),
        "not": lambda: Text(f"(not {shown[0]})"),
        "rsqrt": lambda: Text(f"(1 / math.sqrt({texts[0]}))"),
        "sign": lambda: Text(f"(({texts[0]} > 0) - ({texts[0]} < 0))"),
        "sigmoid": lambda: Text(f"(1 / (1 + math.exp(-{shown[0]})))"),
        "logsigmoid": lambda: Text(f"(-math.log1p(math.exp(-{shown[0]})))"),
        "softplus": lambda: Text(f"math.log1p(math.exp({texts[0]}))"),
        "relu": lambda: call("max", texts[0], "0"),
        "pow": lambda: power(*texts),
        "and": lambda: Text(f"({shown[0]} and {shown[1]})"),
        "or": lambda: Text(f"({shown[0]} or {shown[1]})"),
        "where": lambda: Text(f"({texts[1]} if {texts[0]} else {texts[2]})"),
    }[fn]()

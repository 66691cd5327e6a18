"""The sizes and options of a layer as arguments of its class: defaults, checks, and handing on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import sympy
from archc.backends.eager.file import File
from archc.backends.eager.required import write_need
from archc.backends.expression import Text, number, whole
from archc.backends.writer import Writer, attribute, quoted

from archc.dims import Axis, free_symbols
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.plan import default_of


def shown(layer: ir.Layer, root: bool) -> list[ir.Arg]:
    """The arguments of a layer's class; a layer that only others call takes just what it uses."""
    args = [arg for arg in layer.args if arg.symbol is not None]
    if not root:
        used = symbols_of(layer)
        args = [arg for arg in args if arg.name in used]
    return sorted(args, key=lambda arg: arg.default is not None and root)


def is_size(layer: ir.Layer, name: str) -> bool:
    """Whether an argument is a whole number: by its symbol, or as a size of a called layer."""
    symbol = next(a.symbol for a in layer.args if a.symbol is not None and a.name == name)
    if symbol.is_integer:
        return True
    return any(
        expr == symbol and is_size(call.callee, size)
        for _, call in layer.calls
        for size, expr in call.sizes
    )


@lru_cache(maxsize=256)
def symbols_of(layer: ir.Layer) -> frozenset[str]:
    """Names of the sizes and options that a layer's graph, or a layer it calls, depends on."""
    names = set(
        _symbols(
            requirement.condition for requirement in layer.requirements if not requirement.settled
        )
    )
    for node in layer.graph:
        if isinstance(node.op, ir.Call):
            inner = {arg.name for arg in shown(node.op.callee, root=False)}
            names |= set(_symbols(expr for name, expr in node.op.sizes if name in inner))
            names |= set(_symbols(axis for _, axis in node.op.axes))
        else:
            names |= set(_symbols(node.op))
    return frozenset(names)


def _symbols(value: Any) -> Iterable[str]:
    """Names of the symbols in an op, an axis, an expression, or anything made of them."""
    yield from (symbol.name for symbol in symbols_in(value))


def symbols_in(value: Any) -> Iterable[sympy.Symbol]:
    """The symbols in an op, an axis, an expression, or anything made of them."""
    if isinstance(value, sympy.Basic):
        yield from free_symbols(value)
    elif isinstance(value, Axis):
        yield from symbols_in(value.size)
    elif isinstance(value, Graph):
        for node in value:
            yield from symbols_in(node.op)
    elif isinstance(value, Type):
        yield from symbols_in(value.axes)
    elif isinstance(value, ir.Layer):
        return
    elif dataclasses.is_dataclass(value):
        yield from symbols_in(tuple(getattr(value, f.name) for f in dataclasses.fields(value)))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for item in value:
            yield from symbols_in(item)


def _positive(graph: Graph) -> Iterable[str]:
    """Names of the sizes that cannot be 0: lengths of dims, and what something is divided by."""
    for node in graph:
        op = node.op
        if isinstance(op, ir.Param | ir.Input):
            for axis in node.type.axes:
                yield from _factors(axis.size) if axis.kind == "dim" else ()
        elif isinstance(op, ir.Window):
            yield from _factors(op.width.size * (op.stride or 1))
        elif isinstance(op, ir.Recurrence | ir.Attend):
            yield from _positive(op.body)
        elif isinstance(op, ir.Elementwise) and op.fn in ("div", "floordiv", "mod"):
            divisor = graph[node.operands[1]].op
            yield from _factors(divisor.value) if isinstance(divisor, ir.Constant) else ()
        elif isinstance(op, ir.Constant):
            yield from _factors(sympy.fraction(sympy.together(op.value))[1])
        elif isinstance(op, ir.Call):
            inner = set(_positive(op.callee.graph))
            for name, value in op.sizes:
                yield from _factors(value) if name in inner else ()


def _factors(value: sympy.Expr) -> Iterable[str]:
    """Names of the symbols that make a product 0 if one of them is."""
    for factor in sympy.Mul.make_args(value):
        base = factor.as_base_exp()[0]
        if isinstance(base, sympy.Symbol):
            yield base.name


class Arguments:
    """The arguments of one class: their Python names, and the lines that fill in and check them."""

    def __init__(self, layer: ir.Layer, file: File, root: bool):
        self.layer, self.file = layer, file
        self.args = shown(layer, root)
        self.names = {arg.name: attribute(arg.name) for arg in self.args}
        self.whole = {arg.name for arg in self.args if is_size(layer, arg.name)}
        self.positive = set(_positive(layer.graph))

    def parameters(self) -> list[str]:
        """`d: int, K: int = 128, V: int | None = None`: as the constructor declares them."""
        declared = []
        for arg in self.args:
            name, kind = (
                self.names[arg.name],
                "int" if arg.name in self.whole else "float",
            )
            default = self._default(arg)
            if default is None:
                declared.append(f"{name}: {kind}")
            elif default.free_symbols:
                declared.append(f"{name}: {kind} | None = None")
            else:
                declared.append(f"{name}: {kind} = {number(default, {})}")
        return declared

    def _default(self, arg: ir.Arg) -> sympy.Expr | None:
        """The default, unless it is made from an argument that a layer inside is not given: then
        its caller always says the value."""
        default = None if arg.default is None else default_of(arg)
        known = default is not None and {s.name for s in free_symbols(default)} <= set(self.names)
        return default if known else None

    def lines(self, writer: Writer) -> None:
        """Fill in defaults, and refuse what is no size or breaks a requirement."""
        waiting: list[ir.Arg] = []
        for arg in self.args:
            default = self._default(arg)
            if default is not None and default.free_symbols:
                self._check(writer, waiting)
                waiting = []
                name = self.names[arg.name]
                writer.line(
                    f"{name} = {self._filled(name, default, arg)} if {name} is None else {name}"
                )
            waiting.append(arg)
        self._check(writer, waiting)
        for requirement in self.layer.requirements:
            self._require(writer, requirement)

    def _filled(self, name: str, default: sympy.Expr, arg: ir.Arg) -> Text:
        """A default in earlier arguments; a size that a division gives must come out whole."""
        top, bottom = sympy.fraction(sympy.together(default))
        if arg.name not in self.whole:
            return number(default, self.names)
        if bottom == 1:
            return whole(default, self.names)
        top_text, bottom_text = (number(part, self.names) for part in (top, bottom))
        return Text(f'whole_quotient("{self.layer.name}", "{name}", {top_text}, {bottom_text})')

    def _check(self, writer: Writer, args: list[ir.Arg]) -> None:
        groups: dict[tuple[str, str], list[str]] = {}
        for arg in args:
            name = self.names[arg.name]
            if arg.name in self.whole:
                least = "1" if arg.name in self.positive else "0"
                groups.setdefault(("check_sizes", least), []).append(name)
            else:
                groups.setdefault(("check_numbers", ""), []).append(name)
        for (piece, least), names in groups.items():
            given = [quoted(self.layer.name), *([least] if least else [])]
            writer.call(f"{piece}(", [*given, *(f"{name}={name}" for name in names)], ")")

    def _require(self, writer: Writer, requirement: ir.Requirement) -> None:
        names = sorted(symbol.name for symbol in requirement.condition.free_symbols)
        if not names or not set(names) <= set(self.names):
            return
        write_need(writer, self.layer.name, requirement, {n: self.names[n] for n in names})

    def passed(self, call: ir.Call, names: dict[str, str]) -> list[str]:
        """`d=d, K=d // H`: the arguments of a sub-layer, from the caller's."""
        sizes = dict(call.sizes)
        inner = shown(call.callee, root=False)
        texts = []
        for arg in inner:
            value = sizes[arg.name]
            size = is_size(call.callee, arg.name)
            text = whole(value, names) if size else number(value, names)
            texts.append(f"{attribute(arg.name)}={text}")
        return texts

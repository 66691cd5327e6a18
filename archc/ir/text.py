"""Layer IR -> text and JSON, for reading, for golden tests and for other programs.

The text is stable: it depends on nothing but the layer. One node a line,

    q = contract[batch t d, d H K -> batch t H K](x, W_q) : [batch, t, H, K]  # my.arch:21

where a value has its name in the spec, or a number. Body graphs are indented under their op, called
layers follow their caller.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import sympy

from archc.dims import Axis, exact, in_words
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS, ChunkOp
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.source import Span
from archc.tables import complete

COMMENT_COLUMN = 84
"""The column of `# my.arch:21`, if the line leaves room."""


def as_text(layer: ir.Layer, spans: bool = True) -> str:
    """The layer and, after it, every layer it calls; `spans` adds where each value was written."""
    layers = called_layers(layer)
    return "\n".join("\n".join(_layer_lines(each, layers, spans)) + "\n" for each in layers)


def called_layers(layer: ir.Layer) -> dict[ir.Layer, str]:
    """The layer and all it calls, callers first, with names made unique (`MLP`, `MLP.2`)."""
    found: dict[ir.Layer, str] = {}
    waiting = [layer]
    while waiting:
        each = waiting.pop(0)
        if each not in found:
            found[each] = numbered(each.name, {*found.values()}, ".")
            waiting += [call.callee for _, call in each.calls]
    return found


def value_names(graph: Graph[ir.Op]) -> dict[int, str]:
    """A unique name for each value: that of the spec where there is one, else `%0`, `%1`, ..."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    count = 0
    for node in graph:
        given = node.op.name if isinstance(node.op, (ir.Input, ir.Param)) else node.name
        if given is None:
            given, count = f"%{count}", count + 1
        names[node.id] = numbered(given, taken, ".")
        taken.add(names[node.id])
    return names


def type_text(type: Type) -> str:
    """`[batch, t, H, K]`, with `int` or `bool` before it where it is not real."""
    return ("" if type.dtype == "real" else type.dtype) + f"[{', '.join(type.names)}]"


def init_text(init: ir.Init) -> str:
    """The initial value of a parameter, as a spec would say it: `log(uniform(1, 16))`, `0`."""
    args = ", ".join(init_text(a) if isinstance(a, ir.Init) else option_text(a) for a in init.args)
    return args if init.fn == "value" else f"{init.fn}({args})"


def option_text(value: Any) -> str:
    """An option's value, or a rule of `chunk:`, as a spec writes it: `none`, `[3, 7]`, `"exp"`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list, sympy.Tuple)):
        return f"[{', '.join(map(option_text, value))}]"
    if isinstance(value, ir.Layer):
        return value.name
    if isinstance(value, str):
        return f'"{value}"'
    return number_text(value) if isinstance(value, sympy.Rational) else in_words(value)


def number_text(value: sympy.Rational) -> str:
    """An exact number as a spec would write it: `1e-5` and `2.446`, but `1/3`."""
    shown = repr(float(value)).replace("e-0", "e-")
    return shown if not value.is_integer and exact(shown) == value else str(value)


def graph_text(graph: Graph[ir.Op], only: Collection[int] | None = None) -> str:
    """A graph without parameters, such as a chunked form; `only`: these of its nodes, and no list
    of outputs."""
    if only is None:
        return "\n".join(_graph_lines(graph, {}, True, "")) + "\n"
    return "".join(f"{line}\n" for line in _graph_lines(graph, {}, True, "", only))


def graph_json(graph: Graph[ir.Op]) -> dict[str, Any]:
    """A graph without parameters as plain data."""
    return _graph_json(graph, {})


def op_text(op: ir.Op | ChunkOp, operands: tuple[str, ...] = ()) -> str:
    """An op applied to named operands: `contract[d, d K -> K](x, W)`; body graphs are left out."""
    return OP_TEXT[type(op)](op, operands)


def arg_text(arg: ir.Arg) -> str:
    """A size or option and its default, as the spec's header has it."""
    required = arg.symbol is not None and arg.default is None
    return arg.name if required else f"{arg.name} = {option_text(arg.default)}"


# --- one line an op ----------------------------------------------------------------------------


def _applied(name: str, details: str, operands: tuple[str, ...]) -> str:
    return f"{name}{f'[{details}]' if details else ''}({', '.join(operands)})"


def _contract(op: ir.Contract, operands: tuple[str, ...]) -> str:
    """Labels are shown as the axes they become, unless that would confuse two of them."""
    used = {label for labels in op.ins for label in labels}
    shown = {label: axis.name for label, axis in op.out if axis.name not in used}
    ins = ", ".join(" ".join(shown.get(label, label) for label in labels) for labels in op.ins)
    out = (
        axis.name if shown.get(label, label) == axis.name else f"{label}:{axis}"
        for label, axis in op.out
    )
    return _applied("contract", f"{ins} -> {' '.join(out)}".rstrip(), operands)


def _solve(op: ir.Solve, operands: tuple[str, ...]) -> str:
    steps = "" if op.iterations is None else f", iterations = {op.iterations}"
    return _applied("solve", f"{op.row}, {op.col}{steps}", operands)


def _window(op: ir.Window, operands: tuple[str, ...]) -> str:
    every = "" if op.blocks is None else f" every {op.stride} as {op.blocks}"
    return _applied("window", f"{op.stream}, {op.width}{every}", operands)


def _segment(op: ir.Segment, operands: tuple[str, ...]) -> str:
    matrix = "" if op.row is None else f", {op.row} {op.col}"
    return _applied("segment", f"{op.kind} {op.path}: {op.reader}, {op.read}{matrix}", operands)


def _recurrence(op: ir.Recurrence, operands: tuple[str, ...]) -> str:
    entering = (*op.captures, *(f"{state.name}[start]" for state in op.states))
    return _applied("recurrence", str(op.stream), _bound(entering, operands))


def _attend(op: ir.Attend, operands: tuple[str, ...]) -> str:
    read = f"{op.reader} reads {op.read}" + (
        "" if op.source == op.read.name else f" of {op.source}"
    )
    details = [read, *(["causal"] if op.causal else [])]
    if op.window is not None:
        details.append(f"window {op.window}")
    entering = tuple(f"{role} {name}" for name, role in op.captures)
    return _applied("attend", ", ".join(details), _bound(entering, operands))


def _call(op: ir.Call, operands: tuple[str, ...]) -> str:
    sizes = [f"{name} = {in_words(size)}" for name, size in op.sizes]
    axes = [f"{name} is {axis}" for name, axis in op.axes if name != axis.name]
    return f"{_applied(op.callee.name, '; '.join([*sizes, *axes]), operands)} at {op.path}"


def _bound(names: tuple[str, ...], operands: tuple[str, ...]) -> tuple[str, ...]:
    """`name = operand` for each; the names alone where no operands are given."""
    return tuple(f"{n} = {o}" for n, o in zip(names, operands, strict=True)) if operands else names


OP_TEXT: dict[type, Callable[[Any, tuple[str, ...]], str]] = {
    ir.Input: lambda op, _: "input",
    ir.Param: lambda op, _: f"param {init_text(op.init)}",
    ir.Constant: lambda op, _: option_text(op.value),
    ir.Position: lambda op, _: f"position[{'batch, ' * op.own}{op.axis}]",
    ir.Delta: lambda op, _: f"delta[{op.row}, {op.col}]",
    ir.Noise: lambda op, on: _applied("noise", str(op.p), on),
    ir.Elementwise: lambda op, on: _applied(op.fn, "", on),
    ir.Reduce: lambda op, on: _applied(op.fn, ", ".join(op.axes), on),
    ir.Contract: _contract,
    ir.Gather: lambda op, on: _applied("gather", op.axis, on),
    ir.Scatter: lambda op, on: _applied("scatter", f"{op.axis} -> {op.into}", on),
    ir.Join: lambda op, on: _applied("join", f"{', '.join(op.axes)} -> {op.into}", on),
    ir.Reshape: lambda op, on: _applied(
        "reshape", f"{', '.join(op.axes)} -> {', '.join(map(str, op.into))}", on
    ),
    ir.Top: lambda op, on: _applied("top", f"{op.axis}, {op.count}", on),
    ir.Solve: _solve,
    ir.Shift: lambda op, on: _applied("shift", f"{op.stream}, {op.steps}", on),
    ir.Window: _window,
    ir.Softmax: lambda op, on: _applied("softmax", op.over, on),
    ir.Segment: _segment,
    ir.Substitute: lambda op, on: _applied(
        "substitute", f"{op.read}, reverse" if op.reverse else op.read, on
    ),
    ir.Recurrence: _recurrence,
    ir.Attend: _attend,
    ir.Result: lambda op, on: f"{on[0] if on else ''}.{op.name}",
    ir.Call: _call,
    **{op: op.text for op in CHUNK_OPS},
}
"""How each op is written; one entry an op."""
complete("`OP_TEXT` of archc/ir/text.py", OP_TEXT, (*ir.OPS, *CHUNK_OPS))


# --- layers ------------------------------------------------------------------------------------


def _layer_lines(layer: ir.Layer, names: dict[ir.Layer, str], spans: bool) -> Iterator[str]:
    args = (
        arg.name if arg.default is None else f"{arg.name} = {arg.default}" for arg in layer.args
    )
    yield f"{layer.kind} {names[layer]}({', '.join(args)})"
    for requirement in layer.requirements:
        yield f"require {requirement.text}"
    for axis in _derived_axes(layer.graph):
        yield f"axis {axis} = {axis.size}"
    yield from (f"chunk {rule}" for rule in layer.chunk.lines())
    yield from _graph_lines(layer.graph, names, spans, "")


def _graph_lines(
    graph: Graph[ir.Op],
    layers: dict[ir.Layer, str],
    spans: bool,
    indent: str,
    only: Collection[int] | None = None,
) -> Iterator[str]:
    names = value_names(graph)
    for node in graph:
        if only is not None and node.id not in only:
            continue
        yield _with_span(indent + _node_line(node, names, layers), node.span if spans else None)
        if isinstance(node.op, (ir.Recurrence, ir.Attend)):
            yield from _graph_lines(node.op.body, layers, spans, indent + "    ")
        if isinstance(node.op, ir.Attend) and node.op.decode is not None:
            yield f"{indent}  or, where that takes less:"
            yield from _graph_lines(node.op.decode, layers, spans, indent + "    ")
    if only is not None:
        return
    yield f"{indent}-> " + ", ".join(
        key if key == names[id] else f"{key} = {names[id]}" for key, id in graph.outputs.items()
    )


def _node_line(node: Node[ir.Op], names: dict[int, str], layers: dict[ir.Layer, str]) -> str:
    text = op_text(node.op, tuple(names[id] for id in node.operands))
    if isinstance(node.op, ir.Call):
        text = layers[node.op.callee] + text.removeprefix(node.op.callee.name)
    if isinstance(node.op, (ir.Recurrence, ir.Attend, ir.Call)):
        return f"{names[node.id]} = {text}"
    return f"{names[node.id]} = {text} : {type_text(node.type)}"


def _with_span(line: str, span: Span | None) -> str:
    return f"{line:<{COMMENT_COLUMN}}  # {span.where}" if span else line


def _derived_axes(graph: Graph[ir.Op]) -> list[Axis]:
    """Axes whose size is not simply their own name, each once, by name: `K' = K`."""
    found: dict[str, Axis] = {}
    for node in graph:
        if isinstance(node.op, (ir.Recurrence, ir.Attend)):
            found |= {axis.name: axis for axis in _derived_axes(node.op.body)}
        for axis in node.type.axes:
            if axis.kind == "dim" and str(axis.size) != axis.name:
                found[axis.name] = axis
    return [found[name] for name in sorted(found)]


# --- JSON --------------------------------------------------------------------------------------


def as_json(layer: ir.Layer) -> dict[str, Any]:
    """The layer and all it calls as plain data; sizes and constants are text."""
    layers = called_layers(layer)
    return {"layers": [_layer_json(each, layers) for each in layers]}


def _layer_json(layer: ir.Layer, layers: dict[ir.Layer, str]) -> dict[str, Any]:
    return {
        "name": layers[layer],
        "kind": layer.kind,
        "doc": layer.doc,
        "source": layer.source.name,
        "args": [
            {
                "name": arg.name,
                "settled": arg.symbol is None,
                "default": _plain(arg.default, layers),
            }
            for arg in layer.args
        ],
        "requirements": [requirement.text for requirement in layer.requirements],
        "chunk": list(layer.chunk.lines()),
        **_graph_json(layer.graph, layers),
    }


def _graph_json(graph: Graph[ir.Op], layers: dict[ir.Layer, str]) -> dict[str, Any]:
    numbers = {node.id: number for number, node in enumerate(graph)}
    return {
        "nodes": [
            {
                "id": numbers[node.id],
                "op": type(node.op).__name__.lower(),
                "attributes": {
                    field.name: _plain(getattr(node.op, field.name), layers)
                    for field in fields(node.op)
                },
                "operands": [numbers[id] for id in node.operands],
                "name": node.name,
                "type": _plain(node.type, layers),
                "where": node.span.where if node.span else None,
            }
            for node in graph
        ],
        "outputs": {name: numbers[id] for name, id in graph.outputs.items()},
    }


def _plain(value: Any, layers: dict[ir.Layer, str]) -> Any:
    """A value made of dicts, lists, texts and numbers; a called layer becomes its name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Graph):
        return _graph_json(value, layers)
    if isinstance(value, ir.Layer):
        return layers[value]
    if isinstance(value, (tuple, list)):
        return [_plain(item, layers) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item, layers) for key, item in value.items()}
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name), layers) for f in fields(value)}
    if isinstance(value, sympy.Basic):
        return in_words(value)
    raise TypeError(f"no plain form of {type(value).__name__}")

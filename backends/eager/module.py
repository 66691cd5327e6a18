"""A layer becomes a class: `nn.Module` with the spec's parameters, its state, and one forward."""

from __future__ import annotations

from itertools import groupby

from archc.backends.eager.forward import Forward
from archc.backends.eager.init import reset
from archc.backends.eager.naming import listed
from archc.backends.eager.parts import Parts, shape_of
from archc.backends.eager.state import initial_state, state_class
from archc.backends.writer import COLUMNS, INDENT, Writer, attribute, printable, quoted

from archc.ir.decay import maps_and_tables
from archc.ir.paths import former_paths

PLAIN = str | bool | int | float | tuple
"""Options whose value a reader can make sense of."""


def write_class(parts: Parts) -> None:
    """Append the regions' functions, the state and the class to the file."""
    forward, state = Forward(parts).write(), state_class(parts)
    methods = [_init(parts), _reset(parts), initial_state(parts), forward, _extra_repr(parts)]
    writer = Writer()
    with writer.block(f"class {parts.name}(nn.Module):"):
        writer.docstring(_doc(parts))
        for method in methods:
            if method.lines:
                writer.line()
                writer.include(method.lines)
    parts.file.sections += [state.text(), writer.text()]


def _doc(parts: Parts) -> list[str]:
    """The layer's own words, and the shapes of what goes in and comes out."""
    layer, graph = parts.layer, parts.layer.graph
    lines = [printable(line) for line in layer.doc.strip().splitlines()]
    own = "\n".join(line for line in lines if line) or f"The {layer.kind} {parts.name}."
    given = [f"{op.name} {shape_of(op.type.names)}" for _, op in layer.inputs]
    made = [f"{name} {shape_of(graph[id].type.names)}" for name, id in graph.outputs.items()]
    settled = [
        f"{a.name} = {a.default}"
        for a in layer.args
        if a.symbol is None and isinstance(a.default, PLAIN)
    ]
    doc = [own, f"{', '.join(given)} -> {', '.join(made)}"]
    return [*doc, f"Compiled with {', '.join(settled)}."] if settled else doc


def _init(parts: Parts) -> Writer:
    """`__init__`: sizes, parameters, sub-layers."""
    writer, arguments, layer = Writer(margin=len(INDENT)), parts.arguments, parts.layer
    given = [call.path for _, call in layer.calls if call.callee.kind == "argument"]
    given = list(dict.fromkeys(given))  # one that is applied twice is one
    required = [text for text in arguments.parameters() if "=" not in text]
    optional = [text for text in arguments.parameters() if "=" in text]
    modules = [f"{attribute(path)}: nn.Module" for path in given]
    every = ["self", *required, *modules, *optional, "*", "device=None", "dtype=None"]
    writer.call("def __init__(", every, "):")
    writer.depth += 1
    writer.line("super().__init__()")
    arguments.lines(writer)
    _keep_sizes(writer, list(arguments.names.values()))
    if layer.params or len(layer.calls) > len(given):
        writer.line('factory = {"device": device, "dtype": dtype}')
    _own_parameters(writer, parts)
    for path in given:
        writer.line(f"self.{attribute(path)} = {attribute(path)}")
    _sub_layers(writer, parts)
    _former_weights(writer, parts)
    _marks(writer, parts)
    if layer.params:
        writer.line("self.reset_parameters()")
    return writer


def _own_parameters(writer: Writer, parts: Parts) -> None:
    """A line for each parameter of the layer itself."""
    layer, sizes = parts.layer, parts.scope("self", parts.arguments.names)
    for id, param in layer.params:
        if id in parts.linear:
            made = parts.linear[id].lengths(param.axes)
            ends = ", ".join(sizes.size(length).text for length in made)
            made = f"nn.Linear({ends}, bias=False, **factory)"
            writer.line(f"self.{attribute(param.name)} = {made}")
            continue
        lengths = [sizes.size(axis.size).text for axis in param.axes] or ["()"]
        made = f"torch.empty({', '.join(lengths)}, **factory)"
        writer.line(f"self.{attribute(param.name)} = nn.Parameter({made})")


def _marks(writer: Writer, parts: Parts) -> None:
    """The line that says which parameters should not decay."""
    decaying = maps_and_tables(parts.layer)
    left = [quoted(attribute(p.name)) for id, p in parts.layer.params if id not in decaying]
    if left:
        writer.call("without_decay(", ["self", *left], ")")


def _former_weights(writer: Writer, parts: Parts) -> None:
    """Lines that let weights be loaded which are named, or laid out, in another way."""
    layer = parts.layer
    maps = [
        f"{quoted(attribute(param.name))}: {parts.linear[id]}"
        for id, param in layer.params
        if id in parts.linear
    ]
    if maps:
        writer.call("keep_as_linear(self, {", maps, "})")
    former = [f"{quoted(new)}: {quoted(old)}" for new, old in former_paths(layer).items()]
    if former:
        writer.call("load_former_names(", ["self", f"{{{', '.join(former)}}}"], ")")


def _keep_sizes(writer: Writer, names: list[str]) -> None:
    """`self.d, self.H = d, H`."""
    row: list[str] = []
    for name in [*names, ""]:
        line = f"{', '.join(f'self.{n}' for n in [*row, name])} = {', '.join([*row, name])}"
        if row and (not name or len(line) > COLUMNS - 3 * len(INDENT)):
            writer.line(f"{', '.join(f'self.{n}' for n in row)} = {', '.join(row)}")
            row = []
        row.append(name)


def _sub_layers(writer: Writer, parts: Parts) -> None:
    """One line a sub-layer; a list of them as one `nn.ModuleList`."""
    lists: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for _, call in parts.layer.calls:
        if call.callee.kind == "argument":
            continue
        made = (*parts.arguments.passed(call, parts.arguments.names), "**factory")
        name, place = parts.classes[id(call.callee)], listed(call.path)
        if place is None:
            writer.call(f"self.{attribute(call.path)} = {name}(", list(made), ")")
        else:
            lists.setdefault(place[0], []).append((name, made))
    for path, items in lists.items():
        _module_list(writer, path, items)


def _module_list(writer: Writer, path: str, items: list[tuple[str, tuple[str, ...]]]) -> None:
    """Equal neighbours are written once, with their count."""
    runs = [(item, len(list(run))) for item, run in groupby(items)]
    start = f"self.{attribute(path)} = nn.ModuleList("
    if len(runs) == 1 and runs[0][1] > 1:
        writer.line(start)
        writer.depth += 1
        (name, made), count = runs[0]
        writer.call(f"{name}(", list(made), f") for _ in range({count})")
        writer.depth -= 1
        writer.line(")")
        return
    writer.line(f"{start}[")
    writer.depth += 1
    for (name, made), count in runs:
        if count == 1:
            writer.call(f"{name}(", list(made), "),")
        else:
            writer.call(f"*({name}(", list(made), f") for _ in range({count})),")
    writer.depth -= 1
    writer.line("])")


def _reset(parts: Parts) -> Writer:
    """`reset_parameters`: the initial values of the spec."""
    writer = Writer(margin=len(INDENT))
    if parts.layer.params:
        writer.line("@torch.no_grad()")
        with writer.block("def reset_parameters(self):"):
            writer.docstring(["Draw the parameters anew, each as the spec says."])
            reset(writer, parts, parts.sizes)
    return writer


def _extra_repr(parts: Parts) -> Writer:
    """`extra_repr`: the sizes."""
    writer, names = Writer(margin=len(INDENT)), list(parts.arguments.names.values())
    if names:
        with writer.block("def extra_repr(self):"):
            writer.call(
                "sizes = (", [quoted(name) for name in names] + [""] * (len(names) == 1), ")"
            )
            writer.line('return ", ".join(f"{name}={getattr(self, name)}" for name in sizes)')
    return writer

"""The end of a generated file: a small instance, the numbers it must give, and `python file.py`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import sympy
from archc.backends.eager.file import File
from archc.backends.eager.memory import memory_of
from archc.backends.expression import whole
from archc.backends.writer import Writer, attribute, identifier, quoted

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.plan import Check

SPREAD = 0.5
"""Parameters of an example lie between -SPREAD and SPREAD, where their initial value allows it."""

FORMS = {
    "check_values": ("the whole sequence, against the meaning of the spec", "1e-6"),
    "check_pieces": ("a prompt, then pieces of any length, against the whole", "1e-9"),
    "check_chunks": ("chunks of tokens, against one token after the other", "1e-8"),
    "check_gradients": ("gradients, against the meaning of the spec", "1e-6"),
    "check_kernels": ("kernels in float32, against float64 without them", "1e-3"),
    "check_token_kernels": ("kernels in float32, against float64 without them", "1e-3"),
    "check_steps": ("kernels of a few tokens, the same way", "1e-3"),
}
"""The checks of a file: function of `archc/runtime/selfcheck.py` -> the comparison, and the largest
relative error that is right (a file carries its numbers with seven digits)."""


def self_check(
    file: File, layer: ir.Layer, layers: Sequence[ir.Layer], classes: Mapping[int, str],
    check: Check, kernels: Sequence[str] = (),
) -> str:  # fmt: skip
    """The definitions that functions of `archc/runtime/selfcheck.py` work on, and their call."""
    writer = Writer()
    _example(writer, layer, layers, classes, check.share)
    writer.line()
    writer.line()
    _case(writer, file, layer, check)
    writer.line("FORMS = [")
    for function in forms(layer):
        title, limit = FORMS[function]
        writer.line(f"    ({quoted(title)}, {function}, {limit}),")
    writer.line("]")
    if kernels:
        there = "torch.cuda.is_available() and triton is not None"
        with writer.block(f'if __name__ == "__main__" and {there}:'):
            for function in kernels:
                title, limit = FORMS[function]
                writer.line(f"FORMS.append(({quoted(title)}, {function}, {limit}))")
    writer.line()
    writer.line()
    with writer.block('if __name__ == "__main__":'):
        writer.line("main(CASE, FORMS)")
    return writer.text()


def _case(writer: Writer, file: File, layer: ir.Layer, check: Check) -> None:
    """The `Case` of a file."""
    with writer.block("CASE = Case("):
        writer.line(f"title={quoted(layer.name)},")
        for name, sizes in (("sizes", check.sizes), ("speed_sizes", check.speed_sizes)):
            _table(writer, f"{name}=", {quoted(attribute(n)): repr(v) for n, v in sizes.items()})
        writer.line(f"tokens={check.tokens},")
        writer.line("example=example,")
        with writer.block("expected={"):
            for name, elements in check.expected.items():
                values = ", ".join(f"{value:.6e}" for value in elements.values())
                writer.line(f"{quoted(name)}: (")
                places = ", ".join(map(str, elements))
                for line in [*_wrapped(places), *_wrapped(values)]:
                    writer.line(f"    {line}")
                writer.line("),")
        writer.line("},")
        writer.line(f"slopes=({', '.join(f'{slope:.6e}' for slope in check.slopes)}),")
        for name in ("CHUNK", "STEPS"):
            if name in file.constants:
                writer.line(f"{name.lower()}={name},")
    writer.line(")")


def forms(layer: ir.Layer) -> list[str]:
    """The checks that a layer can pass: one that needs the whole sequence has no pieces, and one of
    kernels needs a GPU."""
    left_out = {"check_kernels", "check_token_kernels", "check_steps"}
    left_out |= set() if in_chunks(layer) else {"check_chunks"}
    if memory_of(layer).refusal is not None:
        left_out |= {"check_pieces", "check_chunks"}
    return [name for name in FORMS if name not in left_out]


def in_chunks(layer: ir.Layer) -> bool:
    """Whether a recurrence of the layer, or of one that it calls, has a chunked form."""
    recurrences = [node.op for node in layer.graph if isinstance(node.op, ir.Recurrence)]
    own = any(op.chunked is not None for op in recurrences)
    return own or any(in_chunks(call.callee) for _, call in layer.calls)


def _wrapped(values: str, width: int = 88) -> list[str]:
    """A tuple of numbers, on several lines if it is long, with a comma behind it."""
    items = values.split(", ")
    lines, row = [], "("
    for item in items[:-1]:
        if len(row) + len(item) + 1 > width:
            lines.append(row.rstrip())
            row = " "
        row += f"{item}, "
    lines.append(row + items[-1] + ("," if len(items) == 1 else "") + "),")
    return lines


def _table(writer: Writer, name: str, items: Mapping[str, str]) -> None:
    """A dictionary, as an argument or behind ` = `."""
    end = "}," if name.endswith("=") else "}"
    writer.call(f"{name}{{", [f"{key}: {value}" for key, value in items.items()], end)


def _example(
    writer: Writer, layer: ir.Layer, layers: Sequence[ir.Layer], classes: Mapping[int, str],
    share: float,
) -> None:  # fmt: skip
    """`example(sizes, ...)`: an instance whose parameters and inputs need no random numbers."""
    given = [
        f"{attribute(c.path)}=nn.Identity()" for _, c in layer.calls if c.callee.kind == "argument"
    ]
    ranges = _ranges(layers, classes)
    with writer.block(
        "def example(sizes: dict, batch: int, tokens: int, device: str, dtype: torch.dtype):"
    ):
        writer.docstring(
            ["A fixed instance, its inputs, and the names of those that run along its own tokens."]
        )
        writer.line('kind = {"device": device, "dtype": dtype}')
        writer.call(f"layer = {classes[id(layer)]}(", ["**sizes", *given, "**kind"], ")")
        _table(writer, "ranges = ", ranges)
        near = "" if share == 1 else f", {share}"
        writer.line(f"fill(layer, ranges{near})")
        writer.line("inputs = {")
        for node, op in layer.inputs:
            writer.line(f"    {quoted(identifier(op.name))}: {_input(layer, node, op)},")
        writer.line("}")
        own = [quoted(identifier(op.name)) for _, op in layer.inputs if "t" in op.type.names]
        writer.line(f"return layer, inputs, ({', '.join(own)},)")


def _input(layer: ir.Layer, id: int, op: ir.Input) -> str:
    """Numbers for one input; another sequence has 5 tokens."""
    names = {
        arg.name: f"layer.{attribute(arg.name)}" for arg in layer.args if arg.symbol is not None
    }
    streams = {"batch": "batch", "t": "tokens"}
    shape = [
        streams.get(axis.name, "5") if axis.kind != "dim" else whole(axis.size, names).text
        for axis in op.type.axes
    ]
    text = f"wave({', '.join([quoted(op.name), *shape])}"
    if op.type.dtype == "real":
        return _promised(layer, id, f"{text}, **kind)")
    axis = _indexed(layer.graph, id)
    bound = whole(axis.size, names).text if axis is not None else "2"
    return f"(({text}) + 1) / 2 * {bound}).long().to(device)"


def _promised(layer: ir.Layer, id: int, text: str) -> str:
    """Numbers between -1 and 1, moved to where the layer says that the input lies."""
    bounds = [bound for bound in layer.chunk.bounds if bound.of(layer.graph[id])]
    if not bounds:
        return text
    low = float(max(bound.low for bound in bounds))
    high = float(min(bound.high for bound in bounds))
    low = low if low > -math.inf else min(-1.0, high - 2)
    high = high if high < math.inf else max(1.0, low + 2)
    return f"({text} + 1) / 2 * {high - low!r} + {low!r}"


def _indexed(graph: Graph, id: int) -> Axis | None:
    """The axis that an integer input chooses from."""
    for user in graph.users(id):
        node = graph[user]
        if isinstance(node.op, ir.Gather) and node.operands[1] == id:
            return graph[node.operands[0]].type.axis(node.op.axis)
    return None


# --- ranges of parameters -----------------------------------------------------------------------


def _ranges(layers: Sequence[ir.Layer], classes: Mapping[int, str]) -> dict[str, str]:
    """The parameters whose range follows from how they start, as `Class.name`."""
    found: dict[str, str] = {}
    for layer in layers:
        for _, param in layer.params:
            low, high = bounds(param.init)
            if (low, high) != (-SPREAD, SPREAD):
                found[quoted(f"{classes[id(layer)]}.{attribute(param.name)}")] = (
                    f"({low:.3g}, {high:.3g})"
                )
    return found


def bounds(init: ir.Init) -> tuple[float, float]:
    """Where an example's parameter lies: around a constant, within a uniform distribution."""
    if init.fn == "default" or not all(_known(arg) for arg in init.args):
        return -SPREAD, SPREAD
    if init.fn in ("value", "normal"):
        centre = float(init.args[0])
        return centre - SPREAD, centre + SPREAD
    if init.fn in ("uniform", "loguniform"):
        return float(init.args[0]), float(init.args[1])
    inner = init.args[0]
    ends = [float(inner.args[0])] * 2 if inner.fn == "value" else bounds(inner)
    low, high = sorted(FUNCTIONS[init.fn](end) for end in ends)
    return (low, high) if low < high else (low - SPREAD, high + SPREAD)


def _known(arg: object) -> bool:
    """Whether an argument of an `Init` has a value whatever the sizes are."""
    if isinstance(arg, ir.Init):
        return all(_known(inner) for inner in arg.args) and arg.fn != "default"
    return isinstance(arg, sympy.Expr) and arg.is_number


FUNCTIONS = {
    "exp": math.exp,
    "log": lambda x: math.log(max(x, 1e-6)),
    "neg": lambda x: -x,
    "inverse_softplus": lambda x: x + math.log(-math.expm1(-max(x, 1e-6))),
    "logit": lambda x: math.log(max(x, 1e-6) / max(1 - x, 1e-6)),
}
"""Functions of an `Init`, as numbers."""

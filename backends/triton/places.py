"""Values between tokens, chunks and single places of an axis as lines of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.backends.triton.algebra import of_product, part, reduced, text_of, with_label
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.tile import BOOL, REAL, Index, Tile, along, joined

from archc.ir import layer as ir
from archc.ir.graph import Node

Place = Mapping[str, Index]


def bare(text: str) -> str:
    """A moved index as an addend."""
    return text.removeprefix("(").removesuffix(")") if text.count("(") == 1 else text


def chunks(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """A value along the tokens, at the tokens of these rows; what is filled is not loaded."""
    op, graph = node.op, kernel.frame.graph
    row = place[op.row.name]
    at = {name: index for name, index in place.items() if name not in (op.chunk.name, op.row.name)}
    n, rows = place[op.chunk.name].text, row.text
    first = f"{n} * {kernel.factor(kernel.size(op.row.size))}"
    if op.steps is None:
        token = kernel.let_index("t", f"base + {first} + {bare(rows)}")
    else:
        steps = kernel.factor(kernel.size(graph[node.operands[0]].type.axis(op.steps).size))
        every = kernel.let_index("r", f"base * {steps} + {first} + {bare(rows)}")
        token = kernel.let_index("t", f"{every} // {steps}")
        at[op.steps] = Index(kernel.let_index("s", f"{every} % {steps}"), row.label)
    off = row.mask
    inside = f"{token} < end"
    inside = f"({inside}) & {kernel.inside(op.row.name, off)}" if off else inside
    at[op.stream] = Index(token, row.label, False, inside, None if row.whole else row)
    x = kernel.pull_stored(node.operands[0], at)
    label = row.label
    if label not in x.clean or op.fill:
        x = x if label is None or label in x.labels else with_label(kernel, x, label)
        where = kernel.inside("T", inside)
        where = where if label is None else along(where, label, x.labels)
        text = f"tl.where({where}, {x.text}, {float(op.fill)})"
        clean = x.clean if op.fill or label is None else x.clean | {label}
        x = replace(x, text=kernel.let("filled", text), clean=clean)
    return replace(x, clean=x.clean - {row.label})


def tokens(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    op = node.op
    t = place[op.stream.name]
    at = {name: index for name, index in place.items() if name != op.stream.name}
    if op.steps is not None and at.pop(op.steps.name).label not in (None, t.label):
        raise NotInKernel("all rows of a token")
    at[op.chunk] = Index("n")
    row = kernel.axis_of(node.operands[0], op.row)
    at[op.row] = t.row or replace(kernel.whole(row), label=t.label)
    x = kernel.pull_stored(node.operands[0], at)
    off = {t.label} if t.label else set()
    return replace(x, clean=x.clean - off, finite=x.finite - off)


def at_last(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`at_end = tl.where(n == high - 1, x, 0.0)`."""
    op = node.op
    n = place[op.stream.name]
    at = {name: index for name, index in place.items() if name != op.stream.name}
    x = kernel.pull(node.operands[0], at)
    first, behind = kernel.borders(op.stream)
    end = first if op.reverse else f"{behind} - 1"
    if n.label is None:
        return replace(x, text=kernel.let("at_end", f"tl.where({n.text} == {end}, {x.text}, 0.0)"))
    chosen = Tile(kernel.let("is_end", f"{n.text} == {end}"), (n.label,), BOOL)
    kernel.see(chosen)
    labels = joined(tuple(kernel.order), x, chosen)
    text = f"tl.where({text_of(kernel, chosen, labels)}, {text_of(kernel, x, labels)}, 0.0)"
    return Tile(kernel.let("at_end", text), labels, x.kind, x.clean, **of_product(labels, x))


def last(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    return kernel.pull_stored(node.operands[1], part(kernel, node.operands[1], place))


def expand(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    return kernel.pull_stored(node.operands[0], part(kernel, node.operands[0], place))


def detach(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    return kernel.pull_stored(node.operands[0], place)


def result(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    found = kernel.results.get((node.operands[0], node.op.name))
    if found is None:
        raise NotInKernel("a result of another kernel's walk")
    kernel.whole_along(node, place, *(name for name in place if place[name].label))
    return found


def select(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """The value there, or what is left of all of the axis where it is wanted whole."""
    op, graph = node.op, kernel.frame.graph
    axis = graph[node.operands[0]].type.axis(op.axis)
    at = str(op.index) if op.index >= 0 else f"{kernel.size_text(axis)} - {-op.index}"
    there = {**part(kernel, node.operands[0], place), op.axis: Index(f"({at})")}
    one = kernel.attempt(lambda: kernel.pull_stored(node.operands[0], there))
    if one is not None:
        return one
    x = kernel.pull(node.operands[0], part(kernel, node.operands[0], place))
    if op.axis not in x.labels:
        return x
    chosen = f"{kernel.whole(axis).text} == {at}"
    where = along(f"({chosen})", op.axis, x.labels) if len(x.labels) > 1 else chosen
    x = replace(x, text=kernel.let("picked", f"tl.where({where}, {x.text}, 0.0)"))
    return reduced(kernel, x, op.axis)


def gather(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """The value at an index that is a number."""
    index = kernel.frame.graph[node.operands[1]].op
    if not isinstance(index, ir.Constant) or not index.value.is_Integer:
        raise NotInKernel("values from places that are found out")
    there = {**part(kernel, node.operands[0], place), node.op.axis: Index(str(index.value))}
    return kernel.pull_stored(node.operands[0], there)


def place_(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    op = node.op
    index = place[op.axis.name]
    at = {name: i for name, i in place.items() if name != op.axis.name}
    x = kernel.pull(node.operands[0], at)
    wanted = op.index if op.index >= 0 else f"{kernel.size_text(op.axis)} - {-op.index}"
    chosen = Tile(f"({index.text} == {wanted})", (index.label,) if index.label else (), BOOL)
    kernel.see(chosen)
    labels = joined(tuple(kernel.order), x, chosen)
    text = f"tl.where({text_of(kernel, chosen, labels)}, {text_of(kernel, x, labels)}, 0.0)"
    return Tile(kernel.let("placed", text), labels, REAL, x.clean, **of_product(labels, x))

"""Sums, moves and scans along the rows of a chunk, and spans between them, as lines of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.backends.triton.algebra import masked, part, text_of, with_label
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.places import bare
from archc.backends.triton.tile import INT, Index, Tile, along, joined

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node

Place = Mapping[str, Index]


def moved(
    kernel: KernelWriter, operand: int, place: Place, axis: str, steps: int, fill: float = 0.0
) -> Tile:
    """A value `steps` rows earlier: computed there, or moved where it looks across the rows."""
    index, (first, behind) = place[axis], kernel.borders(kernel.axis_of(operand, axis))
    text = f"({index.text} - {steps})" if steps > 0 else f"({index.text} + {-steps})"
    inside = f">= {first}" if steps > 0 else f"< {behind}"
    inside = kernel.inside(axis, f"{bare(text)} {inside}")
    there = Index(text, index.label, False, inside)
    own = part(kernel, operand, place)
    x = kernel.attempt(lambda: kernel.pull(operand, {**own, axis: there}))
    if x is None:
        x = kernel.pull(operand, own)
        return turned_rows(kernel, x, index.label, text, inside, fill)
    if index.label not in x.labels or (index.label in x.clean and not fill):
        return x
    return within(kernel, x, index.label, inside, fill)


def within(kernel: KernelWriter, x: Tile, label: str, inside: str, fill: float = 0.0) -> Tile:
    """The tile with `fill` where a row is not inside."""
    text = f"tl.where({along(inside, label, x.labels)}, {x.text}, {fill})"
    return replace(x, text=kernel.let("moved", text), finite=x.finite | {label})


def turned_rows(
    kernel: KernelWriter, x: Tile, label: str, there: str, inside: str, fill: float = 0.0
) -> Tile:
    """A tile's elements from other rows; `fill` where those are not inside."""
    if label not in x.labels:
        x = with_label(kernel, x, label)
    at = kernel.let_index("there", f"tl.where({inside}, {there}, 0)")
    wide = kernel.broadcast(Tile(at, (label,), INT), x.labels)
    text = f"tl.gather({x.text}, {wide}, {x.labels.index(label)})"
    x = replace(x, text=kernel.let("there", text), clean=x.clean - {label})
    return within(kernel, x, label, inside, fill)


def move(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    op = node.op
    return moved(kernel, node.operands[0], place, op.axis, op.steps, float(op.fill))


def sums(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`sums = tl.cumsum(x, 0)`."""
    op, operand = node.op, node.operands[0]
    kernel.whole_along(node, place, op.axis)
    after = op.exclusive and kernel.is_product(operand)
    if op.exclusive and not after:
        x = moved(kernel, operand, place, op.axis, -1 if op.reverse else 1)
    else:
        x = kernel.pull(operand, place)
    if op.axis not in x.labels:
        x = with_label(kernel, x, op.axis)
    added = f"tl.maximum({x.text}, {ck.LEAST_GATE}).to(SUMS)" if op.gates else x.text
    back = ", reverse=True" if op.reverse else ""
    text = f"tl.cumsum({added}, {x.labels.index(op.axis)}{back})"
    made = kernel.let(node.name or "sums", text)
    if after:  # a product at moved rows would be made twice
        made = kernel.let("sums", f"{made} - {x.text}")
    off = {op.axis}
    return replace(x, text=made, clean=x.clean - off, finite=x.finite - off)


def spans(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`span = tl.cumsum(between, 0)`: from the column on to each row, as a sum of its own. If only
    exp is wanted of them they are differences of sums: of gates that are no less than exp tells."""
    op = node.op
    row, col = op.row, op.col.name
    kernel.whole_along(node, place, row, col)
    g = kernel.pull(node.operands[0], part(kernel, node.operands[0], place))
    if g.labels != (row,):
        raise NotInKernel("spans of several dims")
    i, j = place[row].text, place[col].text
    if _only_in_exp(kernel, node):
        total = _difference(kernel, g, op.exclusive)
    elif op.exclusive:
        g = moved(kernel, node.operands[0], place, row, 1)
        total = _sum_of_own(kernel, g, f"{i}[:, None] - 1 > {j}[None, :]")
    else:
        total = _sum_of_own(kernel, g, f"{i}[:, None] > {j}[None, :]")
    later = ">" if op.strict or op.exclusive else ">="
    kernel.lengths[col] = kernel.lengths[row]
    kernel.see(Tile("", (row, col)))
    kept = f"tl.where({i}[:, None] {later} {j}[None, :], {total}, float('-inf'))"
    return Tile(kernel.let("span", kept), (row, col))


def _only_in_exp(kernel: KernelWriter, node: Node) -> bool:
    """Whether nothing but exp is wanted of a value."""
    graph = kernel.frame.graph
    users = [graph[user].op for user in graph.users(node.id)]
    return all(isinstance(op, ir.Elementwise) and op.fn == "exp" for op in users)


def _difference(kernel: KernelWriter, g: Tile, exclusive: bool) -> str:
    """The spans of all pairs as differences."""
    gates = kernel.let_index("least", f"tl.maximum({g.text}, {ck.LEAST_GATE}).to(SUMS)")
    sums = kernel.let_index("gate_sums", f"tl.cumsum({gates}, 0)")
    until = kernel.let_index("until", f"{sums} - {gates}") if exclusive else sums
    return kernel.let_index("span", f"({until}[:, None] - {sums}[None, :]).to(tl.float32)")


def _sum_of_own(kernel: KernelWriter, g: Tile, after: str) -> str:
    """The spans of all pairs, each summed."""
    wide = kernel.let_index("between", f"tl.where({after}, {g.text}[:, None], 0.0)")
    return kernel.let_index("span", f"tl.cumsum({wide}, 0)")


def spans_gradient(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """At r the sum over i >= r > j: a pair counts from its later row on, to its earlier one."""
    op = node.op
    kernel.whole_along(node, place, op.row)
    col = kernel.whole(axis_of(kernel, node, op.col))
    x = kernel.pull(node.operands[0], {**place, op.col: col})
    x = kernel.arranged(x, (op.row, op.col))
    below = f"{place[op.row].text}[:, None] > {col.text}[None, :]"
    only = kernel.let("kept", f"tl.where({below}, {x.text}, 0.0).to(SUMS)")
    later = kernel.let("later", f"tl.sum({only}, 1)")
    text = f"tl.cumsum({later} - tl.sum({only}, 0), 0, reverse=True)"
    text = f"({text} - {later})" if op.exclusive else text
    return Tile(kernel.let("d_gate", f"{text}.to(tl.float32)"), (op.row,))


def axis_of(kernel: KernelWriter, node: Node, name: str) -> Axis:
    for operand in node.operands:
        for axis in kernel.frame.graph[operand].type.axes:
            if axis.name == name:
                return axis
    raise KeyError(name)


def inverse(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    op = node.op
    kernel.whole_along(node, place, op.row, op.col)
    x = kernel.arranged(kernel.pull(node.operands[0], place), (op.row, op.col))
    kernel.pieces.add("tile_inverse_unit_lower")
    rows = f"{kernel.lengths[op.row]}, {kernel.levels(op.row)}"
    x = masked(kernel, x, (op.row, op.col))
    text = f"tile_inverse_unit_lower({x.text}, {rows}, SOLVE)"
    return Tile(kernel.let(node.name or "inverse", text), (op.row, op.col), dot=True)


def scan(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`factor, scanned = tl.associative_scan((a, b), 0, tile_linear_step)`."""
    op = node.op
    kernel.whole_along(node, place, op.axis)
    if op.matrix is not None:
        raise NotInKernel("a scan of matrices")
    a, b, first = (kernel.pull(o, part(kernel, o, place)) for o in node.operands)
    labels = joined(tuple(kernel.order), a, b, first)
    labels = labels if op.axis in labels else (op.axis, *labels)
    wide = [
        x.text if x.labels == labels else kernel.let("wide", kernel.broadcast(x, labels))
        for x in (a, b)
    ]
    step = "tile_max_plus_step" if op.kind == "max-plus" else "tile_linear_step"
    kernel.pieces.add(step)
    back = ", reverse=True" if op.reverse else ""
    factor, made = kernel.names.fresh("factor"), kernel.names.fresh("scanned")
    pair, axis = f"({wide[0]}, {wide[1]})", labels.index(op.axis)
    scanned = f"tl.associative_scan({pair}, {axis}, {step}{back})"
    kernel.writer.line(f"{factor}, {made} = {scanned}")
    start = text_of(kernel, first, labels)
    text = (
        f"tl.maximum({factor} + {start}, {made})"
        if op.kind == "max-plus"
        else f"{factor} * {start} + {made}"
    )
    return Tile(kernel.let(node.name or "scan", text), labels)

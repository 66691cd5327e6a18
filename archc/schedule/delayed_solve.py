"""Layer IR -> layer IR: the inverse of a chunk's system is applied where the state is read.

    W = inverse @ w, U = inverse @ u;  along the chunks  Y = U + W @ S
        ->  along the chunks  Y = inverse @ (u + w @ S)

The walk does one small product more at every chunk. In return W and U are neither made nor kept:
they take more memory than the inverse. The gradient too needs only Y. And where u and w @ S nearly
cancel, as in a memory that holds what it is given, nothing is rounded before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import replace_walk
from archc.schedule.forms import Differentiate, bare, derived, with_forms


def inverses_last(layer: ir.Layer, differentiate: Differentiate) -> ir.Layer:
    """The layer, its chunked forms with inverses applied where the state is read."""

    def change(form: ck.ChunkForm) -> ck.ChunkForm | None:
        """The form, rewritten, or None where nothing fits."""
        graph = bare(form)
        recurrences = [node for node in graph if isinstance(node.op, ir.Recurrence)]
        rewritten = [_apply_late(graph, recurrence) for recurrence in recurrences]
        return derived(form, graph, differentiate) if any(rewritten) else None

    return with_forms(layer, change)


@dataclass(frozen=True)
class _Image:
    """A captured value inverse @ rows: its name, and the inverse, rows and product outside."""

    name: str
    inverse: int
    rows: int
    product: Node

    @property
    def label(self) -> str:
        """The label that the product sums over."""
        kept = {label for label, _ in self.product.op.out}
        (summed,) = {label for labels in self.product.op.ins for label in labels} - kept
        return summed


def _apply_late(graph: Graph, recurrence: Node) -> bool:
    """Rewrite one walk; whether its body fits: each image in a sum of which both terms are, or
    times something alone."""
    images = _images(graph, recurrence)
    inverses = {image.inverse for image in images}
    if len(inverses) != 1:
        return False
    (inverse,) = inverses
    body = _Body(graph, recurrence, images, inverse)
    return body.rewritten()


def _images(graph: Graph, recurrence: Node) -> list[_Image]:
    """The captures of a walk that are an inverse times rows."""
    found = []
    for name, operand in ir.captured(recurrence).items():
        node = graph[operand]
        if not ir.is_product(node.op):
            continue
        inverse, rows = node.operands
        if isinstance(graph[inverse].op, ck.Inverse):
            found.append(_Image(name, inverse, rows, node))
    return found


class _Body:
    """The body of a walk, rewritten."""

    def __init__(self, graph: Graph, recurrence: Node, images: list[_Image], inverse: int):
        self.graph, self.recurrence, self.inverse = graph, recurrence, inverse
        self.body = recurrence.op.body.copy()
        inputs = {n.op.name: n.id for n in self.body if isinstance(n.op, ir.Input)}
        self.images = {inputs[image.name]: image for image in images}
        op = graph[inverse].op
        type = graph[inverse].type
        self.row, self.col = type.axis(op.row), type.axis(op.col)
        self.chunk = recurrence.op.stream.name
        self.inputs: dict[str, int] = {}

    def rewritten(self) -> bool:
        """Put another walk in the place of this one, if every use of an image is understood."""
        terms = {id for node in self.body if (id := self._term(node)) is not None}
        terms |= set(self.images)
        used = [n for n in self.body if set(n.operands) & terms and n.id not in terms]
        sums = [n for n in used if isinstance(n.op, ir.Elementwise) and n.op.fn == "add"]
        whole = all(set(n.operands) <= terms for n in sums)
        if not sums or len(sums) != len(used) or not whole:
            return False
        if terms & set(self.body.outputs.values()):
            return False
        for node in sums:
            self._replace(node)
        self._walk()
        return True

    def _term(self, node: Node) -> int | None:
        """The id of a node, if it is an image times something else."""
        images = [o for o in node.operands if o in self.images]
        return node.id if ir.is_product(node.op) and len(images) == 1 else None

    def _replace(self, node: Node) -> None:
        """inverse @ p + inverse @ q -> inverse @ (p + q)"""
        body = self.body
        parts = [self._before(operand) for operand in node.operands]
        rows = Builder(body, node.span).fn("add", *parts)
        matrix = self._input("inverse", self.inverse)
        outer = [a for a in node.type.axes if a.name != self.row.name]
        shared = [a.name for a in body[matrix].type.axes]
        kept = tuple((a.name, a) for a in (*outer, self.row))
        labels = tuple(a.name for a in body[rows].type.axes)
        order = sorted(kept, key=lambda pair: node.type.names.index(pair[0]))
        op = ir.Contract((tuple(shared), labels), tuple(order))
        made = body.add(op, matrix, rows, name=node.name, span=node.span)
        body.substitute(node.id, made)

    def _before(self, operand: int) -> int:
        """A term without the inverse: rows as they are, or times something."""
        if operand in self.images:
            return self._rows(operand)
        node = self.body[operand]
        (image,) = (o for o in node.operands if o in self.images)
        place = node.operands.index(image)
        label_of = dict(zip(self.body[image].type.names, node.op.ins[place], strict=True))
        rows = self._rows(image)
        column = self.col.name
        label_of[column] = column
        ins = list(node.op.ins)
        ins[place] = tuple(label_of[name] for name in self.body[rows].type.names)
        row_label = label_of[self.row.name]
        out = tuple(
            (column, self.col) if label == row_label else (label, axis)
            for label, axis in node.op.out
        )
        operands = tuple(rows if o == image else o for o in node.operands)
        return self.body.add(ir.Contract(tuple(ins), out), *operands, span=node.span)

    def _rows(self, image: int) -> int:
        """The rows that an image is made of, as an input of the body."""
        found = self.images[image]
        return self._input(found.name, found.rows)

    def _input(self, name: str, outside: int) -> int:
        """An input of the body for a value along the chunks."""
        if name not in self.inputs:
            type = self.graph[outside].type
            axes: tuple[Axis, ...] = tuple(a for a in type.axes if a.name != self.chunk)
            self.inputs[name] = self.body.add(ir.Input(name, replace(type, axes=axes)))
        return self.inputs[name]

    def _walk(self) -> None:
        """The walk with what is captured now."""
        rows = {image.name: image.rows for image in self.images.values()}
        old = ir.captured(self.recurrence).items()
        captured = {"inverse": self.inverse} | {n: rows.get(n, id) for n, id in old}
        replace_walk(self.graph, self.recurrence, self.body, captured)

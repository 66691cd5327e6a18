"""Chunk IR -> chunk IR: a walk reads rows as they entered, and scales what its products make.

    X = k[i, K] * s[i];  along the chunks  X @ S, X.T @ Y
        ->  along the chunks  s[i] * (k @ S), k.T @ (s[i] * Y)

X is then neither written nor read, a walk that reads k under several scales loads it once, and k is
not rounded again before a product. What follows on such a walk, and is made by it, does the same.
This is for rows that the caller has: others have to be made in any case, and are as well made
scaled.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order, replace_walk
from archc.ir.value_names import is_saved
from archc.schedule.axes import is_one_a_row

MUL, NEG, DIV = ir.Elementwise("mul"), ir.Elementwise("neg"), ir.Elementwise("div")
WHERE, EQUAL = ir.Elementwise("where"), ir.Elementwise("eq")


def with_plain_rows(graph: Graph, heads: Collection[str]) -> Graph:
    """The graph whose walks read rows without their scales; itself if none can."""
    new = graph.copy()
    walks = [node for node in graph if isinstance(node.op, ir.Recurrence)]
    places: dict[int, float] = {}
    changed = [_Walk(new, new[walk.id], heads, places).rewritten() for walk in walks]
    if not any(changed):
        return graph
    if not any(map(is_saved, graph.outputs)):  # else what follows on a walk has its own kernel
        for node in [*new]:
            _behind(new, node, heads, places)
    return in_order(new, places)


def factors(
    b: Sharing, id: int, heads: Collection[str], divided: bool = False
) -> tuple[int, int | None]:
    """Rows and their scale, of which a value is the product; a scale lacks a dim of the rows, and
    rows may be the same for all heads. `divided`: 1 / d is a scale too. The value itself and None
    where it is no such product."""
    node = b.graph[id]
    if node.op == MUL or (divided and node.op == DIV):
        pairs = (node.operands, node.operands[::-1])
        for rows, by in pairs if node.op == MUL else pairs[:1]:
            if {*b.names(by)} - {*heads} < {*b.names(rows)} - {*heads}:
                scale = by if node.op == MUL else _reciprocal(b, by)
                inner, other = factors(b, rows, heads, divided)
                return inner, scale if other is None else b.add(MUL, other, scale)
    if divided and (value := _guarded(b.graph, node)) is not None:
        inner, scale = factors(b, value, heads, divided)
        if inner == b.graph[node.operands[0]].operands[0]:
            return inner, scale
    if node.op == NEG or isinstance(node.op, ck.Chunks) or ir.renames(node.op):
        inner, scale = factors(b, node.operands[0], heads, divided)
        through = None if scale is None else _through(b, node, scale)
        if through is not None:
            return inner if node.op == NEG else _again(b, node, inner), through
    return id, None


def _reciprocal(b: Sharing, id: int) -> int:
    """1 / d, which is finite where d is 0: what is divided is 0 there, or not finite as it was."""
    found = b.fn("div", b.number(1), id)
    if not b.names(id):
        return found
    most = b.fn("min", found, b.number(ck.LARGEST_SCALE))
    return b.fn("max", most, b.number(-ck.LARGEST_SCALE))


def _guarded(graph: Graph, node: Node) -> int | None:
    """The value in a choice that gives 0 where another value is 0."""
    if node.op != WHERE:
        return None
    condition, zero, value = (graph[each] for each in node.operands)
    compared = [zero, graph[condition.operands[1]]] if condition.op == EQUAL else []
    zeros = [isinstance(each.op, ir.Constant) and each.op.value == 0 for each in compared]
    return value.id if zeros == [True, True] else None


def _through(b: Sharing, node: Node, scale: int) -> int | None:
    """The scale of what a node makes of rows, from theirs."""
    op, names = node.op, b.names(scale)
    if op == NEG:
        return b.add(NEG, scale)
    if isinstance(op, ck.Chunks):
        along = op.stream in names and (op.steps is None or op.steps in names)
        along = along or not names
        return (b.add(op, scale) if names else scale) if along and not op.fill else None
    return _again(b, node, scale)


def _again(b: Sharing, node: Node, part: int) -> int:
    """An op on a part of its operand, which may lack axes of it."""
    renamed = isinstance(node.op, ir.Contract)
    return moved(b, node, 0, part) if renamed else b.add(node.op, part)


def moved(b: Sharing, node: Node, place: int, part: int) -> int:
    """A value with some axes of an operand of a contraction, under their names in the result."""
    label_of = dict(zip(b.names(node.operands[place]), node.op.ins[place], strict=True))
    labels = tuple(label_of[name] for name in b.names(part))
    out = tuple(each for each in node.op.out if each[0] in labels)
    kept = tuple(zip(labels, b.names(part), strict=True))
    alike = tuple((label, axis.name) for label, axis in out) == kept
    return part if alike else b.add(ir.Contract((labels,), out), part)


def enters(graph: Graph, id: int) -> bool:
    """Whether rows are those that the caller has, in chunks, and maybe one a token among 0."""
    node = graph[id]
    while ir.renames(node.op):
        node = graph[node.operands[0]]
    if not isinstance(node.op, ck.Chunks):
        return False
    given = graph[node.operands[0]]
    given = graph[given.operands[0]] if isinstance(given.op, ck.Place) else given
    return isinstance(given.op, ir.Input)


def stands(graph: Graph, id: int) -> bool:
    """Whether rows are in memory without a scale: those that the caller has, and those that pairs
    of rows are products of."""
    node = graph[id]
    while ir.renames(node.op):
        node = graph[node.operands[0]]
    users = map(graph.__getitem__, graph.users(node.id))
    near = any(isinstance(n.op, ck.NearGram) and node.id in n.operands[:2] for n in users)
    return near or enters(graph, id)


def _behind(graph: Graph, node: Node, heads: Collection[str], places: dict[int, float]) -> None:
    """Have a product of scaled rows and a state that a walk finds be one of the rows."""
    first, b = graph.fresh, Sharing(graph, node.span)
    op, states = node.op, [o for o in node.operands if isinstance(graph[o].op, ir.Result)]
    if not ir.is_product(op) or len(states) != 1:
        return
    (old,) = (each for each in node.operands if each not in states)
    rows, scale = factors(b, old, heads)
    if scale is None or not enters(graph, rows):
        return
    left, names = ({*graph[each].type.names} for each in (rows, scale))
    if not can_scale(graph, node, old, left, names):
        return
    made = scaled(b, node, old, rows, scale)
    places |= dict.fromkeys(range(first, graph.fresh), node.id - 0.5)
    places[made] = node.id
    graph.substitute(node.id, made)


class _Walk:
    """One walk of a graph, with a body of its own; what is new stands in `places`."""

    def __init__(
        self, graph: Graph, recurrence: Node, heads: Collection[str], places: dict[int, float]
    ) -> None:
        self.graph, self.recurrence, self.op = graph, recurrence, recurrence.op
        self.heads, self.places, self.first = heads, places, graph.fresh
        self.outside = Sharing(graph, recurrence.span)
        self.body = recurrence.op.body.copy()
        self.inside = Sharing(self.body, recurrence.span)
        self.inputs = {n.op.name: n.id for n in self.body if isinstance(n.op, ir.Input)}
        self.captured = ir.captured(recurrence)

    def rewritten(self) -> bool:
        """Put another walk in the place of this one, if it reads scaled rows."""
        changed = [self._rows(name) for name in [*self.captured] if name in self.inputs]
        if any(changed):
            self._put()
        return any(changed)

    def _input(self, name: str, outside: int) -> int:
        """An input of the body for a value along the chunks, under a new name."""
        known = (each for each, id in self.captured.items() if id == outside)
        found = next((self.inputs[each] for each in known if each in self.inputs), None)
        if found is not None:
            return found
        while name in self.captured:
            name += "_"
        self.captured[name] = outside
        type = self.graph[outside].type
        axes = tuple(axis for axis in type.axes if axis.name != self.op.stream.name)
        self.inputs[name] = self.body.add(ir.Input(name, replace(type, axes=axes)))
        return self.inputs[name]

    def _rows(self, name: str) -> bool:
        """Rows without their scale, if products alone read them."""
        rows, scale = factors(self.outside, self.captured[name], self.heads)
        if scale is None or not stands(self.graph, rows):
            return False
        old = self.inputs[name]
        used = [self.body[user] for user in self.body.users(old)]
        stream = {self.op.stream.name}
        names = {*self.graph[scale].type.names} - stream
        left = {*self.graph[rows].type.names} - stream
        if old in self.body.outputs.values():
            return False
        products = all(can_scale(self.body, user, old, left, names) for user in used)
        apart = is_one_a_row(self.graph[scale], self.heads) and enters(self.graph, scale)
        if not products and not apart:  # it may stand elsewhere than the rows
            return False
        plain = self._input(f"{name}_rows", rows)
        factor = self._input(f"{name}_scale", scale)
        if products:
            for user in used:
                self.body.substitute(user.id, scaled(self.inside, user, old, plain, factor))
        else:
            self.body.substitute(old, self.inside.add(MUL, plain, factor))
        return True

    def _put(self) -> None:
        """The walk with what is captured now."""
        before = range(self.first, self.graph.fresh)
        self.places |= dict.fromkeys(before, self.recurrence.id - 0.5)
        new = replace_walk(self.graph, self.recurrence, self.body, self.captured)
        self.places |= {made: old for old, made in new.items()}


def scaled(b: Sharing, user: Node, old: int, plain: int, factor: int) -> int:
    """A product of scaled rows, as one of the rows."""
    place = user.operands.index(old)
    kept = {label for label, _ in user.op.out}
    labels = dict(zip(b.names(old), user.op.ins[place], strict=True))
    operands = [plain if o == old else o for o in user.operands]
    ins = list(user.op.ins)
    ins[place] = tuple(labels[name] for name in b.names(plain))
    product = replace(user.op, ins=tuple(ins))
    if all(labels[name] in kept for name in b.names(factor)):
        return b.add(MUL, b.add(product, *operands), factor)
    operands[1 - place] = b.add(MUL, operands[1 - place], factor)
    return b.add(product, *operands)


def can_scale(graph: Graph, user: Node, scaled: int, rows: set[str], names: set[str]) -> bool:
    """Whether a node is a product of `scaled` and something else, whose result or whose other side
    can be scaled along the axes of these names instead; `rows` are the axes that are left then."""
    op = user.op
    product = isinstance(op, ir.Contract) and len(user.operands) == 2
    if not product or user.operands.count(scaled) != 1:
        return False
    place = user.operands.index(scaled)
    mine, other = (
        dict(zip(graph[operand].type.names, labels, strict=True))
        for operand, labels in (
            (user.operands[at], op.ins[at]) for at in (place, 1 - place)
        )
    )  # fmt: skip
    kept = {label: axis.name for label, axis in op.out}
    if any(other.get(name) != mine[name] for name in mine.keys() - rows):
        return False
    if all(mine[name] in kept for name in names):
        return all(kept[mine[name]] == name for name in names)
    return all(other.get(name) == mine[name] for name in names)

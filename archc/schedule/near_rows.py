"""Chunk IR -> chunk IR: rows stand as they are seen from the middle of their chunk.

    X = q exp(G), Y = k exp(G[-1] - G);  A = gram[sums](q, k, G);  along the chunks  X @ S, Y.T @ v
        ->  X = q exp(G - m), Y = k exp(m - G);  A = X @ Y.T;
            along the chunks  X @ (exp(m) S), exp(G[-1] - m) (exp(m) S + Y.T @ v)

with G the running sums of log gates along the rows, and m half of the last one. What pairs of rows
decay by is then in the rows that a walk reads anyway: no sums are written, nor rows read beside
them. A channel that forgets too much for that (`ck.Middle`) stands as it did, and pairs of such a
chunk are made of the rows themselves, by a launch that makes its own sums.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import in_order, replace_walk
from archc.ir.value_names import primal
from archc.schedule.row_scales import MUL, WHERE, can_scale, scaled

EXP, ADD = ir.Elementwise("exp"), ir.Elementwise("add")


def with_near_rows(graph: Graph) -> Graph:
    """The graph with such rows; itself if there are none, or it is a gradient."""
    if any(primal(name) is not None for name in graph.outputs):
        return graph
    new = graph.copy()
    found = [_Rows(new, n) for n in graph if isinstance(n.op, ck.Sums) and n.op.gates]
    changed = [rows.stand_near() for rows in found if rows.may_stand]
    return in_order(new) if changed else graph


class _Rows:
    """The rows that decay by the same sums of gates."""

    def __init__(self, graph: Graph, sums: Node) -> None:
        self.graph, self.sums, self.row = graph, sums, sums.op.axis
        self.b = Sharing(graph, sums.span)
        users = [graph[user] for user in graph.users(sums.id)]
        self.grams = [node for node in users if type(node.op) is ck.Gram]
        self.since = [node for node in users if node.op == EXP]
        rest = [node for node in users if node.op == ck.Rest(self.row)]
        self.until = [n for each in rest for n in map(graph.__getitem__, graph.users(each.id))]
        alone = len(users) == len(self.grams) + len(self.since) + len(rest)
        scaled = all(self._scaled(node) for node in self.grams)
        self.may_stand = alone and bool(self.grams) and scaled

    def _scaled(self, gram: Node) -> bool:
        """Whether both sides of a Gram are read with their decays to the ends of the chunk too."""
        a, b, _ = gram.operands
        plain = not (gram.op.exclusive or gram.op.signed)
        plain = plain and self.sums.id not in self.graph.outputs.values()
        return plain and bool(self._with(self.since, a)) and bool(self._with(self.until, b))

    def _with(self, decays: list[Node], rows: int) -> list[Node]:
        """The products of rows and a decay."""
        users = (self.graph[user] for decay in decays for user in self.graph.users(decay.id))
        return [n for n in users if n.op == MUL and rows in n.operands]

    def stand_near(self) -> None:
        """Let Grams be products of such rows, and all that reads these scale them."""
        b, row, sums = self.b, self.row, self.sums.id
        middle, last = b.add(ck.Middle(row), sums), b.add(ck.Select(row, -1), sums)
        near = b.fn("lt", middle, b.number(ck.FAR))
        seen = b.fn("where", near, middle, b.number(0)), b.fn("where", near, middle, last)
        left, right = (b.add(ck.Less(row), sums, each) for each in seen)
        left, right = b.fn("exp", left), b.fn("exp", b.fn("neg", right))
        rest = b.add(ck.Less(row, last=True), sums, seen[1])
        scales = self._named("read decay", seen[0]), self._named("rest decay", rest)
        later = {a: b.add(MUL, a, left) for a in {gram.operands[0] for gram in self.grams}}
        earlier = {k: b.add(MUL, k, right) for k in {gram.operands[1] for gram in self.grams}}
        for decays_, made, scale in ((self.since, later, 0), (self.until, earlier, 1)):
            for rows, stands in made.items():
                for node in self._with(decays_, rows):
                    self._scale(node.id, stands, scales[scale])
        for gram in self.grams:
            rows = later[gram.operands[0]], earlier[gram.operands[1]]
            op = ck.NearGram(gram.op.over, row, gram.op.col, gram.op.strict)
            made = self.graph.add(op, *rows, middle, *gram.operands, name=gram.name, span=gram.span)
            self.graph.substitute(gram.id, made)

    def _named(self, name: str, exponent: int) -> int:
        """exp of a value, with a name for readers."""
        return self.graph.add(EXP, exponent, name=name, span=self.sums.span)

    def _scale(self, old: int, rows: int, scale: int) -> None:
        """Let what reads scaled rows scale them, and products their results or their other side."""
        b, graph = self.b, self.graph
        whole = b.add(MUL, rows, scale)
        graph.substitute(old, whole)
        left, names = {*b.names(rows)}, {*b.names(scale)}
        for user in map(graph.__getitem__, graph.users(whole)):
            if can_scale(graph, user, whole, left, names):
                graph.substitute(user.id, scaled(b, user, whole, rows, scale))


def with_common_decays(graph: Graph) -> Graph:
    """The graph whose walks scale a state and what is added to it at once, where that decays from
    the middle of the chunk on: S exp(G[-1]) + exp(G[-1] - m) a = exp(G[-1] - m) (S exp(m) + a)."""
    new, places = graph.copy(), dict[int, float]()
    for walk in graph:
        if isinstance(walk.op, ir.Recurrence):
            _scale_at_once(new, new[walk.id], places)
    return in_order(new, places) if places else graph


def _scale_at_once(graph: Graph, walk: Node, places: dict[int, float]) -> None:
    """Let the states of a walk be scaled so; what is new stands in `places`."""
    first, made = graph.fresh, _Walk(graph, walk)
    changed = [made.scales_at_once(state) for state in walk.op.states]
    if not any(changed):
        return
    places |= dict.fromkeys(range(first, graph.fresh), walk.id - 0.5)
    put = replace_walk(graph, walk, made.body, made.captured)
    places |= {new: old for old, new in put.items()}


class _Walk:
    """A walk with a body of its own."""

    def __init__(self, graph: Graph, walk: Node) -> None:
        self.graph, self.stream = graph, walk.op.stream.name
        self.captured, self.body = ir.captured(walk), walk.op.body.copy()
        self.inside, self.outside = Sharing(self.body, walk.span), Sharing(graph, walk.span)

    def scales_at_once(self, state: ir.State) -> bool:
        """Scale a state and what is added to it at once, if that can be."""
        body, b = self.body, self.inside
        total = body[body.outputs[state.name]]
        parts = [self._part(each) for each in total.operands] if total.op == ADD else []
        found = [part for part in parts if part is not None]
        for (value, whole), (more, rest) in permutations(found, 2):
            middle = _middle(self.graph, whole, rest)
            if middle is None:
                continue
            decay = self._input(self.outside.add(EXP, middle), "middle decay")
            kept = b.add(MUL, self._value(value), decay)
            both = b.add(ADD, kept, self._value(more))
            body.substitute(total.id, b.add(MUL, both, self._input(rest, "rest decay")))
            return True
        return False

    def _value(self, part: int | tuple[int]) -> int:
        """A value of the body, which may be outside of it."""
        return part if isinstance(part, int) else self._input(part[0])

    def _part(self, id: int) -> tuple[int | tuple[int], int] | None:
        """A value of the body, or what it captures of one outside, and what scales it there."""
        node = self.body[id]
        if isinstance(node.op, ir.Input) and node.op.name in self.captured:
            made = self.graph[self.captured[node.op.name]]
            return ((made.operands[0],), made.operands[1]) if made.op == MUL else None
        for value, scale in (node.operands, node.operands[::-1]) if node.op == MUL else ():
            op = self.body[scale].op
            if isinstance(op, ir.Input) and op.name in self.captured:
                return value, self.captured[op.name]
        return None

    def _input(self, outside: int, word: str = "added") -> int:
        """An input of the body for a value along the chunks."""
        for node in self.body:
            name = node.op.name if isinstance(node.op, ir.Input) else ""
            if self.captured.get(name) == outside:
                return node.id
        name = numbered(word, {*self.captured}, ".")
        self.captured[name] = outside
        type = self.graph[outside].type
        axes = tuple(axis for axis in type.axes if axis.name != self.stream)
        return self.body.add(ir.Input(name, replace(type, axes=axes)))


def _middle(graph: Graph, whole: int, rest: int) -> int | None:
    """m, of exp(G[-1]) and exp(G[-1] - m)."""
    found, scale = graph[whole], graph[rest]
    if not isinstance(found.op, ck.Select) or scale.op != EXP:
        return None
    decay, less = graph[found.operands[0]], graph[scale.operands[0]]
    last = isinstance(less.op, ck.Less) and less.op.last
    same = decay.op == EXP and less.operands[:1] == decay.operands
    return less.operands[1] if last and same else None


def is_power(graph: Graph, id: int) -> bool:
    """Whether a value is what a state is scaled by before rows that stand near: a power of 2."""
    node = graph[id]
    chosen = graph[node.operands[0]] if node.op == EXP else node
    if chosen.op != WHERE:
        return False
    _, middle, other = map(graph.__getitem__, chosen.operands)
    return isinstance(middle.op, ck.Middle) and isinstance(other.op, ir.Constant)

"""Kernel IR -> kernel IR: a walk along chunks goes in segments, so that more programs have work.

    along the chunks of a sequence    S' = a S + b        one program a head
    in segments, all at once          E' = a E + b        from 0:  what a segment writes
                                      D' = a D            from 1:  what it leaves of a state
    along the segments                S' = D S + E        what each of them starts from
    in segments, all at once          S' = a S + b        from there, with all results

Where a state is only scaled, and something is added to it, what is left of it after a segment is a
scaling too. So it is with a running maximum, S' = max(S + a, b). Where a matrix is applied to it,
D is a matrix: a walk of its own makes it (`transition.py`), and it is applied to S.

D is made of factors that decay, exp of a log gate of -inf among them, which is 0: nothing is
divided. Where decays grow beyond all numbers, a state of 0 stays 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Node, Type
from archc.ir.kernel import Buffer, Kernel, Segments
from archc.ir.roles import RESCAN, SEGMENT, of_segments
from archc.ir.value_names import state_before
from archc.schedule.joining import LARGEST, SCALED, Join, Rule, number
from archc.schedule.transition import Whole, transition

OVERHEAD = 32
"""How many chunks are walked in the time that all else takes: two launches, and tables of rows."""

MATRIX, WIDEST = 4, 128
"""How many chunks are walked while segments are joined by one matrix; and the longest dim along
which one is applied: those of longer ones have no room in float32."""


def chunks_of_segment(
    programs: int, chunks: int, processors: int, passes: int = 2, each: int = 1
) -> int:
    """How many chunks a walk of so many programs has in each segment; 0 where it goes whole: the
    rule of generated files, which know the numbers only when they run. Segments are walked in so
    many passes, and `each` takes as long as so many chunks when they are joined."""
    if 2 * programs > processors:
        return 0
    best = math.isqrt(passes * chunks // each)
    several = max(1, min(2 * processors // max(programs, 1), best))
    length = -(-chunks // several)
    needed = passes * length + each * several + OVERHEAD
    return length if 4 * needed <= 3 * chunks else 0


@dataclass(frozen=True)
class Carried:
    """A state's share of a value: times a factor, which is a node of the body; None: as it is."""

    state: str
    factor: int | None = None


def segments(kernel: Kernel, tokens: Axis) -> Segments | str:
    """A walk in segments, or why it goes whole."""
    try:
        return _Walk(kernel, tokens).segments()
    except Whole as why:
        return str(why)


class _Walk:
    """One walk, and what becomes of its states."""

    def __init__(self, kernel: Kernel, tokens: Axis) -> None:
        assert kernel.walk is not None
        self.kernel, self.recurrence = kernel, kernel.graph[kernel.walk]
        self.op: ir.Recurrence = self.recurrence.op
        self.starts = self.recurrence.operands[len(self.op.captures) :]
        if self.op.stream.size != sympy.ceiling(tokens.size / ck.CHUNK):
            raise Whole("it does not walk chunks of the sequence")
        self._check_starts()
        self._check_borders()
        self.body = self.op.body.copy()
        self.matrix = self._matrix()
        if self.matrix and len(self.op.states) > 1:
            raise Whole("several states meet in products of matrices")
        found = {state.name: self._carried(state) for state in self.op.states}
        self.rules = {name: rule for name, (rule, _) in found.items()}
        self.factors = {name: factor for name, (_, factor) in found.items()}

    # --- what may go in segments ---

    def _check_starts(self) -> None:
        """Refuse states that tokens make, and such as several heads have in common."""
        for state, start in zip(self.op.states, self.starts, strict=True):
            nodes = [self.kernel.graph[id] for id in made_by(self.kernel, [start])]
            streams = [a for node in nodes for a in node.type.axes if a.kind == "stream"]
            if streams:
                raise Whole(f"`{state.name}` before the first chunk is made from tokens")
            lacks = [a.name for a in self.kernel.grid if a not in state.axes]
            if lacks:
                raise Whole(f"`{state.name}` is one for all of {', '.join(lacks)}")

    def _loaded(self) -> bool:
        """Whether every state before the first chunk is loaded as it is, for nothing else, and
        nothing else is loaded once for a sequence."""
        graph, loads = self.kernel.graph, self.kernel.loads
        made = made_by(self.kernel, [self.recurrence.id, *self.kernel.stores.values()])
        users = [sum(start in graph[id].operands for id in made) for start in self.starts]
        axes = [{a.name for a in state.axes} for state in self.op.states]
        same = [
            start in loads and {*graph[start].type.names} == names
            for start, names in zip(self.starts, axes, strict=True)
        ]
        names = {loads.get(start) for start in self.starts}
        return all(same) and users == [1] * len(users) and not rows_of(self.kernel) - names

    def _again(self) -> Kernel:
        """The walk of a segment, from states that are given as they are."""
        graph, loads = self.kernel.graph.copy(), dict(self.kernel.loads)
        given = list(self.recurrence.operands[: len(self.op.captures)])
        for state in self.op.states:
            name = f"{state.name}.starts"
            given.append(graph.add(ir.Input(name, Type(state.axes))))
            loads[given[-1]] = name
        walk = graph.add(self.op, *given, span=self.recurrence.span)
        graph.substitute(self.recurrence.id, walk)
        title, why = of_segments(self.kernel.name, RESCAN), ("along the chunks of a segment",)
        return replace(self.kernel, name=title, graph=graph, loads=loads, walk=walk, why=why)

    def _check_borders(self) -> None:
        """Refuse what asks where the chunks of a sequence begin or end."""
        name = self.op.stream.name
        asking = (ck.AtLast, ir.Shift, ir.Position, ck.Move)
        made = made_by(self.kernel, [self.recurrence.id, *self.kernel.stores.values()])
        for node in (*map(self.kernel.graph.__getitem__, made), *self.op.body):
            if isinstance(node.op, asking) and name in _along(node.op):
                raise Whole("it asks where the chunks of a sequence begin or end")

    # --- what becomes of a state ---

    def _matrix(self) -> bool:
        """Whether a product of matrices is made of a state."""
        names = {state.before for state in self.op.states}
        starts = [n.id for n in self.body if isinstance(n.op, ir.Input) and n.op.name in names]
        carried = {id for start in starts for id in self.body.descendants(start)}
        carried &= {a for id in self._next() for a in (*self.body.ancestors(id), id)}
        return any(isinstance(self.body[id].op, ir.Contract) for id in carried)

    def _next(self) -> list[int]:
        """The states after a chunk."""
        return [self.body.outputs[state.name] for state in self.op.states]

    def _carried(self, state: ir.State) -> tuple[Rule, int | None]:
        """The rule of a state and the factor of each chunk."""
        why = Whole("")
        if self.matrix:
            return SCALED, None
        for rule in (SCALED, LARGEST):
            try:
                found = self._of(self.body.outputs[state.name], rule)
            except Whole as reason:
                why = why if str(why) else reason
                continue
            if found is None:
                raise Whole(f"nothing is left of `{state.name}` after a chunk")
            if found.state != state.name:
                raise Whole(f"`{state.name}` is made from `{found.state}`")
            self._check_factor(state, found.factor)
            return rule, found.factor
        raise why

    def _check_factor(self, state: ir.State, factor: int | None) -> None:
        """Refuse a factor that has more axes than its state."""
        names = {axis.name for axis in state.axes}
        if factor is not None and not {*self.body[factor].type.names} <= names:
            raise Whole(f"`{state.name}` is scaled along more axes than it has")

    def _of(self, id: int, rule: Rule) -> Carried | None:
        """A state's share of a value of the body; None if it has none."""
        node = self.body[id]
        if isinstance(node.op, ir.Input):
            names = {state.before: state.name for state in self.op.states}
            return Carried(names[node.op.name]) if node.op.name in names else None
        parts = [self._of(operand, rule) for operand in node.operands]
        having = [(each, o) for each, o in zip(parts, node.operands, strict=True) if each]
        if not having:
            return None
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        if fn not in (rule.times, rule.plus) or len(having) > 1:
            raise Whole(self._reason(node, len(having)))
        ((carried, operand),) = having
        if fn == rule.plus:
            return carried
        (other,) = (o for o in node.operands if o != operand)
        if carried.factor is None:
            return Carried(carried.state, other)
        product = Builder(self.body).fn(rule.times, carried.factor, other)
        return Carried(carried.state, product)

    def _reason(self, node: Node, count: int) -> str:
        """The reason why a value is no state that is only scaled."""
        if count > 1:
            return "several values of its states meet"
        name = node.op.fn if isinstance(node.op, ir.Elementwise) else type(node.op).__name__
        return f"its states go through `{name}`"

    # --- the kernels ---

    def segments(self) -> Segments:
        """The kernels beside the walk, and what stands between them."""
        kept = self._kept()
        names = {state.name: f"{state.name}.ends" for state in self.op.states}
        kernels = [self._ends(names, kept)]
        axes = {state.name: state.axes for state in self.op.states} | dict(kept.values())
        between = {**names, **{name: name for name, _ in kept.values()}}
        if self.matrix:
            (state,) = names
            turn, row, column, alone = transition(self.kernel, f"{state}.kept")
            kernels.append(turn)
            ((id, name),) = ((id, n) for id, n in turn.loads.items() if n == f"{state}.kept")
            axes[name], between[name] = turn.graph[id].type.axes, name
            join = self._join_matrix(names, (name, axes[name]), row, column)
        else:
            row, alone, join = None, None, self._join(names, kept)
        buffers = [Buffer(between[name], Type(axes[name])) for name in between]
        again = None if self._loaded() else self._again()
        starts = {}
        for state, start in zip(self.op.states, self.starts, strict=True):
            name = f"{state.name}.starts"
            starts[self.kernel.loads[start] if again is None else name] = name
            buffers.append(Buffer(name, Type(state.axes)))
        lasts = {end: names[state] for state, end in self.kernel.ends.items()}
        rows = frozenset() if again is None else rows_of(again) - {*starts}
        stores = {*self.kernel.ends} == {*names}
        from_zero = again is None and not kept and stores and {*self.rules.values()} == {SCALED}
        return Segments(
            tuple(kernels), join, tuple(buffers), starts, lasts, row, again, rows, from_zero,
            alone if from_zero else None,
        )  # fmt: skip

    def _join_matrix(
        self, names: dict[str, str], kept: tuple[str, tuple[Axis, ...]], row: Axis, column: Axis
    ) -> Kernel:
        """The kernel that walks the segments with a matrix for each."""
        made = Join(self.kernel, exact=True)
        (state,), (start,) = self.op.states, self.starts
        made.add_matrix(state, start, names[state.name], kept, row, column)
        return made.kernel(self.op)

    def _kept(self) -> dict[tuple[Rule, int], tuple[str, tuple[Axis, ...]]]:
        """The name and axes of what a segment leaves of states, for each factor."""
        found: dict[tuple[Rule, int], tuple[str, tuple[Axis, ...]]] = {}
        grid = {axis.name for axis in self.kernel.grid}
        for state in self.op.states:
            factor = self.factors[state.name]
            if factor is not None:
                wanted = grid | set(self.body[factor].type.names)
                axes = tuple(axis for axis in state.axes if axis.name in wanted)
                found.setdefault((self.rules[state.name], factor), (f"{state.name}.kept", axes))
        return found

    def _ends(
        self, names: dict[str, str], kept: dict[tuple[Rule, int], tuple[str, tuple[Axis, ...]]]
    ) -> Kernel:
        """The kernel that walks each segment from nothing."""
        graph, body = self.kernel.graph.copy(), self.body
        states = list(self.op.states)
        starts = [number(graph, self.rules[state.name].nothing) for state in states]
        body.outputs = {state.name: body.outputs[state.name] for state in states}
        for (rule, factor), (name, axes) in kept.items():
            before = body.add(ir.Input(state_before(name), Type(axes)))
            body.outputs[name] = Builder(body).fn(rule.times, before, factor)
            states.append(ir.State(name, axes))
            starts.append(number(graph, rule.one))
        body.prune()
        read = {node.op.name for node in body if isinstance(node.op, ir.Input)}
        given = {n: id for n, id in ir.captured(self.recurrence).items() if n in read}
        op = replace(
            self.op, captures=(*given,), states=tuple(states), body=body.renumbered(lambda id: id),
            chunked=None,
        )  # fmt: skip
        walk = graph.add(op, *given.values(), *starts, span=self.recurrence.span)
        own = set(self.kernel.stores.values())
        loads = {id: name for id, name in self.kernel.loads.items() if id not in own}
        ends = {state.name: names.get(state.name, state.name) for state in states}
        for state in states:
            loads[graph.add(ir.Input(ends[state.name], Type(state.axes)))] = ends[state.name]
        why = ("of each segment of the sequence by itself",)
        title = of_segments(self.kernel.name, SEGMENT)
        grid, split, most = self.kernel.grid, self.kernel.split, self.kernel.most
        return Kernel(title, graph, loads, {}, grid, split, walk, ends, why, most=most)

    def _join(
        self, names: dict[str, str], kept: dict[tuple[Rule, int], tuple[str, tuple[Axis, ...]]]
    ) -> Kernel:
        """The kernel that walks the segments."""
        made = Join(self.kernel)
        for state, start in zip(self.op.states, self.starts, strict=True):
            rule, factor = self.rules[state.name], self.factors[state.name]
            scale = None if factor is None else kept[rule, factor]
            made.add(state, start, names[state.name], rule, scale)
        return made.kernel(self.op)


def _along(op: object) -> set[str]:
    """The axis that an op looks along."""
    axes = {getattr(op, "stream", None), getattr(op, "axis", None)}
    return {getattr(axis, "name", axis) for axis in axes if axis is not None}


def made_by(kernel: Kernel, wanted: Iterable[int]) -> list[int]:
    """The nodes that a kernel makes for some values."""
    graph, own = kernel.graph, set(kernel.stores.values())
    found, waiting = dict[int, None](), [*wanted]
    while waiting:
        id = waiting.pop()
        if id not in found and (id in own or id not in kernel.loads):
            found[id] = None
            waiting += graph[id].operands
    return [*found]


def rows_of(kernel: Kernel) -> frozenset[str]:
    """The values that an inter-chunk scan loads with a row for each sequence, not one for each
    token or chunk."""
    assert kernel.walk is not None
    graph = kernel.graph
    made = made_by(kernel, [kernel.walk, *kernel.stores.values()])
    read = {o for id in made for o in graph[id].operands if o not in made}
    kinds = {id: {axis.kind for axis in graph[id].type.axes} for id in read}
    rows = (id for id in read if "batch" in kinds[id] and "stream" not in kinds[id])
    return frozenset(kernel.loads[id] for id in rows)

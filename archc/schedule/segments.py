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
from dataclasses import dataclass, replace

import sympy

from archc.dims import Axis, size_symbol
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.kernel import Buffer, Kernel, Segments
from archc.ir.shapes import arrange
from archc.schedule.transition import Whole, transition

SEGMENT = Axis("segment", size_symbol("segments"), "stream")
"""The segments of all sequences, one after the other."""


@dataclass(frozen=True)
class Rule:
    """How a state becomes the next: `times` a factor, `plus` something; `one` and `nothing` change
    nothing in these."""

    times: str
    plus: str
    one: sympy.Expr
    nothing: sympy.Expr


SCALED = Rule("mul", "add", sympy.Integer(1), sympy.Integer(0))
LARGEST = Rule("add", "max", sympy.Integer(0), -sympy.oo)


OVERHEAD = 32
"""How many chunks are walked in the time that all else takes: two launches, and tables of rows."""

MATRIX, WIDEST, MOST = 4, 128, 32
"""How many chunks are walked while segments are joined by one matrix; the longest dim along which
one is applied: those of longer ones have no room in float32; and how much of the other dim of the
state a program has beside it."""


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
    """What a value has of a state: times a factor, which is a node of the body; None: as it is."""

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
        self.kernel, self.fold = kernel, kernel.graph[kernel.walk]
        self.op: ir.Fold = self.fold.op
        self.starts = self.fold.operands[len(self.op.captures) :]
        if self.op.stream.size != sympy.ceiling(tokens.size / ck.CHUNK):
            raise Whole("it does not walk chunks of the sequence")
        self._check_starts()
        self._check_borders()
        self.body = self.op.body.copy()
        self.matrix = self._matrix()
        found = {state.name: self._carried(state) for state in self.op.states}
        self.rules = {name: rule for name, (rule, _) in found.items()}
        self.factors = {name: factor for name, (_, factor) in found.items()}

    # --- what may go in segments ---

    def _check_starts(self) -> None:
        """Refuse states that the walk does not load as they are, or loads for something else."""
        graph, loads = self.kernel.graph, self.kernel.loads
        for state, start in zip(self.op.states, self.starts, strict=True):
            node = graph[start]
            if start not in loads or set(node.type.names) != {a.name for a in state.axes}:
                raise Whole(f"`{state.name}` before the first chunk is made in the walk")
            if len({id for id in self._made() if start in graph[id].operands}) > 1:
                raise Whole(f"`{state.name}` before the first chunk is wanted at every chunk")
            lacks = [a.name for a in self.kernel.grid if a.name not in node.type.names]
            if lacks:
                raise Whole(f"`{state.name}` is one for all of {', '.join(lacks)}")

    def _made(self) -> set[int]:
        """The nodes that the walk makes, and the Fold itself."""
        graph, own = self.kernel.graph, set(self.kernel.stores.values())
        found, waiting = set[int](), [self.fold.id, *own]
        while waiting:
            id = waiting.pop()
            if id not in found and (id in own or id not in self.kernel.loads):
                found.add(id)
                waiting += graph[id].operands
        return found

    def _check_borders(self) -> None:
        """Refuse what asks where the chunks of a sequence begin or end."""
        name = self.op.stream.name
        asking = (ck.AtLast, ir.Shift, ir.Position, ck.Move)
        for node in (*map(self.kernel.graph.__getitem__, self._made()), *self.op.body):
            if isinstance(node.op, asking) and name in _along(node.op):
                raise Whole("it asks where the chunks of a sequence begin or end")

    # --- what becomes of a state ---

    def _matrix(self) -> bool:
        """Whether a product of matrices is made of a state."""
        names = {f"{state.name}[t-1]" for state in self.op.states}
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
        """What a value of the body has of a state; None if nothing."""
        node = self.body[id]
        if isinstance(node.op, ir.Input):
            names = {f"{state.name}[t-1]": state.name for state in self.op.states}
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
        product = self.body.add(ir.Elementwise(rule.times), carried.factor, other)
        return Carried(carried.state, product)

    def _reason(self, node: Node, count: int) -> str:
        """Why a value is no state that is only scaled."""
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
            turn, row, column = transition(self.kernel, f"{state}.kept")
            kernels.append(turn)
            ((id, name),) = ((id, n) for id, n in turn.loads.items() if n == f"{state}.kept")
            axes[name], between[name] = turn.graph[id].type.axes, name
            join = self._join_matrix(names, (name, axes[name]), row, column)
        else:
            row, join = None, self._join(names, kept)
        buffers = [Buffer(between[name], Type(axes[name])) for name in between]
        starts = {}
        for state, start in zip(self.op.states, self.starts, strict=True):
            starts[self.kernel.loads[start]] = f"{state.name}.starts"
            buffers.append(Buffer(f"{state.name}.starts", Type(state.axes)))
        lasts = {end: names[state] for state, end in self.kernel.ends.items()}
        return Segments(tuple(kernels), join, tuple(buffers), starts, lasts, row)

    def _join_matrix(
        self, names: dict[str, str], kept: tuple[str, tuple[Axis, ...]], row: Axis, column: Axis
    ) -> Kernel:
        """The kernel that walks the segments with a matrix for each."""
        made = _Join(self.kernel, exact=True)
        ((state, start),) = zip(self.op.states, self.starts, strict=True)
        made.add_matrix(state, self.kernel.loads[start], names[state.name], kept, row, column)
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
        starts = [_number(graph, self.rules[state.name].nothing) for state in states]
        body.outputs = {state.name: body.outputs[state.name] for state in states}
        for (rule, factor), (name, axes) in kept.items():
            before = body.add(ir.Input(f"{name}[t-1]", Type(axes)))
            body.outputs[name] = body.add(ir.Elementwise(rule.times), before, factor)
            states.append(ir.State(name, axes))
            starts.append(_number(graph, rule.one))
        body.prune()
        read = {node.op.name for node in body if isinstance(node.op, ir.Input)}
        given = dict(zip(self.op.captures, self.fold.operands, strict=False))
        given = {name: id for name, id in given.items() if name in read}
        op = replace(
            self.op, captures=(*given,), states=tuple(states), body=body.renumbered(lambda id: id),
            chunked=None,
        )  # fmt: skip
        walk = graph.add(op, *given.values(), *starts, span=self.fold.span)
        own = set(self.kernel.stores.values())
        loads = {id: name for id, name in self.kernel.loads.items() if id not in own}
        ends = {state.name: names.get(state.name, state.name) for state in states}
        for state in states:
            loads[graph.add(ir.Input(ends[state.name], Type(state.axes)))] = ends[state.name]
        why = ("of each segment of the sequence by itself",)
        title = f"{self.kernel.name}_ends"
        grid, split, most = self.kernel.grid, self.kernel.split, self.kernel.most
        return Kernel(title, graph, loads, {}, grid, split, walk, ends, why, most=most)

    def _join(
        self, names: dict[str, str], kept: dict[tuple[Rule, int], tuple[str, tuple[Axis, ...]]]
    ) -> Kernel:
        """The kernel that walks the segments."""
        made = _Join(self.kernel)
        for state, start in zip(self.op.states, self.starts, strict=True):
            rule, factor = self.rules[state.name], self.factors[state.name]
            scale = None if factor is None else kept[rule, factor]
            made.add(state, self.kernel.loads[start], names[state.name], rule, scale)
        return made.kernel(self.op)


class _Join:
    """The walk along the segments, under construction."""

    def __init__(self, walk: Kernel, exact: bool = False) -> None:
        self.walk, self.exact, infer = walk, exact, walk.graph.infer
        self.graph, self.body = Graph[object](infer), Graph[object](infer)
        self.loads: dict[int, str] = {}
        self.captures: dict[str, int] = {}
        self.starts: dict[str, int] = {}

    def add(
        self, state: ir.State, start: str, end: str, rule: Rule,
        kept: tuple[str, tuple[Axis, ...]] | None,
    ) -> None:  # fmt: skip
        """S' = D S + E for one state."""
        body, name = self.body, state.name
        self.starts[name] = self._load(start, state.axes)
        before = body.add(ir.Input(f"{name}[t-1]", Type(state.axes)), name=name)
        scaled = before
        if kept is not None:
            scale = self._captured(*kept)
            scaled = body.add(ir.Elementwise(rule.times), before, scale)
            if rule == SCALED:
                zero = _number(body, rule.nothing)
                empty = body.add(ir.Elementwise("eq"), before, zero)
                scaled = body.add(ir.Elementwise("where"), empty, zero, scaled)
        made = self._captured(end, state.axes)
        body.outputs[name] = body.add(ir.Elementwise(rule.plus), scaled, made)
        body.outputs[f"{name}.starts"] = before

    def add_matrix(
        self, state: ir.State, start: str, end: str, kept: tuple[str, tuple[Axis, ...]], row: Axis,
        column: Axis,
    ) -> None:  # fmt: skip
        """S' = D S + E for a matrix D."""
        body, name = self.body, state.name
        self.starts[name] = self._load(start, state.axes)
        before = body.add(ir.Input(f"{name}[t-1]", Type(state.axes)), name=name)
        matrix = self._captured(*kept)
        source = tuple(column.name if a == row else a.name for a in state.axes)
        out = tuple((axis.name, axis) for axis in state.axes)
        op = ir.Contract((body[matrix].type.names, source), out)
        product = body.add(op, matrix, before)
        made = self._captured(end, state.axes)
        body.outputs[name] = body.add(ir.Elementwise("add"), product, made)
        body.outputs[f"{name}.starts"] = before

    def _load(self, name: str, axes: tuple[Axis, ...]) -> int:
        """An input of the kernel."""
        id = self.graph.add(ir.Input(name, Type(axes)), name=name)
        self.loads[id] = name
        return id

    def _captured(self, name: str, axes: tuple[Axis, ...]) -> int:
        """An input of the body: what is there for each segment."""
        if name not in self.captures:
            self.captures[name] = self._load(name, arrange((SEGMENT, *axes)))
            self.body.add(ir.Input(name, Type(axes)), name=name)
        (found,) = (n.id for n in self.body if isinstance(n.op, ir.Input) and n.op.name == name)
        return found

    def kernel(self, op: ir.Fold) -> Kernel:
        """All of it; `op` is the walk along the chunks."""
        graph, walk = self.graph, self.walk
        join = ir.Fold(
            SEGMENT, (*self.captures,), op.states, self.body, op.heads, reverse=op.reverse
        )
        fold = graph.add(join, *self.captures.values(), *self.starts.values())
        stores = {}
        for state in op.states:
            name = f"{state.name}.starts"
            stores[name] = graph.add(ir.Result(name), fold)
            if state.name in walk.ends:
                self._load(walk.ends[state.name], state.axes)
        why = ("from segment to segment",)
        return Kernel(
            f"{walk.name}_join", graph, self.loads, stores, walk.grid, walk.split, fold, walk.ends,
            why, most=MOST if self.exact else walk.most, exact=self.exact,
        )  # fmt: skip


def _number(graph: Graph, value: sympy.Expr) -> int:
    """A real number."""
    made = graph.add(ir.Constant(value))
    return graph.add(ir.Elementwise("real"), made) if value.is_finite else made


def _along(op: object) -> set[str]:
    """The axis that an op looks along."""
    axes = {getattr(op, "stream", None), getattr(op, "axis", None)}
    return {getattr(axis, "name", axis) for axis in axes if axis is not None}

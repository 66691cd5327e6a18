"""Kernel IR -> tile programs: one program a kernel, or why there is none.

A kernel without a walk stores each of its values, of a chunk a program. One with a walk carries the
states of a Recurrence from chunk to chunk: at each it stores what is wanted of it, before the
states become what they are next.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node, Type
from archc.ir.kernel import NEAR, WHOLE, Kernel, dims_of_half, made_here, warps
from archc.ir.refusal import Refusal
from archc.lowering.blocked import Blocked, store_by_blocks, sums_by_blocks
from archc.lowering.blocks import held_whole, part_by_part
from archc.lowering.chunk_rules import CHUNK_RULES
from archc.lowering.kernel_values import ALONE, BACKWARD, CHUNKS, STAGES, KernelValues, Memory
from archc.lowering.paired import DIMS
from archc.lowering.turned import Turned, store_in_turn, sums_over
from archc.lowering.values import Frame, Index, Made, Padded, Place, Rules
from archc.tile.early import early
from archc.tile.handle import Tile
from archc.tile.invariant import before_loops
from archc.tile.joined import joined
from archc.tile.language import Dim, Program
from archc.tile.parts_first import parts_first
from archc.tile.sharing import alike
from archc.tile.unread import swept

NOT_YET = "not lowered yet"

ROW_WARPS = 4
"""Warps that share the 64 rows of a product of matrices: each has 16."""

STATES = 3
"""The most states that a kernel of products apart reads: of more, registers spill by those."""


@dataclass(frozen=True)
class Lowered:
    """A kernel's program, and what it is launched with: by the names of its buffers those that the
    kernel has and their nodes, by the names of its constants the sizes that they stand for, and of
    the blocks, the parts of blocks that loops take, and how often blocks can be halved, the sizes
    that they cover; of parts, `turns` are of loops for all that is stored. `warps` of a program,
    which then has so many at most; half of them where the sizes of `small` are (`dims_of_half`)."""

    program: Program
    names: Mapping[str, str]
    nodes: Mapping[str, int]
    sizes: Mapping[str, sympy.Expr]
    blocks: Mapping[str, sympy.Expr]
    parts: Mapping[str, sympy.Expr]
    levels: Mapping[str, sympy.Expr]
    turns: frozenset[str]
    warps: int
    small: tuple[sympy.Expr, ...]


def lower(
    kernel: Kernel, tokens: str, memory: Memory, rules: Rules = CHUNK_RULES
) -> Lowered | Refusal:
    """The program of a kernel; `tokens` is the stream of the tokens."""
    refused = _not_yet(kernel, rules)
    return refused or _Kernel(kernel, tokens, memory, rules).lowered()


def _not_yet(kernel: Kernel, rules: Rules) -> Refusal | None:
    """The refusal of an op that has no rule yet."""
    for node in made_here(kernel):
        if type(node.op) not in rules and not isinstance(node.op, ir.Recurrence):
            return Refusal(node.id, NOT_YET)
    return None


class _Kernel:
    """One kernel that is being lowered."""

    def __init__(self, kernel: Kernel, tokens: str, memory: Memory, rules: Rules):
        self.kernel, self.tokens = kernel, tokens
        self.v = KernelValues(kernel, rules, tokens, memory)
        self.added: dict[int, Padded] = {}

    def lowered(self) -> Lowered | Refusal:
        """The program, or why there is none."""
        if self.kernel.walk is not None:
            refused = self._walk()
        else:
            with self.v.chunk_of_program():
                refused = self._store_all()
        if refused is not None:
            return refused
        v, made = self.v, alike(before_loops(self.v.k.done()))
        steps = any(n.op.steps for n in self.kernel.graph if isinstance(n.op, ck.Chunks))
        made = made if self.kernel.walk is not None else parts_first(made)
        sums = any(isinstance(node.op, ck.Middle) for node in made_here(self.kernel))
        program = early(made, self.kernel.walk is not None, several=steps, tiles=sums)
        program = swept(joined(program))
        program = replace(program, buffers=tuple(sorted(program.buffers, key=v.is_table)))
        names = {buffer.name: name for name, buffer in v.tensors.items()}
        nodes = {buffer.name: v.nodes[name] for name, buffer in v.tensors.items()}
        sizes = {str(made): symbol for symbol, made in v.symbols.items()}
        lengths = dict(v.blocks), dict(v.parts), dict(v.halved)
        read = [name for name in names.values() if name not in self.kernel.stores]
        types = [self.kernel.graph[v.nodes[name]].type for name in read]
        count = warps(self.kernel, types, v.in_parts)
        ahead = self.kernel.walk is not None or DIMS.name in v.parts  # an `if` would hinder that
        if count > ROW_WARPS and not ahead and sum(map(self._is_state, types)) <= STATES:
            program = replace(program, apart=str(CHUNKS))
        small = dims_of_half(self.kernel, types) if count > ROW_WARPS else ()
        turns = frozenset(v.turns)
        return Lowered(program, names, nodes, sizes, *lengths, turns, count, small)

    def _is_state(self, type: Type) -> bool:
        """Whether a value is a matrix between two dims for each chunk."""
        grid = {axis.name for axis in self.kernel.grid}
        axes = [axis for axis in type.axes if axis.name not in grid]
        rows = any(axis.size.has(ck.CHUNK) or axis.name == self.tokens for axis in axes)
        return len(axes) > 1 and not rows and all(axis.kind == "dim" for axis in axes)

    # --- stores ---

    def _store_all(self) -> Refusal | None:
        """Store every value; with few indices of what is split, if the dim beside it is short."""
        second = self.kernel.second_split
        if self.kernel.turn is not None:
            return self._store_in_turn(self.kernel.turn)
        if self.kernel.blocked is not None:
            return self._store_by_blocks(self.kernel.blocked)
        if second is None:
            return self._store_each()
        v, refused = self.v, None
        with v.k.branch(v.k.at_most(v.length(second), NEAR)) as near, v.inner():
            v.has_few = True
            refused = self._store_each()
        with v.k.otherwise(near), v.inner():
            v.has_few = False
            return refused or self._store_each()

    def _store_in_turn(self, axis: Axis) -> Refusal | None:
        """Store every value, with one dim index by index."""
        v, stored = self.v, list[tuple[str, Node, Place]]()
        sums = sums_over(v, made_here(self.kernel), axis)
        if isinstance(sums, Refusal):
            return sums
        v.has_few, v.has_rows, v.turned = True, True, Turned(axis, sums)
        for name, id in self.kernel.stores.items():
            node = self.kernel.graph[id]
            along = self.tokens in node.type.names
            there = v.at_tokens(id) if along else {}
            assert isinstance(there, Refusal) or axis.name not in there, "no scan has rows' steps"
            zero = {axis.name: Index(v.k.lift(0, "i32"))} if axis.name in node.type.names else {}
            place = there if isinstance(there, Refusal) else v.at(node, {**there, **zero})
            if isinstance(place, Refusal):
                return place
            stored.append((name, node, place))
        return store_in_turn(v, v.turned, stored, self._write)

    def _store_by_blocks(self, axis: Axis) -> Refusal | None:
        """Store every value, with one dim block by block."""
        sums = sums_by_blocks(self.kernel, axis)
        assert sums is not None, "such a dim was chosen"
        blocked = self.v.turned = Blocked(axis, sums.carried, whole=sums.whole)
        stored = [(name, self.kernel.graph[id]) for name, id in _while_there(self.kernel)]
        return store_by_blocks(self.v, blocked, stored, self._place, self._write)

    def _store_each(self) -> Refusal | None:
        """Store one value after the other."""
        for name, id in _while_there(self.kernel):
            refused = self._store(name, self.kernel.graph[id])
            if refused is not None:
                return refused
        return None

    def _store(self, name: str, node: Node) -> Refusal | None:
        """Store one value."""
        v, place = self.v, self._place(node)
        if isinstance(place, Refusal):
            return place
        turn = self._turn(node, place)
        if turn is not None:
            with v.k.loop(0, v.size(turn.size), index=turn.name) as one, v.inner():
                there = {**place, turn.name: Index(one.index)}
                x = v.value(node.id, there)
                assert isinstance(x, Padded), "it was made so before"
                self._write(name, node, x, there)
            return None
        axis = self._apart(node, place)
        x = v.value(node.id, place)
        if isinstance(x, Refusal):
            return x
        if axis is None:
            self._write(name, node, x, place)
            return None
        elements = sympy.Mul(*(dim.length for dim in x.tile.dims))
        with v.k.branch(held_whole(v, elements, WHOLE)) as whole, v.inner():
            self._write(name, node, x, place)
        with v.k.otherwise(whole), v.inner(), part_by_part(v, axis, axis.name) as (_, index):
            there = {**place, axis.name: index}
            part = v.value(node.id, there)
            assert isinstance(part, Padded), "it was made so before"
            self._write(name, node, part, there)
        return None

    def _place(self, node: Node) -> Place | Refusal:
        """Where a value is stored: at the tokens of a program's rows, and all of its other axes."""
        v = self.v
        along = self.tokens in node.type.names and self.tokens not in v.indices
        there = v.at_tokens(node.id) if along else {}
        return there if isinstance(there, Refusal) else v.at(node, there)

    def _turn(self, node: Node, place: Place) -> Axis | None:
        """The dim that a value is stored along index by index, where it is made from tiles of
        three: the first of those that no program has a part of. Where the value is a sum over that
        one, the sum goes index by index instead."""
        v = self.v
        deep = [axis for axis in v.deep(node.id) if not v.is_split(axis)][:1]
        mine = (axis for axis in deep if axis in v.dims(node.id) and place[axis.name].whole)
        axis = next(mine, None)  # the steps of rows are not all of an axis
        if axis is None:
            return None
        with v.k.loop(0, v.size(axis.size), index=axis.name) as one, v.inner():
            made = v.value(node.id, {**place, axis.name: Index(one.index)})
        return axis if isinstance(made, Padded) else None

    def _apart(self, node: Node, place: Place) -> Axis | None:
        """A dim of a matrix, if it can be made and stored part by part along it."""
        v = self.v
        axes = [axis for axis in node.type.axes if place[axis.name].label]
        for axis in axes if v.is_matrix(axes, place) else []:
            with part_by_part(v, axis, axis.name) as (_, index):
                made = v.value(node.id, {**place, axis.name: index})
            if isinstance(made, Padded):
                return axis
        return None

    def _write(self, name: str, node: Node, x: Padded, place: Place) -> None:
        """A tile to the buffer of a value, by one of the programs that have it."""
        v = self.v
        with v.if_there(name, node):
            there = v.in_memory(node, place, name)
            v.store(v.tensor(name, node), x, there, self._one_of(node))

    def _one_of(self, node: Node) -> list[Tile]:
        """Conditions that hold in one of the programs that have a value alike, so that it alone
        stores it; none where every program has a value of its own."""
        v, names = self.v, node.type.names
        streams = any(axis.kind == "stream" for axis in node.type.axes)
        lacks = [
            axis for axis in self.kernel.grid
            if axis.name not in names and not (axis.kind == "stream" and streams)
        ]  # fmt: skip
        where = [v.indices[axis.name].at.equals(0) for axis in lacks]
        split = self.kernel.split
        blocks = set() if split is None else {n for n, i in v.indices.items() if i.at == v.block}
        if split is not None and not {split.name, *self.kernel.renamed, *blocks} & {*names}:
            where.append(v.block.equals(0))
        return where

    # --- walks ---

    def _walk(self) -> Refusal | None:
        """The loop over the chunks."""
        assert self.kernel.walk is not None
        v, recurrence = self.v, self.kernel.graph[self.kernel.walk]
        op: ir.Recurrence = recurrence.op
        starts = []
        for state, id in zip(op.states, recurrence.operands[len(op.captures) :], strict=True):
            made = self._start(state, id)
            if isinstance(made, Refusal):
                return made
            starts.append(made)
        low, high = v.borders(op.stream)
        count = (high - low).hinted("chunks")
        with (
            v.k.loop(0, count, *starts, index="step", ahead=self._ahead(op)) as turn,
            v.inner(),
        ):
            at = self._at_turn(op, low, high, turn.index)
            title = op.stream.name if op.stream.name == self.tokens else "n"
            v.indices[op.stream.name] = Index(v.title(at, title))
            before, v.n = v.n, at
            following = self._step(recurrence, turn.carried)
            v.n = before
            turn.next(*(turn.carried if isinstance(following, Refusal) else following))
        if isinstance(following, Refusal):
            return following
        v.indices.pop(self.tokens, None)
        return self._store_ends(op, turn.results)

    def _at_turn(self, op: ir.Recurrence, low: Tile, high: Tile, turn: Tile) -> Tile:
        """The chunk of a turn: from the last one on where a walk goes backward."""
        v = self.v
        if not self.kernel.told:
            return high - 1 - turn if op.reverse else low + turn
        v.k.fixed(BACKWARD)
        with v.k.branch(v.k.at_most(BACKWARD, 0)) as forward:
            forward.give(low + turn)
        with v.k.otherwise(forward) as back:
            back.give(high - 1 - turn)
        return forward.results[0]

    def _ahead(self, op: ir.Recurrence) -> str | None:
        """The number of turns ahead that a walk loads; None where states decay along a dim, and it
        makes both rows that read them and what follows on them: there is no room for three turns
        of all that (452 us for 403)."""
        rows = len(op.body.outputs) > 2 * len(op.states)
        stores = (self.kernel.graph[id].op for id in self.kernel.stores.values())
        follows = any(not isinstance(each, ir.Result) for each in stores)
        return None if rows and follows and _decays_along_dims(op) else STAGES

    def _start(self, state: ir.State, id: int) -> Tile | Refusal:
        """A state before the first chunk, in registers."""
        v = self.v
        axes = [axis for axis in state.axes if axis.name not in v.indices]
        for axis in axes:
            v.whole(axis)
        dims = [v.dim(axis.name, axis) for axis in axes]
        with v.if_there(self.kernel.loads.get(id, ""), self.kernel.graph[id]) as there:
            start = v.value(id)
            if isinstance(start, Refusal):
                return start
            made = v.over(start.wide(), dims).tile
            if there is not None:
                there.give(made)
        if there is not None:
            with v.k.otherwise(there) as missing:
                missing.give(self._nothing(dims))
            (made,) = there.results
        return v.title(made, state.name)

    def _nothing(self, dims: list[Dim]) -> Tile:
        """A state of 0, or of 1 where a launch asks what becomes of the state alone."""
        v, alone, column = self.v, self.kernel.alone, self.kernel.split
        if alone is None or column is None:
            return v.k.full(0.0, *dims)
        v.k.fixed(ALONE)
        same = v.whole(alone.row).at.equals(v.whole(column).at)
        start = v.k.where(same & v.k.at_most(1, ALONE), 1.0, 0.0)
        return v.over(Padded(start), dims).tile

    def _step(self, recurrence: Node, carried: tuple[Tile, ...]) -> list[Tile] | Refusal:
        """The work at one chunk: the states that the next one gets, or the refusal of a value."""
        v, op = self.v, recurrence.op
        states = {}
        for state, tile in zip(op.states, carried, strict=True):
            v.title(tile, state.name)
            states[state.before] = Padded(tile, product=len(tile.dims) == 2)
        made: dict[str, Padded] = {}
        with v.within(self._body(recurrence, states)):
            refused = self._make_added()
            if refused is not None:
                return refused
            for name, id in op.body.outputs.items():
                found = v.value(id)
                if isinstance(found, Refusal):
                    return found
                made[name] = found
        v.results = {(recurrence.id, name): found for name, found in made.items()}
        refused = self._store_all()
        if refused is not None:
            return refused
        new = (
            v.over(made[state.name].wide(), t.dims)
            for state, t in zip(op.states, carried, strict=True)
        )
        return [each.tile for each in new]

    def _make_added(self) -> Refusal | None:
        """Make products that are added to what comes from the states, 0 where these are alone."""
        v, alone = self.v, self.kernel.alone
        self.added.clear()
        if alone is None or not alone.products:
            return None
        found, (told,) = list[Padded](), v.k.fixed(ALONE)
        with v.k.branch(v.k.at_most(told, 0)) as whole, v.inner(), v.not_alone():
            for id in alone.products:
                made = v.value(id)
                if isinstance(made, Refusal):
                    return made
                found.append(made.wide())
            whole.give(*(each.tile for each in found))
        with v.k.otherwise(whole) as rest:
            rest.give(*(v.k.full(0.0, *each.tile.dims) for each in found))
        made = zip(alone.products, found, whole.results, strict=True)
        self.added |= {id: replace(each, tile=tile) for id, each, tile in made}
        return None

    def _body(self, recurrence: Node, states: Mapping[str, Padded]) -> Frame:
        """The body of a walk: its inputs are states, or what it captures at this chunk."""
        v, outer, op = self.v, self.v.frame, recurrence.op
        captured = ir.captured(recurrence)

        def given(node: Node, place: Place) -> Made | None:
            added, labels = self.added.get(node.id), {i.label for i in place.values() if i.label}
            if added is not None and {*added.labels} == labels:
                return added
            if not isinstance(node.op, ir.Input):
                return None
            if node.op.name in states:
                labelled = [name for name, index in place.items() if index.label]
                return v.not_whole(node, place, *labelled) or states[node.op.name]
            with v.within(outer):
                return v.stored(captured[node.op.name], place)

        return Frame(op.body, given, recurrence.id, self.kernel.exact, frozenset(states))

    def _store_ends(self, op: ir.Recurrence, states: tuple[Tile, ...]) -> Refusal | None:
        """The states after the last chunk."""
        v, graph = self.v, self.kernel.graph
        carried = {state.name: tile for state, tile in zip(op.states, states, strict=True)}
        for name, buffer in self.kernel.ends.items():
            node = next(n for n in graph if self.kernel.loads.get(n.id) == buffer)
            place = v.at(node, {})
            if isinstance(place, Refusal):
                return place
            self._write(buffer, node, Padded(carried[name]), place)
        return None


def _decays_along_dims(op: ir.Recurrence) -> bool:
    """Whether a walk captures a vector of a state's dim for each chunk."""
    states = {state.name for state in op.states} | {state.before for state in op.states}
    inputs = (n for n in op.body if isinstance(n.op, ir.Input) and n.op.name not in states)
    dims = ([a for a in n.type.axes if a.kind == "dim" and a.name not in op.heads] for n in inputs)
    return any(axes and not any(a.size.has(ck.CHUNK) for a in axes) for axes in dims)


def _while_there(kernel: Kernel) -> Iterator[tuple[str, int]]:
    """The values that a kernel stores, in order, but each as soon as no product is missing for it:
    what it is made of need not be held any longer. What a system is solved for comes last, as that
    takes the registers. What is made element by element is in order of its names, so that kernels
    which store the same are the same."""
    graph, made = kernel.graph, made_here(kernel)
    alone = ir.Elementwise | ck.Less
    if all(isinstance(node.op, alone) or len(node.operands) < 2 for node in made):
        yield from sorted(kernel.stores.items())
        return
    here = {node.id for node in made if ir.is_product(node.op)}
    solved = {node.id for node in made if isinstance(node.op, ck.Inverse)}
    last = {n: bool(solved & {id, *graph.ancestors(id)}) for n, id in kernel.stores.items()}
    needs = {id: here & {id, *graph.ancestors(id)} for id in kernel.stores.values()}
    waiting, done = dict(kernel.stores), set[int]()
    while waiting:
        ready = (name for name, id in waiting.items() if needs[id] and needs[id] <= done)
        name = next(ready, min(waiting, key=last.__getitem__))
        done |= needs[waiting[name]]
        yield name, waiting.pop(name)

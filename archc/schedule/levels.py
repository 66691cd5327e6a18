"""Levels of the nodes of a chunked form: a kernel computes what is of its level.

Levels count CHUNKS, PAIRS, WALKS, CHUNKS, PAIRS, WALKS, ...: every third is of the same kind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.schedule.axes import own_dims, reduction_dims, scans_numbers, split_of
from archc.schedule.late_pairs import makes_late
from archc.schedule.near_rows import is_power
from archc.schedule.operands import PAIRED
from archc.schedule.wide_scans import turned_dims

CHUNKS, PAIRS, WALKS = 0, 1, 2
"""Kinds of levels: done for every chunk at once, the same with pairs of rows that decay, and along
the chunks or by PyTorch."""

RECOMPUTED = (
    ir.Input, ir.Constant, ir.Position, ir.Delta, ir.Elementwise, ck.Chunks, ck.Tokens, ck.Place,
    ck.Expand, ck.AtLast, ck.Detach, ck.Rest, ck.Less,
)  # fmt: skip
"""Ops that may be done again where their value is needed: they cost no more than memory does."""

ANYWHERE = (ck.Sums, ck.Move, ck.Select, ir.Reduce, *RECOMPUTED)
"""Ops that stand as well in a kernel with pairs."""


MOST_PRODUCTS = 12
"""Products of matrices that one kernel makes: with 20 it spilled 3,000 bytes of a thread; what is
bundled has at most 10."""


def kind_of(level: int) -> int:
    """CHUNKS, PAIRS or WALKS."""
    return level % 3


class Levels:
    """`of` each node its level; the nodes of `fallback` with the reason, the states in the end in
    `ends` (of which Recurrence, and which state), and those `recomputed` from inputs on.

    `fused`: what follows on a walk is made by it, where its programs can: `walk` says in which.
    Nothing reads its states from memory then, but gradients that have them saved.
    """

    def __init__(
        self, graph: Graph, heads: Collection[str], fallback: Mapping[int, str], fused: bool = False
    ) -> None:
        self.graph, self.heads, self.fused = graph, heads, fused
        self.walk: dict[int, int] = {}
        rows = "programs walk the chunks, and this walks the rows of each"
        fallback = {n.id: rows for n in graph if _walks_rows(n)} | dict(fallback)
        ends = {n.id: end for n in graph if (end := ended(graph, n)) is not None}
        self.ends = {id: end for id, end in ends.items() if end[0] not in fallback}
        across = "it looks across what different programs have"
        self.fallback = {n.id: across for n in graph if self._crosses_programs(n)} | fallback
        shared = "all chunks share a factor that no program has room for: it is one product of them"
        self.fallback = {n.id: shared for n in graph if self._shares(n)} | self.fallback
        named = "it gives what a walk made other names"
        self.fallback |= {n.id: named for n in graph if self._is_named_for(n, self.fallback)}
        read = (n for n in graph if self._read(n, fallback))
        self.fallback |= {n.id: fallback[n.operands[0]] for n in read}
        self.recomputed = self._recomputed()
        once = "it is one value for a whole sequence"
        self.fallback = {n.id: once for n in graph if self._once(n)} | self.fallback
        self.recomputed -= set(self.fallback)
        self.apart = False
        self.sums: set[int] = set()
        self.least: dict[int, int] = {}
        self.late: set[int] = set()
        self.turned = turned_dims(graph, heads)
        self.of = self._levels()
        if self._scans() and any(self._is_product(n) and not self.of[n.id] for n in graph):
            self.apart = True
            self.of = self._levels()
        self.last = _next(max(self.of.values(), default=0) + 1, CHUNKS)
        self.sums = {node.id for node in graph if self._sums_of_inputs(node)}
        self.beside = makes_late(graph, heads) and not fused
        self.late = self._wanted_late() | self._beside_states()
        self.of = self._levels() if self.sums or self.late else self.of
        self._delay_pairs()
        self._delay_scores()
        self._cut_long()
        self.count = max(self.of.values(), default=0) + 1

    def _delay_pairs(self) -> None:
        """Make pairs that decay alike at one level, the last that some of them stand at, if no more
        levels come of it: decays are then made once, and sums of what pairs add are not passed."""
        last: dict[int, int] = {}
        for node in filter(reads_sums, self.graph):
            sums = node.operands[-1]
            last[sums] = max(last.get(sums, 0), self.of[node.id])
        self.least = {n.id: last[n.operands[-1]] for n in self.graph if reads_sums(n)}
        walk, later = self.walk, self._levels()
        if max(later.values(), default=0) == max(self.of.values(), default=0):
            self.of = later
        else:
            self.walk = walk

    def _delay_scores(self) -> None:
        """Make scores of inputs where a system of a chunk's rows is solved that are among them, if
        only walks behind it read the scores: both kernels would load these rows. Systems of more
        rows leave no registers."""
        late: dict[int, int] = {}
        for system in (n for n in self.graph if isinstance(n.op, ck.Inverse) and _is_square(n)):
            above = self.graph.ancestors(system.id)
            rows = {id for id in above if self._is_rows(id)}
            for node in self.graph:
                beside = node.id not in above and rows & self.graph.ancestors(node.id)
                if beside and self._are_scores(node) and self._read_behind(node, system):
                    late[node.id] = self.of[system.id]
        if late:
            self.least |= late
            self.of = self._levels()

    def _is_rows(self, id: int) -> bool:
        """Whether a value is an input with a dim for each token of each head."""
        axes = self.graph[id].type.axes
        return isinstance(self.graph[id].op, ir.Input) and bool(own_dims(axes, self.heads))

    def _are_scores(self, node: Node) -> bool:
        """Whether an op multiplies inputs, row by row of a chunk."""
        rows = all(a.size.has(ck.CHUNK) for a in own_dims(node.type.axes, self.heads))
        return rows and self.multiplies(node) and self.recomputed.issuperset(node.operands)

    def _read_behind(self, node: Node, system: Node) -> bool:
        """Whether no kernel before that of a system reads a value, or what is made of it."""
        below = [n for n in self.graph.descendants(node.id) if self.of[n] <= self.of[system.id]]
        return not any(self.multiplies(self.graph[n]) for n in below)

    def _cut_long(self) -> None:
        """Cut levels with so many products that a kernel would hold far more than registers do: of
        products that follow on one another there, the later half is a level more. The last kernel
        of a delta rule's gradient stays whole: it goes block by block."""
        level = 0 if not self.beside else 1 + max(self.of.values())
        while level <= max(self.of.values(), default=0):
            depth = self._depth(level)
            products = [id for id in depth if self.multiplies(self.graph[id])]
            half = max(depth.values(), default=0) // 2
            if len(products) > MOST_PRODUCTS and half:
                self.least |= {id: level + 3 for id in products if depth[id] > half}
                self.of = self._levels()
            level += 3

    def _depth(self, level: int) -> dict[int, int]:
        """How many products of a level follow on one another up to each of its nodes."""
        depth: dict[int, int] = {}
        for node in (n for n in self.graph if self.of[n.id] == level):
            before = max((depth.get(o, 0) for o in node.operands), default=0)
            depth[node.id] = before + self.multiplies(node)
        return depth

    def multiplies(self, node: Node) -> bool:
        """Whether an op is a product of matrices that a kernel makes."""
        here = ir.is_product(node.op) and node.id not in self.fallback
        return here and bool(reduction_dims(self.graph, node))

    def recurrences(self, level: int) -> list[Node]:
        """The walks of a level."""
        walks = [
            n for n in self.graph if isinstance(n.op, ir.Recurrence) and n.id not in self.fallback
        ]
        return [walk for walk in walks if self.of[walk.id] == level]

    def has_recurrence(self, level: int) -> bool:
        """Whether a level has walks."""
        return bool(self.recurrences(level))

    def _read(self, node: Node, fallback: Mapping[int, str]) -> bool:
        """Whether a node is a result of a walk that PyTorch does."""
        return isinstance(node.op, ir.Result) and node.operands[0] in fallback

    def _wanted_late(self) -> set[int]:
        """The values made of scans that are done again where their rows are wanted, and that no
        walk needs: the last kernel has them all, and makes such rows once."""
        if self.turned is None:
            return set()
        scans = [n.id for n in self.graph if scans_numbers(n)]
        made = {*scans}.union(*(self.graph.descendants(id) for id in scans))
        walks = [n.id for n in self.graph if isinstance(n.op, ir.Recurrence)]
        before = {*walks}.union(*(self.graph.ancestors(id) for id in walks))
        rest = made - before - {*self.ends, *self.fallback}
        return {id for id in rest if not isinstance(self.graph[id].op, ir.Result)}

    def _beside_states(self) -> set[int]:
        """The values before a walk that it does not need, where the last kernel makes them: it
        reads the states that they are made of."""
        if not self.beside:
            return set()
        walks = [n.id for n in self.graph if isinstance(n.op, ir.Recurrence)]
        before = {*walks}.union(*(self.graph.ancestors(id) for id in walks))
        rest = {n.id for n in self.graph if not isinstance(n.op, ir.Result)}
        return rest - before - self.recomputed - {*self.ends, *self.fallback}

    def _crosses_programs(self, node: Node) -> bool:
        """Whether an op looks across what different programs have."""
        if isinstance(node.op, ir.Recurrence | ir.Input) or node.id in self.ends:
            return False
        if isinstance(node.op, ck.Last):
            return True
        outer = {a.name for a in node.type.axes if a.kind != "dim"} | {"batch", *self.heads}
        blocks = [n for n in self.graph if isinstance(n.op, ck.BlockSums)]
        outer |= {n.type.axes[-1].name for n in blocks}
        for operand in node.operands:
            outer |= {a.name for a in self.graph[operand].type.axes if a.kind != "dim"}
        return bool(set(reduction_dims(self.graph, node)) & outer)

    def _shares(self, node: Node) -> bool:
        """Whether an op multiplies a value of each chunk by one that all of them share, and that
        has a matrix for every row: programs could not hold it, and would all read it."""
        if not ir.is_product(node.op):
            return False
        kinds = [{axis.kind for axis in self.graph[o].type.axes} for o in node.operands]
        dims = [len(own_dims(self.graph[o].type.axes, self.heads)) for o in node.operands]
        each, shared = sorted(range(2), key=lambda at: kinds[at] == {"dim"})
        summed = {label for labels in node.op.ins for label in labels} - {*dict(node.op.out)}
        return kinds[shared] == {"dim"} != kinds[each] and dims[shared] > 2 and bool(summed)

    def _is_named_for(self, node: Node, fallback: Collection[int]) -> bool:
        """Whether a value is one of a walk with other names for its axes, for PyTorch alone."""
        if not ir.renames(node.op):
            return False
        made, users = self.graph[node.operands[0]].op, self.graph.users(node.id)
        return isinstance(made, ir.Result) and bool(users) and {*users} <= {*fallback}

    def _once(self, node: Node) -> bool:
        """Whether a value is one for a whole sequence, and no kernel makes it in passing."""
        if node.id in self.ends or isinstance(node.op, ir.Recurrence | ir.Input):
            return False
        streams = any(axis.kind == "stream" for axis in node.type.axes)
        wanted = node.id not in self.recomputed or node.id in self.graph.outputs.values()
        return wanted and not streams

    def is_recomputed(self, node: Node) -> bool:
        """Whether an op costs no more than memory does."""
        if isinstance(node.op, ck.Tokens) and node.op.steps is not None:  # rows of a token
            return False
        if is_power(self.graph, node.id):  # a walk would make it at every chunk
            return False
        return isinstance(node.op, RECOMPUTED) or ir.renames(node.op) or self._picks(node)

    def _picks(self, node: Node) -> bool:
        """Whether an op takes what stands at a place that is a number."""
        return isinstance(node.op, ir.Gather) and isinstance(
            self.graph[node.operands[1]].op, ir.Constant
        )

    def _recomputed(self) -> set[int]:
        """Nodes that cost little even from inputs on: no kernel need keep them."""
        found: set[int] = set()
        for node in self.graph:
            recomputed = self.is_recomputed(node) and node.id not in self.fallback
            if recomputed and all(o in found for o in node.operands):
                found.add(node.id)
        return found

    def _levels(self) -> dict[int, int]:
        found: dict[int, int] = {}
        self.walk = {}
        for node in self._order():
            before = max((found[o] for o in node.operands), default=0)
            before = max(before, self.least.get(node.id, 0))
            if self.fused and isinstance(node.op, ir.Recurrence):
                before = max(found.values(), default=0)
            found[node.id] = self._level(node, before, found)
        return found

    def _order(self) -> list[Node]:
        """The nodes, operands first; if walks make what follows on them, each as late as may be."""
        if not self.fused:
            return list(self.graph)
        waiting, done = list(self.graph), list[Node]()
        known: set[int] = set()
        while waiting:
            ready = [n for n in waiting if known.issuperset(n.operands)]
            node = min(ready, key=lambda n: (isinstance(n.op, ir.Recurrence), n.id))
            known.add(node.id)
            waiting.remove(node)
            done.append(node)
        return done

    def _sums_a_dim(self, node: Node) -> bool:
        """Whether an op crosses a dim of which programs with pairs have a part."""
        axes = [axis for o in node.operands for axis in self.graph[o].type.axes]
        rows = {axis.name for axis in axes if axis.size == ck.CHUNK}
        return bool(set(reduction_dims(self.graph, node)) - rows)

    def _renames_a_dim(self, node: Node) -> bool:
        """Whether an op gives the one dim of rows, of which programs have a part, another name."""
        if not ir.renames(node.op):
            return False
        dims = own_dims(node.type.axes, self.heads)
        return len([axis for axis in dims if axis.size != ck.CHUNK]) == 1

    def _scans(self) -> bool:
        """Whether the first level has sums along the rows of more than one number a head: these
        take the registers of a program, which is best given a part of the dim."""
        scans = [n for n in self.graph if isinstance(n.op, ck.Sums) and self.of[n.id] == CHUNKS]
        dims = [{a.name for a in n.type.axes if a.kind == "dim"} - {n.op.axis} for n in scans]
        return any(names - set(self.heads) for names in dims)

    def _is_product(self, node: Node) -> bool:
        """Whether an op is a product of matrices that sums over a dim."""
        here = ir.is_product(node.op) and node.id not in self.fallback
        return here and self._sums_a_dim(node)

    def _sums_of_inputs(self, node: Node) -> bool:
        """Whether a value is a sum of rows, of more than a number a head, of what inputs alone
        give, of which only the sum over all chunks is wanted: it has a kernel to itself, as it
        would take registers of another, and the blocks that other values are cut into."""
        if not isinstance(node.op, ir.Reduce) or not self.recomputed.issuperset(node.operands):
            return False
        axes = self.graph[node.operands[0]].type.axes
        rows = all(a.size == ck.CHUNK for a in axes if a.name in node.op.axes)
        wide = any(a.kind == "dim" and a.name not in self.heads for a in node.type.axes)
        users = [self.graph[user] for user in self.graph.users(node.id)]
        chunks = {axis.name for axis in axes if axis.kind == "stream"}
        whole = all(isinstance(n.op, ir.Reduce) and chunks & {*n.op.axes} for n in users)
        read = bool(users) and self.fallback.keys() >= {n.id for n in users}
        return rows and wide and whole and read

    def _follows(self, node: Node, level: int, found: Mapping[int, int]) -> bool:
        """Whether the programs of a walk of that level can make a value as they go."""
        late = [o for o in node.operands if kind_of(level) == WALKS and found[o] == level]
        walks = {self.walk.get(o) for o in late}
        walk = next(iter(walks), None)
        if len(walks) != 1 or walk is None or isinstance(node.op, PAIRED):
            return False
        recurrence = self.graph[walk]
        split = split_of(self.graph, recurrence, self.heads)
        every = {axis.name for state in recurrence.op.states for axis in state.axes}
        here = {axis.name for axis in node.type.axes if axis.name in self.heads}
        across = split is not None and split.name in reduction_dims(self.graph, node)
        lacks = split is not None and split.name not in node.type.names
        tokens = not recurrence.op.stream.size.has(ck.CHUNK)
        states = [own_dims(state.axes, self.heads) for state in recurrence.op.states]
        if not any(states):  # numbers cost no memory, and what follows would wait for its turn
            return False
        if tokens or across or lacks or here != every & set(self.heads) or self._is_deep(node):
            return False
        self.walk[node.id] = walk
        return True

    def _is_deep(self, node: Node) -> bool:
        """Whether a value has two dims for every row: in a walk its tile would be one of three."""
        deep = len(own_dims(node.type.axes, self.heads)) > 2
        return deep and any(axis.size == ck.CHUNK for axis in node.type.axes)

    def _level(self, node: Node, before: int, found: Mapping[int, int]) -> int:
        if isinstance(node.op, ir.Recurrence):
            first = WALKS + 1 if self.apart else CHUNKS  # after all that needs no state
            return _next(max(before + (kind_of(before) == WALKS), first), WALKS)
        if isinstance(node.op, ir.Result) or node.id in self.ends:
            self.walk[node.id] = node.operands[0]
            return before
        if node.id in self.fallback:
            return _next(before, WALKS)
        if node.id in self.sums:
            return self.last
        if node.id in self.late:
            return max(_next(before, CHUNKS), self.last - 3)
        if self.fused and self._follows(node, before, found):
            return before
        if isinstance(node.op, ck.Inverse):  # its rows alone fill the registers
            near = isinstance(self.graph[node.operands[0]].op, ck.NearGram)  # but rows in memory
            return before if near else _next(before + (kind_of(before) == CHUNKS), CHUNKS)
        if isinstance(node.op, ck.Conjugate):  # its turns leave no registers for anything else
            return _next(before + self._is_begun(node, before, found), CHUNKS)
        if reads_sums(node):
            sums = found[node.operands[-1]]
            return _next(max(before, sums + 1), PAIRS)
        anywhere = isinstance(node.op, ANYWHERE) or self.is_recomputed(node)
        alone = not self._sums_a_dim(node) or self._renames_a_dim(node)
        if anywhere and kind_of(before) == PAIRS and alone:
            return before
        if self.apart and before == CHUNKS and self._is_product(node):
            return _next(before + 1, CHUNKS)
        return _next(before, CHUNKS)

    def _is_begun(self, node: Node, level: int, found: Mapping[int, int]) -> bool:
        """Whether kernels of that level make something that a node is made of."""
        own = (o for o in node.operands if found[o] == level and o not in self.recomputed)
        return kind_of(level) == CHUNKS and any(own)


def reads_sums(node: Node) -> bool:
    """Whether an op reads sums of gates at other rows, so from memory."""
    return isinstance(node.op, PAIRED) and node.op.anchor == ck.SUMS


def _is_square(node: Node) -> bool:
    """Whether a system has one row and one column for each row of a chunk."""
    return all(axis.size == ck.CHUNK for axis in node.type.axes[-2:])


def _next(level: int, kind: int) -> int:
    """The first level of a kind from this one on."""
    return level + (kind - level) % 3


def _walks_rows(node: Node) -> bool:
    """Whether a Recurrence goes along the rows of the chunks."""
    return isinstance(node.op, ir.Recurrence) and node.op.stream.kind == "dim"


def ended(graph: Graph, node: Node) -> tuple[int, str] | None:
    """The Recurrence along chunks and the state of which a node is the value in the end."""
    if not isinstance(node.op, ck.Last) or not isinstance(graph[node.operands[0]].op, ir.Result):
        return None
    result = graph[node.operands[0]]
    recurrence = graph[result.operands[0]]
    if not isinstance(recurrence.op, ir.Recurrence) or recurrence.op.reverse != node.op.reverse:
        return None
    states = {state.name for state in recurrence.op.states}
    return (recurrence.id, result.op.name) if result.op.name in states else None

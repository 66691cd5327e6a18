"""Chunk IR -> kernel IR: which values are computed together.

    before the states   |   along the chunks   |   after
    a program a chunk   |   a program a head   |   a program a chunk

The nodes are cut where they depend on a carried state: a Fold is a kernel that walks the chunks,
and what stands between two Folds is a kernel with a program for every chunk. What is cheap is
computed again in a later kernel; what is dear goes through memory. What no kernel can do stays with
the host: sums over whole sequences, tables, solves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import NARROW, WIDE, Buffer, Kernel, Kernels
from archc.schedule.axes import crossing

CHEAP = (
    ir.Input, ir.Constant, ir.Position, ir.Delta, ir.Elementwise, ck.Chunks, ck.Tokens, ck.Place,
    ck.Expand, ck.AtLast, ck.Detach,
)  # fmt: skip
"""Ops that are done again where their value is needed: they cost less than memory does."""

CHUNKED, EACH = "every chunk at once", "along the chunks"


def partition(
    graph: Graph, name: str, stream: Axis, heads: Collection[str], host: Mapping[int, str]
) -> Kernels:
    """The kernels of a chunked form or of its gradient; nodes of `host` are in none, and why."""
    return _Partition(graph, name, stream, heads, host).kernels()


class _Partition:
    """Levels: what a kernel computes is even, a Fold and what the host does are odd."""

    def __init__(
        self, graph: Graph, name: str, stream: Axis, heads: Collection[str], host: Mapping[int, str]
    ) -> None:
        self.graph, self.name, self.stream, self.heads = graph, name, stream, heads
        self.ends = {n.id: end for n in graph if (end := _ended(graph, n)) is not None}
        across = "it looks across what different programs have"
        self.host = {n.id: across for n in graph if self._for_host(n)} | dict(host)
        self.cheap = self._cheap()
        once = "it is one value for a whole sequence"
        self.host = {n.id: once for n in graph if self._once(n)} | self.host
        self.cheap -= set(self.host)
        self.level = self._levels()

    def _for_host(self, node: Node) -> bool:
        """Whether an op looks across what different programs have."""
        if isinstance(node.op, ir.Fold | ir.Input) or node.id in self.ends:
            return False
        if isinstance(node.op, ck.Last):
            return True
        outer = {a.name for a in node.type.axes if a.kind != "dim"} | {"batch", *self.heads}
        for operand in node.operands:
            outer |= {a.name for a in self.graph[operand].type.axes if a.kind != "dim"}
        return bool(set(crossing(self.graph, node)) & outer)

    def _once(self, node: Node) -> bool:
        """Whether a value is one for a whole sequence, and no kernel makes it in passing."""
        if node.id in self.ends or isinstance(node.op, ir.Fold | ir.Input):
            return False
        streams = any(axis.kind == "stream" for axis in node.type.axes)
        wanted = node.id not in self.cheap or node.id in self.graph.outputs.values()
        return wanted and not streams

    def _levels(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for node in self.graph:
            before = max((found[o] for o in node.operands), default=0)
            if isinstance(node.op, ir.Fold):
                found[node.id] = before + (1 if before % 2 == 0 else 2)
            elif isinstance(node.op, ir.Result) or node.id in self.ends:
                found[node.id] = before
            elif node.id in self.host:
                found[node.id] = before + (before + 1) % 2
            else:
                found[node.id] = before + before % 2
        return found

    def _cheap(self) -> set[int]:
        """Nodes that are computed again wherever they are needed."""
        found: set[int] = set()
        for node in self.graph:
            op = node.op
            renamed = isinstance(op, ir.Contract) and _renames(op)
            several = isinstance(op, ck.Tokens) and op.steps is not None  # rows of a token
            cheap = (isinstance(op, CHEAP) or renamed) and not several
            if cheap and node.id not in self.host and all(o in found for o in node.operands):
                found.add(node.id)
        return found

    # --- what stands in memory ---

    def _kept(self) -> list[int]:
        """Nodes that stand in memory: outputs, and what another kernel or the host needs."""
        found = set(self.graph.outputs.values())
        for node in self.graph:
            if node.id in self.ends:
                continue
            for operand in node.operands:
                found |= {s for s in self._sources(operand, node) if self._apart(s, node.id)}
        for id in self.graph.outputs.values():
            found |= {s for s in self._sources(id, None) if self._apart(s, id)}
        found |= {id for id in self.ends if any(True for _ in self.graph.users(id))}
        return sorted(found)

    def _apart(self, source: int, user: int) -> bool:
        if user in self.host:
            return source not in self.host
        if source in self.host:
            return True
        return self.level[source] != self.level[user]

    def _sources(self, id: int, user: Node | None) -> Iterator[int]:
        """The dear values that a value is made from again, or it itself; what the host needs it
        needs as it is."""
        node = self.graph[id]
        if isinstance(node.op, ir.Fold):
            return
        if user is not None and user.id in self.host:
            if not isinstance(node.op, ir.Input) and id not in self.host and id not in self.cheap:
                yield id
                return
            if id in self.host:
                return
        if isinstance(node.op, ir.Input):
            return
        if id not in self.cheap:
            yield id
            return
        for operand in node.operands:
            yield from self._sources(operand, user)

    def _width(self, id: int) -> str:
        """What only enters products of matrices is as narrow as the inputs."""
        users = [self.graph[user] for user in self.graph.users(id)]
        return NARROW if users and all(map(self._only_in_products, users)) else WIDE

    def _only_in_products(self, node: Node) -> bool:
        if isinstance(node.op, ir.Contract):
            users = map(self.graph.__getitem__, self.graph.users(node.id))
            return len(node.op.ins) == 2 or all(map(self._only_in_products, users))
        return False

    # --- kernels ---

    def kernels(self) -> Kernels:
        """One kernel for each Fold and for what stands between two."""
        kept = [id for id in self._kept() if id not in self.host]
        kept = [id for id in kept if not isinstance(self.graph[id].op, ir.Input)]
        names = {id: f"v{id}" for id in kept}
        for name, id in reversed(self.graph.outputs.items()):
            if id in names:
                names[id] = name
        for number in self.host:
            names[number] = f"v{number}"
        made: list[Kernel] = []
        for level in range(max(self.level.values(), default=0) + 1):
            made += self._folds(level, names) if level % 2 else self._between(level, names)
        buffers = [Buffer(names[id], self.graph[id].type, self._width(id)) for id in kept]
        return Kernels(self.graph, tuple(made), tuple(buffers), self.host)

    def _between(self, level: int, names: Mapping[int, str]) -> list[Kernel]:
        """The kernel of what stands before, between or after walks."""
        home = {
            names[id]: id for id in names
            if self.level[id] == level and id not in self.host and id not in self.ends
            and not isinstance(self.graph[id].op, ir.Fold | ir.Result)
        }  # fmt: skip
        if not home:
            return []
        nodes = self._inside(home.values(), level)
        loads = self._loads(names, lambda id: id in self.host or self.level[id] != level)
        split = self._split_between(nodes, list(home.values()))
        grid = self._grid(nodes, split, walked=False)
        title = f"{self.name}_{_order(level)}"
        return [Kernel(title, self.graph, loads, home, grid, split, why=(CHUNKED,))]

    def _folds(self, level: int, names: Mapping[int, str]) -> list[Kernel]:
        """The kernels of the walks of a level."""
        made = []
        folds = [n for n in self.graph if isinstance(n.op, ir.Fold) and self.level[n.id] == level]
        for fold in folds:
            results = {n.id for n in self.graph if n.operands == (fold.id,)}
            stores = {name: id for id, name in names.items() if id in results}
            ends = {self.ends[id][1]: names[id] for id in names if self._end_of(id) == fold.id}
            nodes = [*self._inside(fold.operands, level), *fold.op.body]
            loads = self._loads(names, lambda id: True)
            split = self._split(fold)
            grid = self._grid(nodes, split, walked=True)
            title = f"{self.name}_walk" + ("" if len(folds) == 1 else f"_{len(made) + 1}")
            made.append(
                Kernel(title, self.graph, loads, stores, grid, split, fold.id, ends, (EACH,))
            )
        return made

    def _end_of(self, id: int) -> int | None:
        return self.ends[id][0] if id in self.ends else None

    def _loads(self, names: Mapping[int, str], elsewhere: Callable[[int], bool]) -> dict[int, str]:
        """Nodes that a kernel reads from memory: made elsewhere, and inputs."""
        loads = {id: name for id, name in names.items() if elsewhere(id)}
        inputs = {n.id: n.op.name for n in self.graph if isinstance(n.op, ir.Input)}
        return {**loads, **inputs}

    def _grid(self, nodes: Iterable[Node], split: Axis | None, walked: bool) -> tuple[Axis, ...]:
        """Axes of which a program has one index: batch, chunks and heads."""
        axes: dict[str, Axis] = {}
        for node in nodes:
            axes |= {axis.name: axis for axis in node.type.axes}
        if not walked:
            axes |= {a.name: a for node in self.graph for a in node.type.axes if _counts_chunks(a)}
        order = sorted(axes.values(), key=lambda a: (a.kind != "batch", a.kind == "dim"))
        return tuple(
            axis for axis in order
            if axis.kind == "batch" or axis.name in self.heads
            or (axis.kind == "stream" and axis.name != self.stream.name and not walked)
        )  # fmt: skip

    def _inside(self, start: Iterable[int], level: int) -> list[Node]:
        """The nodes that are computed in the kernel which stores or walks these."""
        seen: set[int] = set()
        stack = list(start)
        while stack:
            id = stack.pop()
            if id in seen or id in self.host:
                continue
            seen.add(id)
            node = self.graph[id]
            if isinstance(node.op, ir.Fold):
                continue
            stack += [o for o in node.operands if self.level[o] == level or o in self.cheap]
        return [self.graph[id] for id in sorted(seen)]

    def _split(self, fold: Node) -> Axis | None:
        """The last dim of the states that no op of the walk crosses."""
        crossed = {name for node in fold.op.body for name in crossing(fold.op.body, node)}
        state = max(fold.op.states, key=lambda s: len(s.axes))
        free = [
            a for a in state.axes
            if a.kind == "dim" and a.name not in crossed and a.name not in self.heads
        ]  # fmt: skip
        shared = [a for a in free if all(a.name in s for s in map(_names, fold.op.states))]
        return shared[-1] if shared else None

    def _split_between(self, nodes: list[Node], stores: list[int]) -> Axis | None:
        """A dim that every dear value has and no op crosses."""
        crossed = {name for node in nodes for name in crossing(self.graph, node)}
        dear = [n for n in nodes if n.id not in self.cheap or n.id in stores]
        if not dear:
            return None
        for axis in dear[0].type.axes:
            fits = axis.kind == "dim" and axis.size != ck.CHUNK and axis.name not in self.heads
            if fits and axis.name not in crossed and all(axis.name in n.type.names for n in dear):
                return axis
        return None


def _counts_chunks(axis: Axis) -> bool:
    return axis.kind == "stream" and axis.size.has(ck.CHUNK)


def _names(state: ir.State) -> set[str]:
    return {axis.name for axis in state.axes}


def _ended(graph: Graph, node: Node) -> tuple[int, str] | None:
    """The Fold along chunks and the state of which a node is the value in the end."""
    if not isinstance(node.op, ck.Last) or not isinstance(graph[node.operands[0]].op, ir.Result):
        return None
    result = graph[node.operands[0]]
    fold = graph[result.operands[0]]
    if not isinstance(fold.op, ir.Fold) or fold.op.reverse != node.op.reverse:
        return None
    states = {state.name for state in fold.op.states}
    return (fold.id, result.op.name) if result.op.name in states else None


def _renames(op: ir.Contract) -> bool:
    """Whether a Contract of one operand only renames and orders axes."""
    return len(op.ins) == 1 and len(set(op.ins[0])) == len(op.ins[0]) == len(op.out)


def _order(level: int) -> str:
    return "before" if level == 0 else f"after{'' if level == 2 else level // 2}"

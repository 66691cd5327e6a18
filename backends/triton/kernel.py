"""One kernel's source: its nodes, pulled from what it stores back to what it loads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from archc.backends.triton.lines import Lines, NotInKernel, NotWhole
from archc.backends.triton.micro import Micro
from archc.backends.triton.naming import program_name
from archc.backends.triton.tile import REAL, Index, Tile
from archc.backends.writer import identifier

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import NEAR, WHOLE, Kernel
from archc.ir.value_names import state_before
from archc.lowering.kernel_values import row_label


@dataclass(eq=False)
class Frame:
    """A graph whose nodes are pulled: the kernel's, or a body with what is captured and the states
    as they are. `exact`: products of matrices are in float32 whatever the data are."""

    graph: Graph
    outer: Frame | None = None
    captured: Mapping[str, int] | None = None
    states: Mapping[str, Tile] | None = None
    exact: bool = False


class KernelWriter(Lines):
    """Writes one kernel; `tokens` is the stream of the tokens."""

    def __init__(self, kernel: Kernel, emitters: Mapping[type, Callable[..., Tile]], tokens: str):
        super().__init__(kernel)
        self.emitters, self.tokens = emitters, tokens
        self.frame = Frame(kernel.graph)
        self.grid = {axis.name: axis for axis in kernel.grid}
        self.own = set(kernel.stores.values())
        self.micro = Micro(kernel.graph, kernel.loads)
        self.results: dict[tuple[int, str], Tile] = {}
        self.pairs: dict[int, Tile] = {}
        self._made_here: list[Node] | None = None
        self.row = row_label(kernel)  # of tokens: they are the rows of a chunk

    def words(self) -> set[str]:
        """Every word of the kernel's lines, and of its grid."""
        axes = [*self.kernel.grid[1:], *([self.kernel.split] if self.kernel.split else [])]
        text = "\n".join([*self.writer.lines, *(self.size(axis.size) for axis in axes)])
        return set(re.findall(r"[A-Za-z_]\w*", text))

    # --- the kernel ---

    def write(self) -> None:
        """All lines of the kernel's body."""
        for name, axis in self.grid.items():
            self.indices[name] = Index("n" if axis.kind == "stream" else program_name(name))
        every = [axis for node in self.kernel.graph for axis in node.type.axes]
        for axis in every:
            if axis.kind == "stream" and axis.name not in (self.tokens, *self.indices):
                self.indices[axis.name] = Index("n")
        if self.kernel.walk is None:
            self._store_all()
        else:
            self._walk()

    def _store_all(self) -> None:
        """Store every value; with few indices of what is split, if the dim beside it is short."""
        beside = self.kernel.beside
        if beside is None:
            self._store_each_value()
            return
        for header in (f"if {self.block(beside)} <= {NEAR}:", "else:"):
            self.has_few = header != "else:"
            with self.branch(header):
                self._store_each_value()

    def _store_each_value(self) -> None:
        for name, id in self.kernel.stores.items():
            self._store(name, id)

    def _store(self, name: str, id: int) -> None:
        node = self.kernel.graph[id]
        along = self.tokens in node.type.names and self.tokens not in self.indices
        place = self._tokens(id) if along else {}
        turn = self._turn(id)
        if turn is None or self.attempt(lambda: self._store_each(name, node, place, turn)) is None:
            self._store_parts(name, node, dict(self.at(node.type, place)))

    def _store_each(self, name: str, node: Node, place: Mapping[str, Index], axis: Axis) -> Tile:
        """Store a value index by index along an axis; its last part."""
        with self.one_by_one(axis) as one:
            at = dict(self.at(node.type, {**place, **one}))
            tile = self.pull(node.id, at)
            self.store(name, node, tile, at, self._one_of(node))
        return tile

    def _store_parts(self, name: str, node: Node, at: dict[str, Index]) -> None:
        """Store a value as a whole, or where that is large block by block."""
        tile, only = self.pull(node.id, at), self._one_of(node)
        axis = self._apart(node, at)
        if axis is None:
            self.store(name, node, tile, at, only)
            return
        with self.branch(f"if {self.area(tile)} <= {WHOLE}:"):
            self.store(name, node, tile, at, only)
        with self.branch("else:"), self.block_by_block(axis) as index:
            there = {**at, axis.name: index}
            self.store(name, node, self.pull(node.id, there), there, only)

    def _turn(self, id: int) -> Axis | None:
        """The dim that a value is stored along index by index, where it is made from tiles of
        three: the first of those that no program has a part of. Where the value is a sum over that
        one, the sum goes index by index instead."""
        split = None if self.kernel.split is None else self.kernel.split.name
        deep = [axis for axis in self._deep(id) if axis.name != split][:1]
        return next((axis for axis in deep if axis in self.dims(id)), None)

    def dims(self, id: int) -> list[Axis]:
        """The dims of a value's tile, but for its rows."""
        axes = self.frame.graph[id].type.axes
        own = [a for a in axes if a.kind == "dim" and a.name not in self.indices]
        return [axis for axis in own if axis.size != ck.CHUNK]

    def scans_matrices(self) -> bool:
        """Whether a graph has scans of a matrix for every row: nothing else makes many such."""
        found = (n for n in self.kernel.graph if isinstance(n.op, ck.Scan) and not n.op.matrix)
        return self.kernel.walk is None and any(len(self.dims(node.id)) > 1 for node in found)

    def is_deep(self, id: int) -> bool:
        """Whether a value is, or is made here from, what has two dims for every row, among scans of
        such. Its tile is too large for registers, and the scan for compilers, which write out every
        number."""
        return bool(self._deep(id))

    def _deep(self, id: int) -> list[Axis]:
        """The dims of what makes a value deep; none if it is not."""
        if self.has_few or self.frame.outer is not None or not self.scans_matrices():
            return []
        graph, stack, seen = self.frame.graph, [id], set[int]()
        while stack:
            node = graph[stack.pop()]
            if node.id in seen:
                continue
            seen.add(node.id)
            rows = [a for a in node.type.axes if a.size == ck.CHUNK or a.name == self.tokens]
            if rows and self.tokens not in self.indices and len(self.dims(node.id)) > 1:
                return self.dims(node.id)
            here = () if self.loaded(node.id) else node.operands
            stack += [operand for operand in here if not self.loaded(operand)]
        return []

    def _apart(self, node: Node, at: Mapping[str, Index]) -> Axis | None:
        """A dim of a matrix, if it can be made and stored part by part along it."""
        axes = [axis for axis in node.type.axes if at[axis.name].label]
        for axis in axes if self.is_matrix(axes, at) else []:
            made, texts, count = dict(self.made), dict(self.texts), len(self.writer.lines)
            one = Index("part", f"{axis.name} part", False, "part")
            self.lengths[f"{axis.name} part"] = self.bounds[f"{axis.name} part"] = "part"
            try:
                self.pull(node.id, {**at, axis.name: one})
                return axis
            except NotInKernel:
                continue
            finally:
                self.made, self.texts, self.frame = made, texts, Frame(self.kernel.graph)
                del self.writer.lines[count:]
        return None

    def _one_of(self, node: Node) -> str:
        """Which program stores what several have; "" if none has what another has."""
        streams = any(axis.kind == "stream" for axis in node.type.axes)
        lacks = [
            axis for axis in self.kernel.grid
            if axis.name not in node.type.names and not (axis.kind == "stream" and streams)
        ]  # fmt: skip
        where = [f"({self.indices[axis.name].text} == 0)" for axis in lacks]
        split = self.kernel.split
        if split is not None and split.name not in node.type.names:
            where.append("(block == 0)")
        return " & ".join(where)

    def _tokens(self, id: int) -> dict[str, Index]:
        """The tokens whose values a program stores: those of its rows, if it is right there."""
        right = self.micro.of(id)
        if right is None:
            self.lengths[self.row], self.blocks["ROWS"] = "ROWS", ck.CHUNK
            token = self.let_index("t", "base + n * ROWS + row")
            return {self.tokens: Index(token, self.row, False, f"{token} < end")}
        row = self.whole(right.row)
        self.lengths[self.row], self.bounds[self.row] = self.block(right.row), row.mask
        steps, rows = (self.factor(self.size(x.size)) for x in (right.steps, right.row))
        each = self.let_index("r", f"base * {steps} + n * {rows} + {row.text}")
        token = self.let_index("t", f"{each} // {steps}")
        step = self.let_index("s", f"{each} % {steps}")
        where = [f"({token} < end)", *([self.inside(right.row.name, row.mask)] if row.mask else [])]
        where += [] if right.axis else [f"({step} == {right.step})"]
        place = {self.tokens: Index(token, self.row, False, " & ".join(where))}
        return place | ({right.axis: Index(step, self.row)} if right.axis else {})

    def _walk(self) -> None:
        """The loop over the chunks, or over the tokens."""
        kernel, graph = self.kernel, self.kernel.graph
        fold = graph[kernel.walk]
        op: ir.Fold = fold.op
        count = len(op.captures)
        states = {
            state.before: self._start(state, id)
            for state, id in zip(op.states, fold.operands[count:], strict=True)
        }
        kept, texts = dict(self.made), dict(self.texts)
        (low, high), at = ("low", "high"), "n"
        if op.stream.name == self.tokens:
            (low, high), at = ("start", "end"), self.names.fresh("t")
            self.indices[self.tokens] = Index(at)
        with self.writer.block(f"for step in range({high} - {low}):"):
            self.writer.line(f"{at} = {f'{high} - 1 - step' if op.reverse else f'{low} + step'}")
            self._step(fold, states)
        self.indices.pop(self.tokens, None)
        self.made, self.texts = kept, texts
        for name, buffer in kernel.ends.items():
            (node,) = (n for n in graph if kernel.loads.get(n.id) == buffer)
            place, tile = dict(self.at(node.type, {})), states[state_before(name)]
            self.store(buffer, node, tile, place, self._one_of(node))

    def _start(self, state: ir.State, id: int) -> Tile:
        """A state before the first chunk, in registers."""
        start = self.pull(id)
        labels = tuple(a.name for a in state.axes if a.name not in self.indices)
        for axis in state.axes:
            if axis.name in labels:
                self.whole(axis)
        start = self.arranged(start, tuple(x for x in labels if x in start.labels))
        number = not start.text.isidentifier()
        wide = self.broadcast(start, labels) if number or start.labels != labels else start.text
        name = self.names.fresh(identifier(state.name))
        self.writer.line(f"{name} = {wide}")
        return Tile(name, labels, REAL, dot=len(labels) == 2)

    def _step(self, fold: Node, states: dict[str, Tile]) -> None:
        """What is done at one chunk: results are stored before states become what they are next."""
        op, outer = fold.op, self.frame
        captured = dict(zip(op.captures, fold.operands, strict=False))
        self.frame = Frame(op.body, outer, captured, states, self.kernel.exact)
        made = {name: self.pull(id) for name, id in op.body.outputs.items()}
        self.frame = outer
        self.results = {(fold.id, name): tile for name, tile in made.items()}
        self._store_all()
        following = []
        for state in op.states:
            old, new = states[state.before], made[state.name]
            assert set(new.labels) <= set(old.labels), f"{state.name}: {new.labels}"
            new = self.arranged(new, tuple(x for x in old.labels if x in new.labels))
            wide = new.text if new.labels == old.labels else self.broadcast(new, old.labels)
            following.append((old.text, wide))
        names, texts = zip(*following, strict=True)
        self.writer.line(f"{', '.join(names)} = {', '.join(texts)}")

    # --- values ---

    def axis_of(self, operand: int, name: str) -> Axis:
        """An axis of a node's value."""
        return self.frame.graph[operand].type.axis(name)

    def pull(self, id: int, place: Mapping[str, Index] | None = None) -> Tile:
        """The value of a node where it is wanted."""
        return self.widened(self.pull_stored(id, place))

    def pull_stored(self, id: int, place: Mapping[str, Index] | None = None) -> Tile:
        """The value in the dtype that it has in memory, if it comes from there."""
        node = self.frame.graph[id]
        wanted = self.at(node.type, place or {})
        own = tuple(
            (name, replace(index, label=name) if index.whole and index.label else index)
            for name, index in wanted
        )
        labels = [index.label for _, index in own if index.label]
        if len(set(labels)) < len({index.label for _, index in wanted if index.label}):
            own = wanted
        for (name, one), (_, other) in zip(own, wanted, strict=True):
            if one != other:
                self.lengths[name] = self.lengths[other.label]
                self.bounds[name] = self.bounds.get(other.label, "")
        key = (id, self.frame, own)
        if key not in self.made:
            self.made[key] = self._made(node, dict(own))
        pairs = zip(own, wanted, strict=True)
        names = {one.label: other.label for (_, one), (_, other) in pairs if one != other}
        return self.see(self.made[key].renamed(names))

    def loaded(self, id: int) -> bool:
        """Whether a node of the kernel's graph is read from memory."""
        return id in self.kernel.loads and id not in self.own

    def made_here(self) -> list[Node]:
        """The nodes that the kernel computes from what it loads, operands first."""
        if self._made_here is None:
            graph, seen = self.kernel.graph, set[int]()
            walk = () if self.kernel.walk is None else graph[self.kernel.walk].operands
            stack = [*self.own, *walk]
            while stack:
                id = stack.pop()
                if id not in seen and not self.loaded(id):
                    seen.add(id)
                    stack += graph[id].operands
            self._made_here = [node for node in graph if node.id in seen]
        return self._made_here

    def is_product(self, id: int) -> bool:
        """Whether a value is made here from a product of matrices."""
        graph, stack = self.frame.graph, [id]
        while stack:
            node = graph[stack.pop()]
            if self.frame.outer is None and self.loaded(node.id):
                continue
            if isinstance(node.op, ir.Contract) and len(node.operands) == 2:
                return True
            stack += node.operands
        return False

    def borders(self, axis: Axis) -> tuple[str, str]:
        """The first index of an axis, and the one after the last."""
        if axis.kind == "stream":
            return ("start", "end") if axis.name == self.tokens else ("low", "high")
        return "0", self.size_text(axis)

    def whole_along(self, node: Node, place: Mapping[str, Index], *axes: str) -> None:
        """Refuse another place than all of these axes."""
        for axis in axes:
            if not place[axis].whole:
                op = type(node.op).__name__
                raise NotWhole(f"{op} along {axis} is wanted at {place[axis].text}")

    def attempt(self, make: Callable[[], Tile]) -> Tile | None:
        """What `make` writes; nothing is written where a value would not be whole."""
        frame, made, texts = self.frame, dict(self.made), dict(self.texts)
        count, depth = len(self.writer.lines), self.writer.depth
        try:
            return make()
        except NotWhole:
            self.frame, self.made, self.texts = frame, made, texts
            self.writer.depth = depth
            del self.writer.lines[count:]
            return None

    def _made(self, node: Node, place: dict[str, Index]) -> Tile:
        frame = self.frame
        if frame.outer is None and node.id in self.kernel.loads and node.id not in self.own:
            return self.load(self.kernel.loads[node.id], node, place)
        if isinstance(node.op, ir.Input):
            return self._entering(node, place)
        rule = self.emitters.get(type(node.op))
        try:
            if rule is None:
                raise NotInKernel(f"kernels have no {type(node.op).__name__}")
            return rule(self, node, place)
        except NotInKernel as error:
            if error.node is None:
                error.node = node.id if frame.outer is None else self.kernel.walk
            raise

    def _entering(self, node: Node, place: dict[str, Index]) -> Tile:
        """An input of the body: a state, or a captured value at this chunk."""
        frame = self.frame
        assert frame.outer is not None and frame.states is not None and frame.captured is not None
        if node.op.name in frame.states:
            state = frame.states[node.op.name]
            self.whole_along(node, place, *(n for n in place if place[n].label))
            return state
        self.frame = frame.outer
        found = self.pull_stored(frame.captured[node.op.name], place)
        self.frame = frame
        return found


def source(
    kernel: Kernel, emitters: Mapping[type, Callable[..., Tile]], tokens: str
) -> KernelWriter:
    """The writer that has written a kernel."""
    made = KernelWriter(kernel, emitters, tokens)
    made.write()
    return made

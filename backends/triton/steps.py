"""A kernel that walks tokens: the states stay in registers, and come from rows of pools."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from archc.backends.triton.kernel import KernelWriter, before
from archc.backends.triton.lines import Place
from archc.backends.triton.naming import STEPS, program_name
from archc.backends.triton.tile import REAL, Index, Tile
from archc.backends.writer import identifier

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.kernel import Kernel

READ, WRITTEN = "slot", "slot_after"
"""In which rows of the pools the states stand, before and after."""

FORWARD = "tl.cast(0, tl.int64)", "step", "tl.minimum(t + 1, T - 1)"
BACK = "tl.cast(T - 1, tl.int64)", "T - 1 - step", "tl.maximum(t - 1, 0)"
"""The first token, that of a step, and the one after it; the last has none, and is read again."""

ROW, ROW_OF_ANY = "row < B", "(row < B) & (T > 0)"
"""Which rows there are; of sequences of no token not even the first can be read."""

class StepsWriter(KernelWriter):
    """Writes one kernel. Of its graph the initial states, and the states in the end, are rows of
    pools. `numbers`: captures that are Python numbers, given by value. `blocks_in_turn`: a state
    lacks the dim that is split, so that a program may have to do all of its blocks in turn.
    `clean`: along which dims a state is 0 off its axes at every token, where less than at first."""

    sequence = ""

    def __init__(
        self, kernel: Kernel, emitters: Mapping[type, Callable[..., Tile]], tokens: str,
        numbers: Collection[str], clean: Mapping[str, frozenset[str]],
    ):  # fmt: skip
        super().__init__(kernel, emitters, tokens)
        self.numbers, self.clean = numbers, dict(clean)
        self.first_clean: dict[str, frozenset[str]] = {}
        self.names.taken |= STEPS
        assert kernel.walk is not None
        self.fold = kernel.graph[kernel.walk]
        op: ir.Fold = self.fold.op
        count = len(op.captures)
        self.starts = {kernel.loads[id] for id in self.fold.operands[count:]}
        self.pools = self.starts | set(kernel.ends.values())
        split = kernel.split.name if kernel.split else ""
        self.whole_states = {s.name for s in op.states if split not in {a.name for a in s.axes}}
        self.blocks_in_turn = bool(split and self.whole_states)

    def write(self) -> None:
        """All lines of the kernel's body."""
        kernel, op = self.kernel, self.fold.op
        for name in self.grid:
            self.indices[name] = Index(program_name(name))
        if kernel.rows is not None:
            name = kernel.rows.name
            self.indices[name] = Index("row", name, True, ROW)
            self.lengths[name], self.bounds[name] = "ROWS", ROW
            self.blocks["ROWS"] = kernel.rows.size
            self.order.append(name)
        self._slots()
        self.indices[op.stream.name] = Index("t")
        if self.blocks_in_turn:
            with self.writer.block("for block in range(first, last):"):
                self.writer.line("part = block * PART + tl.arange(0, PART)")
                self._walk()
        else:
            self._walk()

    def _slots(self) -> None:
        """Which rows of the pools are read and written; a negative one: none."""
        batch = self.indices[self.kernel.grid[0].name]
        given = f", {ROW}, -1" if batch.label else ""
        own = f"tl.where({ROW}, row, -1)" if batch.label else batch.text
        for name, index in ((READ, "index"), (WRITTEN, "index_after")):
            self.writer.line(f"{name} = {own}")
            with self.writer.block(f"if {index}_p is not None:"):
                address = f"{index}_p + {batch.text} * {index}_batch"
                self.writer.line(f"{name} = tl.load({address}{given}).to(tl.int64)")

    def _walk(self) -> None:
        """The loop over the tokens."""
        kernel, graph, op = self.kernel, self.kernel.graph, self.fold.op
        starts = self.fold.operands[len(op.captures) :]
        states = {before(s): self._start(s, id) for s, id in zip(op.states, starts, strict=True)}
        for id in self.fold.operands[: len(op.captures)]:
            if op.stream.name not in graph[id].type.names and self._is_read(id):
                self.pull(id)
        first, step, following = FORWARD if not op.reverse else BACK
        ahead = self._loads_ahead()
        now = self._loaded(ahead, "t_first", first, ROW_OF_ANY) if ahead else []
        kept, texts = dict(self.made), dict(self.texts)
        with self.writer.block("for step in range(T):"):
            self.writer.line(f"t = tl.cast({step}, tl.int64)")
            then = self._loaded(ahead, "t_next", following, ROW) if ahead else []
            for id, tile in zip(ahead, now, strict=True):
                self.made[id, self.frame, self.at(graph[id].type, {})] = tile
            self._step(self.fold, states)
            self._look_at_states(states)
            for tile, other in zip(now, then, strict=True):
                self.writer.line(f"{tile.text} = {other.text}")
        self.made, self.texts = kept, texts
        for name, buffer in kernel.ends.items():
            (node,) = (n for n in graph if kernel.loads.get(n.id) == buffer)
            self.store(buffer, node, states[f"{name}[t-1]"], dict(self.at(node.type, {})))

    def _loads_ahead(self) -> list[int]:
        """Captures that are read one token ahead, as a program waits for them otherwise: those that
        no product of a token is made from, which Triton itself would read ahead."""
        op, body = self.fold.op, self.fold.op.body
        if self.kernel.rows is None:
            return []
        products = {n.id for n in body if isinstance(n.op, ir.Contract) and len(n.operands) == 2}
        read = {n.op.name: body.descendants(n.id) for n in body if isinstance(n.op, ir.Input)}
        found = []
        for name, id in zip(op.captures, self.fold.operands, strict=False):
            along = op.stream.name in self.kernel.graph[id].type.names
            if along and name in read and not products & read[name] and name not in self.numbers:
                found.append(id)
        return found

    def _loaded(self, ids: list[int], token: str, place: str, mask: str) -> list[Tile]:
        """Values at another token, of rows that have it."""
        assert self.kernel.rows is not None
        rows, kept = self.kernel.rows.name, dict(self.indices)
        self.writer.line(f"{token} = {place}")
        self.indices[self.fold.op.stream.name] = Index(token)
        self.indices[rows] = replace(kept[rows], mask=mask)
        tiles = [self.pull_stored(id) for id in ids]
        self.indices.update(kept)
        return tiles

    def _is_read(self, id: int) -> bool:
        """Whether the body has the whole of a captured value in registers."""
        node = self.kernel.graph[id]
        return node.op.name in {n.op.name for n in self.fold.op.body if isinstance(n.op, ir.Input)}

    def _start(self, state: ir.State, id: int) -> Tile:
        """A state before the first token, in registers."""
        start = self.pull(id)
        name = self.names.fresh(identifier(state.name))
        self.writer.line(f"{name} = {start.text}")
        clean = self.first_clean[state.name] = self.clean.get(state.name, start.clean)
        return Tile(name, start.labels, REAL, clean)

    def _look_at_states(self, states: Mapping[str, Tile]) -> None:
        """Note along which dims the states are still 0 off their axes after a token."""
        for state in self.fold.op.states:
            made = self.results[self.fold.id, state.name]
            self.clean[state.name] = states[before(state)].clean & made.clean & {*made.labels}

    def _store(self, name: str, id: int) -> None:
        node = self.kernel.graph[id]
        at = dict(self.at(node.type, {}))
        self.store(name, node, self.pull(id, at), at)

    def borders(self, axis: Axis) -> tuple[str, str]:
        """The first index of an axis, and the one after the last."""
        return ("0", "T") if axis.kind == "stream" else super().borders(axis)

    # --- memory ---

    def load(self, name: str, node: Node, place: dict[str, Index]) -> Tile:
        """A value from memory, or a number that was given."""
        if name in self.numbers:
            self.arguments[name] = node
            return Tile(self.pointers[name])
        return super().load(name, node, place)

    def address(self, name: str, node: Node, at: Place, labels: tuple[str, ...]) -> tuple[str, str]:
        """Of a state, its row of the pool; where there is none, nothing is read or written."""
        if name not in self.pools:
            return super().address(name, node, at, labels)
        slot, batch = (READ if name in self.starts else WRITTEN), self.kernel.grid[0].name
        there = f"{slot} >= 0"
        own = self.indices[batch]
        row = replace(own, text=slot, mask=there if own.label else "", whole=False)
        moved = tuple((axis, row if axis == batch else index) for axis, index in at)
        address, mask = super().address(name, node, moved, labels)
        masks = [mask] if mask else []
        if not self.indices[batch].label:
            masks.append(self.let_index(f"in_{slot}", there))
        state = next((s for s, end in self.kernel.ends.items() if end == name), "")
        if self.blocks_in_turn and state in self.whole_states:
            masks.append("(block == blocks - 1)")
        return address, " & ".join(masks)


def steps_source(
    kernel: Kernel, emitters: Mapping[type, Callable[..., Tile]], tokens: str,
    numbers: Collection[str],
) -> StepsWriter:  # fmt: skip
    """The writer that has written a kernel; raises NotInKernel where it cannot be one. It is
    written anew where a state does not stay 0 off its axes."""
    clean: dict[str, frozenset[str]] = {}
    while True:
        made = StepsWriter(kernel, emitters, tokens, numbers, clean)
        made.write()
        if made.clean == made.first_clean:
            return made
        clean = made.clean

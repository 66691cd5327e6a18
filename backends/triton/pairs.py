"""Pairs of rows that decay along a dim as lines of a kernel: one loop for all that decay alike.

The rows are the leaves of a binary tree. Two rows meet at one level of it, in the two halves of a
block: there the decay between them is that from the border between the halves to the later row,
times that from the earlier row to the border. Each level is a product of matrices.

    for level in range(LEVELS):
        decay = ...                        each row's, from or to the border of its halves
        product = tl.dot(a * decay, tl.trans(b * decay))
        gram += tl.where(meet, product, 0.0)
"""

from __future__ import annotations

from collections.abc import Mapping

from archc.backends.triton.algebra import masked
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.rows import axis_of
from archc.backends.triton.tile import Index, Tile

from archc.ir import chunk as ck
from archc.ir.graph import Node

Place = Mapping[str, Index]

PAIRED = (ck.Gram, ck.Mix, ck.GateGradient)


def paired(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """A Gram, a Mix or a GateGradient; others that read the same sums are written with it."""
    kernel.whole_along(node, place, *(name for name in place if place[name].label))
    if node.op.anchor != ck.SUMS:
        raise NotInKernel("pairs of rows that decay along several dims")
    if node.id not in kernel.pairs:
        before = kernel.frame.graph.ancestors(node.id)
        for other in kernel.made_here():
            if isinstance(other.op, PAIRED) and other.id in before:
                kernel.pull(other.id)
        _Loop(kernel, node).write()
    return kernel.pairs[node.id]


class _Loop:
    """The loop over the levels for all pairs that can be made where one of them is wanted."""

    def __init__(self, kernel: KernelWriter, node: Node):
        self.kernel, self.first, self.row = kernel, node, node.op.row
        graph = kernel.frame.graph
        self.sums = graph[node.operands[-1]]
        dims = [a for a in self.sums.type.axes if a.name not in (self.row, *kernel.indices)]
        (self.axis,) = dims
        self.dim = self.axis.name
        here = kernel.made_here()
        waiting = {n.id for n in here if isinstance(n.op, PAIRED)} - set(kernel.pairs)
        alike = [n for n in here if self._alike(n)]
        self.nodes = [n for n in alike if not waiting & graph.ancestors(n.id)]
        if node.id not in {n.id for n in self.nodes}:
            raise NotInKernel("pairs of rows inside a walk")

    def _alike(self, node: Node) -> bool:
        same = isinstance(node.op, PAIRED) and node.operands[-1] == self.sums.id
        made = node.id in self.kernel.pairs
        return same and not made and node.op.exclusive == self.first.op.exclusive

    # --- values ---

    def rows(self, operand: int) -> str:
        """A value as [row, dim], 0 off the dim."""
        kernel = self.kernel
        x = kernel.pull(operand)
        if set(x.labels) != {self.row, self.dim}:
            raise NotInKernel(f"pairs of rows that decay, of a value with {', '.join(x.labels)}")
        return masked(kernel, kernel.arranged(x, (self.row, self.dim)), (self.dim,)).text

    def matrix(self, node: Node, *, turned: bool = False) -> str:
        """The matrix [row, col] of a Mix, or [col, row]."""
        kernel, col = self.kernel, axis_of(self.kernel, node, node.op.col).name
        order = (col, self.row) if turned else (self.row, col)
        return kernel.arranged(kernel.pull(node.operands[0]), order).text

    def both(self, node: Node) -> str:
        """The matrix of a Mix, with what is below its diagonal also above it."""
        i, below, above = self.index, self.matrix(node), self.matrix(node, turned=True)
        text = f"tl.where({i}[:, None] > {i}[None, :], {below}, {above})"
        return self.kernel.let_index("both", text)

    def diagonal(self, node: Node) -> str:
        """The diagonal of the matrix of a Mix."""
        i = self.index
        own = f"tl.where({i}[:, None] == {i}[None, :], {self.matrix(node)}, 0.0)"
        return self.kernel.let_index("own", f"tl.sum({own}, 1)")

    # --- lines ---

    def write(self) -> None:
        """The lines before the loop, the loop, and those after it. Grams alone are summed up from
        parts of the dim, so that tiles are small."""
        kernel = self.kernel
        self.index = kernel.whole(self.sums.type.axis(self.row)).text
        grams = all(map(_is_gram, self.nodes))
        for node in filter(_is_gram, self.nodes):
            kernel.lengths[node.op.col.name] = kernel.lengths[self.row]
            kernel.see(Tile("", (self.row, node.op.col.name)))
        if grams:
            made = {node.id: self._zeros(node) for node in self.nodes}
            with kernel.part_by_part(self.axis):
                self._levels(made)
        else:
            kernel.whole(self.axis)
            made = self._levels({})
        for node in self.nodes:
            kernel.pairs[node.id] = self._after(node, made[node.id])

    def _levels(self, made: dict[int, str]) -> dict[int, str]:
        """The loop over the levels; what it adds to, by node."""
        kernel = self.kernel
        self.values = {o: self.rows(o) for n in self.nodes for o in _values(n)}
        matrices = {n.operands[0]: self.both(n) for n in self.nodes if not _is_gram(n)}
        made = made or {node.id: self._zeros(node) for node in self.nodes}
        decay = self._before()
        for node in filter(_is_gram, self.nodes):
            if _has_own(node):
                a, b = (self.values[o] for o in node.operands[:2])
                kernel.writer.line(f"{made[node.id]}_own += tl.sum({a} * {b}, 1)")
        with kernel.writer.block(f"for level in range({kernel.levels(self.row)}):"):
            self._level(decay, matrices, made)
        return made

    def _zeros(self, node: Node) -> str:
        kernel, length = self.kernel, self.kernel.lengths[self.row]
        word = {ck.Gram: "gram", ck.Mix: "mix", ck.GateGradient: "d_gate"}[type(node.op)]
        columns = length if _is_gram(node) else kernel.lengths[self.dim]
        zeros = f"tl.zeros(({length}, {columns}), tl.float32)"
        made = kernel.let(node.name or word, zeros)
        if isinstance(node.op, ck.GateGradient) and node.op.exclusive:
            kernel.writer.line(f"{made}_own = {zeros}")
        if _is_gram(node) and _has_own(node):
            kernel.writer.line(f"{made}_own = tl.zeros(({length},), tl.float32)")
        return made

    def _before(self) -> tuple[str, ...]:
        """The sums at the row before and here, pointers to them and how far their rows are."""
        kernel, labels = self.kernel, (self.row, self.dim)
        name = kernel.kernel.loads[self.sums.id]
        sums = kernel.arranged(kernel.pull_stored(self.sums.id), labels).text
        place = kernel.at(self.sums.type, {})
        at = tuple((axis, index) for axis, index in place if axis != self.row)
        columns, inside = kernel.address(name, self.sums, at, labels)
        columns = kernel.let_index(f"{sums}_columns", columns)
        stride, i, before = kernel.stride(name, self.row), self.index, sums
        if self.first.op.exclusive:
            mask = f"({i} > 0)[:, None]" + (f" & {inside}" if inside else "")
            text = f"tl.load({columns} + ({i} - 1)[:, None] * {stride}, {mask}, 0)"
            before = kernel.let("before", text)
        return before, sums, columns, stride, inside or "True"

    def _level(
        self, decay: tuple[str, ...], matrices: dict[int, str], made: dict[int, str]
    ) -> None:
        kernel, i = self.kernel, self.index
        kernel.pieces.add("tile_decay")
        line = kernel.writer.line
        line(f"later = ((({i} >> level) & 1) == 1)[:, None]")
        line(f"decay = tile_decay({', '.join(decay)}, later, {i}, level)")
        line(f"meet = (({i}[:, None] ^ {i}[None, :]) >> level) == 1")
        near: dict[str, str] = {}
        mixes: dict[int, list[Node]] = {}
        for node in self.nodes:
            if _is_gram(node):
                self._gram(node, made[node.id], near)
            else:
                mixes.setdefault(node.operands[0], []).append(node)
        for matrix, nodes in mixes.items():
            self._mixed(matrices[matrix], nodes, made)

    def _gram(self, node: Node, made: str, near: dict[str, str]) -> None:
        kernel = self.kernel
        left, right = (self.values[o] for o in node.operands[:2])
        for tile in (left, right):
            if tile not in near:
                near[tile] = self._near(tile)
        text = f"tl.dot({near[left]}, tl.trans({near[right]}), input_precision=PRECISION)"
        kernel.writer.line(f"{made} += tl.where(meet, {text}, 0.0)")

    def _near(self, tile: str) -> str:
        """Rows as they are at the border."""
        return self.kernel.let(f"{tile.removesuffix('_wide')}_near", f"({tile} * decay).to(DOT)")

    def _mixed(self, matrix: str, nodes: list[Node], made: dict[int, str]) -> None:
        """One product for all that mix with a matrix: later rows get what they see of earlier
        ones, and earlier rows what sees them."""
        kernel, line = self.kernel, self.kernel.writer.line
        later, earlier = _of_later(nodes), _of_earlier(nodes)
        found = [self.values[o] for o in (later, earlier) if o is not None]
        value = found[0]
        if len(found) == 2:
            value = kernel.let("value", f"tl.where(later, {found[0]}, {found[1]})")
        near = self._near(value)
        pairs = f"tl.where(meet, {matrix}, 0.0).to(DOT)"
        seen = kernel.let("seen", f"tl.dot({pairs}, {near}, input_precision=PRECISION)")
        for node in nodes:
            name = made[node.id]
            if isinstance(node.op, ck.GateGradient):
                share = kernel.let("share", f"{near}.to(tl.float32) * {seen}")
                line(f"{name} += tl.where(later, {share}, -{share})")
                if node.op.exclusive:
                    line(f"{name}_own += tl.where(later, {share}, 0.0)")
            elif node.op.transpose:
                line(f"{name} += tl.where(later, 0.0, {seen} * decay)")
            else:
                line(f"{name} += tl.where(later, {seen} * decay, 0.0)")

    def _after(self, node: Node, made: str) -> Tile:
        """What a pair of a row with itself adds; nothing is above the diagonal of a Gram."""
        kernel, i, labels = self.kernel, self.index, (self.row, self.dim)
        if isinstance(node.op, ck.Gram):
            other = "0.0"
            if _has_own(node):
                other = f"tl.where({i}[:, None] == {i}[None, :], {made}_own[:, None], 0.0)"
            text = f"tl.where({i}[:, None] > {i}[None, :], {made}, {other})"
            return Tile(kernel.let(made, text), (self.row, node.op.col.name), dot=True)
        if isinstance(node.op, ck.GateGradient):
            text = f"tl.cumsum({made}, 0, reverse=True)"
            text += f" - {made}_own" if node.op.exclusive else ""
            return Tile(kernel.let(made, text), labels)
        if _has_own(node):
            text = f"{made} + {self.diagonal(node)}[:, None] * {self.values[node.operands[1]]}"
            made = kernel.let(made, text)
        return Tile(made, labels, dot=True)


def _is_gram(node: Node) -> bool:
    return isinstance(node.op, ck.Gram)


def _has_own(node: Node) -> bool:
    """Whether a row is paired with itself."""
    return not (node.op.strict or node.op.exclusive)


def _values(node: Node) -> tuple[int, ...]:
    """The operands that run along the rows."""
    return node.operands[:2] if _is_gram(node) else node.operands[1:-1]


def _of_later(nodes: list[Node]) -> int | None:
    """What later rows bring to a product: it goes to earlier ones."""
    found = [n.operands[1] for n in nodes if isinstance(n.op, ck.GateGradient)]
    return _one(found + [n.operands[1] for n in nodes if _mixes(n, transpose=True)])


def _of_earlier(nodes: list[Node]) -> int | None:
    """What earlier rows bring to a product."""
    found = [n.operands[2] for n in nodes if isinstance(n.op, ck.GateGradient)]
    return _one(found + [n.operands[1] for n in nodes if _mixes(n, transpose=False)])


def _mixes(node: Node, *, transpose: bool) -> bool:
    return isinstance(node.op, ck.Mix) and node.op.transpose == transpose


def _one(found: list[int]) -> int | None:
    if len(set(found)) > 1:
        raise NotInKernel("one matrix that mixes several values")
    return found[0] if found else None

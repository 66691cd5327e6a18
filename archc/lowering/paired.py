"""Pairs of rows that decay along a dim: all that read the same sums of gates are made together.

`pairs.py` writes them; here is what they are given. Grams alone are summed up from parts of the
dim, so that tiles are small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import sympy

from archc.ir import chunk as ck
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.pairs import Made, Near, Products, Weighed, grams, mixes
from archc.lowering.row_decays import Decays
from archc.lowering.rows import log_gates
from archc.lowering.values import Index, Padded, Place
from archc.tile.compose import ceil_div, size
from archc.tile.handle import Tile
from archc.tile.language import Dim

if TYPE_CHECKING:
    from archc.lowering.kernel_values import KernelValues

DIMS, DIMS_OF_A_PART = size("DIMS"), 32
"""The length of a part of the dim that Grams are summed up from, and the most it may be."""

STRONG_DIMS = size("STRONG_DIMS")
"""The same where gates are strong: what is done for each pair of rows is then the most."""

NEAR_DIMS, NEAR_OF_A_PART = size("NEAR_DIMS"), 128
"""The same of rows that are multiplied as they stand."""

PAIRED = (ck.Gram, ck.Mix, ck.GateGradient, ck.JointPairs)


def makes_pairs(node: Node) -> bool:
    """Whether a node is made of pairs of rows that decay by sums in memory."""
    return isinstance(node.op, PAIRED) and node.op.anchor == ck.SUMS


class Lot(NamedTuple):
    """Pairs with weights of their own: the node that they are a share of, a Mix or a GateGradient,
    and its operands."""

    node: Node
    op: ck.Mix | ck.GateGradient
    operands: tuple[int, ...]


def paired(v: KernelValues, node: Node, place: Place) -> Padded | Refusal:
    """A Gram, or sums over weighed pairs, and with it others that read the same sums."""
    labelled = [name for name in place if place[name].label]
    refused = v.not_whole(node, place, *labelled)
    if refused is not None:
        return refused
    if node.op.anchor != ck.SUMS:
        return v.refused(node, "pairs of rows that decay along several dims, which may be many")
    if node.id not in v.pairs:
        before = v.frame.graph.ancestors(node.id)
        for other in v.here:
            if isinstance(other.op, PAIRED) and other.id in before:
                v.value(other.id)
        refused = _Together(v, node).make()
    return refused or v.pairs[node.id]


class _Together:
    """All pairs that can be made where one of them is wanted."""

    def __init__(self, v: KernelValues, node: Node):
        self.v, self.first, self.row = v, node, node.op.row
        graph = v.frame.graph
        self.sums = graph[node.operands[-1]]
        waiting = {n.id for n in v.here if isinstance(n.op, PAIRED)} - {*v.pairs}
        alike = [n for n in v.here if self._is_alike(n)]
        self.nodes = [n for n in alike if not waiting & graph.ancestors(n.id)]

    def _is_alike(self, node: Node) -> bool:
        same = isinstance(node.op, PAIRED) and node.operands[-1] == self.sums.id
        made = node.id in self.v.pairs
        return same and not made and node.op.exclusive == self.first.op.exclusive

    def make(self) -> Refusal | None:
        """All of them."""
        v = self.v
        dims = [a for a in self.sums.type.axes if a.name not in (self.row, *v.indices)]
        if len(dims) != 1 or self.first.id not in {n.id for n in self.nodes}:
            return v.refused(self.first, "pairs of rows inside a walk")
        self.axis = dims[0]
        return self._mixes() or self._grams()

    # --- Grams ---

    def _grams(self) -> Refusal | None:
        """Grams, summed up from parts of the dim if there is nothing else."""
        v = self.v
        nodes = [node for node in self.nodes if isinstance(node.op, ck.Gram)]
        if not nodes:
            return None
        tried = self._one_part(nodes, v.k.lift(0, "i32"), len(nodes) == len(self.nodes))
        if isinstance(tried, Refusal):
            return tried
        parts = len(nodes) == len(self.nodes) and not v.is_split(self.axis)
        all_dims = v.size(self.axis.size)
        counts = [ceil_div(all_dims, each) if parts else 1 for each in (DIMS, STRONG_DIMS)]
        near = self._near(nodes)

        def make(part: Tile, strong: bool) -> Made:
            made = self._one_part(nodes, part, parts, STRONG_DIMS if strong else DIMS)
            assert not isinstance(made, Refusal), "it was made so before"
            return made

        rows = v.dim(self.row, self.sums.type.axis(self.row))
        col = Dim(nodes[0].op.col.name, rows.length)
        own = tuple(_has_own(node.op) for node in nodes)
        ends = self._ends() if parts and near is None else None
        both = counts[0], counts[1]
        alone = None if v.twice is None else v.twice.again
        products = Products(
            v.k, rows, col, both, make, own, ends, v.numbers.operand, v.takes_tree, alone, near,
            v.numbers.precision,
        )  # fmt: skip
        for node, tile in zip(nodes, grams(products), strict=True):
            own_name = tile.along(**{col.name: node.op.col.name})
            v.pairs[node.id] = Padded(own_name, product=True)
        return None

    def _near(self, nodes: Sequence[Node]) -> Near | None:
        """The rows as they stand, if all are given so."""
        v = self.v
        if not all(isinstance(node.op, ck.NearGram) for node in nodes):
            return None
        middle = v.value(nodes[0].operands[2])
        assert isinstance(middle, Padded), "another kernel stored it"

        def rows(part: Tile) -> Sequence[tuple[Tile, Tile]]:
            with v.inner():
                v.k.fixed(NEAR_DIMS)
                v.parts[NEAR_DIMS.name] = self.axis.size
                v.looped[self.axis.name] = part * NEAR_DIMS, NEAR_DIMS
                found = [self._as_stored(node) for node in nodes]
                v.looped.pop(self.axis.name)
            return found

        tile = v.masked(middle.wide(), (self.axis.name,)).tile
        return Near(ceil_div(v.size(self.axis.size), NEAR_DIMS), rows, tile)

    def _as_stored(self, node: Node) -> tuple[Tile, Tile]:
        """The rows of a Gram as they lie in memory, in the dtype of products."""
        v, found = self.v, []
        for operand in node.operands[:2]:
            x = v.stored(operand)
            assert isinstance(x, Padded), "another kernel stored it"
            found.append(x.ordered(self.row, self.axis.name).tile.to(v.numbers.operand))
        return found[0], found[1].along(**{self.row: node.op.col.name})

    def _one_part(
        self, nodes: Sequence[Node], part: Tile, parts: bool, length: sympy.Symbol = DIMS
    ) -> Made | Refusal:
        """The operands of Grams, in one part of the dim or in all of it."""
        v = self.v
        with v.inner():
            if parts:
                v.k.fixed(length)
                v.parts[length.name] = self.axis.size
                v.looped[self.axis.name] = part * length, length
            found = self._given(nodes)
            v.looped.pop(self.axis.name, None)
        return found

    def _ends(self) -> tuple[Tile, Tile]:
        """The sums at the middle row and at the last one, in all parts of the dim."""
        v, columns = self.v, self.v.whole(self.axis)
        rows = v.size(self.sums.type.axis(self.row).size)
        at = (Index(v.k.lift(row, "i32")) for row in (sympy.floor(rows / 2) - 1, rows - 1))
        middle, last = (
            v.sums_at(self.sums, {self.row: row, self.axis.name: columns}) for row in at
        )
        return middle.named("middle"), last.named("last")

    def _given(self, nodes: Sequence[Node]) -> Made | Refusal:
        """Decays, and the rows of each Gram."""
        products: list[tuple[Tile, Tile]] = []
        for node in nodes:
            a, b = (self._rows(operand) for operand in node.operands[-3:-1])
            if isinstance(a, Refusal):
                return a
            if isinstance(b, Refusal):
                return b
            products.append((a, b))
        decays = self._decays(nodes[0].op.col.name)
        return decays if isinstance(decays, Refusal) else (decays, products)

    # --- Mixes and their gradients ---

    def _mixes(self) -> Refusal | None:
        """Mixes and gradients of gates, all in one pass."""
        v, nodes = self.v, [n for n in self.nodes if not isinstance(n.op, ck.Gram)]
        if not nodes:
            return None
        pairs = []
        for group in _groups(nodes):
            made = self._weighed(group)
            if isinstance(made, Refusal):
                return made
            pairs.append(made)
        decays = self._decays(nodes[0].op.col)
        if isinstance(decays, Refusal):
            return decays
        made = mixes(decays, pairs)
        for node in nodes:
            v.pairs[node.id] = Padded(made[_name(node)], product=True)
        return None

    def _weighed(self, group: Sequence[Lot]) -> Weighed | Refusal:
        """The rows that one matrix mixes, with that matrix."""
        v, given = self.v, {}
        for side, operand in sorted(_sides(group)):
            x = self._rows(operand)
            if isinstance(x, Refusal):
                return x
            given[side] = x
        col = group[0].op.col
        matrix = v.value(group[0].operands[0])
        if isinstance(matrix, Refusal):
            return matrix
        weights = matrix.wide().ordered(self.row, col).tile
        names = {_target(lot): _name(lot.node) for lot in group}
        return Weighed(weights, given.get("a"), given.get("b"), **names)

    # --- values ---

    def _rows(self, operand: int) -> Tile | Refusal:
        """A value as [row, dim] in float32, 0 off the dim."""
        v = self.v
        x = v.value(operand)
        if isinstance(x, Refusal):
            return x
        dims = v.whole(self.sums.type.axis(self.row)).at.dims + v.whole(self.axis).at.dims
        if not {*x.labels} <= {dim.name for dim in dims}:
            names = ", ".join(x.labels)
            return v.refused(self.first, f"pairs of rows that decay, of a value with {names}")
        return v.masked(v.over(x.wide(), dims), (self.axis.name,)).tile

    def _decays(self, col: str) -> Decays | Refusal:
        """How rows decay, by sums of gates that are materialised."""
        v, numbers = self.v, self.v.numbers
        sums = v.stored(self.sums.id)
        if isinstance(sums, Refusal):
            return sums
        labels, before = (self.row, self.axis.name), None
        columns, row_axis = v.whole(self.axis), self.sums.type.axis(self.row)

        def at(row: Tile, inside: Tile | None = None) -> Tile:
            """The sums at some rows, from memory."""
            place = {self.row: Index(row, False, inside), self.axis.name: columns}
            return v.sums_at(self.sums, place)

        if self.first.op.exclusive:
            row = v.whole(row_axis).at
            before = at(row - 1, row > 0)
        there = at if v.is_loaded(self.sums.id) else None
        gates = log_gates(v, self.sums, labels) if there is None and before is None else None
        return Decays(
            v.k, sums.ordered(*labels).tile, self.row, col, v.levels(row_axis), numbers.operand,
            numbers.precision, before, there, v.takes_tree, gates,
        )  # fmt: skip


def _groups(nodes: Sequence[Node]) -> list[list[Lot]]:
    """Lots that share a matrix, and what it mixes."""
    found: list[list[Lot]] = []
    for lot in (lot for node in nodes for lot in _lots(node)):
        for group in found:
            if _fits(lot, group):
                group.append(lot)
                break
        else:
            found.append([lot])
    return found


def _lots(node: Node) -> list[Lot]:
    """The pairs of which a node is a sum."""
    if isinstance(node.op, ck.JointPairs):
        return [Lot(node, *part) for part in node.op.parts(node.operands)]
    return [Lot(node, node.op, node.operands)]


def _fits(lot: Lot, group: Sequence[Lot]) -> bool:
    """Whether a lot can be made in one go with others."""
    both = [*group, lot]
    operands = _sides(both)
    one_each = len({side for side, _ in operands}) == len(operands)
    targets = [_target(each) for each in both]
    same = lot.operands[0] == group[0].operands[0]
    return same and one_each and len({*targets}) == len(targets)


def _sides(group: Sequence[Lot]) -> set[tuple[str, int]]:
    """The operands that later rows bring (a), and those that earlier ones do (b)."""
    found: set[tuple[str, int]] = set()
    for lot in group:
        if isinstance(lot.op, ck.GateGradient):
            found |= {("a", lot.operands[1]), ("b", lot.operands[2])}
        else:
            found |= {("a" if lot.op.transpose else "b", lot.operands[1])}
    return found


def _target(lot: Lot) -> str:
    """Which of the sums of weighed pairs a lot is a share of."""
    if isinstance(lot.node.op, ck.GateGradient):
        return "across"
    if isinstance(lot.node.op, ck.GateShares):
        return "entering" if lot.node.op.entering else "to_gates"
    return "to_earlier" if isinstance(lot.op, ck.Mix) and lot.op.transpose else "to_later"


def _name(node: Node) -> str:
    return f"v{node.id}"


def _has_own(op: ck.Gram) -> bool:
    """Whether a row is paired with itself."""
    return not (op.strict or op.exclusive)

"""The values of a graph as tiles of one program: what all lowering stands on.

A node is asked for at a *place*: an index for each of its axes, which is one index of the program
or a tile along a dim. Dims are padded to blocks; what lies beyond an axis is unknown unless it is
written down (`Padded`), and is masked where it would matter: in sums and in memory.

    v = Values(composer, RULES, frame)
    y = v.value(id)                       # all of its axes that the program has not one index of
    y = v.value(id, {"t": Index(token)})  # at one token

A rule makes the tile of one op. What cannot be had is a `Refusal`, which every rule hands on; the
statements that were made on the way are read by nobody, and `swept` leaves them out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from archc.dims import Axis, in_words
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.tile.compose import Composer, size
from archc.tile.handle import Tile
from archc.tile.language import Buffer, Dim, Value, kind


@dataclass(frozen=True)
class Index:
    """Where a value is wanted along one of its axes.

    `at` is a scalar of the program, or a tile with one dim. `whole`: it is 0, 1, 2, ... over all of
    the axis, or over the program's block of it. `mask` is true where it lies on the axis (None:
    everywhere). `row` is the index of the same places along the rows of a chunk, if this one is
    along tokens and they are not all rows in order.
    """

    at: Tile
    whole: bool = False
    mask: Tile | None = None
    row: Index | None = None

    @property
    def label(self) -> str | None:
        """The dim that it runs along; None for one index."""
        return self.at.dims[0].name if self.at.dims else None

    def along(self, label: str) -> Index:
        """The same along a dim of another name."""
        if self.label in (None, label):
            return self
        names = {str(self.label): label}
        mask = self.mask if self.mask is None or not self.mask.dims else self.mask.along(**names)
        return replace(self, at=self.at.along(**names), mask=mask)


Place = Mapping[str, Index]


@dataclass(frozen=True)
class Padded:
    """A tile, and what is known of it off the axes that its dims are of: it is 0 along the dims
    `zero`, and neither infinite nor undefined along `finite`. `product`: it is a product of
    matrices, or made from one element by element, with its dims `turned` around in it. `number` is
    its value, if it is one number. `stored`: it is as memory has it, so maybe in 16 bits."""

    tile: Tile
    zero: frozenset[str] = frozenset()
    finite: frozenset[str] = frozenset()
    product: bool = False
    turned: bool = False
    number: float | None = None
    stored: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "finite", self.finite | self.zero)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its dims, in order."""
        return self.tile.value.type.names

    @property
    def narrow(self) -> bool:
        """Whether it is a real number that is not in float32: arithmetic wants it wider."""
        return kind(self.tile.dtype) == "real" and self.tile.dtype != "f32"

    def along(self, /, **names: str) -> Padded:
        """The same with its dims under other names."""
        names = {old: new for old, new in names.items() if old in self.labels and old != new}
        if not names:
            return self
        zero, finite = (
            frozenset(names.get(each, each) for each in known) for known in (self.zero, self.finite)
        )
        return replace(self, tile=self.tile.along(**names), zero=zero, finite=finite)

    def ordered(self, *labels: str) -> Padded:
        """The value with its dims in this order."""
        if labels == self.labels:
            return self
        turned = self.turned != (len(labels) == 2)
        return replace(self, tile=self.tile.ordered(*labels), turned=turned)

    def wide(self) -> Padded:
        """The value in float32."""
        return replace(self, tile=self.tile.to("f32"), stored=False) if self.narrow else self


Made = Padded | Refusal
Rule = Callable[["Values", Node, Place], Made]
Rules = Mapping[type, Rule]


@dataclass(eq=False)
class Frame:
    """A graph whose nodes are asked for. `given` has what comes from outside of it: a value that is
    loaded, a state, what a body captures; None for a node that is made by its rule. `owner` is the
    node of the kernel's graph that this graph is the body of. `exact`: its products of matrices are
    in float32 whatever the data are. `states` are inputs that registers hold."""

    graph: Graph
    given: Callable[[Node, Place], Made | None]
    owner: int | None = None
    exact: bool = False
    states: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Numbers:
    """In what a program counts: the dtype of the operands of products, how exact these are in
    float32, the dtype of sums whose differences are wanted, and that of the operands of products in
    solves (f32, f16). Each is a dtype or a precision, or
    the name of a constant of the program."""

    operand: str = "f32"
    precision: str = "ieee"
    sums: str = "f32"
    solve: str = "f32"


@dataclass
class Known:
    """The values that one block of the program makes, which are not known after it."""

    made: dict[Any, Padded] = field(default_factory=dict)


class Values:
    """The values of one program under construction, and how its tiles lie on the axes.

    A subclass says which index of an axis a program has (`whole`, `indices`), where axes begin
    and end (`borders`), and whether it stores at indices that it reads from memory (`exclusive`).
    `has_few`: of one dim so few indices that tiles of three dims are small; `has_rows`: each thread
    has all rows of its tiles. `has_columns`: each has whole columns of a system. `again`:
    of a program that is launched twice, whether a launch is the second one, of whether that is to
    make a chunk once more.
    """

    exclusive = False
    has_few = False
    has_rows = False
    has_columns = False
    again: Callable[[Tile], Tile] | None = None

    def __init__(
        self, composer: Composer, rules: Rules, frame: Frame, numbers: Numbers | None = None
    ):
        self.k, self.rules, self.frame = composer, rules, frame
        self.numbers = numbers or Numbers()
        self.indices: dict[str, Index] = {}
        self.blocks: dict[str, sympy.Expr] = {}
        self.halved: dict[str, sympy.Expr] = {}
        self.masks: dict[str, Callable[[], Tile | None]] = {}
        self.order: list[str] = []
        self.symbols: dict[Any, sympy.Expr] = {}
        self._known = [Known()]
        self._titled: set[Value] = set()

    # --- sizes and places ---

    def size(self, expr: sympy.Expr) -> sympy.Expr:
        """A size in the symbols of the program: one that is new becomes a constant of it."""
        for symbol in sorted(expr.free_symbols - {*self.symbols}, key=str):
            self.constant(symbol)
        return sympy.Expr.xreplace(expr, self.symbols)  # type: ignore[return-value]

    def constant(self, symbol: sympy.Basic, name: str = "") -> None:
        """Call a size or an option of the graph by a name, as a constant of the program."""
        (self.symbols[symbol],) = self.k.fixed(sympy.Symbol(name or str(symbol), **_kind(symbol)))

    def length(self, axis: Axis) -> sympy.Expr:
        """The length of the tile of an axis."""
        name = f"B_{''.join(c if c.isalnum() else '_' for c in in_words(axis.size))}"
        while self.blocks.get(name, axis.size) != axis.size:
            name += "_"  # `H_K` and `H*K`
        if name not in self.blocks:
            self.k.fixed(size(name))
            self.blocks[name] = axis.size
        return size(name)

    def levels(self, axis: Axis) -> sympy.Expr:
        """The number of times that the block of an axis can be halved."""
        (levels,) = self.k.fixed(size(f"{self.length(axis)}_LEVELS"))
        self.halved[levels.name] = axis.size
        return levels

    def whole(self, axis: Axis, label: str = "") -> Index:
        """All of an axis, or the program's block of it, along a dim of that name."""
        label = label or axis.name
        self.masks[label] = lambda: self._all_of(axis, label).mask
        return self._all_of(axis, label)

    def _all_of(self, axis: Axis, label: str) -> Index:
        """Indices of a block from 0 on, masked where that is longer than the axis."""
        length, size = self.length(axis), self.size(axis.size)
        at = self.k.iota(axis.base, length)
        mask = None if length == size else self.inside(axis.name, at < self.k.lift(size, "i32"))
        return Index(at, True, mask).along(label)

    def inside(self, axis: str, mask: Tile) -> Tile:
        """A mask by its name."""
        return self.title(mask, f"in_{axis}")

    def borders(self, axis: Axis) -> tuple[Tile, Tile]:
        """The first index of an axis, and the one after the last."""
        return self.k.lift(0, "i32"), self.k.lift(self.size(axis.size), "i32")

    def at(self, node: Node, place: Place) -> dict[str, Index] | Refusal:
        """An index for each axis of a value: as asked, the program's, or all of it."""
        found: dict[str, Index] = {}
        taken = {index.label for index in place.values()}
        for axis in node.type.axes:
            index = place.get(axis.name) or self.indices.get(axis.name)
            if index is None and axis.name in taken:
                return self.refused(node, f"all of {axis.name}, by which another axis goes")
            found[axis.name] = index or self.whole(axis)
        return found

    def dim(self, label: str, axis: Axis) -> Dim:
        """The dim of a tile along an axis."""
        return Dim(label, self.length(axis))

    def mask_of(self, label: str) -> Tile | None:
        """The mask of a dim, true where it lies on its axis; None if all of it does."""
        make = self.masks.get(label)
        return make() if make is not None else None

    def borrow(self, label: str, index: Index) -> None:
        """Let a dim be masked as this index is."""
        self.masks[label] = lambda: index.along(label).mask

    # --- values ---

    def value(self, id: int, place: Place | None = None) -> Made:
        """The value of a node where it is wanted, for arithmetic."""
        found = self.stored(id, place)
        return found.wide() if isinstance(found, Padded) and found.stored else found

    def stored(self, id: int, place: Place | None = None) -> Made:
        """The value in the dtype that it has in memory, if it comes from there."""
        node = self.frame.graph[id]
        wanted = self.at(node, place or {})
        if isinstance(wanted, Refusal):
            return wanted
        own = {n: i.along(n) if i.whole and i.label else i for n, i in wanted.items()}
        labels = [index.label for index in own.values() if index.label]
        if len({*labels}) < len({i.label for i in wanted.values() if i.label}):
            own = wanted
        for name, index in own.items():
            if index is not wanted[name]:
                self.borrow(name, index)
        found = self._cached(node, own)
        if isinstance(found, Refusal):
            return found
        names = {i.label: wanted[n].label for n, i in own.items() if i.label}
        found = found.along(**{str(old): str(new) for old, new in names.items()})
        self.see(*found.labels)
        return found

    def _cached(self, node: Node, place: dict[str, Index]) -> Made:
        """The value at a place: the one that stands already, if it is in sight."""
        key = (node.id, self.frame, tuple(place.items()))
        for known in reversed(self._known):
            if key in known.made:
                return known.made[key]
        found = self._made(node, place)
        if isinstance(found, Padded):
            self._known[-1].made[key] = found
        return found

    def forget(self, ids: Collection[int]) -> None:
        """Have nodes of this graph made anew where they are asked for again in this block."""
        made = self._known[-1].made
        for key in [key for key in made if key[0] in ids and key[1] is self.frame]:
            del made[key]

    def _made(self, node: Node, place: dict[str, Index]) -> Made:
        given = self.frame.given(node, place)
        if given is not None:
            return given
        rule = self.rules.get(type(node.op))
        if rule is None:
            return self.refused(node, f"kernels have no {type(node.op).__name__}")
        span, self.k.span = self.k.span, node.span
        found = rule(self, node, place)
        self.k.span = span
        named = node.name and isinstance(found, Padded) and found.number is None
        if named and isinstance(found, Padded):
            self.title(found.tile, str(node.name))
        return found

    def title(self, tile: Tile, name: str) -> Tile:
        """Give a value a name, the first time that one is given to it."""
        if tile.value not in self._titled:
            self._titled.add(tile.value)
            tile.named(name)
        return tile

    def operands(self, node: Node, place: Place) -> list[Padded] | Refusal:
        """The operands of a node, each at its own axes of a place."""
        found = []
        for operand in node.operands:
            made = self.value(operand, self.part(operand, place))
            if isinstance(made, Refusal):
                return made
            found.append(made)
        return found

    def part(self, operand: int, place: Place) -> dict[str, Index]:
        """The indices of an operand's own axes."""
        names = self.frame.graph[operand].type.names
        return {name: index for name, index in place.items() if name in names}

    def refused(self, node: Node, reason: str, moved: bool = False) -> Refusal:
        """That a node of this graph is not made, and why."""
        owner = self.frame.owner
        return Refusal(node.id if owner is None else owner, reason, moved=moved)

    def is_own(self, axis: str, index: Index) -> bool:
        """Whether an index has the places of an axis that the program itself has."""
        return index.whole

    def not_whole(self, node: Node, place: Place, *axes: str) -> Refusal | None:
        """A refusal unless a value is wanted along all of these axes."""
        for axis in axes:
            if not place[axis].whole:
                op = type(node.op).__name__
                return self.refused(node, f"{op} along {axis} is wanted at single places", True)
        return None

    def see(self, *labels: str) -> None:
        """Know dims, so that they have an order."""
        self.order += [label for label in labels if label not in self.order]

    def joined(self, *values: Padded) -> tuple[str, ...]:
        """The dims of several tiles together: as in the widest, of which a product of matrices
        stays as it is; else as they were first seen."""
        widest = max(values, key=lambda x: (len(x.labels), x.product and not x.turned))
        found = {label for value in values for label in value.labels}
        return widest.labels if found <= {*widest.labels} else self.sorted(found)

    def sorted(self, labels: Sequence[str] | set[str]) -> tuple[str, ...]:
        """Dims in the order in which they were first seen."""
        self.see(*sorted({*labels} - {*self.order}))
        return tuple(label for label in self.order if label in labels)

    def is_loaded(self, id: int) -> bool:
        """Whether a node of this graph is read from memory."""
        return False

    def is_stored(self, id: int) -> bool:
        """Whether a node of this graph is written to memory."""
        return False

    def is_carried(self, node: Node) -> bool:
        """Whether an input of this graph is a state that is held in registers."""
        return isinstance(node.op, ir.Input) and node.op.name in self.frame.states

    # --- tiles ---

    def is_blocked(self, axis: Axis) -> bool:
        """Whether a loop is at a block of an axis."""
        return False

    @contextmanager
    def all_at_once(self, axis: Axis) -> Iterator[None]:
        """Values of all of an axis, where a loop is at a block of it."""
        yield

    def matrices(self, node: Node, places: Sequence[Place]) -> list[int]:
        """The operands of a product that may be too large to be taken whole."""
        return []

    def is_deep(self, id: int) -> bool:
        """Whether a tile with all dims of a value would be too large for registers."""
        return False

    def summed_in_turn(self, node: Node, place: Place) -> Axis | None:
        """The dim that a reduction goes along index by index, if it does."""
        return None

    def by_blocks(self, node: Node, *given: Any) -> Made:
        """A product with such operands."""
        return self.refused(node, "a matrix that is taken in blocks")

    def multiplied(self, node: Node, left: Padded, right: Padded) -> Tile:
        """The product of two matrices, of which the dims are in order."""
        dtype = "f32" if self.frame.exact else self.numbers.operand
        a, b = (x.tile.to(dtype) for x in (left, right))
        return self.k.dot(a, b, precision=self.numbers.precision)

    def masked(self, x: Padded, labels: Sequence[str], fill: float = 0.0) -> Padded:
        """The tile with `fill` where it lies off one of these axes."""
        for label in labels:
            mask = self.mask_of(label)
            if label not in x.labels or mask is None or (label in x.zero and fill == 0.0):
                continue
            tile = self.k.where(mask, x.tile, self.like(fill, x.tile))
            zero = x.zero | ({label} if fill == 0.0 else set())
            x = replace(x, tile=tile, zero=zero, finite=x.finite | {label}, number=None)
        return x

    def like(self, number: float, tile: Tile) -> Tile:
        """A number in the dtype of a tile."""
        if tile.dtype in ("f32", "f64"):
            return self.k.lift(number, tile.dtype)
        if kind(tile.dtype) == "real":
            return self.k.lift(number).to(tile.dtype)
        return self.k.full(number, dtype=tile.dtype)

    def over(self, x: Padded, dims: Sequence[Dim]) -> Padded:
        """The tile as wide as these dims, in their order."""
        names = {dim.name for dim in x.tile.dims}
        further = frozenset(dim.name for dim in dims if dim.name not in names)
        own = tuple(dim.name for dim in dims if dim.name in names)
        x = x.ordered(*own) if own else x
        finite = x.finite | (further if x.number is None or abs(x.number) < sympy.oo else set())
        return replace(x, tile=x.tile.over(*dims), finite=finite, number=None)

    @contextmanager
    def inner(self, frame: Frame | None = None) -> Iterator[None]:
        """A block of the program, and with a frame a body: what is made in it is not known after
        it."""
        before, self.frame = self.frame, frame or self.frame
        self._known.append(Known())
        yield
        self._known.pop()
        self.frame = before

    @contextmanager
    def within(self, frame: Frame) -> Iterator[None]:
        """The nodes of another graph, in the same block of the program."""
        before, self.frame = self.frame, frame
        yield
        self.frame = before

    # --- memory ---

    def load(self, buffer: Buffer, place: Place) -> Padded:
        """A value from memory, 0 where an index is off its axis."""
        at = [place[axis].at for axis, _ in buffer.axes]
        masks = [index.mask for index in place.values() if index.mask is not None]
        tile = self.k.load(buffer, *at, where=tuple(dict.fromkeys(masks)), wide=False)
        zero = frozenset(i.label for i in place.values() if i.label and i.mask is not None)
        return Padded(tile, zero, stored=True)

    def store(self, buffer: Buffer, x: Padded, place: Place, only: Sequence[Tile] = ()) -> None:
        """A tile into memory, where `only` holds."""
        at = [place[axis].at for axis, _ in buffer.axes]
        masks = [index.mask for index in place.values() if index.mask is not None]
        where = tuple(dict.fromkeys((*masks, *only)))
        self.k.store(buffer, *at, value=x.tile, where=where, exclusive=self.exclusive)


def _kind(symbol: sympy.Basic) -> dict[str, bool]:
    """Assumptions about a symbol: a size is whole and positive, an option real."""
    whole = bool(getattr(symbol, "is_integer", False))
    return {"integer": True, "positive": True} if whole else {"real": True}

"""Who does what of a fold where warps are of three kinds: found from its tile program.

A program owns a block of one side (readers, or tokens read) and walks blocks of the other, all of
whose loops stand at the top. What is walked and is a factor of products lies in rings of shared
memory, which one warp fills by the copy engine; that warp also makes the vectors of the walked side
that loads go into. All else is of two groups of four warps, each with half of the rows owned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import sympy

from archc.lowering.attention import BORDERS
from archc.tile import language as lang
from archc.tile.language import Block, Statement, Value


class Unknown(Exception):
    """What such kernels cannot say."""


@dataclass
class Turns:
    """One loop: the tiles that come through rings, by ring, and the vectors that come along."""

    loop: Statement
    tiles: dict[str, Statement] = field(default_factory=dict)
    vectors: list[Value] = field(default_factory=list)


@dataclass
class Roles:
    """A program without what is known to be chosen, and who does what of it. `dims`: the dims that
    a value varies along, what it is made from being the same along others; `held`: tiles of the
    side owned that are factors of products; `loaded`: vectors that the warp that loads makes;
    `brought`: loads of `held` that are copies; `taken`: stores that are, and the tiles of `held`
    whose room they go through; `ends`: where rows of these end before their tensor does."""

    program: lang.Program
    body: list[Statement]
    made: dict[Value, Statement]
    dims: dict[Value, tuple[str, ...]]
    lengths: dict[str, sympy.Expr]
    own: str
    walk: str
    turns: list[Turns]
    held: list[Value]
    loaded: set[Value]
    brought: dict[Value, Statement] = field(default_factory=dict)
    taken: dict[Statement, Value] = field(default_factory=dict)
    ends: dict[Statement, Value] = field(default_factory=dict)

    @property
    def rings(self) -> dict[str, Statement]:
        """A load of each ring."""
        return self.turns[0].tiles

    @property
    def vectors(self) -> int:
        """How many vectors come along with tiles at most."""
        return max(len(turns.vectors) for turns in self.turns)

    def read_beside(self, value: Value) -> bool:
        """Whether something but a product reads a value."""
        users = [s for s in _all(self.body) if value in s.operands]
        return any(not isinstance(s.op, lang.Dot | lang.For) for s in users)

    def turn(self, loop: Statement) -> Turns:
        """What is known of a loop."""
        return next(each for each in self.turns if each.loop is loop)

    def needed(self, roots: Iterable[Value], stop: Iterable[Value] = ()) -> set[Value]:
        """All that values are made of, and these, but not what those of `stop` are made of."""
        found, waiting, ends = set[Value](), [*roots], {*stop}
        while waiting:
            value = waiting.pop()
            if value not in found:
                found.add(value)
                known = value in self.made and value not in ends
                waiting += self.made[value].operands if known else ()
        return found


def roles(program: lang.Program) -> Roles:
    """Who does what; Unknown where the program is of another kind."""
    body = _resolved(program.body, {})
    made = {v: s for s in _all(body) for v in s.results if not isinstance(s.op, lang.For)}
    loops = [s for s in body if isinstance(s.op, lang.For)]
    own, walk = _sides(loops, made)
    found = Roles(program, body, made, {}, {}, own, walk, [Turns(s) for s in loops], [], set())
    _vary(found, body)
    for turns in found.turns:
        _tiles(found, turns)
    for turns in found.turns:
        if {*turns.tiles} != {*found.rings}:
            raise Unknown("loops that walk different tensors")
        _vectors(found, turns)
    return found


def _all(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        for block in statement.blocks:
            yield from _all(block.statements)


def _resolved(block: Block, same: dict[Value, Value]) -> list[Statement]:
    """The statements of a block without choices that are known: there are no borders of packed
    sequences, and tiles are not loaded in blocks. What is the same under another order of dims or
    along further ones is read itself."""
    found: list[Statement] = []
    made: dict[Value, Statement] = {}
    for statement in block.statements:
        operands = tuple(_end(same, value) for value in statement.operands)
        if isinstance(statement.op, lang.Transpose | lang.Broadcast):
            same[statement.results[0]] = operands[0]
        elif isinstance(statement.op, lang.Given | lang.AtMost):
            if isinstance(statement.op, lang.Given) and statement.op.buffer.name != BORDERS:
                raise Unknown(f"{statement.op.buffer.name} that may be there")
            made[statement.results[0]] = statement
        elif isinstance(statement.op, lang.If):
            if statement.op.fields or operands[0] not in made:
                raise Unknown("a choice that is made when it runs")
            found += _resolved(statement.blocks[1], same)
            given = (_end(same, value) for value in statement.blocks[1].yields)
            same |= dict(zip(statement.results, given, strict=True))
        else:
            blocks = tuple(
                Block(inner.arguments, _resolved(inner, same), ()) for inner in statement.blocks
            )
            for inner, old in zip(blocks, statement.blocks, strict=True):
                inner.yields = tuple(_end(same, value) for value in old.yields)
            note = statement.note
            found.append(Statement(statement.op, operands, statement.results, blocks, note))
    return found


def _end(same: dict[Value, Value], value: Value) -> Value:
    while value in same:
        value = same[value]
    return value


def _sides(loops: Sequence[Statement], made: dict[Value, Statement]) -> tuple[str, str]:
    """The dim of the rows that a program owns, and that of those which it walks."""
    if not loops:
        raise Unknown("no loop")
    inside = {*_all(loops[0].blocks[0].statements)}
    for statement in loops[0].blocks[0].statements:
        if not isinstance(statement.op, lang.Dot):
            continue
        first, second = (made.get(value) for value in statement.operands[:2])
        if first is None or second is None or first in inside or second not in inside:
            continue
        given, names = first.results[0].type.names, statement.results[0].type.names
        own = [name for name in names if name in given]
        walk = [name for name in names if name not in given]
        if isinstance(second.op, lang.Load) and len(own) == len(walk) == 1:
            return own[0], walk[0]
    raise Unknown("no product of what is owned and what is walked")


def _vary(found: Roles, body: Sequence[Statement]) -> None:
    """Note along which dims values vary, and how long these are."""
    for statement in body:
        if isinstance(statement.op, lang.For):
            inner = statement.blocks[0]
            for value in (*inner.arguments, *statement.results):
                _note(found, value, value.type.names)
            _vary(found, inner.statements)
            continue
        for value in statement.results:
            names = value.type.names
            if isinstance(statement.op, lang.Apply | lang.Cast):
                along = {n for o in statement.operands for n in found.dims[o]}
                names = tuple(name for name in names if name in along)
            _note(found, value, names)


def _note(found: Roles, value: Value, names: tuple[str, ...]) -> None:
    order = {found.own: 0, found.walk: 1}
    found.dims[value] = tuple(sorted(names, key=lambda name: order.get(name, 2)))
    found.lengths |= {dim.name: dim.length for dim in value.type.dims}


def _tiles(found: Roles, turns: Turns) -> None:
    """Note the tiles that a loop reads through rings, and what it multiplies them by."""
    inside = [*turns.loop.blocks[0].statements]
    if any(statement.blocks or len(statement.results) != 1 for statement in inside):
        raise Unknown("a loop, a branch or a store in a loop")
    for statement in inside:
        if not isinstance(statement.op, lang.Dot):
            continue
        for value in statement.operands[:2]:
            made = found.made.get(value)
            if made is not None and made in inside and found.walk in found.dims[value]:
                if isinstance(made.op, lang.Load) and len(found.dims[value]) == 2:
                    known = turns.tiles.setdefault(made.op.buffer.name, made)
                    if known is not made:
                        raise Unknown("a tensor that is walked twice at once")
            elif made is not None and made not in inside and value not in found.held:
                found.held.append(value)


def _vectors(found: Roles, turns: Turns) -> None:
    """Note the vectors of the walked side, made of what is loaded, that a loop reads beside others;
    what they are made of is of the warp that loads."""
    inside = [*turns.loop.blocks[0].statements]
    of_load = set[Value]()
    for statement in inside:
        (value,) = statement.results
        if found.dims[value] == (found.walk,):
            loads = isinstance(statement.op, lang.Load) or of_load & {*statement.operands}
            of_load |= {value} if loads else set()
    for statement in inside:
        if found.dims[statement.results[0]] != (found.walk,):
            read = [value for value in statement.operands if value in of_load]
            turns.vectors += [value for value in read if value not in turns.vectors]
    turns.vectors = list(dict.fromkeys(turns.vectors))
    if any(value.type.dtype != "f32" for value in turns.vectors):
        raise Unknown("a vector of other numbers")
    found.loaded |= of_load
    for value in found.needed(turns.vectors):
        if found.own in found.dims[value]:
            raise Unknown("a vector that is walked and made of what is owned")
        if value in turns.loop.blocks[0].arguments[1:]:
            raise Unknown("a vector that is carried from turn to turn")


def alike(found: Roles, one: Value, other: Value) -> bool:
    """Whether two values are the same, as far as what they are made of says."""
    one, other = _without_zeros(found, one), _without_zeros(found, other)
    if one is other:
        return True
    first, second = found.made.get(one), found.made.get(other)
    if first is None or second is None or first.op != second.op:
        return False
    if not isinstance(first.op, lang.Apply | lang.Scalar | lang.Full | lang.ProgramId | lang.Iota):
        return False
    pairs = zip(first.operands, second.operands, strict=True)
    return one.type == other.type and all(alike(found, a, b) for a, b in pairs)


def _without_zeros(found: Roles, value: Value) -> Value:
    """What a value is the sum of beside zeros."""
    made = found.made.get(value)
    if made is None or made.op != lang.Apply("add"):
        return value
    for zero, rest in (made.operands, made.operands[::-1]):
        number = found.made.get(zero)
        if number is not None and isinstance(number.op, lang.Full) and number.op.number == 0:
            return _without_zeros(found, rest)
    return value

"""Which values of a program are written where they are read, so that formulas read as formulas.

    times = k * beta[:, None]
    x = tl.sum(times, 1)            x = tl.sum(k * beta[:, None], 1)

An elementwise value without a name of its own, read once and by a statement of its own block, needs
no line, unless memory is touched or a product is taken in between: text says in which order a GPU
is told to work, and how long it holds on to a value. A product or a sum over a dim needs none where
nothing but it stands in between, a tile none that is cast as soon as it is loaded, and a number of
a table none that is cast; nor does an index that is compared with an end and else is in addresses,
which have its addends. One that a reader knows by its name (`beta`, `in_t`) or by its equation
keeps its line, and so does a number that Triton computes itself: a line makes it a value, which
functions want.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping

from archc.backends.triton.elementwise import TEXT

from archc.functions.definitions import FUNCTIONS
from archc.tile import language as lang

CALL = re.compile(r"(tl\.\w+|logistic|log_1_plus_exp|\(x\)\.to)\([^()]*\)")
"""The text of a function that is one call."""

LEVELS = {"add": 1, "sub": 1, "mul": 2, "div": 2, "neg": 3} | {
    name: 9 for name, fn in FUNCTIONS.items() if CALL.fullmatch(TEXT[name](*"xyz"[: fn.arity]))
}
"""How tightly the text of a function holds together: sums 1, products 2, signs 3, calls 9; the
others, which compare or are several functions, 0."""

WITHIN = {"add": (1, 2), "sub": (1, 2), "mul": (2, 3), "div": (2, 3)}
"""How tightly what stands left and right of a sign must hold together to need no brackets. Within a
call nothing needs them, beside what compares sums need none."""

ONCE = (*LEVELS, "and", "or", "eq", "ne", "lt", "le", "gt", "ge", "not")
"""Functions whose text names each operand once."""

ENDS = ("lt", "le", "gt", "ge")
"""Functions that hold a place against an end."""

PLAIN = (lang.Scalar, lang.Full, lang.AtMost, lang.Given, lang.Chosen)
"""Values that are numbers when machine code is made."""

OF_ELEMENTS = (lang.Apply, lang.Cast, lang.Relabel)
QUIET = (*PLAIN, *OF_ELEMENTS, lang.Iota, lang.ProgramId, lang.Broadcast)
"""Statements that neither touch memory nor arrange what threads hold."""


PART, WHOLE = 56, 120
"""How long the text of a value may be without a line of its own: as a part of a formula, and where
it is all that a line has."""


def level_of(statement: lang.Statement) -> int:
    """How tightly the text of a value holds together, from 0 to 9."""
    op = statement.op
    return LEVELS.get(op.function, 0) if isinstance(op, lang.Apply) else 9


def least_level(function: str, place: int) -> int:
    """How tightly an operand must hold together to be written without brackets."""
    if function in WITHIN:
        return WITHIN[function][place]
    if function in ENDS:
        return 1
    return 0 if LEVELS.get(function) == 9 else 9


def nested(program: lang.Program) -> dict[lang.Value, int]:
    """The values of a program that have no line of their own, unless their text is longer than
    this."""
    found = _Reads()
    found.of_block(program.body)
    found.of_sums()
    return {v: found.room(v, made) for v, made in found.made.items() if found.is_nested(v, made)}


def with_places(
    program: lang.Program,
    nested: Mapping[lang.Value, int],
    twins: Mapping[lang.Value, lang.Value],
) -> dict[lang.Statement, lang.Statement]:
    """The masks that say which places of a block along a dim are inside, each with what makes these
    places, if both are of one block and nothing in between reads them, nor another value that is
    called by their name: one line makes both."""
    found: dict[lang.Statement, lang.Statement] = {}
    made = {each: s for s in lang.statements(program.body) for each in s.results}

    def pair(block: lang.Block) -> None:
        waiting: dict[lang.Value | None, lang.Statement] = {}
        for statement in block.statements:
            read = (lang.parts(each, made.get(each))[1] for each in read_by(statement))
            tiles = [twins.get(each, each) if each is not None else None for each in read]
            if statement.op == lang.Apply("lt") and statement.results[0] not in nested:
                place, end = statement.operands
                alone = place is tiles[0] or place in nested
                if tiles[0] in waiting and alone and not end.type.dims:
                    found[statement] = waiting[tiles[0]]
            if statement.op == lang.Apply("add") and statement.results[0] in nested:
                continue  # it stands where it is read
            for tile in tiles:
                waiting.pop(tile, None)
            if isinstance(statement.op, lang.Iota) and not statement.op.most:
                waiting[statement.results[0]] = statement
            for inner in statement.blocks:
                pair(inner)

    pair(program.body)
    return found


def read_by(statement: lang.Statement) -> Iterator[lang.Value]:
    """The values that a statement and those in it read."""
    yield from statement.operands
    for block in statement.blocks:
        yield from block.yields
        for inner in block.statements:
            yield from read_by(inner)


def _is_field(statement: lang.Statement) -> bool:
    """Whether a statement loads a whole number of a table."""
    if not isinstance(statement.op, lang.Load):
        return False
    type = statement.results[0].type
    return not type.dims and lang.kind(type.dtype) == "int"


def _is_limit(made: lang.Statement, reader: lang.Statement | None) -> bool:
    """Whether a place, an index and where it begins, is compared with an end."""
    known = made.op == lang.Apply("add") and lang.kind(made.results[0].type.dtype) == "int"
    return known and reader is not None and getattr(reader.op, "function", "") in ENDS


class _Reads:
    """Who makes and who reads each value, and which values are plain numbers."""

    def __init__(self) -> None:
        self.made: dict[lang.Value, lang.Statement] = {}
        self.home: dict[lang.Value, lang.Block] = {}
        self.times: Counter[lang.Value] = Counter()
        self.reader: dict[lang.Value, tuple[lang.Block, lang.Statement | None]] = {}
        self.work: dict[lang.Statement | lang.Block, int] = {}
        self.plain: set[lang.Value] = set()
        self.sums: list[tuple[lang.Value, tuple[lang.Value, ...]]] = []
        self.places: Counter[lang.Value] = Counter()

    def of_block(self, block: lang.Block) -> None:
        """Note the values that a block and those in it make and read."""
        count = 0
        for statement in block.statements:
            self.work[statement] = count
            count += not (isinstance(statement.op, QUIET) or _is_field(statement))
            self.made |= dict.fromkeys(statement.results, statement)
            self.home |= dict.fromkeys(statement.results, block)
            self._note_plain(statement)
            places = self._note_indices(statement)
            for value in statement.operands:
                self._read(value, block, statement, value in places)
            for inner in statement.blocks:
                self.of_block(inner)
        self.work[block] = count
        for value in block.yields:
            self._read(value, block, None)

    def is_nested(self, value: lang.Value, made: lang.Statement) -> bool:
        """Whether a value is written where it is read."""
        shown = self.times[value] - self.places[value] or self.times[value]
        if len(made.results) != 1 or made.note or value in self.plain or shown != 1:
            return False
        home, reader = self.reader[value]
        if home is not self.home[value] or not self._is_shown_once(reader):
            return False
        if self._is_step(made, reader) or self._is_asked(made, reader):
            return True
        counts = not (isinstance(made.op, QUIET) or _is_field(made))
        if self.work[made] + counts != self.work[reader or home]:
            return False
        if isinstance(made.op, lang.Cast):
            return not made.op.bits and not value.title
        if isinstance(made.op, lang.Load):
            if reader is None or not isinstance(reader.op, lang.Cast):
                return False
            return _is_field(made) or not self.is_nested(reader.results[0], reader)
        if isinstance(made.op, lang.Dot | lang.Reduce):
            apart = reader is None or isinstance(reader.op, lang.Apply)
            return apart and not value.title
        return isinstance(made.op, lang.Apply) and (not value.title or _is_limit(made, reader))

    def _is_step(self, made: lang.Statement, reader: lang.Statement | None) -> bool:
        """Whether 0, 1, 2, ... are steps of something alone."""
        steps = isinstance(made.op, lang.Iota) and not made.op.most
        return steps and reader is not None and reader.op == lang.Apply("mul")

    def _is_asked(self, made: lang.Statement, reader: lang.Statement | None) -> bool:
        """Whether a choice asks how a place compares with a number: it may wherever it stands."""
        if (
            reader is None
            or reader.op != lang.Apply("where")
            or not isinstance(made.op, lang.Apply)
        ):
            return False
        place, end = (made.operands * 2)[:2]
        number = end in self.plain and isinstance(self.made[end].op, lang.Full)
        return made.op.function in ENDS and lang.kind(place.type.dtype) == "int" and number

    def room(self, value: lang.Value, made: lang.Statement) -> int:
        """How long the text of a value without a line may be."""
        home, reader = self.reader[value]
        alone = len(home.yields) == 1 if reader is None else isinstance(reader.op, lang.Cast)
        return WHOLE if alone or isinstance(made.op, lang.Dot | lang.Reduce) else PART

    def _is_shown_once(self, reader: lang.Statement | None) -> bool:
        """Whether the text of a reader names its operands once."""
        if reader is None:
            return True
        if isinstance(reader.op, lang.Apply):
            return reader.op.function in ONCE
        if isinstance(reader.op, lang.Transpose | lang.Relabel):  # written wherever it is read
            return self.times[reader.results[0]] == 1
        return True

    def _note_plain(self, statement: lang.Statement) -> None:
        """Note the values that Triton computes itself: numbers, and values made of them alone."""
        made_of = [value in self.plain for value in statement.operands]
        computed = isinstance(statement.op, OF_ELEMENTS) and all(made_of)
        if isinstance(statement.op, PLAIN) or computed:
            self.plain |= {*statement.results}

    def _note_indices(self, statement: lang.Statement) -> set[lang.Value]:
        """The indices that are a sum of a scalar and a tile, each written by itself."""
        found: set[lang.Value] = set()
        if isinstance(statement.op, lang.Load | lang.Store | lang.Atomic):
            for index in statement.operands[: len(statement.op.buffer.axes)]:
                made = self.made.get(index)
                if made is not None and made.op == lang.Apply("add"):
                    self.sums.append((index, made.operands))
                    dims = [operand.type.dims for operand in made.operands]
                    found |= {index} if index.type.dims and () in dims else set()
        return found

    def of_sums(self) -> None:
        """Counts what is written again by those that read a sum which has a line as well."""
        for index, operands in self.sums:
            if self.times[index] > 1 or self.reader[index][0] is not self.home[index]:
                self.times.update(operands)

    def _read(
        self, value: lang.Value, block: lang.Block, by: lang.Statement | None, place: bool = False
    ) -> None:
        self.times[value] += 1
        self.places[value] += place
        if not place or value not in self.reader:
            self.reader[value] = (block, by)

"""Loads that stand in no row of memory are issued a turn early.

    for n from 0 below N                  b0 = load beta[0] where 0 < N
      b = load beta[n]              ->    for n from 0 below N
      ...                                   carry b from b0
                                            b1 = load beta[n + 1] where n + 1 < N
                                            ...
                                            next b1

A compiler copies what lies side by side to shared memory turns ahead. It cannot copy numbers of 16
bits that lie apart, as one number a head of every token does, and a turn would wait for memory.

In a loop that does not say how far ahead it loads, a compiler copies the factors of products alone
ahead. All vectors and numbers of a turn are loaded at its start then: where they stand between
products, the turn would wait for each of them. Not with several rows a token, whose walk has no
registers left: what is held from the start on is spilled.

So is it in a program without loops: behind a sum across threads, which no load is moved over, it
would wait for memory once more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from archc.ir.free_names import numbered
from archc.tile import language as lang


def early(
    program: lang.Program, walks: bool = False, several: bool = False, tiles: bool = False
) -> lang.Program:
    """The program whose loops that load ahead do so of vectors that lie apart in memory as well;
    and all loops outside others, if it `walks`, which load other vectors first where a token has
    one row, and not `several`. `tiles`: a program without loops loads these first, too."""
    names = _Names(program)
    body = _block(program.body, names)
    if not walks:
        written = {each.op.buffer for each in lang.statements(body) if _stores(each)}
        body = _first(body, written, 2 if tiles else 1)
    else:
        made = [
            part for each in body.statements
            for part in (_Loop(each, names, not several).rewritten() if _is_plain(each) else [each])
        ]  # fmt: skip
        body = lang.Block(body.arguments, made, body.yields)
    return replace(program, body=body)


def _stores(statement: lang.Statement) -> bool:
    return isinstance(statement.op, lang.Store)


def _first(block: lang.Block, written: Collection[lang.Buffer], dims: int) -> lang.Block:
    """A block that begins with its loads of what has so many dims at most; so do its branches."""
    made = [
        replace(each, blocks=tuple(_first(part, written, dims) for part in each.blocks))
        if isinstance(each.op, lang.If) else each
        for each in block.statements
    ]  # fmt: skip
    if any(isinstance(each.op, lang.For) for each in made):
        return replace(block, statements=made)
    begun = _Turn(replace(block, statements=made), written).begun((), dims)
    return replace(block, statements=[*begun, *(each for each in made if each not in begun)])


def _is_plain(statement: lang.Statement) -> bool:
    """Whether a statement is a loop that does not say how far ahead it loads."""
    return isinstance(statement.op, lang.For) and statement.op.ahead is None


class _Names:
    """Makes values of names that a program does not have yet, and knows which are 0."""

    def __init__(self, program: lang.Program) -> None:
        made, self.zeros = [program.body.arguments], set[lang.Value]()
        for each in lang.statements(program.body):
            made += [each.results, *(block.arguments for block in each.blocks)]
            if isinstance(each.op, lang.Full) and not (each.op.number or each.op.type.dims):
                self.zeros |= {*each.results}
        self.taken = {value.name for values in made for value in values}

    def like(self, value: lang.Value, ending: str = "") -> lang.Value:
        """A value of a type that is there, called so with an `ending`."""
        name, title, hint = (x and x + ending for x in (value.name, value.title, value.hint))
        return self.new(name, value.type, title, hint)

    def new(self, name: str, type: lang.Type, title: str = "", hint: str = "") -> lang.Value:
        """A value of that name, or nearly."""
        self.taken.add(found := numbered(name, self.taken))
        return lang.Value(found, type, title, hint)


def _block(block: lang.Block, names: _Names) -> lang.Block:
    """A block with its loops, and those within them, rewritten."""
    made: list[lang.Statement] = []
    for each in block.statements:
        found = replace(each, blocks=tuple(_block(part, names) for part in each.blocks))
        made += _Loop(found, names).rewritten() if _loads_ahead(each) else [found]
    return lang.Block(block.arguments, made, block.yields)


def _loads_ahead(statement: lang.Statement) -> bool:
    """Whether a statement is a loop of a program that says how far ahead it loads."""
    return isinstance(statement.op, lang.For) and isinstance(statement.op.ahead, str)


class _Turn:
    """The statements of a block, and the buffers that are written meanwhile."""

    def __init__(self, body: lang.Block, written: Collection[lang.Buffer]) -> None:
        self.body, self.written = body, written
        self.made_by = {value: each for each in body.statements for value in each.results}

    def begun(self, early: Sequence[lang.Statement], dims: int = 1) -> list[lang.Statement]:
        """The other loads of vectors and numbers, after what they need, in order."""
        loads = [
            each for each in self.body.statements
            if isinstance(each.op, lang.Load) and each.op.buffer not in self.written
            and each not in early and len(each.results[0].type.dims) <= dims
            and self.needed([each]) is not None
        ]  # fmt: skip
        needed = self.needed(loads) or []
        return [each for each in self.body.statements if each in loads or each in needed]

    def needed(self, loads: Sequence[lang.Statement]) -> list[lang.Statement] | None:
        """The statements of a block that places and masks are made by, in order; None if one of
        them is more than arithmetic, or made of what turns hand on."""
        found: set[lang.Value] = set()
        stack = [value for load in loads for value in load.operands]
        while stack:
            value = stack.pop()
            if value in self.body.arguments[1:]:
                return None
            made = self.made_by.get(value)
            if made is None or value in found:
                continue
            if not isinstance(made.op, lang.PURE):
                return None
            found |= {*made.results}
            stack += made.operands
        return [each for each in self.body.statements if found & {*each.results}]


class _Loop(_Turn):
    """A loop over `start`, ..., `stop - 1`; `first`: its other vectors are loaded at the start of a
    turn."""

    def __init__(self, loop: lang.Statement, names: _Names, first: bool = False) -> None:
        (body,) = loop.blocks
        inside = lang.statements(body)
        super().__init__(body, {each.op.buffer for each in inside if _stores(each)})
        self.loop, self.names, self.first = loop, names, first
        self.start, self.stop = loop.operands[:2]

    def rewritten(self) -> list[lang.Statement]:
        """The statements before the loop, and the loop."""
        loads = [each for each in self.body.statements if self._is_early(each)]
        begun = self.begun(loads) if self.first else []
        if not loads and not begun:
            return [self.loop]
        before, first = self._copied(loads, self.start, [])
        ahead, following = self._copied(loads, *self._next(), "_next")
        rest = [each for each in self.body.statements if each not in (*loads, *begun)]
        arrived = tuple(load.results[0] for load in loads)
        body = lang.Block(
            (*self.body.arguments, *arrived), [*ahead, *begun, *rest],
            (*self.body.yields, *following),
        )  # fmt: skip
        left = tuple(self.names.like(value) for value in arrived)
        return [
            *before,
            replace(
                self.loop, operands=(*self.loop.operands, *first),
                results=(*self.loop.results, *left), blocks=(body,),
            ),
        ]  # fmt: skip

    # --- which loads ---

    def _is_early(self, statement: lang.Statement) -> bool:
        """Whether a statement loads a vector whose numbers lie apart, from a place that a turn
        knows by its number alone."""
        op = statement.op
        if not isinstance(op, lang.Load) or not op.buffer.axes or op.buffer in self.written:
            return False
        last = statement.operands[len(op.buffer.axes) - 1]
        apart = len(statement.results[0].type.dims) == 1 and not last.type.dims
        return apart and self.needed([statement]) is not None

    # --- the same of another turn ---

    def _next(self) -> tuple[lang.Value, list[lang.Statement]]:
        """The number of the next turn, and the lines that make it."""
        index = self.body.arguments[0]
        one, following = (
            self.names.new(name, index.type, hint=name) for name in ("one", "following")
        )
        lines = [
            lang.Statement(lang.Full(1, index.type), (), (one,)),
            lang.Statement(lang.Apply("add"), (index, one), (following,)),
        ]
        return following, lines

    def _copied(
        self, loads: Sequence[lang.Statement], turn: lang.Value, lines: list[lang.Statement],
        ending: str = "",
    ) -> tuple[list[lang.Statement], list[lang.Value]]:  # fmt: skip
        """Lines that load the same at another turn, if there is one, and what they load: names with
        an `ending`."""
        there = self.names.new("there_is", lang.Type("bool"), hint="there_is")
        made = [*lines, lang.Statement(lang.Apply("lt"), (turn, self.stop), (there,))]
        known = {self.body.arguments[0]: turn}
        for each in self.needed(loads) or []:
            made += self._again(each, known, ending)
        found = []
        for load in loads:
            (again,) = self._again(load, known, ending)
            made.append(replace(again, operands=(*again.operands, there)))
            found.append(again.results[0])
        return made, found

    def _again(
        self, statement: lang.Statement, known: dict[lang.Value, lang.Value], ending: str
    ) -> list[lang.Statement]:
        """A statement of other values, with results of its own; none of what 0 is added to."""
        operands = tuple(known.get(value, value) for value in statement.operands)
        if statement.op == lang.Apply("add") and operands[1] in self.names.zeros:
            known[statement.results[0]] = operands[0]
            return []
        results = tuple(self.names.like(value, ending) for value in statement.results)
        known |= dict(zip(statement.results, results, strict=True))
        return [replace(statement, operands=operands, results=results)]

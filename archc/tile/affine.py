"""Integers of a program as sums: constants, places in the grid, places in a tile, turns of loops.

At sizes that are known, every integer value is a constant plus multiples of *atoms*, and each atom
has a range. What is no such sum (a number read from memory, a remainder) is an atom itself, with a
range if one can be told. From these, `verifier.py` tells which elements of a buffer are touched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.ir.sizes import evaluate
from archc.tile import language as lang
from archc.tile.language import statements

Range = tuple[float, float]
"""The least and the largest number; infinite where nothing is known."""

ANY: Range = (-math.inf, math.inf)

MISSING = ""
"""The dtype of a buffer that is not there, in a launch."""

ORDERED: Mapping[str, Callable[[float, float], tuple[bool, bool]]] = {
    "lt": lambda low, high: (low >= 0, high < 0),
    "le": lambda low, high: (low > 0, high <= 0),
    "gt": lambda low, high: (high <= 0, low > 0),
    "ge": lambda low, high: (high < 0, low >= 0),
    "eq": lambda low, high: (low > 0 or high < 0, low == high == 0),
    "ne": lambda low, high: (low == high == 0, low > 0 or high < 0),
}
"""Whether a comparison never holds, and whether it always does, by the range of a - b."""


@dataclass(frozen=True)
class Atom:
    """A cause of difference between numbers: a place in the grid or in a dim of a tile, a turn, or
    any value."""

    key: str | lang.Dim | lang.Value

    @property
    def name(self) -> str:
        """For messages."""
        return self.key if isinstance(self.key, str) else self.key.name


@dataclass(frozen=True)
class Sum:
    """A constant and multiples of atoms."""

    constant: int
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Sum) -> Sum:
        terms = dict(self.terms)
        for atom, factor in other.terms:
            terms[atom] = terms.get(atom, 0) + factor
        kept = tuple((atom, factor) for atom, factor in terms.items() if factor)
        return Sum(self.constant + other.constant, kept)

    def times(self, factor: int) -> Sum:
        """The sum multiplied by a number."""
        if not factor:
            return Sum(0)
        return Sum(self.constant * factor, tuple((a, f * factor) for a, f in self.terms))

    def divided(self, divisor: int) -> Sum | None:
        """The sum divided by a number, if every part of it is a multiple of that."""
        parts = (self.constant, *(factor for _, factor in self.terms))
        if divisor <= 0 or any(part % divisor for part in parts):
            return None
        return Sum(self.constant // divisor, tuple((a, f // divisor) for a, f in self.terms))

    def renamed(self, names: Mapping[str, lang.Dim]) -> Sum:
        """The expression along other dims, by the names of those that change."""
        terms = []
        for atom, factor in self.terms:
            new = names.get(atom.key.name) if isinstance(atom.key, lang.Dim) else None
            terms.append((atom if new is None else Atom(new), factor))
        return Sum(self.constant, tuple(terms))

    def __sub__(self, other: Sum) -> Sum:
        return self + other.times(-1)


class Integers:
    """The integers of a program at some sizes: each as a sum, and its range."""

    def __init__(self, program: lang.Program, known: Mapping[str, int | float | str]):
        self.known = {name: value for name, value in known.items() if not isinstance(value, str)}
        self.words = {name: value for name, value in known.items() if isinstance(value, str)}
        self.made: dict[lang.Value, lang.Statement] = {}
        self.ranges: dict[Atom, Range] = {}
        self._sums: dict[lang.Value, Sum] = {}
        for axis, count in program.grid:
            self.ranges[Atom(axis)] = (0, self.size(count) - 1)
        for statement in statements(program.body):
            self.made |= dict.fromkeys(statement.results, statement)
            if isinstance(statement.op, lang.For):
                low, high = statement.operands[:2]
                atom = Atom(statement.blocks[0].arguments[0])
                self.ranges[atom] = (self.range(low)[0], self.range(high)[1] - 1)

    def size(self, size: sympy.Expr) -> int:
        """An expression in sizes as a number."""
        return int(evaluate(size, self.known))

    def sum(self, value: lang.Value) -> Sum:
        """A value as a sum; an atom of its own where it is none."""
        if value not in self._sums:
            found = self._of(value)
            if found is None:
                atom = Atom(value)
                self.ranges.setdefault(atom, self._told(value))
                found = Sum(0, ((atom, 1),))
            self._sums[value] = found
        return self._sums[value]

    def range(self, value: lang.Value) -> Range:
        """The least and the largest that a value may be."""
        return self.range_of(self.sum(value))

    def range_of(self, total: Sum) -> Range:
        """The least and the largest that a sum may be."""
        low = high = float(total.constant)
        for atom, factor in total.terms:
            ends = [end * factor for end in self.ranges[atom]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def truth(self, value: lang.Value) -> bool | None:
        """Whether a condition holds in every program at these sizes; None where it depends."""
        made = self.made.get(value)
        if made is None or not isinstance(made.op, lang.Apply):
            return self._told_at_launch(made)
        function, given = made.op.function, made.operands
        if function in ("and", "or", "not"):
            return _joined(function, [self.truth(each) for each in given])
        if function not in ORDERED or any(lang.kind(each.type.dtype) != "int" for each in given):
            return None
        low, high = self.range_of(self.sum(given[0]) - self.sum(given[1]))
        never, always = ORDERED[function](low, high)
        return True if always else False if never else None

    def taken(self, statement: lang.Statement) -> Sequence[tuple[int, lang.Block]]:
        """The blocks of a statement that may be done, with their places: of a branch whose
        condition is known at these sizes, one."""
        blocks = [*enumerate(statement.blocks)]
        if isinstance(statement.op, lang.If):
            truth = self.truth(statement.operands[0])
            blocks = blocks if truth is None else [blocks[0 if truth else 1]]
        return blocks

    def statements(self, block: lang.Block) -> Iterator[lang.Statement]:
        """Every statement of a block, and of those in it that may be done."""
        for statement in block.statements:
            yield statement
            for _, inner in self.taken(statement):
                yield from self.statements(inner)

    def _told_at_launch(self, made: lang.Statement | None) -> bool | None:
        """Whether a dtype or a precision is the one that is asked for, a length small enough, or a
        buffer there: as `@x` a launch may say of an optional one that it is missing."""
        if made is not None and isinstance(made.op, lang.Given):
            return False if self._is_missing(made.op.buffer) else None
        if made is not None and isinstance(made.op, lang.AtMost):
            return self.size(made.op.size) <= self.size(made.op.most)
        if made is not None and isinstance(made.op, lang.Chosen) and made.op.constant in self.words:
            return self.words[made.op.constant] == made.op.choice
        return None

    def _of(self, value: lang.Value) -> Sum | None:
        made = self.made.get(value)
        if made is None or lang.kind(value.type.dtype) != "int":
            return None
        match made.op:
            case lang.Scalar(size):
                return Sum(self.size(size))
            case lang.Full(number):
                return Sum(int(number))
            case lang.ProgramId(axis):
                return Sum(0, ((Atom(axis), 1),))
            case lang.Iota(dim, _):
                atom = Atom(dim)
                self.ranges[atom] = (0, self.size(dim.length) - 1)
                return Sum(0, ((atom, 1),))
            case lang.Cast(_, False) | lang.Relabel() | lang.Transpose():
                return self._through(made)
            case lang.Apply(function):
                return self._applied(function, made)
            case lang.If():
                found = [*self.given(made, value)]
                return self.sum(found[0]) if len(found) == 1 else None
            case lang.SequenceRows(buffer, _, ahead) if self._is_missing(buffer):
                first, step, tokens, batch = map(self.sum, made.operands)
                base = first - Sum(self.size(ahead))
                found = (base, step, tokens, base + step, Sum(0), batch)
                return found[made.results.index(value)]
        return None

    def _is_missing(self, buffer: lang.Buffer) -> bool:
        """Whether a launch says that a buffer is not there."""
        return self.words.get(lang.OF_BUFFER + buffer.name) == MISSING

    def given(self, branch: lang.Statement, result: lang.Value) -> Iterator[lang.Value]:
        """The value of a branch's result in each block that may be done."""
        place = branch.results.index(result)
        return (block.yields[place] for _, block in self.taken(branch))

    def _through(self, made: lang.Statement) -> Sum | None:
        """The same numbers; along other names, the atoms of a tile have those."""
        (operand,) = made.operands
        if lang.kind(operand.type.dtype) != "int":
            return None
        found = self.sum(operand)
        if not isinstance(made.op, lang.Relabel):
            return found
        renamed = found.renamed(
            dict(zip(operand.type.names, made.results[0].type.dims, strict=True))
        )
        for (old, _), (new, _) in zip(found.terms, renamed.terms, strict=True):
            self.ranges[new] = self.ranges[old]
        return renamed

    def _applied(self, function: str, made: lang.Statement) -> Sum | None:
        if any(lang.kind(value.type.dtype) != "int" for value in made.operands):
            return None
        given = [self.sum(value) for value in made.operands]
        match function:
            case "add":
                return given[0] + given[1]
            case "sub":
                return given[0] - given[1]
            case "neg":
                return given[0].times(-1)
            case "mul":
                for a, b in (given, given[::-1]):
                    if not a.terms:
                        return b.times(a.constant)
            case "floordiv" if not given[1].terms:
                return given[0].divided(given[1].constant)
        return None

    def _told(self, value: lang.Value) -> Range:
        """The range of what is no sum: a quotient, a remainder, the larger of two."""
        made = self.made.get(value)
        if made is None or not isinstance(made.op, lang.Apply):
            return ANY
        chosen = made.op.function == "where"
        operands = made.operands[1:] if chosen else made.operands
        if any(lang.kind(each.type.dtype) != "int" for each in operands):
            return ANY
        ends = [self.range(each) for each in operands]
        match made.op.function:
            case "where":
                return min(e[0] for e in ends), max(e[1] for e in ends)
            case "floordiv" if ends[1][0] == ends[1][1] > 0:
                return ends[0][0] // ends[1][0], ends[0][1] // ends[1][0]
            case "mod" if ends[1][0] == ends[1][1] > 0:
                return 0, ends[1][0] - 1
            case "max":
                return max(e[0] for e in ends), max(e[1] for e in ends)
            case "min":
                return min(e[0] for e in ends), min(e[1] for e in ends)
        return ANY


def _joined(function: str, given: Sequence[bool | None]) -> bool | None:
    """The truth of joined conditions, as far as they are known."""
    if function == "not":
        return None if given[0] is None else not given[0]
    decides = function == "or"
    if decides in given:
        return decides
    return None if None in given else not decides

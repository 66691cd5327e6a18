"""Formulas of a page, evaluated as they stand: rows of one chunk, without batch and heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, product
from operator import mul

import torch
from torch import Tensor

from archc.derivation import maths

At = Mapping[str, int]
HOLDS = {
    "<": int.__lt__, ">": int.__gt__, "≤": int.__le__, "≥": int.__ge__,
}  # fmt: skip


def parts_of(math: maths.Math) -> tuple[maths.Math, ...]:
    return math.parts if isinstance(math, maths.Row) else (math,)


def split(parts: tuple[maths.Math, ...], sign: maths.Sign) -> list[tuple[maths.Math, ...]]:
    """The parts between signs."""
    places = [-1, *(n for n, part in enumerate(parts) if part == sign), len(parts)]
    return [parts[a + 1 : b] for a, b in pairwise(places)]


@dataclass
class Chunk:
    """What is known of a chunk of `rows` rows: values by name and row; vectors are columns."""

    rows: int
    last: str
    known: dict[tuple[maths.Name, tuple[int, ...]], Tensor] = field(default_factory=dict)

    def keep(self, name: maths.Math, value: Tensor, **at: int) -> None:
        assert isinstance(name, maths.Name)
        self.known[self._key(name, at)] = value

    def define(self, formula: maths.Math, only: str = "") -> None:
        """What a formula defines, row after row; `only` says for which pairs of rows."""
        (name,), _ = split(parts_of(formula), maths.EQUALS)
        assert isinstance(name, maths.Name)
        indices = [sub for sub in name.subs if sub in "ijls"]
        for at in self._all(indices, only):
            self.define_at(formula, **at)
        if name.bold:
            for row, value in enumerate(self.known[self._key(name, {})], 1):
                self.keep(replace(name, bold=False, subs=("i",)), value[:, None], i=row)

    def define_at(self, formula: maths.Math, **at: int) -> None:
        """What a formula defines at one row, or one pair of rows."""
        (name,), right = split(parts_of(formula), maths.EQUALS)
        self.keep(name, self.value(maths.Row(right), at), **at)

    def _all(self, indices: list[str], only: str = "") -> Iterator[dict[str, int]]:
        for chosen in product(range(1, self.rows + 1), repeat=len(indices)):
            at = dict(zip(indices, chosen, strict=True))
            if not only or at["j"] < at["i"]:
                yield at

    def _key(self, name: maths.Name, at: At) -> tuple[maths.Name, tuple[int, ...]]:
        places = {**at, "0": 0, self.last: self.rows}
        places |= {f"{letter}-1": row - 1 for letter, row in at.items()}
        own = tuple(sub for sub in name.subs if sub not in places)
        return replace(name, subs=own), tuple(places[s] for s in name.subs if s in places)

    # --- values ---

    def value(self, math: maths.Math, at: At) -> Tensor:
        """The sum of its addends."""
        total, sign, term = torch.zeros(()), 1.0, list[maths.Math]()
        for part in (*parts_of(math), maths.PLUS):
            if part in (maths.PLUS, maths.MINUS) or (part == maths.NEGATIVE and not term):
                total = total + sign * self._term(tuple(term), at) if term else total
                sign, term = (1.0 if part == maths.PLUS else -1.0), []
            else:
                term.append(part)
        return total

    def _term(self, parts: tuple[maths.Math, ...], at: At) -> Tensor:
        """Factors, with a sum over all that stands after its sign."""
        for place, part in enumerate(parts):
            if isinstance(part, maths.Sum):
                rest = maths.Row(parts[place + 1 :])
                values = [self.value(rest, each) for each in self._range(part, at)]
                whole = reduce(torch.add if part.sign == "∑" else mul, values, torch.zeros(()))
                if part.sign == "∏":
                    whole = reduce(mul, values)
                return times(self._term(parts[:place], at), whole) if place else whole
        return reduce(mul, (self._product(each, at) for each in split(parts, maths.TIMES)))

    def _range(self, sign: maths.Sum, at: At) -> Iterator[dict[str, int]]:
        """The rows that a sum runs over."""
        below = parts_of(sign.below)
        names = [part.text for part in below if isinstance(part, maths.Name)]
        for each in self._all([name for name in names if name not in at]):
            every = {**at, **each}
            signs = [part.text for part in below if isinstance(part, maths.Sign)]
            pairs = zip(signs, pairwise(names), strict=False)
            if all(HOLDS[text](every[one], every[other]) for text, (one, other) in pairs):
                yield every

    def _product(self, parts: tuple[maths.Math, ...], at: At) -> Tensor:
        found, left = torch.ones(1, 1), list(parts)
        while left:
            part = left.pop(0)
            if part == maths.Words("Diag"):
                factor = torch.diag(self._factor(left.pop(0), at)[:, 0])
            else:
                factor = self._factor(part, at)
            found = times(found, factor)
        return found

    def _factor(self, part: maths.Math, at: At) -> Tensor:
        if isinstance(part, maths.Number):
            return torch.full((1, 1), float(part.text))
        if isinstance(part, maths.Name):
            return self._named(part, at)
        if isinstance(part, maths.Fraction):
            return self.value(part.above, at) / self.value(part.below, at)
        if isinstance(part, maths.Fence) and part.left == "[":
            rows = [self.value(part.inner, each) for each in self._all(["i"])]
            return torch.stack([row[:, 0] for row in rows])
        if isinstance(part, maths.Fence):
            return self.value(part.inner, at)
        assert isinstance(part, maths.Power), part
        base = self._factor(part.base, at)
        if part.exponent == maths.T:
            return base.T
        inverse = torch.linalg.inv(base)
        return inverse.T if maths.T in parts_of(part.exponent) else inverse

    def _named(self, name: maths.Name, at: At) -> Tensor:
        if name == maths.Name("I"):
            return torch.eye(self.rows)
        if name.bold and self._key(name, at) not in self.known:
            return self._stacked(name)
        return self.known[self._key(name, at)]

    def _stacked(self, name: maths.Name) -> Tensor:
        """All rows of a value, or all numbers of pairs of rows, as a matrix."""
        row = replace(name, text=name.text.lower(), bold=False)
        if (row, (1,)) in self.known:
            return torch.stack([self.known[row, (i,)][:, 0] for i in range(1, self.rows + 1)])
        pair, count = replace(name, bold=False), range(1, self.rows + 1)
        nothing = torch.zeros(1, 1)
        lines = [[self.known.get((pair, (i, j)), nothing)[0, 0] for j in count] for i in count]
        return torch.stack([torch.stack(line) for line in lines])


def times(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices, or one with a number."""
    return a * b if 1 in (a.numel(), b.numel()) else a @ b

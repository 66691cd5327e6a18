"""Sums over an axis of the body in the update of a state -> terms with a row for each entry of it.

    k[K, R] @ (v[R, V] - k[K, R].T @ S)  ->  x = k, c = v, w = -k, each with the axis R

As one sum it would be a matrix along K in front of the state, and K x V numbers to write. The axis
is a rank: what a term with it writes is summed over it, and all its rows read the same state.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.free_names import marked
from archc.recurrence.affine.atoms import Factors, Table, product, total
from archc.recurrence.affine.chain import Raw, StateSum
from archc.recurrence.affine.form import AFTER, WRITTEN, NormalForm, Part


class _NoRank(Exception):
    """A sum is of another kind."""


def with_rank(
    table: Table,
    state: ir.State,
    raws: Sequence[Raw],
    key: Collection[str],
    inner: Collection[str],
    taken: Collection[str],
) -> tuple[tuple[Raw, ...], Axis] | None:
    """Updates whose sums of key sides times others are opened along one axis, and that axis; None
    where there are no such sums, or not along one axis. `inner` are the axes of the state that are
    no copies of it; the axis is called as none of the state's and of those `taken`: a value that is
    read at each of a token's keys has one of its own for them."""
    opening = _Opening(table, state, key, inner, taken)
    try:
        made = tuple(opening.update(raw) for raw in raws)
    except _NoRank:
        return None
    return None if opening.rank is None else (made, opening.rank)


def read_by_rows(form: NormalForm, part: Part) -> Axis | None:
    """The axis along which a token's covectors lie that read a state before the token writes, if
    there is one for each of its rows. None for one covector; and beside decays by channels, which
    rows that read before the decay would have to take back each."""
    step, table = form.forms[0].steps[0], Table(form.atoms)
    key = {axis.name for axis in form.forms[0].key}
    plain = step.value == 1 and (part.when == AFTER or key.isdisjoint(table.names(step.key)))
    if step.rank is None or part.when == WRITTEN or not plain:
        return None
    own = {a.name for each in form.forms for a in (*each.key, *each.value, *each.shared)}
    more = [axis for axis in table.axes(part.covector) if axis.name not in own]
    return more[0] if len(more) == 1 and more[0].size == step.rank.size else None


class _Opening:
    """The sums of one micro-step, opened along one axis."""

    def __init__(
        self,
        table: Table,
        state: ir.State,
        key: Collection[str],
        inner: Collection[str],
        taken: Collection[str],
    ) -> None:
        self.table, self.key = table, frozenset(key)
        self.other = frozenset(inner) - self.key
        self.taken = {*(axis.name for axis in state.axes), *taken}
        self.rank: Axis | None = None

    def update(self, raw: Raw) -> Raw:
        """An update with its sums opened."""
        corrections = tuple(self.correction(each) for each in raw.corrections)
        terms = sympy.Add.make_args(raw.written) if raw.written != 0 else ()
        return replace(raw, corrections=corrections, written=total(map(self.written, terms)))

    def correction(self, each: StateSum) -> StateSum:
        """A sum of the state against a matrix, as sums against vectors over a rank."""
        if each.column is None:
            return each
        (row,), column = each.axes, each.column
        side, covector = self._apart(each.covector, {row}, {column.name})
        covector = self.table.rename(covector, {column.name: column.renamed(row)})
        return replace(
            each, scale=self.table.times(each.scale, side), covector=covector, column=None
        )

    def written(self, term: sympy.Expr) -> sympy.Expr:
        """A product that is written, its sum opened if it varies along both sides."""
        symbols = self.table.split(term)[1]
        if not any(self._along(s, self.key) and self._along(s, self.other) for s in symbols):
            return term
        return self.table.times(*self._apart(term, self.key, self.other))

    def _apart(
        self, term: sympy.Expr, key: Collection[str], other: Collection[str]
    ) -> tuple[sympy.Expr, sympy.Expr]:
        """A product with one sum along both sides: the key side inside it, and all else."""
        number, factors = self.table.split(term)
        both = [s for s in factors if self._along(s, key) and self._along(s, other)]
        if len(both) != 1 or factors[both[0]] != 1 or self.table.atoms[both[0]].kind != "sum":
            raise _NoRank
        side, summed = self._opened(both[0], key, other)
        rest = product(number, {s: p for s, p in factors.items() if s != both[0]})
        return side, self.table.times(rest, summed)

    def _along(self, symbol: sympy.Symbol, names: Collection[str]) -> bool:
        return not {*names}.isdisjoint(self.table.atoms[symbol].names)

    def _opened(
        self, symbol: sympy.Symbol, key: Collection[str], other: Collection[str]
    ) -> tuple[sympy.Expr, sympy.Expr]:
        """The key side of a sum, and its rest, summed over all axes but the rank's."""
        table, atom = self.table, self.table.atoms[symbol]
        number, factors = table.split(atom.args[0])
        own = {s: p for s, p in factors.items() if self._along(s, key)}
        rest = {s: p for s, p in factors.items() if s not in own}
        bound = {axis.name: axis for axis in atom.bound}
        along = {name for s in own for name in table.atoms[s].names if name in bound}
        if len(along) != 1 or any(self._along(s, other) for s in own):
            raise _NoRank
        (name,) = along
        rename = {name: self._rank(bound[name], own)}
        gone = [axis for axis in atom.bound if axis.name != name]
        summed = table.rename(product(number, rest), rename)
        return table.rename(product(1, own), rename), table.sum(summed, gone) if gone else summed

    def _rank(self, bound: Axis, own: Factors) -> Axis:
        """The axis of the rank, called as the first value that has it calls it."""
        if self.rank is None:
            atoms = [self.table.atoms[symbol] for symbol in own]
            pairs = (pair for a in atoms for pair in zip(a.axes, a.source, strict=False))
            named = (source.name for axis, source in pairs if axis.name == bound.name)
            self.rank = bound.renamed(marked(next(named, "rank"), self.taken))
        if self.rank.size != bound.size:
            raise _NoRank
        return self.rank

"""Micro-steps of a state -> the values of the body that read it, as sums against its versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.recurrence.affine.atoms import Table, TooLong
from archc.recurrence.affine.axis_roles import divide
from archc.recurrence.affine.chain import Chain, Refused, StateSum, state_sums, unrolled
from archc.recurrence.affine.form import AFTER, BEFORE, WRITTEN, Part, Read, Step
from archc.recurrence.affine.polynomials import coefficient
from archc.recurrence.analysis.degree import CONSTANT, updates


@dataclass(frozen=True)
class RawRead:
    """A value of the body that sums the state against vectors, over versions in the chain."""

    node: int
    queries: tuple[StateSum, ...]
    free: sympy.Expr
    renamed: dict[str, Axis]


def reads_of(
    recurrence: ir.Recurrence, state: ir.State, found: Chain, table: Table
) -> tuple[list[RawRead], list[int]]:
    """The reads of a state for results and other states, and the nodes that take it whole."""
    walk = Walk(recurrence, state, found, table)
    after = updates(recurrence)
    for name, id in recurrence.body.outputs.items():
        if name != state.name and id == after[state.name]:
            walk.whole.append(id)
        elif name in after and name != state.name:
            walk.update(id)
        elif name != state.name:
            walk.visit(id)
    return sorted(walk.reads, key=lambda read: read.node), sorted(set(walk.whole))


class Walk:
    """From what is needed back to the reads of a state; every node once."""

    def __init__(
        self, recurrence: ir.Recurrence, state: ir.State, found: Chain, table: Table
    ) -> None:
        self.body, self.state, self.found, self.table = recurrence.body, state, found, table
        self.reading = found.reading
        self.seen: set[int] = set()
        self.reads: list[RawRead] = []
        self.whole: list[int] = []

    def visit(self, id: int) -> None:
        """Note what a needed node reads of the state."""
        if id in self.seen or self.reading.degrees[id].kind == CONSTANT:
            return
        self.seen.add(id)
        if self._is_whole(id):
            self.whole.append(id)
            return
        if any(self._is_whole(o) for o in self.body[id].operands):
            read = self._read(id)
            if read is not None:
                self.reads.append(read)
                return
        for operand in self.body[id].operands:
            self.visit(operand)

    def update(self, id: int) -> None:
        """Note what the update of another state reads; that is given from outside, as a value."""
        if id in self.reading.old:
            self.whole += [id] if self._is_whole(id) else []
            return
        operands = self.body[id].operands
        sums = isinstance(self.body[id].op, ir.Contract | ir.Reduce)
        if sums and any(self._is_whole(operand) for operand in operands):
            value = self.reading.linear(self.body[id])
            if value is not None and not self.reading.whole(value):
                self.reading.values[id] = value
                read = self._read(id)
                if read is not None:
                    self.reads.append(read)
                    return
        for operand in operands:
            self.visit(operand)

    def _is_whole(self, id: int) -> bool:
        """Whether a value holds the state with all its axes."""
        value = self.reading.values.get(id)
        linear = self.reading.degrees[id].kind != CONSTANT
        if not linear:
            return False
        if value is None:
            return id in self.reading.old
        return bool(self.reading.whole(value))

    def _is_larger(self, symbol: sympy.Symbol) -> bool:
        """Whether a value that a read is against is of another state, with more axes than this one,
        of which it is a read in truth."""
        atom, own = self.table.atoms[symbol], {axis.name for axis in self.state.axes}
        others = atom.node in self.reading.others
        return others and own < {axis.name for axis in atom.axes}

    def _symbols(self, query: StateSum) -> list[sympy.Symbol]:
        return [*self.table.symbols(query.covector), *self.table.symbols(query.scale)]

    def _read(self, id: int) -> RawRead | None:
        """The node as sums against versions in the chain; None if it is no such sum."""
        value = self.reading.values.get(id)
        if value is None:
            return None
        known = set(self.found.versions)
        forms = {f"{self.state.name}@{i}": form for form, i in self.reading.versions.items()}
        try:
            while strange := sorted(self.table.states(value) - known):
                value = unrolled(self.table, value, strange[-1], forms[strange[-1]], self.state)
            queries, renamed = state_sums(self.table, value, self.state)
        except (TooLong, Refused):
            return None
        if any(query.column is not None for query in queries):
            return None
        if any(self._is_larger(symbol) for q in queries for symbol in self._symbols(q)):
            return None
        back = {a.name: next(s for s in self.state.axes if s.name == n) for n, a in renamed.items()}
        free = self.table.rename(coefficient(self.table, value, None), back)
        return RawRead(id, queries, free, renamed)


def finished(table: Table, read: RawRead, versions: Sequence[str], steps: Sequence[Step]) -> Read:
    """A read with each of its sums at the step that it reads."""
    parts = tuple(_part(table, query, versions, steps) for query in read.queries)
    return Read(read.node, parts, read.free, tuple(sorted(read.renamed.items())))


def _part(table: Table, query: StateSum, versions: Sequence[str], steps: Sequence[Step]) -> Part:
    """One sum: of the state after a step, or else of a state that the next step decays."""
    at = versions.index(query.version)
    if at < len(steps) and steps[at].decay != 1:
        for covector, scale in _undecayed(table, query, steps[at].decay):
            return Part(at, AFTER, covector, query.axes, scale)
    when, step = (WRITTEN, at - 1) if at else (BEFORE, 0)
    return Part(step, when, query.covector, query.axes, query.scale)


def _undecayed(
    table: Table, query: StateSum, decay: sympy.Expr
) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """Covector and scale without the decay, which they hold together; none if they do not."""
    held = table.times(query.covector, query.scale)
    gone = set(query.axes)
    if divide(table, held, decay) is None:
        return []
    over = {s for s in table.symbols(decay) if gone & set(table.atoms[s].names)}
    if not over:  # a decay of other axes stands outside the sum
        scale = divide(table, query.scale, decay)
        return [] if scale is None else [(query.covector, scale)]
    covector = divide(table, query.covector, decay)
    return [] if covector is None else [(covector, query.scale)]

"""Layer IR -> layer IR: a Recurrence -> the graph of a run's summary, for each kind of state.

Q is what the recurrence gives from a state of 0, in chunks; P is a product of its decays or, where
updates read the state, the recurrence itself run on the identity without anything that is written.

Beside a stabiliser m (see `gauge.py`) other states are kept divided by exp(m), and m depends on
where a run starts. So P is computed for m = 0 throughout, which changes nothing but the scale, and
Q for an m that has seen nothing before the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import sympy

from archc.dims import Axis
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.recurrence.affine.form import (
    DENSE,
    DIAGONAL,
    LINKED,
    SEQUENTIAL,
    TROPICAL,
    NormalForm,
)
from archc.recurrence.affine.form import MATRIX as MATRIX_FORM
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.analysis.degree import reads
from archc.recurrence.analysis.gauge import SCALE, SHIFT, Proof, proved
from archc.recurrence.analysis.semirings import MAX, SEMIRINGS
from archc.recurrence.chunk.coupled import coupled, dense, fresh
from archc.recurrence.chunk.derive import Derivation, NotChunked
from archc.recurrence.chunk.frame import settled
from archc.recurrence.chunk.lift import Lifted
from archc.recurrence.chunk.matrix import MatrixForm, TokenStep
from archc.recurrence.chunk.scan import diagonal
from archc.recurrence.chunk.tropical import largest
from archc.recurrence.law.parts import (
    BLOCKS,
    FACTOR,
    MATRIX,
    MAXIMUM,
    RESCALED,
    Group,
    addition,
)


class NoLaw(Exception):
    """States without a law: caught in `law_of`."""

    def __init__(
        self, states: tuple[str, ...], reason: str, help: str = "", node: int | None = None
    ) -> None:
        super().__init__(reason)
        self.states, self.reason, self.help, self.node = states, reason, help, node


@dataclass(frozen=True)
class Round:
    """States that are summarised together, and the graph that does it."""

    groups: tuple[Group, ...]
    summary: Graph


def rounds_of(
    recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
) -> Iterator[Round]:
    """The summaries of a Recurrence's states, round after round. Raises NoLaw."""
    work = _Summaries(recurrence, captures, known)
    forms = normal_forms(recurrence)
    gauges = {name: proof for form in forms for name, proof in _proofs(recurrence, form)}
    order = _order(recurrence, forms, gauges)
    for number in range(max(order) + 1):
        mine = [form for form, at in zip(forms, order, strict=True) if at == number]
        mine.sort(key=lambda form: form.kind != TROPICAL)
        groups = tuple(work.group(form, gauges) for form in mine)
        yield Round(groups, work.graph_of(groups))
        for form in (form for form in mine if number < max(order)):
            work.follow(form)


def _proofs(recurrence: ir.Recurrence, form: NormalForm) -> Iterator[tuple[str, Proof]]:
    """The running maximum of a group, if it is a gauge."""
    if form.sums == MAX:
        found = proved(recurrence, form.states[0])
        if found is not None:
            yield form.states[0], found


def _order(
    recurrence: ir.Recurrence, forms: Sequence[NormalForm], gauges: Mapping[str, Proof]
) -> list[int]:
    """The round of each group: after the groups whose states it needs, and beside its gauges."""
    at: dict[str, int] = {}
    for form in forms:
        needs = {other for name in form.states for other in reads(recurrence, name)}
        needs -= {*form.states}
        own = max((at[other] + (other not in gauges) for other in sorted(needs)), default=0)
        at |= dict.fromkeys(form.states, own)
    return [at[form.states[0]] for form in forms]


class _Summaries(Derivation):
    """The parts of a Recurrence's states, in one graph.

    Values of the body are looked up in `lifted` (with the states as they are), in `alone` (gauges
    that have seen nothing before the run) or in `plain` (gauges of 0).
    """

    def __init__(
        self, recurrence: ir.Recurrence, captures: Mapping[str, Type], known: Mapping[str, Interval]
    ) -> None:
        super().__init__(recurrence, captures, known, ())
        self.alone = Lifted(self.frame, recurrence.body, self.lifted.known)
        self.plain = Lifted(self.frame, recurrence.body, self.lifted.known)
        self.parts: dict[str, int] = {}

    def group(self, form: NormalForm, gauges: Mapping[str, Proof]) -> Group:
        """The parts of one group."""
        if form.kind == SEQUENTIAL:
            assert form.refusal is not None, "a refusal says why"
            raise NoLaw(form.states, form.refusal.reason, form.refusal.help, form.refusal.node)
        gauge, sign = _scale(self.recurrence, form, gauges)
        try:
            return KINDS[form.kind](self, form, gauge, sign)
        except NotChunked as error:
            raise NoLaw(form.states, error.reason, error.help, error.node) from error

    def follow(self, form: NormalForm) -> None:
        """The group's states at every token, for later rounds."""
        self._group(form)
        states = [id for name in form.states for id in self._ids(name)]
        reads = [read.node for each in form.forms for read in each.reads]
        reads += [] if form.links is None else [read.node for read in form.links.reads]
        known = [*states, *reads]
        for id in (id for id in known if id in self.lifted.known or id in self.lifted.waiting):
            for values in (self.alone, self.plain):
                values.note_made(id, partial(self.lifted.__getitem__, id))

    def _ids(self, name: str) -> list[int]:
        """The nodes of a state before and after the token."""
        return [*([self.old[name]] if name in self.old else []), self.after[name]]

    def graph_of(self, groups: Sequence[Group]) -> Graph:
        """The parts of some groups, from the captures and from earlier states."""
        graph = self.frame.graph.copy()
        for group in groups:
            names = [group.transition, *(addition(state.name) for state in group.states)]
            for name in names:
                graph.outputs[name] = self.parts[name]
        graph.prune(list(self.inputs.values()))
        return graph

    # --- groups ---

    @contextmanager
    def _from(self, values: Lifted) -> Iterator[None]:
        """Look values up there."""
        usual, self.lifted = self.lifted, values
        try:
            yield
        finally:
            self.lifted = usual

    def _note(
        self,
        group: Group,
        transition: int,
        finals: Mapping[str, int],
        axes: Sequence[Axis] | None = None,
    ) -> Group:
        """The parts by name; `axes` are those of P, in order (None: those it has)."""
        graph = self.frame.graph
        own = graph[transition].type if axes is None else Type(tuple(axes))
        self.parts[group.transition] = settled(graph, transition, own)
        for state in group.states:
            part = settled(graph, finals[state.name], Type(state.axes))
            self.parts[addition(state.name)] = part
        return group

    def decayed(self, form: NormalForm, gauge: str, sign: int) -> Group:
        """An elementwise transition: scans, and matrices that no update reads."""
        states = tuple(self.states[name] for name in form.states)
        each = form.forms[0]
        logs = bool(gauge) or form.kind == MATRIX_FORM
        with self._from(self.plain):
            gates = [g for step in each.steps for g in _gates(form, step.key, step.value)]
            if logs:
                transition = self._summed([self._log(form, gate) for gate in gates])
                if not gauge:
                    transition = self.frame.fn("exp", transition)
            else:
                transition = self._multiplied([self._factor(form, gate) for gate in gates])
        with self._from(self.alone):
            finals = self._from_nothing(form)
        kind = RESCALED if gauge else FACTOR
        return self._note(Group(kind, states, gauge=gauge, sign=sign), transition, finals)

    def _from_nothing(self, form: NormalForm) -> dict[str, int]:
        """The states after a run that starts from 0."""
        zero = self.frame.number(0)
        states = [self.states[name] for name in form.states]
        if form.kind == MATRIX_FORM:
            steps = self._token_steps(form)
            made = MatrixForm(self.frame, form.forms[0].key, states, steps, [zero] * len(states))
            return dict(zip(form.states, made.final, strict=True))
        step, (state,) = form.forms[0].steps[0], states
        decay, write = self._factor(form, step.decay), self._write(form, step)
        return {state.name: diagonal(self.frame, state, decay, write, zero).final}

    def _token_steps(self, form: NormalForm) -> list[TokenStep]:
        return [self._token_step(form, p) for p in range(len(form.forms[0].steps))]

    def corrected(self, form: NormalForm, gauge: str, sign: int) -> Group:
        """A matrix that updates read: P is what becomes of the identity; of that of each value,
        where values decay."""
        each = form.forms[0]
        if all(term.w == 0 for step in each.steps for term in step.terms):
            return self.decayed(form, gauge, sign)
        if gauge:
            raise NotChunked("a state that updates read is rescaled by a running maximum")
        frame, states = self.frame, tuple(self.states[name] for name in form.states)
        taken = [axis for state in states for axis in state.axes]
        copies = tuple(_copy(axis, taken) for axis in each.key)
        steps = self._token_steps(form)
        free = [
            replace(step, terms=tuple(replace(term, rows=(None,)) for term in step.terms
                                      if term.w is not None))
            for step in steps
        ]  # fmt: skip
        values = each.value if any(step.value != 1 for step in each.steps) else ()
        square = ir.State("P", (*each.shared, *values, *each.key, *copies))
        start = [frame.add(ir.Delta(a, b)) for a, b in zip(each.key, copies, strict=True)]
        unit = frame.times(*start)
        assert unit is not None, "a matrix has a key"
        transition = MatrixForm(frame, each.key, [square], free, [unit]).final[0]
        group = Group(MATRIX, states, each.key, copies)
        return self._note(group, transition, self._from_nothing(form), square.axes)

    def mixed(self, form: NormalForm, gauge: str, sign: int) -> Group:
        """A matrix along an axis, or states that feed one another."""
        if gauge:
            raise NotChunked("states that a matrix mixes are rescaled by a running maximum")
        if form.blocks:
            return self._fed(form)
        frame, each = self.frame, form.forms[0]
        state, step = self.states[each.state], each.steps[0]
        assert step.column is not None, "a matrix has a column"
        matrix, decay = self._value(form, step.matrix), self._factor(form, step.decay)
        write = self._write(form, step)
        row = next(axis for axis in state.axes if axis.name == step.row)
        used = {*frame.names(matrix), *(frame.names(decay) if decay is not None else ())}
        copy = _copy(row, [*state.axes, step.column])
        shared = [a for a in state.axes if a.kind == "batch" or a.name in used - {row.name}]
        square = ir.State("P", (*shared, row, copy))
        unit, zero = frame.add(ir.Delta(row, copy)), frame.number(0)
        whole = dense(frame, square, matrix, step.row, step.column, decay, None, unit)
        alone = dense(frame, state, matrix, step.row, step.column, decay, write, zero)
        group = Group(MATRIX, (state,), (row,), (copy,))
        return self._note(group, whole.final, {state.name: alone.final}, square.axes)

    def _fed(self, form: NormalForm) -> Group:
        """States that feed one another: each of them is 1 once, and the others 0."""
        frame, states = self.frame, tuple(self.states[each.state] for each in form.forms)
        blocks = [[self._some(form, entry) for entry in row] for row in form.blocks]
        writes = [self._write(form, each.steps[0]) for each in form.forms]
        zero, one, none = frame.number(0), frame.number(1), [None] * len(states)
        size = sympy.Integer(len(states))
        row = fresh("part", states[0].axes, size)
        column = fresh("part", [*states[0].axes, row], size)
        axes = (states[0].axes[0], row, column, *states[0].axes[1:])
        entries = []
        for j in range(len(states)):
            starts = [one if i == j else zero for i in range(len(states))]
            found = coupled(frame, states, blocks, none, starts)
            for i, each in enumerate(found):
                entry = frame.add(ck.Place(column, j), each.final)
                entries.append(frame.add(ck.Place(row, i), entry))
        transition = frame.total(entries)
        assert transition is not None, "there are states"
        alone = coupled(frame, states, blocks, writes, [zero] * len(states))
        finals = {s.name: each.final for s, each in zip(states, alone, strict=True)}
        return self._note(Group(BLOCKS, states, (row,), (column,)), transition, finals, axes)

    def matrices(self, form: NormalForm, gauge: str, sign: int) -> Group:
        """Matrices that scale one another: P is what becomes of the identity in each of them."""
        if gauge:
            raise NotChunked("states that scale one another are rescaled by a running maximum")
        states, links, zero = self._states(form), form.links, self.frame.number(0)
        assert links is not None, "linked states have links"
        size, first = sympy.Integer(len(states)), states[0]
        row = fresh("part", first.axes, size)
        column = fresh("part", [*first.axes, row], size)
        copies = tuple(_copy(axis, [*first.axes, row, column]) for axis in links.key)
        shared = tuple(a for a in first.axes if a not in links.key + links.value)
        squares = [ir.State(f"P{i}", (*shared, *links.key, *copies)) for i in range(len(states))]
        transition = self._identities(form, squares, row, column)
        alone = self._linked_form(form, states, [zero] * len(states))
        finals = dict(zip(form.states, alone.final, strict=True))
        group = Group(BLOCKS, states, (row, *links.key), (column, *copies))
        return self._note(group, transition, finals, (*shared, row, column, *links.key, *copies))

    def _identities(
        self, form: NormalForm, squares: Sequence[ir.State], row: Axis, column: Axis
    ) -> int:
        """The final linked states that began as the identity, one at a time, the others as 0."""
        frame, zero = self.frame, self.frame.number(0)
        assert form.links is not None, "linked states have links"
        axes = zip(form.links.key, squares[0].axes[-len(form.links.key) :], strict=True)
        unit = frame.times(*(frame.add(ir.Delta(a, b)) for a, b in axes))
        assert unit is not None, "a matrix has a key"
        entries = []
        for j in range(len(squares)):
            begin = [unit if i == j else zero for i in range(len(squares))]
            for i, final in enumerate(self._linked_form(form, squares, begin, True).final):
                entries.append(frame.add(ck.Place(row, i), frame.add(ck.Place(column, j), final)))
        found = frame.total(entries)
        assert found is not None, "there are states"
        return found

    def _states(self, form: NormalForm) -> tuple[ir.State, ...]:
        return tuple(self.states[name] for name in form.states)

    def maximum(self, form: NormalForm, gauge: str, sign: int) -> Group:
        """A running maximum; where it is a gauge, its values in this run and as 0."""
        if gauge:
            raise NotChunked("a running maximum depends on another one")
        if form.sums != MAX or not form.forms[0].steps[0].terms:
            raise NotChunked(f"no law is made of a {SEMIRINGS[form.sums]}", "give one: `law(...)`")
        frame, state = self.frame, self.states[form.states[0]]
        step = form.forms[0].steps[0]
        shift, value = self._some(form, step.decay), self._value(form, step.terms[0].c)
        nothing, zero = frame.add(ir.Constant(-sympy.oo)), frame.number(0)
        found = largest(frame, state, shift, value, nothing)
        for id in self._ids(state.name):
            self.alone.note(id, found.after if id == self.after[state.name] else found.before)
            self.plain.note(id, zero)
        transition = self._summed([shift])
        return self._note(Group(MAXIMUM, (state,)), transition, {state.name: found.final})

    # --- over all tokens ---

    def _summed(self, values: Sequence[int | None]) -> int:
        """The sum of values along tokens over all of them."""
        total = self.frame.total(values)
        return self.frame.number(0) if total is None else self._over(total, "sum")

    def _multiplied(self, values: Sequence[int | None]) -> int:
        """The product of values along tokens over all of them."""
        product = self.frame.times(*values)
        return self.frame.number(1) if product is None else self._over(product, "prod")

    def _over(self, id: int, fn: str) -> int:
        stream = self.frame.stream
        return self.frame.add(ir.Reduce(fn, (stream.name,)), self.frame.full(id, (stream,)))


KINDS = {
    MATRIX_FORM: _Summaries.corrected,
    DIAGONAL: _Summaries.decayed,
    DENSE: _Summaries.mixed,
    LINKED: _Summaries.matrices,
    TROPICAL: _Summaries.maximum,
}
"""How a group of each kind is summarised."""


def _scale(
    recurrence: ir.Recurrence, form: NormalForm, gauges: Mapping[str, Proof]
) -> tuple[str, int]:
    """The gauge that a group's states are scaled by, and the sign; "" if they are not."""
    needs = {other for name in form.states for other in reads(recurrence, name)} - {*form.states}
    found: dict[tuple[str, int], None] = {}
    for name in (name for name in gauges if name in needs):
        for state, weight in gauges[name].states:
            if state in form.states and weight.kind == SHIFT:
                raise NoLaw(form.states, f"`{state}` is shifted by the running maximum `{name}`")
            if state in form.states:
                found[(name, int(weight.now)) if weight.kind == SCALE else ("", 0)] = None
    if len(found) > 1:
        raise NoLaw(form.states, "the states are rescaled by several running maxima")
    return next(iter(found), ("", 0))


def _gates(form: NormalForm, key: sympy.Expr, value: sympy.Expr) -> list[sympy.Expr]:
    """The factors of a decay: of a matrix, those of its two sides."""
    return [key, value] if form.kind == MATRIX_FORM else [key]


def _copy(axis: Axis, taken: Sequence[Axis]) -> Axis:
    """A second axis of the same size; `taken` gets it."""
    return fresh(axis.base + "'", taken, axis.size)

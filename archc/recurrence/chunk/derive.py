"""Layer IR -> layer IR: a Recurrence, and its chunked form beside it.

The normal forms say how each group of states is computed in chunks; here that is done group by
group, each on the values of those before it. A group without a chunked form stays a loop over the
tokens, with a reason. What the body computes of reads and of free values is lifted to all tokens at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import sympy

from archc.dims import Axis
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.refusal import Refusal
from archc.ir.sizes import Number
from archc.numerics.logs import NoLog, log_of
from archc.numerics.propagation import intervals
from archc.numerics.signed import log_and_sign
from archc.recurrence.affine.atoms import Table
from archc.recurrence.affine.axis_roles import factored, read_apart
from archc.recurrence.affine.build import build
from archc.recurrence.affine.form import (
    BEFORE,
    DENSE,
    DIAGONAL,
    LINKED,
    MATRIX,
    TROPICAL,
    LinkedRead,
    NormalForm,
    Part,
    Read,
    StateForm,
    Step,
)
from archc.recurrence.affine.linked import by_numbers
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.affine.ranks import read_by_rows
from archc.recurrence.analysis.degree import before, updates
from archc.recurrence.analysis.gauge import Proof, proved
from archc.recurrence.analysis.sums_apart import reads_apart
from archc.recurrence.chunk.by_law import by_law, in_order, remark
from archc.recurrence.chunk.clamped import in_bounds
from archc.recurrence.chunk.conjugate import conjugate, turned
from archc.recurrence.chunk.coupled import coupled, dense, spun
from archc.recurrence.chunk.decays import check_log
from archc.recurrence.chunk.derived import Derived, Kept, NotChunked, user_of
from archc.recurrence.chunk.frame import frame_of, input_of
from archc.recurrence.chunk.implicit import System, in_system, systems
from archc.recurrence.chunk.lift import Lifted, StateNeeded
from archc.recurrence.chunk.linked_matrices import LinkedForm, TokenLink
from archc.recurrence.chunk.matrix import MatrixForm, TokenStep, TokenTerm
from archc.recurrence.chunk.merged_sides import at_most, sides_of
from archc.recurrence.chunk.resting import derived_from_rest
from archc.recurrence.chunk.scan import Carried, diagonal
from archc.recurrence.chunk.stepwise import stepwise
from archc.recurrence.chunk.tropical import (
    RUNNING,
    differences_first,
    risen,
    running_gauge,
    running_max,
)
from archc.recurrence.chunk.turned_matrices import TurnedForm

MOST_OF_TOKEN = ck.MOST_ROWS // ck.FEWEST_TOKENS
"""Rows that a token may have: with more, kernels have no room for the shortest chunks."""


def derive(
    recurrence: ir.Recurrence,
    captures: Mapping[str, Type],
    known: Mapping[str, Interval],
    wanted: Sequence[str],
    initial: Mapping[str, Interval],
    usual: Mapping[str, Number] = MappingProxyType({}),
) -> Derived:
    """The chunked form of a Recurrence, its results `wanted` along the stream. `captures` are the
    types that its captures have outside, `known` the intervals in which they lie, `initial` those
    of the states' initial values in the spec, `usual` sizes by default."""

    def derived(each: ir.Recurrence) -> Derived:
        return Derivation(each, captures, known, wanted, initial, usual).run()

    return derived_from_rest(recurrence, captures, derived) or derived(recurrence)


class Derivation:
    """One Recurrence on its way."""

    def __init__(
        self,
        recurrence: ir.Recurrence,
        captures: Mapping[str, Type],
        known: Mapping[str, Interval],
        wanted: Sequence[str],
        initial: Mapping[str, Interval] = MappingProxyType({}),
        usual: Mapping[str, Number] = MappingProxyType({}),
    ):
        self.recurrence = recurrence
        self.usual, self.most = usual, partial(at_most, usual, known)
        self.body, self.wanted = recurrence.body, wanted
        self.initial = initial
        self.captures, self.known, self.after = captures, known, updates(recurrence)
        self.old = {name: id for id, name in before(recurrence).items()}
        self.states = {state.name: state for state in recurrence.states}
        self.frame = frame_of(recurrence)
        graph = self.frame.graph
        self.inputs = {name: input_of(graph, name, type) for name, type in captures.items()}
        self.starts = {
            state.name: input_of(graph, ck.start(state.name), Type(state.axes))
            for state in recurrence.states
        }
        self.lifted = Lifted(self.frame, recurrence.body, self._lifted_inputs())
        self.finals: dict[str, int] = {}
        self.maxima: list[tuple[int, int]] = []  # before and after each token
        self.gauges: list[tuple[Proof, int]] = []  # and what the last value rises by
        self.kept: list[Kept] = []
        self.notes, self.laws = list[str](), [*recurrence.laws]
        self.definite: list[int] = []

    def _lifted_inputs(self) -> dict[int, int]:
        return {
            node.id: self.inputs[node.op.name]
            for node in self.body
            if isinstance(node.op, ir.Input) and node.op.name in self.inputs
        }

    def run(self) -> Derived:
        """The chunked form, or a loop for all states where one read takes several together."""
        forms = [each for form in normal_forms(self.recurrence) for each in self._of_few_rows(form)]
        try:
            return self._in_groups(forms)
        except StateNeeded:
            apart = reads_apart(self.recurrence)
            if apart is not self.recurrence:
                found = Derivation(
                    apart, self.captures, self.known, self.wanted, self.initial, self.usual
                )
                if not (derived := found.run()).kept:
                    return replace(derived, definite=())  # nodes of another body
            reason = "one product reads the sum of several states"
            help = "read each by itself: `A[t].T @ q + B[t].T @ q` for `(A[t] + B[t]).T @ q`"
            kept = tuple(Kept(form.states, reason, help, None) for form in forms)
            return Derived(None, tuple(forms), kept)

    def _of_few_rows(self, form: NormalForm) -> tuple[NormalForm, ...]:
        """A form, or where a rank of it may be more than a chunk has room for, those without."""
        ranks = [step.rank for each in form.forms for step in each.steps]
        ranks += [] if form.links is None else [form.links.rank]
        few = all(self.most(rank.size) <= MOST_OF_TOKEN for rank in ranks if rank is not None)
        if few or not form.without_ranks:
            return (form,)
        return tuple(each for other in form.without_ranks for each in self._of_few_rows(other))

    def _in_groups(self, forms: Sequence[NormalForm]) -> Derived:
        """Group after group, then the results. Raises StateNeeded."""
        for form in in_order(self.recurrence, forms):
            self._group(form)
        if len({name for kept in self.kept for name in kept.states}) == len(self.states):
            return Derived(None, tuple(forms), tuple(self.kept))
        graph = self.frame.graph
        for name in self.wanted:
            value = self.lifted[self.body.outputs[name]]
            graph.outputs[name] = self.frame.full(value, self._axes_of(name))
        for gauge, rise in self.gauges:
            for name, weight in gauge.states:
                self.finals[name] = risen(self.frame, self.finals[name], weight, rise)
        for name, id in self.finals.items():
            graph.outputs[ck.final(name)] = self.frame.full(id, self.states[name].axes)
        graph.prune([node.id for node in graph if isinstance(node.op, ir.Input)])
        return Derived(
            graph, tuple(forms), tuple(self.kept), tuple(self.notes), tuple(self.laws),
            tuple(self.definite),
        )  # fmt: skip

    def _axes_of(self, name: str) -> tuple[Axis, ...]:
        """The axes that a result has along the stream."""
        axes = self.body[self.body.outputs[name]].type.axes
        return (*(a for a in axes if a.kind == "batch"), self.frame.stream, *axes)

    def _group(self, form: NormalForm) -> None:
        """The values of one group of states, in chunks or by a loop."""
        given = {name for law in self.recurrence.laws for name in law.states}
        if given.issuperset(form.states):
            self._by_law(form)
            return
        try:
            if given & {*form.states}:
                raise NotChunked("these states need one another, and a law is given for some alone")
            refusal = form.refusal
            if refusal is None:
                GROUPS[form.kind](self, form)
            elif not self._in_bounds(form):
                raise NotChunked(refusal.reason, refusal.help, refusal.node, refusal.code)
        except NotChunked as error:
            self.kept.append(Kept(form.states, error.reason, error.help, error.node, error.code))
            self._loop(form.states)

    def _by_law(self, form: NormalForm) -> None:
        """The states of a law that the spec gives, all of them at the first."""
        for law in self.recurrence.laws:
            if not {*form.states} & {*law.states} or law.states[0] in self.finals:
                continue
            try:
                parts = [self.lifted[self.body.outputs[law.in_body(part)]] for part in law.parts]
            except StateNeeded as needed:
                reason = "the summary of a token reads a state that needs this one"
                self.kept.append(Kept(law.states, reason, "", needed.node))
                self._loop(law.states)
                continue
            states = [self.states[name] for name in law.states]
            for name, found in by_law(self.frame, law, states, parts, self.starts).items():
                self._note_state(name, found)
            self.notes.append(remark(law))

    def _in_bounds(self, form: NormalForm) -> bool:
        """A state that is kept within bounds; False if it is something else."""
        found = in_bounds(self.recurrence, form, self.lifted, self.known, self.initial, self.starts)
        for law, carried in found:
            self._note_state(law.states[0], carried)
            self.laws, self.notes = [*self.laws, law], [*self.notes, remark(law)]
        return bool(found)

    def _loop(self, states: Sequence[str]) -> None:
        """A loop over the tokens for some of the states."""
        found = stepwise(self.recurrence, states, self.lifted, self.starts)
        for name, carried in found.items():
            self._note_state(name, carried)

    def _note_state(self, name: str, carried: Carried) -> None:
        """A state whose values are known along the stream."""
        if name in self.old:
            self.lifted.note(self.old[name], carried.before)
        self.lifted.note(self.after[name], carried.after)
        self.finals[name] = carried.final

    # --- expressions of normal forms ---

    def _value(self, form: NormalForm, expr: sympy.Expr) -> int:
        """An expression along tokens."""
        return build(self.frame.graph, expr, form, self.lifted)

    def _some(self, form: NormalForm, expr: sympy.Expr) -> int | None:
        """An expression along tokens; None for 0."""
        return None if expr == 0 else self._value(form, expr)

    def _factor(self, form: NormalForm, expr: sympy.Expr) -> int | None:
        """A factor along tokens; None for 1."""
        return None if expr == 1 else self._value(form, expr)

    def _write(self, form: NormalForm, step: Step) -> int | None:
        """The write of a micro-step that reads nothing."""
        parts = [self._some(form, sympy.expand(term.x * term.c)) for term in step.terms]
        return self.frame.total(parts)

    # --- groups without a matrix ---

    def diagonal(self, form: NormalForm) -> None:
        """Elementwise transitions."""
        for each in form.forms:
            state, step = self.states[each.state], each.steps[0]
            decay, write = self._factor(form, step.decay), self._write(form, step)
            carried = diagonal(self.frame, state, decay, write, self.starts[state.name])
            self._note_state(state.name, carried)

    def dense(self, form: NormalForm) -> None:
        """A matrix along an axis, or states that feed one another."""
        if form.blocks:
            self._coupled(form)
            return
        each = form.forms[0]
        state, step = self.states[each.state], each.steps[0]
        assert step.column is not None, "a matrix has a column"
        matrix, decay = self._value(form, step.matrix), self._factor(form, step.decay)
        write, start = self._write(form, step), self.starts[state.name]
        carried = dense(self.frame, state, matrix, step.row, step.column, decay, write, start)
        self._note_state(state.name, carried)

    def _coupled(self, form: NormalForm) -> None:
        states = [self.states[each.state] for each in form.forms]
        writes = [self._write(form, each.steps[0]) for each in form.forms]
        starts = [self.starts[state.name] for state in states]
        if form.turn is None:
            blocks = [[self._some(form, entry) for entry in row] for row in form.blocks]
            found = coupled(self.frame, states, blocks, writes, starts)
        else:
            size = self._factor(form, form.turn.sizes[0])
            angle = self._value(form, form.turn.angle)
            found = spun(self.frame, states, size, angle, writes, starts)
        for state, carried in zip(states, found, strict=True):
            self._note_state(state.name, carried)

    def running(self, form: NormalForm) -> None:
        """A running maximum, or the like; no gradient passes one that is proved not to matter."""
        name, step = form.forms[0].state, form.forms[0].steps[0]
        shift = self._some(form, step.decay)
        state, start = self.states[name], self.starts[name]
        if not step.terms:  # max(a + m[t-1], b + m[t-1]) is a sum
            self._note_state(name, diagonal(self.frame, state, None, shift, start))
            return
        value = self._value(form, step.terms[0].c)
        if form.sums in RUNNING:
            self._note_state(name, RUNNING[form.sums](self.frame, state, shift, value, start))
            return
        gauge = proved(self.recurrence, name, self.wanted)
        if gauge is None:
            carried = running_max(self.frame, state, shift, value, start)
        else:
            carried, rise = running_gauge(self.frame, state, shift, value, start)
            self.gauges.append((gauge, rise))
            self.notes.append(f"`{name}` is a gauge: no result depends on it")
        self.maxima.append((carried.before, carried.after))
        self._note_state(name, carried)

    # --- a matrix ---

    def matrix(self, form: NormalForm) -> None:
        """Writes of low rank, read by vectors; those of several rows a token as elements or as a
        matrix, where the state is taken whole."""
        try:
            self._matrix(form)
        except NotChunked:
            if not form.without_ranks:
                raise
            for each in form.without_ranks:
                GROUPS[each.kind](self, each)

    def _matrix(self, form: NormalForm) -> None:
        """A matrix with all that it is read for."""
        self._check_rows(form.forms[0].steps[0].rank)
        solves = {each.state: self._systems(form, each) for each in form.forms}
        for each in form.forms:
            self._check_reads(form, each, solves[each.state])
        count = range(len(form.forms[0].steps))
        reads = (part for each in form.forms for read in each.reads for part in read.parts)
        early = any(part.when == BEFORE and read_by_rows(form, part) is not None for part in reads)
        try:
            steps = [self._token_step(form, p) for p in count]
        except NotChunked:
            numbers = None if any(solves.values()) else by_numbers(form)
            if numbers is not None:
                self.linked(numbers)
                return
            if any(solves.values()) or early:
                raise
            steps = [self._token_step(form, p, True) for p in count]
        states = [self.states[each.state] for each in form.forms]
        turns = {e.state: (e.key[0], e.value[0]) for e in form.forms if solves[e.state]}

        def turn(name: str, id: int) -> int:
            return turned(self.frame, id, turns[name]) if name in turns else id

        starts = [turn(state.name, self.starts[state.name]) for state in states]
        keys = form.forms[0].key
        sides = sides_of(form, self.most)
        made = MatrixForm(self.frame, keys, states, steps, starts, self.known, early, sides)
        for k, each in enumerate(form.forms):
            self.finals[each.state] = turn(each.state, made.final[k])
            if self._is_taken(each, solves[each.state]):
                self._note_vector(form, made, k)
            for system in solves[each.state]:
                self._solve(made, system, turns[each.state])
        for k, each in enumerate(form.forms):
            for read in each.reads:
                make = partial(self._read, form, made, k, read)
                self.lifted.note_made(read.node, make)

    def _check_rows(self, rank: Axis | None) -> None:
        """A chunk has room for all rows of a token."""
        if rank is not None and self.most(rank.size) > MOST_OF_TOKEN:
            raise NotChunked(
                f"`{rank.name}` is not known to be at most {MOST_OF_TOKEN}, and a token would be as"
                " many rows of a chunk",
                "give it a default, or write `repeat` for one key after the other",
            )

    def linked(self, form: NormalForm) -> None:
        """Matrices that scale one another by numbers."""
        links, states = form.links, [self.states[name] for name in form.states]
        assert links is not None, "linked states have links"
        self._check_rows(links.rank)
        self._check_whole(form.states, links.whole)
        made = self._linked_form(form, states, [self.starts[state.name] for state in states])
        for name, final in zip(form.states, made.final, strict=True):
            self.finals[name] = final
        for read in links.reads:
            self.lifted.note_made(read.node, partial(self._linked_read, form, made, read))

    def _linked_form(
        self,
        form: NormalForm,
        states: Sequence[ir.State],
        starts: Sequence[int],
        alone: bool = False,
    ) -> LinkedForm:
        """Linked states in chunks; `alone`: nothing is written but what is read of them."""
        links = form.links
        assert links is not None, "linked states have links"
        blocks = [[self._some(form, entry) for entry in row] for row in form.blocks]
        terms = [
            TokenLink(
                self._value(form, term.x),
                None if alone else self._some(form, term.c),
                tuple(self._some(form, read) for read in term.reads),
                tuple(self._some(form, number) for number in term.writes),
            )
            for term in links.terms
            if not alone or any(read != 0 for read in term.reads)
        ]
        if links.turn is None:
            return LinkedForm(self.frame, links.key, states, blocks, terms, starts, links.rank)
        gates = [self._log(form, size) for size in links.turn.sizes]
        angle = self._some(form, links.turn.angle)
        return TurnedForm(self.frame, links.key, states, gates, angle, terms, starts)

    def _linked_read(self, form: NormalForm, made: LinkedForm, read: LinkedRead) -> int:
        """A read of linked states along tokens, with the axes of the body's node."""
        parts = [self._some(form, read.free)]
        together: dict[tuple[bool, sympy.Expr], list[sympy.Expr]] = {}
        for part in read.parts:
            nothing: list[sympy.Expr] = [sympy.Integer(0)] * len(form.states)
            covectors = together.setdefault((part.written, part.scale), nothing)
            covectors[part.state] += part.covector
        for (written, scale), covectors in together.items():
            value = made.of_states([self._some(form, each) for each in covectors], written)
            parts.append(self.frame.times(value, self._factor(form, scale)))
        total = self.frame.total(parts)
        assert total is not None, "a read has parts"
        total = self.frame.renamed(total, dict(read.renamed)) if read.renamed else total
        return self.frame.full(total, self.body[read.node].type.axes)

    def _check_whole(self, states: Sequence[str], whole: Sequence[int]) -> None:
        """No result needs all of a state at every token."""
        own = [self.after[name] for name in states]
        own = [id for id in own if any(self.body.outputs[wanted] == id for wanted in self.wanted)]
        for node in (*whole, *own):
            raise NotChunked(
                "every element of states that feed one another is used at every token",
                "read them by products with vectors", node, "E0604",
            )  # fmt: skip

    def _systems(self, form: NormalForm, each: StateForm) -> tuple[System, ...]:
        """The systems that take a state whole, if there are any."""
        if not any(in_system(self.body, node) for node in each.whole):
            return ()
        known, name = intervals(self.body, self.known), each.state
        found = systems(self.recurrence, form, name, known, self.initial.get(name, Interval()))
        if isinstance(found, Refusal):
            raise NotChunked(found.reason, found.help, found.node, found.code)
        self.definite += (system.node for system in found)
        return found

    def _solve(self, made: MatrixForm, system: System, sides: tuple[Axis, Axis]) -> None:
        """Note the solution of a system along tokens."""

        def read(state: str, query: int, when: str) -> int:
            return made.read(names.index(state), query, when)

        names = [state.name for state in made.states]
        type = self.body[system.node].type
        make = partial(conjugate, self.frame, system, sides, type, self.lifted, read)
        self.lifted.note_made(system.node, make)

    def _check_reads(self, form: NormalForm, each: StateForm, solves: Sequence[System]) -> None:
        """Every read of a matrix state sums over its key axes."""
        keys, name = {axis.name for axis in each.key}, each.state
        if self._is_taken(each, solves) and not each.is_vector:
            node = user_of(self.body, each) if each.whole else self.after[name]
            raise NotChunked(
                f"every element of `{name}` is used at every token",
                "read it by a product with a vector", node, "E0604",
            )  # fmt: skip
        for read in each.reads:
            values = {axis.name for axis in each.value}
            if any(
                {*part.axes} != values and self._sides(form, part, keys) is None
                for part in read.parts
            ):
                raise NotChunked(
                    f"`{name}` is read along other axes than its updates sum over", "", read.node
                )

    def _is_taken(self, each: StateForm, solves: Sequence[System]) -> bool:
        """Whether every element of a state is wanted at every token, by more than systems."""
        own = any(self.body.outputs[name] == self.after[each.state] for name in self.wanted)
        return own or (bool(each.whole) and not solves)

    def _note_vector(self, form: NormalForm, made: MatrixForm, k: int) -> None:
        """A vector along tokens: all that is written to it is known, corrections as well."""
        state, start = made.states[k], None if made.merges else made.begin[k]
        decay, initial = form.forms[k].steps[0].decay, self.starts[state.name]
        kept = self._factor(form, decay)
        found = diagonal(self.frame, self.states[state.name], kept, made.written(k), initial, start)
        self._note_state(state.name, found)

    def _token_step(self, form: NormalForm, p: int, signed: bool = False) -> TokenStep:
        """One micro-step along tokens; `signed`: gates without logarithms may be 0 or negative."""
        steps, terms = [each.steps[p] for each in form.forms], list[TokenTerm]()
        for m, term in enumerate(steps[0].terms):
            rows = tuple(self._some(form, step.terms[m].c) for step in steps)
            w = self._some(form, term.w)
            terms.append(TokenTerm(self._value(form, term.x), rows, w, term.after))
        rank = steps[0].rank
        signed &= rank is None or all(term.w is None or term.after for term in terms)
        key, *of_key = self._side(form, steps[0].key, signed)
        value, *of_value = self._side(form, steps[0].value, signed)
        flags, below = (bool(of_key[0]), bool(of_value[0])), (of_key[1], of_value[1])
        return TokenStep(key, value, tuple(terms), rank, flags, below)

    def _side(
        self, form: NormalForm, gate: sympy.Expr, signed: bool
    ) -> tuple[int | None, bool, int | None]:
        """The log gates of a side along tokens (None: no decay), whether they are those of the
        sizes of gates that may be 0, and how many of its factors are below 0 (None: none is)."""
        try:
            return self._log(form, gate), False, None
        except NotChunked:
            if not signed:
                raise
            graph, factors = self.frame.graph, factored(Table(form.atoms), gate)
            found = log_and_sign(graph, self._value(form, factors), intervals(graph, self.known))
            if isinstance(found, NoLog):
                raise
            return found[0], True, found[1]

    def _log(self, form: NormalForm, gate: sympy.Expr) -> int | None:
        """The logarithm of a decay along tokens; None for a decay of 1."""
        if gate == 1:
            return None
        gate = factored(Table(form.atoms), gate)
        check_log(self.body, self.known, form, gate, self.old.values())
        graph = self.frame.graph
        found = log_of(graph, self._value(form, gate), intervals(graph, self.known))
        assert not isinstance(found, NoLog), "the body has a logarithm"
        return differences_first(self.frame, found, self.maxima)

    def _read(self, form: NormalForm, made: MatrixForm, k: int, read: Read) -> int:
        """A read along tokens, with the axes of the body's node."""
        parts = [self._part(form, made, k, part) for part in read.parts]
        total = self.frame.total([*parts, self._some(form, read.free)])
        if total is None:  # everything that it weighs the state with is 0
            total = self.frame.real(self.frame.number(0))
        total = self.frame.renamed(total, dict(read.renamed)) if read.renamed else total
        return self.frame.full(total, self.body[read.node].type.axes)

    @staticmethod
    def _sides(form: NormalForm, part: Part, key: Set[str]) -> tuple[sympy.Expr, sympy.Expr] | None:
        return read_apart(Table(form.atoms), part.covector, part.axes, key)

    def _part(self, form: NormalForm, made: MatrixForm, k: int, part: Part) -> int:
        """One sum; what it sums over besides the key axes is summed when that is read."""
        keys = {axis.name for axis in form.forms[0].key}
        sides = self._sides(form, part, keys)
        if sides is None:
            return self._along_values(form, made, k, part)
        axis = read_by_rows(form, part)
        if axis is not None:
            value = made.read_at_keys(k, self._value(form, sides[0]), axis, part.when)
        else:
            query = made.query(self._value(form, sides[0]), part.step, part.when)
            value = made.tokens(made.read(k, query, part.when), part.step, part.when)
        more = [name for name in part.axes if name not in keys]
        if more:
            weighed = self.frame.times(value, self._factor(form, sides[1]))
            assert weighed is not None, "there is a value"
            value = self.frame.add(ir.Reduce("sum", tuple(more)), weighed)
        scale = self._factor(form, part.scale)
        return value if scale is None else self.frame.fn("mul", value, scale)

    def _along_values(self, form: NormalForm, made: MatrixForm, k: int, part: Part) -> int:
        """A sum over the value axes, which leaves the key axes."""
        query = made.query(self._value(form, part.covector), part.step, part.when)
        found = made.read_values(k, query, part.axes, part.when)
        found = made.tokens(found, part.step, part.when)
        scaled = self.frame.times(found, self._factor(form, part.scale))
        assert scaled is not None, "there is a value"
        return scaled


GROUPS = {
    MATRIX: Derivation.matrix,
    DIAGONAL: Derivation.diagonal,
    DENSE: Derivation.dense,
    LINKED: Derivation.linked,
    TROPICAL: Derivation.running,
}
"""How a group of each kind is derived."""


__all__ = ["Derivation", "Derived", "Kept", "NotChunked", "StateNeeded", "derive"]

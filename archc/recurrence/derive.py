"""Layer IR -> layer IR: a Fold, and its chunked form beside it.

The normal forms say how each group of states is computed in chunks; here that is done group by
group, each on the values of those before it. A group without a chunked form stays a loop over the
tokens, with a reason. What the body computes of reads and of free values is lifted to all tokens at
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.numerics.interval import Interval, intervals
from archc.numerics.logs import NoLog, growth, log_of
from archc.recurrence.coupled import coupled, dense
from archc.recurrence.degree import before, updates
from archc.recurrence.frame import Frame, input_of
from archc.recurrence.gauge import proved
from archc.recurrence.lift import Lifted, StateNeeded
from archc.recurrence.matrix import MatrixForm, TokenStep, TokenTerm
from archc.recurrence.normal import normal_forms
from archc.recurrence.normal_build import build
from archc.recurrence.normal_form import (
    DENSE,
    DIAGONAL,
    MATRIX,
    MAX_PLUS,
    NormalForm,
    Part,
    Read,
    StateForm,
    Step,
)
from archc.recurrence.scan import Carried, diagonal
from archc.recurrence.stepwise import stepwise
from archc.recurrence.tropical import running_max


@dataclass(frozen=True)
class Kept:
    """States that stay a loop over the tokens: why, what to do, and the node of the body."""

    states: tuple[str, ...]
    reason: str
    help: str = ""
    node: int | None = None
    code: str = "E0607"


@dataclass(frozen=True)
class Derived:
    """What was found about a Fold: its chunked form (None: every state stays a loop), the normal
    forms of its states, and those that stay a loop."""

    graph: Graph | None
    forms: tuple[NormalForm, ...]
    kept: tuple[Kept, ...]
    notes: tuple[str, ...] = ()


class NotChunked(Exception):
    """A group has no chunked form: caught below, where it stays a loop."""

    def __init__(
        self, reason: str, help: str = "", node: int | None = None, code: str = "E0607"
    ) -> None:
        super().__init__(reason)
        self.reason, self.help, self.node, self.code = reason, help, node, code


def decays(fold: ir.Fold) -> list[str]:
    """The captures that decay a matrix state: they had better enter as logarithms."""
    found: dict[str, None] = {}
    for form in normal_forms(fold):
        gates = [step.decay for each in form.forms for step in each.steps]
        for symbol in {s for gate in gates if form.kind == MATRIX for s in gate.free_symbols}:
            atom = form.atoms.get(symbol)
            node = fold.body[atom.node] if atom is not None and atom.node is not None else None
            if node is not None and isinstance(node.op, ir.Input):
                found[node.op.name] = None
    return [name for name in fold.captures if name in found]


def derive(
    fold: ir.Fold,
    captures: Mapping[str, Type],
    known: Mapping[str, Interval],
    wanted: Sequence[str],
) -> Derived:
    """The chunked form of a Fold, its results `wanted` along the stream.

    `captures` are the types that its captures have outside, `known` the intervals in which they
    lie.
    """
    return Derivation(fold, captures, known, wanted).run()


class Derivation:
    """One Fold on its way."""

    def __init__(
        self,
        fold: ir.Fold,
        captures: Mapping[str, Type],
        known: Mapping[str, Interval],
        wanted: Sequence[str],
    ):
        self.fold, self.body, self.wanted = fold, fold.body, wanted
        self.known, self.after = known, updates(fold)
        self.old = {name: id for id, name in before(fold).items()}
        self.states = {state.name: state for state in fold.states}
        self.frame = _frame(fold)
        graph = self.frame.graph
        self.inputs = {name: input_of(graph, name, type) for name, type in captures.items()}
        self.starts = {
            state.name: input_of(graph, ck.start(state.name), Type(state.axes))
            for state in fold.states
        }
        self.lifted = Lifted(self.frame, fold.body, self._lifted_inputs())
        self.finals: dict[str, int] = {}
        self.kept: list[Kept] = []
        self.notes: list[str] = []

    def _lifted_inputs(self) -> dict[int, int]:
        return {
            node.id: self.inputs[node.op.name]
            for node in self.body
            if isinstance(node.op, ir.Input) and node.op.name in self.inputs
        }

    def run(self) -> Derived:
        """Group after group, then the results."""
        forms = normal_forms(self.fold)
        for form in forms:
            self._group(form)
        if len({name for kept in self.kept for name in kept.states}) == len(self.states):
            return Derived(None, forms, tuple(self.kept))
        graph = self.frame.graph
        for name in self.wanted:
            value = self.lifted[self.body.outputs[name]]
            graph.outputs[name] = self.frame.expanded(value, self._axes_of(name))
        for name, id in self.finals.items():
            graph.outputs[ck.final(name)] = self.frame.expanded(id, self.states[name].axes)
        graph.prune([node.id for node in graph if isinstance(node.op, ir.Input)])
        return Derived(graph, forms, tuple(self.kept), tuple(self.notes))

    def _axes_of(self, name: str) -> tuple[Axis, ...]:
        """The axes that a result has along the stream."""
        axes = self.body[self.body.outputs[name]].type.axes
        return (*(a for a in axes if a.kind == "batch"), self.frame.stream, *axes)

    def _group(self, form: NormalForm) -> None:
        """The values of one group of states, in chunks or by a loop."""
        try:
            if form.refusal is not None:
                refusal = form.refusal
                raise NotChunked(refusal.reason, refusal.help, refusal.node, refusal.code)
            GROUPS[form.kind](self, form)
        except NotChunked as error:
            self.kept.append(Kept(form.states, error.reason, error.help, error.node, error.code))
            self._loop(form.states)

    def _loop(self, states: Sequence[str]) -> None:
        """A loop over the tokens for some of the states."""
        found = stepwise(self.fold, states, self.lifted, self.starts)
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
        """What a micro-step adds that reads nothing."""
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
        blocks = [[self._some(form, entry) for entry in row] for row in form.blocks]
        writes = [self._write(form, each.steps[0]) for each in form.forms]
        starts = [self.starts[state.name] for state in states]
        found = coupled(self.frame, states, blocks, writes, starts)
        for state, carried in zip(states, found, strict=True):
            self._note_state(state.name, carried)

    def running_max(self, form: NormalForm) -> None:
        """A running maximum, which must not matter for the gradient."""
        each = form.forms[0]
        proof = proved(self.fold, each.state)
        if proof is None:
            raise NotChunked(
                f"the running maximum `{each.state}` changes the results, so that its gradient "
                "depends on how ties are broken",
                "a stabiliser divides out of every result",
            )
        step, state = each.steps[0], self.states[each.state]
        shift = self._some(form, step.decay)
        value = self._value(form, step.terms[0].c)
        start = self.starts[state.name]
        self._note_state(
            each.state, running_max(self.frame, state, shift, value, start, gauge=True)
        )
        self.notes.append(f"`{each.state}` is a gauge: no result depends on it")

    # --- a matrix ---

    def matrix(self, form: NormalForm) -> None:
        """Rank-one writes, read by vectors."""
        for each in form.forms:
            self._check_reads(each)
        steps = [self._token_step(form, p) for p in range(len(form.forms[0].steps))]
        states = [self.states[each.state] for each in form.forms]
        starts = [self.starts[state.name] for state in states]
        made = MatrixForm(self.frame, form.forms[0].key, states, steps, starts)
        for k, each in enumerate(form.forms):
            self.finals[each.state] = made.final[k]
            for read in each.reads:
                self.lifted.note(read.node, self._read(form, made, k, read))

    def _check_reads(self, each: StateForm) -> None:
        """Every read of a matrix state sums over its key axes."""
        keys, name = {axis.name for axis in each.key}, each.state
        own = any(self.body.outputs[wanted] == self.after[name] for wanted in self.wanted)
        if each.whole or own:
            node = each.whole[0] if each.whole else self.after[name]
            raise NotChunked(
                f"every element of `{name}` is used at every token",
                "read it by a product with a vector", node, self._code_of(node),
            )  # fmt: skip
        for read in each.reads:
            if any(set(part.axes) != keys for part in read.parts):
                raise NotChunked(
                    f"`{name}` is read along other axes than its updates sum over", "", read.node
                )

    def _code_of(self, whole: int) -> str:
        """Which of the reasons it is that a whole state is used."""
        solved = any(isinstance(self.body[u].op, ir.Solve) for u in self.body.users(whole))
        return "E0606" if solved else "E0604"

    def _token_step(self, form: NormalForm, p: int) -> TokenStep:
        """One micro-step along tokens."""
        steps = [each.steps[p] for each in form.forms]
        terms = []
        for m, term in enumerate(steps[0].terms):
            rows = tuple(self._some(form, step.terms[m].c) for step in steps)
            w = self._some(form, term.w)
            terms.append(TokenTerm(self._value(form, term.x), rows, w, term.after))
        gates = (self._log(form, steps[0].key), self._log(form, steps[0].value))
        return TokenStep(*gates, tuple(terms))

    def _log(self, form: NormalForm, gate: sympy.Expr) -> int | None:
        """The logarithm of a decay along tokens; None for a decay of 1."""
        if gate == 1:
            return None
        states = " and ".join(f"`{name}`" for name in form.states)
        body = self.body.copy()  # where a stabiliser is still a maximum that gates are held against
        inside = build(body, gate, form, {node.id: node.id for node in body})
        log = log_of(body, inside, intervals(body, self.known))
        if isinstance(log, NoLog):
            reason = f"the decay of {states} has no logarithm: {log.reason}"
            raise NotChunked(reason, node=_node_of(form, gate), code="E0602")
        if not growth(body, log, intervals(body, self.known)).never:
            raise NotChunked(
                f"{states} may grow: the decay is not known to be at most 1",
                "write the decay as exp(-softplus(..)), sigmoid(..) or another value in [0, 1]",
                _node_of(form, gate), "E0602",
            )  # fmt: skip
        graph = self.frame.graph
        found = log_of(graph, self._value(form, gate), intervals(graph, self.known))
        assert not isinstance(found, NoLog), "the body has a logarithm"
        return found

    def _read(self, form: NormalForm, made: MatrixForm, k: int, read: Read) -> int:
        """A read along tokens, with the axes of the body's node."""
        parts = [self._part(form, made, k, part) for part in read.parts]
        total = self.frame.total([*parts, self._some(form, read.free)])
        assert total is not None, "a read has parts"
        total = self.frame.renamed(total, dict(read.renamed)) if read.renamed else total
        return self.frame.expanded(total, self.body[read.node].type.axes)

    def _part(self, form: NormalForm, made: MatrixForm, k: int, part: Part) -> int:
        query = made.query(self._value(form, part.covector), part.step)
        value = made.tokens(made.read(k, query, part.when), part.step)
        scale = self._factor(form, part.scale)
        return value if scale is None else self.frame.fn("mul", value, scale)


GROUPS = {
    MATRIX: Derivation.matrix,
    DIAGONAL: Derivation.diagonal,
    DENSE: Derivation.dense,
    MAX_PLUS: Derivation.running_max,
}
"""How a group of each kind is derived."""


def _node_of(form: NormalForm, expr: sympy.Expr) -> int | None:
    """A node of the body that is part of an expression."""
    atoms = (form.atoms[s] for s in sorted(expr.free_symbols, key=str) if s in form.atoms)
    return next((atom.node for atom in atoms if atom.node is not None), None)


def _frame(fold: ir.Fold) -> Frame:
    """An empty graph with chunks of the Fold's stream; its axes have names of their own."""
    taken = {axis.name for node in fold.body for axis in node.type.axes}
    taken |= {fold.stream.name, *(axis.name for state in fold.states for axis in state.axes)}

    def fresh(name: str) -> str:
        while name in taken:
            name += "_"
        return name

    count = sympy.ceiling(fold.stream.size / ck.CHUNK)
    row = Axis(fresh("i"), ck.CHUNK)
    return Frame(
        layer_graph(), fold.stream, Axis(fresh("n"), count, "stream"), row,
        row.renamed(fresh("j")), tuple(fold.heads),
    )  # fmt: skip


__all__ = ["Derivation", "Derived", "Kept", "NotChunked", "StateNeeded", "derive"]

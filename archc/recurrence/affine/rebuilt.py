"""Body of a Recurrence -> the same from its normal forms, to hold them against the recurrence."""

from __future__ import annotations

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph
from archc.ir.value_names import state_before
from archc.recurrence.affine.build import Lowering
from archc.recurrence.affine.form import AFTER, SEQUENTIAL, TROPICAL, NormalForm, Read, StateForm
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.analysis.semirings import LOG


def rebuilt(recurrence: ir.Recurrence) -> Graph:
    """The body with updates and reads made from the normal forms, where there are any."""
    body = recurrence.body.copy()
    originals = [node.id for node in body]
    for form in normal_forms(recurrence):
        for each in form.forms if form.kind != SEQUENTIAL else ():
            _Rebuild(recurrence, body, form, each, {id: id for id in originals}).run()
    return body


class _Rebuild(Builder):
    """One state's update and reads in the body, from its form. Nodes of the body stay where they
    are, so that they are the values of the form's symbols."""

    def __init__(
        self,
        recurrence: ir.Recurrence,
        body: Graph,
        form: NormalForm,
        own: StateForm,
        values: dict[int, int],
    ) -> None:
        super().__init__(body)
        self.recurrence, self.body, self.form, self.own = recurrence, body, form, own
        self.lower = Lowering(body, form, values)
        self.versions: list[tuple[int, int]] = []  # of each step: S_prev and S'
        self.old = self._before(own.state)
        self.after = self.old

    def _before(self, state: str) -> int:
        name = state_before(state)
        return next(n.id for n in self.body if isinstance(n.op, ir.Input) and n.op.name == name)

    def run(self) -> None:
        """Replace the update and every read."""
        state, update = self.own.state, self.body.outputs[self.own.state]
        self._steps()
        wanted = next(s.axes for s in self.recurrence.states if s.name == state)
        self.after = self._turned(self.after, wanted)
        for read in self.own.reads:
            self._read(read)
        if isinstance(self.body[update].op, ir.Input) or update in self.body.ancestors(self.after):
            self.body.outputs[state] = self.after  # it is another state's value, or made of itself
        else:
            self.body.substitute(update, self.after)

    def _turned(self, id: int, axes: tuple[Axis, ...]) -> int:
        own = self.body[id].type
        if own.axes == axes:
            return id
        return self.body.add(ir.Contract((own.names,), tuple((a.name, a) for a in axes)), id)

    def _summed(self, expr: sympy.Expr, state: int, axes: tuple[str, ...]) -> int:
        found = self.fn("mul", self.lower.value(expr), state)
        return self.body.add(ir.Reduce("sum", axes), found)

    def _joined(self, value: int, *others: int) -> int:
        """A sum over the form's semiring."""
        if self.form.sums != LOG:
            return self.fn(self.form.sums, value, *others) if others else value
        (other,) = others
        apart = self.fn("abs", self.fn("sub", value, other))
        above = self.fn("softplus", self.fn("neg", apart))
        return self.fn("add", self.fn("max", value, other), above)

    def _steps(self) -> None:
        for step in self.own.steps:
            previous = self.after
            if self.form.kind == TROPICAL:
                shifted = self.fn("add", self.lower.value(step.decay), previous)
                floors = [self.lower.value(term.c) for term in step.terms]
                self.after = self._joined(shifted, *floors)
                continue
            assert step.decay == sympy.expand(step.key * step.value), "a decay is that of its sides"
            decayed = self.fn("mul", self.lower.value(step.decay), previous)
            if step.column is not None:
                decayed = self.fn("add", decayed, self._mixed(step.matrix, step.row, step.column))
            for place, scale in enumerate(self._blocks()):
                other = self._before(self.form.states[place])
                decayed = self.fn("add", decayed, self.fn("mul", self.lower.value(scale), other))
            self.versions.append((previous, decayed))
            self.after = decayed
            for term in step.terms:
                row = self.lower.value(term.c)
                if term.w != 0:
                    early = self._scaled(step.value, previous)
                    state = decayed if term.after else early
                    keys = tuple(axis.name for axis in self.own.key)
                    row = self.fn("add", row, self._summed(term.w, state, keys))
                written = self.fn("mul", self.lower.value(term.x), row)
                if step.rank is not None and step.rank.name in self.body[written].type.names:
                    written = self.body.add(ir.Reduce("sum", (step.rank.name,)), written)
                self.after = self.fn("add", self.after, written)

    def _scaled(self, decay: sympy.Expr, state: int) -> int:
        return state if decay == 1 else self.fn("mul", self.lower.value(decay), state)

    def _blocks(self) -> tuple[sympy.Expr, ...]:
        names = self.form.states
        return self.form.blocks[names.index(self.own.state)] if self.form.blocks else ()

    def _mixed(self, matrix: sympy.Expr, row: str, column: Axis) -> int:
        axes = self.body[self.old].type.axes
        moved = tuple((a.name, column if a.name == row else a) for a in axes)
        state = self.body.add(ir.Contract((tuple(a.name for a in axes),), moved), self.after)
        return self._summed(matrix, state, (column.name,))

    def _read(self, read: Read) -> None:
        total = self.lower.value(read.free)
        for part in read.parts:
            previous, decayed = self.versions[part.step]
            state = previous if part.when != AFTER else decayed
            if part.when == "written":
                later = self.versions[part.step + 1 : part.step + 2]
                state = later[0][0] if later else self.after
            found = self._summed(part.covector, state, part.axes)
            total = self.fn("add", total, self.fn("mul", self.lower.value(part.scale), found))
        new = dict(read.renamed)
        out = {a.name: (a.name, new.get(a.name, a)) for a in self.body[total].type.axes}
        wanted = self.body[read.node].type.axes
        there = {axis.name for _, axis in out.values()}
        missing = tuple(axis for axis in wanted if axis.name not in there)
        if missing:
            total = self.body.add(ck.Expand(missing), total)
            out |= {axis.name: (axis.name, axis) for axis in missing}
        ordered = [
            next(pair for pair in out.values() if pair[1].name == axis.name) for axis in wanted
        ]
        turned = self.body.add(ir.Contract((self.body[total].type.names,), tuple(ordered)), total)
        self.body.substitute(read.node, turned)

"""A recurrence that solves a system with its state, for one token -> one tile program whose state
is loaded where it is read.

The states that a system is made of come first, and are stored before it is solved; the others are
read after. So a program holds one matrix at a time. A thread has whole columns of it, so that
products with the matrix, which is symmetric, are sums in registers."""

from __future__ import annotations

from dataclasses import replace

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.refusal import Refusal
from archc.lowering.steps import Steps
from archc.lowering.values import Frame, Index, Made, Padded, Place
from archc.tile.language import Buffer


class OneToken(Steps):
    """One program under construction."""

    has_columns = True

    def _tensor(
        self, called: str, node: Node, rows: sympy.Expr | None, summed: bool = False
    ) -> Buffer:
        """A buffer; threads have single numbers of a pool, as columns are told apart by them."""
        made = super()._tensor(called, node, rows, summed)
        if not made.rows:
            return made
        self.k.buffers[-1] = made = replace(made, anywhere=True)
        return made

    def _walk(self) -> Refusal | None:
        """The token."""
        op, made, self.gone = self.op, dict[str, Padded](), set[str]()
        self.indices[op.stream.name] = Index(self.k.lift(0, "i64"))
        self.starts_of = dict(zip((s.before for s in op.states), self.starts, strict=True))
        with self.within(Frame(op.body, self._entering, self.recurrence.id)):
            for name, id in self._in_order():
                x = self.value(id)
                if isinstance(x, Refusal):
                    return x
                made[name] = x
                if isinstance(op.body[id].op, ir.Solve):
                    self._let_go(id)
                for state in op.states:
                    if state.name == name:
                        self._store_state(state, x)
                        self.gone.add(state.before)
        for name, id in self.kernel.stores.items():
            self._store_result(name, self.kernel.graph[id], made)
        return None

    def _let_go(self, solution: int) -> None:
        """Have tiles that are read behind a system made anew, as registers are full while that is
        solved: vectors are loaded again."""
        made = self._known[-1].made
        for key, x in [*made.items()]:
            if x.tile.dims and key[:2] != (solution, self.frame):
                del made[key]

    def _in_order(self) -> list[tuple[str, int]]:
        """What is made, in order: states that systems are made of, solutions, all others."""
        body, outputs = self.op.body, self.op.body.outputs
        solves = [node.id for node in body if isinstance(node.op, ir.Solve)]
        states = {state.name for state in self.op.states}
        first = [
            (name, id) for name, id in outputs.items()
            if name in states and body.descendants(id) & {*solves}
        ]  # fmt: skip
        rest = [each for each in outputs.items() if each not in first]
        return [*first, *(("", id) for id in solves), *rest]

    def _entering(self, node: Node, place: Place) -> Made | None:
        """An input of the body: a state is loaded where it is read."""
        if isinstance(node.op, ir.Input) and node.op.name in self.starts_of:
            if node.op.name in self.gone:
                return self.refused(node, "a state that is read after it is stored")
            with self.within(self.outer):
                return self.stored(self.starts_of[node.op.name], place)
        return super()._entering(node, place)

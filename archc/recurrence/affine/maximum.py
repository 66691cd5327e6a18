"""A running maximum, and the like -> what shifts it and what it meets: m = max(a + m[t-1], b)."""

from __future__ import annotations

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.recurrence.affine.atoms import Table
from archc.recurrence.affine.form import TROPICAL, NormalForm, StateForm, Step, Term
from archc.recurrence.affine.polynomials import Reading
from archc.recurrence.analysis.degree import CONSTANT, OTHER, degrees
from archc.recurrence.analysis.semirings import LOG, LOWEST, MIN, SEMIRINGS, joined

ONE, ZERO = sympy.Integer(1), sympy.Integer(0)

Affine = tuple[sympy.Expr | None, sympy.Expr | None]
"""(a, b) of max(a + m[t-1], b); None stands for what changes no maximum."""


def tropical(recurrence: ir.Recurrence, states: tuple[str, ...]) -> NormalForm | None:
    """The form of a running maximum, or the like; None if the states are something else."""
    found = (_over(recurrence, states, sums) for sums in SEMIRINGS)
    return next((each for each in found if each is not None), None)


def _over(recurrence: ir.Recurrence, states: tuple[str, ...], sums: str) -> NormalForm | None:
    """The form over a semiring."""
    known = degrees(recurrence, states, sums)
    own = [state for state in recurrence.states if state.name in states]
    if len(own) > 1 or known[recurrence.body.outputs[own[0].name]].kind in (OTHER, CONSTANT):
        return None
    (state,) = own
    reading = Reading(recurrence, known, Table())
    walk = _Walk(reading, sums)
    shift, floor = walk.value(recurrence.body.outputs[state.name])
    if shift is None:
        return None
    terms = (Term(ONE, floor, ZERO, True),) if floor is not None else ()
    whole = _whole(recurrence, reading, state)
    form = StateForm(state.name, (), (), state.axes, (Step(shift, shift, ONE, terms),), (), whole)
    return NormalForm(TROPICAL, states, (form,), reading.table.atoms, sums=sums)


def _whole(recurrence: ir.Recurrence, reading: Reading, state: ir.State) -> tuple[int, ...]:
    """The state's values before and after the token, as far as something else takes them."""
    update = recurrence.body.outputs[state.name]
    inside = {update, *recurrence.body.ancestors(update)}
    old = {id for id, name in reading.old.items() if name == state.name}
    values = [update, *sorted(old)]
    return tuple(sorted(id for id in values if set(recurrence.body.users(id)) - inside))


class _Walk:
    """Values of the body over a semiring."""

    def __init__(self, reading: Reading, sums: str) -> None:
        self.reading, self.sums = reading, sums
        self.done: dict[int, Affine] = {}

    def value(self, id: int) -> Affine:
        """A node as max(a + m[t-1], b)."""
        if id not in self.done:
            self.done[id] = self._value(self.reading.body[id])
        return self.done[id]

    def _value(self, node: Node) -> Affine:
        if self.reading.degrees[node.id].kind == CONSTANT:
            return None, self.reading.constant(node.id)
        if node.id in self.reading.old:
            return ZERO, None
        if node.op == ir.Elementwise("where"):
            return self._chosen(node)
        pair = joined(self.sums, self.reading.body, node)
        (a, b), (c, d) = (self.value(operand) for operand in pair or node.operands)
        if pair is not None:
            return self._joined(a, c), self._joined(b, d)
        if node.op.fn == "sub":
            assert c is None and d is not None
            d = -d
        if c is not None:  # one of a sum's operands is constant
            a, b, c, d = c, d, a, b
        assert d is not None
        return None if a is None else a + d, None if b is None else b + d

    def _chosen(self, node: Node) -> Affine:
        """A choice that no state makes, `where(new, -inf, m[t-1])`: one of each of the two."""
        condition = self.reading.constant(node.operands[0])
        (a, b), (c, d) = map(self.value, node.operands[1:])
        return self._either(condition, a, c), self._either(condition, b, d)

    def _either(
        self, condition: sympy.Expr, a: sympy.Expr | None, b: sympy.Expr | None
    ) -> sympy.Expr | None:
        if a == b:
            return a
        nothing = sympy.oo if self.sums == MIN else -sympy.oo
        first, second = (nothing if each is None else each for each in (a, b))
        return self.reading.table.fn("where", condition, first, second)

    def _joined(self, a: sympy.Expr | None, b: sympy.Expr | None) -> sympy.Expr | None:
        if a is None or b is None:
            return b if a is None else a
        fn = self.reading.table.fn
        if self.sums != LOG:
            return a if a == b else fn(self.sums, a, b)
        level = fn("max", fn("max", a, b), sympy.Integer(LOWEST))
        return level + fn("log", fn("exp", a - level) + fn("exp", b - level))

"""States of one component that feed one another elementwise -> their block transition.

For each value of the states' axes, the states are a vector that a small matrix takes to the next
token: S_i = sum over j of blocks[i][j] * S_j[t-1] + what is written.
"""

from __future__ import annotations

from collections.abc import Mapping

import sympy

from archc.ir import layer as ir
from archc.recurrence.affine.atoms import Table
from archc.recurrence.affine.axis_roles import Roles
from archc.recurrence.affine.chain import Refused, read_body
from archc.recurrence.affine.form import DENSE, NormalForm, StateForm, Step, Term
from archc.recurrence.affine.linked import turn_of
from archc.recurrence.affine.polynomials import Reading, coefficient
from archc.recurrence.analysis.degree import CONSTANT, Degree

ONE, ZERO = sympy.Integer(1), sympy.Integer(0)

HELP = "let each state feed the next one only, or run it token by token"


def coupled(
    recurrence: ir.Recurrence, linear: Mapping[int, Degree], states: tuple[str, ...]
) -> NormalForm:
    """The block transition of states that only scale one another; their reads are left whole."""
    table = Table()
    reading = read_body(recurrence, linear, table, None)
    every = {state.name: state for state in recurrence.states}
    declared = {name: every[name] for name in states}
    rows = [_row(recurrence, reading, declared, name) for name in states]
    whole = _whole(recurrence, reading, states)
    forms = tuple(
        _form(declared[n], written, whole) for n, (_, written) in zip(states, rows, strict=True)
    )
    blocks = tuple(entries for entries, _ in rows)
    every = Roles(frozenset(axis.name for form in forms for axis in form.shared), frozenset())
    turn = turn_of(table, every, blocks)
    return NormalForm(DENSE, states, forms, table.atoms, None, blocks, turn=turn)


def _row(
    recurrence: ir.Recurrence, reading: Reading, declared: Mapping[str, ir.State], name: str
) -> tuple[tuple[sympy.Expr, ...], sympy.Expr]:
    """The factor of each state in the update of one, and the write to it."""
    table, id = reading.table, recurrence.body.outputs[name]
    if id not in reading.values and reading.degrees[id].kind != CONSTANT:
        raise Refused(reading.broken[id], HELP, id)
    value = reading.constant(id)
    own = {axis.name for axis in declared[name].axes}
    blocks = []
    for state in declared.values():
        symbol = table.state(f"{state.name}@0", state.axes)
        blocks.append(coefficient(table, value, symbol))
        if blocks[-1] != 0 and {axis.name for axis in state.axes} != own:
            raise Refused("states of different axes feed one another", HELP, id)
    held = {s for s in table.symbols(value) if table.atoms[s].states}
    if held - {table.state(f"{s.name}@0", s.axes) for s in declared.values()}:
        raise Refused("states that feed one another are read by a sum in their updates", HELP, id)
    return tuple(blocks), coefficient(table, value, None)


def _whole(recurrence: ir.Recurrence, reading: Reading, states: tuple[str, ...]) -> tuple[int, ...]:
    """Nodes outside the updates that hold a state with all its axes, or read one."""
    inside = {recurrence.body.outputs[name] for name in states}
    inside |= {id for root in sorted(inside) for id in recurrence.body.ancestors(root)}
    after = {recurrence.body.outputs[name] for name in states} | set(reading.old)
    taken = {o for node in recurrence.body if node.id not in inside for o in node.operands}
    linear = {id for id in taken & inside if reading.degrees[id].kind != CONSTANT}
    return tuple(sorted(linear | (taken & after & linear)))


def _form(state: ir.State, written: sympy.Expr, whole: tuple[int, ...]) -> StateForm:
    terms = (Term(ONE, written, ZERO, True),) if written != 0 else ()
    return StateForm(state.name, (), (), state.axes, (Step(ZERO, ZERO, ONE, terms),), (), whole)

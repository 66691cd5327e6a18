"""Layer IR -> layer IR: composition laws of the spec that are proved are marked so.

Three things make a law. Each is an equation of formulas, for values of all sizes:

    merge(merge(x, y), z) = merge(x, merge(y, z))       one run is one summary, however it is cut
    apply(merge(x, y), S) = apply(y, apply(x, S))       a summary does what its tokens do
    apply(token, S[t-1])  = S[t]                        and a token what the recurrence does

What is not proved may be true: it is then held against numbers, elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import sympy
from sympy.core.relational import Relational

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node
from archc.ir.rewrite import rewrite
from archc.ir.value_names import state_before
from archc.recurrence.law.formulas import SumOver, Unclear, atom, formulas

MOST_OPERATIONS = 400
"""Longer formulas are not looked into, so that no proof takes forever."""

MOST_CASES = 8
"""Most conditions that are told apart in one equation."""

Formulas = Mapping[str, Any]


def laws_proved(layer: ir.Layer) -> ir.Layer:
    """The layer, and those that it calls, with what is proved of the laws."""

    def with_proofs(graph: Graph, node: Node) -> int | None:
        """recurrence(.., law) -> recurrence(.., law that is proved)"""
        if not isinstance(node.op, ir.Recurrence) or all(
            law.proved is not None for law in node.op.laws
        ):
            return None
        laws = tuple(replace(law, proved=proved(node.op, law)) for law in node.op.laws)
        return graph.add(replace(node.op, laws=laws), *node.operands)

    return rewrite(layer, [with_proofs])


def proved(recurrence: ir.Recurrence, law: GivenLaw) -> bool:
    """Whether all three equations are."""
    try:
        return all(same(one, other) for one, other in _equations(recurrence, law))
    except Unclear:
        return False


def _equations(recurrence: ir.Recurrence, law: GivenLaw) -> Iterator[tuple[Any, Any]]:
    """The pairs of formulas that must be equal."""
    types = {n.op.name: n.type for n in law.apply if isinstance(n.op, ir.Input)}
    x, y, z = (
        {part: atom(f"{part} {which}", types[part].axes) for part in law.parts} for which in "xyz"
    )
    states = {name: atom(name, types[ck.start(name)].axes) for name in law.states}
    left, right = merged(law, merged(law, x, y), z), merged(law, x, merged(law, y, z))
    yield from ((left[part], right[part]) for part in law.parts)
    both, apart = applied(law, merged(law, x, y), states), applied(law, y, applied(law, x, states))
    yield from ((both[name], apart[name]) for name in law.states)
    token, after = _of_body(recurrence, law, states)
    found = applied(law, token, states)
    yield from ((found[name], after[name]) for name in law.states)


def merged(law: GivenLaw, first: Formulas, second: Formulas) -> Formulas:
    """The summary of two runs."""
    given = {f"{part}.1": first[part] for part in law.parts}
    found = formulas(law.merge, given | {f"{part}.2": second[part] for part in law.parts})
    return {part: simple(found[part]) for part in law.parts}


def applied(law: GivenLaw, run: Formulas, states: Formulas) -> Formulas:
    """The states after a run."""
    found = formulas(law.apply, {**run, **{ck.start(n): states[n] for n in law.states}})
    return {name: simple(found[ck.final(name)]) for name in law.states}


def _of_body(
    recurrence: ir.Recurrence, law: GivenLaw, states: Formulas
) -> tuple[Formulas, Formulas]:
    """The summary of a token and the states after it, as the recurrence has them."""
    body, names = recurrence.body.copy(), [*law.states, *map(law.in_body, law.parts)]
    body.outputs = {name: body.outputs[name] for name in names}
    found = formulas(body, {state_before(name): states[name] for name in law.states})
    return {part: found[law.in_body(part)] for part in law.parts}, found


# --- equal formulas -------------------------------------------------------------------------------


def same(one: Any, other: Any, cases: int = MOST_CASES) -> bool:
    """Whether two formulas are equal: in each case of every condition in them. Raises Unclear."""
    one, other = simple(one), simple(other)
    condition = _condition(one, other)
    if condition is None:
        return _equal(one, other)
    if cases == 0:
        raise Unclear
    chosen = ({condition: value, condition.negated: ~value} for value in (sympy.true, sympy.false))
    return all(same(one.xreplace(case), other.xreplace(case), cases - 1) for case in chosen)


def _condition(*exprs: sympy.Expr) -> Any:
    """A comparison in which no other one stands; None if there is none."""
    found = {c for expr in exprs for c in expr.atoms(Relational) if not c.has(sympy.Piecewise)}
    return min(found, key=str, default=None)


def _equal(one: sympy.Expr, other: sympy.Expr) -> bool:
    """Whether formulas without conditions are equal."""
    if one == other:
        return True
    difference = simple(one - other)
    if difference == 0 or sympy.expand_trig(difference).expand() == 0:
        return True
    top = sympy.numer(sympy.together(difference))
    return top.count_ops() <= MOST_OPERATIONS and simple(top) == 0


def simple(expr: sympy.Expr) -> sympy.Expr:
    """A formula multiplied out, with sums inside maxima and common factors outside logarithms."""
    if expr.has(sympy.nan, sympy.zoo) or expr.count_ops() > MOST_OPERATIONS:
        raise Unclear
    return sympy.expand(_settled(expr))


def _settled(expr: Any) -> Any:
    """Its parts first, then the whole."""
    if not expr.args or isinstance(expr, SumOver):
        return expr
    new = expr.func(*(_settled(arg) for arg in expr.args))
    if isinstance(new, Relational):
        return _compared(new)
    if isinstance(new, sympy.log):
        common = sympy.factor_terms(sympy.expand(new.args[0]))
        return sympy.expand_log(sympy.log(common))
    if isinstance(new, sympy.Add | sympy.Mul):
        return _inside(sympy.expand(new))
    return new


def _inside(expr: Any) -> Any:
    """c + max(a, b) -> max(c + a, c + b), and c * max(a, b) for c > 0."""
    if isinstance(expr, sympy.Mul):
        largest = next((f for f in expr.args if isinstance(f, sympy.Max)), None)
        if largest is None or not (expr / largest).is_positive:
            return expr
        rest = expr / largest
        return sympy.Max(*(_inside(sympy.expand(rest * arg)) for arg in largest.args))
    if not isinstance(expr, sympy.Add):
        return expr
    terms = [_inside(term) for term in expr.args]
    largest = next((term for term in terms if isinstance(term, sympy.Max)), None)
    if largest is None:
        return sympy.Add(*terms)
    rest = sympy.Add(*terms) - largest
    return sympy.Max(*(_inside(sympy.expand(rest + arg)) for arg in largest.args))


def _compared(condition: Any) -> Any:
    """A comparison with 0; one of a maximum as those of its values."""
    difference = _inside(sympy.expand(condition.lhs - condition.rhs))
    some, every = (sympy.Gt, sympy.Ge), (sympy.Lt, sympy.Le)
    if isinstance(difference, sympy.Max) and isinstance(condition, (*some, *every)):
        parts = [condition.func(arg, 0) for arg in difference.args]
        return sympy.Or(*parts) if isinstance(condition, some) else sympy.And(*parts)
    return condition.func(difference, 0)

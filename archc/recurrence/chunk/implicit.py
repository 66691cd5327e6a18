"""Body of a Recurrence -> the symmetric positive definite systems in it that hold a whole state.

solve(H[t] + diag(lam), q) needs H[t] only through products with vectors, and these are reads like
any other: conjugate gradients solve the system without the matrix. They need a matrix that is
symmetric and positive definite. Both are proved here, or refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import sympy

from archc.functions.interval import ANY, ONE, UNIT, ZERO, Interval, add, div, mul, neg, power
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.numerics.constants import number_interval
from archc.recurrence.affine.atoms import Table
from archc.recurrence.affine.form import BEFORE, WRITTEN, NormalForm, StateForm
from archc.recurrence.analysis.degree import before, updates

MEND = "conjugate gradients need a symmetric positive definite matrix; without one it is a loop"


@dataclass(frozen=True)
class Scale:
    """A sign and factors ("mul" or "div", a node of the body)."""

    sign: int = 1
    factors: tuple[tuple[str, int], ...] = ()

    def by(self, fn: str, node: int) -> Scale:
        """This scale with one more factor."""
        return replace(self, factors=(*self.factors, (fn, node)))

    def interval(self, value: Interval, known: Mapping[int, Interval]) -> Interval:
        """The interval of a value that is scaled."""
        for fn, node in self.factors:
            value = (mul if fn == "mul" else div)(value, known[node])
        return value if self.sign > 0 else neg(value)


@dataclass(frozen=True)
class Share:
    """A state in the matrix: `when` is "before" (S[t-1]) or "written" (S[t])."""

    state: str
    when: str
    scale: Scale


@dataclass(frozen=True)
class Diagonal:
    """diag(value) in the matrix: a node of the body, None for 1."""

    value: int | None
    scale: Scale


@dataclass(frozen=True)
class System:
    """The Solve `node` of a body: its matrix is the sum of shares and diagonals, along `row` and
    `col`; `right` is the node on its right-hand side."""

    node: int
    right: int
    row: str
    col: str
    shares: tuple[Share, ...]
    diagonals: tuple[Diagonal, ...]
    iterations: sympy.Expr | None

    @property
    def needs(self) -> tuple[int, ...]:
        """The nodes of the body whose values it is made of, but for the states."""
        scales = [part.scale for part in (*self.shares, *self.diagonals)]
        own = (each.value for each in self.diagonals if each.value is not None)
        return (self.right, *own, *(node for scale in scales for _, node in scale.factors))


class Indefinite(Exception):
    """A matrix of which something is not known: why, and the node of the body."""

    def __init__(self, node: int | None, reason: str) -> None:
        super().__init__(reason)
        self.refusal = Refusal(node, reason, MEND, "E0606")


def systems(
    recurrence: ir.Recurrence,
    form: NormalForm,
    state: str,
    known: Mapping[int, Interval],
    initial: Interval,
) -> tuple[System, ...] | Refusal:
    """The systems that take a state of a matrix form whole, if nothing else does.

    `known` are the intervals of the body's nodes, `initial` that of the state's initial value in
    the spec: it must be 0, which is symmetric. () if nothing takes the state whole.
    """
    own = next(each for each in form.forms if each.state == state)
    try:
        found = [_system(recurrence, node, own) for node in _solves(recurrence, own)]
        if found:
            _check_state(form, own, known, initial)
        for system in found:
            _check_definite(system, known)
    except Indefinite as error:
        return error.refusal
    return tuple(found)


def _solves(recurrence: ir.Recurrence, own: StateForm) -> list[int]:
    """The Solve nodes that read what is made of the whole state; nothing else may."""
    body, found = recurrence.body, dict[int, None]()
    for id in own.whole:
        result = next((name for name, out in body.outputs.items() if out == id), None)
        if result is not None and result != own.state:
            raise Indefinite(id, f"the result `{result}` has every element of `{own.state}`")
        for user in body.users(id):
            node = body[user]
            if not isinstance(node.op, ir.Solve) or id in node.operands[1:]:
                raise Indefinite(user, f"every element of `{own.state}` is used at every token")
            found[user] = None
    return sorted(found)


# --- the matrix as a sum ---------------------------------------------------------------------


def _system(recurrence: ir.Recurrence, id: int, own: StateForm) -> System:
    """A Solve node whose matrix is a sum of the state and diagonals."""
    node = recurrence.body[id]
    walk = _Sum(recurrence, node.op, own)
    walk.add(node.operands[0], Scale())
    op = node.op
    shares, diagonals = tuple(walk.shares), tuple(walk.diagonals)
    return System(id, node.operands[1], op.row, op.col, shares, diagonals, op.iterations)


class _Sum:
    """The addends of a matrix."""

    def __init__(self, recurrence: ir.Recurrence, op: ir.Solve, own: StateForm) -> None:
        self.body, self.own, self.sides = recurrence.body, own.state, (op.row, op.col)
        self.old, self.after = before(recurrence), updates(recurrence)
        self.shares: list[Share] = []
        self.diagonals: list[Diagonal] = []

    def add(self, id: int, scale: Scale) -> None:
        """Note an addend, or what it is the sum of."""
        node = self.body[id]
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        negative = replace(scale, sign=-scale.sign)
        if id == self.after[self.own] or self.old.get(id) == self.own:
            when = WRITTEN if id == self.after[self.own] else BEFORE
            self.shares.append(Share(self.own, when, scale))
        elif self._is_identity(id):
            self.diagonals.append(Diagonal(None, scale))
        elif fn in ("add", "sub"):
            if not all(set(self.sides) <= {*self.body[o].type.names} for o in node.operands):
                raise self._unknown(node)
            self.add(node.operands[0], scale)
            self.add(node.operands[1], negative if fn == "sub" else scale)
        elif fn == "neg":
            self.add(node.operands[0], negative)
        elif fn in ("mul", "div"):
            self._product(node, fn, scale)
        else:
            raise self._unknown(node)

    def _product(self, node: Node, fn: str, scale: Scale) -> None:
        """A matrix times a factor, or an identity matrix times its diagonal."""
        a, b = node.operands
        for matrix, factor in ((a, b), (b, a)) if fn == "mul" else ((a, b),):
            names = {*self.body[factor].type.names}
            if not names & set(self.sides):
                self.add(matrix, scale.by(fn, factor))
                return
            identity = fn == "mul" and self._is_identity(matrix)
            if identity and not set(self.sides) <= names:
                self.diagonals.append(Diagonal(factor, scale))
                return
        raise self._unknown(node)

    def _is_identity(self, id: int) -> bool:
        node = self.body[id]
        return isinstance(node.op, ir.Delta) and {*node.type.names} == {*self.sides}

    def _unknown(self, node: Node) -> Indefinite:
        what = f"the matrix is not a sum of `{self.own}` and diagonal ones"
        return Indefinite(node.id, what)


# --- symmetric and positive definite ---------------------------------------------------------


def _check_state(
    form: NormalForm, own: StateForm, known: Mapping[int, Interval], initial: Interval
) -> None:
    """The state is a sum of s * x x^T with s >= 0, scaled by decays >= 0."""
    name = own.state
    if len(own.key) != 1 or len(own.value) != 1 or len(own.steps) != 1:
        raise Indefinite(None, f"`{name}` is no matrix with one write a token")
    if (initial.low, initial.high) != (0, 0):
        raise Indefinite(None, f"`{name}` does not begin as 0")
    (key,), (value,), (step,) = own.key, own.value, own.steps
    table, sides = Table(form.atoms), {key.name, value.name}
    if table.names(step.decay) & sides:
        raise Indefinite(None, f"the decay of `{name}` differs between its rows or its columns")
    if not _interval(table, step.decay, known).nonnegative:
        raise Indefinite(None, f"the decay of `{name}` may be negative")
    for term in step.terms:
        twin = table.rename(term.x, {key.name: value})
        strength = sympy.cancel(term.c / twin)
        even = sympy.expand(strength * twin - term.c) == 0
        if term.w != 0 or not even or table.names(strength) & sides:
            raise Indefinite(None, f"`{name}` is not symmetric: a write is no multiple of x x^T")
        if not _interval(table, strength, known).nonnegative:
            raise Indefinite(None, f"`{name}` may be indefinite: a write may be negative")


def _interval(table: Table, expr: sympy.Expr, known: Mapping[int, Interval]) -> Interval:
    """The interval of an expression of a normal form."""
    if isinstance(expr, sympy.Symbol) and expr in table.atoms:
        atom = table.atoms[expr]
        there = ANY if atom.node is None else known.get(atom.node, ANY)
        return UNIT if atom.kind == "choice" else there
    if isinstance(expr, sympy.Add | sympy.Mul):
        total, step = (ZERO, add) if isinstance(expr, sympy.Add) else (ONE, mul)
        for arg in expr.args:
            total = step(total, _interval(table, arg, known))
        return total
    if isinstance(expr, sympy.Pow) and table.symbols(expr):
        base, exponent = (_interval(table, arg, known) for arg in expr.args)
        return power(base, exponent)
    return number_interval(expr, {})


def _check_definite(system: System, known: Mapping[int, Interval]) -> None:
    """No share is subtracted, and what is added to the diagonal is positive."""
    for share in system.shares:
        if not share.scale.interval(ONE, known).nonnegative:
            raise Indefinite(system.node, f"a multiple of `{share.state}` may be negative")
    total = ZERO
    for each in system.diagonals:
        value = ONE if each.value is None else known[each.value]
        total = add(total, each.scale.interval(value, known))
    if not total.positive:
        reason = "nothing positive is added to the diagonal of the matrix"
        raise Indefinite(system.node, reason)


def in_system(body: Graph, id: int) -> bool:
    """Whether a value goes into the matrix of a system."""
    return any(isinstance(body[user].op, ir.Solve) for user in body.descendants(id))

"""Polynomials of a body -> the micro-steps of one state, not yet by role of axes.

Each version of the state is a polynomial over the version before: what scales it, what reads it
and writes the result back, and what is written as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.refusal import Refusal
from archc.recurrence.affine.atoms import Atom, Table, total
from archc.recurrence.affine.polynomials import Reading, coefficient
from archc.recurrence.analysis.degree import LINEAR, Degree

MOST_STEPS = 16
"""Micro-steps of one token."""

MOST_READINGS = 40
"""Versions of a state, with those that only outputs read."""


class Refused(Exception):
    """There is no normal form; caught by the pass, which hands the refusal on as a value."""

    def __init__(
        self, reason: str, help: str = "", node: int | None = None, code: str = "E0607"
    ) -> None:
        super().__init__(reason)
        self.refusal = Refusal(node, reason, help, code)


@dataclass(frozen=True)
class StateSum:
    """`scale` times the sum over `axes` (names of the state's) of covector * version. A dense one
    has a matrix as covector, whose axis `column` is summed in place of its only axis in `axes`."""

    version: str
    scale: sympy.Expr
    covector: sympy.Expr
    axes: tuple[str, ...]
    column: Axis | None = None


@dataclass(frozen=True)
class Raw:
    """One micro-step: decay * S_prev + corrections + written."""

    decay: sympy.Expr
    corrections: tuple[StateSum, ...]
    written: sympy.Expr


@dataclass(frozen=True)
class Chain:
    """A state's micro-steps, and the version that each starts from (`S@0`, ...) and ends as."""

    reading: Reading
    steps: tuple[Raw, ...]
    versions: tuple[str, ...]


def read_body(
    recurrence: ir.Recurrence, degrees: Mapping[int, Degree], table: Table, update: int | None
) -> Reading:
    """The body's polynomials; the value of the node `update` is a version in them."""
    versions: list[sympy.Expr] = []
    while len(versions) <= MOST_READINGS:
        reading = Reading(recurrence, degrees, table, versions)
        reading.run()
        last = reading.values.get(update) if update is not None else None
        if reading.found is not None:
            versions.append(reading.found)
        elif last is not None and not _is_version(table, last):
            versions.append(last)
        else:
            return reading
    reason = f"a token is more than {MOST_STEPS} micro-steps"
    raise Refused(reason, "write fewer factors", code="E0605")


def _is_version(table: Table, value: sympy.Expr) -> bool:
    """Whether a polynomial is one version of a state and nothing else."""
    return isinstance(value, sympy.Symbol) and table.atoms[value].kind == "state"


def chain(
    recurrence: ir.Recurrence, degrees: Mapping[int, Degree], table: Table, state: ir.State
) -> Chain:
    """The micro-steps of a state that no other state of its component feeds."""
    update = recurrence.body.outputs[state.name]
    if degrees[update].kind != LINEAR:
        reading = read_body(recurrence, degrees, table, None)
        raw = Raw(sympy.Integer(0), (), reading.constant(update))
        return Chain(reading, (raw,), (f"{state.name}@0", ""))
    reading = read_body(recurrence, degrees, table, update)
    if update not in reading.values:
        raise Refused(reading.broken[update], node=update)
    forms = {f"{state.name}@{i}": form for form, i in reading.versions.items()}
    (head,) = table.states(reading.values[update])
    steps, versions = list[Raw](), [head]
    while versions[0] in forms:
        value, before = _over_one(table, forms, versions[0], state)
        steps.insert(0, _raw(table, value, before, state))
        versions.insert(0, before)
    if not steps:
        return Chain(reading, (Raw(sympy.Integer(1), (), sympy.Integer(0)),), (head, ""))
    if len(steps) > MOST_STEPS:
        reason = f"a token is {len(steps)} micro-steps, at most {MOST_STEPS} are chunked"
        raise Refused(reason, "write fewer factors", code="E0605")
    return Chain(reading, tuple(steps), tuple(versions))


def _over_one(
    table: Table, forms: Mapping[str, sympy.Expr], head: str, state: ir.State
) -> tuple[sympy.Expr, str]:
    """The polynomial of a version over only one other: later ones are written out."""
    value = forms[head]
    while True:
        held = sorted(table.states(value), key=lambda name: int(name.rpartition("@")[2]))
        if len(held) == 1:
            return value, held[0]
        if not held:
            raise Refused("nothing of the state is kept, after it was read", "leave the read out")
        value = unrolled(table, value, held[-1], forms[held[-1]], state)


def unrolled(
    table: Table, value: sympy.Expr, head: str, form: sympy.Expr, state: ir.State
) -> sympy.Expr:
    """A polynomial in which a version of the state is written out."""
    result = []
    for term in sympy.Add.make_args(value):
        _, factors = table.split(term)
        held = [s for s in factors if head in table.atoms[s].states]
        if not held:
            result.append(term)
            continue
        atom = table.atoms[held[0]]
        if atom.kind == "state":
            inner = _as(table, form, state.axes, atom.axes)
        else:
            inner = _summed(table, atom, head, form, state)
        result.append(table.times(term / held[0], inner))
    return total(result)


def _as(table: Table, value: sympy.Expr, own: Sequence[Axis], new: Sequence[Axis]) -> sympy.Expr:
    return table.rename(value, {a.name: b for a, b in zip(own, new, strict=True)})


def _summed(table: Table, atom: Atom, head: str, form: sympy.Expr, state: ir.State) -> sympy.Expr:
    """A sum against a version, with the version written out."""
    names = {a.name: a.renamed(f"@{i}") for i, a in enumerate(atom.bound)}
    rest, version = inside(table, atom, head)
    axes = [names.get(axis.name, axis) for axis in version.axes]
    product = table.times(table.rename(rest, names), _as(table, form, state.axes, axes))
    return table.sum(product, list(names.values()))


def inside(table: Table, atom: Atom, head: str) -> tuple[sympy.Expr, Atom]:
    """The factor of a version of the state in a sum, and the version."""
    _, factors = table.split(atom.args[0])
    symbol = next(s for s in factors if table.atoms[s].kind == "state")
    return atom.args[0] / symbol, table.atoms[symbol]


def _raw(table: Table, value: sympy.Expr, head: str, state: ir.State) -> Raw:
    """A micro-step from its polynomial over one version."""
    direct = table.state(head, state.axes)
    decay, written = coefficient(table, value, direct), coefficient(table, value, None)
    corrections, renamed = state_sums(table, value, state)
    if renamed:
        raise Refused("the state is read along one axis and written back along another")
    turned = [s for s in table.symbols(value) if table.atoms[s].kind == "state" and s != direct]
    if turned:
        raise Refused("the state enters its update with its axes turned")
    return Raw(_chosen(table, decay), corrections, written)


def _chosen(table: Table, decay: sympy.Expr) -> sympy.Expr:
    """A decay that has one value where a bool holds, and another elsewhere, is one symbol."""
    for symbol in table.symbols(decay):
        atom = table.atoms[symbol]
        if atom.kind != "choice" or table.is_not(atom.args[0]):
            continue
        other = table.choice(table.fn("not", atom.args[0]))
        a, b = (coefficient(table, decay, s) for s in (symbol, other))
        rest = decay - sympy.expand(symbol * a) - sympy.expand(other * b)
        if a != 0 and b != 0:
            chosen = a if a == b else table.fn("where", atom.args[0], a, b)
            return _chosen(table, sympy.expand(rest) + chosen)
    return decay


def state_sums(
    table: Table, value: sympy.Expr, state: ir.State
) -> tuple[tuple[StateSum, ...], dict[str, Axis]]:
    """The sums against the state in a polynomial, and the state's axes that go by other names."""
    found, renamed = list[StateSum](), dict[str, Axis]()
    for term in sympy.Add.make_args(value):
        _, factors = table.split(term)
        for symbol in factors:
            atom = table.atoms[symbol]
            if atom.kind == "sum" and atom.states:
                one, other = _state_sum(table, atom, term / symbol, state)
                found.append(one)
                if any(renamed.get(name, axis) != axis for name, axis in other.items()):
                    raise Refused("one value reads the state along different axes")
                renamed |= other
    return tuple(found), renamed


def state_axis(state: ir.State, name: str) -> Axis:
    """An axis of the state."""
    return next(axis for axis in state.axes if axis.name == name)


def _state_sum(
    table: Table, atom: Atom, scale: sympy.Expr, state: ir.State
) -> tuple[StateSum, dict[str, Axis]]:
    """One sum against the state. Axes that the covector alone has are summed first."""
    (head,) = atom.states
    rest, version = inside(table, atom, head)
    bound = {axis.name: axis for axis in atom.bound}
    pairs = list(zip(version.axes, state.axes, strict=True))
    gone = {here.name: own for here, own in pairs if here.name in bound}
    renamed = {own.name: here for here, own in pairs if here.name not in bound and here != own}
    back = {here.name: state_axis(state, name) for name, here in renamed.items()}
    left = [axis for name, axis in bound.items() if name not in gone]
    held = {name: bound[name].renamed(f"@{name}") for name in gone}  # no name that a sum may take
    gone = {held[name].name: own for name, own in gone.items()}
    rest = table.rename(rest, held)
    rest = table.rename(table.sum(rest, left) if left else rest, back)
    names, column = tuple(own.name for own in gone.values()), None
    if any(own.name in table.names(rest) for own in gone.values()):
        if len(gone) > 1:
            raise Refused("a matrix mixes several axes of the state")
        (own,) = gone.values()
        column = own.renamed(f"{own.name}*")
        gone = {next(iter(gone)): column}
    covector = table.rename(rest, gone)
    return StateSum(head, table.rename(scale, back), covector, names, column), renamed

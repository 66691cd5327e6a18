"""Matrix states that scale one another by numbers, and are corrected and read by vectors, as one
form.

A memory with momentum is one: S[t] = eta S[t-1] - k (M[t-1]^T k - v)^T, M[t] = alpha M[t-1] + S[t].
Over the states before the token, S_i = sum over j of blocks[i][j] S_j[t-1] + what is written, and
all that is written is a sum of products x * (c + sum over j of w_j . S_j[t-1]).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.recurrence.affine import form as nf
from archc.recurrence.affine.atoms import Table, TooLong, total
from archc.recurrence.affine.axis_roles import (
    Roles,
    content,
    own_axes,
    scaled_by_value,
    side_of,
    written_apart,
)
from archc.recurrence.affine.chain import Chain, Raw, Refused, StateSum, read_body, state_sums
from archc.recurrence.affine.polynomials import Reading, coefficient
from archc.recurrence.affine.ranks import with_rank
from archc.recurrence.affine.reads import RawRead, Walk
from archc.recurrence.analysis.degree import OTHER, Degree, updates

ONE, ZERO = sympy.Integer(1), sympy.Integer(0)

HELP = "let each state feed the next one only, or run it token by token"

Row = tuple[sympy.Expr, list[sympy.Expr]]
"""c, and a covector of each state."""


@dataclass(frozen=True)
class _Update:
    """A state after the token: numbers times states before it, and what is written to it."""

    blocks: tuple[sympy.Expr, ...]
    raw: Raw


def linked(
    recurrence: ir.Recurrence, linear: Mapping[int, Degree], states: tuple[str, ...]
) -> nf.NormalForm:
    """The form of states that scale one another by numbers. Raises Refused, and TooLong."""
    table = Table()
    every = {state.name: state for state in recurrence.states}
    own = [every[name] for name in states]
    first = own[0]
    if any(state.axes != first.axes for state in own):
        raise Refused("states of different axes feed one another", HELP)
    reading = read_body(recurrence, linear, table, None)
    rows = [_update(recurrence, reading, own, state) for state in own]
    reads, whole = _reads(recurrence, linear, table, own)
    sums = [each for row in rows for each in row.raw.corrections]
    sums += [each for read in reads for each in read.queries]
    roles = _roles(recurrence, first, sums)
    raws, rank = _opened(recurrence, table, first, roles, [row.raw for row in rows], reads)
    turn = turn_of(table, roles, [row.blocks for row in rows])
    if turn is None or rank is not None:
        _check_numbers(table, roles, [entry for row in rows for entry in row.blocks])
        turn = None
    terms = _terms(table, roles, raws, [f"{name}@0" for name in states], turn is not None, rank)
    links = nf.Links(
        tuple(axis for axis in first.axes if axis.name in roles.key),
        tuple(axis for axis in first.axes if axis.name in roles.value),
        tuple(terms),
        tuple(_read(states, read) for read in reads),
        tuple(whole),
        turn,
        rank,
    )
    blocks = tuple(row.blocks for row in rows)
    return nf.NormalForm(nf.LINKED, states, (), table.atoms, None, blocks, links)


def turn_of(table: Table, roles: Roles, blocks: Sequence[Sequence[sympy.Expr]]) -> nf.Turn | None:
    """The turn that a block matrix is: a circle of two states, or no state into another with a gate
    for each channel, or with none at all."""
    sizes = tuple(row[place] for place, row in enumerate(blocks))
    others = [entry for p, row in enumerate(blocks) for q, entry in enumerate(row) if p != q]
    held = {side_of(table, roles, s) for row in blocks for e in row for s in table.symbols(e)}
    if held - {"key", "scalar"}:
        return None
    if not any(others):
        return nf.Turn(sizes, ZERO) if "key" in held or {*sizes} == {ONE} else None
    if len(blocks) != 2 or sizes[0] != sizes[1] or sympy.expand(others[0] + others[1]) != 0:
        return None
    for cos in (s for s in table.symbols(sizes[0]) if table.atoms[s].fn == "cos"):
        (angle,) = table.atoms[cos].args
        sin, size = table.fn("sin", angle), coefficient(table, sizes[0], cos)
        if sympy.expand(size * cos - sizes[0]) == 0:
            for sign in (1, -1):
                if sympy.expand(others[1] - sign * size * sin) == 0:
                    return nf.Turn((size, size), sign * angle)
    return None


def _update(
    recurrence: ir.Recurrence, reading: Reading, own: Sequence[ir.State], state: ir.State
) -> _Update:
    """The update of one state, over the states before the token."""
    table, id = reading.table, recurrence.body.outputs[state.name]
    degree = reading.degrees[id]
    if degree.kind == OTHER:
        raise Refused(degree.why, HELP, degree.culprit)
    if id in reading.broken:
        raise Refused(reading.broken[id], HELP, id)
    value = reading.constant(id)
    symbols = [table.state(f"{each.name}@0", each.axes) for each in own]
    if [s for s in reading.whole(value) if s not in symbols]:
        raise Refused("the state enters its update with its axes turned", "", id)
    sums, renamed = state_sums(table, value, state)
    if renamed:
        raise Refused("states that feed one another are mixed along an axis of theirs", HELP, id)
    blocks = tuple(coefficient(table, value, symbol) for symbol in symbols)
    return _Update(blocks, Raw(ZERO, sums, coefficient(table, value, None)))


def _reads(
    recurrence: ir.Recurrence,
    linear: Mapping[int, Degree],
    table: Table,
    own: Sequence[ir.State],
) -> tuple[list[RawRead], list[int]]:
    """The sums against states that other values of the body are, before the token and after it, and
    the nodes that take a state whole."""
    body, names = recurrence.body, {state.name for state in own}
    after = {id: name for name, id in updates(recurrence).items() if name in names}
    reading = Reading(recurrence, linear, table, written=after)
    reading.run()
    known = tuple(f"{name}@{version}" for name in sorted(names) for version in (0, 1))
    walk = Walk(recurrence, own[0], Chain(reading, (), known), table)
    every = {state.name for state in recurrence.states}
    for name, id in body.outputs.items():
        if name in names:
            continue
        if id in after:
            walk.whole.append(id)
        elif name in every:
            walk.update(id)
        else:
            walk.visit(id)
    return sorted(walk.reads, key=lambda read: read.node), sorted(set(walk.whole))


def _roles(recurrence: ir.Recurrence, state: ir.State, sums: Sequence[StateSum]) -> Roles:
    """The axes that sums go along are key axes, the other ones that are no heads value axes."""
    keys = {frozenset(each.axes) for each in sums}
    if len(keys) != 1:
        raise Refused("states that feed one another are read along different axes", HELP)
    (key,) = keys
    own = [a.name for a in state.axes if a.kind == "dim" and a.name not in recurrence.heads]
    value = frozenset(own) - key
    if key <= frozenset(own) and not value:
        raise Refused("states that feed one another are mixed along an axis of theirs", HELP)
    if not key <= frozenset(own):
        raise Refused("states that feed one another are read by a sum in their updates", HELP)
    return Roles(key, value)


def _opened(
    recurrence: ir.Recurrence,
    table: Table,
    state: ir.State,
    roles: Roles,
    raws: Sequence[Raw],
    reads: Sequence[RawRead],
) -> tuple[Sequence[Raw], Axis | None]:
    """What is written to all states with its sums opened along a rank, if it has such."""
    exprs = [e for read in reads for each in read.queries for e in (each.covector, each.scale)]
    taken = {name for expr in exprs for name in table.names(expr)}
    found = with_rank(table, state, raws, roles.key, own_axes(recurrence, state), taken)
    if found is None and any(each.column is not None for raw in raws for each in raw.corrections):
        raise Refused("states that feed one another are mixed along an axis of theirs", HELP)
    return (raws, None) if found is None else found


def _check_numbers(table: Table, roles: Roles, entries: Sequence[sympy.Expr]) -> None:
    """Refuse factors of states that are not a number for each head."""
    if any(side_of(table, roles, s) != "scalar" for e in entries for s in table.symbols(e)):
        raise Refused("states that are corrected scale one another element by element", HELP)


# --- terms ---------------------------------------------------------------------------------------


def _terms(
    table: Table,
    roles: Roles,
    rows: Sequence[Raw],
    names: Sequence[str],
    turned: bool,
    rank: Axis | None,
) -> list[nf.LinkedTerm]:
    """The terms written to all states, by product: those of several states that differ by a number
    are one; `turned`: or by what they are written along. What differs by row is no number."""
    sides = roles if rank is None else Roles(roles.key, roles.value | {rank.name})
    found: dict[tuple[sympy.Expr, ...], dict[int, sympy.Expr]] = {}
    for place, row in enumerate(rows):
        for x, (c, reads) in _written(table, roles, row, names).items():
            parts = (c, *reads)
            lead = next((part for part in parts if part != 0), None)
            if lead is None:
                continue
            scale = content(table, sides, lead, parts)
            bare = tuple(sympy.expand(part / scale) for part in parts)
            along, number = (ONE, x * scale) if turned else (x, scale)
            own = found.setdefault((along, *bare), {})
            own[place] = own.get(place, ZERO) + sympy.expand(number)
    return [_term(table, key, scales, len(rows)) for key, scales in found.items()]


def _term(
    table: Table, parts: tuple[sympy.Expr, ...], scales: Mapping[int, sympy.Expr], count: int
) -> nf.LinkedTerm:
    """A term, with a number that all states have in common in the row that they are written."""
    x, c, *reads = parts
    common = ONE
    if x != ONE and len(set(scales.values())) == 1:
        common = next(iter(scales.values()))
        scales = dict.fromkeys(scales, ONE)
    return nf.LinkedTerm(
        x,
        table.times(common, c),
        tuple(table.times(common, read) for read in reads),
        tuple(scales.get(place, ZERO) for place in range(count)),
    )


def _written(table: Table, roles: Roles, row: Raw, names: Sequence[str]) -> dict[sympy.Expr, Row]:
    """The rows that are written to one state, by the vectors that they are written along."""
    found: dict[sympy.Expr, Row] = {}

    def at(x: sympy.Expr) -> Row:
        return found.setdefault(x, (ZERO, [ZERO] * len(names)))

    for term in sympy.Add.make_args(row.written) if row.written != 0 else ():
        x, rest = written_apart(table, roles, term)
        c, reads = at(x)
        found[x] = (c + rest, reads)
    for each in row.corrections:
        for term in sympy.Add.make_args(each.scale):
            x, rest = written_apart(table, roles, term)
            if any(side_of(table, roles, s) == "value" for s in table.symbols(rest)):
                raise scaled_by_value()
            reads = at(x)[1]
            place = names.index(each.version)
            reads[place] = total([reads[place], table.times(rest, each.covector)])
    return found


def by_numbers(form: nf.NormalForm) -> nf.NormalForm | None:
    """Matrices that a number for each head scales, as linked states: then the number need have no
    logarithm, and may be negative or more than 1. None if they are not only scaled so."""
    table, first = Table(form.atoms), form.forms[0]
    sides = Roles(frozenset(a.name for a in first.key), frozenset(a.name for a in first.value))
    step, several = first.steps[0], len(first.steps) > 1
    decay, count = step.decay, len(form.forms)
    wide = any(side_of(table, sides, s) != "scalar" for s in table.symbols(decay))
    if several or wide:
        return None
    terms, reads = list[nf.LinkedTerm](), list[nf.LinkedRead]()
    for place, each in enumerate(form.forms):
        found = [_number_read(table, sides, place, decay, read) for read in each.reads]
        if any(read is None for read in found):
            return None
        reads += [read for read in found if read is not None]
        for term in each.steps[0].terms:
            w = table.times(decay, term.w) if term.after else term.w
            own = [w if other == place else ZERO for other in range(count)]
            writes = [ONE if other == place else ZERO for other in range(count)]
            if term.c != 0 or w != 0:
                terms.append(nf.LinkedTerm(term.x, term.c, tuple(own), tuple(writes)))
    whole = tuple(node for each in form.forms for node in each.whole)
    links = nf.Links(first.key, first.value, tuple(terms), tuple(reads), whole, None, step.rank)
    blocks = [[decay if p == q else ZERO for q in range(count)] for p in range(count)]
    return nf.NormalForm(
        nf.LINKED, form.states, (), table.atoms, None, tuple(map(tuple, blocks)), links
    )


def _number_read(
    table: Table, sides: Roles, place: int, decay: sympy.Expr, read: nf.Read
) -> nf.LinkedRead | None:
    """A read of a state that a number scales; None if it sums over more than the key axes."""
    if any(frozenset(part.axes) != sides.key for part in read.parts):
        return None
    parts = []
    for part in read.parts:
        scale = table.times(decay, part.scale) if part.when == nf.AFTER else part.scale
        parts.append(nf.LinkedPart(place, part.when == nf.WRITTEN, part.covector, scale))
    return nf.LinkedRead(read.node, tuple(parts), read.free, read.renamed)


def _read(states: Sequence[str], read: RawRead) -> nf.LinkedRead:
    """A read, with the states by their places."""
    parts = []
    for each in read.queries:
        name, version = each.version.rsplit("@", 1)
        parts.append(nf.LinkedPart(states.index(name), version == "1", each.covector, each.scale))
    return nf.LinkedRead(read.node, tuple(parts), read.free, tuple(sorted(read.renamed.items())))


__all__ = ["TooLong", "by_numbers", "linked"]

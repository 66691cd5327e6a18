"""Micro-steps of a state -> the same with each axis in its role: key, value or shared.

Key axes are summed by the corrections (without any, by the reads). The other axes are value axes,
unless something on the key side varies along them too: then they are batch-like.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.recurrence.affine.atoms import Factors, Table, product, total
from archc.recurrence.affine.chain import Chain, Raw, Refused, StateSum
from archc.recurrence.affine.form import DENSE, DIAGONAL, MATRIX, Step, Term
from archc.recurrence.affine.ranks import with_rank

ONE, ZERO = sympy.Integer(1), sympy.Integer(0)

Names = frozenset[str]


@dataclass(frozen=True)
class Roles:
    """Names of a state's axes by role."""

    key: Names
    value: Names


@dataclass(frozen=True)
class Sides:
    """A chain by the role of its axes."""

    kind: str
    roles: Roles
    steps: tuple[Step, ...]


def sides(
    recurrence: ir.Recurrence,
    state: ir.State,
    found: Chain,
    table: Table,
    reads: Sequence[StateSum],
    ranks: bool = True,
) -> Sides:
    """The micro-steps of a state by roles, and their kind; `ranks`: sums are opened along one."""
    ranked = _ranked(recurrence, state, found, table, reads) if ranks else None
    steps, rank = ranked or (found.steps, None)
    if any(each.column is not None for raw in steps for each in raw.corrections):
        return _dense(found)
    corrections = [each for raw in steps for each in raw.corrections]
    key = _key(recurrence, state, steps, corrections, reads)
    if key is None:
        return _diagonal(found)
    roles = _roles(recurrence, state, table, key, steps, [*corrections, *reads])
    if not corrections and not _separable(table, roles, steps):
        return _diagonal(found)
    made = tuple(_step(table, roles, raw, rank) for raw in steps)
    if rank is not None and any(_is_early(table, roles, step) for step in made):
        return sides(recurrence, state, found, table, reads, ranks=False)
    return Sides(MATRIX, roles, made)


def _ranked(
    recurrence: ir.Recurrence,
    state: ir.State,
    found: Chain,
    table: Table,
    reads: Sequence[StateSum],
) -> tuple[tuple[Raw, ...], Axis] | None:
    """The only micro-step of a token with its sums opened along a rank, if it has such."""
    raw, *more = found.steps
    if more:
        return None
    key = _key(recurrence, state, found.steps, raw.corrections, reads)
    if key is None:
        return None
    exprs = [each for read in reads for each in (read.covector, read.scale)]
    read_along = {name for expr in exprs for name in table.names(expr)}
    return with_rank(table, state, found.steps, key, own_axes(recurrence, state), read_along)


def _is_early(table: Table, roles: Roles, step: Step) -> bool:
    """Whether a correction reads the state before it decays by channels: between what a row reads
    and what it writes there would be the decay of its token, for all rows of it."""
    wide = any(side_of(table, roles, s) != "scalar" for s in table.symbols(step.decay))
    return wide and any(term.w != 0 and not term.after for term in step.terms)


def _two_sided() -> Refused:
    """The refusal of a correction that reads the state before a decay along the values."""
    return Refused(
        "the decay varies along the value side, and the correction reads the state before it: every"
        " value would need its own triangular system",
        "let the correction read the decayed state, or the decay be along the axis that it sums"
        " over, or a scalar",
        code="E0603",
    )


def _dense(found: Chain) -> Sides:
    """A matrix along an axis of the state."""
    if len(found.steps) > 1:
        raise Refused("a matrix along an axis of the state, and corrections to it")
    raw = next(iter(found.steps))
    columns = {each.column for each in raw.corrections}
    if len(columns) > 1:
        raise Refused("a matrix along an axis of the state, and corrections to it")
    (each, *_), (column,) = raw.corrections, columns
    assert column is not None
    matrix = total(each.scale * each.covector for each in raw.corrections)
    terms = (Term(ONE, raw.written, ZERO, True),) if raw.written != 0 else ()
    step = Step(raw.decay, raw.decay, ONE, terms, matrix, each.axes[0], column)
    return Sides(DENSE, Roles(frozenset(each.axes), frozenset()), (step,))


def _diagonal(found: Chain) -> Sides:
    """Elementwise: everything is batch-like."""
    raw = next(iter(found.steps))
    terms = (Term(ONE, raw.written, ZERO, True),) if raw.written != 0 else ()
    return Sides(
        DIAGONAL, Roles(frozenset(), frozenset()), (Step(raw.decay, raw.decay, ONE, terms),)
    )


def own_axes(recurrence: ir.Recurrence, state: ir.State) -> list[str]:
    """The axes of a state that are no copies of it."""
    return [a.name for a in state.axes if a.kind == "dim" and a.name not in recurrence.heads]


def _key(
    recurrence: ir.Recurrence,
    state: ir.State,
    steps: Sequence[Raw],
    corrections: Sequence[StateSum],
    reads: Sequence[StateSum],
) -> Names | None:
    """The key axes; None where nothing is summed and the state has not two axes of its own."""
    summed = list(dict.fromkeys(frozenset(each.axes) for each in corrections))
    if len(summed) > 1:
        raise Refused(
            "corrections read the state along different axes",
            "correct along one axis of the state",
        )
    if summed:
        return summed[0]
    if reads:  # one that sums over more is the sum of one that does not
        return frozenset(min((each.axes for each in reads), key=len))
    inner = own_axes(recurrence, state)
    return frozenset(inner[:1]) if len(inner) > 1 and len(steps) <= 1 else None


def _roles(
    recurrence: ir.Recurrence,
    state: ir.State,
    table: Table,
    key: Names,
    steps: Sequence[Raw],
    queries: Sequence[StateSum],
) -> Roles:
    """Axes that are neither key nor copies are value axes, if the key side does not vary there."""
    mixed: set[str] = set()
    corrected = any(raw.corrections for raw in steps)
    for each in queries:
        if set(each.axes) == key:
            mixed |= table.names(each.covector)
    for raw in steps if corrected else ():
        exprs = [raw.decay, *(each.scale for each in raw.corrections), raw.written]
        for symbol in (s for expr in exprs for s in table.symbols(expr)):
            names = set(table.atoms[symbol].names)
            mixed |= names if names & key else set()
    inner = own_axes(recurrence, state)
    return Roles(key, frozenset(name for name in inner if name not in key | mixed))


def _separable(table: Table, roles: Roles, steps: Sequence[Raw]) -> bool:
    """Whether decays and writes are products of a key side and a value side."""
    for raw in steps:
        if _parted(table, roles, raw.decay) is None:
            return False
        for term in sympy.Add.make_args(raw.written):
            if any(side_of(table, roles, s) == "both" for s in table.symbols(term)):
                return False
    return True


def side_of(table: Table, roles: Roles, symbol: sympy.Symbol) -> str:
    """key, value, both, or scalar: what a symbol varies along."""
    names = set(table.atoms[symbol].names)
    key, value = bool(names & roles.key), bool(names & roles.value)
    return "both" if key and value else "key" if key else "value" if value else "scalar"


def _parted(table: Table, roles: Roles, decay: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
    """A decay as the product of its key side (scalars with it) and its value side."""
    held = {side_of(table, roles, s) for s in table.symbols(decay)}
    if "both" in held:
        return None
    if not {"key", "value"} <= held or not isinstance(decay, sympy.Add):
        return _lone(table, roles, decay, held)
    sorts: dict[str, sympy.Expr] = {"key": ONE, "value": ONE}
    for factor in sympy.Mul.make_args(factored(table, decay)):
        sort = {side_of(table, roles, s) for s in table.symbols(factor)}
        if {"key", "value"} <= sort:
            return None
        sorts["value" if "value" in sort else "key"] *= factor
    return sympy.expand(sorts["key"]), sympy.expand(sorts["value"])


def factored(table: Table, gate: sympy.Expr) -> sympy.Expr:
    """1 - a - u + a u -> (1 - a) (1 - u); what is no product stays as it is."""
    if not isinstance(gate, sympy.Add):
        return gate
    try:
        number, factors, *_ = sympy.factor_list(gate)
    except sympy.PolynomialError:  # a power below 0
        return gate
    found: list[sympy.Expr] = [number]
    for factor, power in factors:
        sign = -1 if _negative(table, factor) else 1  # (a - 1) (u - 1) is (1 - a) (1 - u)
        found += [sympy.Integer(sign) ** power, sympy.expand(sign * factor) ** power]
    return sympy.Mul(*found)


def _negative(table: Table, factor: sympy.Expr) -> bool:
    """Whether the number of a sum, or else of its first product, is below 0."""
    terms = [table.split(term) for term in sympy.Add.make_args(factor)]
    lead = min(terms, key=lambda term: table.text(product(1, term[1])))
    lead = next((term for term in terms if not term[1]), lead)
    return lead[0].could_extract_minus_sign()


def _lone(
    table: Table, roles: Roles, decay: sympy.Expr, held: Collection[str]
) -> tuple[sympy.Expr, sympy.Expr]:
    """A decay that varies along one side at most; scalars of a product stand with the key side."""
    if "value" not in held:
        return decay, ONE
    if isinstance(decay, sympy.Add):
        return ONE, decay
    number, factors = table.split(decay)
    value = {s: p for s, p in factors.items() if side_of(table, roles, s) == "value"}
    key = {s: p for s, p in factors.items() if s not in value}
    return product(number, key), product(1, value)


def read_apart(
    table: Table, covector: sympy.Expr, axes: Collection[str], key: Collection[str]
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """A covector over `axes`, some of which are no key axes, as one of the key side times weights
    of the other; None if it is no such product."""
    if {*axes} == {*key}:
        return covector, ONE
    if not {*key} <= {*axes} or isinstance(covector, sympy.Add):
        return None
    number, factors = table.split(covector)
    inner = {s: p for s, p in factors.items() if {*table.atoms[s].names} & {*key}}
    outer = {s: p for s, p in factors.items() if s not in inner}
    if not inner or any({*table.atoms[s].names} & ({*axes} - {*key}) for s in inner):
        return None
    return product(number, inner), product(1, outer)


# --- terms ---------------------------------------------------------------------------------------


def scaled_by_value() -> Refused:
    """The refusal of a correction that is stronger for some values than for others."""
    return Refused(
        "a correction is scaled along the value side: every value would need its own triangular"
        " system",
        "scale all values alike, `beta * (v - S.T @ k)`, or what is written alone,"
        " `beta * (g * v - S.T @ k)`",
    )


def _step(table: Table, roles: Roles, raw: Raw, rank: Axis | None) -> Step:
    """A micro-step with its terms grouped by what they write along."""
    parted = _parted(table, roles, raw.decay)
    if parted is None:
        raise Refused("the decay of a corrected state varies along both its sides", code="E0603")
    key, value = parted
    rows: dict[sympy.Expr, list[sympy.Expr]] = {}
    for term in sympy.Add.make_args(raw.written) if raw.written != 0 else ():
        x, rest = written_apart(table, roles, term)
        rows.setdefault(x, [ZERO, ZERO])[0] += rest
    for covector, scale in _after_values(table, raw.corrections, value):
        for term in sympy.Add.make_args(scale):
            x, rest = written_apart(table, roles, term)
            if any(side_of(table, roles, s) == "value" for s in table.symbols(rest)):
                raise scaled_by_value()
            rows.setdefault(x, [ZERO, ZERO])[1] += table.times(rest, covector)
    groups = _merged(table, roles, [(x, c, w) for x, (c, w) in rows.items()])
    terms = [_term(table, key, *group) for group in groups]
    ordered = tuple(sorted(terms, key=lambda t: table.text(t.x)))
    return Step(raw.decay, key, value, ordered, rank=rank)


def _after_values(
    table: Table, corrections: Sequence[StateSum], value: sympy.Expr
) -> list[tuple[sympy.Expr, sympy.Expr]]:
    """The covectors of corrections with their scales; beside a decay along the values without that:
    they read the decayed state."""
    if value == 1:
        return [(each.covector, each.scale) for each in corrections]
    sums: dict[sympy.Expr, sympy.Expr] = {}
    for each in corrections:
        sums[each.covector] = sums.get(each.covector, ZERO) + each.scale
    found = [(covector, divide(table, scale, value)) for covector, scale in sums.items()]
    if any(scale is None for _, scale in found):
        raise _two_sided()
    return [(covector, scale) for covector, scale in found if scale is not None]


def written_apart(table: Table, roles: Roles, term: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
    """A product as what varies along the key axes, and the rest."""
    number, factors = table.split(term)
    key: Factors = {}
    for symbol, power in factors.items():
        side = side_of(table, roles, symbol)
        if side == "both":
            raise Refused("what is written to a corrected state is no product of two sides")
        if side == "key":
            key[symbol] = power
    rest = {s: p for s, p in factors.items() if s not in key}
    return product(1, key), product(number, rest)


def _merged(
    table: Table, roles: Roles, rows: Iterable[tuple[sympy.Expr, sympy.Expr, sympy.Expr]]
) -> list[tuple[sympy.Expr, sympy.Expr, sympy.Expr]]:
    """Rows that differ by a scalar are one: x c + y (2 c) = (x + 2 y) c."""
    found: dict[tuple[sympy.Expr, sympy.Expr], list[tuple[sympy.Expr, sympy.Expr]]] = {}
    for x, c, w in rows:
        if c == 0 and w == 0:
            continue
        scale = content(table, roles, c if c != 0 else w, (c, w))
        bare = (sympy.expand(c / scale), sympy.expand(w / scale))
        found.setdefault(bare, []).append((x, scale))
    merged = []
    for (c, w), members in found.items():
        x = total(sympy.expand(own * scale) for own, scale in members)
        scale = content(table, roles, x, (x,))
        merged.append((sympy.expand(x / scale), sympy.expand(c * scale), sympy.expand(w * scale)))
    return merged


def content(
    table: Table, roles: Roles, lead: sympy.Expr, exprs: Sequence[sympy.Expr]
) -> sympy.Expr:
    """The scalars that all products of expressions share, with the number of `lead`'s first one."""
    terms = [table.split(t) for expr in exprs if expr != 0 for t in sympy.Add.make_args(expr)]
    first = min(sympy.Add.make_args(lead), key=lambda t: table.text(product(1, table.split(t)[1])))
    number, factors = table.split(first)
    shared = {
        s: min(own.get(s, 0) for _, own in terms)
        for s in factors
        if side_of(table, roles, s) == "scalar"
    }
    return product(number, {s: p for s, p in shared.items() if p})


def _term(table: Table, decay: sympy.Expr, x: sympy.Expr, c: sympy.Expr, w: sympy.Expr) -> Term:
    """A term; a covector that holds the whole decay reads the decayed state."""
    divided = divide(table, w, decay)
    return Term(x, c, w, False) if divided is None else Term(x, c, divided, True)


def divide(table: Table, covector: sympy.Expr, decay: sympy.Expr) -> sympy.Expr | None:
    """The covector without the decay that all of it holds; None where some of it does not."""
    if decay == 1 or covector == 0:
        return covector
    if decay == 0:
        return None
    if isinstance(decay, sympy.Add):
        try:
            quotient, rest = sympy.div(covector, decay, *table.symbols(decay))
        except sympy.PolynomialError:  # a power below 0
            return None
        return sympy.expand(quotient) if rest == 0 else None
    parts = [_divided(table, term, decay) for term in sympy.Add.make_args(covector)]
    return None if any(part is None for part in parts) else total(p for p in parts if p is not None)


def _divided(table: Table, term: sympy.Expr, decay: sympy.Expr) -> sympy.Expr | None:
    """One product without the decay. Where a condition c holds, where(c, a, b) is a: a product
    with the choice of c and with a holds that decay, too."""
    if isinstance(decay, sympy.Add):
        return None
    _, factors = table.split(term)
    number, wanted = table.split(decay)
    result = term / number
    for symbol, power in wanted.items():
        atom = table.atoms[symbol]
        if factors.get(symbol, 0) >= power > 0 or factors.get(symbol, 0) <= power < 0:
            result = result / symbol**power
        elif atom.fn == "where" and table.choice(atom.args[0]) in factors and power == 1:
            inner = _divided(table, result, atom.args[1])
            if inner is None:
                return None
            result = inner
        else:
            return None
    return result

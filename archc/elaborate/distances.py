"""Distances of pairs that no attend reads, kept where a logarithm, a quotient or exp has a value.

`log(1 + c * (t - s))` of a token ahead is no number, and `exp(-c * (t - s))` may be infinite. Its
weight is 0, but the gradient of a factor of it is a sum over all pairs, and 0 times no number is
none. So `t - s`, in whatever way it is written (`1 + t - s`, `s - t`), stays within what it is of
pairs that are read, where such a function depends on it; of pairs that are read nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import sympy

from archc.dims import Axis
from archc.elaborate.reach import Linear
from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.numerics.propagation import intervals

PARTIAL = {"log": 0, "sqrt": 0, "rsqrt": 0, "pow": 0, "div": 1, "exp": 0, "exp2": 0}
"""Functions that have no value, or no finite slope, for some numbers: of which operand."""

POWERS = (ir.Elementwise("exp"), ir.Elementwise("exp2"))

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def settle(graph: Graph, reader: Axis, read: Axis, mask: int, bounds: Sequence[Linear]) -> None:
    """In the body of an attend: let no distance on which such a function depends be one of a pair
    that is not read. `bounds` are forms of the two positions that are at most 0 of pairs that are;
    `mask` is the node that says which are, and stays."""
    kept = {mask, *graph.ancestors(mask)}
    _gather(graph, (reader, read), kept)
    found = {node.id: _distance(graph, node, (reader, read)) for node in list(graph)}
    for id, form in found.items():
        inner = all(found.get(user) is not None for user in graph.users(id))
        if form is None or inner or id in kept or not _reaches(graph, id, {reader.name, read.name}):
            continue
        value, build = id, Builder(graph, graph[id].span)
        for bound in bounds:
            if (
                bound.read != -bound.reader
                or bound.read not in (1, -1)
                or not bound.rest.is_integer
            ):
                continue
            least = bound.rest  # t - s is at least that; of the other kind, at most its negative
            if bound.read == 1 and _is_summed(graph, id):
                least = sympy.Min(least, ZERO)  # a sum up to the reader has the reader in it
            edge = form.reader * bound.read * least + form.rest
            fn = "max" if form.reader * bound.read > 0 else "min"
            kept_in = build.fn(fn, value, build.number(sympy.expand(edge)))
            graph.substitute(value, kept_in)
            value = kept_in


def shield(graph: Graph, pair: tuple[Axis, Axis], mask: int) -> None:
    """In the body of an attend: let exp(c[t] - c[s]), what a product of gates is, be 1 of pairs
    that are not read, for which it may be infinite, and log(1 + c[t] - c[s]), which may have no
    value, be that of 1."""
    forms = {node.id: _linear(graph, node, pair) for node in list(graph)}
    reader, read = (axis.name for axis in pair)

    def differs(id: int) -> bool:
        """Whether a value is the difference of a reader's and a token's, or the other way."""
        signs: dict[str, set[bool]] = {reader: set(), read: set()}
        for factor, term in _terms(graph, id, forms):
            own = [name for name in signs if name in graph[term].type.names]
            if len(own) == 1 and forms.get(term) is None:
                signs[own[0]].add(bool(factor.is_negative))
        return bool(signs[reader] and signs[read]) and len(signs[reader] | signs[read]) == 2

    known: Mapping[int, Interval] = {}
    for node in list(graph):
        place = PARTIAL.get(node.op.fn) if isinstance(node.op, ir.Elementwise) else None
        if place is None or not {reader, read} <= {*node.type.names}:
            continue
        inner, steep = graph[graph[node.id].operands[place]], node.op in POWERS
        if not any(map(differs, [inner.id] if steep else [inner.id, *graph.ancestors(inner.id)])):
            continue
        known = known or intervals(graph)
        if not steep and inner.id in known and _has_value(graph, node, known[inner.id]):
            continue
        make = Builder(graph, node.span)
        operands = [*graph[node.id].operands]
        operands[place] = make.fn("where", mask, inner.id, make.number(0 if steep else 1))
        made = graph.add(node.op, *operands, name=node.name, span=node.span)
        graph.substitute(node.id, made)


def _has_value(graph: Graph, node: Node, inner: Interval) -> bool:
    """Whether a logarithm, a root, a power or a quotient has a value and a slope for all that its
    operand may be."""
    power = graph[node.operands[1]].op if node.op.fn == "pow" else None
    if isinstance(power, ir.Constant) and power.value.is_integer and power.value.is_nonnegative:
        return True
    return inner.positive or (node.op.fn == "div" and 0 not in inner)


def _gather(graph: Graph, pair: tuple[Axis, Axis], kept: set[int]) -> None:
    """Put the positions of a sum beside one another, where their terms are a distance and other
    terms stand between: `3 + r * r + t - s` is `3 + r * r + (t - s)`."""
    forms = {node.id: _linear(graph, node, pair) for node in list(graph)}
    names = {axis.name for axis in pair}
    for id, form in forms.items():
        inner = any(graph[user].op in SUMS and forms.get(user) is None for user in graph.users(id))
        if form is not None or graph[id].op not in SUMS or inner or id in kept:
            continue
        if not _reaches(graph, id, names):
            continue
        terms = list(_terms(graph, id, forms))
        placed = [(factor, each) for factor, each in terms if names & {*graph[each].type.names}
                  and forms[each] is not None]  # fmt: skip
        far = Linear(ZERO, ZERO, ZERO)
        for factor, each in placed:
            own = forms[each]
            far = far if own is None else far + own.times(factor)
        if far.read != -far.reader or far.read == 0:
            continue
        build = Builder(graph, graph[id].span)
        rest = [term for term in terms if term not in placed]
        made = build.fn("add", _added(build, rest), _added(build, placed))
        graph.substitute(id, made)


SUMS = tuple(ir.Elementwise(fn) for fn in ("add", "sub", "neg"))


def _terms(
    graph: Graph, id: int, forms: Mapping[int, Linear | None], factor: sympy.Expr = ONE
) -> Iterator[tuple[sympy.Expr, int]]:
    """The terms that a value is the sum of, each with its factor; forms of positions are not taken
    apart."""
    node = graph[id]
    if forms[id] is None and node.op in SUMS:
        last = -factor if node.op.fn in ("sub", "neg") else factor
        *first, end = node.operands
        for operand in first:
            yield from _terms(graph, operand, forms, factor)
        yield from _terms(graph, end, forms, last)
        return
    if forms[id] is None and node.op == ir.Elementwise("mul"):
        for number, inner in (node.operands, node.operands[::-1]):
            op = graph[number].op
            if isinstance(op, ir.Constant) and graph[inner].op in SUMS:
                yield from _terms(graph, inner, forms, factor * op.value)
                return
    yield factor, id


def _added(build: Builder, terms: Sequence[tuple[sympy.Expr, int]]) -> int:
    """The sum of terms."""
    total: int | None = None
    for factor, id in sorted(terms, key=lambda term: bool(term[0].is_negative)):
        less = total is not None and bool(factor.is_negative)
        own = -factor if less else factor
        value = id if own == 1 else build.fn("mul", build.number(own), id)
        total = value if total is None else build.fn("sub" if less else "add", total, value)
    assert total is not None
    return total


def _distance(graph: Graph, node: Node, pair: tuple[Axis, Axis]) -> Linear | None:
    """A multiple of the distance of a pair, and a number more."""
    form = _linear(graph, node, pair)
    if form is None or form.read != -form.reader:
        return None
    return form if form.reader.is_positive or form.reader.is_negative else None


def _linear(graph: Graph, node: Node, pair: tuple[Axis, Axis]) -> Linear | None:
    """Sums of both positions and numbers, and products of them with numbers."""
    op = node.op
    if isinstance(op, ir.Position) and op.axis in pair:
        reads = sympy.Integer(int(op.axis == pair[1]))
        return Linear(reads, 1 - reads, ZERO)
    if isinstance(op, ir.Constant):
        return Linear(ZERO, ZERO, op.value) if isinstance(op.value, sympy.Expr) else None
    if not isinstance(op, ir.Elementwise) or op.fn not in ("add", "sub", "neg", "mul"):
        return None
    forms = [_linear(graph, graph[operand], pair) for operand in node.operands]
    sides = [form for form in forms if form is not None]
    if len(sides) < len(forms):
        return None
    if op.fn == "neg":
        return sides[0].times(-sympy.Integer(1))
    if op.fn == "mul":
        return next((a.times(b.rest) for a, b in (sides, sides[::-1]) if _is_number(b)), None)
    return sides[0] + (sides[1] if op.fn == "add" else sides[1].times(-sympy.Integer(1)))


def _is_number(form: Linear) -> bool:
    return form.read == 0 and form.reader == 0


def _is_summed(graph: Graph, id: int) -> bool:
    """Whether a sum over tokens up to the reader is made of a value of pairs."""
    return any(isinstance(graph[user].op, ir.Segment) for user in graph.descendants(id))


def _reaches(graph: Graph, id: int, pair: set[str]) -> bool:
    """Whether a function that is not finite everywhere is taken of a value of each pair."""
    found, waiting = {id}, [id]
    while waiting:
        current = waiting.pop()
        for user in graph.users(current):
            node = graph[user]
            place = PARTIAL.get(node.op.fn) if isinstance(node.op, ir.Elementwise) else None
            if place is not None and node.operands[place] == current:
                return True
            if user not in found and pair <= set(node.type.names):
                found.add(user)
                waiting.append(user)
    return False

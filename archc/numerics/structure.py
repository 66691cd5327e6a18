"""The values that are equal by their structure, and what that says about sums of them.

A sum is a linear form: numbers times atoms, where an atom is a value that is no sum itself. So
`(f + m_old) - max(m_old + f, i)` is `f + m_old - M`, whatever the order in which a spec adds; and
as M is at least each of its operands, it is at most `f + m_old - (m_old + f) = 0`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping
from fractions import Fraction
from functools import reduce
from itertools import islice, permutations, product

import sympy

from archc.functions.definitions import FUNCTIONS
from archc.functions.interval import ONE, UNIT, ZERO, Interval, add, both, hull, mul, point
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.numerics.constants import exact_fraction

Form = dict[int, Fraction]
"""Atoms (each the first node with that value) and their factors; `NUMBER` is the number 1."""

MOST_FACTORS = 8
"""A longer product is not looked through for a weight: those of squares of squares are too long."""

NUMBER = -1


class Structure:
    """`same[id]` is the first node with the value of the node, `forms[id]` its linear form."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.same: dict[int, int] = {}
        self.forms: dict[int, Form] = {}
        self._first: dict[Hashable, int] = {}
        self._powers: dict[int, Form] = {}
        for node in graph:
            self._enter(node)

    def _enter(self, node: Node) -> None:
        """Note a node whose operands are noted."""
        form = self._sum(node)
        if form is None:
            self.same[node.id] = self._first.setdefault(self._key(node), node.id)
            self.forms[node.id] = {self.same[node.id]: Fraction(1)}
            return
        self.forms[node.id] = form
        atoms = tuple(sorted(form.items()))
        if len(atoms) == 1 and atoms[0][1] == 1 and atoms[0][0] != NUMBER:
            self.same[node.id] = atoms[0][0]
        else:
            self.same[node.id] = self._first.setdefault(atoms, node.id)

    def _key(self, node: Node) -> Hashable:
        """Equal for nodes of equal value; noise is drawn anew at every node."""
        if isinstance(node.op, ir.Noise):
            return node.id
        operands = [self.same[operand] for operand in node.operands]
        if isinstance(node.op, ir.Elementwise):
            return (node.op, *(sorted(operands) if FUNCTIONS[node.op.fn].commutes else operands))
        shapes = (self.graph[operand].type.names for operand in node.operands)
        return (node.op, *operands, *shapes)

    def _sum(self, node: Node) -> Form | None:
        """The linear form of a sum, a multiple or a rational number; None for an atom."""
        if isinstance(node.op, ir.Constant):
            return _number(node.op.value)
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        forms = [self.forms[operand] for operand in node.operands]
        if fn == "add":
            return combined((forms[0], 1), (forms[1], 1))
        if fn == "sub":
            return combined((forms[0], 1), (forms[1], -1))
        if fn == "neg":
            return combined((forms[0], -1))
        if fn == "real":
            return forms[0]
        if fn == "mul":
            for number, other in (forms, forms[::-1]):
                if set(number) <= {NUMBER}:
                    return combined((other, number.get(NUMBER, 0)))
        return None

    def tightened(self, id: int, plain: Interval, known: Mapping[int, Interval]) -> Interval:
        """The interval of a sum, from those of its atoms and from its structure."""
        form = self.forms[id]
        found = both(plain, _total(form, known))
        found = self._share(form, self._convex(form, found, known), known)
        for atom, factor in form.items():
            fn = self._fn(atom)
            if fn not in ("max", "min"):
                continue
            for operand in self._choices(atom, fn):
                instead = combined((form, 1), ({atom: factor}, -1), (self.forms[operand], factor))
                bound = _total(instead, known)
                if (fn == "max") == (factor < 0):
                    limit = Interval(-math.inf, bound.high, False, bound.open_high)
                else:
                    limit = Interval(bound.low, math.inf, bound.open_low, False)
                found = both(found, limit)
        return found

    def as_share(self, id: int, plain: Interval, known: Mapping[int, Interval]) -> Interval:
        """The interval of a product, which is a share if one factor is 1 / (x + y) or its root and
        the others are x, or that root of x: at most 1, below it if y is positive. x may be one
        element of a sum over dims."""
        factors = {**self._factors(id)}
        below = [atom for atom, power in factors.items() if power < 0]
        if len(below) != 1:
            return plain
        whole, power = below[0], -factors.pop(below[0])
        wanted = {atom: own / power for atom, own in factors.items()}
        if not self._nonnegative(wanted, known):
            return plain
        low = 0 if self._nonnegative(factors, known) else -1
        for atom, factor in self.forms[whole].items():
            rest = _total(combined((self.forms[whole], 1), ({atom: Fraction(1)}, -1)), known)
            if factor < 1 or atom == NUMBER or not rest.nonnegative:
                continue
            if self._terms(atom, known) == wanted:
                return both(plain, Interval(low, 1, low < 0 and rest.positive, rest.positive))
        return plain

    def _nonnegative(self, factors: Form, known: Mapping[int, Interval]) -> bool:
        """Whether a product of powers of values is seen to be at least 0."""
        return all(own % 2 == 0 or known[atom].nonnegative for atom, own in factors.items())

    def _factors(self, id: int) -> Form:
        """The powers of values that a value is the product of, each value the first of its kind."""
        if id not in self._powers:
            fn, operands = self._fn(id), self.graph[id].operands
            powers = {"div": (1, -1), "sqrt": (Fraction(1, 2),), "rsqrt": (Fraction(-1, 2),)}
            if fn in ("mul", "real", *powers):
                parts = zip(operands, powers.get(fn, (1, 1)), strict=False)
                found = combined(*((self._factors(operand), power) for operand, power in parts))
            else:
                found = {self.same[id]: Fraction(1)}
            self._powers[id] = found
        return self._powers[id]

    def _terms(self, atom: int, known: Mapping[int, Interval]) -> Form:
        """The factors of a value, where sums over dims of what is not negative are read as one of
        their terms."""
        total: Form = {}
        for factor, power in self._factors(atom).items():
            node = self.graph[factor]
            term: Form = {}
            if isinstance(node.op, ir.Reduce) and node.op.fn == "sum" and self._over_dims(node):
                term = self._terms(node.operands[0], known)
            elif isinstance(node.op, ir.Contract) and self._in_place(node):
                term = combined(*((self._factors(operand), 1) for operand in node.operands))
            found = term and self._nonnegative(term, known)
            total = combined((total, 1), (term if found else {factor: Fraction(1)}, power))
        return total

    def _over_dims(self, node: Node) -> bool:
        """Whether a sum goes over dims alone: of tokens, a sum may leave some out."""
        axes = self.graph[node.operands[0]].type.axes
        return all(axis.kind == "dim" for axis in axes if axis not in node.type.axes)

    def _in_place(self, node: Node) -> bool:
        """Whether a product with a sum has all values at one index and renames no dims."""
        names = {self.graph[operand].type.names for operand in node.operands}
        kept = {(label, axis.name) for label, axis in node.op.out}
        if len(names) != 1 or len(set(node.op.ins)) != 1 or not self._over_dims(node):
            return False
        return kept <= set(zip(node.op.ins[0], names.pop(), strict=True))

    def _fn(self, id: int) -> str:
        """The elementwise function of an atom, or an empty text."""
        op = self.graph[id].op if id != NUMBER else None
        return op.fn if isinstance(op, ir.Elementwise) else ""

    def _choices(self, id: int, fn: str) -> Iterator[int]:
        """The operands of a max of max of ..., each of which it is at least."""
        for operand in self.graph[id].operands:
            yield operand
            if self._fn(operand) == fn:
                yield from self._choices(operand, fn)

    def _convex(self, form: Form, found: Interval, known: Mapping[int, Interval]) -> Interval:
        """w x + (1 - w) y, for w from 0 to 1, lies between x and y; so does w + (1 - w) y with 1
        for x, however 1 - w and w are sums. A weight may be a number times a value."""
        ways = {part: self._weighted(part, known) for part in form.items() if part[0] != NUMBER}
        for (atom, _), own in ways.items():
            for w, x in own if len(form) < MOST_FACTORS else ():
                rest = combined((form, 1), ({atom: form[atom]}, -1), (w, 1))
                if rest == {NUMBER: 1} and _total(w, known).within(UNIT):
                    found = both(found, hull(x, ONE))
        if len(form) != 2 or NUMBER in form:
            return found
        for (w, x), (u, y) in product(*ways.values()):
            if self._are_one(w, u) and _total(w, known).within(UNIT):
                found = both(found, hull(x, y))
        return found

    def _are_one(self, a: Form, b: Form) -> bool:
        """Whether two values add up to 1, by their forms or as expressions in sizes and options."""
        if combined((a, 1), (b, 1)) == {NUMBER: 1}:
            return True
        if len(a) != 1 or len(b) != 1 or {*a.values(), *b.values()} != {1} or NUMBER in a | b:
            return False
        ops = [self.graph[atom].op for atom in (*a, *b)]
        numbers = [op.value for op in ops if isinstance(op, ir.Constant)]
        return len(numbers) == 2 and bool(sympy.expand(sum(numbers)) == 1)

    def _share(self, form: Form, found: Interval, known: Mapping[int, Interval]) -> Interval:
        """log(x) - log(x + y) is at most 0 for a y that is not negative."""
        for whole, part in permutations(form, 2):
            if len(form) != 2 or (form[part], form[whole]) != (1, -1) or self._fn(whole) != "log":
                continue
            (total,) = self.graph[whole].operands
            for own in self._exp(part, self.forms[total]):
                if _total(combined((self.forms[total], 1), (own, -1)), known).nonnegative:
                    return both(found, Interval(-math.inf, 0))
        return found

    def _exp(self, atom: int, among: Form) -> Iterator[Form]:
        """The forms that exp of an atom is seen to have, if it is one of some atoms."""
        fn = self._fn(atom)
        if fn == "log":
            yield self.forms[self.graph[atom].operands[0]]
        made, of = ("exp", atom)
        if fn == "logsigmoid":
            made, of = "sigmoid", self.same[self.graph[atom].operands[0]]
        for other in among:
            if self._fn(other) == made and self.same[self.graph[other].operands[0]] == of:
                yield {other: Fraction(1)}

    def _weighted(
        self, part: tuple[int, Fraction], known: Mapping[int, Interval]
    ) -> list[tuple[Form, Interval]]:
        """The ways to see a number times an atom as a weight times a value, each with the value's
        interval: any factor of (1 - w) * x * x may be the weight."""
        atom, number = part
        ways, factors = [({atom: number}, ONE)], [*islice(self._multiplied(atom), MOST_FACTORS + 1)]
        if not 1 < len(factors) <= MOST_FACTORS:
            return ways
        numbers = [self.forms[each].get(NUMBER, 0) for each in factors if self._is_number(each)]
        scale = Fraction(math.prod(numbers))
        for at, weight in enumerate(factors):
            rest = [known[other] for other in (*factors[:at], *factors[at + 1 :])]
            for share in {Fraction(1), scale or Fraction(1)}:
                value = reduce(mul, rest, point(number / share))
                ways.append((combined((self.forms[weight], share)), value))
        return ways

    def _is_number(self, id: int) -> bool:
        """Whether a value is a rational number."""
        return {*self.forms[id]} <= {NUMBER}

    def _multiplied(self, id: int) -> Iterator[int]:
        """The factors of a product of products."""
        if self._fn(id) != "mul":
            yield id
            return
        for operand in self.graph[id].operands:
            yield from self._multiplied(operand)


def combined(*parts: tuple[Form, Fraction | int]) -> Form:
    """The sum of linear forms, each times a number."""
    total: Form = {}
    for form, factor in parts:
        for atom, own in form.items():
            total[atom] = total.get(atom, Fraction(0)) + own * factor
    return {atom: factor for atom, factor in total.items() if factor}


def _number(value: sympy.Expr) -> Form | None:
    """The form of a constant that is a short rational number."""
    number = exact_fraction(value) if isinstance(value, sympy.Rational) else None
    return combined(({NUMBER: Fraction(1)}, number)) if isinstance(number, Fraction) else None


def _total(form: Form, known: Mapping[int, Interval]) -> Interval:
    """The interval of a linear form."""
    total = ZERO
    for atom, factor in form.items():
        value = ONE if atom == NUMBER else known[atom]
        total = add(total, mul(point(factor), value))
    return total

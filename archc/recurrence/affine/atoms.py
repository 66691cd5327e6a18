"""Values of a body as polynomials over symbols: products are elementwise, so that they commute.

A symbol is a value with named axes. Sums over axes are symbols too, in a canonical form: two
spellings of one sum of products are one symbol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

import sympy

from archc.dims import Axis
from archc.functions.definitions import FUNCTIONS
from archc.limits import MAX_MONOMIALS, MAX_PRODUCTS

MAX_NAME = 400
"""Longer names of symbols are shortened to a digest."""

COMMUTE = {name for name, fn in FUNCTIONS.items() if fn.commutes}

Factors = dict[sympy.Symbol, int]
"""The symbols of a product and their powers."""


@dataclass(frozen=True)
class Atom:
    """A value of the body that does not depend on the states, which a symbol stands for.

    kind "value": the body's `node`. kind "fn": the elementwise `fn` of `args` (and, where `node` is
    not None, the body's node with that value). kind "sum": the sum of args[0], a product, over
    `bound`. kind "delta": the identity matrix of its two axes. kind "choice": 1 where the bool
    args[0] holds, else 0. kind "state": a version of a state; it is in no finished form.

    `axes` are the value's axes here; `source` those of `node`, in the same order: a value may go by
    other names (`k[K]` of the spec may stand on another axis of the same size).
    """

    kind: str
    head: str
    axes: tuple[Axis, ...]
    node: int | None = None
    fn: str = ""
    args: tuple[sympy.Expr, ...] = ()
    bound: tuple[Axis, ...] = ()
    states: frozenset[str] = frozenset()
    source: tuple[Axis, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(axis.name for axis in self.axes)


Atoms = Mapping[sympy.Symbol, Atom]


class TooLong(Exception):
    """A sum of more than MAX_MONOMIALS products, or MAX_PRODUCTS made in all."""


class Table:
    """Symbols and what they stand for, and the algebra that needs to know it."""

    def __init__(self, atoms: Atoms | None = None) -> None:
        self.atoms: dict[sympy.Symbol, Atom] = dict(atoms or {})
        self.deepest: dict[sympy.Symbol, int] = {}
        self.products = 0

    def spend(self, products: int) -> None:
        """Count products that are made; of too many, nothing more is multiplied out."""
        self.products += products
        if self.products > MAX_PRODUCTS:
            raise TooLong

    # --- symbols ---------------------------------------------------------------------------------

    def add(self, atom: Atom) -> sympy.Symbol:
        """The symbol of an atom; the first atom of a name stays."""
        symbol = sympy.Symbol(self._name(atom))
        self.atoms.setdefault(symbol, atom)
        return symbol

    def _name(self, atom: Atom) -> str:
        """A name that is equal where the values are."""
        if atom.kind in ("value", "state"):
            name = f"{atom.head}[{','.join(atom.names)}]"
        elif atom.kind == "delta":
            name = f"delta[{','.join(sorted(atom.names))}]"
        elif atom.kind == "sum":
            name = f"sum({self.text(atom.args[0])})"
        else:
            texts = [self.text(arg) for arg in atom.args]
            texts = sorted(texts) if atom.fn in COMMUTE else texts
            name = f"{atom.fn or atom.kind}({', '.join(texts)})"
        if len(name) <= MAX_NAME:
            return name
        return f"{name[:40]}..{hashlib.sha256(name.encode()).hexdigest()[:24]}"

    def value(self, head: str, axes: Sequence[Axis], node: int) -> sympy.Symbol:
        """The value of a node of the body."""
        return self.add(Atom("value", head, tuple(axes), node, source=tuple(axes)))

    def state(self, head: str, axes: Sequence[Axis]) -> sympy.Symbol:
        """A version of a state."""
        return self.add(Atom("state", head, tuple(axes), states=frozenset({head})))

    def fn(
        self, fn: str, *args: sympy.Expr, node: int | None = None, axes: Sequence[Axis] = ()
    ) -> sympy.Symbol:
        """An elementwise function of values."""
        own = tuple(axes) if node is not None else self.axes(*args)
        return self.add(Atom("fn", fn, own, node, fn, args, source=tuple(axes)))

    def choice(self, condition: sympy.Expr) -> sympy.Symbol:
        """1 where a bool holds, else 0."""
        return self.add(Atom("choice", "choice", self.axes(condition), args=(condition,)))

    def is_not(self, condition: sympy.Expr) -> bool:
        """Whether a bool is the opposite of another."""
        return isinstance(condition, sympy.Symbol) and self.atoms[condition].fn == "not"

    def delta(self, row: Axis, col: Axis) -> sympy.Expr:
        """The identity matrix; 1 on its diagonal."""
        if row.name == col.name:
            return sympy.Integer(1)
        return self.add(Atom("delta", "delta", (row, col)))

    # --- what an expression holds ----------------------------------------------------------------

    def symbols(self, expr: sympy.Expr) -> list[sympy.Symbol]:
        """The symbols of an expression that stand for values, by name."""
        found = [s for s in expr.free_symbols if isinstance(s, sympy.Symbol) and s in self.atoms]
        return sorted(found, key=lambda s: s.name)

    def axes(self, *exprs: sympy.Expr) -> tuple[Axis, ...]:
        """All axes of expressions, as the symbols by name bring them."""
        found: dict[str, Axis] = {}
        for expr in exprs:
            for symbol in self.symbols(expr):
                for axis in self.atoms[symbol].axes:
                    found.setdefault(axis.name, axis)
        return tuple(found.values())

    def names(self, expr: sympy.Expr) -> frozenset[str]:
        """The names of an expression's axes."""
        return frozenset(axis.name for axis in self.axes(expr))

    def states(self, expr: sympy.Expr) -> frozenset[str]:
        """The versions of states that an expression holds."""
        return frozenset(h for s in self.symbols(expr) for h in self.atoms[s].states)

    def is_negative(self, expr: sympy.Expr) -> bool:
        """Whether every term of a polynomial has a minus sign."""
        terms = sympy.Add.make_args(expr)
        return all(self.split(term)[0].could_extract_minus_sign() for term in terms)

    def split(self, term: sympy.Expr) -> tuple[sympy.Expr, Factors]:
        """A product as its number (sizes included) and the powers of its symbols, by name."""
        number: sympy.Expr = sympy.Integer(1)
        factors: Factors = {}
        for factor in sympy.Mul.make_args(term):
            base, power = factor.as_base_exp()
            if isinstance(base, sympy.Symbol) and base in self.atoms and power.is_Integer:
                factors[base] = factors.get(base, 0) + int(power)
            else:
                number = number * factor
        assert number.is_Number or not self.symbols(number), "a product that is not expanded"
        return number, dict(sorted(factors.items(), key=lambda entry: entry[0].name))

    def text(self, expr: sympy.Expr) -> str:
        """Canonical text: products sorted by their text, powers written out."""
        parts = []
        for term in sympy.Add.make_args(expr):
            number, factors = self.split(term)
            names = [s.name if p == 1 else f"{s.name}^{p}" for s, p in factors.items()]
            shown = [] if number == 1 and names else [str(number)]
            parts.append("*".join([*shown, *names]))
        return " + ".join(sorted(parts))

    # --- algebra ---------------------------------------------------------------------------------

    def times(self, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        """The product, expanded; choices are idempotent."""
        left, right = sympy.Add.make_args(a), sympy.Add.make_args(b)
        if len(left) * len(right) > MAX_MONOMIALS:
            raise TooLong
        self.spend(len(left) * len(right))
        return bounded(sympy.Add(*(self._once(x * y) for x in left for y in right)))

    def _once(self, term: sympy.Expr) -> sympy.Expr:
        """A product with no power of a choice; 0 where two choices exclude one another."""
        if not isinstance(term, sympy.Mul | sympy.Pow):
            return term
        number, factors = self.split(term)
        chosen = {s: self.atoms[s].args[0] for s in factors if self.atoms[s].kind == "choice"}
        if not chosen:
            return term
        for condition in chosen.values():
            if self.fn("not", condition) in chosen.values():
                return sympy.Integer(0)
        return product(number, {s: 1 if s in chosen else p for s, p in factors.items()})

    def inverse(self, expr: sympy.Expr) -> sympy.Expr:
        """1 / expr: of a sum, a symbol."""
        if isinstance(expr, sympy.Add) and self.symbols(expr):
            return self.fn("div", sympy.Integer(1), expr)
        return 1 / expr

    def rename(self, expr: sympy.Expr, new: Mapping[str, Axis]) -> sympy.Expr:
        """A value with axes renamed; two that get one name become the diagonal."""
        moved = {name for name, axis in new.items() if axis.name != name}
        if not moved:
            return expr
        changes = {
            s: self._renamed(s, new) for s in self.symbols(expr) if moved & set(self.atoms[s].names)
        }
        return replaced(expr, changes) if changes else expr

    def _renamed(self, symbol: sympy.Symbol, new: Mapping[str, Axis]) -> sympy.Expr:
        atom = self.atoms[symbol]
        axes = tuple(new.get(axis.name, axis) for axis in atom.axes)
        if atom.kind == "delta":
            return self.delta(*axes)
        args = tuple(self.rename(arg, new) for arg in atom.args)
        if atom.kind == "sum":
            return self._sum(atom.bound, args[0])
        return self.add(
            Atom(
                atom.kind,
                atom.head,
                axes,
                atom.node,
                atom.fn,
                args,
                states=atom.states,
                source=atom.source,
            )
        )

    def sum(self, expr: sympy.Expr, axes: Sequence[Axis]) -> sympy.Expr:
        """The sum over axes of a polynomial; an axis that a product lacks counts its length."""
        terms = sympy.Add.make_args(expr)
        return bounded(sympy.Add(*(self._sum_product(term, axes) for term in terms)))

    def _sum_product(self, term: sympy.Expr, axes: Sequence[Axis]) -> sympy.Expr:
        """The sum of a product: factors without the axes come out, the rest are sums that share
        none."""
        number, factors = self.split(term)
        self.spend(len(factors))
        bound = {f"#{i}": axis.renamed(f"#{i}") for i, axis in enumerate(axes)}
        new = {axis.name: b for axis, b in zip(axes, bound.values(), strict=True)}
        inner, bound = self._opened(self.rename(product(1, factors), new), bound)
        number_2, factors = self.split(inner)
        free = {s: p for s, p in factors.items() if not set(self.atoms[s].names) & set(bound)}
        result = number * number_2 * product(1, free)
        rest = {s: p for s, p in factors.items() if s not in free}
        for name, axis in bound.items():
            if not any(name in self.atoms[s].names for s in rest):
                result = result * axis.size
        for group in self._groups(rest, bound):
            names = {n for s in group for n in self.atoms[s].names}
            own = tuple(axis for name, axis in bound.items() if name in names)
            result = result * self._sum(own, product(1, {s: rest[s] for s in group}))
        return result

    def _opened(
        self, term: sympy.Expr, bound: dict[str, Axis]
    ) -> tuple[sympy.Expr, dict[str, Axis]]:
        """Sums inside a sum are opened, and identity matrices become renamings."""
        number, factors = self.split(term)
        for symbol, power in factors.items():
            atom = self.atoms[symbol]
            if not set(atom.names) & set(bound) or power < 1:
                continue
            rest = product(number, {s: p for s, p in factors.items() if s != symbol})
            if atom.kind == "sum":
                taken = max(int(name[1:]) for name in bound) + 1
                fresh = {a.name: a.renamed(f"#{taken + i}") for i, a in enumerate(atom.bound)}
                inside = self.rename(atom.args[0], fresh)
                again = rest * symbol ** (power - 1) * inside
                return self._opened(again, bound | {a.name: a for a in fresh.values()})
            if atom.kind == "delta":
                gone, kept = atom.axes if atom.axes[0].name in bound else atom.axes[::-1]
                left = {name: axis for name, axis in bound.items() if name != gone.name}
                return self._opened(self.rename(rest, {gone.name: kept}), left)
        return term, bound

    def _groups(self, factors: Factors, bound: Mapping[str, Axis]) -> list[list[sympy.Symbol]]:
        """Factors that hang together by the axes summed over."""
        groups: list[tuple[set[str], list[sympy.Symbol]]] = []
        for symbol in factors:
            names, members = set(self.atoms[symbol].names) & set(bound), [symbol]
            for group in [g for g in groups if g[0] & names]:
                names, members = names | group[0], group[1] + members
                groups.remove(group)
            groups.append((names, members))
        return [members for _, members in groups]

    def _sum(self, bound: Sequence[Axis], body: sympy.Expr) -> sympy.Symbol:
        """The symbol of a sum of one product, its axes named so that spellings agree."""
        base = 1 + max((self._deepest(s) for s in self.symbols(body)), default=-1)
        choices = []
        for order in permutations(range(len(bound))) if len(bound) <= 4 else [range(len(bound))]:
            new = [axis.renamed(f"${base + i}") for axis, i in zip(bound, order, strict=True)]
            named = self.rename(body, {a.name: b for a, b in zip(bound, new, strict=True)})
            choices.append((self.text(named), named, sorted(new, key=lambda axis: axis.name)))
        _, named, axes = min(choices, key=lambda choice: choice[0])
        free = tuple(a for a in self.axes(named) if a.name not in {b.name for b in axes})
        states = self.states(named)
        return self.add(Atom("sum", "sum", free, args=(named,), bound=tuple(axes), states=states))

    def _deepest(self, symbol: sympy.Symbol) -> int:
        """The highest number of an axis that a symbol sums over inside; -1 if it does not."""
        if symbol not in self.deepest:
            atom = self.atoms[symbol]
            inside = [self._deepest(s) for arg in atom.args for s in self.symbols(arg)]
            own = (int(axis.name[1:]) for axis in atom.bound)
            self.deepest[symbol] = max([*inside, *own], default=-1)
        return self.deepest[symbol]


def product(number: sympy.Expr | int, factors: Mapping[sympy.Symbol, int]) -> sympy.Expr:
    """A number times powers of symbols."""
    return sympy.Mul(number, *(symbol**power for symbol, power in factors.items()))


def replaced(expr: sympy.Expr, changes: Mapping[sympy.Symbol, sympy.Expr]) -> sympy.Expr:
    """An expression with symbols replaced, all at once."""
    new = expr.xreplace(dict(changes))
    assert isinstance(new, sympy.Expr)
    return new


def bounded(expr: sympy.Expr) -> sympy.Expr:
    """The expression, unless it is too long."""
    if len(sympy.Add.make_args(expr)) > MAX_MONOMIALS:
        raise TooLong
    return expr


def total(terms: Iterable[sympy.Expr]) -> sympy.Expr:
    """The sum of expressions."""
    return sympy.Add(*terms)

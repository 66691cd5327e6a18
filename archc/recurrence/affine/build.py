"""Expressions of a normal form -> nodes of a layer-IR graph.

Values of the body are nodes of that graph already (`values`), perhaps with more axes: a value that
has a stream has it in every expression, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Sharing
from archc.ir.graph import Graph
from archc.ir.shapes import arrange
from archc.recurrence.affine.atoms import Atom, Factors, Table, product, total
from archc.recurrence.affine.form import NormalForm

FEW = 8
"""Larger powers are made of squares."""

Item = tuple[int, tuple[str, ...]]
"""A node, and a label for each of its axes."""


def build(graph: Graph, expr: sympy.Expr, form: NormalForm, values: Mapping[int, int]) -> int:
    """The node of an expression's value. `values` has the node of `graph` for body nodes: for all
    that are atoms of kind "value", and for others as far as they are there. Axes that no symbol of
    the expression has are not in the result."""
    return Lowering(graph, form, values).value(expr)


class Lowering(Sharing):
    """Adds nodes for expressions; what it has built once is not built again."""

    def __init__(self, graph: Graph, form: NormalForm, values: Mapping[int, int]) -> None:
        super().__init__(graph)
        self.values, self.table = values, Table(form.atoms)
        self.done: dict[sympy.Expr, int] = {}

    def value(self, expr: sympy.Expr) -> int:
        """The node of an expression."""
        if expr not in self.done:
            terms = sympy.Add.make_args(expr)
            sums = [
                arg for arg in sympy.Mul.make_args(expr)
                if arg.as_base_exp()[0].is_Add and self.table.symbols(arg)
            ]  # fmt: skip
            if len(terms) > 1:
                self.done[expr] = self._sum(terms)
            else:
                self.done[expr] = self._factored(expr, sums) if sums else self._term(expr)
        return self.done[expr]

    def _factored(self, expr: sympy.Expr, sums: Sequence[sympy.Expr]) -> int:
        """A product of sums, as it is written."""
        powers = [arg.as_base_exp() for arg in sums]
        rest = expr / sympy.Mul(*sums)
        found = [(self.value(rest), 1)] if rest != 1 else []
        return self._product([*found, *((self.value(base), int(p)) for base, p in powers)])

    def _sum(self, terms: Sequence[sympy.Expr]) -> int:
        """A sum, what all its products share taken out."""
        parts = [self.table.split(term) for term in terms]
        shared = {s: min(own.get(s, 0) for _, own in parts) for s in parts[0][1]}
        shared = {s: power for s, power in shared.items() if power > 0}
        choice = next((s for s in shared if self.table.atoms[s].kind == "choice"), None)
        if choice is not None:
            return self._chosen(choice, total(term / choice for term in terms))
        if shared:
            common = product(1, shared)
            rest = self.value(total(term / common for term in terms))
            return self._product([(rest, 1), *self._powers(shared)])
        if all(not own for _, own in parts):
            return self._number(total(terms))
        ordered = sorted(terms, key=lambda t: (self._negative(t), self.table.text(t)))
        found = self.value(ordered[0])
        for term in ordered[1:]:
            fn = "sub" if self._negative(term) else "add"
            found = self.fn(fn, found, self.value(-term if fn == "sub" else term))
        return found

    def _negative(self, term: sympy.Expr) -> bool:
        """Whether a product has a number below 0."""
        return self.table.split(term)[0].could_extract_minus_sign()

    def _term(self, term: sympy.Expr) -> int:
        """A product; where it holds choices, 0 where they are not made."""
        number, factors = self.table.split(term)
        choices = [s for s in factors if self.table.atoms[s].kind == "choice"]
        if choices:
            return self._chosen(choices[0], term / choices[0])
        if not factors:
            return self._number(number)
        if number == -1:
            return self.fn("neg", self.value(product(1, factors)))
        powers = self._powers(factors)
        return self._product([*([(self._number(number), 1)] if number != 1 else []), *powers])

    def _chosen(self, choice: sympy.Symbol, expr: sympy.Expr) -> int:
        """An expression where a choice is made, else 0: what is not chosen is not multiplied."""
        condition = self.value(self.table.atoms[choice].args[0])
        zero = self._number(sympy.Integer(0))
        return self.fn("where", condition, self.value(expr), zero)

    def _powers(self, factors: Factors) -> list[tuple[int, int]]:
        """Nodes of symbols and their powers."""
        return [(self._symbol(symbol), power) for symbol, power in factors.items()]

    def _product(self, powers: Sequence[tuple[int, int]]) -> int:
        """A product of nodes: those of few axes first, so that little is broadcast."""
        ids = [each for id, power in powers if power > 0 for each in self._factors(id, power)]
        below = [each for id, power in powers if power < 0 for each in self._factors(id, -power)]
        above = self._multiplied(ids) if ids else self._number(sympy.Integer(1))
        return self.fn("div", above, self._multiplied(below)) if below else above

    def _factors(self, id: int, power: int) -> list[int]:
        """Nodes whose product is a power: the node itself as often, or squares of squares."""
        found = list[int]()
        while power > FEW:
            found += [id] * (power % 2)
            id, power = self._multiplied([id, id]), power // 2
        return [*found, *[id] * power]

    def _multiplied(self, ids: Sequence[int]) -> int:
        return self.chain("mul", sorted(ids, key=lambda id: (len(self.names(id)), id)))

    def _number(self, number: sympy.Expr) -> int:
        return self.done.setdefault(number, self.number(number))

    # --- symbols ---------------------------------------------------------------------------------

    def _symbol(self, symbol: sympy.Symbol) -> int:
        """The node of a symbol."""
        if symbol not in self.done:
            self.done[symbol] = self._atom(self.table.atoms[symbol])
        return self.done[symbol]

    def _atom(self, atom: Atom) -> int:
        if atom.node is not None and atom.node in self.values:
            return self._named(self._labelled(atom), atom.axes)
        if atom.kind == "sum":
            return self._contracted(atom)
        if atom.kind == "delta":
            return self.add(ir.Delta(*atom.axes))
        if atom.kind == "choice":  # a factor of a sum
            one, zero = self._number(sympy.Integer(1)), self._number(sympy.Integer(0))
            return self.fn("where", self.value(atom.args[0]), one, zero)
        assert atom.kind == "fn", f"{atom.head} is not among the values"
        return self.fn(atom.fn, *(self.value(arg) for arg in atom.args))

    def _labelled(self, atom: Atom) -> Item:
        """The node of a body's value, its axes labelled with the names they go by here."""
        id = self.values[atom.node if atom.node is not None else -1]
        new = {old.name: axis.name for old, axis in zip(atom.source, atom.axes, strict=True)}
        return id, tuple(new.get(axis.name, axis.name) for axis in self.graph[id].type.axes)

    def _named(self, item: Item, axes: Sequence[Axis]) -> int:
        """A node whose axes are called as their labels."""
        id, labels = item
        own = self.graph[id].type.axes
        if labels == tuple(axis.name for axis in own):
            return id
        known = {axis.name: axis for axis in axes}
        out = {n: known.get(n, a.renamed(n)) for n, a in zip(labels, own, strict=True)}
        return self._contract([item], out)

    def _contract(self, items: Sequence[Item], out: Mapping[str, Axis]) -> int:
        """The sum of a product over every label that is not in `out`."""
        ordered = {axis.name: axis for axis in arrange(tuple(out.values()))}
        ids = [self.real(id) for id, _ in items] if len(items) > 1 else [items[0][0]]
        op = ir.Contract(tuple(labels for _, labels in items), tuple(ordered.items()))
        return self.add(op, *ids)

    def _contracted(self, atom: Atom) -> int:
        """A sum of a product: one axis after another, two factors at a time."""
        _, factors = self.table.split(atom.args[0])
        items = [item for symbol, power in factors.items() for item in self._items(symbol, power)]
        bound = {axis.name: axis for axis in atom.bound}
        for name in bound:
            held = [item for item in items if name in item[1]]
            rest = [item for item in items if name not in item[1]]
            while len(held) > 2:
                held.sort(key=lambda item: len(item[1]))
                held[:2] = [self._joined(held[:2], bound, ())]
            if held:
                elsewhere = {label for _, labels in rest for label in labels}
                gone = [b for b in bound if b not in elsewhere]
                items = [self._joined(held, bound, gone), *rest]
        (item,) = items
        return self._named(item, atom.axes)

    def _items(self, symbol: sympy.Symbol, power: int) -> list[Item]:
        """A power of a symbol as factors of a contraction."""
        atom = self.table.atoms[symbol]
        if power > 0 and atom.node is not None and atom.node in self.values:
            return [self._labelled(atom)] * power
        id = self._symbol(symbol) if power > 0 else self.value(symbol**power)
        return [(id, self.graph[id].type.names)] * max(power, 1)

    def _joined(
        self, items: Sequence[Item], bound: Mapping[str, Axis], gone: Sequence[str]
    ) -> Item:
        """The product of one or two factors, summed over the labels `gone`."""
        out: dict[str, Axis] = {}
        for id, labels in items:
            for label, axis in zip(labels, self.graph[id].type.axes, strict=True):
                if label not in gone:
                    out.setdefault(label, bound.get(label, axis.renamed(label)))
        id = self._contract(items, out)
        return id, self.graph[id].type.names

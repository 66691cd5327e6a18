"""Nodes for a plan."""

from __future__ import annotations

from collections.abc import Iterable

from archc.algebra.contraction_order import Join, Plan, Spread, Take
from archc.algebra.product import Labels, Reading
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Builder, Sharing
from archc.ir.shapes import arrange, join

Out = dict[int, Axis]
"""The labels of a value and the axis that each becomes, in order."""


def build(reading: Reading, plan: Plan) -> int:
    """Add the nodes of a plan for a product; the last one has the type of the product's root."""
    graph, root = reading.graph, reading.root
    out = dict(zip(reading.out, root.type.axes, strict=True))
    id, _ = _Products(reading).value(plan, out, exact=True)
    if reading.product.sign < 0:
        id = Builder(graph).fn("neg", id)
    if graph[id].type.axes == root.type.axes:
        return id
    named = tuple((axis.name, axis) for axis in root.type.axes)
    return graph.add(ir.Contract((graph[id].type.names,), named), id)


class _Products(Sharing):
    """Adds nodes for plans. `holes` has the values that fill the holes of spread sums: a node and,
    for each of its axes, which of the factor's labels it has."""

    def __init__(self, reading: Reading):
        super().__init__(reading.graph)
        self.axes = reading.axes
        self.holes: dict[int, tuple[int, tuple[int, ...]]] = {}

    def value(self, plan: Plan, out: Out | None = None, exact: bool = False) -> tuple[int, Labels]:
        """A plan's node and the labels of its axes. With `out` the axes are those of `out`, if
        `exact` in that order where it costs nothing; without, they keep their names, as far as
        these differ."""
        if isinstance(plan, Take):
            return self._take(plan, out)
        out = self._named(plan.labels) if out is None else out
        if isinstance(plan, Join):
            return self._join(plan, out, exact)
        assert isinstance(plan, Spread)
        return self._spread(plan, out)

    def _take(self, plan: Take, out: Out | None) -> tuple[int, Labels]:
        factor = plan.factor
        id, labels = factor.node, factor.labels
        if id in self.holes:
            id, places = self.holes[id]
            labels = tuple(labels[place] for place in places)
        if factor.inverse:
            one = self.number(1)
            id = self.fn("div", one, id)
        if out is None and plan.labels == factor.labels:
            return id, labels
        out = self._named(plan.labels) if out is None else out
        axes = dict(zip(labels, self.graph[id].type.axes, strict=True))
        if len(axes) == len(labels) and axes == out:
            return id, labels
        return self._contract([(id, labels)], out)

    def _join(self, plan: Join, out: Out, exact: bool) -> tuple[int, Labels]:
        sides = [self.value(plan.left), self.value(plan.right)]
        if not self._scales(sides, out, exact):
            return self._contract(sides, out)
        left, right = (id for id, _ in sides)
        if self.graph[left].type.dtype != "real" and self.graph[right].type.dtype != "real":
            left = self.real(left)
        return self._labelled(self.fn("mul", left, right), out)

    def _scales(self, sides: list[tuple[int, Labels]], out: Out, exact: bool) -> bool:
        """Whether a product is elementwise: one side has every axis, and all keep their names."""
        types = [self.graph[id].type for id, _ in sides]
        named = [
            out.get(label) == axis
            for (_, labels), type in zip(sides, types, strict=True)
            for label, axis in zip(labels, type.axes, strict=True)
        ]
        whole = any(len(type.axes) == len(out) for type in types)
        return all(named) and whole and (not exact or join(types) == tuple(out.values()))

    def _spread(self, plan: Spread, out: Out) -> tuple[int, Labels]:
        id, labels = self.value(plan.other)
        as_planned = labels == plan.other.labels
        places = range(len(labels)) if as_planned else map(plan.other.labels.index, labels)
        self.holes[plan.hole] = id, tuple(places)
        sum: int | None = None
        for sign, term in sorted(plan.terms, key=lambda entry: -entry[0]):
            own = {label: axis for label, axis in out.items() if label in term.labels}
            value, _ = self.value(term, own)
            if sum is None:
                sum = value if sign > 0 else self.fn("neg", value)
            else:
                fn = "add" if sign > 0 else "sub"
                sum = self.fn(fn, sum, value)
        assert sum is not None, "a sum has terms"
        return self._labelled(sum, out)

    def _contract(self, sides: list[tuple[int, Labels]], out: Out) -> tuple[int, Labels]:
        """A contraction whose labels are called as the axes they come from."""
        every = dict.fromkeys((*out, *(label for _, labels in sides for label in labels)))
        named = self._distinct(every, out)
        ins = tuple(tuple(named[label].name for label in labels) for _, labels in sides)
        kept = tuple((axis.name, axis) for axis in out.values())
        ids = [self.real(id) for id, _ in sides]
        return self.add(ir.Contract(ins, kept), *ids), tuple(out)

    def _labelled(self, id: int, out: Out) -> tuple[int, Labels]:
        """A node whose axes are those of `out` in some order, and their labels."""
        labels = {axis.name: label for label, axis in out.items()}
        return id, tuple(labels[name] for name in self.graph[id].type.names)

    def _named(self, labels: Iterable[int]) -> Out:
        """Axes for labels, named as where they come from, in the order that types have."""
        named = self._distinct(labels, {})
        by_name = {axis.name: label for label, axis in named.items()}
        return {by_name[axis.name]: axis for axis in arrange(tuple(named.values()))}

    def _distinct(self, labels: Iterable[int], fixed: Out) -> Out:
        """Axes of different names for labels; where two have one name, the second gets a prime."""
        named = dict(fixed)
        for label in labels:
            if label in named:
                continue
            axis = self.axes[label]
            while axis.name in {other.name for other in named.values()}:
                axis = axis.renamed(axis.name + "'")
            named[label] = axis
        return named

"""The cheapest way to compute a product: the order in which to join factors, the sums to spread.

A plan is a tree. `Take` is a factor as it is, `Join` multiplies two plans and sums what nobody else
needs, `Spread` multiplies each term of a sum with another plan: `(A + B) @ x` -> `A @ x + B @ x`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from archc.algebra import cost
from archc.algebra.cost import Cost
from archc.algebra.product import Factor, Labels, Product, Reading, cancel_deltas, is_sum

MOST_FACTORS = 7
"""Products of more factors are left as they are: the number of orders grows as 3 to this power."""

MOST_JOINS = 10_000
"""Ways to multiply two plans that are tried for one product, terms of its sums included."""


@dataclass(frozen=True)
class Plan:
    """A way to compute a value: the labels that it has, and what it costs."""

    labels: Labels
    cost: Cost


@dataclass(frozen=True)
class Take(Plan):
    """One factor; if these are not its own labels in order, it is renamed, summed or transposed."""

    factor: Factor


@dataclass(frozen=True)
class Join(Plan):
    """The product of two plans, summed over the labels that this one does not have."""

    left: Plan
    right: Plan


@dataclass(frozen=True)
class Spread(Plan):
    """A sum of (sign, plan), in which `other`, computed once, is the factor of node `hole`."""

    terms: tuple[tuple[int, Plan], ...]
    other: Plan
    hole: int


class Planner:
    """Plans for one product. `deepest`: how many sums, each a term of the one before, may be spread
    one within another; with 0 every sum stays a factor."""

    def __init__(self, reading: Reading, deepest: int = 0):
        self.reading = reading
        self.graph = reading.graph
        self.deepest = deepest
        self.joins = 0
        self._plans: dict[tuple[tuple[Factor, ...], Labels, int], Plan | None] = {}
        self._terms: dict[Factor, list[Product]] = {}
        self._sizes: dict[frozenset[int], Cost] = {}
        self._steps: dict[tuple[Labels, Labels, Labels], Cost] = {}

    def best(self, product: Product, kept: Labels, depth: int = 0) -> Plan | None:
        """The cheapest plan found for a product with the labels `kept`; None if it has too many
        factors, or if enough has been tried."""
        factors = cancel_deltas(self.graph, product, kept).factors
        key = factors, kept, depth
        if key not in self._plans:
            if len(factors) > MOST_FACTORS or self.joins > MOST_JOINS:
                return None
            self._plans[key] = self._cheapest(factors, kept, depth)
        return self._plans[key]

    def _cheapest(self, factors: tuple[Factor, ...], kept: Labels, depth: int) -> Plan:
        """The cheapest plan for some factors, from the plans for each group of them."""
        if len(factors) == 1:
            return self._alone(factors[0], kept)
        every = (1 << len(factors)) - 1
        plans: dict[int, list[Plan]] = {}
        for group in sorted(range(1, every + 1), key=int.bit_count):
            needed = kept if group == every else _needed(factors, group, kept)
            if group.bit_count() == 1:
                factor = factors[group.bit_length() - 1]
                summed = [] if set(factor.labels) == set(needed) else [self._alone(factor, needed)]
                plans[group] = [self._take(factor), *summed]
            else:
                plans[group] = [self._split(factors, plans, group, needed, depth)]
        return plans[every][0]

    def _split(
        self,
        factors: Sequence[Factor],
        plans: Mapping[int, Sequence[Plan]],
        group: int,
        kept: Labels,
        depth: int,
    ) -> Plan:
        """The cheapest way to split a group of factors in two; the first of those."""
        best: Plan | None = None
        for part in _parts(group):
            others = plans[group ^ part]
            if depth < self.deepest and part.bit_count() == 1:
                factor = factors[part.bit_length() - 1]
                spread = [self._spread(factor, other, kept, depth) for other in others]
                ways = [way for way in (best, *spread) if way is not None]
                best = min(ways, key=_first, default=None)
            if part < group ^ part:
                for one, other in itertools.product(plans[part], others):
                    self.joins += 1
                    step = self._step(one.labels, other.labels, kept)
                    if best is None or one.cost[0] + other.cost[0] + step[0] < best.cost[0]:
                        best = Join(kept, cost.total(one.cost, other.cost, step), one, other)
        assert best is not None
        return best

    def _take(self, factor: Factor) -> Take:
        """A factor as it is; what only the root needs of it has to be computed."""
        steps = [self.reading.cost(factor.node)]
        if factor.inverse:
            written = self._size(factor.labels)
            steps.append(cost.total(written, written))
        return Take(factor.labels, cost.total(*steps), factor)

    def _alone(self, factor: Factor, kept: Labels) -> Plan:
        """A product of one factor: nothing to do, or axes to rename, sum or put in order."""
        plan = self._take(factor)
        if factor.labels == kept:
            named = tuple(self.reading.axes[label] for label in kept)
            own = factor.node in self.graph and self.graph[factor.node].type.axes != named
            return replace(plan, cost=cost.total(plan.cost, cost.RENAMING)) if own else plan
        moved = sorted(factor.labels) == sorted(kept)
        step = cost.summing(self._size(factor.labels), self._size(kept))
        return Take(kept, cost.total(plan.cost, cost.RENAMING if moved else step), factor)

    def _step(self, one: Labels, other: Labels, kept: Labels) -> Cost:
        """What it costs to multiply values of these labels."""
        key = one, other, kept
        if key not in self._steps:
            self._steps[key] = cost.summing(self._size((*one, *other)), self._size(kept))
        return self._steps[key]

    def _spread(self, factor: Factor, other: Plan, kept: Labels, depth: int) -> Spread | None:
        """A plan multiplied with each term of a factor that is a sum."""
        if factor.inverse or factor.node < 0 or not is_sum(self.graph[factor.node]):
            return None
        hole = -1 - depth  # the spread sums that stand within one another are of different depth
        terms: list[tuple[int, Plan]] = []
        for term in self._read(factor):
            product = Product(term.sign, (*term.factors, Factor(hole, other.labels)))
            if not (set(factor.labels) | set(other.labels)) <= product.labels | set(kept):
                return None  # a sum over an axis that this term does not have
            plan = self.best(product, tuple(k for k in kept if k in product.labels), depth + 1)
            if plan is None:
                return None
            terms.append((term.sign, plan))
        written = cost.total(self._size(kept), self._size(kept))
        steps = len(terms) - any(sign > 0 for sign, _ in terms)
        costs = [plan.cost for _, plan in terms] + [written] * steps
        return Spread(kept, cost.total(other.cost, *costs), tuple(terms), other, hole)

    def _read(self, factor: Factor) -> list[Product]:
        """The terms of a sum, read once: their labels, and with them their plans, are the same
        wherever it is spread."""
        if factor not in self._terms:
            self._terms[factor] = self.reading.terms(factor)
        return self._terms[factor]

    def _size(self, labels: Iterable[int]) -> Cost:
        """Elements of a tensor with an axis for each label."""
        every = frozenset(labels)
        if every not in self._sizes:
            axes = (self.reading.axes[label] for label in sorted(every))
            self._sizes[every] = cost.elements(map(self.reading.sized, axes))
        return self._sizes[every]


def _first(plan: Plan) -> float:
    """What is compared of a plan."""
    return plan.cost[0]


def _parts(group: int) -> Iterator[int]:
    """The proper parts of a set of bits, those of the first factors first."""
    part = -group & group
    while part != group:
        yield part
        part = (part - group) & group


def _needed(factors: Sequence[Factor], group: int, kept: Labels) -> Labels:
    """Labels of a group of factors that the rest of the product, or its reader, needs."""
    inside: dict[int, None] = {}
    outside = set(kept)
    for i, factor in enumerate(factors):
        if group >> i & 1:
            inside.update(dict.fromkeys(factor.labels))
        else:
            outside.update(factor.labels)
    return tuple(label for label in inside if label in outside)

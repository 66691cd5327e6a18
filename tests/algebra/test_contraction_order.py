"""The search for a cheap product: how much of it there is, however long a chain of products."""

from __future__ import annotations

import pytest
import sympy

from archc.algebra import rules
from archc.algebra.contraction_order import MOST_FACTORS, MOST_JOINS, Planner
from archc.algebra.product import Reading
from archc.algebra.simplify import simplify
from archc.dims import BATCH, Axis
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.count import operations
from archc.ir.graph import Type
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse
from tests.graphs import Sketch, axis

STEPS = 17

CHAIN = f"""layer Chain(d, H, K = 8, V = 8):
    input x[d]
    param W_k[d, {STEPS}, H, K]; W_v[d, H, V]; W_o[H, V, d]
    k = l2norm[K](x @ W_k)
    v = x @ W_v
    recurrence S[K, V] over H:
        R = 0.9 * S[t-1]
        repeat {STEPS} as j:
            R = STEP
        S[t] = R + k[0] @ v.T
        o    = S[t].T @ k[0]
    output y[d] = o @ W_o
"""

SPELLINGS = {
    "a matrix": "(I - k[j] @ k[j].T) @ R",
    "a difference": "R - k[j] @ (k[j].T @ R)",
    "a transposed product": "R - k[j] @ (R.T @ k[j]).T",
}


@pytest.mark.default("a difference")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_long_chain_of_corrections(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each correction takes two products of a vector with the state, and few plans are tried."""
    planners: list[Planner] = []

    def planner(reading: Reading, deepest: int = 0) -> Planner:
        planners.append(Planner(reading, deepest))
        return planners[-1]

    monkeypatch.setattr(rules, "Planner", planner)
    text = CHAIN.replace("STEP", SPELLINGS[spelling])
    simple = simplify(elaborate(parse(Source("chain.arch", text)), None, {}, import_source))
    (recurrence,) = (node.op for node in simple.graph if isinstance(node.op, ir.Recurrence))
    H, K, V = (next(a.symbol for a in simple.args if a.name == name) for name in "HKV")
    each = sympy.expand(operations(recurrence.body, {}) / (H * K * V))
    assert each == 4 * STEPS + 5
    assert sum(planner.joins for planner in planners) < 50_000


def test_equal_parts_are_planned_once() -> None:
    """`(A + B) @ (C + D) @ x`: the products within one term of a sum come back in another."""
    s = Sketch()
    a, b, c, d = (s.input(name, "batch K K'") for name in "ABCD")
    x = s.input("x", "batch K")
    left, right = s.fn("add", a, b), s.fn("add", c, d)
    both = s.einsum("batch K j, batch j K' -> batch K K'", left, right)
    root = s.graph[s.einsum("batch K j, batch j -> batch K", both, x)]
    reading = Reading(s.graph, root)
    planner = Planner(reading, 2)
    first = planner.best(reading.product, reading.out)
    joins = planner.joins
    assert first is not None and 0 < joins < 100
    assert planner.best(reading.product, reading.out) is first
    assert planner.joins == joins


def test_ways_are_compared_at_usual_sizes() -> None:
    """Not where there is one token: for 64, 16 rows of weights of them are summed up first."""
    s, few = Sketch(), Axis("i", sympy.Integer(16))
    a = s.add(ir.Input("a", Type((BATCH, few, axis("s")), "real")), name="a")
    both = s.einsum(
        "batch s K, batch K V -> batch s V", *map(s.input, "bc", ("batch s K", "batch K V"))
    )
    names, out = (("batch", "i", "s"), ("batch", "s", "V")), [("batch", BATCH), ("i", few)]
    root = s.add(ir.Contract(names, (*out, ("V", axis("V")))), a, both)
    reading = Reading(s.graph, s.graph[root])
    best = Planner(reading).best(reading.product, reading.out)
    products, kept = 2 * 16 * 64 * 64, 2 * 16 * 64
    assert best is not None and best.cost[0] == 2 * products + kept


def test_a_product_of_very_many_factors_is_left_as_it_is() -> None:
    s = Sketch()
    value = s.input("a0", "batch K V")
    for i in range(MOST_FACTORS):
        value = s.einsum("batch K j, batch j V -> batch K V", s.input(f"A{i}", "batch K j"), value)
    reading = Reading(s.graph, s.graph[value])
    assert len(reading.product.factors) == MOST_FACTORS + 1
    planner = Planner(reading)
    assert planner.best(reading.product, reading.out) is None
    assert planner.joins < MOST_JOINS

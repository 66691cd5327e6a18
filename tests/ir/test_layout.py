"""The layered layout: order, layers, crossings and distances."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from archc.ir.layout import Spacing, assign_layers, crossings, lay_out, non_decreasing

SPACING = Spacing(layers=40, boxes=20, edges=10, stretch=400)

graphs = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        st.just(n), st.sets(st.sampled_from(list(combinations(range(n), 2))), max_size=14)
    )
)
"""A number of boxes and edges from earlier to later ones."""


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=20))
def test_pooled_means_are_the_isotonic_regression(values: list[float]):
    assert np.allclose(non_decreasing(values), isotonic_regression(values).x, atol=1e-9)


@given(graphs)
def test_every_edge_runs_forward(graph: tuple[int, set[tuple[int, int]]]):
    count, edges = graph
    layer = assign_layers(dict.fromkeys(range(count), 100.0), sorted(edges), 350.0)
    assert all(layer[tail] < layer[head] for tail, head in edges)
    assert set(layer.values()) == set(range(max(layer.values()) + 1))
    for number in layer.values():
        assert sum(1 for other in layer.values() if other == number) * 100 <= 350


@settings(max_examples=40, deadline=None)
@given(graphs)
def test_boxes_keep_their_distance(graph: tuple[int, set[tuple[int, int]]]):
    count, edges = graph
    sizes = {box: (30.0, 60.0 + 10 * box) for box in range(count)}
    layout = lay_out(sizes, sorted(edges), SPACING)
    for a, b in combinations(range(count), 2):
        if layout.layer[a] == layout.layer[b]:
            apart = abs(layout.centre[a] - layout.centre[b])
            assert apart >= (sizes[a][1] + sizes[b][1]) / 2 + SPACING.boxes - 1e-6


def test_crossings_are_counted_pair_by_pair():
    columns = [[0, 1, 2], [3, 4, 5]]
    links = [(0, 5), (1, 3), (2, 4), (0, 3), (2, 3)]
    rank = {key: place for column in columns for place, key in enumerate(column)}
    slow = sum(
        (rank[a] - rank[c]) * (rank[b] - rank[d]) < 0 for (a, b), (c, d) in combinations(links, 2)
    )
    assert crossings(columns, links) == slow == 3


def test_order_avoids_crossings_that_need_not_be():
    """Two chains given crosswise end up beside one another."""
    sizes = dict.fromkeys((0, 1, 2, 3), (10.0, 10.0))
    layout = lay_out(sizes, [(0, 3), (1, 2)], SPACING)
    assert (layout.centre[0] - layout.centre[1]) * (layout.centre[3] - layout.centre[2]) > 0


def test_a_chain_is_straight():
    layout = lay_out({0: (10, 50), 1: (10, 90), 2: (10, 20)}, [(0, 1), (1, 2)], SPACING)
    assert layout.centre[0] == pytest.approx(layout.centre[1])
    assert layout.centre[1] == pytest.approx(layout.centre[2])


def test_a_long_edge_passes_the_layers_between():
    layout = lay_out(dict.fromkeys((0, 1, 2), (10.0, 10.0)), [(0, 1), (1, 2), (0, 2)], SPACING)
    assert len(layout.passes[0, 2]) == 1
    assert layout.passes[0, 1] == ()
    dummy = layout.passes[0, 2][0]
    assert abs(layout.centre[dummy] - layout.centre[1]) >= 5 + SPACING.edges - 1e-6

"""Layered layout of boxes and edges: which layer, in which order, where, and how edges run.

Everything is in flow coordinates: `u` runs along the dataflow, `v` across it; the picture decides
which of the two is x. The steps are the classical ones: layers by longest path, dummies where an
edge passes a layer, fewer crossings by barycentres, then positions by least squares with a minimum
distance.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Key = int | tuple[int, int, int]
"""A box, or the dummy `(tail, head, layer)` that an edge leaves in a layer it passes."""

SWEEPS, PLACINGS = 12, 200  # rounds of ordering and of placing, as long as the graph is small
EFFORT = 60_000  # keys times rounds: bounds the time that a large graph takes
PULL = 0.4  # of the middle line on every box, in edges: keeps pictures narrow


@dataclass(frozen=True)
class Spacing:
    """Distances between layers, between boxes of a layer and around a passing edge; and how far a
    layer may stretch across the flow before its boxes stand in two."""

    layers: float
    boxes: float
    edges: float
    stretch: float


@dataclass(frozen=True)
class Layout:
    """Centre `v` and layer of each box, start and thickness of each layer, dummies of each edge."""

    layer: dict[int, int]
    centre: dict[Key, float]
    starts: tuple[float, ...]
    thickness: tuple[float, ...]
    passes: dict[tuple[int, int], tuple[Key, ...]]


def lay_out(
    sizes: Mapping[int, tuple[float, float]], edges: Sequence[tuple[int, int]], spacing: Spacing
) -> Layout:
    """Place boxes of the given (du, dv), listed in dataflow order."""
    room = {box: size[1] + spacing.boxes for box, size in sizes.items()}
    layer = assign_layers(room, edges, spacing.stretch)
    columns, links, passes = with_dummies(layer, edges)
    columns = reduce_crossings(columns, links)
    thickness = tuple(
        max((sizes[key][0] for key in column if isinstance(key, int)), default=0)
        for column in columns
    )
    starts, at = [], 0.0
    for width in thickness:
        starts.append(at)
        at += width + spacing.layers
    extent = {key: sizes[key][1] if isinstance(key, int) else 0.0 for c in columns for key in c}
    return Layout(layer, place(columns, links, extent, spacing), tuple(starts), thickness, passes)


def assign_layers(
    room: Mapping[int, float], edges: Sequence[tuple[int, int]], stretch: float
) -> dict[int, int]:
    """Each box right after what it reads, where there is room; with slack, close to its readers."""
    before: dict[int, list[int]] = {box: [] for box in room}
    after: dict[int, list[int]] = {box: [] for box in room}
    for tail, head in edges:
        before[head].append(tail)
        after[tail].append(head)
    layer: dict[int, int] = {}
    filled: dict[int, float] = defaultdict(float)
    for box in room:
        number = max((layer[other] + 1 for other in before[box]), default=0)
        while filled[number] > 0 and filled[number] + room[box] > stretch:
            number += 1
        layer[box] = number
        filled[number] += room[box]
    for box in reversed(list(room)):
        number = min((layer[other] for other in after[box]), default=0) - 1
        while number > layer[box] and filled[number] + room[box] > stretch:
            number -= 1
        if number > layer[box] and len(before[box]) <= len(after[box]):
            filled[layer[box]] -= room[box]
            filled[number] += room[box]
            layer[box] = number
    used = {number: place for place, number in enumerate(sorted(set(layer.values())))}
    return {box: used[number] for box, number in layer.items()}


def with_dummies(
    layer: Mapping[int, int], edges: Sequence[tuple[int, int]]
) -> tuple[list[list[Key]], list[tuple[Key, Key]], dict[tuple[int, int], tuple[Key, ...]]]:
    """Boxes by layer, dummies where an edge passes one, and links between neighbouring layers."""
    columns: list[list[Key]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for box, number in layer.items():
        columns[number].append(box)
    links: list[tuple[Key, Key]] = []
    passes: dict[tuple[int, int], tuple[Key, ...]] = {}
    for tail, head in edges:
        between = range(layer[tail] + 1, layer[head])
        dummies: tuple[Key, ...] = tuple((tail, head, number) for number in between)
        for number, dummy in zip(between, dummies, strict=True):
            columns[number].append(dummy)
        chain = (tail, *dummies, head)
        links += itertools.pairwise(chain)
        passes[tail, head] = dummies
    return columns, links, passes


def reduce_crossings(columns: list[list[Key]], links: Sequence[tuple[Key, Key]]) -> list[list[Key]]:
    """Order each layer by the mean place of its neighbours, back and forth; keep the best order."""
    best, fewest = columns, crossings(columns, links)
    before, after = neighbours(links, True), neighbours(links, False)
    for sweep in range(rounds(columns, SWEEPS)):
        forward = sweep % 2 == 0
        near = before if forward else after
        columns = [list(column) for column in columns]
        steps = range(1, len(columns)) if forward else range(len(columns) - 2, -1, -1)
        for number in steps:
            reference = columns[number - 1 if forward else number + 1]
            rank = {key: place for place, key in enumerate(reference)}
            own = {key: place for place, key in enumerate(columns[number])}
            columns[number].sort(key=lambda key: mean([rank[n] for n in near[key]], own[key]))
        count = crossings(columns, links)
        if count < fewest:
            best, fewest = columns, count
    return best


def rounds(columns: Sequence[Sequence[Key]], most: int) -> int:
    """The number of rounds that a graph of this size is worth."""
    return max(4, min(most, EFFORT // max(1, sum(map(len, columns)))))


def crossings(columns: Sequence[Sequence[Key]], links: Sequence[tuple[Key, Key]]) -> int:
    """The number of pairs of links that cross."""
    rank = {key: place for column in columns for place, key in enumerate(column)}
    number = {key: n for n, column in enumerate(columns) for key in column}
    between: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for a, b in links:
        between[number[a]].append((rank[a], rank[b]))
    total = 0
    for ends in between.values():
        seen: list[int] = []
        for _, end in sorted(ends):
            total += len(seen) - bisect.bisect_right(seen, end)
            bisect.insort(seen, end)
    return total


def neighbours(links: Sequence[tuple[Key, Key]], forward: bool) -> dict[Key, list[Key]]:
    """For each key, those linked to it in the layer before (`forward`) or after."""
    near: dict[Key, list[Key]] = defaultdict(list)
    for a, b in links:
        near[b if forward else a].append(a if forward else b)
    return near


def mean(values: Sequence[float], otherwise: float) -> float:
    """The mean, or `otherwise` if there is nothing."""
    return sum(values) / len(values) if values else otherwise


def place(
    columns: Sequence[Sequence[Key]],
    links: Sequence[tuple[Key, Key]],
    room: Mapping[Key, float],
    spacing: Spacing,
) -> dict[Key, float]:
    """Centre of each key: near the mean of its neighbours, in order, and without overlap."""
    before, after = neighbours(links, True), neighbours(links, False)
    centre: dict[Key, float] = {}
    for column in columns:
        stacked = distances(column, room, spacing)
        centre |= {key: at - stacked[-1] / 2 for key, at in zip(column, stacked, strict=True)}
    for sweep in range(rounds(columns, PLACINGS)):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = []
            for key in column:
                near = [centre[other] for other in (*before[key], *after[key])]
                wanted.append(sum(near) / (len(near) + PULL))
            offsets = distances(column, room, spacing)
            free = [want - offset for want, offset in zip(wanted, offsets, strict=True)]
            fitted = non_decreasing(free)
            centre |= {k: f + o for k, f, o in zip(column, fitted, offsets, strict=True)}
    return centre


def distances(column: Sequence[Key], room: Mapping[Key, float], spacing: Spacing) -> list[float]:
    """The closest that the centres of a layer can be stacked, from 0."""
    at, offsets = 0.0, [0.0]
    for upper, lower in itertools.pairwise(column):
        both_boxes = isinstance(upper, int) and isinstance(lower, int)
        gap = spacing.boxes if both_boxes else spacing.edges
        at += (room[upper] + room[lower]) / 2 + gap
        offsets.append(at)
    return offsets


def non_decreasing(values: Sequence[float]) -> list[float]:
    """The non-decreasing sequence nearest to the values in least squares (pooled means)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        total, count = value, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            last = pools.pop()
            total, count = total + last[0], count + last[1]
        pools.append((total, count))
    return [total / count for total, count in pools for _ in range(count)]

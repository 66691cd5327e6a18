"""Summaries of runs of tokens -> graphs that join two of them, and that carry a state over one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.recurrence.chunk.frame import input_of, settled
from archc.recurrence.law.parts import (
    BLOCKS,
    FACTOR,
    MATRIX,
    MAXIMUM,
    RESCALED,
    Group,
    addition,
)

Parts = Mapping[str, Type]


def merge_graph(groups: Sequence[Group], parts: Parts) -> Graph:
    """The summary of two runs, one after the other, from `<part>.1` and `<part>.2`."""
    graph = layer_graph()
    first, second = (
        {name: input_of(graph, f"{name}.{which}", type) for name, type in parts.items()}
        for which in (1, 2)
    )
    before = {s.name: first[addition(s.name)] for group in groups for s in group.states}
    after = _moved(graph, groups, second, before)
    for group in groups:
        name = group.transition
        joined = JOINED[group.kind](graph, group, second[name], first[name])
        graph.outputs[name] = settled(graph, joined, parts[name])
        for state in group.states:
            own = addition(state.name)
            graph.outputs[own] = settled(graph, after[state.name], parts[own])
    return graph


def apply_graph(groups: Sequence[Group], parts: Parts) -> Graph:
    """The states after a run, `S[T]`, from its summary and the states before it, `S[0]`."""
    graph = layer_graph()
    given = {name: input_of(graph, name, type) for name, type in parts.items()}
    states = [state for group in groups for state in group.states]
    before = {s.name: input_of(graph, ck.start(s.name), Type(s.axes)) for s in states}
    after = _moved(graph, groups, given, before)
    for state in states:
        graph.outputs[ck.final(state.name)] = settled(graph, after[state.name], Type(state.axes))
    return graph


def identity_graph(groups: Sequence[Group], parts: Parts) -> Graph:
    """The summary of no tokens."""
    graph = layer_graph()
    make = Builder(graph)
    for group in groups:
        own = make.number(0 if group.kind in (RESCALED, MAXIMUM) else 1)
        if group.kind in (MATRIX, BLOCKS):
            own = _unit(graph, group)
        graph.outputs[group.transition] = settled(graph, own, parts[group.transition])
        nothing = make.number(-sympy.oo if group.kind == MAXIMUM else 0)
        for state in group.states:
            name = addition(state.name)
            graph.outputs[name] = settled(graph, nothing, parts[name])
    return graph


# --- a state over a run -------------------------------------------------------------------------


def _moved(
    graph: Graph, groups: Sequence[Group], run: Mapping[str, int], before: Mapping[str, int]
) -> dict[str, int]:
    """The states after a run, from its parts and the states before it."""
    make = Builder(graph)
    after: dict[str, int] = {}
    for group in sorted(groups, key=lambda group: group.kind != MAXIMUM):
        transition = run[group.transition]
        if group.kind == BLOCKS:
            after |= _blocks(graph, group, transition, run, before)
            continue
        for state in group.states:
            old, own = before[state.name], run[addition(state.name)]
            if group.kind == MAXIMUM:
                after[state.name] = make.fn("max", make.fn("add", transition, old), own)
                continue
            kept = _applied(graph, group, transition, old)
            if group.kind == RESCALED:
                marks = (before[group.gauge], after[group.gauge], run[addition(group.gauge)])
                kept, own = _rescaled(graph, group, transition, old, own, marks)
            after[state.name] = make.fn("add", kept, own)
    return after


def _applied(graph: Graph, group: Group, transition: int, old: int) -> int:
    """P of a state: elementwise, or a matrix."""
    if group.kind != MATRIX:
        return Builder(graph).fn("mul", transition, old)
    renamed = dict(zip((a.name for a in group.rows), (a.name for a in group.copies), strict=True))
    labels = tuple(renamed.get(name, name) for name in graph[old].type.names)
    return _product(graph, transition, graph[transition].type.names, old, labels, group.copies)


def _rescaled(
    graph: Graph, group: Group, log: int, old: int, own: int, marks: tuple[int, int, int]
) -> tuple[int, int]:
    """The rest of the state before, and the addend of the run, both to the scale of the maximum
    after it: `marks` are the maximum before, after, and of the run alone."""
    make = Builder(graph)
    first, last, mine = marks
    kept = make.fn("add", log, _change(graph, group, first, last))
    return (
        make.fn("mul", make.fn("exp", kept), old),
        make.fn("mul", make.fn("exp", _change(graph, group, mine, last)), own),
    )


def _change(graph: Graph, group: Group, old: int, new: int) -> int:
    """sign * (new - old) of a maximum, and 0 where both are -inf."""
    make = Builder(graph)
    pair = (new, old) if group.sign > 0 else (old, new)
    same = make.fn("eq", old, new)
    return make.fn("where", same, make.number(0), make.fn("sub", *pair))


def _blocks(
    graph: Graph,
    group: Group,
    transition: int,
    run: Mapping[str, int],
    before: Mapping[str, int],
) -> dict[str, int]:
    """States that feed one another: each from all of them."""
    make = Builder(graph)
    (row, *rows), (column, *copies) = group.rows, group.copies
    kind = MATRIX if rows else FACTOR
    inner = replace(group, kind=kind, rows=tuple(rows), copies=tuple(copies))
    after = {}
    for i, state in enumerate(group.states):
        total = run[addition(state.name)]
        mine = graph.add(ck.Select(row.name, i), transition)
        for j, other in enumerate(group.states):
            entry = graph.add(ck.Select(column.name, j), mine)
            total = make.fn("add", total, _applied(graph, inner, entry, before[other.name]))
        after[state.name] = total
    return after


# --- P of two runs ------------------------------------------------------------------------------


def _times(graph: Graph, group: Group, second: int, first: int) -> int:
    return Builder(graph).fn("mul", second, first)


def _plus(graph: Graph, group: Group, second: int, first: int) -> int:
    return Builder(graph).fn("add", second, first)


def _matrices(graph: Graph, group: Group, second: int, first: int) -> int:
    """P2 @ P1: the copies of the second are the rows of the first."""
    names = graph[second].type.names
    rows, copies = ([axis.name for axis in axes] for axes in (group.rows, group.copies))
    middle = [f"{name} between" for name in copies]
    left = dict(zip(copies, middle, strict=True))
    right = dict(zip(rows, middle, strict=True))
    ins = (tuple(left.get(n, n) for n in names), tuple(right.get(n, n) for n in names))
    axes = graph[second].type.axes
    out = tuple((axis.name, axis) for axis in axes)
    return graph.add(ir.Contract(ins, out), second, first)


JOINED: dict[str, Callable[[Graph, Group, int, int], int]] = {
    FACTOR: _times,
    RESCALED: _plus,
    MAXIMUM: _plus,
    MATRIX: _matrices,
    BLOCKS: _matrices,
}
"""P of two runs from the P of the second and of the first."""


# --- small nodes --------------------------------------------------------------------------------


def _unit(graph: Graph, group: Group) -> int:
    """The identity between rows and copies."""
    pairs = zip(group.rows, group.copies, strict=True)
    ids = [graph.add(ir.Delta(row, copy)) for row, copy in pairs]
    return Builder(graph).chain("mul", ids)


def _product(
    graph: Graph,
    a: int,
    a_labels: Sequence[str],
    b: int,
    b_labels: Sequence[str],
    over: Sequence[Axis],
) -> int:
    """The sum of a * b over the axes `over`."""
    gone = {axis.name for axis in over}
    out: dict[str, Axis] = {}
    for id, labels in ((a, a_labels), (b, b_labels)):
        for label, axis in zip(labels, graph[id].type.axes, strict=True):
            if label not in gone:
                out.setdefault(label, axis)
    return graph.add(ir.Contract((tuple(a_labels), tuple(b_labels)), tuple(out.items())), a, b)

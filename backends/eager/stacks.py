"""Stacks of layers in a graph: calls that each take what the one before made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archc.backends.eager.naming import listed

from archc.ir import layer as ir
from archc.ir.graph import Graph


@dataclass(frozen=True)
class Chain:
    """Calls `layers.0`, `layers.1`, ...: each is given what the one before made.

    `carried` names the result that becomes each operand, None for one that all of them are given.
    """

    path: str
    calls: tuple[int, ...]
    carried: tuple[str | None, ...]


def chains(graph: Graph) -> dict[int, Chain]:
    """The stacks of a graph, by each call in them; one layer alone is no stack."""
    stacks: dict[str, list[int]] = {}
    for node in graph:
        place = listed(node.op.path) if isinstance(node.op, ir.Call) else None
        if place is not None:
            stacks.setdefault(place[0], []).append(node.id)
    found: dict[int, Chain] = {}
    for path, ids in stacks.items():
        calls = sorted(ids, key=lambda id: listed(graph[id].op.path) or ("", 0))
        carried = _carried(graph, calls)
        if carried is not None and len(calls) > 1:
            found |= dict.fromkeys(calls, Chain(path, tuple(calls), carried))
    return found


def _carried(graph: Graph, ids: Sequence[int]) -> tuple[str | None, ...] | None:
    """The result that becomes each operand of the calls, if it is the same for all of them."""
    if len({len(graph[id].operands) for id in ids}) != 1:
        return None
    carried: list[str | None] = []
    for place in range(len(graph[ids[0]].operands)):
        given = [graph[id].operands[place] for id in ids]
        makers = [graph[o].operands[0] if graph[o].operands else -1 for o in given[1:]]
        if len(set(given)) == 1:
            carried.append(None)
        elif makers == list(ids[:-1]):
            names = {graph[o].op.name for o in given[1:]}
            carried.append(names.pop() if len(names) == 1 else "")
        else:
            return None
    between = {user for id in ids[:-1] for user in graph.users(id)}
    inside = all(set(graph.users(user)) <= set(ids) for user in between)
    return tuple(carried) if inside and "" not in carried else None

"""Products of which a quotient shows every rounding.

    o = (q @ S) / (q @ z),    d.q = sum[V] r (S - z o)  where  r = d.o / (q @ z)

A quotient stays as it is when what it is made of grows alike, so that part of a gradient cancels: S
is nearly z o. What is left is smaller than S, by the root of the number of tokens behind it, and so
is no larger than what is rounded off S, r or o in 16 bits. States that are divided by others are
therefore kept in float32, the gradient computes the quotient again instead of reading it as rounded
for the caller, and products with these are exact, whatever the data are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.schedule.axes import labelled
from archc.schedule.forms import Differentiated, bare, derived, with_forms

DIV = ir.Elementwise("div")


def quotients_again(layer: ir.Layer, differentiate: Callable[..., Differentiated]) -> ir.Layer:
    """The layer, its gradients with such quotients computed again."""

    def change(form: ck.ChunkForm) -> ck.ChunkForm | None:
        """The form, if its gradient reads a quotient."""
        read = {form.forward.outputs[name] for name in form.saved}
        if not read & {each.id for each in _quotients(form.forward)}:
            return None
        graph = bare(form)
        never = frozenset(each.id for each in _quotients(graph))
        return derived(form, graph, partial(differentiate, never=never))

    return with_forms(layer, change)


def exact_products(graph: Graph) -> frozenset[int]:
    """The products of a gradient that are done in float32 whatever the data are: those that a
    quotient is made of, and sums over a dim of what is divided."""
    given = [q.id for q in _quotients(graph) if _states(graph, q.below, ir.Input)]
    if not given:
        return frozenset()
    sums = {product.id for id in given for product in _products_of(graph, id)}
    return _made_of(graph) | sums


def exact_states(graph: Graph) -> frozenset[int]:
    """The states that are saved for such a gradient."""
    operands = {o for id in _made_of(graph) for o in graph[id].operands}
    states = {state for o in operands for state in _states(graph, o, ir.Result)}
    return frozenset(states & set(graph.outputs.values()))


@dataclass(frozen=True)
class _Quotient:
    """A value that is divided, `above` by `below`."""

    id: int
    above: int
    below: int


def _quotients(graph: Graph) -> list[_Quotient]:
    """The quotients whose divisor comes from a state."""
    found = list[_Quotient]()
    for node in graph:
        if node.op == DIV and _states(graph, node.operands[1], (ir.Input, ir.Result)):
            above, below = node.operands
            number = not graph[above].type.axes
            made = [*_multiplied(graph, node.id)] if number else []
            found += [_Quotient(id, other, below) for id, other in made or [(node.id, above)]]
    return found


def _multiplied(graph: Graph, reciprocal: int) -> Iterator[tuple[int, int]]:
    """What a reciprocal scales of products over a dim, as it is or bounded, in chunks or under
    other names: what that gives, and the products."""
    for user in map(graph.__getitem__, graph.users(reciprocal)):
        bounded = user.op in (ir.Elementwise("min"), ir.Elementwise("max"))
        if user.op == ir.Elementwise("mul"):
            others = [o for o in user.operands if o != reciprocal and ir.is_product(graph[o].op)]
            yield from ((user.id, o) for o in others if _sums_a_dim(graph, graph[o]))
        elif bounded or isinstance(user.op, ck.Chunks) or len(user.operands) == 1:
            yield from _multiplied(graph, user.id)


def _states(graph: Graph, id: int, kinds: Any) -> set[int]:
    """The states at the start of a chunk that a value depends on."""
    return {found for found in (id, *graph.ancestors(id)) if _is_state(graph[found], kinds)}


def _is_state(node: Node, kinds: Any) -> bool:
    """Whether a value is one for each chunk, and none for its rows."""
    axes = node.type.axes
    chunks = [a for a in axes if a.kind == "stream" and a.size.has(ck.CHUNK)]
    rows = [a for a in axes if a.size == ck.CHUNK or (a.kind == "stream" and a not in chunks)]
    return isinstance(node.op, kinds) and bool(chunks) and not rows


def _made_of(graph: Graph) -> frozenset[int]:
    """The last products before what is divided and what divides it, where both are of states. What
    is divided as a sum of elements is no product: it is added up in float32."""
    found: set[int] = set()
    for each in _quotients(graph):
        if _states(graph, each.above, (ir.Input, ir.Result)):
            found |= _last_products(graph, each.above, sums=False)
            found |= _last_products(graph, each.below)
    return frozenset(found)


def _last_products(graph: Graph, id: int, sums: bool = True) -> set[int]:
    """The products that a value is made of element by element, or by sums of elements."""
    found, seen, stack = set[int](), set[int](), [id]
    while stack:
        node = graph[stack.pop()]
        ends = (ir.Input, ir.Result) if sums else (ir.Input, ir.Result, ir.Reduce)
        if node.id in seen or isinstance(node.op, ends):
            continue
        seen.add(node.id)
        if ir.is_product(node.op):
            found.add(node.id)
        else:
            stack += node.operands
    return found


def _products_of(graph: Graph, id: int) -> list[Node]:
    """The first products made of a value that sum over a dim of it."""
    found, seen, stack = list[Node](), set[int](), [id]
    while stack:
        for user in graph.users(stack.pop()):
            node = graph[user]
            if user in seen or isinstance(node.op, ir.Recurrence):
                continue
            seen.add(user)
            if not ir.is_product(node.op):
                stack.append(user)
            elif _sums_a_dim(graph, node):
                found.append(node)
    return found


def _sums_a_dim(graph: Graph, node: Node) -> bool:
    """Whether a product sums over something else than rows."""
    kept = {label for label, _ in node.op.out}
    gone = (axis for label, axis in labelled(graph, node) if label not in kept)
    return any(axis.kind == "dim" and axis.size != ck.CHUNK for axis in gone)

"""Products with parameters as calls of `nn.Linear`, for quantisers and adapters, which look for
these: `x @ W_q` is `self.W_q(x)`, and the weight is kept as [out, in]."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import sympy
from archc.backends.eager.fusion import fuse
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import Value
from archc.backends.expression import ATOM, Text, call

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.routes import routes


@dataclass(frozen=True)
class LinearMap:
    """The dims of a parameter that a product makes, and those that it sums over, by place."""

    made: tuple[int, ...]
    summed: tuple[int, ...]

    def lengths(self, axes: tuple[Axis, ...]) -> tuple[sympy.Expr, sympy.Expr]:
        """The numbers of a token that enter a linear map, and those that leave it."""
        entering = sympy.Mul(*(axes[place].size for place in self.summed))
        return entering, sympy.Mul(*(axes[place].size for place in self.made))

    def __str__(self) -> str:
        return f"({self.made}, {self.summed})"


@lru_cache(maxsize=256)
def linear_maps(layer: ir.Layer) -> dict[int, LinearMap]:
    """The parameters of a layer that nothing is done with but to multiply values of tokens by."""
    graph, written = layer.graph, _written(layer.graph)
    chosen = {id for route in routes(graph) for id in route.products}
    found: dict[int, LinearMap] = {}
    for id, _ in layer.params:
        maps = {
            _map(graph, graph[user], id) if user in written - chosen else None
            for user in graph.users(id)
        }
        only = maps.pop() if len(maps) == 1 else None
        if only is not None and id not in graph.outputs.values():
            found[id] = only
    return found


def _written(graph: Graph) -> set[int]:
    """Nodes that are lines of their own, or parts of one, and not of a pattern."""
    fused, seen, waiting = fuse(graph), set[int](), list(graph.outputs.values())
    while waiting:
        id = waiting.pop()
        if id not in seen:
            seen.add(id)
            waiting += fused[id].operands if id in fused else graph[id].operands
    return seen - {*fused}


def _map(graph: Graph, node: Node, param: int) -> LinearMap | None:
    """The map of a product with a parameter, if `nn.Linear` computes it."""
    op = node.op
    if not ir.is_product(op) or node.operands.count(param) != 1:
        return None
    place = node.operands.index(param)
    own, other = op.ins[place], op.ins[1 - place]
    if "batch" not in graph[node.operands[1 - place]].type.names:
        return None
    kept = [label for label, _ in op.out]
    summed = tuple(i for i, label in enumerate(own) if label in other and label not in kept)
    made = tuple(i for i, label in enumerate(own) if label in kept and label not in other)
    plain = len({*own}) == len(own) and len({*other}) == len(other)
    inner = [label for label in other if label not in kept]
    if not plain or len(summed) + len(made) != len(own) or len(inner) != len(summed):
        return None
    return LinearMap(made, summed) if made and summed else None


def linear_call(scope: Scope, node: Node) -> Value | None:
    """`self.W_q(x)` with the dims as the product has them; None where no map is in it."""
    place = next((i for i, operand in enumerate(node.operands) if operand in scope.linear), None)
    if place is None:
        return None
    param, other = node.operands[place], node.operands[1 - place]
    graph, op, found = scope.graph, node.op, scope.linear[param]
    axis_of = dict(op.out)
    label_of = dict(zip(graph[other].type.names, op.ins[1 - place], strict=True))
    summed = [op.ins[place][i] for i in found.summed]
    rest = [name for name, label in label_of.items() if label not in summed]
    inner = [name for label in summed for name, each in label_of.items() if each == label]
    text = scope.whole(other, [*rest, *inner])
    if len(inner) > 1:
        text = call(f"{text.at(ATOM)}.flatten", f"-{len(inner)}")
    text = call(scope.value(param).text.text, text)
    made = [axis_of[op.ins[place][i]] for i in found.made]
    if len(made) > 1:
        sizes = ", ".join(str(scope.length(axis).text) for axis in made)
        text = call(f"{text.at(ATOM)}.unflatten", "-1", f"({sizes})")
    have = [*(axis_of[label_of[name]].name for name in rest), *(axis.name for axis in made)]
    return scope.settled(node, Text(text.text), have)

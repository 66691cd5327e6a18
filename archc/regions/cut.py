"""Layer graph -> its token regions: maximal connected convex parts of what runs along the tokens.

Nodes are visited in dataflow order; each joins the groups of its operands where no path leaves the
joined group and comes back to it. What a joined group reads and writes is then held against the
passes that PyTorch makes: a group that saves none stays where it is, and says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache

import sympy

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.routes import routed
from archc.ir.token_region import Left, TokenRegion, is_token_type
from archc.regions.body import Body, leaves, nearest
from archc.regions.token_ops import fits, is_matrix_product, is_table

WORTH = 1.5
"""How many times the bytes of a region PyTorch must move for a kernel of its own to be worth it."""

SAMPLE = 64
"""The size of a dim where it is not told: passes are compared, so that it hardly matters."""

TAPS = 4
"""How many passes a short convolution is in PyTorch, each of which reads two values."""


SMALL = 3
"""How many times what it moves a sum of products of a token's values takes in PyTorch: a product of
small matrices (82 us on an H200 where 84 MB take 20)."""

CHOICE = 12
"""How many passes a choice of the largest is in PyTorch."""


def regions(
    graph: Graph, stream: str = "t", never: Collection[int] = ()
) -> list[TokenRegion | Left]:
    """The token regions of a layer's graph, in dataflow order, and what could be one and is not
    worth it. `never`: nodes that stay where they are, as those of routes do."""
    found: list[TokenRegion | Left] = []
    for members in groups(graph, stream, {*never, *routed(graph)}):
        made = _region(graph, members, stream)
        ratio = made.passes / max(made.least, 1e-9)
        if ratio < WORTH:
            found += [_left(graph, made, ratio)] if made.passes else []
        elif not _learns(made):
            reason = "it reads nothing but whole numbers, truths and positions, which have no dtype"
            found.append(Left(made.name, members, reason))
        else:
            found.append(made)
    return found


def _left(graph: Graph, region: TokenRegion, ratio: float) -> Left:
    """A region that stays in PyTorch, with what its passes move."""
    every = sum(
        (_moved(graph, graph[id], region.stream) for id in region.members), sympy.Integer(0)
    )
    moved = f"{sympy.expand(2 * every)} bytes a token in 16 bits, {ratio:.1f} times its own"
    return Left(region.name, region.members, f"PyTorch moves {moved}, which no kernel is worth")


# --- groups -------------------------------------------------------------------------------------


def groups(graph: Graph, stream: str, never: Collection[int] = ()) -> list[frozenset[int]]:
    """Maximal connected convex groups of nodes that fit, each after those that it reads."""
    chosen = [n for n in graph if n.id not in never and fits(graph, n, stream)]
    partition = _Partition(graph, stream)
    fitting = {node.id for node in chosen}
    for node in chosen:
        for operand in node.operands:
            if operand in fitting:
                partition.join(operand, node.id)
    return partition.groups([node.id for node in chosen])


class _Partition:
    """Nodes in groups, such that no group reads, however indirectly, what is made of it."""

    def __init__(self, graph: Graph, stream: str):
        self.graph, self.stream = graph, stream
        self.home = {node.id: node.id for node in graph}
        self.members = {node.id: [node.id] for node in graph}
        choices = [node.id for node in graph if isinstance(node.op, ir.Top)]
        self.behind = {id: graph.descendants(id) for id in choices}

    def join(self, one: int, other: int) -> None:
        """Make one group of two, if no path leaves it and comes back, and no choice is made in it
        that it reads: a gradient must not choose anew. No part of a dim stands beside a short
        convolution, of whose values Triton cannot pick more or fewer than there are. A product of
        small matrices joins what reads it, and of what it reads elementwise ops alone: each block
        of its columns would make a sum again."""
        a, b = self.home[one], self.home[other]
        if a == b or self._leads_around(a, b) or self._leads_around(b, a):
            return
        both = {*self.members[a], *self.members[b]}
        if any(id in both and behind & both for id, behind in self.behind.items()):
            return
        nodes = [self.graph[id] for id in both]
        products = [node for node in nodes if is_matrix_product(self.graph, node, self.stream)]
        walks = any(isinstance(node.op, ir.Window) for node in nodes)
        if walks and (products or any(_changes_length(self.graph, node) for node in nodes)):
            return
        if any(self._sums(operand, both) for node in products for operand in node.operands):
            return
        for id in self.members.pop(b):
            self.home[id] = a
            self.members[a].append(id)

    def _sums(self, id: int, members: set[int]) -> bool:
        """Whether a value is made with a sum, a choice or a look at other tokens by members."""
        if id not in members:
            return False
        node = self.graph[id]
        if not isinstance(node.op, ir.Elementwise):
            return True
        return any(self._sums(operand, members) for operand in node.operands)

    def _leads_around(self, a: int, b: int) -> bool:
        """Whether a path from group a to group b goes through a third one."""
        seen, waiting = {a, b}, [g for g in self._after(a) if g not in (a, b)]
        while waiting:
            group = waiting.pop()
            if group in seen:
                continue
            seen.add(group)
            after = self._after(group)
            if b in after:
                return True
            waiting += after
        return False

    def _after(self, group: int) -> set[int]:
        """The groups that read a group."""
        users = (user for id in self.members[group] for user in self.graph.users(id))
        return {self.home[user] for user in users} - {group}

    def groups(self, ids: Iterable[int]) -> list[frozenset[int]]:
        """The groups of these nodes."""
        found = dict.fromkeys(self.home[id] for id in ids)
        return [frozenset(self.members[group]) for group in found]


def _changes_length(graph: Graph, node: Node) -> bool:
    """Whether a node has a part of a dim, or joins parts."""
    if isinstance(node.op, ir.Join):
        return True
    if not isinstance(node.op, ir.Gather):
        return False
    value, index = (graph[id].type for id in node.operands)
    return [axis.size for axis in index.axes] != [value.axis(node.op.axis).size]


# --- one region ---------------------------------------------------------------------------------


def _region(graph: Graph, members: frozenset[int], stream: str) -> TokenRegion:
    """A group as a region, with the bytes that it saves."""
    first = next(n.id for n in graph if n.id in members and leaves(graph, members, n.id))
    name = nearest(graph, first, members)
    if name == "x":
        name = _after(graph, first)
    body = Body(graph, members, stream)
    body.fill(name)
    ends = (*body.reads.values(), *body.makes.values())
    least = sum(_sampled(numbers(graph[id].type, stream)) for id in ends)
    passes = sum(_sampled(_moved(graph, graph[id], stream)) for id in members)
    tables = frozenset(name for name, id in body.reads.items() if is_table(graph, id, stream))
    return TokenRegion(
        name, stream, members, body.graph, body.reads, body.makes, body.pasts, tables, passes,
        least, body.seeds, again=_is_multiplied(graph, body, stream),
    )  # fmt: skip


def _is_multiplied(graph: Graph, body: Body, stream: str) -> bool:
    """Whether a group without a past or dropout makes one value of tokens, that nothing but a
    product with a parameter reads."""
    made = [*body.makes.values()]
    users = [user for id in made for user in graph.users(id)]
    if len(made) > 1 or len(users) != 1 or body.pasts or body.seeds:
        return False
    product, type = graph[users[0]], graph[made[0]].type
    others = [graph[each].op for each in product.operands if each != made[0]]
    times = isinstance(product.op, ir.Contract) and [isinstance(x, ir.Param) for x in others]
    alone = times == [True] and made[0] not in graph.outputs.values()
    return alone and is_token_type(type, stream) and type.dtype == "real"


def _learns(region: TokenRegion) -> bool:
    """Whether an input of a region has a gradient: it has the dtype of the data."""
    real = {n.op.name for n in region.graph
            if isinstance(n.op, ir.Input) and n.type.dtype == "real"}  # fmt: skip
    return bool(real - region.tables)


def _after(graph: Graph, id: int) -> str:
    """A name for a value without one, from the value that it goes into."""
    row, seen = [id], {id}
    while row:
        for each in row:
            if graph[each].name:
                return f"{graph[each].name}_in"
            outputs = [name for name, output in graph.outputs.items() if output == each]
            if outputs:
                return outputs[0] if each == id else f"{outputs[0]}_in"
        row = sorted({u for each in row for u in graph.users(each)} - seen)
        seen |= {*row}
    return "value"


def numbers(type: Type, stream: str) -> sympy.Expr:
    """The numbers of a value for a token; none if it is the same for all."""
    if not is_token_type(type, stream):
        return sympy.Integer(0)
    return sympy.Mul(*(axis.size for axis in type.axes if axis.kind == "dim"))


@lru_cache(maxsize=256)
def _sampled(count: sympy.Expr) -> float:
    """A number of numbers where sizes are not told."""
    return float(count.subs(dict.fromkeys(count.free_symbols, SAMPLE)))


def _moved(graph: Graph, node: Node, stream: str) -> sympy.Expr:
    """How many numbers PyTorch reads and writes for a node, a token: of a dropout the mask, of a
    byte each, as it has no factor."""
    if isinstance(node.op, ir.Window) or _is_half_of_silu(graph, node):
        return sympy.Integer(0)
    made = numbers(node.type, stream)
    if isinstance(node.op, ir.Noise | ir.Top):
        return made / 2 if isinstance(node.op, ir.Noise) else CHOICE * made
    if any(isinstance(graph[o].op, ir.Window) for o in node.operands):
        return TAPS * 3 * made
    read = [graph[o] for o in {*node.operands} if not isinstance(graph[o].op, ir.Noise)]
    moved = sympy.Add(made, *(numbers(each.type, stream) for each in read))
    each_token = isinstance(node.op, ir.Contract) and len(node.operands) > 1
    return SMALL * moved if each_token else moved


def _is_half_of_silu(graph: Graph, node: Node) -> bool:
    """Whether a node is the sigmoid of a * sigmoid(a), which PyTorch does in one pass."""
    users = [graph[user] for user in graph.users(node.id)]
    return node.op == ir.Elementwise("sigmoid") and all(
        user.op == ir.Elementwise("mul") and node.operands[0] in user.operands for user in users
    )

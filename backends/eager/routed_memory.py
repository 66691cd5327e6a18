"""A route through a memory with a state for each place: where tokens are many, those of each place
are a packed sequence of a layer that knows of no places; else the memories of all places look at
every token.

if memories_pay(chosen, n, cu_seqlens):
    routes = routed_by(chosen, n)
    x_rows = routed_tokens(x, routes)
    k = grouped_product(x_rows, W_k, routes)
    ...
    made, after = layer_routed(k[None], ..., state, cu_seqlens=place_borders(routes, cu_seqlens))
    y = summed_pairs(made[0], routes)
else:
    ...
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import cached_property

from archc.backends.eager.file import state_of
from archc.backends.eager.memory import memory_of
from archc.backends.eager.recurrence import RecurrenceFunction
from archc.backends.eager.routed import ROWS, RoutedRegion
from archc.backends.eager.scope import Region, Scope
from archc.backends.eager.value import BOOL, DATA, NUMBER, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned, permuted
from archc.backends.writer import INDENT, Writer

from archc.functions.interval import Interval
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.routed_layer import RoutedLayer, routed_layer
from archc.ir.routes import Route, routes
from archc.numerics.propagation import intervals

SOME = Interval(1, math.inf, open_high=True)
"""How many places there are to choose from."""


def use_routes(scope: Scope, layer: ir.Layer, away: Collection[int]) -> None:
    """Let routes be computed for what is chosen alone; `away`: nodes that stay where they are."""
    shared: dict[int, str] = {}
    found: dict[int, Region] = {
        route.exit: RoutedRegion(scope, route, shared)
        if route.memory is None
        else RoutedMemory(scope, layer, route)
        for route in routes(scope.graph)
        if not route.members & {*away}
    }
    if found:
        scope.use_regions({**scope.regions, **found})


class RoutedMemory(RoutedRegion):
    """A route through a memory, computed in one of two ways."""

    def __init__(self, scope: Scope, layer: ir.Layer, route: Route):
        super().__init__(scope, route, {})
        self.layer = layer
        self.remembered = False

    @cached_property
    def routed(self) -> RoutedLayer:
        """What is done by a layer of the tokens of one place. None of them asks whether it has
        chosen the place, unless a score may be infinitely low, which is never chosen."""
        top = self.outer[self.route.top]
        places = top.type.axis(self.route.axis).size
        known = {str(places): SOME} if places.is_Symbol else {}
        lowest = intervals(self.outer, known)[top.operands[0]].low
        return routed_layer(self.layer, self.route, lowest > -math.inf)

    def call(self) -> None:
        """Write both ways, and what decides between them."""
        scope, exit = self.scope, self.route.exit
        for id in self.reads:
            if scope.value(id).kind != NUMBER and not scope.values[id].bound:
                scope.bind(id)
        outer, every = scope.writer, scope.regions
        scope.writer = Writer(margin=outer.margin + len(INDENT))
        scope.use_regions({id: each for id, each in every.items() if id != exit})
        name, memory = scope.value(exit), self.route.memory
        if not name.bound:
            scope.bind(exit)
            name = scope.values[exit]
        whole, scope.writer = scope.writer, Writer(margin=outer.margin + len(INDENT))
        self.function: RecurrenceFunction = scope.functions[memory]
        if self.function.packed:
            scope.writer.line(f"{name.text} = {self._lines()}")
            value = scope.value(self.route.top)
            chosen = permuted(value.text, value.layout, (*self.route.rows, self.route.axis))
            test = call("memories_pay", chosen, scope.size(self.route.count), scope.cu_seqlens)
            with outer.block(f"if {test}:"):
                outer.include(scope.writer.lines)
            with outer.block("else:"):
                outer.include(whole.lines)
        else:
            outer.include(whole.lines)
        scope.writer = outer
        scope.use_regions(every)

    def _copy(self, node: Node) -> None:
        """A member, of pairs; what the layer of one place makes enters."""
        if node.id not in self.routed.members:
            super()._copy(node)
            return
        if node.id == self.route.memory:
            for id in self.routed.reads:
                self._enter(id)
        if node.id in self.routed.makes:
            kept = [a for a in node.type.axes if a.name not in (*self.route.rows, self.route.axis)]
            self.copies[node.id] = self.graph.add(self._input(node, kept, True), name=node.name)

    def _compute(self, node: Node) -> None:
        """The line of a product, after the memory's where it reads that."""
        after = node.id in self.outer.descendants(self.route.memory)
        if node.id in self.route.products and after:
            self._remember()
        super()._compute(node)

    def _end(self, node: Node) -> Text:
        self._remember()
        return super()._end(node)

    def _remember(self) -> None:
        """The line that calls the layer of one place, of packed sequences, once."""
        if self.remembered:
            return
        self.remembered = True
        scope, old, axis = self.scope, self.function, self.route.axis
        assert scope.file.by_parts is not None
        part = scope.file.by_parts(scope.file, self.routed.layer)
        borders = scope.names.fresh("borders")
        scope.writer.line(f"{borders} = place_borders({self.routes}, {scope.cu_seqlens})")
        states = self.outer[old.node.id].op.states
        places = [[a.name for a in state.axes].index(axis) for state in states]
        fields = [each.name for each in memory_of(part.layer).fields if each.kind == "state"]
        starts = [
            f"{field}={call('by_place', before, str(at)).text}"
            for field, before, at in zip(fields, old.before, places, strict=True)
        ]
        given = [self._given(id) for id in self.routed.reads]
        given += [f"{state_of(part.name)}({', '.join(starts)})", f"cu_seqlens={borders}"]
        given += [f"{name}={self._option(name)}" for name in part.options]
        names = [
            scope.names.fresh(f"{scope.hint(self.outer[id])}_rows") for id in self.routed.makes
        ]
        end = scope.names.fresh("after")
        scope.writer.call(f"{self._left(names)}, {end} = {part.title}(", given, ")")
        for after, field, at in zip(old.after, fields, places, strict=True):
            if after != "_":
                scope.writer.line(f"{after} = by_sequence({end}.{field}, {self.routes}, {at})")
        for id, name in zip(self.routed.makes, names, strict=True):
            ours = (*self.route.rows, axis)
            rest = tuple(each for each in self.outer[id].type.names if each not in ours)
            text = Text(f"{name}.squeeze(0)")
            self.inner.values[self.copies[id]] = Value(text, (ROWS, *rest), DATA)

    def _option(self, name: str) -> str:
        """An option of the layer, as the function around the call has it."""
        if name == "training":
            return self.scope.ask(self.scope.training)
        return self.scope.ask(self.scope.sizes.get(name, name))

    def _left(self, names: list[str]) -> str:
        """The left side of a call that returns some values before a state."""
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def _given(self, id: int) -> str:
        """An input of the layer of one place: one sequence of all pairs."""
        ours = (*self.route.rows, self.route.axis)
        value = self.inner.value(self.copies[id])
        rest = tuple(each for each in self.outer[id].type.names if each not in ours)
        if ROWS not in value.layout:
            text = aligned(value.text, value.layout, rest)
            each = ["1", f"len({self.routes}.order)", *["-1"] * len(rest)]
            return call(f"{text.at(ATOM)}.expand", *each).text
        text = aligned(value.text, value.layout, (ROWS, *rest))
        whole = call(f"{text.at(ATOM)}.unsqueeze", "0")
        return f"{whole}.long()" if value.kind == BOOL else whole.text

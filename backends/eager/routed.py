"""A route: its values for each token and each place that the token has chosen, sorted by place.

routes = routed_by(chosen, n)
x_rows = routed_tokens(x, routes)
gate = grouped_product(x_rows, W_g, routes)
...
y = summed_pairs(product, routes)
"""

from __future__ import annotations

from collections.abc import Mapping

from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, NUMBER, Value, shape_text
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import aligned, permuted

from archc.dims import BATCH, Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.routed_layer import without_axes
from archc.ir.routes import Route, weight_of
from archc.ir.typing import layer_graph

ROWS = BATCH.name
"""The axis of the pairs in the graph of a route."""


class RoutedRegion:
    """One route; `shared` are the names of choices that are sorted, by the node."""

    def __init__(self, scope: Scope, route: Route, shared: dict[int, str]):
        self.scope, self.route, self.shared = scope, route, shared
        self.outer: Graph = scope.graph
        self.graph: Graph = layer_graph()
        self.copies: dict[int, int] = {}
        self.entering: dict[int, int] = {}

    @property
    def reads(self) -> tuple[int, ...]:
        """The nodes of the layer that it reads."""
        return self.route.reads(self.outer)

    def call(self) -> None:
        """Write its lines."""
        node, text = self.outer[self.route.exit], self._lines()
        self.scope.values[node.id] = Value(text, self.scope.node_layout(node), DATA)
        self.scope.bind(node.id)

    def _lines(self) -> Text:
        """Write the lines but for the last; the value of what leaves."""
        scope = self.scope
        self._choose()
        members = [node for node in self.outer if node.id in self.route.members]
        for node in members:
            self._copy(node)
        self.graph.outputs = {"made": self.copies[self.route.exit]}
        self.inner = Scope(self.graph, scope.emitters, scope.file, "", scope.layer)
        self._share()
        for id, copy in self.entering.items():
            if id not in self.route.products:
                self.inner.values[copy] = self._entered(id)
        for node in members:
            self._compute(node)
        return self._end(self.outer[self.route.exit])

    def _compute(self, node: Node) -> None:
        """The line of a member that has one of its own, when what it reads is known."""
        if node.id in self.route.products:
            self.inner.values[self.copies[node.id]] = self._product(node)

    def _choose(self) -> None:
        """The line that sorts the pairs of a choice, once."""
        scope, top = self.scope, self.route.top
        value, layout = scope.value(top), (*self.route.rows, self.route.axis)
        if not value.bound:
            scope.bind(top)
            value = scope.values[top]
        if top not in self.shared:
            self.shared[top] = name = scope.names.fresh("routes")
            chosen = permuted(value.text, value.layout, layout)
            count = scope.size(self.route.count)
            scope.writer.line(f"{name} = {call('routed_by', chosen, count)}")
        self.routes = self.shared[top]

    def _share(self) -> None:
        """The names and lines of the function that the route stands in."""
        inner, scope = self.inner, self.scope
        inner.writer, inner.names, inner.sizes = scope.writer, scope.names, scope.sizes
        inner.asked, inner.handed, inner.sources = scope.asked, scope.handed, scope.sources
        inner.dtype, inner.device, inner.home = scope.dtype, scope.device, scope.home
        inner.lengths = {ROWS: f"len({self.routes}.order)"}

    # --- the graph of pairs ---

    def _copy(self, node: Node) -> None:
        """A member, of pairs: rows and places are one axis."""
        graph, axis = self.graph, self.route.axis
        if node.id in self.route.products:
            kept = [a for a in node.type.axes if a.name not in (*self.route.rows, axis)]
            made = graph.add(self._input(node, kept, True), name=node.name)
            self._enter_factor(node)
            self.copies[node.id] = self.entering[node.id] = made
            return
        operands = [self._enter(operand) for operand in node.operands]
        op = node.op
        if isinstance(op, ir.Contract):
            op = without_axes(self.outer, node, {*self.route.rows, self.route.axis}, (BATCH,))
        elif isinstance(op, ir.Reduce):
            left = tuple(name for name in op.axes if name != axis)
            if not left:
                self.copies[node.id] = operands[0]
                return
            op = ir.Reduce(op.fn, left)
        self.copies[node.id] = graph.add(op, *operands, name=node.name, span=node.span)

    def _enter_factor(self, node: Node) -> None:
        """Enter the factor that a product multiplies by the matrices."""
        place = self._weight(node)
        self._enter(node.operands[1 - place])

    def _weight(self, node: Node) -> int:
        place = weight_of(self.outer, node, self.route.axis, self.route.rows)
        assert place is not None
        return place

    def _enter(self, id: int) -> int:
        """The copy of a member, or the input that stands for what is read."""
        if id in self.copies:
            return self.copies[id]
        node = self.outer[id]
        if isinstance(node.op, ir.Constant):
            self.copies[id] = self.graph.add(node.op)
            return self.copies[id]
        ours = {*self.route.rows, self.route.axis}
        kept = [a for a in node.type.axes if a.name not in ours]
        made = self.graph.add(self._input(node, kept, bool(ours & {*node.type.names})))
        self.copies[id] = self.entering[id] = made
        return made

    def _input(self, node: Node, kept: list[Axis], rows: bool) -> ir.Input:
        axes = (BATCH, *kept) if rows else tuple(kept)
        return ir.Input(f"value {node.id}", Type(axes, node.type.dtype))

    # --- lines ---

    def _entered(self, id: int) -> Value:
        """A value of outside the region, for each pair."""
        scope, node = self.scope, self.outer[id]
        value, layout = scope.value(id), node.type.names
        rows, axis = self.route.rows, self.route.axis
        rest = tuple(name for name in layout if name not in (*rows, axis))
        if len(rest) == len(layout) or value.kind == NUMBER:
            return value
        if {*rows} & {*layout}:
            piece = "routed_pairs" if axis in layout else "routed_tokens"
            want = (*rows, axis, *rest) if axis in layout else (*rows, *rest)
        else:
            piece, want = "routed_places", (axis, *rest)
        text = aligned(value.text, value.layout, want)
        if len(layout) < len(want):
            lengths = [scope.length(self._axis(name)) for name in want[: -len(rest) or None]]
            text = call(f"{text.at(ATOM)}.expand", *lengths, *["-1"] * len(rest))
        name = scope.names.fresh(f"{scope.hint(node)}_rows")
        made = Value(Text(name), (ROWS, *rest), value.kind)
        scope.writer.line(f"{name} = {call(piece, text, self.routes)}")
        return made

    def _axis(self, name: str) -> Axis:
        return self.outer[self.route.top].type.axis(name)

    def _product(self, node: Node) -> Value:
        """`grouped_product(x, W, routes)`, the dims that are summed last in x, and first in W."""
        scope, place = self.scope, self._weight(node)
        weight, factor = node.operands[place], node.operands[1 - place]
        names = {place: self.outer[weight].type.names, 1 - place: self.outer[factor].type.names}
        of: Mapping[str, str] = dict(zip(node.op.ins[1 - place], names[1 - place], strict=True))
        labels = dict(zip(names[place], node.op.ins[place], strict=True))
        axis = self.route.axis
        summed = [n for n in names[place] if n != axis and labels[n] in of]
        made = [n for n in names[place] if n != axis and labels[n] not in of]
        w = scope.as_data(scope.value(weight))
        x = self.inner.as_data(self.inner.value(self.copies[factor]))
        texts = [
            permuted(x.text, x.layout, (ROWS, *(of[labels[n]] for n in summed))),
            permuted(w.text, w.layout, (axis, *summed, *made)),
        ]
        if len(summed) > 1:
            texts[0] = call(f"{texts[0].at(ATOM)}.flatten", "1")
            texts[1] = call(f"{texts[1].at(ATOM)}.flatten", "1", str(len(summed)))
        if len(made) > 1:
            texts[1] = call(f"{texts[1].at(ATOM)}.flatten", "2")
        text = call("grouped_product", *texts, self.routes)
        out = dict(node.op.out)
        axes = [out[labels[n]] for n in made]
        if len(made) > 1:
            sizes = ", ".join(str(scope.length(each).text) for each in axes)
            text = call(f"{text.at(ATOM)}.unflatten", "1", f"({sizes})")
        name = scope.names.fresh(scope.hint(node))
        value = Value(Text(name), (ROWS, *(each.name for each in axes)), DATA)
        scope.writer.line(f"{name} = {text.text}", self._shape(value))
        return value

    def _shape(self, value: Value) -> str:
        return shape_text(value).replace("[B", "[pairs", 1)

    def _end(self, node: Node) -> Text:
        """The sum over the places that each token has chosen."""
        scope, made = self.scope, self.inner.value(self.copies[node.id])
        made = scope.as_data(scope.real(made))
        rest = tuple(name for name in made.layout if name != ROWS)
        text = permuted(made.text, made.layout, (ROWS, *rest))
        have, layout = (*self.route.rows, *rest), scope.node_layout(node)
        return permuted(call("summed_pairs", text, self.routes), have, layout)

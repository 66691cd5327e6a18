"""Emission of one graph into the body of one function: lines, and expressions inside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import sympy
from archc.backends.eager.chunk_rows import Rows
from archc.backends.eager.file import File
from archc.backends.eager.fusion import Fused, fuse
from archc.backends.eager.memory import Memory
from archc.backends.eager.naming import given_name, nearest_name
from archc.backends.eager.value import BOOL, DATA, INT, NUMBER, TOTAL, WIDE, Value, shape_text
from archc.backends.expression import ATOM, Text, call, number, whole
from archc.backends.index import aligned, permuted
from archc.backends.writer import Names, Writer

from archc.dims import T_SEEN, TIME, Axis, counts_tokens, in_words
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir import roles
from archc.ir.graph import Graph, Node
from archc.source import Source

Emitters = Mapping[type, Callable[["Scope", Node], Value]]

HELD: Mapping[type, str] = {
    **roles.HELD,
    ir.Window: "window", ir.Gather: "taken", ir.Top: "chosen", ir.Softmax: "weights",
    ir.Join: "joined", ir.Reshape: "counted", ck.Gram: "gram", ck.Scan: "scanned",
}  # fmt: skip
CHANGED: Mapping[str | type, str] = {**roles.CHANGED, ck.Last: "last"}
"""Words for values, as kernels have them, but for ops of layers and for results of calls."""


class Region(Protocol):
    """A part of the graph that one call makes: all of its values, of what it reads."""

    @property
    def reads(self) -> tuple[int, ...]:
        """The nodes that it reads."""
        ...

    def call(self) -> None:
        """Write the call; its values are known then."""
        ...


class Scope:
    """A function under construction: its lines, its names, and the values emitted so far.

    `like` names a tensor that has the dtype and device of the data. `sizes` says how size symbols
    are written here, `lengths` how long each sequence is, `starts` the position of its first token,
    `each` the function that tells the positions of its tokens where every sequence has its own, and
    how many there are; `sources` tells from which arguments' shapes a length can be read. What is
    asked for and not found becomes an argument of the function; `handed` are sizes that are called
    by another name than their own then. `home` is the spec whose lines are cited.
    `chunk` is how the length of a chunk is written, where there is a choice; `region` the name of
    what carries a state through it. `needs` are the conditions on sizes. `cu_seqlens` is the name
    of the borders of packed sequences, "" where there is one sequence in each row of the batch;
    `packed` that of a table of these. `pasts` are tokens before the first one that the function is
    given, by the op that looks back; `regions` what one call makes, by each of its values;
    `linear` the parameters that are maps of `nn.Linear`, `functions` those of recurrences;
    `place_lengths` tells of each list of places the dim that it is along, and how long that is,
    `lists` of which list truth values are made, `taken` how the places of readers are called among
    what an attend's readers have chosen, if that is taken out of what is kept; `wanted` is the name
    of whether the state is asked for, "" where it always is; `shielded` has what steep functions
    see, by these.
    """

    def __init__(self, graph: Graph, emitters: Emitters, file: File, like: str, layer: str):
        self.graph, self.emitters, self.file = graph, emitters, file
        self.layer, self.training = layer, "training"
        self.cu_seqlens, self.packed = "", ""
        self.home: Source | None = None
        self.shielded: dict[int, Value] = {}
        self.needs: tuple[ir.Requirement, ...] = ()
        self.dtype, self.device = f"{like}.dtype", f"{like}.device"
        self.names, self.writer = Names(), Writer(margin=8)
        self.sizes: dict[str, str] = {}
        self.handed: dict[str, str] = {}
        self.lengths: dict[str, str] = {}
        self.starts: dict[str, str] = {}
        self.each: dict[str, tuple[str, str]] = {}
        self.sources: dict[str, list[tuple[str, int]]] = {}
        self.values: dict[int, Value] = {}
        self.results: dict[int, dict[str, Value]] = {}
        self.positions: dict[str, str] = {}
        self.head: list[str] = []
        self.asked: set[str] = set()
        self.suffix: dict[int, str] = {}
        self.pair: tuple[str, str] | None = None
        self.memory: Memory | None = None
        self.kept: dict[str, str] = {}
        self.wanted = ""
        self.seen: dict[int, str] = {}
        self.finals: dict[tuple[int, str], Value] = {}
        self.decays: dict[tuple[str, bool, str], str] = {}
        self.joint: dict[int, tuple[str, Rows]] = {}
        self.chunk, self.chunk_size = "", ck.MOST_ROWS
        self.region, self.flow = "", ("t",)
        self.pasts: dict[int, str] = {}
        self.regions: dict[int, Region] = {}
        self.functions: dict[int, Any] = {}
        self.linear: Mapping[int, Any] = {}
        self.place_lengths: dict[str, tuple[str, str]] = {}
        self.lists: dict[str, Value] = {}
        self.taken: dict[int, str] = {}
        self.fused: dict[int, Fused] = fuse(graph)
        self.uses = self._count_uses()

    def _count_uses(self) -> dict[int, int]:
        """How often each live value is written down; a pattern that is one call counts once."""
        uses: dict[int, int] = {}
        waiting = list(self.graph.outputs.values())
        while waiting:
            id = waiting.pop()
            uses[id] = uses.get(id, 0) + 1
            if uses[id] == 1:
                waiting += self.operands(id)
        return uses

    def operands(self, id: int) -> tuple[int, ...]:
        """Operands of a node, those of the whole pattern if it is one, or of the region."""
        if id in self.regions:
            return self.regions[id].reads
        return self.fused[id].operands if id in self.fused else self.graph[id].operands

    def use_regions(self, regions: Mapping[int, Region]) -> None:
        """Let one call make all values of a region."""
        self.regions = dict(regions)
        self.uses = self._count_uses()

    # --- lines ---

    def statements(self, among: Collection[int] | None = None) -> None:
        """Emit every named value that something needs, in the order of the spec as far as dataflow
        allows; `among` says which values alone to look at."""
        named = [
            n for n in self.graph if self._is_statement(n) and (among is None or n.id in among)
        ]
        for node in sorted(named, key=lambda n: (n.span.start if n.span else 0, n.id)):
            self.statement(node)
        for id in self.graph.outputs.values():
            if among is None or id in among:
                self.value(id)

    def needed_by(self, group: Collection[int]) -> None:
        """Emit what a group of values needs from outside it."""
        for node in self.graph:
            if node.id in group and node.id in self.uses:
                for operand in self.operands(node.id):
                    if operand not in group:
                        self.value(operand)

    def _is_statement(self, node: Node) -> bool:
        """Whether a node is a value that the spec itself names, not a function of the library."""
        if node.id not in self.uses:
            return False
        if isinstance(node.op, ir.Result) and self.memory is not None:
            chain = self.memory.chains.get(node.operands[0])
            if chain is not None:
                return node.operands[0] == chain.calls[-1]
        home = node.span is None or self.home is None or node.span.source is self.home
        return node.name is not None and home

    def statement(self, node: Node) -> None:
        """One named value under the line of the spec that defines it, after what it needs."""
        if node.id in self.values:
            return
        before = self.graph.ancestors(node.id)
        for earlier in [n for n in self.graph if n.id in before and self._is_statement(n)]:
            self.statement(earlier)
        place, region = len(self.writer.lines), node
        if isinstance(node.op, ir.Result):
            region = self.graph[node.operands[0]]
        self.writer.cite(region.span or node.span)
        cited = len(self.writer.lines)
        self.value(node.id)
        if len(self.writer.lines) == cited:
            del self.writer.lines[place:]

    def value(self, id: int) -> Value:
        """The value of a node, emitted when it is first needed."""
        if id not in self.values and id in self.regions:
            self.regions[id].call()
        if id not in self.values:
            node = self.graph[id]
            self.values[id] = value = self._fitting(node)
            if self._deserves_a_line(node, value):
                self.bind(id)
        return self.values[id]

    def _fitting(self, node: Node) -> Value:
        """The node's expression; its longest operands get lines of their own until it fits one."""
        value = self.emit(node)
        while len(value.text.text) > self.writer.room - len(self.hint(node)) - 9:
            inner = [
                i for i in self.operands(node.id) if i in self.values and not self.values[i].bound
            ]
            inner = [i for i in inner if self.values[i].kind != NUMBER]
            if not inner:
                break
            self.bind(max(inner, key=lambda i: len(self.values[i].text.text)))
            value = self.emit(node)
        return value

    def emit(self, node: Node) -> Value:
        """The node's expression."""
        if node.id in self.fused:
            return self.fused[node.id].emit(self, node)
        return self.emitters[type(node.op)](self, node)

    def _deserves_a_line(self, node: Node, value: Value) -> bool:
        if value.bound or not value.text.text or value.kind == NUMBER:
            return False
        return node.name is not None or self.uses.get(node.id, 0) > 1

    def bind(self, id: int) -> None:
        """Give a value a line and a name; later uses write the name."""
        node, value = self.graph[id], self.values[id]
        name = self.names.fresh(self.hint(node) + self.suffix.get(id, ""))
        self.writer.line(f"{name} = {value.text}", shape_text(value))
        self.values[id] = Value(Text(name), value.layout, value.kind)

    def hint(self, node: Node) -> str:
        """The node's name; or one made from its operands, or from the value that it goes into."""
        called = node.name or given_name(self.graph, node.id)
        if called is not None:
            return called
        if isinstance(node.op, ir.Position):
            return f"index_{node.op.axis.name}"
        users = [self.graph[user].op for user in self.graph.users(node.id)]
        if any(isinstance(user, ir.Softmax) for user in users):
            return "mask" if node.type.dtype == "bool" else "score"
        if type(node.op) in HELD and not isinstance(node.op, ir.Contract | ck.Conjugate):
            return HELD[type(node.op)]
        fn = CHANGED.get(type(node.op), "dot")
        fn = node.op.fn if isinstance(node.op, ir.Elementwise | ir.Reduce) else fn
        fn = self.fused[node.id].hint if node.id in self.fused else fn
        operands = self.operands(node.id)
        parts = [self.values[o] for o in operands if o in self.values]
        parts = [v.text.text.removeprefix("self.").removesuffix("_t") for v in parts if v.bound]
        if fn in ("mul", "dot") and len(parts) == 2 and len("".join(parts)) < 16:
            return "_".join(parts)
        if len(parts) == len(operands) == 1 and len(parts[0]) < 12:
            return f"{fn}_{parts[0]}"
        word = HELD[ir.Contract] if fn == "dot" else fn
        word = CHANGED.get(fn, word) if len(operands) > 1 else word
        target = self.target(node.id)
        return target if target.endswith(word) else f"{target}_{word}"

    def target(self, id: int) -> str:
        """The name of the nearest named value that this one goes into."""
        return nearest_name(self.graph, id)

    # --- shapes ---

    def layout(self, axes: Sequence[Axis]) -> tuple[str, ...]:
        """The order of a value's dims: that of its type, in a pair's body reader and read last."""
        names = tuple(axis.name for axis in axes)
        if self.pair is None or not set(self.pair) <= set(names):
            return names
        return (*(name for name in names if name not in self.pair), *self.pair)

    def node_layout(self, node: Node) -> tuple[str, ...]:
        """The same for a node's value."""
        return self.layout(node.type.axes)

    def settled(self, node: Node, text: Text, have: Sequence[str], kind: str = DATA) -> Value:
        """The value of a node, laid out as that is, from a text of these dims."""
        layout = self.node_layout(node)
        return Value(permuted(text, have, layout), layout, kind)

    def at(self, id: int, layout: Sequence[str]) -> Text:
        """A value's text, ready to broadcast against a tensor of that layout."""
        value = self.value(id)
        return value.text if value.kind == NUMBER else aligned(value.text, value.layout, layout)

    def per_token(self, id: int, stream: str, short: bool = False) -> Value:
        """A value laid out [B, T, ...] along a sequence, as what looks along it needs it.

        `short`: it stands beside other arguments, so that a long expression gets a line of its own.
        """
        value = self.value(id)
        if short and not value.bound and len(value.text.text) > 30:
            self.bind(id)
            value = self.values[id]
        order = [name for name in ("batch", stream) if name in value.layout]
        order += [name for name in value.layout if name not in order]
        text = permuted(value.text, value.layout, order)
        if "batch" not in order:
            text = call(
                f"{text.at(ATOM)}.expand", self.ask(self.lengths["batch"]), *["-1"] * len(order)
            )
            order = ["batch", *order]
        return Value(text, tuple(order), value.kind)

    def length(self, axis: Axis) -> Text:
        """How long an axis is here."""
        if axis.name in self.lengths:
            return Text(self.ask(self.lengths[axis.name]))
        return self.size(axis.size)

    def position(self, axis: Axis) -> str:
        """The positions of a sequence's tokens here, a line at the head of the function."""
        if axis.name not in self.positions:
            name = self.positions[axis.name] = self.names.fresh(axis.name)
            if axis.name in self.each:
                function, length = self.each[axis.name]
                self.head.append(f"{name} = {function}({self.ask('pos')}, {self.ask(length)})")
                return name
            count = call("torch.arange", self.length(axis), f"device={self.device}")
            start = self.ask(self.starts.get(axis.name, "0"))
            if self.cu_seqlens and self.memory is not None and axis.name == "t":
                borders = self.cu_seqlens
                inner = f"places_in_each({borders}, {count})"
                count = Text(f"({count} if {borders} is None else {inner})")
            self.head.append(f"{name} = {count}" if start == "0" else f"{name} = {start} + {count}")
        return self.positions[axis.name]

    def size(self, expr: sympy.Expr) -> Text:
        """A size as an integer expression."""
        return whole(expr, self._reach(expr))

    def by_tokens(self, *sizes: sympy.Expr) -> str:
        """Sizes as a function of how many tokens a sequence has."""
        tokens = self.names.fresh("tokens")
        free = {str(each) for size in sizes for each in size.free_symbols - {T_SEEN}}
        names = {each: self.ask(self.local(each)) for each in sorted(free)}
        texts = [whole(size, names | {str(T_SEEN): tokens}).text for size in sizes]
        return f"lambda {tokens}: ({', '.join(texts)})"

    def number(self, expr: sympy.Expr) -> Text:
        """A constant in sizes and options."""
        return number(expr, self._reach(expr))

    def _reach(self, expr: sympy.Expr) -> dict[str, str]:
        names = sorted(str(symbol) for symbol in expr.free_symbols)
        return {name: self.ask(self.local(name)) for name in names}

    def local(self, size: str) -> str:
        """The name of a size or an option here: its own, if no other value has it."""
        if size not in self.sizes:
            taken = {*self.lengths.values(), *self.handed}
            if size == str(TIME.size) and "t" in self.lengths:
                self.sizes[size] = self.lengths["t"]
            elif size in taken or counts_tokens(size):
                local = self.names.fresh(in_words(size))
                while local in taken | self.asked:
                    local = self.names.fresh(in_words(size))
                self.sizes[size], self.handed[local] = local, size
        return self.sizes.get(size, size)

    def ask(self, text: str) -> str:
        """Note that names in a text must be defined at the head of the function, or arguments."""
        self.asked |= set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
        return text

    # --- dtypes ---

    def real(self, value: Value) -> Value:
        """An integer or truth value as a real of at least float32."""
        if value.kind not in (INT, BOOL):
            return value
        return Value(Text(f"{value.text.at(ATOM)}.to({self.ask('wide')})"), value.layout, WIDE)

    def as_data(self, value: Value) -> Value:
        """A tensor in the dtype of the data, as products of tensors need."""
        if value.kind in (DATA, NUMBER):
            return value
        return Value(Text(f"{value.text.at(ATOM)}.to({self.dtype})"), value.layout, DATA)

    def whole(self, id: int, want: Sequence[str]) -> Text:
        """A value in the dtype of the data with all of its dims, in an order."""
        value, type = self.as_data(self.value(id)), self.graph[id].type
        text = aligned(value.text, value.layout, want)
        if len(value.layout) == len(want):
            return text
        lengths = (self.length(type.axis(name)) for name in want)
        return call(f"{text.at(ATOM)}.expand", *lengths)

    def joined(self, values: Sequence[Value]) -> tuple[list[Value], str]:
        """Operands of a real-valued function in dtypes that agree, and the kind of its result.

        What is made from positions alone keeps its precision until it meets a value per token.
        """
        if any(value.kind == TOTAL for value in values):
            return [self.real(value) for value in values], TOTAL
        if any(value.kind == DATA and "batch" in value.layout for value in values):
            # torch gives an integer the dtype of the real tensor that it meets
            return [v if v.kind == INT else self.as_data(v) for v in values], DATA
        values = [self.real(value) for value in values]
        kinds = {value.kind for value in values} - {NUMBER}
        if kinds == {DATA, WIDE}:
            return values, WIDE
        return values, kinds.pop() if kinds else NUMBER


def write_sizes(writer: Writer, scope: Scope) -> None:
    """The lines that read the sizes which the function asks for off the shapes of its arguments."""
    missing = scope.asked & set(scope.sources)
    while missing:
        covered: dict[str, dict[int, str]] = {}
        for name in sorted(missing):
            for argument, place in scope.sources[name]:
                covered.setdefault(argument, {})[place] = name
        argument = max(covered, key=lambda a: (len(covered[a]), -list(covered).index(a)))
        places = covered[argument]
        missing -= set(places.values())
        first, stop = min(places), max(places) + 1
        names = ", ".join(places.get(i, "_") for i in range(first, stop))
        if len(places) == 1:
            writer.line(f"{names} = {argument}.shape[{first}]")
        else:
            writer.line(f"{names} = {argument}.shape[{first or ''}:{stop}]")
    if "wide" in scope.asked:
        writer.line(f"wide = torch.promote_types({scope.dtype}, torch.float32)")

"""An attention becomes a function of its own, over all pairs of tokens, and a line with its
call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sympy
from archc.backends.eager import carry
from archc.backends.eager.chosen_alone import of_chosen_alone
from archc.backends.eager.lists import reads_lists
from archc.backends.eager.memory import in_pages
from archc.backends.eager.naming import region_name
from archc.backends.eager.one_reader import of_one_reader
from archc.backends.eager.region import (
    argument_list,
    body_scope,
    by_kernels_or,
    extra_arguments,
    in_spec_order,
    wanted_results,
)
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.selection import (
    by_tokens,
    called_in_parts,
    scores_of,
    tokens_first,
    with_masks,
    write_lists,
)
from archc.backends.eager.value import DATA, KIND_OF, NUMBER, PLACES, TOTAL, WIDE, Value
from archc.backends.expression import ATOM, Text, whole
from archc.backends.index import permuted
from archc.backends.writer import INDENT, Names, Writer, identifier

from archc.attention.convolved import convolved
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.decode import decode_pays
from archc.ir.graph import Graph, Node

DECODE = "_decode"
"""The suffix of a form for few readers."""


class AttendFunction:
    """The function of one attention: its arguments are the captures, then what positions need.
    `packed`: it takes all packed sequences at once; `unpacked`: it is not called with any; `few`:
    it is the form for few readers; `in_parts`: it is of some readers at a time if it can be."""

    in_parts = False

    def __init__(self, scope: Scope, node: Node, values: dict[str, Value], suffix: str = ""):
        self.scope, self.node, self.op, self.values = scope, node, node.op, values
        self.arguments = {name: identifier(name) for name in self.values}
        self.results, self.few = wanted_results(scope, node), suffix == DECODE
        name = region_name(scope.layer, scope.graph, node)
        self.name = scope.file.names.fresh(name + suffix)
        inputs = {n.op.name: n for n in self.op.body if isinstance(n.op, ir.Input)}
        types = {name: inputs[name].type for name in self.values if name in inputs}
        self.layouts = {name: self._inner_layout(name, role) for name, role in node.op.captures}
        axes = {n: [t.axis(axis) for axis in self.layouts[n]] for n, t in types.items()}
        axes |= {n: self._listed(n, own) for n, own in axes.items() if values[n].kind == PLACES}
        real = [n for n, t in types.items() if t.dtype == "real" and self.values[n].kind != NUMBER]
        like = self.arguments[(real or list(types))[0]]
        self.body = body = body_scope(scope, node, like, axes)
        body.pair = (node.op.reader.name, node.op.read.name)
        body.writer.margin = len(INDENT)
        if node.id in scope.taken:
            body.handed["pos"] = scope.taken[node.id]
        self.packed = False
        self.unpacked = bool(scope.cu_seqlens) and reads_lists(scope.graph, node)
        self.take_borders({id: each.operands for id, each in body.fused.items()})
        self._name_streams(axes)
        for name, inner in inputs.items():
            kind = self.values[name].kind
            if kind in (WIDE, TOTAL) and "batch" in self.layouts[name]:
                kind = TOTAL
            elif kind not in (NUMBER, PLACES):
                kind = KIND_OF[inner.type.dtype]
            self._enter(inner, Value(Text(self.arguments[name]), self.layouts[name], kind))

    def take_borders(self, done: Mapping[int, Sequence[int]]) -> None:
        """Take all packed sequences at once, if that is right where `done` is told of borders."""
        alone = self.unpacked or bool(why_alone(self.op, done))
        self.packed = bool(self.scope.cu_seqlens) and not alone
        self.body.cu_seqlens = "cu_seqlens" if self.packed else ""

    def _listed(self, name: str, axes: list[Axis]) -> list[Axis]:
        """The axes of a list of places: that which it is along is as long as the list."""
        along, _ = self.scope.place_lengths[self.values[name].text.text]
        listed = Axis(f"places of {along}", sympy.S.Zero, "stream")
        return [listed if axis.name == along else axis for axis in axes]

    def _inner_layout(self, name: str, role: str) -> tuple[str, ...]:
        """A capture's dims under their names in the body."""
        op = self.op
        names = {"read": op.read.name, "path": op.path.name if op.path else ""}
        layout = self.values[name].layout
        return tuple(names[role] if role in names and n == op.source else n for n in layout)

    def _name_streams(self, axes: dict) -> None:
        """Lengths and first positions of reader, read and path."""
        body, op = self.body, self.op
        length = body.lengths.setdefault(op.reader.name, body.names.fresh("T"))
        read = body.lengths[op.read.name] = body.names.fresh("S")
        for argument, found in axes.items():
            for place, axis in enumerate(found):
                if axis.name in (op.read.name, op.path.name if op.path else ""):
                    body.sources.setdefault(read, []).append((self.arguments[argument], place))
                elif axis.name == op.reader.name:
                    body.sources.setdefault(length, []).append((self.arguments[argument], place))
        flows = self.scope.starts.get(op.reader.name, "0") != "0"
        body.starts[op.reader.name] = "pos" if flows else "0"
        if op.source == op.reader.name and flows:
            body.starts[op.read.name] = f"pos + {length} - {read}"
        if self.scope.file.slots:
            body.each = {op.reader.name: ("own_positions", length), op.read.name: self._kept(read)}
        if op.path is not None:
            body.lengths[op.path.name] = read
            body.starts[op.path.name] = body.starts.get(op.read.name, "0")

    def paged(self) -> dict[str, str]:
        """Arguments that read caches which may be in pages, by the names of captures."""
        memory, found = self.scope.memory, dict[str, str]()
        if not self.scope.file.slots or memory is None:
            return found
        for (name, role), operand in zip(self.op.captures, self.node.operands, strict=True):
            field = memory.field("seen", operand)
            if role != "reader" and field is not None and in_pages(field):
                found[name] = self.arguments[name]
        return found

    def _in_order(self) -> None:
        """The line that copies what is read out of its pages."""
        if caches := ", ".join(self.paged().values()):
            self.body.head.insert(0, f"{caches} = in_order({caches})")

    def _kept(self, read: str) -> tuple[str, str]:
        """The function that tells the positions of what is read, of the places of its cache: all
        tokens of each sequence are in it, or the latest."""
        memory = self.scope.memory
        fields = [memory.field("seen", o) for o in self.node.operands] if memory else []
        ring = {field.count is not None for field in fields if field is not None}
        assert len(ring) == 1, f"{self.name}: what it reads is kept in two ways"
        return ("positions_of_ring" if ring.pop() else "positions_of_cache", read)

    def _enter(self, inner: Node, value: Value) -> None:
        """A capture that has both reader and read is laid out as the body's scores are."""
        layout = self.body.node_layout(inner)
        if layout != value.layout and set(self.body.pair or ()) <= set(layout):
            name = self.body.names.fresh(f"{value.text}_pairs")
            text = permuted(value.text, value.layout, layout)
            self.body.head.append(f"{name} = {text}")
            value = Value(Text(name), layout, value.kind)
        self.body.values[inner.id] = value

    def write(self) -> None:
        """Write the function."""
        self.scope.file.sections.append(self.text())

    def targets(self) -> dict[str, str]:
        """A name in the caller for each result."""
        users = self._users()
        return {n: self.scope.names.fresh(users[n].name or n) for n in self.results}

    def call(self, targets: dict[str, str]) -> dict[str, Value]:
        """Write the line that calls it; the results by name."""
        scope, users = self.scope, self._users()
        _, given = extra_arguments(scope, self.body)
        arguments = [value.text.text for value in self.values.values()]
        left = ", ".join(targets.values())
        if self.packed:
            scope.writer.call(f"{left} = {self.name}(", [*arguments, *given, scope.cu_seqlens], ")")
        elif scope.cu_seqlens and not self.unpacked:
            with scope.writer.block(f"if {scope.cu_seqlens} is not None:"):
                self._each_alone(left, given)
            with scope.writer.block("else:"):
                self._call_plainly(left, [*arguments, *given])
        else:
            self._call_plainly(left, [*arguments, *given])
        made = {name: self.body.value(self.op.body.outputs[name]) for name in targets}
        return {
            name: Value(
                Text(text), users[name].type.names,
                WIDE if made[name].kind == TOTAL else KIND_OF[users[name].type.dtype],
            )
            for name, text in targets.items()
        }  # fmt: skip

    def _call_plainly(self, left: str, arguments: list[str]) -> None:
        """The line that calls it, of some readers at a time if that can be."""
        parts = called_in_parts(self.scope, self, self.values)
        called = "of_some_readers" if parts else self.name
        self.scope.writer.call(f"{left} = {called}(", parts or arguments, ")")

    def _each_alone(self, left: str, given: list[str]) -> None:
        """The line that calls it for each of the packed sequences, of some readers at a time if
        that can be."""
        scope, of_each = self.scope, Names(given)
        along = {n: of_each.fresh(self.arguments[n]) for n in self._along_tokens()}
        own = {n: replace(self.values[n], text=Text(name)) for n, name in along.items()}
        inner = self.values | own
        parts = called_in_parts(scope, self, inner)
        called = "of_some_readers" if parts else self.name
        passed = parts or [*(value.text.text for value in inner.values()), *given]
        run = f"lambda {', '.join(along.values())}: {called}({', '.join(passed)})"
        tokens = f"[{', '.join(self.values[n].text.text for n in along)}]"
        comma = "," if len(self.results) == 1 else ""
        scope.writer.call(
            f"{left}{comma} = one_by_one(", [run, scope.cu_seqlens, tokens, "[]"], ")"
        )

    def _along_tokens(self) -> list[str]:
        """Captures that have a value for each of the layer's own tokens."""
        return [name for name, value in self.values.items() if self.op.source in value.layout]

    def _users(self) -> dict[str, Node]:
        """The node that reads each result."""
        graph = self.scope.graph
        return {graph[u].op.name: graph[u] for u in graph.users(self.node.id)}

    def text(self) -> str:
        """The whole function."""
        body, outputs = self.body, self.op.body.outputs
        self._in_order()
        body.statements()
        returned = [self._returned(outputs[name]) for name in self.results]
        parameters, _ = extra_arguments(self.scope, body)
        borders = ["cu_seqlens=None"] * self.packed
        given = [*self.arguments.values(), *parameters, *borders]
        writer = Writer().define(self.name, given, self._doc(parameters))
        write_sizes(writer, body)
        writer.include(body.head)
        writer.include(body.writer.lines)
        writer.gives(returned)
        return writer.text()

    def _returned(self, id: int) -> str:
        """A result with its dims in the order of its type."""
        value = self.body.value(id)
        if value.kind == NUMBER:
            return value.text.text
        return permuted(value.text, value.layout, self.op.body[id].type.names).text

    def _doc(self, parameters: list[str]) -> list[str]:
        """The results of the function, and the shapes of its arguments."""
        results = ", ".join(f"`{name}`" for name in self.results)
        reader, read = self.op.reader.name, self.op.read.name
        title = f"{results} of each token `{reader}`, from what it may read along `{read}`"
        few = ": products in the order that is best where few tokens read many"
        title += f"{few}." if self.few else "."
        shapes = {self.arguments[name]: self.layouts[name] for name in self.values}
        known = argument_list(shapes)
        if "pos" in parameters:
            known += f"; pos the position of the first `{self.op.reader}`"
        if self.packed:
            known += "; cu_seqlens [N + 1], the borders of N sequences in a batch of 1"
        return [title, known]


def why_alone(op: ir.Attend, done: Mapping[int, Sequence[int]]) -> str:
    """Why packed sequences enter an attention one by one; "" if all may at once. `done` are the
    values, each with what it is made of, that are made with a look at the borders: everything else
    must be done token by token."""
    graph, streams = op.body, {op.reader.name, op.read.name}
    waiting, seen = [*graph.outputs.values()], set[int]()
    if op.source != op.reader.name:
        return "another sequence is read"
    while waiting:
        id = waiting.pop()
        if id not in seen and id not in done and not _of_one_token(graph, graph[id], streams):
            several = not isinstance(graph[id].op, ir.Position)
            kind = "value of several tokens" if several else "position"
            return f"a {kind} is made outside of kernels that know borders"
        waiting += [] if id in seen else done.get(id, graph[id].operands)
        seen.add(id)
    return "" if seen & {*done} else "nothing is read by kernels that know borders"


def _of_one_token(graph: Graph, node: Node, streams: set[str]) -> bool:
    """Whether a value of one token is made of values of that token alone."""
    kinds = (ir.Input, ir.Constant, ir.Elementwise, ir.Contract, ir.Reduce)
    own, *given = (streams & {*graph[id].type.names} for id in (node.id, *node.operands))
    return isinstance(node.op, kinds) and own != streams and all(each <= own for each in given)


def attend(scope: Scope, node: Node) -> Value:
    """`o = memory(q, k, v, pos)`; where there are several forms, the one that takes less."""
    node = _of_what_is_read(scope, node)
    values = of_chosen_alone(scope, node, _entering(scope, node))
    plain, scores = with_masks(scope, values), scores_of(scope, node, values)
    moved = node if scope.file.slots else replace(node, op=convolved(node.op))
    first = AttendFunction(scope, moved if scores is None else scores, plain)
    first.write()
    targets, none = first.targets(), Value(Text("None"), (), DATA)
    if scores is not None:
        scope.results[node.id] = write_lists(scope, node, scores, first, targets)
        return none
    alone = of_one_reader(scope, node, plain, first, AttendFunction)
    if alone is None:
        scope.results[node.id] = _of_many(scope, node, values, plain, first, targets)
        return none
    with scope.writer.block(f"if {alone.test}:"):
        alone.write(targets)
    with scope.writer.block("else:"):
        scope.results[node.id] = _of_many(scope, node, values, plain, first, targets)
    return none


def _of_many(
    scope: Scope, node: Node, values: dict[str, Value], plain: dict[str, Value],
    first: AttendFunction, targets: dict[str, str],
) -> dict[str, Value]:  # fmt: skip
    """The lines that call kernels where these can do it, else PyTorch; the results by name."""
    by_folds = scope.file.by_folds
    folded = by_folds(scope, node, values, first.name) if by_folds is not None else None
    first.in_parts = by_folds is not None and (folded is None or folded.in_parts)
    return by_kernels_or(
        scope, folded, targets, lambda: _called(scope, first.node, plain, first, targets)
    )


def _of_what_is_read(scope: Scope, node: Node) -> Node:
    """An attend without the results that nothing reads, and what only these are made of."""
    wanted, op = wanted_results(scope, node), node.op
    if len(wanted) == len(op.body.outputs):
        return node
    bodies = [op.body, *([op.decode] if op.decode is not None else [])]
    made = []
    for body in bodies:
        own = body.copy()
        own.outputs = {name: id for name, id in body.outputs.items() if name in wanted}
        own.prune(own.ids(ir.Input))
        made.append(own)
    body, decode = made[0], made[1] if len(made) > 1 else None
    return replace(node, op=replace(op, body=body, decode=decode))


def _called(
    scope: Scope,
    node: Node,
    values: dict[str, Value],
    first: AttendFunction,
    targets: dict[str, str],
) -> dict[str, Value]:
    """The lines that call the function of all pairs at once, or its form for few readers; the
    results by name."""
    if node.op.decode is None or decode_pays(node.op) == (0, 0):
        return first.call(targets)
    other = replace(node, op=replace(node.op, body=node.op.decode, decode=None))
    second = AttendFunction(scope, other, values, DECODE)
    second.write()
    left, right = decode_pays(node.op)
    lengths = _lengths(scope, node, values, (left, right))
    scope.writer.comment("operations that the other order of the products adds, and those it saves")
    added, saved = (scope.names.fresh(name) for name in ("added", "saved"))
    _bound(scope, added, left, lengths)
    _bound(scope, saved, right, lengths)
    by_folds = scope.file.by_folds
    folded = by_folds and by_folds(scope, other, values, second.name, many=False)
    with scope.writer.block(f"if {added} < {saved}:"):
        by_kernels_or(scope, folded, targets, lambda: second.call(targets))
    with scope.writer.block("else:"):
        found = first.call(targets)
    return found


def _entering(scope: Scope, node: Node) -> dict[str, Value]:
    """The captures by name, those of earlier calls in front; weights last."""
    roles = dict(node.op.captures)
    operands = dict(zip(roles, node.operands, strict=True))
    names = in_spec_order(scope, node, list(operands))
    if node.op.decode is not None:
        names.sort(key=lambda name: "batch" not in scope.graph[operands[name]].type.names)
    found = {
        name: scope.value(operands[name])
        if roles[name] == "reader"
        else carry.read(scope, node, operands[name])
        for name in names
    }
    if chooses(node.op):
        return {name: by_tokens(value, node.op) for name, value in found.items()}
    return {name: _by_tokens(scope, value) for name, value in found.items()}


def _by_tokens(scope: Scope, value: Value) -> Value:
    """A value that packed sequences are cut out of, with its dims in the order [B, T, ...]."""
    packed = bool(scope.cu_seqlens) and "t" in value.layout
    return tokens_first(value, "t") if packed else value


def _lengths(
    scope: Scope, node: Node, values: dict[str, Value], sides: tuple[sympy.Expr, ...]
) -> dict[str, str]:
    """How the sizes in expressions are written here, with the counts of tokens and tokens read."""
    op = node.op
    read = next(n for n, role in op.captures if role == "read" and op.source in values[n].layout)
    name = scope.names.fresh("S")
    place = values[read].layout.index(op.source)
    scope.writer.line(f"{name} = {values[read].text.at(ATOM)}.shape[{place}]")
    symbols = sorted({str(symbol) for side in sides for symbol in side.free_symbols})
    known = {symbol: scope.ask(scope.local(symbol)) for symbol in symbols}
    known[str(op.reader.size)] = scope.ask(scope.lengths[op.reader.name])
    known[str(op.read.size)] = name
    return known


def _bound(scope: Scope, name: str, expr: sympy.Expr, known: dict[str, str]) -> None:
    """A line for a number, or one for each term of it."""
    writer, text = scope.writer, whole(expr, known).text
    if len(text) + len(name) + 3 <= writer.room:
        writer.line(f"{name} = {text}")
        return
    terms = sorted(sympy.Add.make_args(sympy.expand(expr)), key=sympy.default_sort_key)
    texts = [whole(term, known).text for term in terms]
    with writer.block(f"{name} = ("):
        writer.include([texts[0], *(f"+ {text}" for text in texts[1:])])
    writer.line(")")

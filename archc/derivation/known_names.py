"""The names of a spec's statements as formulas need them: which values have one for each token, and
how many dims are left of a value for one token and one head."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.source import Span
from archc.syntax import tree
from archc.verify.study import Study

Spans = dict[tuple[int, int], Type]


@dataclass(frozen=True)
class Names:
    """The names of one block. `tokens`: the letters of tokens, that of the token at hand first.
    `at`: the tokens of a value, by its name: `("t",)`, or `("t", "s")` for a value of each pair.
    `dims`: how many dims it has for one token and one head; what is no value has none. `types`:
    what expressions are, by their places in the spec. `states`: what is made from itself at earlier
    tokens. `read`: the letter of the tokens that an `attend` sums over, as its body's types have
    it."""

    tokens: tuple[str, ...] = ()
    at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dims: Mapping[str, int] = field(default_factory=dict)
    types: Mapping[tuple[int, int], Type] = field(default_factory=dict)
    heads: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    read: str = ""

    def number(self, span: Span) -> bool:
        """Whether an expression is known to be one number for each token and head."""
        found = self.types.get((span.start, span.end))
        return found is not None and not counted(found, self.heads)


def counted(type: Type, heads: frozenset[str]) -> int:
    """How many dims a value has beside the heads."""
    return len({axis.name for axis in type.axes if axis.kind == "dim"} - heads)


def statements(body: Iterable[tree.Stmt]) -> Iterator[tree.Stmt]:
    """Statements, and those inside them."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, tree.Recurrence | tree.Attend | tree.Blocks | tree.Route | tree.Repeat):
            yield from statements(stmt.body)


def _assigned(body: Iterable[tree.Stmt]) -> dict[str, tree.Assign]:
    """The names that are given a value, and the statements that do."""
    found = (each for each in statements(body) if isinstance(each, tree.Assign))
    return {target.name: each for each in found for target in each.targets}


def _places(body: Graph, span: Span | None) -> Spans:
    """The types of a body's nodes by where they are written: those of the file alone."""
    spans = ((node.span, node.type) for node in body)
    return {(s.start, s.end): t for s, t in spans if s and span and s.source is span.source}


# --- recurrences ----------------------------------------------------------------------------------


def of_recurrence(study: Study, written: tree.Recurrence) -> Names:
    """The names of a recurrence: what is made in it has a token, as states have."""
    op, body = study.recurrence, study.recurrence.body
    token, heads = op.stream.name, frozenset(op.heads)
    types = {node.name: node.type for node in body if node.name is not None}
    types |= {name: study.graph[id].type for name, id in study.captured.items()}
    types |= {state.name: Type(state.axes) for state in op.states}
    states = frozenset(state.name for state in written.states)
    own = {*_assigned(written.body), *states}
    return Names(
        (token,), {name: (token,) for name in {*types, *own} if name in own or _moves(study, name)},
        {name: counted(type, heads) for name, type in types.items()},
        _places(body, study.node.span), heads, states,
    )  # fmt: skip


def _moves(study: Study, name: str) -> bool:
    """Whether every token has a value of its own under a name."""

    def outside(captured: str) -> bool:
        id = study.captured.get(captured)
        return id is not None and study.recurrence.stream.name in study.graph[id].type.names

    if name in study.captured:
        return outside(name)
    body = study.recurrence.body
    todo = [node.id for node in body if node.name == name]
    while todo:
        node = body[todo.pop()]
        if isinstance(node.op, ir.Input) and outside(node.op.name):
            return True
        todo += node.operands
    return False


# --- attends --------------------------------------------------------------------------------------


def of_attend(graph: Graph, node: Node, written: tree.Attend) -> Names:
    """The names of an attend: what depends on the token read is of the pair."""
    op: ir.Attend = node.op
    reader, read = op.reader.name, op.read.name
    heads = frozenset(each for each in (*written.over, written.grouped) if each)
    types = {each.name: each.type for each in op.body if each.name is not None}
    at: dict[str, tuple[str, ...]] = {}
    for (name, _), id in zip(op.captures, node.operands, strict=False):
        if any(axis.kind == "stream" for axis in graph[id].type.axes):
            at[name] = (reader,)
    places = _places(op.body, node.span)
    for name, stmt in _assigned(written.body).items():
        pairs = name in types and read in types[name].names
        at[name] = (reader, read) if pairs else (reader,)
        if name in types:  # what is named has the place of its whole statement
            places[stmt.value.span.start, stmt.value.span.end] = types[name]
    path = () if op.path is None else (op.path.name,)
    dims = {name: counted(type, heads) for name, type in types.items()}
    again = frozenset(
        name for name, stmt in _assigned(written.body).items()
        if re.search(rf"(?<!\w){re.escape(name)}\[{read}\]", stmt.value.span.text)
    )  # fmt: skip
    return Names((reader, read, *path), at, dims, places, heads, again, read)


# --- layers of a law ------------------------------------------------------------------------------


def of_layer(decl: tree.Decl, graph: Graph) -> Names:
    """The names of a layer that is algebra for one token and one head, computed in a graph."""
    places = _places(graph, decl.header)
    inputs = (each for stmt in decl.body if isinstance(stmt, tree.Input) for each in stmt.names)
    dims = {each.name: len(each.axes or ()) for each in inputs}
    for name, stmt in _assigned(decl.body).items():
        found = places.get((stmt.value.span.start, stmt.value.span.end))
        dims[name] = counted(found, frozenset()) if found is not None else 0
    return Names(dims=dims, types=places)

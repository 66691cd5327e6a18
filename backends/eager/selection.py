"""Sparse attention in PyTorch: an attend that selects tokens (the largest scores, blocks of them)
becomes lines that list their indices, for some readers at a time.

A mask of all pairs of tokens takes T x T truth values; a list has as many indices as a reader
selects. What reads a list and can only use a mask is given one, made of the list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import sympy
from archc.backends.eager.lists import chooses_past, in_pieces, told_lengths
from archc.backends.eager.region import extra_arguments
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import BOOL, PLACES, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import permuted
from archc.backends.writer import Names, in_tuple

from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.graph import Node

if TYPE_CHECKING:
    from archc.backends.eager.attend import AttendFunction


def scores_of(scope: Scope, node: Node, values: Mapping[str, Value]) -> Node | None:
    """The scores that an attend selects by, as an attend of their own; None where the selection may
    not be made for some readers at a time, or is not read as lists."""
    op = node.op
    if not chooses(op) or scope.file.by_folds is None or scope.file.slots:
        return None
    if len(op.body.outputs) != 1 or not _read_by_attends_alone(scope, node):
        return None
    flows = scope.starts.get(op.reader.name, "0") != "0"
    if op.source == op.reader.name and not (flows and chooses_past(op)):
        return None
    if not _length_selected_from(op, values) or told_lengths(op):
        return None
    ((name, id),) = op.body.outputs.items()
    body = op.body.copy()
    body.outputs = {name: body[id].operands[0]}
    body.prune(body.ids(ir.Input))
    return replace(node, op=replace(op, body=body, decode=None))


def write_lists(
    scope: Scope, node: Node, scores: Node, first: AttendFunction, targets: dict[str, str]
) -> dict[str, Value]:
    """Write the lines that list what readers select by scores, which PyTorch makes or a kernel."""
    (name,), by_folds = first.results, scope.file.by_folds
    assert by_folds is not None
    made, length = _selection(node.op), _length_selected_from(node.op, first.values)
    folded = by_folds(scope, scores, first.values, first.name, scores=True)
    if folded is None:
        _write_list(scope, node, first, targets[name], None)
    else:
        with scope.writer.block(f"if {folded.test}:"):
            _write_list(scope, node, folded, targets[name], folded.made, folded.places)
        with scope.writer.block("else:"):
            _write_list(scope, node, first, targets[name], None)
    scope.place_lengths[targets[name]] = (made.op.axis, length)
    return {name: Value(Text(targets[name]), made.type.names, PLACES)}


def _selection(op: ir.Attend) -> Node:
    """The node of an attend that selects: there is one."""
    (id,) = op.body.outputs.values()
    return op.body[id]


def _write_list(
    scope: Scope, node: Node, function: AttendFunction, target: str, scores: int | None,
    places: str = "",
) -> None:  # fmt: skip
    """The line that lists what is selected by a function of scores; `scores` is the node that a
    kernel makes, and `places` what lists the indices of the largest, if that is a kernel."""
    op, values, made = node.op, function.values, _selection(node.op)
    asked, given = extra_arguments(scope, function.body)
    roles, own = dict(op.captures), op.source == op.reader.name
    readers = [n for n, v in values.items() if roles[n] == "reader" and _is_of_readers(v, op)]
    read = [n for n in values if roles[n] == "read" and own]
    along, pos = _own_names(function, given, (*readers, *read))
    passed = [along.get(n) or value.text.text for n, value in values.items()]
    passed += [pos if n == "pos" else text for n, text in zip(asked, given, strict=True)]
    choose = _of_part(function, along, pos, passed)
    start = scope.ask(scope.starts.get(op.reader.name, "0"))
    entering = [_tuple(values[n] for n in names) for names in (readers, read)]
    most = f"min({scope.size(made.op.count)}, {_length_selected_from(op, values)})"
    place = str(made.type.names.index(made.op.axis))
    arguments = [
        choose,
        *entering,
        start,
        _numbers_a_reader(scope, node, function, values, scores),
        most,
        place,
    ]
    arguments += [places] * bool(places)
    arguments += [f"cu_seqlens={scope.cu_seqlens}"] * bool(scope.cu_seqlens)
    scope.writer.call(f"{target} = chosen_by_readers(", arguments, ")")


def _own_names(
    function: AttendFunction, given: Iterable[str], cut: Iterable[str]
) -> tuple[dict[str, str], str]:
    """The names that some readers' part of each input has that is `cut`, and their position."""
    names = Names(given)
    return {n: names.fresh(function.arguments[n]) for n in cut}, names.fresh("pos")


def _of_part(
    function: AttendFunction, along: Mapping[str, str], pos: str, passed: Sequence[str]
) -> str:
    """A lambda that calls a function for some readers, with what it is `passed`."""
    return f"lambda {', '.join([*along.values(), pos])}: {function.name}({', '.join(passed)})"


def with_masks(scope: Scope, values: Mapping[str, Value]) -> dict[str, Value]:
    """The inputs of an attend, with masks in place of lists of indices."""
    found = dict(values)
    for name, value in values.items():
        if value.kind == PLACES:
            axis, length = scope.place_lengths[value.text.text]
            text = call("at_places", value.text, length, str(value.layout.index(axis)))
            found[name] = replace(value, text=text, kind=BOOL)
            scope.lists[text.text] = value
    return found


def called_in_parts(
    scope: Scope, function: AttendFunction, values: Mapping[str, Value]
) -> list[str]:  # fmt: skip
    """The arguments of `of_some_readers` that calls a function of all pairs of values for some
    readers at a time; none unless there are lists of what these have selected of the tokens so far,
    or no reader has to do with another."""
    op, roles = function.op, dict(function.op.captures)
    lists = {n: scope.lists[v.text.text] for n, v in values.items() if v.text.text in scope.lists}
    asked, given = extra_arguments(scope, function.body)
    own = op.source == op.reader.name
    readers = [n for n, v in values.items() if roles[n] == "reader" and op.reader.name in v.layout]
    read = [n for n, v in values.items() if own and roles[n] == "read" and op.source in v.layout]
    several = readers and _goes_in_parts(scope, function, lists, (*readers, *read))
    if not several or (lists and "pos" not in asked):
        return []
    along, pos = _own_names(function, given, (*readers, *read))
    passed = [along.get(n) or value.text.text for n, value in values.items()]
    for place, name in enumerate(values):
        if name in lists:
            seen = f"{along[read[0]]}.shape[1]"
            dim = lists[name].layout.index(op.read.name)
            more = [f"{pos} + {along[name]}.shape[1] - {seen}"] * function.unpacked
            passed[place] = call("at_places", Text(along[name]), seen, str(dim), *more).text
    passed += [pos if n == "pos" else text for n, text in zip(asked, given, strict=True)]
    run = _of_part(function, along, pos, passed)
    entering = [_tuple(lists.get(n, values[n]) for n in names) for names in (readers, read)]
    start = scope.ask(scope.starts.get(op.reader.name, "0"))
    numbers = _numbers_a_reader(scope, function.node, function, values, None)
    return [run, *entering, start, numbers, *[scope.cu_seqlens] * function.unpacked]


def _goes_in_parts(
    scope: Scope, function: AttendFunction, lists: Mapping[str, Value], cut: Iterable[str]
) -> bool:
    """Whether a function may be called with some readers, what it is `cut` from at these."""
    op, values = function.op, function.values
    own = op.source == op.reader.name
    if told_lengths(op) or op.path is not None or (own and not op.causal) or scope.file.slots:
        return False
    if not lists and not (function.in_parts and in_pieces(op, function.body.fused)):
        return False
    by_tokens = [values[n].layout[:2] == ("batch", op.reader.name) for n in cut]
    made = [op.body[id].type.names for id in op.body.outputs.values()]
    of_pairs = [*made, *(values[n].layout for n in cut if n not in lists)]
    if any(op.read.name in names for names in of_pairs) and op.read.name != op.source:
        return False
    listed = all(scope.place_lengths[v.text.text][0] == op.read.name for v in lists.values())
    return listed and all(by_tokens) and all(m[:2] == ("batch", op.reader.name) for m in made)


def by_tokens(value: Value, op: ir.Attend) -> Value:
    """An input with a value for each token, its dims in the order [B, T, ...], to be cut."""
    stream = next((n for n in (op.reader.name, op.source) if n in value.layout), None)
    return value if stream is None or "batch" not in value.layout else tokens_first(value, stream)


def tokens_first(value: Value, stream: str) -> Value:
    """A value along a stream, its dims in the order [B, T, ...]."""
    order = ("batch", stream, *(n for n in value.layout if n not in ("batch", stream)))
    return Value(permuted(value.text, value.layout, order), order, value.kind)


def _is_of_readers(value: Value, op: ir.Attend) -> bool:
    """Whether a value is one of each reader."""
    return value.layout[:2] == ("batch", op.reader.name)


def _tuple(values: Iterable[Value]) -> str:
    """Some values as a tuple."""
    return in_tuple([value.text.text for value in values])


def _read_by_attends_alone(scope: Scope, node: Node) -> bool:
    """Whether choices are read by attends, of the same readers, and by nothing else."""
    graph = scope.graph
    results = graph.users(node.id)
    users = [(result, graph[user]) for result in results for user in graph.users(result)]
    if {*results} & {*graph.outputs.values()}:
        return False
    for result, user in users:
        if not isinstance(user.op, ir.Attend) or user.op.reader != node.op.reader:
            return False
        pairs = zip(user.op.captures, user.operands, strict=True)
        if any(role != "reader" for (_, role), operand in pairs if operand == result):
            return False
    return True


def _length_selected_from(op: ir.Attend, values: Mapping[str, Value]) -> str:
    """How long the dim is that is chosen along; empty where nothing that enters tells."""
    made = _selection(op)
    axis = op.source if made.op.axis == op.read.name else made.op.axis
    role = "read" if made.op.axis == op.read.name else "reader"
    for name, each in op.captures:
        layout = values[name].layout
        if each == role and axis in layout:
            return f"{values[name].text.at(ATOM)}.shape[{layout.index(axis)}]"
    return ""


def _numbers_a_reader(
    scope: Scope, node: Node, function: AttendFunction, values: Mapping[str, Value],
    scores: int | None,
) -> str:  # fmt: skip
    """How many numbers are made of one reader: of the largest value of pairs, and all sequences.
    With a kernel of scores, what these are made of is not in memory."""
    op, reader, read = node.op, node.op.reader.name, node.op.read.name
    made = function.body.values if scores is None else {scores, *op.body.descendants(scores)}
    pairs = [n.type for n in op.body if {reader, read} <= {*n.type.names} and n.id in made]
    sizes = [[axis for axis in type.axes if axis.kind == "dim"] for type in pairs]
    wide = {str(scope.size(sympy.Mul(*(axis.size for axis in axes)))) for axes in sizes}
    source = next(n for n, role in op.captures if role == "read")
    value = values[source]
    text, layout = value.text.at(ATOM), value.layout
    lengths = [f"{text}.shape[{layout.index(n)}]" for n in ("batch", op.source)]
    found = sorted(wide - {"1"})
    most = found[0] if len(found) == 1 else f"max({', '.join(found)})"
    return " * ".join([*lengths, *([most] if found else [])])

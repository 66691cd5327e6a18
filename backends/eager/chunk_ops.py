"""Emission of the chunk ops: one function an op, each giving the expression of a node's value.

Most become a call of a function of `archc/runtime/chunks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from archc.backends.eager.chunk_rows import Rows, applied, decays, gradients, tensor
from archc.backends.eager.elementwise import laid_out
from archc.backends.eager.region import ends_with
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, NUMBER, Value
from archc.backends.expression import ADD, ATOM, MUL, Text, binary, call
from archc.backends.index import aligned, permuted

from archc.diagnostics import InternalError
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node

# --- between tokens and chunks ------------------------------------------------------------------


def chunks(scope: Scope, node: Node) -> Value:
    """`to_chunks(k, chunk, 1)`."""
    op, x = node.op, tensor(scope, node.operands[0])
    steps = [] if op.steps is None else [op.steps]
    rest = [n for n in x.layout if n not in ("batch", op.stream, *steps)]
    outer = [name for name in rest if name in op.outer]
    inner = [name for name in rest if name not in op.outer]
    text = permuted(x.text, x.layout, [n for n in x.layout if n == "batch"]
                    + [op.stream, *steps, *outer, *inner])  # fmt: skip
    batch = "batch" in x.layout
    text = text if batch else Text(f"{text.at(ATOM)}[None]")
    if steps:
        text = call(f"{text.at(ATOM)}.flatten", "1", "2")
    if scope.packed:
        count = scope.length(scope.graph[node.operands[0]].type.axis(op.steps)) if steps else "1"
        more = ["chunk_rows", str(len(outer)), str(op.fill), count]
        text = applied("chunks_of_each", text, scope.length(op.row), *more)
    else:
        more = [str(len(outer))] if outer or op.fill else []
        more += [str(op.fill)] if op.fill else []
        text = applied("to_chunks", text, scope.length(op.row), *more)
    have = ["batch"] * batch + [op.chunk.name, *outer, op.row.name, *inner]
    return scope.settled(node, text if batch else Text(f"{text}[0]"), have, x.kind)


def tokens(scope: Scope, node: Node) -> Value:
    """`to_tokens(o, T, 1)`."""
    op, x = node.op, tensor(scope, node.operands[0])
    place = x.layout.index(op.row)
    outer = [n for n in x.layout[:place] if n not in ("batch", op.chunk)]
    inner = [n for n in x.layout[place:] if n not in ("batch", op.chunk, op.row)]
    batch = "batch" in x.layout
    order = ["batch"] * batch + [op.chunk, *outer, op.row, *inner]
    text = permuted(x.text, x.layout, order)
    text = text if batch else Text(f"{text.at(ATOM)}[None]")
    length = scope.length(op.stream)
    have = ["batch"] * batch + [op.stream.name, *outer, *inner]
    count, outers = length.text, [str(len(outer))] if outer else []
    if op.steps is None:
        text = applied("to_tokens", text, count, *outers)
    else:
        steps = scope.length(op.steps)
        rows = f"{length.at(ATOM)} * {steps.at(ATOM)}"
        text = applied("to_tokens", text, rows, *outers)
        text = call(f"{text}.unflatten", "1", f"({length}, {steps})")
        have.insert(have.index(op.stream.name) + 1, op.steps.name)
    return scope.settled(node, text if batch else Text(f"{text}[0]"), have, x.kind)


# --- along streams and further axes -------------------------------------------------------------


def stack(scope: Scope, node: Node) -> Value:
    """`torch.stack([a, b], 2)`."""
    values = [tensor(scope, operand) for operand in node.operands]
    rest = scope.graph[node.operands[0]].type.names
    texts = [permuted(v.text, v.layout, rest).text for v in values]
    layout = scope.node_layout(node)
    place = layout.index(node.op.axis.name)
    text = call("torch.stack", f"[{', '.join(texts)}]", str(place))
    return scope.settled(node, text, [*rest[:place], node.op.axis.name, *rest[place:]])


def select(scope: Scope, node: Node) -> Value:
    """`x[..., -1, :]`."""
    x, axis = scope.value(node.operands[0]), node.op.axis
    place = x.layout.index(axis)
    behind = len(x.layout) - place - 1
    before = [":"] * place if place < 2 or place < behind else ["..."]
    index = [*before, str(node.op.index), *([":"] * behind if before == ["..."] else [])]
    have = [name for name in x.layout if name != axis]
    return scope.settled(node, Text(f"{x.text.at(ATOM)}[{', '.join(index)}]"), have, x.kind)


def place(scope: Scope, node: Node) -> Value:
    """`placed(x, dim, index, count)`."""
    count = scope.length(node.op.axis)
    return _placed(scope, node, node.op.axis.name, str(node.op.index), count)


def at_last(scope: Scope, node: Node) -> Value:
    """The same along a stream."""
    stream = node.op.stream
    if scope.packed:
        x, layout = tensor(scope, node.operands[0]), scope.node_layout(node)
        rest = [name for name in layout if name not in ("batch", stream.name)]
        text = aligned(x.text, x.layout, ["batch", *rest])
        reverse = "True" if node.op.reverse else ""
        text = applied("at_last_of_each", text, scope.length(stream), scope.packed, reverse)
        return scope.settled(node, text, ["batch", stream.name, *rest], x.kind)
    index = "0" if node.op.reverse else "-1"
    return _placed(scope, node, stream.name, index, scope.length(stream))


def _placed(scope: Scope, node: Node, axis: str, index: str, count: Text) -> Value:
    x = tensor(scope, node.operands[0])
    at = scope.node_layout(node).index(axis)
    rest = [name for name in scope.node_layout(node) if name != axis]
    text = permuted(x.text, x.layout, rest)
    text = applied("placed", text, str(at), index, count)
    return scope.settled(node, text, [*rest[:at], axis, *rest[at:]], x.kind)


def last(scope: Scope, node: Node) -> Value:
    """`last_of(x, 1, S)`; of a state of a recurrence along the stream, the state in the end."""
    op, layout = node.op, scope.node_layout(node)
    ended = ends_of(scope, node)
    if ended is not None:
        state = scope.finals[ended]
        return scope.settled(node, state.text, state.layout, state.kind)
    x, empty = tensor(scope, node.operands[0]), tensor(scope, node.operands[1])
    place = str(x.layout.index(op.stream))
    if scope.packed:
        return _last_of_each(scope, node, x, empty)
    rest = [name for name in x.layout if name != op.stream]
    name = "first_of" if op.reverse else "last_of"
    if set(rest) == set(layout) == set(empty.layout):
        text = permuted(empty.text, empty.layout, rest)
        return scope.settled(node, applied(name, x.text, place, text), rest, x.kind)
    shape = ", ".join(scope.length(axis).text for axis in node.type.axes)
    wide = call(f"{aligned(x.text, x.layout, [op.stream, *layout]).at(ATOM)}.expand", "-1", shape)
    other = call(f"{aligned(empty.text, empty.layout, layout).at(ATOM)}.expand", shape)
    return Value(applied(name, wide, "0", other), layout, x.kind)


def _last_of_each(scope: Scope, node: Node, x: Value, empty: Value) -> Value:
    """`last_of_each(x, S, sequence_rows)`: of every sequence."""
    layout, stream = scope.node_layout(node), node.op.stream
    wide = aligned(x.text, x.layout, ["batch", stream, *layout[1:]])
    wide = wide if "batch" in x.layout else Text(f"{wide.at(ATOM)}[None]")
    other = aligned(empty.text, empty.layout, layout)
    reverse = "True" if node.op.reverse else ""
    text = applied("last_of_each", wide, other, scope.packed, reverse)
    return Value(text, layout, x.kind)


def ends_of(scope: Scope, node: Node) -> tuple[int, str] | None:
    """The recurrence and its state that a Last reads in the end, once the recurrence is written."""
    source = scope.graph[node.operands[0]]
    if not isinstance(source.op, ir.Result):
        return None
    owner = scope.graph[source.operands[0]]
    if not ends_with(owner, source.op.name, node):
        return None
    if owner.id not in scope.results:
        scope.values[owner.id] = scope.emit(owner)
    return (owner.id, source.op.name)


def unwindow(scope: Scope, node: Node) -> Value:
    """`unwindowed(x, T, stride, past)`."""
    op, x = node.op, tensor(scope, node.operands[0])
    runs = op.blocks or op.stream.name
    rest = [n for n in x.layout if n not in ("batch", runs, op.width)]
    batch = "batch" in x.layout
    text = permuted(x.text, x.layout, ["batch"] * batch + [runs, op.width, *rest])
    text = text if batch else Text(f"{text.at(ATOM)}[None]")
    width = scope.graph[node.operands[0]].type.axis(op.width)
    length = scope.length(op.stream)
    if op.stride is None:
        text = applied("unwindowed", text, length, f"past={scope.length(width)} - 1")
    else:
        text = applied("unwindowed", text, length, scope.size(op.stride))
    have = ["batch"] * batch + [op.stream.name, *rest]
    return scope.settled(node, text if batch else Text(f"{text}[0]"), have, x.kind)


def expand(scope: Scope, node: Node) -> Value:
    """`x.expand(B, T, H)`."""
    x, layout = tensor(scope, node.operands[0]), scope.node_layout(node)
    lengths = [scope.length(axis).text for axis in node.type.axes]
    text = aligned(x.text, x.layout, layout)
    return Value(call(f"{text.at(ATOM)}.expand", *lengths), layout, x.kind)


# --- along rows ---------------------------------------------------------------------------------


def sums(scope: Scope, node: Node) -> Value:
    """`x.cumsum(-2)`, `sums_before(x, -2)`, `sums_from_end(x, -2)`, `sums_after(x, -2)`."""
    x, op = tensor(scope, node.operands[0]), node.op
    dim = str(x.layout.index(op.axis) - len(x.layout))
    if scope.packed and scope.graph[node.id].type.axis(op.axis).kind == "stream":
        order = ["batch", op.axis, *(n for n in x.layout if n not in ("batch", op.axis))]
        how = ["reverse=True"] * op.reverse + ["exclusive=True"] * op.exclusive
        text = permuted(x.text, x.layout, order)
        text = applied("sums_of_each", text, scope.packed, *how)
        return scope.settled(node, text, order, x.kind)
    if not op.reverse and not op.exclusive:
        return Value(call(f"{x.text.at(ATOM)}.cumsum", dim), x.layout, x.kind)
    name = {(True, False): "sums_from_end", (False, True): "sums_before"}
    text = applied(name.get((op.reverse, op.exclusive), "sums_after"), x.text, dim)
    return Value(text, x.layout, x.kind)


def move(scope: Scope, node: Node) -> Value:
    """`moved(x, -2, 1)`."""
    x, op = tensor(scope, node.operands[0]), node.op
    dim = str(x.layout.index(op.axis) - len(x.layout))
    text = applied("moved", x.text, dim, str(op.steps), str(op.fill) if op.fill else "")
    return Value(text, x.layout, x.kind)


LARGEST = {"max-plus": "max_plus_step", "max-times": "max_times_step"}
"""Steps of scans that are no sums."""


def scan(scope: Scope, node: Node) -> Value:
    """`scan_rows(a, b, h, -2, linear_step)`; of integers as reals, as a number times them would be
    of torch's own default dtype."""
    op, layout = node.op, scope.node_layout(node)
    if op.matrix is not None:
        return _scan_matrices(scope, node)
    rest = tuple(name for name in layout if name != op.axis)
    step, seen = "linear_step", Scope.value
    if op.kind in LARGEST:
        step, seen = LARGEST[op.kind], tensor  # torch.maximum takes no numbers
    a = laid_out(scope.real(scope.value(node.operands[0])), layout)
    b = laid_out(scope.real(seen(scope, node.operands[1])), layout)
    first = laid_out(scope.real(seen(scope, node.operands[2])), rest)
    dim = str(layout.index(op.axis) - len(layout))
    return Value(
        applied("scan_rows", a, b, first, dim, step, *flags(op, "reverse", "exclusive")),
        layout, DATA,
    )  # fmt: skip


def block_sums(scope: Scope, node: Node) -> Value:
    """`sums_of_blocks(x, 32)`, of a last axis."""
    op = node.op
    blocks = node.type.axes[-1].name
    return _of_last(scope, node, "sums_of_blocks", [op.axis], [blocks], str(op.length))


def _of_last(
    scope: Scope, node: Node, function: str, taken: list[str], given: list[str], *more: str
) -> Value:
    """A function of an array whose last axes are those `taken`, which gives others in their
    place."""
    x = tensor(scope, node.operands[0])
    rest = [name for name in x.layout if name not in taken]
    text = applied(function, permuted(x.text, x.layout, [*rest, *taken]), *more)
    return scope.settled(node, text, [*rest, *given])


def _scan_matrices(scope: Scope, node: Node) -> Value:
    """h [..., col, last] as columns that matrices [..., row, col] are multiplied with; the axes of
    h that the matrices lack, but for one, stand before."""
    op, layout = node.op, scope.node_layout(node)
    row, col = op.matrix
    a, b, first = (scope.real(tensor(scope, operand)) for operand in node.operands)
    free = [name for name in layout if name not in (op.axis, col)]
    column = [name for name in free if name not in a.layout][-1:]
    lead = [name for name in free if name not in column]
    text_a = aligned(a.text, a.layout, [*lead, op.axis, row, col])
    rows = [*lead, op.axis, col, *(column or ["1"])]
    start = [*lead, col, *(column or ["1"])]
    texts = [aligned(b.text, b.layout, rows), aligned(first.text, first.layout, start)]
    if col not in first.layout:
        before = [i for i, name in enumerate(start) if name in first.layout][:1]
        count = max(0, len(lead) - before[0]) if before else 0
        length = scope.length(node.type.axis(col)).text
        texts[1] = call(
            f"{texts[1].at(ATOM)}.expand",
            *["-1"] * count,
            length,
            "1" if not column or column[0] not in first.layout else "-1",
        )
    reverse = "reverse=True" if op.reverse else ""
    text = applied("scan_rows", text_a, *texts, "-3", "matrix_step", reverse)
    if not column:
        text = Text(f"{text}[..., 0]")
    return scope.settled(node, text, [*lead, op.axis, col, *column])


# --- between rows -------------------------------------------------------------------------------


def flags(op: object, *names: str) -> list[str]:
    """`strict=True`: those of the op's switches that are on."""
    return [f"{name}=True" for name in names if getattr(op, name)]


def spans(scope: Scope, node: Node) -> Value:
    """`spans(g)`, for gates [..., C]."""
    op, switches = node.op, flags(node.op, "strict", "exclusive")
    return _of_last(scope, node, "spans", [op.row], [op.row, op.col.name], *switches)


def differences(scope: Scope, node: Node) -> Value:
    """`differences(x)`, for running sums [..., C]."""
    op, switches = node.op, flags(node.op, "strict")
    return _of_last(scope, node, "differences", [op.row], [op.row, op.col.name], *switches)


def rest(scope: Scope, node: Node) -> Value:
    """`x[..., -1:, :] - x`."""
    x = tensor(scope, node.operands[0])
    behind = [":"] * (len(x.layout) - 1 - x.layout.index(node.op.axis))
    last = Text(f"{x.text.at(ATOM)}[{', '.join(('...', '-1:', *behind))}]", ATOM)
    return Value(binary("-", ADD, last, x.text), x.layout, x.kind)


def kernels_alone(scope: Scope, node: Node) -> Value:
    """No text: passes for kernels alone make such an op."""
    raise InternalError(f"`{type(node.op).__name__}` is for kernels alone")


def spans_gradient(scope: Scope, node: Node) -> Value:
    """`spans_gradient(x)`."""
    op, switches = node.op, flags(node.op, "exclusive")
    return _of_last(scope, node, "spans_gradient", [op.row, op.col], [op.row], *switches)


def strictness(op: ck.Gram | ck.Mix) -> str:
    """Where the diagonal is left out."""
    return "strict=True" if op.strict or op.exclusive else ""


def gram(scope: Scope, node: Node) -> Value:
    """`decayed_gram(q, k, decays)`."""
    op = node.op
    outer = [n for n in scope.node_layout(node) if n not in (op.row, op.col.name)]
    rows = Rows(scope, outer, op.row, op.over, node.operands)
    a, b = (rows.of(operand) for operand in node.operands[:2])
    factors = decays(rows, node.operands[2], op)
    text = applied("decayed_gram", a, b, factors, strictness(op))
    return scope.settled(node, text, [*outer, op.row, op.col.name])


def mix(scope: Scope, node: Node) -> Value:
    """`decayed_mix(A, v, decays)`."""
    op = node.op
    weights = tensor(scope, node.operands[0])
    rest = [name for name in scope.node_layout(node) if name != op.row]
    inner = [name for name in rest if name not in weights.layout]
    outer = [name for name in rest if name in weights.layout]
    rows = Rows(scope, outer, op.row, inner, node.operands)
    factors = decays(rows, node.operands[2], op)
    matrix = aligned(weights.text, weights.layout, [*outer, op.row, op.col])
    more = [strictness(op), *flags(op, "transpose")]
    text = applied("decayed_mix", matrix, rows.of(node.operands[1]), factors, *more)
    return scope.settled(node, rows.apart(text), [*outer, op.row, *inner])


def mix_sum(scope: Scope, node: Node) -> Value:
    """`decayed_mix(A, b, decays) + decayed_mix(B, c, decays)`."""
    parts = node.op.parts(node.operands)
    return _total(scope, node, [(op, own, None) for op, own in parts])


def gate_shares(scope: Scope, node: Node) -> Value:
    """`a * decayed_mix(A, b, decays) - b * decayed_mix(A, a, decays, transpose=True)`."""
    lots: list[Lot] = []
    for op, (d, a, b, g) in node.op.parts(node.operands):
        mixed = ck.Mix(op.row, op.col, True, op.exclusive, anchor=op.anchor)
        lots.append((mixed, (d, b, g), a))
        if not node.op.entering:
            lots.append((replace(mixed, transpose=True), (d, a, g), b))
    return _total(scope, node, lots)


Lot = tuple[ck.Mix, tuple[int, ...], int | None]
"""A Mix, its operands, and what it is multiplied with."""


def _total(scope: Scope, node: Node, lots: Sequence[Lot]) -> Value:
    """The sum of some Mix times values; of a transposed one times a value its negative."""
    layout, total = scope.node_layout(node), Text("")
    for op, operands, factor in lots:
        made = mix(scope, replace(node, op=op, operands=operands))
        term = aligned(made.text, made.layout, layout)
        if factor is not None:
            x = tensor(scope, factor)
            term = binary("*", MUL, aligned(x.text, x.layout, layout), term)
        sign = "-" if factor is not None and op.transpose else "+"
        total = binary(sign, ADD, total, term) if total.text else term
    return scope.settled(node, total, layout)


def gate_gradient(scope: Scope, node: Node) -> Value:
    """The last of the results of `decayed_gram_gradients(d, a, b, decays)`."""
    return gradients(scope, node, node.id, 2)


def inverse(scope: Scope, node: Node) -> Value:
    """`inverse_unit_lower(A)`."""
    matrix = [node.op.row, node.op.col]
    return _of_last(scope, node, "inverse_unit_lower", matrix, matrix)


def detach(scope: Scope, node: Node) -> Value:
    """`x.detach()`."""
    x = scope.value(node.operands[0])
    return x if x.kind == NUMBER else Value(call(f"{x.text.at(ATOM)}.detach"), x.layout, x.kind)


def convolved(scope: Scope, node: Node) -> Value:
    """`convolved(w, u, T)`, both with the tokens read in the end."""
    op = node.op
    rest = [name for name in scope.node_layout(node) if name != op.reader.name]
    values = [tensor(scope, id) for id in node.operands]
    both = [aligned(x.text, x.layout, [*rest, op.read]) for x in values]
    text = applied("convolved", *both, scope.length(op.reader))
    return scope.settled(node, text, [*rest, op.reader.name])


CHUNK_EMITTERS: dict[type, Callable[[Scope, Node], Value]] = {
    ck.Chunks: chunks,
    ck.Tokens: tokens,
    ck.Stack: stack,
    ck.Select: select,
    ck.Place: place,
    ck.Last: last,
    ck.AtLast: at_last,
    ck.Unwindow: unwindow,
    ck.Expand: expand,
    ck.Sums: sums,
    ck.Rest: rest,
    ck.Less: kernels_alone,
    ck.Middle: kernels_alone,
    ck.NearGram: kernels_alone,
    ck.Move: move,
    ck.Scan: scan,
    ck.BlockSums: block_sums,
    ck.Spans: spans,
    ck.Differences: differences,
    ck.SpansGradient: spans_gradient,
    ck.Gram: gram,
    ck.Mix: mix,
    ck.GateGradient: gate_gradient,
    ck.MixSum: mix_sum,
    ck.GateShares: gate_shares,
    ck.Inverse: inverse,
    ck.Detach: detach,
    ck.Convolved: convolved,
}
"""Op -> emission; Conjugate, which has a body, stands in `table.py`."""

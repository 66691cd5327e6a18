"""Emission of the tensor ops: one function an op, each giving the expression of a node's value."""

from __future__ import annotations

from collections.abc import Sequence

from archc.backends.eager import carry
from archc.backends.eager.elementwise import laid_out
from archc.backends.eager.linear import linear_call
from archc.backends.eager.looked_up import multiplied, taken
from archc.backends.eager.rearrange import run_of
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import (
    BOOL,
    DATA,
    INT,
    NUMBER,
    SHORT,
    TOTAL,
    Value,
    shape_text,
)
from archc.backends.expression import (
    ATOM,
    OPERATORS,
    Text,
    binary,
    call,
)
from archc.backends.index import aligned, dims, einsum, permuted
from archc.backends.writer import quoted

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.graph import Node


def given(scope: Scope, node: Node) -> Value:
    """Inputs and parameters are named by whoever made the scope."""
    raise KeyError(f"the scope was made without a name for {node.op.name}")


def constant(scope: Scope, node: Node) -> Value:
    """A Python number."""
    return Value(scope.number(node.op.value), (), NUMBER)


def position(scope: Scope, node: Node) -> Value:
    """Positions along a sequence have a line at the head of the function; along a dim, `arange`."""
    axis = node.op.axis
    if axis.kind == "stream":
        return Value(Text(scope.position(axis)), node.type.names, INT)
    return Value(
        call("torch.arange", scope.length(axis), f"device={scope.device}"), (axis.name,), INT
    )


def delta(scope: Scope, node: Node) -> Value:
    """The identity matrix; between two sequences it compares positions."""
    row, col = node.op.row, node.op.col
    layout = scope.node_layout(node)
    if row.kind == "dim" and col.kind == "dim":
        sizes = [scope.length(row).text, scope.length(col).text]
        sizes = sizes[:1] if sizes[0] == sizes[1] else sizes
        return Value(
            call("torch.eye", *sizes, f"device={scope.device}", f"dtype={scope.dtype}"),
            layout,
            DATA,
        )
    left, right = (aligned(Text(scope.position(axis)), [axis.name], layout) for axis in (row, col))
    return scope.as_data(Value(binary("==", 3, left, right), layout, BOOL))


def noise(scope: Scope, node: Node) -> Value:
    """Dropout of ones: the factor alone."""
    value = scope.as_data(scope.value(node.operands[0]))
    text = call("dropout_factor", value.text, scope.number(node.op.p), scope.ask(scope.training))
    return Value(text, value.layout, DATA)


# --- sums and products --------------------------------------------------------------------------


def reduce(scope: Scope, node: Node) -> Value:
    """`.sum(-1)`, `.mean((1, 2))`, `.amax(-1)`."""
    value, fn = scope.value(node.operands[0]), node.op.fn
    if fn == "logsumexp":
        return _total_of_scores(scope, node, value)
    if fn == "mean" or (fn != "sum" and value.kind == BOOL):
        value = scope.real(value)
    layout = scope.node_layout(node)
    kept = [name for name in value.layout if name not in node.op.axes]
    axes = [scope.graph[node.operands[0]].type.axis(name) for name in node.op.axes]
    if scope.packed and "batch" in layout and [axis.kind for axis in axes] == ["stream"]:
        return _whole_of_each(scope, node, value, kept)
    if fn in ("max", "min") and any(axis.kind == "stream" for axis in axes):
        text = call("extreme_of", value.text, dims(value.layout, node.op.axes), f"torch.a{fn}")
    elif fn in ("max", "min"):
        text = call(f"{value.text.at(ATOM)}.a{fn}", dims(value.layout, node.op.axes))
    elif fn == "prod":
        text = value.text
        for axis in sorted(node.op.axes, key=value.layout.index, reverse=True):
            text = call(f"{text.at(ATOM)}.prod", str(value.layout.index(axis)))
    else:
        wide = ["dtype=torch.float32"] if value.kind == SHORT else []
        text = call(f"{value.text.at(ATOM)}.{fn}", dims(value.layout, node.op.axes), *wide)
    return scope.settled(node, text, kept, DATA if value.kind == SHORT else value.kind)


def _total_of_scores(scope: Scope, node: Node, value: Value) -> Value:
    """`log_sum_exp(score, -1)`, over the tokens read."""
    kept = [name for name in value.layout if name not in node.op.axes]
    text = call("log_sum_exp", value.text, dims(value.layout, node.op.axes))
    return scope.settled(node, text, kept, TOTAL)


def _whole_of_each(scope: Scope, node: Node, value: Value, kept: Sequence[str]) -> Value:
    """`whole_of_each(x, "sum", sequence_rows)`: all tokens, or chunks, of each packed sequence."""
    rows, axis = scope.packed, scope.graph[node.operands[0]].type.axis(node.op.axes[0])
    if axis.size.has(CHUNK):
        rows = call("by_chunks", rows)
    rest = [name for name in kept if name != "batch"]
    x = permuted(value.text, value.layout, ["batch", *node.op.axes, *rest])
    text = call("whole_of_each", x, quoted(node.op.fn), rows)
    return scope.settled(node, text, ["batch", *rest])


def contract(scope: Scope, node: Node) -> Value:
    """A product summed over what the result lacks: `@`, `einsum`, or a plain product."""
    known = linear_call(scope, node) or multiplied(scope, node)
    if known is not None:
        return known
    values = [scope.value(operand) for operand in node.operands]
    if len(values) == 1:
        return _rearranged(scope, node, values[0])
    names = [
        dict(zip(scope.graph[o].type.names, ins, strict=True))
        for o, ins in zip(node.operands, node.op.ins, strict=True)
    ]
    values, kind = scope.joined(values)
    values = [scope.as_data(value) if value.kind == INT else value for value in values]
    ins = [
        [labels[axis] for axis in value.layout] for value, labels in zip(values, names, strict=True)
    ]
    axis_of = {label: axis.name for label, axis in node.op.out}
    layout = scope.node_layout(node)
    label_of = {axis: label for label, axis in axis_of.items()}
    out = [label_of[name] for name in layout]
    repeated = any(len(set(labels)) < len(labels) for labels in ins)
    if NUMBER in {value.kind for value in values} or (
        set(ins[0]) | set(ins[1]) == set(out) and not repeated
    ):
        left, right = (_within(v, i, out) for v, i in zip(values, ins, strict=True))
        return Value(binary("*", OPERATORS["mul"][1], left, right), layout, kind)
    if kind != DATA:
        values, kind = [scope.as_data(value) for value in values], DATA
    if (
        ins[0][:-1] + ins[1][1:] == out
        and ins[0][-1:] == ins[1][:1]
        and len(ins[1]) == 2 <= len(ins[0])
    ):
        return Value(binary("@", OPERATORS["mul"][1], values[0].text, values[1].text), layout, kind)
    batched = _batched(values, ins, out)
    if batched is not None:
        return Value(batched, layout, kind)
    return Value(einsum([value.text for value in values], ins, out), layout, kind)


def _within(value: Value, labels: Sequence[str], out: Sequence[str]) -> Text:
    """One operand, summed over what neither the other nor the result has."""
    if value.kind == NUMBER:
        return value.text
    kept = [label for label in out if label in labels]
    if len(set(labels)) < len(labels):
        return aligned(einsum([value.text], [labels], kept), kept, out)
    summed = [label for label in labels if label not in kept]
    text = call(f"{value.text.at(ATOM)}.sum", dims(labels, summed)) if summed else value.text
    return aligned(text, [label for label in labels if label in kept], out)


def _batched(
    values: Sequence[Value], ins: Sequence[Sequence[str]], out: Sequence[str]
) -> Text | None:
    """`a @ b.mT` for matrices in the last two dims and the same dims before them, which is faster
    than an einsum."""
    if not 2 < len(out) == len(ins[0]) == len(ins[1]):
        return None
    if not list(ins[0][:-2]) == list(ins[1][:-2]) == list(out[:-2]):
        return None
    first, second = zip(values, ins, strict=True)
    if out[-2] in ins[1]:
        first, second = second, first
    (value_1, have_1), (value_2, have_2) = first, second
    summed = [label for label in have_1[-2:] if label in have_2[-2:]]
    if len(summed) != 1 or out[-2] not in have_1 or out[-1] not in have_2:
        return None
    left = permuted(value_1.text, have_1, [*out[:-2], out[-2], *summed])
    right = permuted(value_2.text, have_2, [*out[:-2], *summed, out[-1]])
    return binary("@", OPERATORS["mul"][1], left, right)


def _rearranged(scope: Scope, node: Node, value: Value) -> Value:
    """One operand: other names cost nothing, another order is a view, the rest is an einsum."""
    names = dict(zip(scope.graph[node.operands[0]].type.names, node.op.ins[0], strict=True))
    labels = [names[axis] for axis in value.layout]
    label_of = {axis.name: label for label, axis in node.op.out}
    layout = scope.node_layout(node)
    out = [label_of[name] for name in layout]
    if sorted(labels) == sorted(out):
        return Value(permuted(value.text, labels, out), layout, value.kind)
    value = scope.as_data(value)
    return Value(einsum([value.text], [labels], out), layout, DATA)


# --- by index ----------------------------------------------------------------------------------


def gather(scope: Scope, node: Node) -> Value:
    """A run of entries is a view; else `E[tokens]` for a table, `x[..., index]`
    (`x.index_select(dim, index)` where no index can be negative) where no axis is shared, else
    `take`."""
    run, by_distance = run_of(scope, node), taken(scope, node)
    if run is not None:
        return _narrowed(scope, node, *run)
    if by_distance is not None:
        return by_distance
    value, index = (scope.value(operand) for operand in node.operands)
    axis = node.op.axis
    at = value.layout.index(axis)
    shared = [name for name in value.layout if name in index.layout and name != axis]
    new = [name for name in index.layout if name not in shared]
    if shared:
        rest = [name for name in value.layout if name not in shared and name != axis]
        data = permuted(value.text, value.layout, [*shared, axis, *rest])
        where = permuted(index.text, index.layout, [*shared, *new])
        text = call("take_at", data, where, str(len(shared)))
        have = [*shared, *new, *rest]
    else:
        have = [*value.layout[:at], *new, *value.layout[at + 1 :]]
        if len(new) == 1 and scope.graph[node.operands[1]].op == ir.Elementwise("mod"):
            # never negative: the gradient of index_select adds rows, that of [...] sorts indices
            place = dims(value.layout, [axis])
            text = call(f"{value.text.at(ATOM)}.index_select", place, index.text)
            return scope.settled(node, text, have, value.kind)
        lead = ":, " * at if at < len(value.layout) - 1 or at < 2 else "..., "
        text = Text(f"{value.text.at(ATOM)}[{lead}{index.text}]")
        if at == 0 and len(value.layout) == 2 and len(new) > 1:
            text = call("F.embedding", index.text, value.text)
    return scope.settled(node, text, have, value.kind)


def _narrowed(scope: Scope, node: Node, start: Text, axis: Axis) -> Value:
    """`x.narrow(-1, N, R)`."""
    value = scope.value(node.operands[0])
    have = [axis.name if name == node.op.axis else name for name in value.layout]
    place = dims(value.layout, [node.op.axis])
    text = call(f"{value.text.at(ATOM)}.narrow", place, start, scope.length(axis))
    return scope.settled(node, text, have, value.kind)


def scatter(scope: Scope, node: Node) -> Value:
    """Sums by index, as a product with a one-hot matrix: an index out of range adds nothing."""
    value, index = (scope.value(operand) for operand in node.operands)
    value, into, layout = scope.as_data(scope.real(value)), node.op.into, scope.node_layout(node)
    hot = Text(scope.names.fresh(f"{scope.target(node.id)}_rows"))
    rows = [index.text.text, scope.length(into).text, scope.dtype]
    scope.writer.call(f"{hot} = one_hot_rows(", rows, ")")
    ins = [list(value.layout), [node.op.axis, into.name + "'"]]
    out = [name + "'" if name == into.name else name for name in layout]
    return Value(einsum([value.text, hot], ins, out), layout, DATA)


def top(scope: Scope, node: Node) -> Value:
    """`top(score, count, dim)`."""
    value = scope.value(node.operands[0])
    text = call("top_of", value.text, scope.size(node.op.count), dims(value.layout, [node.op.axis]))
    return Value(text, value.layout, BOOL)


def solve(scope: Scope, node: Node) -> Value:
    """The exact solution, whatever number of iterations an approximation would take."""
    row, col = node.op.row, node.op.col
    common = [name for name in scope.node_layout(node) if name != row]
    matrix, vector = (scope.value(operand) for operand in node.operands)
    a = aligned(matrix.text, matrix.layout, [*common, row, col])
    b = aligned(vector.text, vector.layout, [*common, row])
    text = Text(f"torch.linalg.solve({a}, {b.at(ATOM)}[..., None])[..., 0]")
    return scope.settled(node, text, [*common, row])


# --- along a sequence --------------------------------------------------------------------------


def shift(scope: Scope, node: Node) -> Value:
    """The tokens `steps` earlier; the state holds those from before the first."""
    before, after = carry.past(scope, node)
    x = scope.per_token(node.operands[0], node.op.stream, short=True)
    name = scope.names.fresh(node.name or f"{scope.target(node.id)}_before")
    borders = f", {scope.cu_seqlens}" if scope.cu_seqlens else ""
    scope.writer.line(f"{name}, {after} = shift_tokens({x.text}, {before}{borders})", shape_text(x))
    return Value(Text(name), x.layout, x.kind)


def window(scope: Scope, node: Node) -> Value:
    """Runs of tokens along a new axis."""
    before, after = carry.past(scope, node)
    x = scope.per_token(node.operands[0], node.op.stream, short=True)
    op, rest = node.op, x.layout[2:]
    arguments = [x.text, before]
    if op.stride is None:
        piece, stream = "window_tokens", op.stream
        arguments += [Text(scope.cu_seqlens)] * bool(scope.cu_seqlens)
    else:
        piece, stream = "block_tokens", op.blocks.name
        if scope.file.slots:
            piece = "next_block"
    if op.stride is not None and not scope.file.slots:
        arguments += [scope.length(op.width), scope.size(op.stride), Text(scope.starts[op.stream])]
    value = Value(
        Text(scope.names.fresh(node.name or scope.hint(node))),
        ("batch", stream, op.width.name, *rest),
        x.kind,
    )
    scope.writer.line(f"{value.text}, {after} = {call(piece, *arguments)}", shape_text(value))
    return scope.settled(node, value.text, value.layout, value.kind)


def softmax(scope: Scope, node: Node) -> Value:
    """`masked_softmax(score, mask, dim)`."""
    layout = scope.node_layout(node)
    score, mask, *sink = node.operands
    values = [scope.as_data(scope.real(scope.value(operand))) for operand in (score, *sink)]
    allowed = scope.value(mask)
    texts = [laid_out(values[0], layout), laid_out(allowed, layout)]
    if values[0].kind == NUMBER or set(values[0].layout) != set(layout):
        texts[0] = call("torch.where", texts[1], texts[0], "-math.inf")
    arguments = [*texts, Text(dims(layout, [node.op.over]))]
    if sink:
        rest = [name for name in layout if name != node.op.over]
        arguments.append(laid_out(values[1], tuple(rest)))
    return Value(call("masked_softmax", *arguments), layout, DATA)


def segment(scope: Scope, node: Node) -> Value:
    """Sums or products over the tokens between the one read and the reader."""
    op = node.op
    value = scope.as_data(scope.real(scope.value(node.operands[0])))
    matrix = [name for name in (op.row, op.col) if name is not None]
    own = [op.reader.name] if op.reader.name in value.layout else []
    rest = [n for n in value.layout if n not in ("batch", op.path, *own, *matrix)]
    have = ["batch", op.reader.name, op.read.name, *rest, *matrix]
    inner = [*own, op.path, *rest, *matrix]
    if "batch" in value.layout:
        arguments = [aligned(value.text, value.layout, ["batch", *inner])]
    else:  # made of positions and parameters alone
        arguments = [Text(f"{permuted(value.text, value.layout, inner).at(ATOM)}[None]")]
    piece = ("products_between" if matrix else "combined_between") + ("_for_each" if own else "")
    if scope.file.slots:
        at = "" if own else "[:, None]"
        piece, arguments = "combined_since", [Text(f"{arguments[0].at(ATOM)}{at}")]
        arguments.append(Text(scope.ask("pos")))
    elif not own:
        arguments.append(scope.length(op.reader))
    if not matrix:
        arguments.append(Text({"sum": "torch.cumsum", "product": "torch.cumprod"}[op.kind]))
    text = call(piece, *arguments)
    if "batch" not in node.type.names:
        text, have = Text(f"{text.at(ATOM)}[0]"), have[1:]
    return scope.settled(node, text, have)


def result(scope: Scope, node: Node) -> Value:
    """One of the results of a region or a call, which is emitted as a whole."""
    owner = node.operands[0]
    if owner not in scope.results:
        scope.values[owner] = scope.emit(scope.graph[owner])
    return scope.results[owner][node.op.name]

"""The reference semantics of the chunk ops, one function an op, in plain torch for clarity alone.

Everything between rows is written pair by pair: spans [rows, columns] and sums over them. As in
`meaning_ops.py` every function takes the node, the scope and its operands as `Named` tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archc.ir import chunk as ck
from archc.ir.graph import Node
from archc.ir.meaning_ops import Named, Scope


def chunks(node: Node, scope: Scope, x: Named) -> Named:
    op = node.op
    steps = [] if op.steps is None else [op.steps]
    rest = [name for name in x.names if name not in (op.stream, *steps)]
    data = x.to([op.stream, *steps, *rest])
    if steps:
        data = data.flatten(0, 1)
    count, rows = scope.shape([op.chunk, op.row])
    filled = data.new_full((count * rows, *data.shape[1:]), op.fill)
    filled[: len(data)] = data
    return Named(filled.unflatten(0, (count, rows)), (op.chunk.name, op.row.name, *rest))


def tokens(node: Node, scope: Scope, x: Named) -> Named:
    op = node.op
    rest = [name for name in x.names if name not in (op.chunk, op.row)]
    data = x.to([op.chunk, op.row, *rest]).flatten(0, 1)
    (length,) = scope.shape([op.stream])
    if op.steps is None:
        return Named(data[:length], (op.stream.name, *rest))
    (steps,) = scope.shape([op.steps])
    data = data[: length * steps].unflatten(0, (length, steps))
    return Named(data, (op.stream.name, op.steps.name, *rest))


def stack(node: Node, scope: Scope, *operands: Named) -> Named:
    names = operands[0].names
    data = torch.stack([operand.to(names) for operand in operands])
    return Named(data, (node.op.axis.name, *names))


def select(node: Node, scope: Scope, x: Named) -> Named:
    place = x.names.index(node.op.axis)
    rest = tuple(name for name in x.names if name != node.op.axis)
    return Named(x.data.select(place, node.op.index), rest)


def place(node: Node, scope: Scope, x: Named) -> Named:
    (length,) = scope.shape([node.op.axis])
    data = x.data.new_zeros((length, *x.data.shape))
    data[node.op.index] = x.data
    return Named(data, (node.op.axis.name, *x.names))


def last(node: Node, scope: Scope, x: Named, empty: Named) -> Named:
    names = node.type.names
    along, shape = x.names.index(node.op.stream), scope.shape(node.type.axes)
    if not x.data.shape[along]:
        return Named(scope.real(empty.to(names)).expand(shape), names)
    taken = x.data.select(along, 0 if node.op.reverse else -1)
    rest = tuple(name for name in x.names if name != node.op.stream)
    return Named(Named(taken, rest).to(names).expand(shape), names)


def at_last(node: Node, scope: Scope, x: Named) -> Named:
    (length,) = scope.shape([node.op.stream])
    at = torch.arange(length, device=x.data.device).reshape(-1, *[1] * x.data.dim())
    chosen = at == (0 if node.op.reverse else length - 1)
    return Named(torch.where(chosen, x.data, 0.0), (node.op.stream.name, *x.names))


def unwindow(node: Node, scope: Scope, x: Named) -> Named:
    """Every place of every run adds its value to the token that it came from."""
    op, runs = node.op, node.op.blocks or node.op.stream.name
    rest = [name for name in x.names if name not in (runs, op.width)]
    data = x.to([runs, op.width, *rest])
    (length,), (count, width) = scope.shape([op.stream]), data.shape[:2]
    stride, before = (1, width - 1) if op.stride is None else (int(scope.number(op.stride)), 0)
    starts = torch.arange(count, device=data.device)[:, None] * stride - before
    tokens = (starts + torch.arange(width, device=data.device)).flatten()
    kept = (tokens >= 0) & (tokens < length)
    sums = data.new_zeros([length, *data.shape[2:]])
    sums = sums.index_add(0, tokens[kept], data.flatten(0, 1)[kept])
    return Named(sums, (op.stream.name, *rest))


def expand(node: Node, scope: Scope, x: Named) -> Named:
    names = node.type.names
    return Named(x.to(names).expand(scope.shape(node.type.axes)), names)


def sums(node: Node, scope: Scope, x: Named) -> Named:
    op, along = node.op, x.names.index(node.op.axis)
    data = x.data.flip(along) if op.reverse else x.data
    if op.gates:
        data = data.clamp(min=ck.LEAST_GATE)
    if op.exclusive:
        data = _moved(data, along, 1, 0)
    data = data.cumsum(along)
    return Named(data.flip(along) if op.reverse else data, x.names)


def move(node: Node, scope: Scope, x: Named) -> Named:
    op = node.op
    return Named(_moved(x.data, x.names.index(op.axis), op.steps, op.fill), x.names)


def _moved(data: Tensor, along: int, steps: int, fill: float) -> Tensor:
    """The tensor with each element `steps` later; `fill` where nothing comes from."""
    length = data.shape[along]
    steps = max(-length, min(length, steps))
    kept = data.narrow(along, max(0, -steps), length - abs(steps))
    new = torch.full_like(data.narrow(along, 0, abs(steps)), fill)
    return torch.cat([new, kept] if steps > 0 else [kept, new], along)


def block_sums(node: Node, scope: Scope, x: Named) -> Named:
    """Each block of an axis added up; the last may be shorter."""
    op = node.op
    rest = [name for name in x.names if name != op.axis]
    data = x.to([*rest, op.axis])
    data = torch.nn.functional.pad(data, (0, -data.shape[-1] % op.length))
    blocks = data.unflatten(-1, (-1, op.length)).sum(-1)
    return Named(blocks, (*rest, node.type.axes[-1].name))


def scan(node: Node, scope: Scope, a: Named, b: Named, first: Named) -> Named:
    """Row by row, each from the one before."""
    op, names = node.op, node.type.names
    rest = [name for name in names if name != op.axis]
    (length,) = scope.shape([node.type.axis(op.axis)])
    shape = scope.shape([axis for axis in node.type.axes if axis.name != op.axis])
    state, rows = Named(first.to(rest).expand(shape), tuple(rest)), []
    order = range(length)
    for i in reversed(order) if op.reverse else order:
        a_i, b_i = _row(a, op.axis, i), _row(b, op.axis, i)
        before = state
        state = Named(_step(op, a_i, b_i, state, rest).expand(shape), tuple(rest))
        rows.append((before if op.exclusive else state).data)
    rows = rows[::-1] if op.reverse else rows
    data = torch.stack(rows) if rows else scope.like.new_zeros((0, *shape))
    return Named(data, (op.axis, *rest))


def _row(x: Named, axis: str, i: int) -> Named:
    """A value at one row; one without rows is the same at all."""
    if axis not in x.names:
        return x
    return Named(
        x.data.select(x.names.index(axis), i), tuple(name for name in x.names if name != axis)
    )


def _step(op: ck.Scan, a: Named, b: Named, state: Named, rest: Sequence[str]) -> Tensor:
    """One step of a scan, its dims as in `rest`."""
    if op.kind == "max-plus":
        return torch.maximum(a.to(rest) + state.data, b.to(rest))
    if op.matrix is None:
        return a.to(rest) * state.data + b.to(rest)
    row, col = op.matrix
    wide = [*rest, row]
    product = (a.to(wide) * Named(state.data, tuple(rest)).to(wide)).sum(rest.index(col))
    new = [col if name == row else name for name in wide if name != col]
    return Named(product, tuple(new)).to(rest) + b.to(rest)


# --- between the rows of a chunk ----------------------------------------------------------------


def _spans(gates: Tensor, strict: bool, exclusive: bool) -> Tensor:
    """[rows, ...] -> [rows, columns, ...], -inf where the pair is not kept."""
    rows = len(gates)
    later = _kept(rows, True, False).reshape(rows, rows, *[1] * (gates.dim() - 1))
    sums = torch.where(later, gates[:, None], 0.0).cumsum(0)
    if exclusive:
        sums = _moved(sums, 0, 1, 0)
    kept = _kept(rows, strict, exclusive).reshape(later.shape)
    return torch.where(kept, sums, -torch.inf)


def _decays(op: ck.Gram | ck.Mix | ck.GateGradient, gates: Tensor) -> Tensor:
    """How pairs of rows decay, [rows, columns, ...]: by gates, or by sums of them."""
    if op.anchor != ck.SUMS:
        return _spans(gates, op.strict, op.exclusive).exp()
    until = _moved(gates, 0, 1, 0) if op.exclusive else gates
    kept = _kept(len(gates), op.strict, op.exclusive)
    kept = kept.reshape(*kept.shape, *[1] * (gates.dim() - 1))
    return torch.where(kept, until[:, None] - gates[None], -torch.inf).exp()


def _kept(rows: int, strict: bool, exclusive: bool) -> Tensor:
    """Which pairs (i, j) are kept."""
    i, j = torch.arange(rows)[:, None], torch.arange(rows)
    return j < i if strict or exclusive else j <= i


def _between(spans: Tensor, strict: bool, exclusive: bool) -> Tensor:
    """Cotangents of spans [rows, columns, ...] -> sums over the pairs around each row."""
    rows = len(spans)
    kept = _kept(rows, strict, exclusive).reshape(rows, rows, *[1] * (spans.dim() - 2))
    spans = torch.where(kept, spans, 0.0)
    found = []
    for r in range(rows):
        first = r + 1 if exclusive else r
        found.append(spans[first:, :r].sum((0, 1)))
    return torch.stack(found) if found else spans.sum(1)


def spans(node: Node, scope: Scope, g: Named) -> Named:
    op = node.op
    rest = [name for name in g.names if name != op.row]
    data = _spans(g.to([op.row, *rest]), op.strict, op.exclusive)
    return Named(data, (op.row, op.col.name, *rest))


def spans_gradient(node: Node, scope: Scope, x: Named) -> Named:
    op = node.op
    rest = [name for name in x.names if name not in (op.row, op.col)]
    data = _between(x.to([op.row, op.col, *rest]), op.strict, op.exclusive)
    return Named(data, (op.row, *rest))


def gram(node: Node, scope: Scope, a: Named, b: Named, g: Named) -> Named:
    op = node.op
    rest = [name for name in node.type.names if name not in (op.row, op.col.name)]
    names = [op.row, *rest, *op.over]
    weights = _decays(op, g.to(names))
    product = a.to(names)[:, None] * weights * b.to(names)[None]
    summed = product.sum(list(range(2 + len(rest), product.dim())))
    shape = scope.shape([node.type.axis(name) for name in (op.row, op.col.name, *rest)])
    return Named(summed.expand(shape), (op.row, op.col.name, *rest))


def mix(node: Node, scope: Scope, weights: Named, value: Named, g: Named) -> Named:
    op = node.op
    rest = [name for name in node.type.names if name != op.row]
    decays = _decays(op, g.to([op.row, *rest]))
    pairs = weights.to([op.row, op.col, *rest]) * decays
    data = value.to([op.row, *rest])
    product = pairs * (data[:, None] if op.transpose else data[None])
    return Named(product.sum(0 if op.transpose else 1), (op.row, *rest))


def gate_gradient(node: Node, scope: Scope, d: Named, a: Named, b: Named, g: Named) -> Named:
    op = node.op
    rest = list(dict.fromkeys((*g.names, *a.names, *b.names, *d.names)))
    rest = [name for name in rest if name not in (op.row, op.col)]
    decays = _decays(op, g.to([op.row, *rest]))
    pairs = a.to([op.row, *rest])[:, None] * d.to([op.row, op.col, *rest]) * decays
    product = pairs * b.to([op.row, *rest])[None]
    data = _between(product, op.strict, op.exclusive)
    summed = [1 + i for i, name in enumerate(rest) if name not in g.names]
    data = data.sum(summed) if summed else data
    return Named(data, (op.row, *(name for name in rest if name in g.names)))


def inverse(node: Node, scope: Scope, x: Named) -> Named:
    op = node.op
    rest = [name for name in x.names if name not in (op.row, op.col)]
    data = x.to([*rest, op.row, op.col])
    identity = torch.eye(data.shape[-1], dtype=data.dtype, device=data.device)
    data = torch.linalg.solve_triangular(identity - data.tril(-1), identity, upper=False)
    return Named(data, (*rest, op.row, op.col))


CHUNK_MEANING: dict[type, Callable[..., Named]] = {
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
    ck.Move: move,
    ck.Scan: scan,
    ck.BlockSums: block_sums,
    ck.Spans: spans,
    ck.SpansGradient: spans_gradient,
    ck.Gram: gram,
    ck.Mix: mix,
    ck.GateGradient: gate_gradient,
    ck.Inverse: inverse,
    ck.Detach: lambda node, scope, x: Named(x.data.detach(), x.names),
}
"""What each chunk op computes; Conjugate, which has a body, stands in `meaning.py`."""

"""The reference semantics of the tensor ops of the layer IR, one function an op (regions: see
`meaning.py`).

Every function takes the node, the scope and its operands as `Named` tensors, and may return the
dims in any order. Plain torch, written for clarity alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import Any

import sympy
import torch
from torch import Tensor

from archc.dims import T_SEEN, TIME, Axis
from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.named import Named
from archc.ir.sizes import Number, evaluate
from archc.runtime.philox import factor_of_seed
from archc.tables import complete


@dataclass
class Evaluation:
    """The result of a layer: its outputs, every value with a name in the spec, and the states of
    its recurrences after the last token. Values and states of called layers have dotted names
    (`layers.0.mixer.S`); values inside a recurrence or attend are not kept."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)


@dataclass
class Scope:
    """The surroundings of the ops of one graph. `sizes` grows by the sizes that inputs bring
    (batch, T); `like` is a scalar of the evaluation's dtype and device; `of_body` computes graphs
    inside ops; `watch` is shown each value as it is computed."""

    sizes: dict[str, Number]
    inputs: Mapping[str, Named]
    params: Mapping[str, Tensor]
    states: Mapping[str, Tensor]
    layers: Mapping[str, Callable[[Tensor], Tensor]]
    like: Tensor
    found: Evaluation
    of_body: Callable[[Graph, Scope], Mapping[str, Named]]
    prefix: str = ""
    watch: Callable[[Node, str, Sequence[Any], Any], None] | None = None
    numbers: dict[sympy.Expr, Number] = field(default_factory=dict)

    def number(self, value: sympy.Expr) -> Number:
        """An expression in sizes as a number; remembered, as a loop asks at every token."""
        if value not in self.numbers:
            self.numbers[value] = evaluate(value, self.sizes)
        return self.numbers[value]

    def shape(self, axes: Sequence[Axis]) -> list[int]:
        """Lengths of axes."""
        return [int(self.number(axis.size)) for axis in axes]

    def real(self, data: Tensor) -> Tensor:
        """A tensor as real numbers of the evaluation's dtype."""
        return data.to(self.like)

    def run(self, body: Graph, inputs: Mapping[str, Named]) -> Mapping[str, Named]:
        """The outputs of a graph inside of an op."""
        return self.of_body(body, replace(self, inputs=inputs))

    def learn(self, name: str, axes: Sequence[Axis], shape: Sequence[int]) -> None:
        """Note the sizes that a tensor brings with it; ValueError where they contradict others."""
        if len(axes) == len(shape):
            for axis, length in zip(axes, shape, strict=True):
                if isinstance(axis.size, sympy.Symbol):
                    self.sizes.setdefault(axis.size.name, length)
                if axis == TIME:
                    self.sizes.setdefault(T_SEEN.name, length)
        if len(axes) != len(shape) or self.shape(axes) != list(shape):
            wanted = ", ".join(str(axis) for axis in axes)
            raise ValueError(f"`{name}` has the axes [{wanted}], but its shape is {list(shape)}")


# --- values that come from outside -------------------------------------------------------------


def input_(node: Node, scope: Scope) -> Named:
    value = scope.inputs[node.op.name]
    data = scope.real(value.data) if node.type.dtype == "real" else value.data
    return Named(data, value.names)


def param(node: Node, scope: Scope) -> Named:
    data = scope.params[scope.prefix + node.op.name]
    scope.learn(scope.prefix + node.op.name, node.op.axes, data.shape)
    return Named(scope.real(data), node.type.names)


def constant(node: Node, scope: Scope) -> Named:
    value, like = scope.number(node.op.value), scope.like
    dtype = like.dtype if node.type.dtype == "real" else torch.int64
    return Named(torch.full((), value, dtype=dtype, device=like.device), ())


def position(node: Node, scope: Scope) -> Named:
    lengths = scope.shape(node.type.axes)
    positions = torch.arange(lengths[-1], device=scope.like.device).expand(lengths)
    return Named(positions, node.type.names)


def delta(node: Node, scope: Scope) -> Named:
    rows, cols = scope.shape(node.type.axes)
    identity = torch.eye(rows, cols, dtype=scope.like.dtype, device=scope.like.device)
    return Named(identity, node.type.names)


def noise(node: Node, scope: Scope, like: Named, seed: Named | None = None) -> Named:
    if seed is None:
        return Named(torch.ones_like(scope.real(like.data)), like.names)
    p, data = scope.number(node.op.p), like.to(node.type.names)
    return Named(factor_of_seed(seed.data, data.shape, p, scope.like), node.type.names)


# --- tokenwise algebra -------------------------------------------------------------------------

FUNCTIONS: dict[str, Callable[..., Tensor]] = complete(
    "`FUNCTIONS` of archc/ir/meaning_ops.py",
    {
        **{name: attrgetter(fn.torch)(torch) for name, fn in DEFINED.items() if fn.torch},
        # torch's own softplus becomes linear above 20
        "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
        "real": lambda x: x,
        "floordiv": partial(torch.div, rounding_mode="floor"),  # `floor_divide` has no gradient
    },
    DEFINED,
)
"""The meaning of each function; torch's own where it has one."""


def elementwise(node: Node, scope: Scope, *operands: Named) -> Named:
    names = node.type.names
    aligned = [operand.to(names) for operand in operands]
    if node.type.dtype == "real":
        start = 1 if node.op.fn == "where" else 0  # its condition stays a bool
        aligned[start:] = [scope.real(data) for data in aligned[start:]]
    return Named(_without_nan_gradients(FUNCTIONS[node.op.fn], aligned), names)


def _without_nan_gradients(fn: Callable[..., Tensor], operands: Sequence[Tensor]) -> Tensor:
    """fn(*operands), whose gradient is 0 wherever the gradient that arrives is 0.

    The rule of calculus multiplies that 0 by a slope, which is NaN where the slope is infinite: in
    `where(c, a, exp(b))` an overflowing `exp(b)` that is not chosen would spoil the gradient of b.
    """
    if not any(operand.requires_grad for operand in operands):
        return fn(*operands)
    shape = torch.broadcast_shapes(*(operand.shape for operand in operands))
    fresh = [operand.expand(shape).view_as(operand.expand(shape)) for operand in operands]
    result = fn(*fresh)
    if result.requires_grad:
        arrived: list[Tensor] = []
        result.register_hook(arrived.append)
        for operand in fresh:
            if operand.requires_grad:
                operand.register_hook(lambda g: torch.where(arrived[-1] == 0, 0.0, g))
    return result


def reduce(node: Node, scope: Scope, value: Named) -> Named:
    """torch has no max of nothing; here it is -inf."""
    dims = [value.names.index(name) for name in node.op.axes]
    data, kept = value.data, tuple(name for name in value.names if name not in node.op.axes)
    if not dims:
        return value
    if node.op.fn in ("sum", "mean"):
        return Named(getattr(data, node.op.fn)(dims), kept)
    if node.op.fn == "prod":
        for dim in sorted(dims, reverse=True):
            data = data.prod(dim)
        return Named(data, kept)
    if node.op.fn == "logsumexp":
        largest = data.detach().amax(dims, keepdim=True) if data.numel() else data.sum(dims, True)
        empty = largest == -torch.inf
        total = torch.logsumexp(torch.where(empty, 0.0, data), dims)
        return Named(torch.where(empty.reshape(total.shape), -torch.inf, total), kept)
    nothing = -torch.inf if node.op.fn == "max" else torch.inf
    if any(data.shape[dim] == 0 for dim in dims):
        rest = [data.shape[value.names.index(name)] for name in kept]
        return Named(data.new_full(rest, nothing), kept)
    return Named(data.amax(dims) if node.op.fn == "max" else data.amin(dims), kept)


def contract(node: Node, scope: Scope, *operands: Named) -> Named:
    labels = sorted({label for labels in node.op.ins for label in labels})
    arguments: list[object] = []
    for operand, names in zip(operands, node.op.ins, strict=True):
        data = scope.real(operand.data) if node.type.dtype == "real" else operand.data
        arguments += [data, [labels.index(name) for name in names]]
    out = [labels.index(label) for label, _ in node.op.out]
    return Named(torch.einsum(*arguments, out), node.type.names)


def gather(node: Node, scope: Scope, value: Named, index: Named) -> Named:
    """value[b, i[b, n], r] for shared axes b, new axes n, and the rest r."""
    axis = node.op.axis
    shared = [n for n in value.names if n in index.names and n != axis]
    rest = tuple(n for n in value.names if n not in index.names and n != axis)
    new = tuple(n for n in index.names if n not in shared)
    at = index.to((*shared, *new))
    length = value.data.shape[value.names.index(axis)]
    if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < length:
        raise IndexError(f"an index along `{axis}` is not between 0 and {length - 1}")
    data = value.to((*shared, axis, *rest))
    ranges = [torch.arange(n, device=at.device) for n in at.shape]
    places = torch.meshgrid(*ranges, indexing="ij") if ranges else ()
    return Named(data[(*places[: len(shared)], at)], (*shared, *new, *rest))


def scatter(node: Node, scope: Scope, value: Named, index: Named) -> Named:
    (length,) = scope.shape([node.op.into])
    rest = tuple(name for name in value.names if name != node.op.axis)
    data = value.to((node.op.axis, *rest))
    kept = (index.data >= 0) & (index.data < length)
    sums = data.new_zeros([length, *data.shape[1:]])
    sums = sums.index_add(0, index.data[kept], data[kept])
    return Named(sums, (node.op.into.name, *rest))


def join(node: Node, scope: Scope, *operands: Named) -> Named:
    into, rest = node.op.into.name, [n for n in node.type.names if n != node.op.into.name]
    parts = [
        operand.renamed({axis: into}).to([*rest, into])
        for axis, operand in zip(node.op.axes, operands, strict=True)
    ]
    shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
    parts = [part.expand(*shape, part.shape[-1]) for part in parts]
    if node.type.dtype == "real":
        parts = [scope.real(part) for part in parts]
    return Named(torch.cat(parts, -1), (*rest, into))


def reshape(node: Node, scope: Scope, value: Named) -> Named:
    rest = [name for name in value.names if name not in node.op.axes]
    data = value.to([*rest, *node.op.axes])
    data = data.reshape(*data.shape[: len(rest)], *scope.shape(node.op.into))
    return Named(data, (*rest, *(axis.name for axis in node.op.into)))


def top(node: Node, scope: Scope, value: Named) -> Named:
    dim, count = value.names.index(node.op.axis), int(scope.number(node.op.count))
    count = min(count, value.data.shape[dim])
    ranked = torch.sort(value.data, dim=dim, descending=True, stable=True).indices
    best = ranked.narrow(dim, 0, count)
    chosen = torch.zeros_like(value.data, dtype=torch.bool).scatter(dim, best, True)
    return Named(chosen & (value.data != -torch.inf), value.names)


def solve(node: Node, scope: Scope, matrix: Named, vector: Named) -> Named:
    row, col = node.op.row, node.op.col
    common = tuple(n for n in node.type.names if n != row)
    left = matrix.to((*common, row, col))
    right = vector.to((*common, row)).unsqueeze(-1)
    return Named(torch.linalg.solve(left, right).squeeze(-1), (*common, row))


# --- ops that look along a sequence ------------------------------------------------------------


def shift(node: Node, scope: Scope, value: Named) -> Named:
    dim = value.names.index(node.op.stream)
    length = value.data.shape[dim]
    steps = min(node.op.steps, length)
    zeros = torch.zeros_like(value.data.narrow(dim, 0, steps))
    return Named(torch.cat([zeros, value.data.narrow(dim, 0, length - steps)], dim), value.names)


def window(node: Node, scope: Scope, value: Named) -> Named:
    """Runs from token to token, over zeros before the first, or complete runs from each stride."""
    op = node.op
    rest = tuple(name for name in value.names if name != op.stream)
    data, (width,) = value.to((op.stream, *rest)), scope.shape([op.width])
    if op.stride is None:
        before = data.new_zeros([max(width - 1, 0), *data.shape[1:]])
        starts = torch.arange(len(data), device=data.device)
        data, stream = torch.cat([before, data]), op.stream
    else:
        stride = int(scope.number(op.stride))
        starts = torch.arange(0, max(len(data) - width + 1, 0), stride, device=data.device)
        stream = op.blocks.name
        scope.learn(stream, [op.blocks], [len(starts)])
    tokens = starts[:, None] + torch.arange(width, device=data.device)
    return Named(data[tokens], (stream, op.width.name, *rest))


def softmax(node: Node, scope: Scope, scores: Named, mask: Named, *sink: Named) -> Named:
    rest = tuple(name for name in node.type.names if name != node.op.over)
    names = (*rest, node.op.over)
    score, left = torch.broadcast_tensors(scope.real(scores.to(names)), mask.to(names))
    left = left & (score != -torch.inf)
    # what is left out is replaced before every step, so that it cannot reach a gradient as NaN
    score = torch.where(left, score, 0.0)
    extra = scope.real(sink[0].to(rest))[..., None] if sink else score[..., :0]
    taken = [torch.where(left, score, -torch.inf), extra.expand(*score.shape[:-1], -1)]
    largest = _largest(torch.cat(taken, -1).detach())
    weights = torch.where(left, torch.exp(torch.where(left, score - largest, 0.0)), 0.0)
    total = weights.sum(-1, keepdim=True) + torch.exp(extra - largest).sum(-1, keepdim=True)
    return Named(weights / torch.where(total == 0, 1.0, total), names)


def _largest(scores: Tensor) -> Tensor:
    """The largest score of each row, 0 where nothing is left or everything is -inf."""
    floor = scores.new_full([*scores.shape[:-1], 1], -torch.inf)
    largest = torch.cat([floor, scores], -1).amax(-1, keepdim=True)
    return torch.where(largest == -torch.inf, 0.0, largest)


def segment(node: Node, scope: Scope, value: Named) -> Named:
    """Row t takes in the tokens up to t, each at every s before it. It goes on from row t - 1,
    unless the tokens depend on the reader."""
    op = node.op
    matrix = (op.row, op.col) if op.row is not None else ()
    own = op.reader.name in value.names
    rest = tuple(n for n in value.names if n not in (op.path, op.reader.name, *matrix))
    tokens = value.to((*((op.reader.name,) if own else ()), op.path, *rest, *matrix))
    length = tokens.shape[1 if own else 0]
    row = _identity(op, tokens.new_zeros(tokens.shape[1:]) if own else tokens)
    combine = {"sum": torch.add, "product": torch.matmul if matrix else torch.mul}[op.kind]
    rows = []
    for t in range(length):
        taken = range(t + 1) if own else [t]
        row = _identity(op, tokens[t]) if own else row
        for r in taken:
            token = tokens[t, r] if own else tokens[r]
            row = torch.cat([combine(row[:r], token), row[r:]])
        rows.append(row)
    data = torch.stack(rows) if rows else row[None][:0]
    return Named(data, (op.reader.name, op.read.name, *rest, *matrix))


def _identity(op: ir.Segment, tokens: Tensor) -> Tensor:
    """The sum or product of no tokens, for every token read: [s, ...]."""
    if op.kind == "sum":
        return torch.zeros_like(tokens)
    if op.row is None:
        return torch.ones_like(tokens)
    eye = torch.eye(*tokens.shape[-2:], dtype=tokens.dtype, device=tokens.device)
    return eye.expand(tokens.shape)


def substitute(node: Node, scope: Scope, weights: Named, right: Named) -> Named:
    """Token by token, each from those before it, or behind it."""
    rest = tuple(name for name in node.type.names if name != "t")
    a = weights.to(("t", node.op.read, *rest))
    b = scope.real(right.to(("t", *rest)))
    made: dict[int, Tensor] = {}
    for t in reversed(range(len(b))) if node.op.reverse else range(len(b)):
        z = b[t]
        for s, known in made.items():
            z = z + a[t, s] * known
        made[t] = z
    data = torch.stack([made[t] for t in range(len(b))]) if made else b
    return Named(data, ("t", *rest))

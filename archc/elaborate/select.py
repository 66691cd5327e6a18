"""`blocks`, `route` and choices among them: tokens in blocks, experts by weight."""

from __future__ import annotations

import sympy

from archc.dims import T_SEEN, TIME, Axis, stream
from archc.elaborate import expr, matrix, ops
from archc.elaborate.scope import Along, BlockStream, Scope
from archc.elaborate.values import Tensor
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.source import Span
from archc.syntax import tree


def blocks(scope: Scope, node: tree.Blocks) -> Scope:
    """A scope in which `k[b]` is the tokens of block b; registers the stream of blocks."""
    size, stride = (_count(scope, part) for part in (node.size, node.stride))
    if isinstance(node.size, tree.Name):
        named = scope.axis_named(node.size.id)
        width = named[0] if named else Axis(node.size.id, size)
    else:
        width = Axis(node.size.span.text if size.is_number else f"{node.index}_size", size)
    count = sympy.Max(0, sympy.floor((TIME.size - size) / stride) + 1)
    axis = stream(node.index, count)
    made = BlockStream("t", size, stride)
    known = scope.context.streams.get(node.index, (axis, made))
    if known != (axis, made) or scope.axis_named(node.index) is not None:
        what = "a dim" if known == (axis, made) else "another sequence"
        raise scope.error("E0210", f"`{node.index}` is {what} already", node.span)
    scope.context.streams[node.index] = known
    scope.context.widths[node.index] = width
    return scope.child(indices={node.index: Along("block", axis)})


def _count(scope: Scope, node: tree.Expr) -> sympy.Expr:
    """A number of tokens."""
    value = scope.evaluate(node)
    if not isinstance(value, sympy.Expr) or (
        value.is_number and not (value.is_Integer and value >= 1)
    ):
        raise scope.error("E0205", f"`{node.span.text}` is not a number of tokens", node.span)
    if not value.is_number and not value.is_Symbol:
        condition = sympy.Ge(value, 1, evaluate=False)
        scope.require(condition, f"{node.span.text} >= 1", node.span)
    return value


def on_blocks(scope: Scope, node: tree.OnBlocks) -> Tensor:
    """Scores of small blocks as scores of larger ones, by how far they overlap.

    source: arXiv 2502.11089, eq. 9
    """
    value = ops.tensor(scope, scope.evaluate(node.value), node.value.span)
    small = next((a for a in value.axes if a.kind == "stream" and a.name != "t"), None)
    info = scope.context.streams.get(small.name, (None, None))[1] if small else None
    if small is None or info is None:
        raise scope.error("E0314", "`on blocks` is for a score of each block", node.value.span)
    attend = scope.attend
    if attend is not None and attend.read == small and value.node not in attend.softmaxed:
        value = matrix.masked(scope, value, -sympy.oo, node.span)
    size = _count(scope, node.size)
    count = sympy.ceiling(T_SEEN / size)
    large = stream(f"{small.name}_{node.size.span.text}", count)
    scope.context.streams[large.name] = (large, BlockStream(info.source, size, size, covers=True))
    overlap = _overlap(scope, small, info, large, size, node.span)
    mapped = _mapped(scope, value, overlap, small, large, node.span)
    return _forced(scope, node, mapped, large, size)


def _mapped(
    scope: Scope, value: Tensor, overlap: Tensor, small: Axis, large: Axis, span: Span
) -> Tensor:
    """The scores of large blocks, summed over the small ones that they share tokens with.

    A small block that may not be read, with a score of -inf, adds nothing; where none may be read,
    nor may the large one.
    """
    out = ops.arranged([(a.name, a) for a in (*value.axes, large) if a.name != small.name])
    op = ir.Contract((value.type.names, (small.name, large.name)), out)
    if not _may_be_left_out(value.frame.graph, value.node):
        return ops.node(scope, op, value, overlap, span=span)
    readable = ops.plain(scope, "gt", [value, -sympy.oo], span)
    score = ops.plain(scope, "where", [readable, value, sympy.Integer(0)], span)
    total = ops.node(scope, op, score, overlap, span=span)
    counted = ops.plain(scope, "real", [readable], span)
    shared = ops.node(scope, op, counted, overlap, span=span)
    seen = ops.plain(scope, "gt", [shared, sympy.Integer(0)], span)
    return ops.plain(scope, "where", [seen, total, -sympy.oo], span)


def _may_be_left_out(graph: Graph, start: int) -> bool:
    """Whether a value may be the -inf of what may not be read; a softmax makes it a weight of 0."""
    ahead, seen = [(graph, start)], set[tuple[int, int]]()
    while ahead:
        home, place = ahead.pop()
        if (key := (id(home), place)) in seen:
            continue
        seen.add(key)
        node = home[place]
        if isinstance(node.op, ir.Constant) and node.op.value.has(-sympy.oo, sympy.oo):
            return True
        if isinstance(node.op, ir.Result):
            owner = home[node.operands[0]].op
            if isinstance(owner, ir.Attend | ir.Recurrence):
                ahead.append((owner.body, owner.body.outputs[node.op.name]))
        if not isinstance(node.op, ir.Softmax):
            ahead += [(home, operand) for operand in node.operands]
    return False


def _overlap(
    scope: Scope, small: Axis, info: BlockStream, large: Axis, size: sympy.Expr, span: Span
) -> Tensor:
    """How many strides of tokens block b of the small ones shares with block c of the large."""
    at = [expr.position(scope, axis, span) for axis in (small, large)]
    starts = [
        ops.plain(scope, "mul", [p, s], span) for p, s in zip(at, (info.stride, size), strict=True)
    ]
    ends = [
        ops.plain(scope, "add", [p, s], span)
        for p, s in zip(starts, (info.size, size), strict=True)
    ]
    first, last = ops.plain(scope, "max", starts, span), ops.plain(scope, "min", ends, span)
    shared = ops.plain(scope, "sub", [last, first], span)
    shared = ops.plain(scope, "max", [shared, sympy.Integer(0)], span)
    return ops.plain(scope, "div", [shared, info.stride], span)


def _forced(
    scope: Scope, node: tree.OnBlocks, score: Tensor, large: Axis, size: sympy.Expr
) -> Tensor:
    """Blocks that are always chosen get +inf, blocks that lie ahead -inf."""
    span = node.span
    at, token = expr.position(scope, large, span), expr.position(scope, TIME, span)
    now = ops.plain(scope, "floordiv", [token, size], span)
    always = []
    if node.first:
        always.append(ops.plain(scope, "eq", [at, sympy.Integer(0)], span))
    if node.last is not None:
        early = ops.plain(scope, "sub", [now, _count(scope, node.last)], span)
        always.append(ops.plain(scope, "gt", [at, early], span))
    seen = ops.plain(scope, "le", [at, now], span)
    if not always:
        return ops.plain(scope, "where", [seen, score, -sympy.oo], span)
    forced = always[0] if len(always) == 1 else ops.plain(scope, "or", always, span)
    others = ops.plain(scope, "not", [forced], span)
    least = ops.plain(scope, "where", [seen, sympy.oo, -sympy.oo], span)
    scored = ops.plain(scope, "and", [seen, others], span)  # of each block, of no group
    return ops.plain(scope, "where", [scored, score, least], span)


def route(scope: Scope, node: tree.Route) -> tuple[Scope, Tensor, Axis]:
    """A scope in which `W[e]` is one expert's, the weight of each expert, and the experts' axis."""
    if not isinstance(node.chosen, tree.Call) or getattr(node.chosen.func, "id", "") != "top":
        raise scope.error(
            "E0314",
            "a route chooses with `top(n, score)`",
            node.chosen.span,
            helps=["`route e in top(n, p):`"],
        )
    chosen = ops.tensor(scope, scope.evaluate(node.chosen), node.chosen.span)
    made = scope.frame.graph[chosen.node]
    assert isinstance(made.op, ir.Top)
    axis = chosen.type.axis(made.op.axis)
    score = Tensor(scope.frame, made.operands[0], origin=node.chosen.span)
    weighing = scope.child(routed=(chosen, axis))
    if node.weight is None:
        weight = score
    elif isinstance(node.weight, tree.Name) and node.weight.id == "normalised":
        weight = normalise(weighing, score, node.weight.span)
    else:
        weight = ops.tensor(weighing, weighing.evaluate(node.weight), node.weight.span)
    weight = _where_chosen(weighing, weight, node.span)
    if scope.index(node.index) is not None or scope.axis_named(node.index) not in (None, (axis,)):
        raise scope.error("E0210", f"`{node.index}` is an index or a dim already", node.span)
    inner = scope.child(
        hidden=scope.hidden | {axis.name},
        indices={node.index: Along("route", axis)},
        extra=(*scope.extra, axis),
        gate=chosen,
    )
    return inner, weight, axis


def _where_chosen(scope: Scope, value: Tensor, span: Span) -> Tensor:
    """The value of the chosen, 0 of the others."""
    assert scope.routed is not None
    zero = ops.constant(scope, sympy.Integer(0), span)
    return ops.node(scope, ir.Elementwise("where"), scope.routed[0], value, zero, span=span)


def normalise(scope: Scope, value: Tensor, span: Span) -> Tensor:
    """The value of the chosen, divided by its sum over them."""
    if scope.routed is None:
        raise scope.error("E0209", "`normalised` belongs into the weight of a `route`", span)
    kept = _where_chosen(scope, value, span)
    total = ops.reduce(scope, "sum", kept, [scope.routed[1]], span)
    return ops.node(scope, ir.Elementwise("div"), kept, total, span=span)


def mixed(scope: Scope, value: Tensor, weight: Tensor, axis: Axis, span: Span) -> Tensor:
    """The weighted sum over experts of a value computed for each."""
    value = scope.frame.bring(value)
    _refuse_summed_choices(scope, value, weight, axis, span)
    axes = {a.name: a for a in (*weight.axes, *value.axes)}
    out = ops.arranged([(name, a) for name, a in axes.items() if name != axis.name])
    op = ir.Contract((weight.type.names, value.type.names), out)
    return ops.node(scope, op, weight, value, span=span)


def _refuse_summed_choices(
    scope: Scope, value: Tensor, weight: Tensor, axis: Axis, route: Span
) -> None:
    """Refuse a value of the experts in which a dim is summed that each choose for themselves: the
    sum would be over what every one of them chose, and be weighed by each once more."""
    graph, ahead, seen = value.frame.graph, [value.node], set[int]()
    own = {a.name for a in weight.axes if a.kind == "dim"} - {axis.name}
    while ahead:
        node = graph[place := ahead.pop()]
        if place in seen or axis.name not in node.type.names:
            continue
        seen.add(place)
        ahead += node.operands
        entering = {name for o in node.operands for name in graph[o].type.names}
        summed = sorted(own & entering - set(node.type.names))
        if summed and isinstance(node.op, ir.Contract | ir.Reduce):
            dim, span = summed[0], node.span or value.origin or route
            raise scope.error(
                "E0319",
                f"a sum over `{dim}` inside of a route that chooses for each `{dim}`",
                span,
                helps=[
                    f"sum the weighted result behind the route: `sum[{dim}](...)`; inside, keep "
                    f"`{dim}`, as `sum[K](a * W[e])` does"
                ],
            )

"""`attend`: the result of each token from the tokens it reads, as an Attend; sums in between."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any, cast

import sympy

from archc.diagnostics import Refused
from archc.dims import T_SEEN, TIME, Axis, stream
from archc.elaborate import chosen, distances, expr, implicit, ops
from archc.elaborate.clashes import check_index, index_of
from archc.elaborate.heads import Define, heads_of, live_entries, node_name
from archc.elaborate.mentions import free_names, names_defined
from archc.elaborate.reach import bounds_of, reach
from archc.elaborate.scope import Along, AttendScope, BlockStream, Scope
from archc.elaborate.values import Frame, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.syntax import tree


def attend(
    scope: Scope, node: tree.Attend, exported: set[str], define: Define
) -> dict[str, Tensor]:
    """An Attend, and its exported names."""
    node = bounded(scope, node)
    heads, grouped = heads_of(scope, node)
    variable, axis, source = _read_axis(scope, node)
    attend = AttendScope(axis, source, heads=(*scope.extra, *heads), targets=_targets(node))
    frame = Frame(layer_graph(), scope.frame, _attend_capture(attend), region=True)
    inner = scope.child(
        frame=frame,
        memory=True,
        grouped=grouped,
        attend=attend,
        hidden=scope.hidden | {a.name for a in heads},
        indices={"t": Along("reader", TIME), variable: Along("read", axis, source)},
    )
    attend.allowed = _mask(inner, node, variable, axis)
    assigned, inner = define(inner, node.body)
    choices = _exports(inner, node, variable, [n for n in assigned if n in exported])
    implicit.check_alone(inner, node, frame.graph.outputs)
    window, causal = _reach(inner, node, variable, source)
    frame.graph.prune()
    entries = live_entries(frame)
    _check_reads(scope, node, variable, frame)
    captures = tuple((name, role) for name, role, _ in entries)
    op = ir.Attend(TIME, axis, source, captures, frame.graph, attend.path, window, causal)
    made = ops.node(scope, op, *(outer for _, _, outer in entries), span=node.span)
    if source == "t" and variable not in scope.context.streams:
        scope.context.streams[variable] = (axis, BlockStream("t", sympy.S.One, sympy.S.One))
    results = dict[str, Tensor]()
    for name in frame.graph.outputs:
        results[name] = ops.node(scope, ir.Result(name), made, span=node.span)
        if name in choices:
            results[name] = ops.node(scope, choices[name], results[name], span=node.span)
    for name in attend.unknowns:
        if name in exported:
            results[name] = implicit.solved(scope, name, results, axis, node.span)
    return results


def _exports(
    inner: Scope, node: tree.Attend, variable: str, names: Collection[str]
) -> dict[str, ir.Top]:
    """The choices among the tokens read that are results: a block gives their scores, and they are
    made behind it, as where a spec writes them there. Other names become results as they are."""
    assert inner.attend is not None
    for name in names:
        _export(inner, node, variable, name)
    graph, made = inner.frame.graph, dict[str, ir.Top]()
    for name, output in graph.outputs.items():
        seen = graph[output]
        if isinstance(seen.op, ir.Elementwise) and seen.op.fn == "and":
            best = graph[seen.operands[1]]
            if isinstance(best.op, ir.Top) and best.op.axis == inner.attend.read.name:
                made[name] = best.op
                graph.outputs[name] = best.operands[0]
    return made


def _export(inner: Scope, node: tree.Attend, variable: str, name: str) -> None:
    """Make a value that is used outside a result of the block, or the system that it solves."""
    assert inner.attend is not None
    value = inner.lookup(name, node.span)
    if not isinstance(value, Tensor):
        return
    if name in inner.attend.unknowns:
        implicit.system(inner, node, variable, name, value)
    else:
        _check_summed(inner, node, variable, name, value)
        tensor = _exported(inner, inner.frame.bring(value), node)
        inner.frame.graph.outputs[name] = tensor.node


def _check_summed(inner: Scope, node: tree.Attend, variable: str, name: str, value: Tensor) -> None:
    """Refuse matrices of the tokens read that leave unsummed, and values of them without a reader:
    they would pass for one of each token."""
    assert inner.attend is not None
    if inner.attend.read.name not in value.type.names:
        return
    readers = "t" in value.type.names or not node.everything
    if len(inner.visible(value)) < 2 and readers:
        return
    raise inner.error(
        "E0309",
        f"`{name}` is of each token read, and used behind the `{node.keyword}`",
        value.origin or node.span,
        f"not summed over `{variable}`",
        helps=ops.outer_scores(inner.frame.graph)
        or [f"sum over the tokens read: `{name} = sum[{variable}](...)`"],
    )


def _targets(node: tree.Attend) -> dict[str, tree.Target]:
    """The names that the statements of a block define."""
    stmts = (stmt for stmt in node.body if isinstance(stmt, tree.Assign) and not stmt.by)
    return {target.name: target for stmt in stmts for target in stmt.targets}


def _check_reads(scope: Scope, node: tree.Attend, variable: str, frame: Frame) -> None:
    """Something of the tokens read enters, or nobody knows how many there are."""
    roles = {role for _, role, _ in live_entries(frame)}
    if frame.graph.outputs and not roles & {"read", "path"}:
        raise scope.error(
            "E0314",
            f"this `{node.keyword}` reads nothing of the tokens in its range",
            node.range.span,
            helps=[f"index a value with `[{variable}]`; positions alone need no `{node.keyword}`"],
        )


def _reach(
    inner: Scope, node: tree.Attend, variable: str, source: str
) -> tuple[sympy.Expr | None, bool]:
    """The window, and whether no token read lies ahead; of the layer's own tokens, a spec says
    where it is meant that one does. Of tokens that are not, no distance is left that a function
    has no value for."""
    _, blocks = inner.context.streams.get(variable, (None, None))
    blocks = None if source == "t" else blocks
    window, causal = reach(inner, node, variable, blocks)
    own = source == "t" or blocks is not None
    if own and not causal and not node.both_ways:
        range = node.range.span.text
        raise inner.error(
            "E0308",
            f"this `{node.keyword}` may read tokens that have not been seen yet",
            node.range.span,
            "not only the past",
            helps=[
                f"end it at the token itself: `{variable} {'ending ' if blocks else ''}<= t`",
                f"if it looks both ways, say so: `{node.keyword} all {range}`; the layer then needs"
                " the whole sequence at once",
            ],
        )
    attend = inner.attend
    if source == "t" and attend is not None:
        bounds = bounds_of(inner, node, variable)
        distances.settle(inner.frame.graph, TIME, attend.read, attend.mask.node, bounds)
        distances.shield(inner.frame.graph, (TIME, attend.read), attend.mask.node)
    return window, causal


def _exported(inner: Scope, value: Tensor, node: tree.Attend) -> Tensor:
    """A value for use outside: a score of tokens that may not be read leaves as -inf."""
    assert inner.attend is not None
    if inner.attend.read.name not in value.type.names or value.node in inner.attend.softmaxed:
        return value
    if value.type.dtype == "bool":
        return ops.node(inner, ir.Elementwise("and"), inner.attend.mask, value, span=node.span)
    low = ops.constant(inner, -sympy.oo, node.span)
    return ops.node(inner, ir.Elementwise("where"), inner.attend.mask, value, low, span=node.span)


def _read_axis(scope: Scope, node: tree.Attend) -> tuple[str, Axis, str]:
    """The index variable of an attend, the axis it runs along, and the stream that is read."""
    if node.everything:
        assert isinstance(node.range, tree.Name)
        names = [node.range.id]
    else:
        assert isinstance(node.range, tree.Compare)
        terms = node.range.terms[:1] if node.ending else node.range.terms
        names = [n for term in terms for n in free_names(term) if n != "t"]
        streams = scope.context.streams
        written, names = names, [n for n in names if n in streams or scope.find(n) is None]
        if not names:
            index_of(scope, node, written)
    if len(set(names)) != 1:
        raise scope.error(
            "E0314",
            "an `attend` says which tokens are read",
            node.range.span,
            "not a range of tokens",
            helps=[
                "write `attend s <= t`, `attend t - w < s <= t`, `attend all m` "
                "or `attend b ending <= t`"
            ],
        )
    name = names[0]
    check_index(scope, node, name)
    known = scope.context.streams.get(name)
    if known is not None and (known[1] is None or known[1].size != 1):
        return name, known[0], name
    if scope.axis_named(name) is not None:
        raise scope.error(
            "E0210", f"`{name}` is a dim already", node.range.span, "choose another index"
        )
    return name, stream(name, T_SEEN), "t"


def _attend_capture(attend: AttendScope) -> Callable[[Frame, Tensor, str], int]:
    """Captures into an attend: of the reader, of the token read, of the tokens between."""

    def capture(frame: Frame, outer: Tensor, role: str) -> int:
        renamed = {"read": attend.read, "path": attend.path}.get(role)
        outer = outer if renamed is None else ops.batched(outer)
        axes = tuple(
            renamed if renamed is not None and axis.name == attend.source else axis
            for axis in outer.axes
        )
        name = frame.enter(node_name(outer, "u"), role, outer)
        return frame.graph.add(ir.Input(name, Type(axes, outer.type.dtype)), name=name)

    return capture


def _mask(inner: Scope, node: tree.Attend, variable: str, axis: Axis) -> Tensor:
    """The allowed pairs of reader and read, as a bool made from their positions."""
    assert inner.attend is not None
    read = expr.position(inner, axis, node.range.span)
    zero = ops.constant(inner, sympy.Integer(0), node.range.span)
    everything = ops.node(inner, ir.Elementwise("ge"), read, zero, span=node.range.span)
    inner.attend.allowed = everything  # while the range itself is read
    if node.everything:
        mask: Value = everything
    elif node.ending:
        _, info = inner.context.streams.get(variable, (None, None))
        if info is None:
            raise inner.error("E0314", f"`{variable}` is not a stream of blocks", node.range.span)
        assert isinstance(node.range, tree.Compare)
        end = ops.plain(inner, "mul", [read, info.stride], node.range.span)
        end = ops.plain(inner, "add", [end, info.size - 1], node.range.span)
        limit = inner.evaluate(node.range.terms[1])
        mask = ops.plain(
            inner, expr.OPERATORS[node.range.ops[0]].name, [end, limit], node.range.span
        )
    else:
        mask = inner.evaluate(node.range)
    value = ops.tensor(inner, mask, node.range.span)
    if node.chosen is None:
        return value
    inner.attend.allowed = value
    taken = _chosen(inner, node, axis)
    return ops.node(inner, ir.Elementwise("and"), value, taken, span=node.range.span)


def _chosen(inner: Scope, node: tree.Attend, axis: Axis) -> Tensor:
    """A choice of tokens, or of blocks of tokens, as a bool for each token read."""
    assert node.chosen is not None
    value = ops.tensor(inner, inner.evaluate(node.chosen), node.chosen.span)
    others = [a for a in value.axes if a.kind == "stream" and a.name not in ("t", axis.name)]
    if value.type.dtype != "bool" or (not others and axis.name not in value.type.names):
        raise inner.error(
            "E0314",
            f"`{node.chosen.span.text}` does not choose tokens",
            node.chosen.span,
            helps=["a choice is made with `top(n, score)`"],
        )
    return chosen.of_tokens(inner, value, others[0], node.span) if others else value


def along(scope: Scope, node: tree.Along) -> Tensor:
    """`sum r in (s, t]: ...`, `product r in (s, t]: ...`: over the tokens between two tokens."""
    attend = scope.attend
    ends = [getattr(node.low, "id", None), getattr(node.high, "id", None)]
    variables = [scope.index(name) if name else None for name in ends]
    if attend is None or [v.role if v else "" for v in variables] != ["read", "reader"]:
        raise scope.error(
            "E0315",
            "a sum or product along the sequence runs from the token read to the reader",
            node.span,
            helps=[
                "inside `attend s <= t`, write `sum r in (s, t]: ...`",
                "for later tokens too, name a running sum, `recurrence c[]:` with `c[t] = c[t-1] +"
                " a`, and take `abs(c[t] - c[s])`",
            ],
        )
    if scope.index(node.index) is not None or scope.axis_named(node.index) is not None:
        what = "a dim" if scope.index(node.index) is None else "an index"
        raise scope.error("E0210", f"`{node.index}` is {what} already", node.span)
    attend.path = attend.path or stream(node.index, attend.read.size)
    inner = scope.child(indices={node.index: Along("path", attend.path, attend.source)})
    value = ops.tensor(inner, inner.evaluate(node.body), node.body.span)
    axes = scope.visible(value)
    if attend.path.name not in value.type.names:
        raise scope.error("E0315", f"this does not depend on `{node.index}`", node.body.span)
    if attend.read.name in value.type.names:
        raise _of_both(scope, node, attend)
    product = node.kind == "product"
    if product and len(axes) != 2:
        raise scope.error(
            "E0304",
            f"a product along the sequence is of matrices, and this is {ops.shape(scope, value)}",
            node.body.span,
            helps=["of numbers, it is the exponential of a sum: `exp(sum r in (s, t]: log(a[r]))`"]
            if not axes
            else [],
        )
    rows = (axes[0].name, axes[1].name) if product else (None, None)
    op = ir.Segment(node.kind, attend.path.name, TIME, attend.read, *rows)
    return ops.node(scope, op, value, span=node.span, row=value.row)


def _of_both(scope: Scope, node: tree.Along, attend: AttendScope) -> Refused:
    """The refusal of a sum between two tokens whose addend is of the token read."""
    r, s = node.index, attend.read.name
    words = "summed" if node.kind == "sum" else "multiplied"
    example = f"(sum {r} in ({s}, t]: a[{r}] * k[{r}]).T @ k[{s}]"
    helps = [
        f"take what depends on `{s}` out of it: `{example}`",
        f"what is no product with a value of `{s}`, such as `relu(a[{r}] * b[{s}])`, has no sum"
        " between two tokens",
    ]
    return scope.error(
        "E0315",
        f"what is {words} between two tokens depends on `{s}`, the token read",
        node.body.span,
        helps=helps if node.kind == "sum" else [],
    )


def bounded(scope: Scope, node: tree.Attend) -> tree.Attend:
    """The `attend` without those ends of its range that mention a name that is `none`: with `w`
    none, `t - w < s <= t` is `s <= t`, `all t - w < s < t + w` is `all s`, and `all b ending <= w`
    is `all b`."""
    range = node.range
    if node.everything or not isinstance(range, tree.Compare):
        return node
    range = _decided(scope, range)
    node = replace(node, range=range)
    terms, ops = list(range.terms), list(range.ops)
    own = names_defined(node.body)
    if node.ending and not _open(scope, terms[-1], own):
        return node
    while len(terms) > 1 and _open(scope, terms[0], own):
        terms, ops = terms[1:], ops[1:]
    while len(terms) > 1 and _open(scope, terms[-1], own):
        terms, ops = terms[:-1], ops[:-1]
    if len(terms) == len(range.terms):
        return node
    if len(terms) == 1:
        name = replace(terms[0], span=range.span)
        return replace(node, range=name, everything=True, ending=False)
    return replace(node, range=tree.Compare(range.span, tuple(terms), tuple(ops)))


def _decided(scope: Scope, part: Any) -> Any:
    """A range with the branch that is taken in place of each `a if condition else b` in it: the
    `none` of another branch opens no end."""
    if isinstance(part, tree.Choice):
        taken = expr.decided(scope, scope.evaluate(part.condition), part.condition)
        return _decided(scope, part.then if taken else part.orelse)
    if isinstance(part, tuple):
        return tuple(_decided(scope, each) for each in cast(tuple[Any, ...], part))
    if not isinstance(part, tree.Node):
        return part
    parts = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: _decided(scope, each) for name, each in parts.items()})


def _open(scope: Scope, term: tree.Expr, own: Collection[str]) -> bool:
    """Whether an end of a range mentions a name that is `none`, and so is no end. The block's `own`
    names are none of these."""
    names = [name for name in free_names(term) if scope.index(name) is None and name not in own]
    return any(_is_none(scope, name, term) for name in names)


def _is_none(scope: Scope, name: str, term: tree.Expr) -> bool:
    if scope.find(name) is None:
        return name == "none"
    value = scope.lookup(name, term.span)
    return isinstance(value, Option) and value.value is None

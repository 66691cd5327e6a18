"""What a layer remembers and looks up: `recurrence`, `attend`, `blocks`, `route`, and sums along a path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from archc.dims import BATCH, TIME, Axis, stream
from archc.elaborate import expr, ops
from archc.elaborate.scope import Along, BlockStream, PairScope, Scope
from archc.elaborate.values import Frame, Lazy, Tensor
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.source import Span
from archc.syntax import tree


@dataclass(eq=False)
class StateRef:
    """A state inside its recurrence: its value before the token, and the definition of the one after."""

    decl: tree.StateDecl
    axes: tuple[Axis, ...]
    before: Tensor
    after: Lazy | None = None

    def at(self, scope: Scope, node: tree.Index, steps: int) -> Tensor:
        """`S[t]` or `S[t-1]`."""
        if steps > 1:
            raise scope.error(
                "E0312",
                f"`{self.decl.name}` is read {steps} steps back",
                node.span,
                "only the state before this token is kept",
                others=[(self.decl.span, "declared here")],
                helps=["carry it in a further state: `P[t] = S[t-1]`"],
            )
        if steps == 1:
            return self.before
        value = scope.lookup(self.decl.name, node.span)
        assert isinstance(value, Tensor)
        return value


def heads_of(scope: Scope, node: tree.Recurrence | tree.Attend) -> tuple[tuple[Axis, ...], Any]:
    """The head axes of a block, and (heads, groups) if it is grouped."""
    axes = []
    for name in node.over:
        found = scope.axis_named(name)
        if found is None:
            raise scope.error("E0202", f"`{name}` is not a dim of this layer", node.span)
        axes.append(found[0])
    if node.grouped is None:
        return tuple(axes), None
    groups = scope.axis_named(node.grouped)
    if groups is None or not axes:
        raise scope.error("E0202", f"`{node.grouped}` is not a dim of this layer", node.span)
    if groups[0].name == axes[0].name:
        return tuple(axes), None
    condition = sympy.Eq(sympy.Mod(axes[0].size, groups[0].size), 0)
    text = f"{axes[0].size} % {groups[0].size} == 0"
    scope.context.requirements.append(ir.Requirement(condition, text, node.span))
    return tuple(axes), (axes[0], groups[0])


def node_name(tensor: Tensor, fallback: str) -> str:
    """The name of a tensor in the spec, if it has one."""
    return tensor.frame.graph[tensor.node].name or fallback


# --- recurrence ---------------------------------------------------------------------------------


def recurrence(scope: Scope, node: tree.Recurrence, exported: set[str], define: Any) -> dict[str, Tensor]:
    """A Fold, and its states and exported names along the stream."""
    heads, grouped = heads_of(scope, node)
    frame = Frame(layer_graph(), scope.frame, _token_capture(scope, node), region=True)
    inner = scope.child(
        frame=frame, memory=True, grouped=grouped, pair=None,
        hidden=scope.hidden | {axis.name for axis in heads}, indices={"t": Along("reader", TIME)},
    )  # fmt: skip
    for state in node.states:
        axes = (BATCH, *scope.extra, *heads, *inner.axes(state.axes))
        before = frame.graph.add(ir.Input(f"{state.name}[t-1]", Type(axes)), span=state.span)
        inner.states[state.name] = StateRef(state, axes, Tensor(frame, before, origin=state.span))
    states = inner.states
    assigned, inner = define(inner, node.body)
    updates = {name: _update(inner, ref) for name, ref in states.items()}
    frame.graph.outputs = {name: value.node for name, value in updates.items()}
    for name in assigned:
        value = inner.lookup(name, node.span)
        if name in exported and name not in updates and isinstance(value, Tensor):
            frame.graph.outputs[name] = frame.bring(value).node
    return _fold(scope, node, frame, states)


def _fold(
    scope: Scope, node: tree.Recurrence, frame: Frame, states: dict[str, StateRef]
) -> dict[str, Tensor]:
    """The Fold node with its captures and initial states, and its results."""
    frame.graph.prune(keep=[ref.before.node for ref in states.values()])
    entries = live_entries(frame)
    inits = [_initial(scope, ref) for ref in states.values()]
    op = ir.Fold(
        TIME,
        tuple(name for name, _, _ in entries),
        tuple(ir.State(name, ref.axes) for name, ref in states.items()),
        frame.graph,
    )
    made = ops.node(scope, op, *(outer for _, _, outer in entries), *inits, span=node.span)
    return {
        name: ops.node(scope, ir.Result(name), made, span=node.span) for name in frame.graph.outputs
    }


def live_entries(frame: Frame) -> list[tuple[str, str, Tensor]]:
    """Captures that the body still uses."""
    names = {n.op.name for n in frame.graph if isinstance(n.op, ir.Input)}
    return [entry for entry in frame.entries if entry[0] in names]


def _token_capture(scope: Scope, node: tree.Recurrence) -> Any:
    """Captures into a recurrence: the value at one token."""

    def capture(frame: Frame, outer: Tensor, role: str) -> int:
        streams = [axis.name for axis in outer.axes if axis.kind == "stream"]
        if any(name != "t" for name in streams):
            raise scope.error(
                "E0306",
                f"a value along `{streams[-1]}` enters a recurrence over the layer's own tokens",
                node.states[0].span,
                others=[(outer.origin, "from here")],
            )
        name = frame.enter(node_name(outer, "u"), role, outer)
        axes = tuple(axis for axis in outer.axes if axis.kind != "stream")
        return frame.graph.add(ir.Input(name, Type(axes, outer.type.dtype)), name=name)

    return capture


def _initial(scope: Scope, ref: StateRef) -> Tensor:
    """The state before the first token: 0 unless given."""
    value = scope.evaluate(ref.decl.init) if ref.decl.init is not None else sympy.Integer(0)
    made = ops.tensor(scope, value, ref.decl.span)
    if any(axis.kind == "stream" for axis in made.axes):
        raise scope.error("E0313", "an initial state does not depend on the token", ref.decl.span)
    extra = [axis.name for axis in made.axes if axis.name not in {a.name for a in ref.axes}]
    if extra:
        raise scope.error(
            "E0301", f"the initial value has an axis `{extra[0]}` that the state has not", ref.decl.span
        )
    return made


def _update(inner: Scope, ref: StateRef) -> Tensor:
    """The state after the token, in the state's own axes; a memory that is not chosen stays as it is."""
    if ref.after is None:
        raise inner.error(
            "E0313",
            f"the recurrence never says what `{ref.decl.name}[t]` is",
            ref.decl.span,
            "declared here",
            helps=[f"write `{ref.decl.name}[t] = ...` once in the block"],
        )
    value = ops.tensor(inner, inner.lookup(ref.decl.name, ref.decl.span), ref.after.span)
    wanted = [axis.name for axis in inner.visible(ref.before)]
    got = [axis.name for axis in inner.visible(value)]
    if got != wanted or value.row:
        turned = sorted(got) == sorted(wanted) and not value.row or value.row
        raise inner.error(
            "E0301",
            f"`{ref.decl.name}` is {ops.shape(inner, ref.before)}, and its update is "
            f"{'a row ' if value.row else ''}{ops.shape(inner, value)}",
            ref.after.span,
            others=[(ref.decl.span, "declared here")],
            helps=["transpose the update with `.T`"] if turned else [],
        )
    if inner.gate is not None:
        at = ref.after.span
        value = ops.node(inner, ir.Elementwise("where"), inner.gate, value, ref.before, span=at)
    missing = [axis for axis in ref.axes if axis.name not in value.type.names]
    if missing:
        chosen = ops.node(inner, ir.Elementwise("eq"), ref.before, ref.before, span=ref.after.span)
        value = ops.node(inner, ir.Elementwise("where"), chosen, value, value, span=ref.after.span)
    order = tuple((axis.name, axis) for axis in ref.axes)
    if value.axes != ref.axes:
        value = ops.node(inner, ir.Contract((value.type.names,), order), value, span=ref.after.span)
    return value


# --- attend -------------------------------------------------------------------------------------


def attend(scope: Scope, node: tree.Attend, exported: set[str], define: Any) -> dict[str, Tensor]:
    """A Pair, and its exported names."""
    heads, grouped = heads_of(scope, node)
    variable, axis, source = _read_axis(scope, node)
    pair = PairScope(axis, source)
    frame = Frame(layer_graph(), scope.frame, _pair_capture(pair), region=True)
    inner = scope.child(
        frame=frame, memory=True, grouped=grouped, pair=pair,
        hidden=scope.hidden | {a.name for a in heads},
        indices={"t": Along("reader", TIME), variable: Along("read", axis, source)},
    )  # fmt: skip
    pair.allowed = _mask(inner, node, variable, axis)
    assigned, inner = define(inner, node.body)
    for name in assigned:
        value = inner.lookup(name, node.span)
        if name in exported and isinstance(value, Tensor):
            frame.graph.outputs[name] = _exported(inner, frame.bring(value), node).node
    frame.graph.prune()
    entries = live_entries(frame)
    window, causal = _bounds(inner, node, variable)
    op = ir.Pair(
        TIME, axis, source, tuple((name, role) for name, role, _ in entries), frame.graph, pair.path,
        window, causal,
    )  # fmt: skip
    made = ops.node(scope, op, *(outer for _, _, outer in entries), span=node.span)
    if source == "t" and variable not in scope.context.streams:
        one = sympy.Integer(1)
        scope.context.streams[variable] = (axis, BlockStream("t", one, one))
    return {
        name: ops.node(scope, ir.Result(name), made, span=node.span) for name in frame.graph.outputs
    }


def _exported(inner: Scope, value: Tensor, node: tree.Attend) -> Tensor:
    """A value for use outside: a score of tokens that may not be read leaves as -inf."""
    assert inner.pair is not None
    if inner.pair.read.name not in value.type.names or value.node in inner.pair.softmaxed:
        return value
    if value.type.dtype == "bool":
        return ops.node(inner, ir.Elementwise("and"), inner.pair.mask, value, span=node.span)
    low = ops.constant(inner, -sympy.oo, node.span)
    return ops.node(inner, ir.Elementwise("where"), inner.pair.mask, value, low, span=node.span)


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
        names = [n for n in names if n in streams or scope.find(n) is None]
    if len(set(names)) != 1:
        raise scope.error(
            "E0314",
            "an `attend` says which tokens are read",
            node.range.span,
            "not a range of tokens",
            helps=["write `attend s <= t`, `attend t - w < s <= t`, `attend all m` or `attend b ending <= t`"],
        )
    name = names[0]
    known = scope.context.streams.get(name)
    if known is not None and (known[1] is None or known[1].size != 1):
        return name, known[0], name
    if scope.axis_named(name) is not None:
        raise scope.error("E0210", f"`{name}` is a dim already", node.range.span, "choose another index")
    return name, stream(name), "t"


def free_names(node: Any) -> Iterable[str]:
    """Every name in an expression."""
    if isinstance(node, tree.Name):
        yield node.id
    elif isinstance(node, tree.Node):
        for field in vars(node).values():
            yield from free_names(field)
    elif isinstance(node, tuple):
        for item in node:
            yield from free_names(item)


def _pair_capture(pair: PairScope) -> Any:
    """Captures into an attend: of the reader, of the token read, of the tokens between."""

    def capture(frame: Frame, outer: Tensor, role: str) -> int:
        renamed = {"read": pair.read, "path": pair.path}.get(role)
        axes = tuple(
            renamed if renamed is not None and axis.name == pair.source else axis for axis in outer.axes
        )
        name = frame.enter(node_name(outer, "u"), role, outer)
        return frame.graph.add(ir.Input(name, Type(axes, outer.type.dtype)), name=name)

    return capture


def _mask(inner: Scope, node: tree.Attend, variable: str, axis: Axis) -> Tensor:
    """Which pairs of reader and read are allowed, from their positions."""
    read = expr.position(inner, axis, node.range.span)
    if node.everything:
        zero = ops.constant(inner, sympy.Integer(0), node.range.span)
        mask = ops.node(inner, ir.Elementwise("ge"), read, zero, span=node.range.span)
    elif node.ending:
        _, info = inner.context.streams[variable]
        if info is None:
            raise inner.error("E0314", f"`{variable}` is not a stream of blocks", node.range.span)
        assert isinstance(node.range, tree.Compare)
        end = ops.plain(inner, "mul", [read, info.stride], node.range.span)
        end = ops.plain(inner, "add", [end, info.size - 1], node.range.span)
        limit = inner.evaluate(node.range.terms[1])
        mask = ops.plain(inner, expr.COMPARE[node.range.ops[0]], [end, limit], node.range.span)
    else:
        mask = inner.evaluate(node.range)
    value = ops.tensor(inner, mask, node.range.span)
    if node.chosen is None:
        return value
    chosen = _chosen(inner, node, axis)
    return ops.node(inner, ir.Elementwise("and"), value, chosen, span=node.range.span)


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
    if not others:
        return value
    _, info = inner.context.streams[others[0].name]
    assert info is not None
    read = expr.position(inner, axis, node.span)
    block = ops.plain(inner, "floordiv", [read, info.stride], node.span)
    return ops.node(inner, ir.Gather(others[0].name), value, block, span=node.span)


def _bounds(
    inner: Scope, node: tree.Attend, variable: str
) -> tuple[sympy.Expr | None, bool]:
    """How many of the latest tokens can be read at most, and whether none lies ahead of the reader."""
    if node.everything or not isinstance(node.range, tree.Compare):
        return None, False
    window, causal = None, node.ending
    terms, links = node.range.terms, node.range.ops
    for left, op, right in zip(terms, links, terms[1:], strict=False):
        if isinstance(left, tree.Name) and left.id == variable and isinstance(right, tree.Name):
            causal |= right.id == "t" and op in ("<", "<=")
        back = isinstance(left, tree.Binary) and left.op == "-" and getattr(left.left, "id", "") == "t"
        if back and getattr(right, "id", "") == variable and op in ("<", "<="):
            assert isinstance(left, tree.Binary)
            width = inner.evaluate(left.right)
            if isinstance(width, sympy.Expr):
                window = width if op == "<" else width + 1
    return window, causal


def along(scope: Scope, node: tree.Along) -> Tensor:
    """`sum r in (s, t]: ...`, `product r in (s, t]: ...`: over the tokens between two tokens."""
    pair = scope.pair
    ends = [getattr(node.low, "id", None), getattr(node.high, "id", None)]
    variables = [scope.index(name) if name else None for name in ends]
    if pair is None or [v.role if v else "" for v in variables] != ["read", "reader"]:
        raise scope.error(
            "E0315",
            "a sum or product along the sequence runs from the token read to the reader",
            node.span,
            helps=["inside `attend s <= t`, write `sum r in (s, t]: ...`"],
        )
    pair.path = pair.path or stream(node.index)
    inner = scope.child(indices={node.index: Along("path", pair.path, pair.source)})
    value = ops.tensor(inner, inner.evaluate(node.body), node.body.span)
    axes = scope.visible(value)
    if pair.path.name not in value.type.names:
        raise scope.error("E0315", f"this does not depend on `{node.index}`", node.body.span)
    wanted = 2 if node.kind == "product" else 0
    if len(axes) != wanted:
        raise scope.error(
            "E0304",
            f"a {node.kind} along the sequence is of {'matrices' if wanted else 'scalars'}, "
            f"and this is {ops.shape(scope, value)}",
            node.body.span,
        )
    rows = (axes[0].name, axes[1].name) if wanted else (None, None)
    op = ir.Segment(node.kind, pair.path.name, TIME, pair.read, *rows)
    return ops.node(scope, op, value, span=node.span)


# --- blocks and routes --------------------------------------------------------------------------


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
    scope.context.streams[node.index] = (axis, BlockStream("t", size, stride))
    scope.context.widths[node.index] = width
    return scope.child(indices={node.index: Along("block", axis)})


def _count(scope: Scope, node: tree.Expr) -> sympy.Expr:
    """A number of tokens."""
    value = scope.evaluate(node)
    if not isinstance(value, sympy.Expr) or value.is_number and not (value.is_Integer and value >= 1):
        raise scope.error("E0205", f"`{node.span.text}` is not a number of tokens", node.span)
    return value


def on_blocks(scope: Scope, node: tree.OnBlocks) -> Tensor:
    """Scores of small blocks as scores of larger ones, by how far they overlap (NSA, eq. 9)."""
    value = ops.tensor(scope, scope.evaluate(node.value), node.value.span)
    small = next((a for a in value.axes if a.kind == "stream" and a.name != "t"), None)
    info = scope.context.streams.get(small.name, (None, None))[1] if small else None
    if small is None or info is None:
        raise scope.error("E0314", "`on blocks` is for a score of each block", node.value.span)
    size = _count(scope, node.size)
    count = sympy.ceiling(sympy.Symbol("T_seen", integer=True, nonnegative=True) / size)
    large = stream(f"{small.name}_{node.size.span.text}", count)
    scope.context.streams[large.name] = (large, BlockStream(info.source, size, size))
    overlap = _overlap(scope, small, info, large, size, node.span)
    mapped = ops.node(
        scope,
        ir.Contract(
            (value.type.names, (small.name, large.name)),
            ops.arranged([(a.name, a) for a in (*value.axes, large) if a.name != small.name]),
        ),
        value, overlap, span=node.span,
    )  # fmt: skip
    return _forced(scope, node, mapped, large, size)


def _overlap(
    scope: Scope, small: Axis, info: BlockStream, large: Axis, size: sympy.Expr, span: Span
) -> Tensor:
    """How many strides' worth of tokens block b of the small ones shares with block c of the large."""
    at = [expr.position(scope, axis, span) for axis in (small, large)]
    starts = [ops.plain(scope, "mul", [p, s], span) for p, s in zip(at, (info.stride, size), strict=True)]
    ends = [ops.plain(scope, "add", [p, s], span) for p, s in zip(starts, (info.size, size), strict=True)]
    first, last = ops.plain(scope, "max", starts, span), ops.plain(scope, "min", ends, span)
    shared = ops.plain(scope, "sub", [last, first], span)
    shared = ops.plain(scope, "max", [shared, sympy.Integer(0)], span)
    return ops.plain(scope, "div", [shared, info.stride], span)


def _forced(scope: Scope, node: tree.OnBlocks, score: Tensor, large: Axis, size: sympy.Expr) -> Tensor:
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
    for condition in always:
        score = ops.plain(scope, "where", [condition, sympy.oo, score], span)
    seen = ops.plain(scope, "le", [at, now], span)
    return ops.plain(scope, "where", [seen, score, -sympy.oo], span)


def route(scope: Scope, node: tree.Route) -> tuple[Scope, Tensor, Axis]:
    """A scope in which `W[e]` is one expert's, the weight of each expert, and the experts' axis."""
    if not isinstance(node.chosen, tree.Call) or getattr(node.chosen.func, "id", "") != "top":
        raise scope.error(
            "E0314", "a route chooses with `top(n, score)`", node.chosen.span, helps=["`route e in top(n, p):`"]
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
    inner = scope.child(
        hidden=scope.hidden | {axis.name}, indices={node.index: Along("route", axis)},
        extra=(*scope.extra, axis), gate=chosen,
    )  # fmt: skip
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
    axes = {a.name: a for a in (*weight.axes, *value.axes)}
    out = ops.arranged([(name, a) for name, a in axes.items() if name != axis.name])
    op = ir.Contract((weight.type.names, value.type.names), out)
    return ops.node(scope, op, weight, value, span=span)

"""Brackets: the token, expert, block or row that `S[t-1]`, `v[s]`, `W[e]`, `E[tokens]` mean."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import sympy

from archc.dims import TIME, Axis
from archc.elaborate import expr, implicit, ops
from archc.elaborate.mentions import walk
from archc.elaborate.rearrange import FORMS
from archc.elaborate.scope import Along, Scope, option
from archc.elaborate.values import FunctionRef, LayerRef, Option, Tensor, Value
from archc.elaborate.whole import made_whole, whole
from archc.ir import layer as ir
from archc.source import Span
from archc.syntax import tree

MAX_SHIFT = 64
"""Earliest token that `x[t - n]` may name; further back is a short convolution or a state."""

FIRST = "`sum[W](where(index[W] == 0, window[W](x), 0))`"
"""The first of the latest W tokens."""


def index(scope: Scope, node: tree.Index) -> Value:
    """`base[items]`."""
    if node.into:
        raise scope.error(
            "E0225",
            f"`as` in the brackets of `{node.base.span.text}`",
            node.span,
            helps=[f"`as` belongs to {', '.join(f'`{form}`' for form in FORMS.values())}"],
        )
    if isinstance(node.base, tree.Name) and node.base.id == "index" and not scope.find("index"):
        return positions(scope, node)
    if len(node.items) == 2 and (pair := _pair(scope, node)) is not None:
        return pair
    along = _variable(scope, node.items)
    if along is not None:
        variable, steps = along
        return AT[variable.role](scope, node, variable, steps)
    state = scope.state(node.base.id) if isinstance(node.base, tree.Name) else None
    if state is not None and len(node.items) == 1 and isinstance(node.items[0], tree.Number):
        raise scope.error(
            "E0312",
            f"`{node.span.text}` is the state of no token",
            node.span,
            "states are read at `[t]` and `[t-1]`",
            others=[(state.decl.span, "declared here")],
            helps=[f"an entry of the state is `take[...]({node.base.span.text}[t], ...)`"],
        )
    base = scope.evaluate(node.base)
    if isinstance(base, FunctionRef):
        return FunctionRef(base.decl, tuple(scope.axis(item) for item in node.items))
    if isinstance(base, LayerRef):
        raise scope.error(
            "E0207", f"`{node.base.span.text}` is a layer", node.span, "called with ( )"
        )
    if isinstance(base, Option) and isinstance(base.value, tuple) and len(node.items) == 1:
        return _item(scope, node, base.value)
    return gather(scope, node, ops.tensor(scope, base, node.base.span))


def _item(scope: Scope, node: tree.Index, items: tuple[Any, ...]) -> Value:
    """`windows[l]`: an item of a list of numbers or options, settled when compiling."""
    place = scope.evaluate(node.items[0])
    known = scope.number(place) if isinstance(place, sympy.Expr) else None
    if not isinstance(place, sympy.Expr) or known is None or known not in range(len(items)):
        raise scope.error(
            "E0310",
            f"`{node.base.span.text}` has the items 0 to {len(items) - 1}",
            node.items[0].span,
            "known when compiling" if known is None else f"this is {known}",
        )
    item = items[int(known)]
    if not place.is_number:
        same: list[Any] = [sympy.Eq(place, i) for i, other in enumerate(items) if other == item]
        scope.require(sympy.Or(*same), node.span.text, node.span, settled=True)
    if item is None or isinstance(item, bool | int | float | str | tuple):
        return option(item)
    return item


def _pair(scope: Scope, node: tree.Index) -> Tensor | None:
    """`W[t, s]`: the entry of a table for the positions of two tokens; None for anything else."""
    at = [scope.index(item.id) if isinstance(item, tree.Name) else None for item in node.items]
    if None in at:
        return None
    value = expr.inside(scope, _base(scope, node), node.base)
    axes = scope.visible(value)[:2]
    if len(axes) < 2 or any(axis.kind in ("stream", "batch") for axis in value.axes):
        return None
    for axis, variable in zip(axes, at, strict=True):
        assert variable is not None
        place = expr.position(scope, variable.axis, node.span)
        value = ops.node(scope, ir.Gather(axis.name), value, place, span=node.span)
    return value


def _variable(scope: Scope, items: tuple[tree.Expr, ...]) -> tuple[Along, int] | None:
    """The index variable and how many tokens before it: `t` is (t, 0), `t - 2` is (t, 2)."""
    if len(items) != 1:
        return None
    variable, terms = _lag(scope, items[0])
    if variable is None:
        return None
    values: list[tuple[int, Any]] = [(sign, scope.evaluate(term)) for sign, term in terms]
    if not all(isinstance(value, sympy.Expr) for _, value in values):
        return None
    back = sympy.Add(*(-sign * value for sign, value in values))
    return variable, _steps(scope, items[0], back) if terms else 0


def _lag(scope: Scope, item: tree.Expr) -> tuple[Along | None, list[tuple[int, tree.Expr]]]:
    """The index variable that a sum begins with, and what is added: of `t - w - 1`, -w and -1."""
    if isinstance(item, tree.Name):
        return scope.index(item.id), []
    if not isinstance(item, tree.Binary) or item.op not in ("-", "+"):
        return None, []
    variable, terms = _lag(scope, item.left)
    return variable, [*terms, (1 if item.op == "+" else -1, item.right)]


def _steps(scope: Scope, item: tree.Expr, steps: sympy.Expr) -> int:
    """How many tokens back `t - n` is; n must be known, since each token back has to be kept."""
    known = scope.number(steps)
    ahead = isinstance(item, tree.Binary) and item.op == "+" and isinstance(item.left, tree.Name)
    if ahead or (known is not None and known < 0):
        raise scope.error(
            "E0308",
            f"`[{item.span.text}]` is a token that has not been seen yet",
            item.span,
            "in the future",
            helps=[
                f"the token before is `[{_first(item).span.text}-1]`",
                "from the last token to the first: `reversed(x)` of what goes in, and of what comes"
                " out",
            ],
        )
    if known is None or not known.is_Integer or known > MAX_SHIFT:
        helps = ["further back: a state, or a `shortconv`"]
        if known is None:
            helps = ["by a size: the first of W = n + 1 tokens, " + FIRST]
        raise scope.error(
            "E0308",
            f"an earlier token is `t - n` with a whole number n up to {MAX_SHIFT}",
            item.span,
            helps=helps,
        )
    if not steps.is_number:
        scope.require(sympy.Eq(steps, known), f"{steps} == {known}", item.span, settled=True)
    return int(known)


def _first(item: tree.Expr) -> tree.Expr:
    """The leftmost term of a sum."""
    return _first(item.left) if isinstance(item, tree.Binary) else item


def at_reader(scope: Scope, node: tree.Index, variable: Along, steps: int) -> Value:
    """`x[t]`, `x[t-1]`; of a state, its value after and before the token."""
    state = scope.state(node.base.id) if isinstance(node.base, tree.Name) else None
    if state is not None:
        return state.at(scope, node, steps)
    value = _base(scope, node)
    if steps == 0:
        _check_reader(scope, node, value)
        return _row(scope, node, value, variable)
    home = value.frame
    if home.region:
        raise scope.error(
            "E0309",
            f"`{node.base.span.text}` is computed inside this block, so its value at "
            f"`{node.items[0].span.text}` is not kept",
            node.span,
            helps=["declare it as a state of the recurrence"],
        )
    stream = next((a.name for a in value.axes if a.kind == "stream"), None)
    if stream is None:
        raise scope.error("E0308", f"`{node.base.span.text}` is the same at every token", node.span)
    shifted = ops.batched(value).node
    made = home.graph.add(ir.Shift(stream, steps), shifted, span=scope.site or node.span)
    return expr.inside(scope, Tensor(home, made, value.row, node.span), node)


def _base(scope: Scope, node: tree.Index) -> Tensor:
    """The base of an index as a tensor, in the frame it belongs to."""
    if isinstance(node.base, tree.Name):
        value = scope.lookup(node.base.id, node.base.span)
    else:
        value = scope.evaluate(node.base)
    return value if isinstance(value, Tensor) else ops.tensor(scope, value, node.base.span)


def _row(scope: Scope, node: tree.Index, value: Tensor, variable: Along) -> Tensor:
    """`v[t]` of a value per token; `P[t]` of a table is its row at the token's position."""
    seen = expr.inside(scope, value, node.base)
    axes = scope.visible(seen)
    if any(axis.kind in ("stream", "batch") for axis in seen.axes) or not axes:
        return seen
    at = expr.position(scope, variable.axis, node.span)
    return ops.node(scope, ir.Gather(axes[0].name), seen, at, span=node.span)


def at_read(scope: Scope, node: tree.Index, variable: Along, steps: int) -> Value:
    """`v[s]`: the value of the token read."""
    own = implicit.unknown(scope, node)
    if own is not None:
        return own
    return _captured(scope, node, variable, steps, "read")


def _check_reader(scope: Scope, node: tree.Index, value: Tensor) -> None:
    """Refuse `z[t]` in an `attend` where z runs along another sequence alone: it has none of t."""
    streams = [axis.name for axis in value.axes if axis.kind == "stream"]
    if scope.attend is None or value.frame is scope.frame or not streams or TIME.name in streams:
        return
    raise scope.error(
        "E0306",
        f"`{node.base.span.text}` runs along `{streams[0]}`, and `t` is of the layer's own tokens",
        node.span,
        others=[(value.origin, "from here")],
    )


def at_path(scope: Scope, node: tree.Index, variable: Along, steps: int) -> Value:
    """`w[r]`: the value of a token between the one read and the reader."""
    return _captured(scope, node, variable, steps, "path")


def _captured(scope: Scope, node: tree.Index, variable: Along, steps: int, role: str) -> Value:
    """A value of another token: captured along the stream it belongs to."""
    if steps:
        raise scope.error(
            "E0308", f"`{node.span.text}`: shift the value before it is read", node.span
        )
    tensor = _base(scope, node)
    if variable.axis.name in tensor.type.names and tensor.frame is scope.frame:
        return tensor
    if role == "path" and _of_pairs(scope, tensor):
        return _between(scope, node, tensor, variable)
    streams = [axis.name for axis in tensor.axes if axis.kind == "stream"]
    if not streams:
        return _row(scope, node, tensor, variable)
    if variable.source not in streams:
        raise scope.error(
            "E0306",
            f"`{node.base.span.text}` runs along `{streams[0]}`, and `{variable.axis}` reads "
            f"`{variable.source}`",
            node.span,
            others=[(tensor.origin, "from here")],
            helps=[f"what runs along `{streams[0]}` is read in a block `attend all {streams[0]}:`"],
        )
    if tensor.frame is scope.frame:
        name = node.base.span.text
        system = scope.attend is not None and name in scope.attend.unknowns
        raise scope.error(
            "E0309",
            f"`{name}` is computed for the reader inside this block",
            node.span,
            "known behind the block alone",
            helps=[
                f"read `{name}` in another `attend`" if system
                else "compute it before the block, then read it with an index"
            ],
        )  # fmt: skip
    brought = scope.frame.bring(tensor, role)
    return expr.group(scope, brought, node)


def _of_pairs(scope: Scope, value: Tensor) -> bool:
    """Whether a value of this block is one for each pair of tokens."""
    return (
        scope.attend is not None
        and value.frame is scope.frame
        and scope.attend.read.name in value.type.names
    )


def _between(scope: Scope, node: tree.Index, value: Tensor, variable: Along) -> Tensor:
    """`p[r]`: a value of each reader and token read, where a token between them is read."""
    assert scope.attend is not None
    read = scope.attend.read.name
    out = [(axis.name, variable.axis if axis.name == read else axis) for axis in value.axes]
    op = ir.Contract((value.type.names,), ops.arranged(out))
    return ops.node(scope, op, value, span=node.span, row=value.row)


def at_route(scope: Scope, node: tree.Index, variable: Along, steps: int) -> Value:
    """`W[e]`: the weights of one expert; its axis is carried along unseen."""
    value = ops.tensor(scope, scope.evaluate(node.base), node.base.span)
    if variable.axis.name not in value.type.names:
        raise scope.error(
            "E0310",
            f"`{node.base.span.text}` has no axis `{variable.axis}`",
            node.span,
            f"it is {ops.shape(scope, value)}",
            others=[(value.origin, "from here")],
        )
    return value


def at_block(scope: Scope, node: tree.Index, variable: Along, steps: int) -> Value:
    """`k[b]`: the tokens of a block, along a new axis in front."""
    value = ops.tensor(scope, scope.evaluate(node.base), node.base.span)
    _, info = scope.context.streams[variable.axis.name]
    assert info is not None
    if info.source not in value.type.names:
        raise scope.error(
            "E0306", f"`{node.base.span.text}` has no tokens to divide into blocks", node.span
        )
    width = scope.context.widths[variable.axis.name]
    op = ir.Window(info.source, width, info.stride, variable.axis)
    return ops.node(scope, op, ops.batched(scope.frame.bring(value)), span=node.span)


def gather(scope: Scope, node: tree.Index, base: Tensor) -> Tensor:
    """`E[tokens]`: rows of a table at integers given per token."""
    if len(node.items) != 1:
        raise scope.error(
            "E0310",
            f"`{node.span.text}`: one index at a time",
            node.span,
            helps=["axes are written only left of `=`; a table of pairs is read at `[t, s]`"],
        )
    _check_earlier(scope, node, base)
    value = scope.evaluate(node.items[0])
    if isinstance(value, sympy.Expr):
        value = whole(scope, value)  # not settled: it is l of each layer of a `repeat`
    at = ops.tensor(scope, value, node.items[0].span)
    axes = scope.visible(base)
    if at.type.dtype != "int" or not axes:
        helps = made_whole(scope, node.items[0]) if at.type.dtype != "int" else []
        raise scope.error(
            "E0310",
            f"`{node.span.text}` is not an index",
            node.items[0].span,
            "not an integer per token" if axes else "nothing to choose from",
            helps=[*helps, *_indices(node, axes)],
        )
    if isinstance(value, sympy.Expr):
        _check_entry(scope, node, axes[0], value)
    if scope.attend is not None and scope.attend.read.name in at.type.names:
        # a pair that is not read must not be able to name a row that does not exist
        first = ops.constant(scope, sympy.Integer(0), node.span)
        at = ops.node(scope, ir.Elementwise("where"), scope.attend.mask, at, first, span=node.span)
    return ops.node(scope, ir.Gather(axes[0].name), base, at, span=node.span)


def _check_earlier(scope: Scope, node: tree.Index, base: Tensor) -> None:
    """Refuse `x[t // 2]` of a value per token: it reads as a token, and would be an entry of x."""
    item = node.items[0]
    parts = tuple(walk(item))
    named = {part.id: scope.index(part.id) for part in parts if isinstance(part, tree.Name)}
    found = [variable for variable in named.values() if variable is not None]
    if any(isinstance(part, tree.Index) for part in parts):  # `targets[t-1]`: an integer of a token
        return
    if len(found) != 1 or not any(axis.name == found[0].source for axis in base.axes):
        return
    axes = scope.visible(base)
    place = re.sub(r"\bt\b", f"position({node.base.span.text})", item.span.text)
    text = node.base.span.text
    token = f"in an `attend s <= t`: `sum[s](where(s == {item.span.text}, 1, 0) * {text}[s])`"
    token = f"a token by its place, {token}"
    entry = f"an entry of `{axes[0]}`: `take[{axes[0]}]({text}, {place})`" if axes else ""
    raise scope.error(
        "E0308",
        f"an earlier token is `t - n` with a whole number n up to {MAX_SHIFT}",
        item.span,
        helps=[token, *filter(None, [entry])] if found[0].role == "reader" else [],
    )


def _indices(node: tree.Index, axes: Sequence[Axis]) -> list[str]:
    """The help on indices: they stand in brackets, integers of a token are declared as such."""
    known = "`[t-1]` is an earlier token, `[s]` a token read, `E[tokens]` a row of a table"
    item = node.items[0]
    if not isinstance(item, tree.Name) or not axes:
        return [known]
    return [f"integers are declared so: `input {item.id} in {axes[0]}`", known]


def _check_entry(scope: Scope, node: tree.Index, axis: Axis, entry: sympy.Expr) -> None:
    """Refuse a number in brackets that no entry of a dim has, and require one made of sizes to be
    that of an entry."""
    if not entry.is_number:
        text = node.items[0].span.text
        for condition, said in (
            (entry < axis.size, f"{text} < {axis.size}"),
            (entry >= 0, f"{text} >= 0"),
        ):
            scope.hold(condition, said, node.items[0].span, f"an entry of `{axis}`")
        return
    if entry >= 0 and not (axis.size.is_number and entry >= axis.size):
        return
    size = f"0 to {axis.size - 1}"
    helps = [f"the last entry is `take[{axis}](..., {axis.size} - 1)`"]
    raise scope.error(
        "E0310",
        f"`{axis}` has no entry {entry}: its entries are {size}",
        node.items[0].span,
        helps=[*helps, "an earlier token is `[t-1]`"] if entry < 0 else [],
    )


def take(scope: Scope, axis: Axis, value: Tensor, at: Tensor, span: Span) -> Tensor:
    """`take[K](x, i)`: x read along K at the integers i."""
    return ops.node(scope, ir.Gather(axis.name), value, at, span=span)


def positions(scope: Scope, node: tree.Index) -> Value:
    """`index[K]`: 0 to K - 1 along K."""
    axes = scope.axes(node.items)
    if len(axes) != 1:
        raise scope.error("E0205", "`index` takes one axis", node.span)
    return ops.node(scope, ir.Position(axes[0]), span=node.span)


AT = {
    "reader": at_reader,
    "read": at_read,
    "path": at_path,
    "route": at_route,
    "block": at_block,
}

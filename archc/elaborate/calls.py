"""Calls: built-in functions, reductions, library functions written in `.arch`, and layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import sympy

from archc.diagnostics import Refused, did_you_mean
from archc.dims import BATCH, Axis, apply, axes_text
from archc.elaborate import index, layers, matrix, ops, rearrange, select, tied
from archc.elaborate.body import run_function
from archc.elaborate.callee import bind
from archc.elaborate.heads import require_groups
from archc.elaborate.scope import AttendScope, Scope
from archc.elaborate.values import AbstractLayer, FunctionRef, LayerRef, Option, Tensor, Value
from archc.elaborate.whole import made_whole, whole
from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.source import Span
from archc.syntax import habits, tree

NEUTRAL: dict[str, sympy.Expr] = {
    "sum": sympy.Integer(0), "prod": sympy.Integer(1), "max": -sympy.oo, "min": sympy.oo,
}  # fmt: skip
"""The addend of a token that may not be read, by the reduction over the tokens read."""

MOST_JOINED = 16
"""Most values that `join` takes."""

MOST_QUOTED = 40
"""Longest expression that a help line repeats, in characters."""

REDUCTIONS = ("sum", "mean", "max", "min", "prod")
OVER_TOKENS = ("softmax", "logsumexp")
"""Functions of scores over the tokens read, which have no axis there; over a dim, the library's."""

FORMS = {"where": "where(condition, a, b)", "top": "top(n, score)"}
"""How functions of several values are called."""


def call(scope: Scope, node: tree.Call) -> Value:
    """`f(...)`, `f[K](...)`, `Layer(sizes)(inputs)`."""
    func, items = node.func, ()
    if isinstance(func, tree.Index):
        func, items = func.base, func.items
    if isinstance(func, tree.Name) and _rearranges(scope, func.id):
        return rearranged(scope, node, func.id)
    if isinstance(node.func, tree.Index) and node.func.into:
        return index.index(scope, node.func)
    if isinstance(func, tree.Name) and scope.find(func.id) is None:
        if func.id in BUILTINS:
            return BUILTINS[func.id](scope, node, func.id, items)
        known = scope.known() | {*BUILTINS, *rearrange.FUNCTIONS}
        if func.id not in scope.module.decls and func.id not in scope.session.library:
            raise scope.error(
                "E0204",
                f"no function or layer `{func.id}`",
                func.span,
                helps=["write `index[K]`: the positions along K"]
                if func.id == "index"
                else habits.of_name(func.id, *_given(scope, node)) or did_you_mean(func.id, known),
            )
    target = scope.evaluate(node.func)
    if isinstance(target, FunctionRef):
        return function(scope, target, node)
    if isinstance(target, LayerRef | AbstractLayer):
        return layers.call(scope, target, node)
    raise scope.error(
        "E0204",
        f"`{node.func.span.text}` is not a function or layer",
        node.func.span,
        helps=[_instead_of_call(node, target)],
    )


def _given(scope: Scope, node: tree.Call) -> tuple[str, ...]:
    """What a function that is not there was to be called with, and the last dim of that, if it is
    a value: a layer's sizes are none."""
    if not node.args:
        return ()
    text, dims = " ".join(node.args[0].value.span.text.split()), ()
    with suppress(Refused):
        value = scope.evaluate(node.args[0].value)
        if not isinstance(value, Tensor):
            return ()
        dims = tuple(axis.name for axis in scope.visible(value))
    return text if len(text) <= MOST_QUOTED else "x", *dims[-1:]


def _rearranges(scope: Scope, name: str) -> bool:
    """Whether a name is that of a function that cuts or joins dims, and of nothing in the file."""
    own = scope.find(name) is not None or name in scope.module.decls
    return name in rearrange.FUNCTIONS and not own


def rearranged(scope: Scope, node: tree.Call, name: str) -> Tensor:
    """`join[N, R as K](a, b)`, `split[d as H, K](x)`, `merge[H, K as d](x)`."""
    func = node.func
    if not isinstance(func, tree.Index) or not func.into:
        raise rearrange.usage(scope, node, func)
    values = arguments(scope, node, range(1, MOST_JOINED + 1))
    spans = [argument.value.span for argument in node.args]
    tensors = [ops.tensor(scope, v, span) for v, span in zip(values, spans, strict=True)]
    return rearrange.FUNCTIONS[name](scope, node, tensors, func)


def _instead_of_call(node: tree.Call, target: Value) -> str:
    """The help for a call of something that cannot be called: what to write instead."""
    func = node.func
    if isinstance(func, tree.Transpose):
        return "`.T` stands without brackets behind it"
    if isinstance(func, tree.Call):
        return "a layer is given its sizes first, then its inputs: `Layer(d)(x)`"
    if isinstance(func, tree.Name) and isinstance(target, Option) and isinstance(target.value, str):
        return f'compare the text: `silu(x) if {func.id} == "{target.value}" else gelu(x)`'
    if isinstance(func, tree.Name) and isinstance(target, Tensor) and len(node.args) == 1:
        given = node.args[0].value.span.text
        return f"a product is written with `*` or `@`, a row of a table `{func.id}[{given}]`"
    return "a product is written with `*` or `@`"


def arguments(scope: Scope, node: tree.Call, count: Sequence[int]) -> list[Value]:
    """Positional arguments of a built-in, counted."""
    named = next((argument for argument in node.args if argument.name), None)
    if named is not None and named.name is not None:
        raise scope.error(
            "E0209",
            f"`{node.func.span.text}` has no argument `{named.name}`",
            named.span,
            helps=habits.of_name(named.name),
        )
    if len(node.args) not in count:
        wanted = " or ".join(str(n) for n in count)
        raise scope.error(
            "E0209",
            f"`{node.func.span.text}` takes {wanted} argument{'s' if wanted != '1' else ''}, "
            f"not {len(node.args)}",
            node.span,
            helps=[
                f"write `{form}`" for name, form in FORMS.items() if name == node.func.span.text
            ],
        )
    return [scope.evaluate(argument.value) for argument in node.args]


def elementwise(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`exp(x)`: of a number exactly, of a tensor per element."""
    if items:
        raise scope.error(
            "E0209", f"`{name}` works on each element and takes no axes", node.func.span
        )
    fn = FUNCTIONS[name]
    values = arguments(scope, node, [fn.arity])
    if fn.exact and all(isinstance(value, sympy.Expr) for value in values):
        return apply(fn.formula, *values)
    return ops.elementwise(scope, name, values, node.span)


def reduction(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`sum[K](x)`, `max[K](x)`, `sum[H in G](x)`; `max(a, b)` is elementwise."""
    if not items:
        if name in ("max", "min"):
            if len(node.args) == 1:
                raise scope.error(
                    "E0209",
                    f"`{name}` takes 2 values, or one and its axes",
                    node.span,
                    helps=[over(scope, name, node)],
                )
            values = arguments(scope, node, [2])
            if all(isinstance(value, sympy.Expr) for value in values):
                return apply(FUNCTIONS[name].formula, *values)
            return ops.elementwise(scope, name, values, node.span)
        raise scope.error(
            "E0209", f"`{name}` needs its axes", node.func.span, helps=[over(scope, name, node)]
        )
    value = ops.tensor(scope, arguments(scope, node, [1])[0], node.args[0].value.span)
    if value.type.dtype == "bool" or (value.type.dtype == "int" and name == "mean"):
        value = ops.node(scope, ir.Elementwise("real"), value, span=node.span)
    if len(items) == 1 and isinstance(items[0], tree.Compare):
        return grouped(scope, name, value, items[0], node.span)
    value, axes = reduced_axes(scope, value, items, node.span)
    if scope.attend is not None and scope.attend.read.name in {axis.name for axis in axes}:
        fill = NEUTRAL.get(name)
        if fill is None:
            raise scope.error("E0209", f"`{name}` over the tokens read is not defined", node.span)
        value = matrix.masked(scope, value, fill, node.span)
    return ops.reduce(scope, name, value, axes, node.span)


def over(scope: Scope, name: str, node: tree.Call) -> str:
    """How to call a function over a dim, with one that its first argument has."""
    if not node.args:
        return f"write `{name}[K](...)`"
    first = node.args[0].value.span
    text = first.text
    if name not in (*REDUCTIONS, *OVER_TOKENS):
        text = Span(first.source, first.start, node.args[-1].span.end).text
    value = scope.evaluate(node.args[0].value)
    axes = scope.visible(value) if isinstance(value, Tensor) else ()
    if isinstance(value, Tensor) and not axes and name in REDUCTIONS:
        return f"`{text}` is one number for each token; over all of them: `{name}[batch, t](...)`"
    if not axes or len(text) > MOST_QUOTED:
        text = text if len(text) <= MOST_QUOTED else "..."
        return f"write `{name}[{axes[-1] if axes else 'K'}]({text})`"
    last = axes[-1]
    more = f"; `{text}` is {axes_text(axes)}" if len(axes) > 1 else ""
    return f"write `{name}[{last}]({text})`{more}"


def reduced_axes(
    scope: Scope, value: Tensor, items: tuple[tree.Expr, ...], span: Span
) -> tuple[Tensor, tuple[Axis, ...]]:
    """The axes named in brackets, each of which the value must have, and the value: a lone `K'` is
    `K` where K is named."""
    found: list[Axis] = []
    for item in items:
        if isinstance(item, tree.Name) and item.id == BATCH.name and BATCH in value.axes:
            found.append(BATCH)
            continue
        along = scope.index(item.id) if isinstance(item, tree.Name) else None
        if along is not None and along.axis.name in value.type.names:
            found.append(along.axis)
            continue
        for axis in scope.axis(item):
            if axis.name not in value.type.names:
                value = ops.settled(scope, value, span)
            if axis.name not in value.type.names:
                raise scope.error(
                    "E0301",
                    f"no axis `{axis}` in a value of shape {ops.shape(scope, value)}",
                    item.span,
                    helps=_alone(scope, axis, value),
                    others=[(value.origin, f"{ops.shape(scope, value)} from here")],
                )
            found.append(axis)
    return value, tuple(found)


def _alone(scope: Scope, axis: Axis, value: Tensor) -> list[str]:
    """The help where a value has no tokens of blocks yet, or a dim lost its prime: `K'` without a
    `K` beside it is `K`."""
    block = next((name for name, width in scope.context.widths.items() if width == axis), None)
    if block is not None:
        return [f"`x[{block}]` has the tokens of a block along `{axis}`: write `...[{block}]`"]
    if scope.attend is not None and scope.attend.read.name in value.type.names:
        read = scope.attend.read.name
        if not scope.visible(value):
            return [f"over the tokens read, write `softmax(score)`, or `sum[{read}](...)`"]
    base = axis.name.rstrip("'")
    if base == axis.name or base not in value.type.names:
        return []
    return [f"a lone `{axis}` is `{base}` again: write `{base}`"]


def grouped(scope: Scope, name: str, value: Tensor, item: tree.Compare, span: Span) -> Tensor:
    """`sum[H in G](p)`, `max[H in G](p)`: over the heads of each group."""
    if item.ops != ("in",):
        raise scope.error("E0205", f"expected `{name}[H in G](...)`", item.span)
    heads, groups = scope.axis(item.terms[0])[0], scope.axis(item.terms[1])[0]
    value, _ = reduced_axes(scope, value, (item.terms[0],), span)
    if heads.name == groups.name:
        return value
    if groups.name in value.type.names:
        raise scope.error("E0206", f"the value has an axis `{groups}` already", item.span)
    require_groups(scope, heads, groups, span)
    share = sympy.floor(heads.size / groups.size)
    if name in ("sum", "mean"):
        at = ops.plain(
            scope, "floordiv", [ops.node(scope, ir.Position(heads), span=span), share], span
        )
        total = ops.node(scope, ir.Scatter(heads.name, groups), value, at, span=span)
        return ops.plain(scope, "div", [total, share], span) if name == "mean" else total
    each = Axis(f"{heads.name}_in_{groups.name}", share)
    first = ops.plain(scope, "mul", [ops.node(scope, ir.Position(groups), span=span), share], span)
    at = ops.plain(scope, "add", [first, ops.node(scope, ir.Position(each), span=span)], span)
    members = ops.node(scope, ir.Gather(heads.name), value, at, span=span)
    return ops.reduce(scope, name, members, [each], span)


def over_tokens(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`softmax(score)` in an attend, over the tokens read; `softmax[N](x)` is in the library."""
    read = scope.attend.read.name if scope.attend is not None else ""
    if any(isinstance(item, tree.Name) and item.id == read for item in items):
        raise scope.error(
            "E0209",
            f"a `{name}` over the tokens read has no axis: `[{read}]`",
            node.func.span,
            helps=[f"write `{name}(score)`"],
        )
    if items:
        return function(
            scope, FunctionRef(scope.session.library[name], tuple(map(scope.axis, items))), node
        )
    if scope.attend is None:
        raise scope.error(
            "E0209",
            f"`{name}` without an axis is for scores of an `attend`",
            node.span,
            helps=[
                f"over the tokens: a block `attend s <= t over H:` with `{name}(q[t].T @ k[s])`",
                f"over a dim: {over(scope, name, node)}",
            ],
        )
    return _over_tokens_read(scope, scope.attend, node, name)


def _over_tokens_read(scope: Scope, attend: AttendScope, node: tree.Call, name: str) -> Tensor:
    """`softmax(score)`, `softmax(score, sink)` or `logsumexp(score)`, in an attend."""
    named = next((argument for argument in node.args if argument.name), None)
    if named is not None:
        raise scope.error(
            "E0209",
            f"`{name}` has no argument `{named.name}`",
            named.span,
            helps=[f"leave it out: in an `attend`, `{name}` is over the tokens read"],
        )
    values = arguments(scope, node, [1, 2] if name == "softmax" else [1])
    score = ops.tensor(scope, values[0], node.args[0].value.span)
    if attend.read.name not in score.type.names:
        raise scope.error(
            "E0301",
            "this score does not depend on the token read",
            node.args[0].value.span,
            helps=[f"index a value with `[{attend.read.name}]`"],
        )
    if name == "logsumexp":
        seen = matrix.masked(scope, score, -sympy.oo, node.span)
        return ops.reduce(scope, name, seen, [attend.read], node.span)
    mask = scope.frame.bring(attend.mask)
    sink = [ops.tensor(scope, value, node.args[1].value.span) for value in values[1:]]
    made = ops.node(scope, ir.Softmax(attend.read.name), score, mask, *sink, span=node.span)
    attend.softmaxed.add(made.node)
    return made


NO_VECTOR = {
    0: "a number scales as it is: `a * S[t-1]`",
    2: "where `{0}` is of the heads, the block says so: `over {0}`",
}
"""What to write where `diag` is given no vector, by how many dims its value has."""


def diag(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`diag(a)`: the square matrix with a on its diagonal."""
    value = ops.tensor(scope, arguments(scope, node, [1])[0], node.args[0].value.span)
    axes = scope.visible(value)
    if len(axes) != 1:
        raise scope.error(
            "E0304",
            f"`diag` of a value of shape {ops.shape(scope, value)}",
            node.span,
            "`diag` takes a vector",
            others=[(value.origin, "from here")],
            helps=NO_VECTOR.get(len(axes), "").format(*axes).splitlines(),
        )
    rows, cols = ops.settle((axes[0], axes[0]), scope.hidden)
    delta = ops.node(scope, ir.Delta(rows, cols), span=node.span)
    if rows.name != axes[0].name:
        value = ops.relabel(scope, value, [(axes[0], rows)], node.span)
    return ops.node(scope, ir.Elementwise("mul"), value, delta, span=node.span)


def solve(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`solve(A, b, iterations = n)`: z with A z = b."""
    named = {argument.name: argument.value for argument in node.args if argument.name}
    plain = [argument.value for argument in node.args if not argument.name]
    if set(named) - {"iterations"} or len(plain) != 2:
        raise scope.error(
            "E0209", "`solve` takes a matrix, a vector and `iterations = n`", node.span
        )
    a, b = (ops.tensor(scope, scope.evaluate(part), part.span) for part in plain)
    va, vb = scope.visible(a), scope.visible(b)
    if len(va) != 2 or len(vb) != 1 or va[0].base != va[1].base or va[0].base != vb[0].base:
        raise scope.error(
            "E0301",
            f"`solve` of {ops.shape(scope, a)} and {ops.shape(scope, b)}",
            node.span,
            "needs a square matrix and a vector over the same dim",
            helps=("`solve(A, b)` is one vector: of a matrix, solve for what it is read with",),
            others=[(a.origin, "the matrix"), (b.origin, "the vector")],
        )
    count = scope.evaluate(named["iterations"]) if "iterations" in named else None
    steps = count if isinstance(count, sympy.Expr) else None
    return ops.node(scope, ir.Solve(va[0].name, va[1].name, steps), a, b, span=node.span)


def top(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`top(n, score)`: which of the tokens, blocks or experts are the n best."""
    values = arguments(scope, node, [2])
    count = values[0]
    if not isinstance(count, sympy.Expr):
        raise scope.error("E0207", "`top(n, score)` takes a number first", node.args[0].span)
    score = ops.tensor(scope, values[1], node.args[1].value.span)
    streams = [a for a in score.axes if a.kind == "stream" and a.name != "t"]
    axis = (streams or scope.visible(score))[-1:]
    if not axis:
        raise scope.error("E0301", "`top` of a scalar", node.span, "nothing to choose from")
    if scope.attend is not None and axis[0].name == scope.attend.read.name:
        score = matrix.masked(scope, score, -sympy.oo, node.span)
    return ops.node(scope, ir.Top(axis[0].name, count), score, span=node.span)


def position(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`position(x)`: the index, from 0, of each token along the sequence that x runs along."""
    return ops.node(scope, ir.Position(_along_tokens(scope, node, name)[1]), span=node.span)


def reversed_(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`reversed(x)`: the tokens of a sequence from the last to the first."""
    value, stream = _along_tokens(scope, node, name)
    last = ops.constant(scope, stream.size - 1, node.span)
    own = ops.node(scope, ir.Position(stream), span=node.span)
    place = ops.plain(scope, "sub", [last, own], node.span)
    return index.take(scope, stream, value, place, node.span)


def _along_tokens(scope: Scope, node: tree.Call, name: str) -> tuple[Tensor, Axis]:
    """The only argument of a call, and the sequence that it runs along."""
    value = ops.tensor(scope, arguments(scope, node, [1])[0], node.args[0].value.span)
    streams = [axis for axis in value.axes if axis.kind == "stream"]
    if len(streams) == 1:
        return value, streams[0]
    inside = "inside a block a value is that of one token: name `{}(...)` above it"
    raise scope.error(
        "E0306",
        f"`{name}(x)` of a value that does not run along one sequence",
        node.span,
        helps=[inside.format(name)] if scope.frame.region else [],
    )


def take(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`take[K](x, i)`: x at the positions i of K."""
    if len(items) != 1:
        raise scope.error("E0209", "`take` needs one axis: `take[K](x, i)`", node.span)
    values = arguments(scope, node, [2])
    value = ops.tensor(scope, values[0], node.args[0].value.span)
    place = whole(scope, values[1]) if isinstance(values[1], sympy.Expr) else values[1]
    at = ops.tensor(scope, place, node.args[1].value.span)
    value, (axis, *_) = reduced_axes(scope, value, items, node.span)
    if at.type.dtype != "int":
        where = node.args[1].value
        helps = made_whole(scope, where)
        raise scope.error("E0310", "`take` needs whole numbers", where.span, helps=helps)
    return index.take(scope, axis, value, at, node.span)


def window(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`window[W](x)`: the last W tokens of x, oldest first, along a new axis W."""
    if len(items) != 1:
        raise scope.error("E0209", "`window` needs one axis: `window[W](x)`", node.span)
    value = ops.tensor(scope, arguments(scope, node, [1])[0], node.args[0].value.span)
    streams = [axis for axis in value.axes if axis.kind == "stream"]
    if len(streams) != 1 or (scope.frame.capture is not None and scope.memory):
        raise scope.error(
            "E0306", "`window` looks along a sequence: use it before the block", node.span
        )
    width = scope.axis(items[0])[0]
    if width.name in value.type.names:
        raise scope.error(
            "E0206",
            f"the value has an axis `{width}` already",
            items[0].span,
            helps=["how many tokens are seen is the size of a dim of its own, the last one"],
        )
    value = ops.batched(scope.frame.bring(value))
    return ops.node(scope, ir.Window(streams[0].name, width), value, span=node.span)


def noise(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`keep(x, p)`: dropout's factor in the shape of x."""
    values = arguments(scope, node, [2])
    p = values[1]
    if not isinstance(p, sympy.Expr):
        raise scope.error("E0207", "a dropout probability is a number", node.args[1].span)
    return ops.node(scope, ir.Noise(p), ops.tensor(scope, values[0], node.span), span=node.span)


def size(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`size(K)`: how long an axis is, as a number."""
    if items or len(node.args) != 1:
        raise scope.error("E0209", "`size` takes one dim: `size(K)`", node.span)
    axes = scope.axis(node.args[0].value)
    return sympy.Mul(*(axis.size for axis in axes))


def exactly(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`round_up(n, step)` of sizes: the next multiple."""
    values = arguments(scope, node, [2])
    if not all(isinstance(value, sympy.Expr) for value in values):
        raise scope.error("E0207", f"`{name}` is for sizes", node.span)
    return apply(lambda n, step: step * sympy.ceiling(n / step), *values)


def normalised(scope: Scope, node: tree.Call, name: str, items: tuple[tree.Expr, ...]) -> Value:
    """`normalised(p)` in the weight of a route: p of the chosen, divided by their sum."""
    value = ops.tensor(scope, arguments(scope, node, [1])[0], node.args[0].value.span)
    return select.normalise(scope, value, node.span)


BUILTINS: dict[str, Callable[[Scope, tree.Call, str, tuple[tree.Expr, ...]], Value]] = {
    **{name: elementwise for name, fn in FUNCTIONS.items() if fn.called},
    **dict.fromkeys(REDUCTIONS, reduction),
    **dict.fromkeys(OVER_TOKENS, over_tokens),
    "diag": diag,
    "solve": solve,
    "top": top,
    "position": position,
    "reversed": reversed_,
    "take": take,
    "window": window,
    "keep": noise,
    "size": size,
    "normalised": normalised,
    "round_up": exactly,
}


def function(scope: Scope, target: FunctionRef, node: tree.Call) -> Value:
    """A library function, elaborated in place with its axes and arguments bound."""
    decl = target.decl
    if len(target.axes) != len(decl.axes):
        if len(decl.axes) != 1 or not target.axes:
            axes = f"[{', '.join(decl.axes)}]" if decl.axes else ""
            single = len(decl.axes) == 1 and not target.axes
            raise scope.error(
                "E0209",
                f"`{decl.name}` is called `{decl.name}{axes}(...)`",
                node.span,
                helps=[over(scope, decl.name, node)] if single else [],
            )
        target = FunctionRef(decl, (tuple(axis for axes in target.axes for axis in axes),))
    bound = bind(scope, decl, node)
    with scope.session.calling(decl, node.span):
        return _in_place(scope, target, node, bound)


def _in_place(
    scope: Scope, target: FunctionRef, node: tree.Call, bound: Mapping[str, Value]
) -> Value:
    """The value of a function whose axes and arguments are known."""
    decl = target.decl
    body = scope.child(
        dims=dict(zip(decl.axes, target.axes, strict=True)),
        site=scope.site or node.span,
        parent=None,
    )
    body = replace(body, several=tied.mentioned_often(decl.body))
    for parameter in decl.params:
        value = bound.get(parameter.name)
        if value is None:
            value = body.evaluate(parameter.default) if parameter.default else None
        if value is None:
            raise scope.error(
                "E0209",
                f"`{decl.name}` needs `{parameter.name}`",
                node.span,
                others=[(decl.header, "declared here")],
                helps=[f"write `{decl.name}(..., {parameter.name} = ...)`"],
            )
        body.names[parameter.name] = tied.bound(body, parameter.name, value)
        if parameter.axes is not None:
            _bind_axes(body, scope, decl, parameter, value, node.span)
    return run_function(body, decl)


def _bind_axes(
    body: Scope,
    scope: Scope,
    decl: tree.Decl,
    parameter: tree.Parameter,
    value: Value,
    span: Span,
) -> None:
    """`w[W]` binds W to the last axis of the argument."""
    names = [item.id for item in parameter.axes or () if isinstance(item, tree.Name)]
    axes = scope.visible(value) if isinstance(value, Tensor) else ()
    if len(axes) < len(names):
        found = f"is {ops.shape(scope, value)}" if isinstance(value, Tensor) else "is a number"
        raise scope.error(
            "E0301",
            f"`{parameter.name}` of `{decl.name}` ends in [{', '.join(names)}], and this {found}",
            span,
            others=[(parameter.span, "declared here")],
            helps=[f"give it a value with dims, such as `param {parameter.name}[d, 4]`"],
        )
    for name, axis in zip(names, axes[len(axes) - len(names) :], strict=True):
        body.dims.setdefault(name, (axis,))

"""Nodes of layer IR from tensors: joined by name, a memory's columns and rows kept apart."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import sympy
from sympy.logic.boolalg import Boolean

from archc.dims import BATCH, Axis, axes_text
from archc.elaborate.scope import MAX_RANK, Scope
from archc.elaborate.values import Identity, Option, Tensor, Value
from archc.elaborate.whole import whole
from archc.functions.definitions import FUNCTIONS, Kind
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.source import Span

OUTER = "an outer product is written `a @ b.T`"
EVERY = "the same for each `{0}`: `a @ one.T`, or `one @ a.T`, where `one = 0 * index[{0}] + 1`"
UPRIGHT = "`W.T @ x` is the column that `x.T @ W` is a row of; or turn the row: `(x.T @ W).T`"
THREE = "one of three dims is named in front of the block, `w = a * b * c`: `*` goes by names there"

WORDS = {name: fn.symbol for name, fn in FUNCTIONS.items() if fn.symbol}
"""The words of messages for operators."""


LOGICAL = ("and", "or", "not")


def node(
    scope: Scope, op: ir.Op, *operands: Tensor, span: Span | None, row: bool = False
) -> Tensor:
    """A new node in the scope's frame; operands of outer frames are captured."""
    ids = [scope.frame.bring(operand).node for operand in operands]
    at = scope.site or span
    made = Tensor(scope.frame, scope.frame.graph.add(op, *ids, span=at), row, at)
    if len(made.axes) > MAX_RANK:
        raise scope.session.report.error("E0301", f"a value of more than {MAX_RANK} axes", at)
    return made


def constant(scope: Scope, value: sympy.Expr, span: Span | None) -> Tensor:
    """A number as a tensor without axes."""
    return node(scope, ir.Constant(value), span=span)


def batched(value: Tensor) -> Tensor:
    """The value with a row for each sequence, where it is made of positions alone and has none:
    what looks along a sequence keeps tokens of each, and what leaves a layer is of each."""
    if BATCH in value.axes or not any(axis.kind == "stream" for axis in value.axes):
        return value
    graph = value.frame.graph
    span = graph[value.node].span
    row, zero = graph.add(ir.Position(BATCH), span=span), graph.add(ir.Constant(sympy.Integer(0)))
    every = graph.add(ir.Elementwise("ge"), row, zero, span=span)
    made = graph.add(ir.Elementwise("where"), every, value.node, value.node, span=span)
    return Tensor(value.frame, made, value.row, value.origin)


OUTER_SCORE = re.compile(r"([^@]+\]) @ ([^@]+\])\.T")
"""An outer product of a value of the reader and one of the token read."""


def shape(scope: Scope, tensor: Tensor) -> str:
    """A tensor's visible shape, as a spec writes it."""
    return axes_text(scope.visible(tensor))


def outer_scores(graph: Graph) -> list[str]:
    """The help for scores `q[t] @ k[s].T`, a matrix for each pair of tokens, in an attend's graph
    or in that of a layer around it."""
    for node in graph:
        if isinstance(node.op, ir.Attend) and (helps := outer_scores(node.op.body)):
            return helps
        for each in graph.ancestors(node.id) if isinstance(node.op, ir.Softmax) else ():
            made = graph[each]
            dims = [axis for axis in made.type.axes if axis.kind == "dim"]
            pair = tuple(a for a in dims if [b.base for b in dims].count(a.base) == 2)
            outer = (
                OUTER_SCORE.fullmatch(made.span.text) if made.span is not None and pair else None
            )
            if isinstance(made.op, ir.Contract) and outer is not None:
                inner = f"an inner product is one number, `{outer[1]}.T @ {outer[2]}`"
                return [f"`{outer[0]}` is a matrix {axes_text(pair)} for each pair; {inner}"]
    return []


def tensor(scope: Scope, value: Value, span: Span) -> Tensor:
    """A value as a tensor; numbers are lifted, everything else is refused."""
    if isinstance(value, Tensor):
        return scope.frame.bring(value)
    if isinstance(value, sympy.Expr):
        return constant(scope, value, span)
    if isinstance(value, Identity):
        raise scope.error(
            "E0305",
            "`I` has no size of its own",
            span,
            "needs a matrix beside it",
            helps=["`I` takes its size from the matrix it is added to or multiplied with"],
        )
    if isinstance(value, Option):
        raise scope.error("E0207", f"`{span.text}` is an option, not a value per token", span)
    if isinstance(value, Boolean):
        raise scope.error(
            "E0207",
            f"`{span.text}` holds a condition on numbers where a value per token is needed",
            span,
            "it is decided when compiling",
            helps=["choose with `a if condition else b`"],
        )
    raise scope.error(
        "E0207", f"`{span.text}` is a layer or function, not a value", span, "not called"
    )


def elementwise(scope: Scope, fn: str, values: Sequence[Value], span: Span) -> Value:
    """`fn` of values, broadcast by name; `I` takes the shape of the matrix beside it."""
    if any(isinstance(value, Identity) for value in values):
        return _with_identity(scope, fn, values, span)
    if FUNCTIONS[fn].kind == Kind.WHOLE:
        values = _whole_beside(scope, values)
    tensors = _aligned(scope, [tensor(scope, value, span) for value in values], span)
    _check_conditions(scope, fn, tensors, span)
    _check_streams(scope, tensors, span)
    row = _orientation(scope, fn, tensors, span) if _oriented(scope, tensors) else False
    made = node(scope, ir.Elementwise(fn), *tensors, span=span, row=row)
    return _in_order(scope, made, span) if _of_indices(scope, made, tensors) else made


def _whole_beside(scope: Scope, values: Sequence[Value]) -> list[Value]:
    """Numbers beside whole numbers of a token or index, as whole numbers if a `require` says so."""
    given = [value for value in values if isinstance(value, Tensor)]
    if any(value.type.dtype != "int" for value in given):
        return [*values]
    return [whole(scope, value) if isinstance(value, sympy.Expr) else value for value in values]


def _of_indices(scope: Scope, made: Tensor, tensors: Sequence[Tensor]) -> bool:
    """Whether two indices of one size have met: `index[K'] < index[K]`."""

    def both(value: Tensor) -> bool:
        names = {axis.name for axis in scope.visible(value)}
        return any(name.rstrip("'") in names - {name} for name in names)

    return both(made) and not any(map(both, tensors))


def _oriented(scope: Scope, tensors: Sequence[Tensor]) -> bool:
    """Whether columns and rows are kept apart: in the memory scope, and wherever there is a row."""
    return scope.memory or any(value.row for value in tensors)


def _check_conditions(scope: Scope, fn: str, tensors: Sequence[Tensor], span: Span) -> None:
    """Refuse a number where a condition is needed: which numbers hold would have to be guessed."""
    conditions = tensors[:1] if fn == "where" else tensors if fn in LOGICAL else ()
    for value in conditions:
        if value.type.dtype != "bool":
            raise scope.error(
                "E0316",
                f"`{fn}` takes conditions, and this is a number",
                span,
                others=[(value.origin, "from here")],
                helps=["compare it: `x > 0`, `x != 0`"],
            )


def _aligned(scope: Scope, tensors: list[Tensor], span: Span) -> list[Tensor]:
    """A lone `K'` is `K` beside a value with K, unless one is a matrix with both, or indices alone
    meet; by itself it stays, as it may meet such a matrix next: `M * rsqrt(sum[K](M * M) + 1)`."""
    every = [{axis.name: axis.base for axis in scope.visible(value)} for value in tensors]
    counts = [Counter(names.values()) for names in every]
    squares = {base for count in counts for base, number in count.items() if number > 1}
    if squares:
        return [_beside_square(scope, value, tensors, squares, span) for value in tensors]
    together = {name: base for names in every for name, base in names.items()}
    if len({*together.values()}) == len(together) or all(map(positional, tensors)):
        return tensors
    return [settled(scope, value, span) for value in tensors]


def _beside_square(
    scope: Scope, value: Tensor, tensors: Sequence[Tensor], squares: Collection[str], span: Span
) -> Tensor:
    """A value beside a matrix [K, K']: `k.T`, a row, has a number for each column, along K', as
    rows have that are multiplied; a column keeps its name."""
    axes = scope.visible(value)
    if len(axes) < 1 or any(axis.base not in squares for axis in axes):
        return value
    base = axes[0].base
    if value.row:
        along = next(a for m in tensors for a in _twice(scope, m, base)[1:])
        return relabel(scope, value, [(axes[0], along)], span)
    _check_kept(scope, value, squares, span)
    if scope.memory and (len(axes) > 1 or axes[0].name == base) and not positional(value):
        for matrix in tensors:
            if (order := _twice(scope, matrix, base)) and order[0].name != axes[0].name:
                _check_rows_first(scope, value, matrix, span)
    return value


def _twice(scope: Scope, value: Tensor, base: str) -> list[Axis]:
    """The axes of a base that a matrix has twice, rows first; none of any other value."""
    found = [axis for axis in scope.visible(value) if axis.base == base]
    return found if len(found) > 1 else []


def _check_rows_first(scope: Scope, value: Tensor, matrix: Tensor, span: Span) -> None:
    """Refuse what a block's matrix declared [K', K] meets: by its name a column of K is a number
    for each of its columns, as a column one for each row; and so for a matrix [K, K']."""
    if matrix.frame is value.frame and _made_of(value, matrix):
        return
    base = scope.visible(value)[0].base
    turned = value if _twice(scope, matrix, base)[0].name == base else matrix
    raise scope.error(
        "E0303",
        f"this has the dims {shape(scope, value)} beside a matrix {shape(scope, matrix)}",
        span,
        "rows or columns?",
        others=[(turned.origin, f"this is {shape(scope, turned)}")],
        helps=[f"rows first: declare it `[{base}, {base}']`"],
    )


def _made_of(vector: Tensor, matrix: Tensor) -> bool:
    return matrix.node in vector.frame.graph.ancestors(vector.node)


def _check_kept(scope: Scope, value: Tensor, squares: Collection[str], span: Span) -> None:
    """Refuse columns' numbers that became rows' under a name, beside a matrix that has both."""
    axes = scope.visible(value)
    if len(axes) != 1 or axes[0].name not in squares or not _lost(value, axes[0]):
        return
    axis = axes[0]
    raise scope.error(
        "E0303",
        f"this is a number for each `{axis}'`, and under a name it is along `{axis}`",
        span,
        "rows or columns?",
        others=[(value.origin, "named here")],
        helps=[
            f"for columns, write the sum over `{axis}` in this expression",
            f"for rows, sum over `{axis}'`",
        ],
    )


def _lost(value: Tensor, axis: Axis) -> bool:
    """Whether a value is along K because a name took the prime of its lone `K'` away."""
    graph = value.frame.graph
    outer = {name: each for name, _, each in value.frame.entries}

    def lost(id: int) -> bool:
        op = graph[id].op
        if isinstance(op, ir.Input) and op.name in outer:
            return _lost(outer[op.name], axis)
        along = [each for each in graph[id].operands if axis.base in _bases(graph[each].type)]
        if isinstance(op, ir.Elementwise):
            return bool(along) and all(map(lost, along))
        turned = isinstance(op, ir.Contract) and len(op.ins) == 1
        return turned and bool(along) and axis.name not in graph[along[0]].type.names

    return lost(value.node)


def _bases(type: Type) -> set[str]:
    return {axis.base for axis in type.axes}


def positional(value: Tensor) -> bool:
    """Whether a value is made of positions along dims and numbers alone: `index[K'] + 1`."""
    graph, outer = value.frame.graph, {name: each for name, _, each in value.frame.entries}
    for id in (value.node, *graph.ancestors(value.node)):
        op = graph[id].op
        if isinstance(op, ir.Input) and op.name in outer:
            if not positional(outer[op.name]):
                return False
        elif isinstance(op, ir.Position):
            if op.axis.kind != "dim":
                return False
        elif not (isinstance(op, ir.Constant | ir.Elementwise) or _turns(op)):
            return False
    return True


def _turns(op: ir.Op) -> bool:
    """Whether an op only puts the axes of a value in another order."""
    return isinstance(op, ir.Contract) and len(op.ins) == 1 and len(op.out) == len(op.ins[0])


def _in_order(scope: Scope, value: Tensor, span: Span) -> Tensor:
    """A matrix from two indices: K before K', whichever was written first."""
    axes = scope.visible(value)
    bases = [axis.base for axis in axes]
    ordered = sorted(axes, key=lambda axis: (bases.index(axis.base), len(axis.name)))
    if list(axes) == ordered:
        return value
    return relabel(scope, value, [(axis, axis) for axis in ordered], span)


def plain(scope: Scope, fn: str, values: Sequence[Value], span: Span) -> Tensor:
    """`fn` of positions and the like, which may belong to different sequences."""
    return node(scope, ir.Elementwise(fn), *(tensor(scope, v, span) for v in values), span=span)


def _with_identity(scope: Scope, fn: str, values: Sequence[Value], span: Span) -> Value:
    """`I * a` stays an identity; in `I - M` it becomes a matrix of M's shape."""
    if fn in ("mul", "neg"):
        identity = next(value for value in values if isinstance(value, Identity))
        others = [value for value in values if value is not identity]
        if fn == "neg":
            others = [sympy.Integer(-1)]
        if others and not isinstance(others[0], Identity):
            scale = tensor(scope, others[0], span)
            if not scope.visible(scale):
                if identity.scale is not None:
                    scale = tensor(
                        scope, elementwise(scope, "mul", [identity.scale, scale], span), span
                    )
                return Identity(scale)
    if fn in ("add", "sub"):
        matrices = [value for value in values if isinstance(value, Tensor)]
        if matrices and len(scope.visible(matrices[0])) == 2:
            rows, cols = scope.visible(matrices[0])
            return elementwise(
                scope,
                fn,
                [
                    identity_matrix(scope, v, rows, cols, span) if isinstance(v, Identity) else v
                    for v in values
                ],
                span,
            )
    raise scope.error("E0305", "`I` can be added to a matrix, scaled, or multiplied", span)


def identity_matrix(scope: Scope, value: Identity, rows: Axis, cols: Axis, span: Span) -> Tensor:
    """`I` with a size: square, or refused."""
    if rows.base != cols.base:
        raise scope.error(
            "E0305", f"`I` beside a matrix of shape [{rows}, {cols}], which is not square", span
        )
    delta = node(scope, ir.Delta(rows, cols), span=span)
    if value.scale is None:
        return delta
    return node(scope, ir.Elementwise("mul"), value.scale, delta, span=span)


def _check_streams(scope: Scope, tensors: Iterable[Tensor], span: Span) -> None:
    """Tokens of two sequences meet in an `attend`, nowhere else."""
    if scope.attend is not None:
        return
    streams: dict[str, Tensor] = {}
    for value in tensors:
        names = [axis.name for axis in value.axes if axis.kind == "stream"]
        if len(names) == 1:
            streams.setdefault(names[0], value)
    if len(streams) > 1:
        first, second = list(streams)[:2]
        raise scope.error(
            "E0306",
            f"values of two sequences, `{first}` and `{second}`, meet outside an `attend`",
            span,
            others=[
                (streams[first].origin, f"along `{first}`"),
                (streams[second].origin, f"along `{second}`"),
            ],
            helps=[f"read one from the other: `attend all {second}:`"],
        )


def _orientation(scope: Scope, fn: str, tensors: Sequence[Tensor], span: Span) -> bool:
    """Whether the result is a row; columns and rows, or columns of different axes, do not mix."""
    vectors = [value for value in tensors if len(scope.visible(value)) == 1]
    matrices = [value for value in tensors if len(scope.visible(value)) > 1]
    if vectors and matrices and fn in ("add", "sub"):
        if _reduced(scope, matrices[0], vectors[0]):
            return False
        raise _mixed_ranks(scope, fn, matrices[0], vectors[0], span)
    if fn in ("add", "sub") and len(matrices) == 2:
        _share_a_dim(scope, fn, matrices[0], matrices[1], span)
    for one in vectors:
        for other in vectors:
            a, b = scope.visible(one)[0], scope.visible(other)[0]
            if a.name != b.name and positional(one) and positional(other):
                continue
            if a.name != b.name or one.row != other.row:
                same = a.name == b.name
                kinds = "a column and a row" if same else f"columns over `{a}` and `{b}`"
                helps = [OUTER, THREE] if fn == "mul" and not same else [OUTER]
                if same and fn in ("add", "sub"):
                    helps = [UPRIGHT]
                raise _apart(scope, fn, kinds, (one, other), span, helps)
    return bool(vectors) and vectors[0].row and not matrices


def _reduced(scope: Scope, matrix: Tensor, vector: Tensor) -> bool:
    """Whether a function over a dim has made a vector from a matrix: `x - max[D](x)`."""
    names = {axis.name for axis in scope.visible(matrix)}
    inside = {axis.name for axis in scope.visible(vector)} <= names
    made = vector.frame is matrix.frame and scope.site is not None
    return made and inside and _made_of(vector, matrix)


def _share_a_dim(scope: Scope, fn: str, one: Tensor, other: Tensor, span: Span) -> None:
    """Refuse a sum of two matrices that have no dim in common: nobody means all pairs of both."""
    names = {axis.name for axis in scope.visible(one)}
    if names & {axis.name for axis in scope.visible(other)}:
        return
    first = scope.visible(other)[0]
    block = f"if `{first}` is a dim of heads, let the block be for each of them: `over {first}`"
    kinds = f"a matrix {shape(scope, one)} and a matrix {shape(scope, other)}"
    raise _apart(scope, fn, kinds, (one, other), span, [] if scope.hidden else [block])


def _mixed_ranks(scope: Scope, fn: str, matrix: Tensor, vector: Tensor, span: Span) -> Exception:
    """`S + k`: a paper that adds a vector to a matrix means an outer product."""
    kinds = f"a matrix {shape(scope, matrix)} and a vector {shape(scope, vector)}"
    (own,) = scope.visible(vector)
    rest = [axis.name for axis in scope.visible(matrix) if axis.name != own.name]
    helps = [OUTER]
    if fn in ("add", "sub") and len(rest) == 1:
        helps.append(EVERY.format(*rest))
    return _apart(scope, fn, kinds, (matrix, vector), span, helps)


def _apart(
    scope: Scope, fn: str, kinds: str, values: tuple[Tensor, Tensor], span: Span, helps: list[str]
) -> Exception:
    """The refusal of a function of two values of these kinds, whose dims do not go together."""
    others = [(each.origin, f"this is {shape(scope, each)}") for each in values]
    message = f"`{WORDS.get(fn, fn)}` of {kinds}"
    return scope.error("E0303", message, span, others=others, helps=helps)


def settle(axes: Iterable[Axis], taken: Collection[str] = ()) -> tuple[Axis, ...]:
    """Names of a result's axes: a lone `D'` is `D` again, of two one is `D'`; heads are `taken`."""
    settled: list[Axis] = []
    for axis in axes:
        name = axis.base
        while name in taken or name in {a.name for a in settled}:
            name += "'"
        settled.append(axis.renamed(name))
    return tuple(settled)


def fixed(scope: Scope, value: Tensor) -> list[Axis]:
    """The axes that are matched by name in every product: batch, streams, heads."""
    visible = {a.name for a in scope.visible(value)}
    return [a for a in value.axes if a.name not in visible]


def product(
    scope: Scope,
    a: Tensor,
    b: Tensor,
    pairs: Sequence[tuple[Axis, Axis]],
    span: Span,
    row: bool = False,
) -> Tensor:
    """Sum over the paired visible axes of a and b; what is left keeps its order, a before b."""
    a, b = scope.frame.bring(a), scope.frame.bring(b)
    common = {axis.name: axis for axis in (*fixed(scope, a), *fixed(scope, b))}
    labels_a = {axis.name: axis.name for axis in a.axes}
    joined = {y.name: x.name for x, y in pairs}
    labels_b = {
        axis.name: axis.name if axis.name in common else joined.get(axis.name, axis.name + "*")
        for axis in b.axes
    }
    summed = {x.name for x, _ in pairs}
    left = [(labels_a[x.name], x) for x in scope.visible(a) if x.name not in summed]
    right = [(labels_b[y.name], y) for y in scope.visible(b) if y.name not in joined]
    names = settle((axis for _, axis in (*left, *right)), scope.hidden)
    out = [*common.items(), *zip((label for label, _ in (*left, *right)), names, strict=True)]
    op = ir.Contract(
        (tuple(labels_a[x.name] for x in a.axes), tuple(labels_b[y.name] for y in b.axes)),
        arranged(out),
    )
    return node(scope, op, a, b, span=span, row=row)


def arranged(out: list[tuple[str, Axis]]) -> tuple[tuple[str, Axis], ...]:
    """Output labels with batch and streams first."""
    order = {"batch": 0, "stream": 1, "dim": 2}

    def key(entry: tuple[str, Axis]) -> tuple[int, bool, str]:
        axis = entry[1]
        named = axis.kind == "stream"
        return order[axis.kind], named and axis.name != "t", axis.name if named else ""

    return tuple(sorted(out, key=key))


def relabel(
    scope: Scope, value: Tensor, visible: Sequence[tuple[Axis, Axis]], span: Span
) -> Tensor:
    """A value with the visible axes in another order and under other names (old, new)."""
    value = scope.frame.bring(value)
    rest = [(axis.name, axis) for axis in fixed(scope, value)]
    out = arranged([*rest, *((old.name, new) for old, new in visible)])
    if tuple(axis for _, axis in out) == value.axes and all(o == n for o, n in visible):
        return value
    op = ir.Contract((value.type.names,), out)
    return node(scope, op, value, span=span, row=value.row)


def reduce(scope: Scope, fn: str, value: Tensor, axes: Sequence[Axis], span: Span) -> Tensor:
    """`fn` over axes; the sum of a product becomes a contraction."""
    value = scope.frame.bring(value)
    names = {axis.name for axis in axes}
    made = scope.frame.graph[value.node]
    if fn == "sum" and made.op == ir.Elementwise("mul") and value.type.dtype == "real":
        operands = [scope.frame.graph[operand] for operand in made.operands]
        kept = [axis for axis in value.axes if axis.name not in names]
        if all(o.type.dtype == "real" for o in operands) and made.operands[0] != made.operands[1]:
            op = ir.Contract(
                tuple(o.type.names for o in operands), tuple((axis.name, axis) for axis in kept)
            )
            tensors = [Tensor(scope.frame, operand) for operand in made.operands]
            return node(scope, op, *tensors, span=span)
    order = tuple(axis.name for axis in value.axes if axis.name in names)
    return node(scope, ir.Reduce(fn, order), value, span=span)


def settled(scope: Scope, value: Tensor, span: Span) -> Tensor:
    """A value whose lone primes are dropped."""
    before = scope.visible(value)
    after = settle(before, scope.hidden)
    if before == after:
        return value
    for old, new in zip(before, after, strict=True):
        if old != new and _is_split(value.frame.graph, value.node, old):
            _refuse_split(scope, value, old, span)
    return relabel(scope, value, list(zip(before, after, strict=True)), span)


def _is_split(graph: Graph, id: int, axis: Axis) -> bool:
    """Whether `split[K as K'](x)` made the axis K' of a value, or of one it is made of."""
    node = graph[id]
    if isinstance(node.op, ir.Reshape):
        return node.op.into == (axis,) and axis.base in graph[node.operands[0]].type.names
    return isinstance(node.op, ir.Elementwise) and any(
        _is_split(graph, each, axis) for each in node.operands
        if axis.name in graph[each].type.names
    )  # fmt: skip


def _refuse_split(scope: Scope, value: Tensor, axis: Axis, span: Span) -> None:
    """Refuse a split that would be undone in silence, beside a value along K or under a name."""
    named = f"`split[{axis.base} as J](x)`, with `J = {axis.base}` among the sizes"
    pairs = "`a @ b.T`" if scope.memory else f"a name of its own, {named}"
    raise scope.error(
        "E0303",
        f"`split` has made this along `{axis}`, and a lone `{axis}` is `{axis.base}` again here",
        span,
        others=[(value.origin, f"this is {shape(scope, value)}")],
        helps=[
            f"products of all pairs: {pairs}",
            f"beside a matrix [{axis.base}, {axis}], write the split in that expression",
        ],
    )

"""`@` and `.T`: one meaning everywhere, read with columns inside `recurrence` and `attend`."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.dims import Axis
from archc.elaborate import ops
from archc.elaborate.scope import Scope
from archc.elaborate.values import Identity, Tensor, Value
from archc.ir import layer as ir
from archc.source import Span


def joinable(x: Axis, y: Axis) -> bool:
    """Whether `@` may join two axes: the same name, primes apart."""
    return x.base == y.base


def matmul(scope: Scope, left: Value, right: Value, span: Span, spans: tuple[Span, Span]) -> Value:
    """`left @ right`."""
    if isinstance(left, Identity) or isinstance(right, Identity):
        return _times_identity(scope, left, right, span, spans)
    a = ops.tensor(scope, left, spans[0])
    b = ops.tensor(scope, right, spans[1])
    if _weighs(scope, a, b):
        return weigh(scope, a, b, span)
    if scope.memory or a.row or b.row:
        return _matrices(scope, a, b, span, spans)
    return _trailing(scope, a, b, span, spans)


def _times_identity(
    scope: Scope, left: Value, right: Value, span: Span, spans: tuple[Span, Span]
) -> Value:
    """`I @ S` is S; a scaled identity scales."""
    identity, other, at = (
        (left, right, spans[1]) if isinstance(left, Identity) else (right, left, spans[0])
    )
    assert isinstance(identity, Identity)
    if isinstance(other, Identity):
        if identity.scale is None:
            return other
        return ops.elementwise(scope, "mul", [identity.scale, other], span)
    value = ops.tensor(scope, other, at)
    if identity.scale is None:
        return value
    return ops.elementwise(scope, "mul", [identity.scale, value], span)


def _weighs(scope: Scope, a: Tensor, b: Tensor) -> bool:
    """Whether a is a weight for each token read, and b a value of the token read."""
    if scope.attend is None or scope.visible(a):
        return False
    read = scope.attend.read.name
    return read in a.type.names and read in b.type.names


def weigh(scope: Scope, weights: Tensor, value: Tensor, span: Span) -> Tensor:
    """The sum over the tokens read of weight times value; what may not be read weighs 0."""
    assert scope.attend is not None
    weights, value = scope.frame.bring(weights), scope.frame.bring(value)
    read = scope.attend.read.name
    if weights.node not in scope.attend.softmaxed:
        weights = masked(scope, weights, sympy.Integer(0), span)
    axes = {axis.name: axis for axis in (*ops.fixed(scope, weights), *ops.fixed(scope, value))}
    visible = [(axis.name, axis) for axis in scope.visible(value)]
    kept = [(name, axis) for name, axis in axes.items() if name != read]
    out = ops.arranged([*kept, *visible])
    return ops.node(
        scope,
        ir.Contract((weights.type.names, value.type.names), out),
        weights,
        value,
        span=span,
        row=value.row,
    )


def masked(scope: Scope, value: Tensor, fill: sympy.Expr, span: Span) -> Tensor:
    """The value where the token may be read, and `fill` elsewhere."""
    assert scope.attend is not None
    other = ops.constant(scope, fill, span)
    return ops.node(scope, ir.Elementwise("where"), scope.attend.mask, value, other, span=span)


def _matrices(scope: Scope, a: Tensor, b: Tensor, span: Span, spans: tuple[Span, Span]) -> Tensor:
    """The ordinary matrix product of columns, rows and matrices."""
    va, vb = scope.visible(a), scope.visible(b)
    for value, axes, at in ((a, va, spans[0]), (b, vb, spans[1])):
        if not 1 <= len(axes) <= 2:
            what = "a scalar" if not axes else f"of shape {ops.shape(scope, value)}"
            raise scope.error(
                "E0304" if axes else "E0301",
                f"`@` with `{at.text}`, which is {what}",
                span,
                others=[(value.origin, "from here")],
                helps=_instead(scope, a, b, axes, spans),
            )
    column_a = len(va) == 1 and not a.row
    row_b = len(vb) == 1 and b.row
    if column_a or row_b:
        if not (column_a and row_b):
            raise _mismatch(scope, a, b, span, spans)
        return ops.product(scope, a, b, [], span)
    if not joinable(va[-1], vb[0]):
        raise _mismatch(scope, a, b, span, spans)
    row = len(va) == 1 and len(vb) == 2
    return ops.product(scope, a, b, [(va[-1], vb[0])], span, row=row)


def _trailing(scope: Scope, a: Tensor, b: Tensor, span: Span, spans: tuple[Span, Span]) -> Tensor:
    """Join the trailing dims of a with equal leading dims of b; more than one way is refused."""
    va, vb = scope.visible(a), scope.visible(b)
    ways = _ways(va, vb)
    if not ways:
        raise _mismatch(scope, a, b, span, spans)
    if scope.rows and len(va) == len(vb) == 2 and 1 in ways:
        ways = [1]  # of two square matrices in a law, the matrix product
    if len(ways) > 1:
        options = [", ".join(axis.name for axis in va[-count:]) for count in ways]
        raise scope.error(
            "E0302",
            f"`@` of {ops.shape(scope, a)} and {ops.shape(scope, b)} can join more than one way",
            span,
            "over " + " or over ".join(f"`{text}`" for text in options),
            others=[(a.origin, f"{ops.shape(scope, a)}"), (b.origin, f"{ops.shape(scope, b)}")],
            helps=[
                "write the sum: " + " or ".join(f"`sum[{text}](... * ...)`" for text in options)
            ],
        )
    pairs = list(zip(va[-ways[0] :], vb[: ways[0]], strict=True))
    return ops.product(scope, a, b, pairs, span)


def _ways(left: Sequence[Axis], right: Sequence[Axis]) -> list[int]:
    """How many trailing dims may be joined with as many leading ones."""
    return [
        count
        for count in range(1, min(len(left), len(right)) + 1)
        if all(joinable(x, y) for x, y in zip(left[-count:], right[:count], strict=True))
    ]


def _of_heads(scope: Scope, axes: Sequence[Axis]) -> list[str]:
    """A help where a block is over no heads: the dim of two values that may be one of heads. It is
    none of the states', and none that stands twice."""
    names = [axis.base for axis in axes]
    primed = {axis.base for axis in axes if axis.name != axis.base}
    likely = [name for name in names if name not in scope.state_dims() | primed]
    if not scope.memory or scope.hidden or not likely or len(axes) < 4:
        return []
    name = max(likely, key=lambda name: (names.count(name), -names.index(name)))
    return [f"if `{name}` is a dim of heads, let the block be for each of them: `over {name}`"]


def _by_sums(axes: Sequence[Axis]) -> list[str]:
    """A help where a state of more dims is read as if it were a matrix."""
    if len(axes) < 3:
        return []
    dims = ", ".join(axis.name for axis in axes)
    return [f"a product of what has the dims {dims} is a sum by name: `sum[{axes[-2]}](a * b)`"]


def _of_groups(scope: Scope, left: Sequence[Axis], right: Sequence[Axis]) -> list[str]:
    """A help where a block is over heads, and one of two vectors has a dim more."""
    short, long = sorted((left, right), key=len)
    if not scope.hidden or scope.grouped is not None or (len(short), len(long)) != (1, 2):
        return []
    if short[0].base != long[1].base:
        return []
    return [f"if `{long[0]}` is a dim of groups of heads, say so: `grouped {long[0]}`"]


def _instead(
    scope: Scope, left: Tensor, right: Tensor, axes: Sequence[Axis], spans: tuple[Span, Span]
) -> list[str]:
    """The help for a product with a scalar, or with a value of more than two dims: one by names has
    its place in front of a block."""
    if len(axes) > 1:
        of_state = _of_state(scope, left) or _of_state(scope, right)
        by_names = of_state or len(_ways(scope.visible(left), scope.visible(right))) == 1
        written = f"`{spans[0].text} @ {spans[1].text}`"
        before = f"{written} has its value in front of the block, where dims are joined by name"
        if of_state:
            kept, *rest = axes
            dims = ", ".join(map(str, rest))
            before = (
                f"products of states are those of matrices: make one dim of the others, a state "
                f"[{kept}, F] of what is `merge[{dims} as F](x)` above the block"
            )
        sums = [] if by_names else ["name the sum: `sum[K](a * b)`"]
        return [*_of_heads(scope, axes), *([before] if by_names else sums)]
    if scope.attend is not None and scope.attend.read.name in left.type.names:
        return [f"a value of the token read has its index: `[{scope.attend.read}]`"]
    return ["scale with `*`"]


def _of_state(scope: Scope, value: Tensor) -> bool:
    """Whether a value is made of a state before the token."""
    graph = scope.frame.graph
    made = {value.node, *graph.ancestors(value.node)} if value.frame is scope.frame else set()
    return any(ref.before.node in made for ref in scope.states.values())


def _mismatch(
    scope: Scope, a: Tensor, b: Tensor, span: Span, spans: tuple[Span, Span]
) -> Exception:
    """Both sides, the dims that differ, and where each shape came from."""
    va, vb = scope.visible(a), scope.visible(b)
    sides = []
    for value, at in ((a, spans[0]), (b, spans[1])):
        kind = ""
        if (scope.memory or scope.rows) and len(scope.visible(value)) == 1:
            kind = "a row " if value.row else "a column "
        sides.append(f"`{at.text}` is {kind}{ops.shape(scope, value)}")
    label, others = "; ".join(sides), _origins(scope, a, b, spans)
    outer = ops.outer_scores(scope.frame.graph) if scope.attend is not None else []
    helps = outer or _joined(scope, a, b, spans)
    if not va or not vb:
        message, name = "has no dims, and `@` joins one", spans[1 if va else 0].text
        return scope.missing("E0301", name, message, span, label, helps, others)
    message = f"`@` cannot join `{va[-1]}` with `{vb[0]}`"
    return scope.error("E0301", message, span, label, others=others, helps=helps)


def _joined(scope: Scope, a: Tensor, b: Tensor, spans: tuple[Span, Span]) -> list[str]:
    """How two values that `@` cannot join may be multiplied."""
    va, vb = scope.visible(a), scope.visible(b)
    left, right = spans[0].text, spans[1].text
    if not va or not vb:
        return ["scale with `*`, or give it dims where it is declared: `x[d]`"]
    if scope.memory and len(va) == 1 == len(vb) and not a.row and not b.row:
        return [f"an inner product is `{left}.T @ {right}`, an outer product `{left} @ {right}.T`"]
    helps = [*_of_heads(scope, (*vb, *va)), *_of_groups(scope, va, vb)]
    if scope.memory and len(va) == 1 == len(vb) and a.row and not b.row and left.endswith(".T"):
        return [*helps, f"an outer product is `{left.removesuffix('.T')} @ {right}.T`"]
    if scope.memory and len(va) == 1 and not a.row and len(vb) == 2 and joinable(va[0], vb[0]):
        before = f"`{left} @ {right}` has its value in front of the block"
        return [f"write `{right}.T @ {left}`: a vector is a column here; {before}"]
    shared = [x.base for x in va if x.base in {y.base for y in vb}]
    if scope.memory and len(va) == 2 and joinable(va[0], vb[0]):
        turned = left.removesuffix(".T") if left.endswith(".T") else f"{left}.T"
        helps += [f"transpose the matrix: `{turned} @ {right}`"]
    elif not scope.memory and len(_ways(vb, va)) == 1:
        where = "the dims that are joined stand last on the left and first on the right"
        square = len(va) == 2 and va[0].base == va[1].base  # `M @ h` has rows of M, so `h @ M.T`
        helps += [f"write `{right} @ {left}{'.T' if square else ''}`: {where}"]
    elif shared:
        other = f"any other sum is written `sum[{shared[0]}](a * b)`"
        helps += [f"`@` joins trailing with leading dims; {other}"]
    return helps


def _origins(
    scope: Scope, a: Tensor, b: Tensor, spans: tuple[Span, Span]
) -> list[tuple[Span | None, str]]:
    """The places where each side got its shape, unless that is the expression itself."""
    found: list[tuple[Span | None, str]] = []
    for value, at in ((a, spans[0]), (b, spans[1])):
        origin = value.origin
        if origin is not None and (origin.start, origin.end) != (at.start, at.end):
            found.append((origin, f"{ops.shape(scope, value)} from here"))
    return found


def _no_row(axis: Axis) -> list[str]:
    """The help where there is no row: what is written in place of one."""
    return [
        "outside of `recurrence` and `attend`, no value is a row: leave `.T` out",
        f"products of all pairs have a second name for the dim: `x * split[{axis} as J](x)`",
    ]


def transpose(scope: Scope, value: Value, span: Span) -> Value:
    """`.T`: a column becomes a row; the two dims of a matrix change places."""
    if isinstance(value, Identity):
        return value
    tensor = ops.tensor(scope, value, span)
    axes = scope.visible(tensor)
    if (scope.memory or scope.rows) and len(axes) == 1:
        return Tensor(tensor.frame, tensor.node, not tensor.row, tensor.origin)
    if (scope.memory or scope.rows) and not axes:
        return tensor
    if len(axes) != 2:
        raise scope.error(
            "E0304",
            f"`.T` of a value of shape {ops.shape(scope, tensor)}",
            span,
            "`.T` is for two dims",
            others=[(tensor.origin, "from here")],
            helps=_of_heads(scope, axes) or _by_sums(axes)
            if scope.memory
            else _no_row(axes[0])
            if len(axes) == 1
            else [],
        )
    first, second = ops.settle((axes[1], axes[0]), scope.hidden)
    return ops.relabel(scope, tensor, [(axes[1], first), (axes[0], second)], span)

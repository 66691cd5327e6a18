"""The meaning of each op of a drawn program, beyond functions of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from tests.programs.named import (
    FUNCTIONS,
    TIME,
    TRUTH,
    WHOLE,
    Named,
    aligned,
    joined,
    real,
    renamed,
    spread,
)
from tests.programs.terms import Term

if TYPE_CHECKING:
    from tests.programs.meaning import World


def elementwise(world: World, term: Term) -> Named:
    """A function of each element."""
    values, names = aligned([world.value(arg) for arg in term.args])
    choices = values[1:] if term.op == "where" else values
    whole = term.op in WHOLE and all(x.dtype == torch.int64 for x in choices)
    if term.op in TRUTH | {"between"}:
        numbers = [real(x) for x in values]
    else:
        numbers = values if whole else [real(x) for x in values]
    return Named(FUNCTIONS[term.op](*numbers), names)


# --- leaves --------------------------------------------------------------------------------------


def name(world: World, term: Term) -> Named:
    return world.find(term.data[0])


def number(world: World, term: Term) -> Named:
    text = term.data[0]
    if text == "-inf":
        return Named(torch.tensor(-torch.inf, dtype=torch.float64), ())
    value = int(text) if text.isdigit() else float(text)
    return Named(torch.tensor(value, dtype=None if text.isdigit() else torch.float64), ())


def size(world: World, term: Term) -> Named:
    return Named(torch.tensor(world.size(term.data[0])), ())


def rounded(world: World, term: Term) -> Named:
    """`round_up(K, 4)`: the next multiple."""
    step = int(term.data[1])
    return Named(torch.tensor(-(-world.size(term.data[0]) // step) * step), ())


def index(world: World, term: Term) -> Named:
    dim = term.data[0]
    return Named(torch.arange(world.size(dim)), (world.dim(dim),))


def position(world: World, term: Term) -> Named:
    """The index of each token: that at hand in a recurrence."""
    if world.now is not None:
        return Named(torch.tensor(world.now), ())
    return Named(torch.arange(world.tokens), (TIME,))


def place(world: World, term: Term) -> Named:
    """`t` or `s` as a number."""
    if term.data[0] == world.read and f"@{world.read}" in world.env:
        return Named(torch.arange(world.env[f"@{world.read}"].data.shape[0]), (world.read,))
    if term.data[0] == world.read:
        return Named(torch.arange(world.tokens), (world.read,))
    return position(world, term)


def choice(world: World, term: Term) -> Named:
    """The branch that the options of the instance take."""
    return world.value(term.args[0] if term.data[1] else term.args[1])


# --- reductions and contractions -----------------------------------------------------------------


def reduce(world: World, term: Term) -> Named:
    """`sum[K, V](x)`; over the tokens read only those that may be."""
    fn, dims = term.data[0], [world.dim(dim) for dim in term.data[1].split(", ")]
    value = world.value(term.args[0])
    if world.read in dims and world.allowed is not None:
        neutral = {"sum": 0.0, "prod": 1.0, "max": -torch.inf, "min": torch.inf}[fn]
        (data, mask), names = aligned([value, world.allowed])
        value = Named(torch.where(mask, real(data), neutral), names)
    for dim in dims:
        at = value.names.index(dim)
        rest = (*value.names[:at], *value.names[at + 1 :])
        data = real(value.data) if fn == "mean" else value.data
        made = getattr(data, {"max": "amax", "min": "amin"}.get(fn, fn))(at)
        value = Named(made, rest)
    return value


def far(world: World, term: Term) -> Named:
    """The squared distance of two vectors."""
    (x, y), names = aligned([world.value(arg) for arg in term.args])
    at = names.index(world.dim(term.data[0]))
    return Named(((real(x) - real(y)) ** 2).sum(at), (*names[:at], *names[at + 1 :]))


def total(world: World, term: Term) -> Named:
    """The log of the sum of the weights of what may be read."""
    assert world.read is not None and world.allowed is not None
    (data, mask), names = aligned([world.value(term.args[0]), world.allowed])
    at = names.index(world.read)
    data = torch.where(mask, real(data), -torch.inf).logsumexp(at)
    return Named(data, (*names[:at], *names[at + 1 :]))


def softcap(world: World, term: Term) -> Named:
    value, cap = world.value(term.args[0]), float(term.data[0])
    return Named(cap * torch.tanh(real(value.data) / cap), value.names)


def group(world: World, term: Term) -> Named:
    """`sum[H in G](x)`: over the heads of each group."""
    fn, heads, groups = term.data
    value = world.value(term.args[0])
    at = value.names.index(heads)
    count = world.size(groups)
    data = value.data.unflatten(at, (count, world.size(heads) // count))
    made = getattr(data, {"max": "amax", "min": "amin"}.get(fn, fn))(at + 1)
    return Named(made, (*value.names[:at], groups, *value.names[at + 1 :]))


def matmul(world: World, term: Term) -> Named:
    """`x @ W` over the dims in the term's data."""
    a, b = (world.value(arg) for arg in term.args)
    left = [dim for arg in term.args for dim in arg.dims if dim not in term.data]
    return renamed(joined(a, b, [world.dim(dim) for dim in term.data]), by_place(left))


def by_place(dims: Sequence[str]) -> dict[str, str]:
    """Of two dims of one size the first is `K` and the second `K'`, however they were called."""
    settled: list[str] = []
    for dim in dims:
        name = dim.rstrip("'")
        settled.append(name + "'" * sum(name == each.rstrip("'") for each in settled))
    return dict(zip(dims, settled, strict=True))


def turned(world: World, term: Term) -> Named:
    """`.T` of two dims outside of a memory is another order of them, which names do not feel,
    unless they are `K` and `K'`."""
    value = world.value(term.args[0])
    first, second = term.args[0].dims
    if first.rstrip("'") == second.rstrip("'"):
        return renamed(value, {first: second, second: first})
    return value


def norm(world: World, term: Term) -> Named:
    """The norms of the library, and its softmax over a dim."""
    fn, dims = term.data[0], [world.dim(dim) for dim in term.data[1].split(", ")]
    value = world.value(term.args[0])
    x, at = real(value.data), [value.names.index(dim) for dim in dims]
    if fn == "l2norm":
        made = x / torch.sqrt((x * x).sum(at, keepdim=True) + 1e-6)
    elif fn == "rmsnorm":
        made = x / torch.sqrt((x * x).mean(at, keepdim=True) + 1e-6)
    elif fn == "layernorm":
        centred = x - x.mean(at, keepdim=True)
        made = centred / torch.sqrt((centred * centred).mean(at, keepdim=True) + 1e-5)
    else:
        made = torch.softmax(x, at[0])
    return Named(made, value.names)


def rope(world: World, term: Term) -> Named:
    """Each pair of elements turned by an angle that grows with the position."""
    half, dim, base = term.data[0] == "rope_half", world.dim(term.data[1]), float(term.data[2])
    value = world.value(term.args[0])
    count = world.size(dim)
    x = real(value.data).movedim(value.names.index(dim), -1)
    rest = tuple(name for name in value.names if name != dim)
    where = position(world, term)
    rates = base ** (-2 * torch.arange(count // 2, dtype=torch.float64) / count)
    angle = real(spread(where, rest))[..., None] * rates
    x = x.expand(torch.broadcast_shapes(x.shape, (*angle.shape[:-1], count)))
    first, second = (
        (x[..., : count // 2], x[..., count // 2 :]) if half else (x[..., ::2], x[..., 1::2])
    )
    one = first * torch.cos(angle) - second * torch.sin(angle)
    two = second * torch.cos(angle) + first * torch.sin(angle)
    made = torch.cat([one, two], -1) if half else torch.stack([one, two], -1).flatten(-2)
    return Named(made, (*rest, dim))


def sinkhorn(world: World, term: Term) -> Named:
    value = world.value(term.args[0])
    rows, cols = (value.names.index(dim) for dim in term.args[0].dims)
    x = torch.exp(real(value.data))
    for _ in range(int(term.data[0])):
        x = x / x.sum(cols, keepdim=True)
        x = x / x.sum(rows, keepdim=True)
    return Named(x, value.names)


def mixed(world: World, term: Term) -> Named:
    """`A @ X` of a square matrix: over its columns and the rows of X."""
    a, x = (world.value(arg) for arg in term.args)
    rows, columns = term.args[0].dims
    return joined(a, renamed(x, {rows: columns}), [columns])


def nll(world: World, term: Term) -> Named:
    """Minus the log probability of each target."""
    logits, target = (world.value(arg) for arg in term.args)
    dim = term.data[0]
    rest = tuple(n for n in logits.names if n != dim)
    logs = torch.log_softmax(spread(logits, (*rest, dim)), -1)
    places = spread(target, rest).expand(logs.shape[:-1])
    return Named(-logs.gather(-1, places[..., None])[..., 0], rest)


# --- cutting and joining dims --------------------------------------------------------------------


def join(world: World, term: Term) -> Named:
    """The entries of one value, then those of another."""
    first, second, dim = term.data
    values = [renamed(world.value(x), {own: dim}) for x, own in zip(
        term.args, (first, second), strict=True)]  # fmt: skip
    names = tuple(dict.fromkeys(n for v in values for n in v.names if n != dim))
    parts = [real(spread(v, (*names, dim))) for v in values]
    shape = torch.broadcast_shapes(*(x.shape[:-1] for x in parts))
    return Named(torch.cat([x.expand(*shape, x.shape[-1]) for x in parts], -1), (*names, dim))


def split(world: World, term: Term) -> Named:
    """One dim counted by two."""
    dim, first, second = term.data
    value = world.value(term.args[0])
    at = value.names.index(dim)
    data = value.data.unflatten(at, (world.size(first), world.size(second)))
    return Named(data, (*value.names[:at], first, second, *value.names[at + 1 :]))


def merge(world: World, term: Term) -> Named:
    """Two dims counted as one."""
    first, second, dim = term.data
    value = world.value(term.args[0])
    rest = tuple(n for n in value.names if n not in (first, second))
    return Named(spread(value, (*rest, first, second)).flatten(-2), (*rest, dim))


# --- choosing ------------------------------------------------------------------------------------


def take(world: World, term: Term) -> Named:
    """`take[K](x, i)`: x at the places i of K."""
    dim = world.dim(term.data[0])
    value, at = (world.value(arg) for arg in term.args)
    others = tuple(dict.fromkeys(n for n in (*value.names, *at.names) if n != dim))
    shape = [max(_length(value, n), _length(at, n)) for n in others]
    if dim in at.names:  # another order of the same dim
        others, shape = (*others, dim), [*shape, _length(at, dim)]
        data = spread(renamed(value, {dim: "@"}), (*others, "@")).expand(*shape, -1)
    else:
        data = spread(renamed(value, {dim: "@"}), (*others, "@")).expand(*shape, -1)
    places = spread(at, others).expand(shape)[..., None]
    return Named(data.gather(-1, places)[..., 0], others)


def _length(value: Named, dim: str) -> int:
    return value.data.shape[value.names.index(dim)] if dim in value.names else 1


def row(world: World, term: Term) -> Named:
    """`P[t]`: the row of a table at the token's position."""
    table, where = world.value(term.args[0]), position(world, term)
    at = table.names.index(term.args[0].dims[0])
    rest = (*table.names[:at], *table.names[at + 1 :])
    data = table.data.movedim(at, 0)[where.data]
    return Named(data, (*where.names, *rest))


def lookup(world: World, term: Term) -> Named:
    """`E[tokens]`: the rows of a table."""
    table, where = (world.value(arg) for arg in term.args)
    data = table.data.movedim(table.names.index(term.args[0].dims[0]), 0)[where.data]
    rest = tuple(n for n in table.names if n != term.args[0].dims[0])
    return Named(data, (*where.names, *rest))


def same(world: World, term: Term) -> Named:
    """The operand: dropout does nothing here, and `W[e]` keeps its dim of experts."""
    return world.value(term.args[0])


# --- along the tokens ----------------------------------------------------------------------------


def shift(world: World, term: Term) -> Named:
    """`x[t-2]`: an earlier token, zeros before the first."""
    value = world.env[term.args[0].data[0]]
    value = world.shared(value)
    at, steps = value.names.index(TIME), int(term.data[0])
    data = value.data.movedim(at, 0)
    rest = (*value.names[:at], *value.names[at + 1 :])
    if world.now is not None:
        zero = torch.zeros_like(data[0])
        return Named(data[world.now - steps] if world.now >= steps else zero, rest)
    zeros = data.new_zeros((min(steps, len(data)), *data.shape[1:]))
    return Named(torch.cat([zeros, data[: max(0, len(data) - steps)]]), (TIME, *rest))


def window(world: World, term: Term) -> Named:
    """`window[W](x)`: the W latest tokens, oldest first."""
    value = world.value(term.args[0])
    at, count = value.names.index(TIME), world.size(term.data[0])
    data = value.data.movedim(at, 0)
    rest = (*value.names[:at], *value.names[at + 1 :])
    padded = torch.cat([data.new_zeros((count - 1, *data.shape[1:])), data])
    rows = [padded[i : i + len(data)] for i in range(count)]
    return Named(torch.stack(rows, 1), (TIME, world.dim(term.data[0]), *rest))


def shortconv(world: World, term: Term) -> Named:
    """A causal convolution of each channel: the last tap meets the token itself."""
    width = term.args[1].dims[-1]
    run = window(world, Term("window", term.args[:1], (width,)))
    return joined(run, world.value(term.args[1]), [width])


# --- the memory scope ----------------------------------------------------------------------------


def state(world: World, term: Term) -> Named:
    name, when = term.data
    return world.env[f"{name}[t-1]" if when == "t-1" else name]


def outer(world: World, term: Term) -> Named:
    """`k @ v.T`."""
    a, b = (world.value(arg) for arg in term.args)
    return joined(a, renamed(b, {term.args[1].dims[0]: term.dims[1]}), [])


def inner(world: World, term: Term) -> Named:
    a, b = (world.value(arg) for arg in term.args)
    return joined(a, b, [term.args[0].dims[0]])


def mv(world: World, term: Term) -> Named:
    """`S @ x`: over the second dim of S."""
    a, b = (world.value(arg) for arg in term.args)
    cols = term.args[0].dims[1]
    b = renamed(b, {term.args[1].dims[0]: "@"})
    return joined(renamed(a, {cols: "@"}), b, ["@"])


def tmv(world: World, term: Term) -> Named:
    """`S.T @ x`: over the first dim of S."""
    a, b = (world.value(arg) for arg in term.args)
    rows, cols = term.args[0].dims
    made = joined(renamed(a, {rows: "@"}), renamed(b, {term.args[1].dims[0]: "@"}), ["@"])
    return renamed(made, {cols: cols.rstrip("'")})


def mm(world: World, term: Term) -> Named:
    """`A @ S`: over the second dim of A and the first of S."""
    a, b = (world.value(arg) for arg in term.args)
    (rows, mid), (first, cols) = term.args[0].dims, term.args[1].dims
    a = renamed(a, {rows: "@rows", mid: "@"})
    b = renamed(b, {first: "@", cols: "@cols"})
    return renamed(joined(a, b, ["@"]), {"@rows": term.dims[0], "@cols": term.dims[1]})


def one_minus(world: World, term: Term) -> Named:
    value = world.value(term.args[0])
    rows, cols = term.dims
    return _combined(_eye(world, rows, cols), value, lambda a, b: a - b)


def one_plus(world: World, term: Term) -> Named:
    value = world.value(term.args[0])
    rows, cols = term.dims
    scaled = Named(_eye(world, rows, cols).data * float(term.data[0]), (rows, cols))
    return _combined(scaled, value, lambda a, b: a + b)


def _eye(world: World, rows: str, cols: str) -> Named:
    return Named(torch.eye(world.size(rows), dtype=torch.float64), (rows, cols))


def _combined(a: Named, b: Named, fn: Callable[..., torch.Tensor]) -> Named:
    values, names = aligned([a, b])
    return Named(fn(*values), names)


def diag(world: World, term: Term) -> Named:
    rows, cols = term.dims
    return _combined(world.value(term.args[0]), _eye(world, rows, cols), lambda a, b: a * b)


def solve(world: World, term: Term) -> Named:
    """z with A z = b."""
    a, b = (world.value(arg) for arg in term.args)
    rows, cols = term.args[0].dims
    rest = tuple(dict.fromkeys(n for n in (*a.names, *b.names) if n not in (rows, cols)))
    matrix, right = spread(a, (*rest, rows, cols)), spread(b, (*rest, rows))[..., None]
    shape = torch.broadcast_shapes(matrix.shape[:-2], right.shape[:-2])
    matrix = matrix.expand(*shape, *matrix.shape[-2:])
    right = right.expand(*shape, *right.shape[-2:])
    return Named(torch.linalg.solve(matrix, right)[..., 0], (*rest, rows))


# --- in an attend --------------------------------------------------------------------------------


def at(world: World, term: Term) -> Named:
    """`k[s]`, `w[r]`: of another token; `k[b]` in `blocks`: the tokens of a block."""
    variable = term.data[0]
    if f"@blocks {variable}" in world.env:
        return _in_blocks(world, world.value(term.args[0]), variable)
    if variable == TIME:
        return world.value(term.args[0])
    return renamed(world.value(term.args[0]), {TIME: variable})


def _in_blocks(world: World, value: Named, variable: str) -> Named:
    known = world.env[f"@blocks {variable}"]
    (size, stride), (width,) = known.data.tolist(), known.names
    place = value.names.index(TIME)
    data = value.data.movedim(place, 0)
    rest = (*value.names[:place], *value.names[place + 1 :])
    count = max(0, (len(data) - size) // stride + 1)
    rows = [data[b * stride : b * stride + size] for b in range(count)]
    made = torch.stack(rows) if rows else data.new_zeros((0, size, *data.shape[1:]))
    return Named(made, (variable, width, *rest))


def softmax(world: World, term: Term) -> Named:
    """Weights of the tokens read; a sink is one more score, whose weight goes nowhere."""
    score = world.value(term.args[0])
    assert world.allowed is not None
    sinks = [world.value(arg) for arg in term.args[1:]]
    (data, mask, *sink), names = aligned([score, world.allowed, *sinks])
    dim = names.index(world.read)
    data = torch.where(mask, real(data), -torch.inf)
    shape = torch.broadcast_shapes(data.shape, *(x.shape for x in sink))
    data = data.expand(*(n if i != dim else data.shape[dim] for i, n in enumerate(shape)))
    if sink:
        extra = real(sink[0]).expand(*(n if i != dim else 1 for i, n in enumerate(shape)))
        data = torch.cat([data, extra], dim)
    empty = (data == -torch.inf).all(dim, keepdim=True)
    made = torch.where(empty, 0.0, torch.softmax(torch.where(empty, 0.0, data), dim))
    made = made.narrow(dim, 0, made.shape[dim] - len(sink))
    return Named(made, names)


def weigh(world: World, term: Term) -> Named:
    """`p @ v[s]`: the sum over the tokens read, of which those that may not be weigh nothing."""
    weights, value = (world.value(arg) for arg in term.args)
    assert world.allowed is not None
    (data, mask), names = aligned([weights, world.allowed])
    return joined(Named(torch.where(mask, real(data), 0.0), names), value, [world.read])


def along(world: World, term: Term) -> Named:
    """`sum r in (s, t]: x`, `product r in (s, t]: M`: between the token read and the reader."""
    value = world.value(term.args[0])
    count = world.tokens
    if term.data[0] == "sum":
        at = torch.arange(count)
        t, s, r = at[:, None, None], at[:, None], at
        inside = Named(((s < r) & (r <= t)).double(), (TIME, world.read, "r"))
        return joined(value, inside, ["r"])
    rows, cols = term.dims
    rest = tuple(n for n in value.names if n not in ("r", rows, cols))
    matrices = spread(value, ("r", *rest, rows, cols))
    eye = torch.eye(world.size(rows), dtype=torch.float64).expand(matrices.shape[1:])
    made = []
    for s in range(count):
        row, product = [], eye
        for t in range(count):
            product = product @ matrices[t] if t > s else eye
            row.append(product)
        made.append(torch.stack(row))
    return Named(torch.stack(made), (world.read, TIME, *rest, rows, cols))


def of_reader(world: World, term: Term) -> Named:
    """`z[r]`: what a token has for one of those that it reads."""
    return renamed(world.value(term.args[0]), {world.read: "r"})


def through(world: World, term: Term) -> Named:
    """`k[s].T @ P @ q[t]`."""
    k, p, q = (world.value(arg) for arg in term.args)
    rows, cols = term.args[1].dims
    left = joined(renamed(k, {term.args[0].dims[0]: rows}), p, [rows])
    return joined(left, renamed(q, {term.args[2].dims[0]: cols}), [cols])


def chosen(world: World, term: Term) -> Named:
    """`top(n, score)` along the last dim, or the tokens read."""
    from tests.programs.meaning import best

    return best(world.value(term.args[0]), term.data[1], world.number(term.data[0]))


def chosen_blocks(world: World, term: Term) -> Named:
    """`top(n, score on blocks of pick always first and last m)`, and which tokens these hold. Of
    small blocks themselves (`pick` is none) the scores are as they are."""
    from tests.programs.meaning import best

    count, pick, _, b, size, stride, first, last = term.data
    score = _with_a_block(world.value(term.args[0]), b)
    width, step = world.number(size), world.number(stride)
    t, starts = torch.arange(world.tokens), torch.arange(_length(score, b)) * step
    if pick is None:
        held = (t[None] >= starts[:, None]) & (t[None] < starts[:, None] + width)
        complete = Named(starts[None] + width - 1 <= t[:, None], (TIME, b))
        (taken, done), names = aligned([best(score, b, world.number(count)), complete])
        return _holding(Named(taken & done, names), b, held)
    large = world.number(pick)
    c = torch.arange(-(-world.tokens // large)) * large
    shared = torch.minimum(starts[:, None] + width, c + large) - torch.maximum(starts[:, None], c)
    overlap = Named(shared.clamp(min=0) / step, (b, "@c"))
    known = Named((score.data > -torch.inf).double(), score.names)
    total = joined(Named(torch.where(known.data > 0, score.data, 0.0), score.names), overlap, [b])
    data = torch.where(joined(known, overlap, [b]).data > 0, total.data, -torch.inf)
    now, at = (t // large)[:, None], torch.arange(len(c))[None]
    always = ((at == 0) & bool(first)) | ((at > now - int(last)) & bool(last))
    (x, forced, seen), names = aligned(
        [Named(data, total.names), Named(always, (TIME, "@c")), Named(at <= now, (TIME, "@c"))]
    )
    x = torch.where(seen, torch.where(forced, torch.inf, x), -torch.inf)
    held = t[None] // large == torch.arange(len(c))[:, None]
    return _holding(best(Named(x, names), "@c", world.number(count)), "@c", held)


def _with_a_block(score: Named, b: str) -> Named:
    """Where no block is complete, the score 0 of one, as the first tokens of longer texts have."""
    if _length(score, b) > 0:
        return score
    shape = [
        max(1, n) if name == b else n for n, name in zip(score.data.shape, score.names, strict=True)
    ]
    return Named(score.data.new_zeros(shape), score.names)


def _holding(chosen: Named, axis: str, held: torch.Tensor) -> Named:
    """The tokens in any of the chosen blocks."""
    found = joined(chosen, Named(held, (axis, "s")), [axis])
    return Named(found.data > 0, found.names)


def normalised(world: World, term: Term) -> Named:
    """p of the chosen, divided by their sum."""
    assert world.chosen is not None
    (p, c), names = aligned([world.value(term.args[0]), world.chosen])
    kept = torch.where(c, real(p), 0.0)
    return Named(kept / kept.sum(names.index(term.data[0]), keepdim=True), names)


MEANING: Mapping[str, Callable[[World, Term], Named]] = {
    "name": name, "number": number, "size": size, "sizeof": size, "index": index,
    "position": position, "place": place, "choice": choice, "reduce": reduce, "group": group,
    "matmul": matmul, "turned": turned, "norm": norm, "rope": rope, "sinkhorn": sinkhorn,
    "take": take, "row": row, "lookup": lookup, "expert": same, "dropout": same, "shift": shift,
    "window": window, "shortconv": shortconv, "state": state, "outer": outer, "inner": inner,
    "far": far, "total": total,
    "mv": mv, "tmv": tmv, "mm": mm, "one_minus": one_minus, "one_plus": one_plus, "diag": diag,
    "solve": solve, "at": at, "softmax": softmax, "softmax_sink": softmax, "weigh": weigh,
    "softcap": softcap, "along": along, "through": through, "chosen": chosen,
    "normalised": normalised, "rounded": rounded, "mixed": mixed, "nll": nll, "join": join,
    "split": split, "merge": merge, "of_reader": of_reader, "chosen_blocks": chosen_blocks,
}  # fmt: skip

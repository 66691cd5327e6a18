"""A small program for each way to steer a program, and for joins: what lowering needs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from archc.tile.compose import Composer, Tile
from tests.tile.cases import Case
from tests.tile.sized import dim

ROWS, COLUMNS = 16, 32


def drawn(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scanned(reverse: bool) -> Case:
    """h[t] = a[t] h[t - 1] + b[t] from 0, `reverse` from the last token on, and the running maximum
    of a max-plus recurrence, by two joins; a lacks a dim."""
    k = Composer("scanned_back" if reverse else "scanned", "Linear and max-plus recurrences.")
    a, b = k.buffer("a", t=ROWS), k.buffer("b", t=ROWS, d=COLUMNS)
    h, m = (k.buffer(name, t=ROWS, d=COLUMNS) for name in "hm")
    t, d = k.iota("t", ROWS), k.iota("d", COLUMNS)
    given = k.load(a, t), k.load(b, t, d)

    def linear(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return x[0] * y[0], y[0] * x[1] + y[1]

    def max_plus(x: tuple[Tile, ...], y: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return x[0] + y[0], k.apply("max", y[0] + x[1], y[1])

    for buffer, join in ((h, linear), (m, max_plus)):
        k.store(buffer, t, d, value=k.scan(join, "t", *given, reverse=reverse)[1])
    a_t, b_t = drawn(ROWS).sigmoid(), drawn(ROWS, COLUMNS)
    wanted: dict[str, list[Tensor]] = {"h": [], "m": []}
    turns = [*range(ROWS)][:: -1 if reverse else 1]
    state, top = torch.zeros(COLUMNS).double(), torch.full((COLUMNS,), -torch.inf).double()
    for turn in turns:
        state = a_t[turn].double() * state + b_t[turn].double()
        top = torch.maximum(top + a_t[turn].double(), b_t[turn].double())
        wanted["h"].append(state)
        wanted["m"].append(top)
    expected = {name: torch.stack(rows[:: -1 if reverse else 1]) for name, rows in wanted.items()}
    empty = {name: torch.zeros(ROWS, COLUMNS) for name in "hm"}
    return Case(k.done(), {"a": a_t, "b": b_t, **empty}, {}, {}, expected)


def optional(there: bool) -> Case:
    """y = x bias, where there is a bias: a branch that gives a value."""
    k = Composer("biased" if there else "unbiased", "y = x + bias, or x where there is none.")
    x, y = k.buffer("x", n=ROWS), k.buffer("y", n=ROWS)
    bias = k.buffer("bias", n=ROWS, optional=True, strided=True)
    n = k.iota("n", ROWS)
    b_x = k.load(x, n)
    with k.branch(k.given(bias)) as found:
        found.give(b_x + k.load(bias, n))
    with k.otherwise(found) as missing:
        missing.give(b_x * 1.0)
    k.store(y, n, value=found.results[0])
    given = drawn(ROWS), drawn(2 * ROWS, seed=2)[::2]
    tensors = {"x": given[0], "y": torch.zeros(ROWS)} | ({"bias": given[1]} if there else {})
    wanted = given[0].double() + (given[1].double() if there else 0.0)
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def nested() -> Case:
    """Sums of rows by a loop in a loop: the inner one begins from 0 at every turn. Two values of
    different dtypes are carried."""
    k = Composer("nested", "Sums of rows.")
    x, y = k.buffer("x", r=ROWS, c=COLUMNS), k.buffer("y", r=ROWS)
    count = k.buffer("count", r=ROWS, dtype="i64")
    zero, none = k.full(0.0).named("zero"), k.full(0, dtype="i64")
    zeros = k.full(0.0, dim("half", 2)).named("zeros")
    with k.loop(0, ROWS, index="r") as row:
        with k.loop(0, COLUMNS, zeros, zero, none, index="c") as turn:
            b_x = k.load(x, row.index, turn.index)
            parts, total, seen = turn.carried
            turn.next(parts + b_x, total + b_x, seen + 1)
        parts, total, seen = turn.results
        k.store(y, row.index, value=parts.sum("half") - total)
        k.store(count, row.index, value=seen)
    given = drawn(ROWS, COLUMNS)
    empty = {"y": torch.zeros(ROWS), "count": torch.zeros(ROWS, dtype=torch.int64)}
    expected = {"y": given.double().sum(1), "count": torch.full((ROWS,), float(COLUMNS))}
    return Case(k.done(), {"x": given, **empty}, {}, {}, expected)


def solved() -> Case:
    """z of A z = b by conjugate gradients that stop as soon as the rest is small: a loop that goes
    on while something holds, of programs that stop at different turns."""
    k = Composer("solved", "z of A z = b.")
    A, b = k.buffer("A", p=3, r=ROWS, c=ROWS), k.buffer("b", p=3, c=ROWS)
    z, turns = k.buffer("z", p=3, c=ROWS), k.buffer("turns", p=3, dtype="i32")
    p, r, c = k.program("p", 3), k.iota("r", ROWS), k.iota("c", ROWS)
    matrix, right = k.load(A, p, r, c), k.load(b, p, c).named("right")
    size = (right * right).sum("c").named("size")
    start = k.full(0.0, dim("c", ROWS)), right, right, size, k.full(0, dtype="i32")
    with k.repeat(size > 0.0, *start, most=ROWS) as turn:
        found, rest, way, left, count = turn.carried
        y = (matrix * way).sum("c").along(r="c")
        scale = left / (way * y).sum("c")
        rest = rest - scale * y
        after = (rest * rest).sum("c")
        way_next = rest + after / left * way
        turn.next(after > size * 1e-12, found + scale * way, rest, way_next, after, count + 1)
    k.store(z, p, c, value=turn.results[0])
    k.store(turns, p, value=turn.results[4])
    matrices = torch.stack([torch.eye(ROWS) * n for n in (1.0, 2.0, 3.0)])
    matrices[2, 0, 0] = 7.0  # two different eigenvalues: two turns
    given = drawn(3, ROWS)
    given[1] = 0  # nothing to do
    wanted = torch.linalg.solve(matrices.double(), given.double())
    tensors = {"A": matrices, "b": given, "z": torch.zeros(3, ROWS)}
    tensors["turns"] = torch.full((3,), -7, dtype=torch.int32)
    return Case(k.done(), tensors, {}, {}, {"z": wanted, "turns": torch.tensor([1.0, 0.0, 2.0])})


def shared_words() -> Case:
    """Values that are called as arguments, functions and keywords are."""
    k = Composer("shared_words", "y = max of x so far, plus 0.")
    (N,) = k.sizes("N")
    x, y = k.buffer("x", n=N, c=2, strided=True), k.buffer("y", n=N)
    n = k.iota("n", ROWS).named("x_n")
    tl = k.load(x, n, 0).named("tl")
    joined = k.apply("max", tl, 0.0).named("join_max").scan("max", "n").named("lambda")
    k.store(y, n, value=joined)
    given = drawn(ROWS, 2)
    wanted = given[:, 0].double().clamp(min=0).cummax(0)[0]
    tensors = {"x": given, "y": torch.zeros(ROWS)}
    return Case(k.done(), tensors, {"N": ROWS}, {}, {"y": wanted})


def written_and_read() -> Case:
    """y = x turned around, through memory: a program waits for its own threads."""
    k = Composer("written_and_read", "y[n] = x[N - 1 - n] by way of z.")
    x, y, z = (k.buffer(name, n=ROWS) for name in "xyz")
    n = k.iota("n", ROWS)
    k.store(z, n, value=k.load(x, n))
    k.sync()
    k.store(y, n, value=k.load(z, ROWS - 1 - n))
    given = drawn(ROWS)
    tensors = {"x": given, "y": torch.zeros(ROWS), "z": torch.zeros(ROWS)}
    return Case(k.done(), tensors, {}, {}, {"y": given.flip(0).double()})


def triangles() -> Case:
    """Masks with their dims in another order than the indices'; and numbers of 64 bits."""
    k = Composer("triangles", "y = x below the diagonal, -1 elsewhere.")
    x, y = (k.buffer(name, r=ROWS, c=ROWS) for name in "xy")
    large = k.buffer("large", r=ROWS, dtype="i64")
    r, c = k.iota("r", ROWS), k.iota("c", ROWS)
    mask = c < r
    assert mask.value.type.names == ("c", "r")
    k.store(y, r, c, value=k.load(x, r, c, where=[mask], fill=-1.0))
    k.store(large, r, value=k.full(1 << 28, dtype="i64") * r)
    given = drawn(ROWS, ROWS)
    wanted = torch.where(torch.ones(ROWS, ROWS).tril(-1) > 0, given, -1.0).double()
    tensors = {"x": given, "y": torch.zeros(ROWS, ROWS)}
    tensors["large"] = torch.zeros(ROWS, dtype=torch.int64)
    places = torch.arange(ROWS, dtype=torch.float64) * (1 << 28)
    return Case(k.done(), tensors, {}, {}, {"y": wanted, "large": places})


def functions() -> Case:
    """Powers, remainders and quotients of real numbers, and a product along a dim."""
    k = Composer("functions", "Functions that Triton lacks.")
    x, y = k.buffer("x", n=ROWS), k.buffer("y", f=4, n=ROWS)
    n = k.iota("n", ROWS)
    b_x = k.load(x, n)
    made = [
        k.apply("pow", b_x, 3.0), b_x % 0.7, b_x // 0.7,
        b_x.reduce("product", "n").over(dim("n", ROWS)),
    ]  # fmt: skip
    for place, value in enumerate(made):
        k.store(y, place, n, value=value)
    given = drawn(ROWS)
    e = given.double()
    rows = (e**3, e % 0.7, (e / 0.7).floor(), e.prod().expand(ROWS))
    tensors = {"x": given, "y": torch.zeros(4, ROWS)}
    return Case(k.done(), tensors, {}, {}, {"y": torch.stack(rows)})


def counted_some() -> Case:
    """Atomics with a mask, and a value that lacks a dim of the indices."""
    k = Composer("counted_some", "Counts of what is above 2.")
    x, y = k.buffer("x", n=64, dtype="i32"), k.buffer("y", n=8, dtype="i32")
    found = k.load(x, k.program("p", 4) * 16 + k.iota("n", 16))
    k.atomic(y, found, value=k.full(1, dtype="i32"), where=[found > 2])
    given = torch.randint(0, 8, (64,), generator=torch.Generator().manual_seed(2)).int()
    wanted = torch.bincount(given, minlength=8).double()
    wanted[:3] = 0
    tensors = {"x": given, "y": torch.zeros(8, dtype=torch.int32)}
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def blocks_of_two_shapes() -> Case:
    """A tensor in blocks of two shapes: each has its own descriptor."""
    k = Composer("blocks_of_two_shapes", "Sums of blocks of x, by rows.")
    x, y = k.buffer("x", r=32, c=COLUMNS), k.buffer("y", m=2, r=16)
    wide = k.load_block(x, 0, 0, r=dim("r", 16), c=dim("c", COLUMNS))
    small = k.load_block(x, 16, 16, r=dim("r", 16), c=dim("c", 16))
    for place, tile in enumerate((wide, small)):
        k.store(y, place, k.iota("r", 16), value=tile.sum("c"))
    given = drawn(32, COLUMNS)
    wanted = torch.stack([given[:16].double().sum(1), given[16:, 16:].double().sum(1)])
    return Case(k.done(), {"x": given, "y": torch.zeros(2, 16)}, {}, {}, {"y": wanted})


def of_constants() -> Case:
    """A branch on constants: what is not taken is no machine code."""
    k = Composer("of_constants", "y = x in blocks, if they are short.")
    (BLOCK,) = k.lengths("BLOCK")
    x, y = k.buffer("x", n=ROWS), k.buffer("y", n=ROWS)
    n = k.iota("n", ROWS)
    with k.branch(k.lift(BLOCK) > 2) as large:
        large.give(k.load(x, n).shaped(dim("m", 4), dim("n", 4)).sum("n"))
    with k.otherwise(large) as short:
        short.give(k.load(x, n).shaped(dim("m", 4), dim("n", 4)).max("n"))
    k.store(y, k.iota("m", 4), value=large.results[0])
    given = drawn(ROWS)
    wanted = torch.cat([given.double().reshape(4, 4).sum(1), torch.zeros(12)])
    return Case(k.done(), {"x": given, "y": torch.zeros(ROWS)}, {}, {"BLOCK": 4}, {"y": wanted})


def exact_dot(dot: str, precision: str) -> Case:
    """x x^T in float32, whatever the products are in: of float16 the nearest number and the
    nearest to the rest are multiplied; and a precision that is chosen at launch."""
    k = Composer(f"exact_dot_{dot}", "Products in two parts, where they are in float16.")
    (DOT,), (PRECISION,) = k.dtypes("DOT"), k.precisions("PRECISION")
    x, y = k.buffer("x", r=ROWS, c=COLUMNS), k.buffer("y", r=ROWS, q=ROWS)
    r, q = k.iota("r", ROWS), k.iota("q", ROWS)
    tile = k.load(x, r, k.iota("c", COLUMNS))
    with k.branch(k.chosen(DOT, "f32")) as whole:
        whole.give(tile.dot(tile.along(r="q"), precision=PRECISION))
    with k.otherwise(whole) as parts:
        near = tile.to(DOT)
        rest = (tile - near.to("f32")).to(DOT)
        made = near.dot(near.along(r="q"))
        made = rest.dot(near.along(r="q"), made)
        parts.give(near.dot(rest.along(r="q"), made))
    with k.branch(k.chosen(PRECISION, "ieee")):
        k.store(y, r, q, value=whole.results[0])
    given = drawn(ROWS, COLUMNS)
    constants: dict[str, int | str] = {"DOT": dot, "PRECISION": precision}
    wanted = given.double() @ given.double().T
    return Case(k.done(), {"x": given, "y": torch.zeros(ROWS, ROWS)}, {}, constants, {"y": wanted})


def by_length(most: int) -> Case:
    """A branch on lengths of blocks, in the dtype that a buffer has at launch."""
    k = Composer(f"by_length_{most}", "Twice x where the block is short, else x.")
    (BLOCK,) = k.lengths("BLOCK")
    x, y = k.buffer("x", r=ROWS, dtype="@x"), k.buffer("y", r=ROWS)
    r = k.iota("r", BLOCK)
    tile = k.load(x, r).to("f32")
    with k.branch(k.at_most(2 * BLOCK, most)) as short:
        short.give(2.0 * tile)
    with k.otherwise(short) as long:
        long.give(tile)
    k.store(y, r, value=short.results[0])
    given = drawn(ROWS)
    wanted = given.double() * (2 if most >= 2 * ROWS else 1)
    return Case(k.done(), {"x": given, "y": torch.zeros(ROWS)}, {}, {"BLOCK": ROWS}, {"y": wanted})


CONTROL: Mapping[str, Callable[[], Case]] = {
    "scanned": lambda: scanned(False),
    "scanned_back": lambda: scanned(True),
    "biased": lambda: optional(True),
    "unbiased": lambda: optional(False),
    "short": lambda: by_length(2 * ROWS),
    "long": lambda: by_length(2 * ROWS - 1),
    "nested": nested,
    "solved": solved,
    "shared_words": shared_words,
    "written_and_read": written_and_read,
    "triangles": triangles,
    "functions": functions,
    "counted_some": counted_some,
    "blocks_of_two_shapes": blocks_of_two_shapes,
    "of_constants": of_constants,
    "exact_dot_f32": lambda: exact_dot("f32", "ieee"),
    "exact_dot_f16": lambda: exact_dot("f16", "ieee"),
}

"""Functions that printed tile programs call."""

from __future__ import annotations

from archc.runtime.jit import kernel
from archc.runtime.optional import tl


@kernel
def grid_barrier(counter_p, before):
    """Wait until every program of the launch has come here `before` + 1 times.

    `counter_p` is one integer that was 0 at launch. What a program wrote before the barrier, all
    others read after it. All programs must be on the GPU at once (`launch_cooperative_grid`).
    """
    wanted = (before + 1) * tl.num_programs(0)
    tl.debug_barrier()  # every warp's stores are made before one thread says so
    tl.atomic_add(counter_p, 1, sem="acq_rel", scope="gpu")
    while tl.atomic_add(counter_p, 0, sem="acq_rel", scope="gpu") < wanted:
        pass
    tl.debug_barrier()


@kernel
def grid_place(second, third=None, fourth=None, fifth=None):
    """The place of a program along each axis of its grid: how many places there are along the
    second and those after it, of which the last goes fastest."""
    program = tl.program_id(0)
    if third is None:
        found = program // second, program % second
    elif fourth is None:
        rest = program // third
        found = rest // second, rest % second, program % third
    elif fifth is None:
        few = program // fourth
        rest = few // third
        found = rest // second, rest % second, few % third, program % fourth
    else:
        many = program // fifth
        few = many // fourth
        rest = few // third
        found = rest // second, rest % second, few % third, many % fourth, program % fifth
    return found


@kernel
def along(count: tl.constexpr, size, first=0):
    """The places of a block along a dim, and which of them are inside, of which the block has those
    from `first` on."""
    i = tl.arange(0, count)
    return i, first + i < size


@kernel
def table_row(table_p, place, tokens, chunks, batch):
    """A row of a table of sequences or segments: which one it is of, the token that a chunk 0 of
    that would begin with, its first token and the one after its last, the same of its chunks, its
    row of the batch, and whether it is of any; what it is and its row in 64 bits. Without a table:
    what row `batch` of the batch is.
    """
    base, start, end, low, high, live = 0, 0, tokens, 0, chunks, tl.full((), 1, tl.int1)
    sequence, row = tl.cast(batch, tl.int64), tl.cast(batch, tl.int64)
    if table_p is not None:
        at = table_p + tl.cast(place, tl.int64) * 7
        sequence, base = tl.cast(tl.load(at), tl.int64), tl.cast(tl.load(at + 1), tl.int32)
        start, end = tl.cast(tl.load(at + 2), tl.int32), tl.cast(tl.load(at + 3), tl.int32)
        low, high = tl.cast(tl.load(at + 4), tl.int32), tl.cast(tl.load(at + 5), tl.int32)
        row, live = tl.cast(tl.load(at + 6), tl.int64), sequence >= 0
    return sequence, base, start, end, low, high, row, live


@kernel
def sequence_rows(table_p, rows, first, step, tokens, batch, before, ahead):
    """Rows `first + step` of a table of packed sequences, each with `before` rows in front of its
    tokens: two parts of the token of each, and of its sequence the token after the last, how many
    tokens stand before, whether it has that one, and which it is. Without a table: of the row
    `batch` of the batch, with `ahead` rows."""
    if table_p is None:
        base, place = first - ahead, step.to(tl.int64)
        none = tl.zeros_like(step).to(tl.int64)
        start, end, sequence = none, none + tokens, none + batch
    else:
        at = first + step
        inside = (at >= 0) & (at < rows)
        start = tl.load(table_p + at, inside, 0)
        end = tl.load(table_p + rows + at, inside, 0)
        sequence = tl.load(table_p + 2 * rows + at, inside, 0)
        base, place = 0, at - (sequence + 1) * before
    token = base + place
    inside = (token >= start) & (token < end) & (token >= 0) & (token < tokens)
    return base, place, end, token - start, inside, sequence


@kernel
def load_tile(at, i, i_step, in_i, j, in_j, j_step=1, apart: tl.constexpr = False):
    """The tile at `at + i i_step + j j_step`, 0 outside; without `in_i`, every i is inside. One
    that is `apart` is not made one with another of the same places: it has a hint of its own."""
    hint: tl.constexpr = "evict_last" if apart else ""
    places = at + i[:, None] * i_step + j[None, :] * j_step
    if in_i is None:
        if in_j is None:
            tile = tl.load(places, eviction_policy=hint)
        else:
            tile = tl.load(places, in_j[None, :], 0.0, eviction_policy=hint)
    elif in_j is None:
        tile = tl.load(places, in_i[:, None], 0.0, eviction_policy=hint)
    else:
        tile = tl.load(places, in_i[:, None] & in_j[None, :], 0.0, eviction_policy=hint)
    return tile


@kernel
def store_tile(at, i, i_step, in_i, j, in_j, tile, j_step=1):
    """Store a tile at `at + i i_step + j j_step`, where that is inside."""
    places = at + i[:, None] * i_step + j[None, :] * j_step
    if in_i is None:
        if in_j is None:
            tl.store(places, tile)
        else:
            tl.store(places, tile, in_j[None, :])
    elif in_j is None:
        tl.store(places, tile, in_i[:, None])
    else:
        tl.store(places, tile, in_i[:, None] & in_j[None, :])


@kernel
def logistic(x):
    """1 / (1 + exp(-x)) in float32, by 5 instructions a number where `tl.sigmoid` takes 12: no
    quotient, and no exponential of what is too small."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return root * root


@kernel
def log_1_plus_exp(x):
    """log(1 + exp(x)) in float32, to 3e-7 of it: max(x, 0) + log(1 + e), of e = exp(-|x|) a
    polynomial of degree 10 with no error at 0 where `tl.log(1.0 + e)` takes twice the instructions
    and rounds a small e away."""
    e = tl.exp2(tl.abs(x) * -1.4426950408889634)
    made = e * -0.0031760570127516985 + 0.019542526453733444
    made = made * e - 0.056373611092567444
    made = made * e + 0.10543623566627502
    made = made * e - 0.1526966691017151
    made = made * e + 0.1966327428817749
    made = made * e - 0.24951615929603577
    made = made * e + 0.33329710364341736
    made = made * e - 0.49999892711639404
    return tl.maximum(x, 0.0) + (made * e + 1.0) * e


@kernel
def pushed(run, newest, count: tl.constexpr):
    """The first `count` elements along the last dim moved down by one, and `newest` put last. Each
    thread has all elements along this dim, so that all of it is choices of registers, and none is
    left: nothing is added to the one that is moved, as x + -0 is x."""
    at, moved = tl.arange(0, run.shape[-1]), run
    for place in tl.static_range(0, count - 1):
        above = tl.sum(tl.where(at == place + 1, run, minus_zero()), -1)
        moved = tl.where(at == place, held(above), moved)
    return tl.where(at == count - 1, held(newest), moved)


@kernel
def minus_zero():
    """-0.0: Triton makes 0.0 of the literal, and what is added to that stays an addition, as
    -0.0 + 0.0 is 0.0."""
    return tl.cast(tl.full((), -(2**31), tl.int32), tl.float32, bitcast=True)


@kernel
def held(x):
    """A tile with one more dim of length 1, of a layout that threads share as they do the tile."""
    return tl.reshape(x, x.shape + (1,))  # noqa: RUF005 -- Triton knows no (*shape, 1)


@kernel
def dot_apart(a, b, c, going, input_precision: tl.constexpr):
    """a @ b + c, or a @ b where `c` is None; `going` is always true, which compilers do not see.

    What an `if` gives is a product that no other follows. Triton 3.6 lays out one that others
    follow with all warps along its rows (`warpsPerTileV3`): of 64 rows there are 16 for each of 4
    warps, and 4 further warps would do the same once more.
    """
    if a.dtype.primitive_bitwidth == 16 and a.shape[0] >= 64:
        if c is None:
            made = tl.full((a.shape[0], b.shape[1]), 0.0, tl.float32)
            if going:
                made = tl.dot(a, b, input_precision=input_precision)
        else:
            made = c
            if going:
                made = tl.dot(a, b, c, input_precision=input_precision)
    elif c is None:
        made = tl.dot(a, b, input_precision=input_precision)
    else:
        made = tl.dot(a, b, c, input_precision=input_precision)
    return made


@kernel
def join_product(a, b):
    """a b, for scans and products along a dim."""
    return a * b


@kernel
def join_max(a, b):
    """The larger of two, for scans."""
    return tl.maximum(a, b)


@kernel
def join_min(a, b):
    """The smaller of two, for scans."""
    return tl.minimum(a, b)


@kernel
def real_power(x, y):
    """x ** y; of a negative x where y is whole, and 1 where y is 0."""
    x, y = tl.broadcast(tl.cast(x, tl.float32), tl.cast(y, tl.float32))
    size = tl.exp(y * tl.log(tl.abs(x)))
    half = 0.5 * y
    found = tl.where((x < 0.0) & (tl.floor(half) != half), -size, size)
    found = tl.where((x < 0.0) & (tl.floor(y) != y), float("nan"), found)
    return tl.where((y == 0.0) | (x == 1.0), 1.0, found)


@kernel
def real_remainder(x, y):
    """x - y floor(x / y), with the sign of y: `%` of Triton has that of x."""
    rest = x % y
    return tl.where(rest * y < 0, rest + y, rest)


@kernel
def real_quotient(x, y):
    """floor(x / y) of real numbers: `//` of Triton is for integers."""
    return tl.floor((x - real_remainder(x, y)) / y + 0.5)


@kernel
def first_random(seed, counter):
    """The first of the eight random numbers of each counter, of 16 bits."""
    return tl.cast(tl.randint(seed, counter) & 65535, tl.int32)


@kernel
def eight_random(seed, counter):
    """The eight random numbers of each counter, of 16 bits, along three further dims of 2."""
    a, b, c, d = tl.randint4x(seed, counter)
    words = tl.join(tl.join(a, c), tl.join(b, d))
    return tl.join(words & 65535, words >> 16).to(tl.int32)

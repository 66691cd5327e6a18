"""What passed for a program and is none, what was refused and is right: a small one for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archc.tile.compose import Composer, Tile
from archc.tile.language import (
    Buffer,
    Dot,
    Full,
    Load,
    Program,
    Statement,
    Type,
    Value,
    statements,
)
from archc.tile.verifier import verify, verify_launch
from tests.tile.sized import dim

Write = Callable[[Composer, Buffer, Tile], None]


def written(write: Write) -> Program:
    """A program on x [16, 16], with one tile of it."""
    k = Composer("small", "A small program.")
    k.dtypes("IO")
    x = k.buffer("x", r=16, c=16, dtype="IO")
    write(k, x, k.load(x, k.iota("r", 16), k.iota("c", 16)))
    return k.done()


def said(program: Program, **known: int | str) -> list[str]:
    """All refusals of a program and of a launch."""
    found = [*verify(program), *verify_launch(program, {"IO": "bf16", **known})]
    return [str(each) for each in found]


def sums_of_truth(k: Composer, x: Buffer, tile: Tile) -> None:
    (tile > 0.0).sum("c")


def truth_and_truth(k: Composer, x: Buffer, tile: Tile) -> None:
    (tile > 0.0) + (tile > 1.0)


def quotient_of_integers(k: Composer, x: Buffer, tile: Tile) -> None:
    k.iota("r", 16) / 2


def exp_of_integers(k: Composer, x: Buffer, tile: Tile) -> None:
    k.apply("exp", k.iota("r", 16))


def numbers_as_truth(k: Composer, x: Buffer, tile: Tile) -> None:
    k.iota("r", 16) & k.iota("r", 16)


def bits_of_long_numbers(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.to("i64", bits=True)


def no_such_dim(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.scan("sum", "q")


def no_such_function(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.reduce("median", "c")


def two_dims_of_a_name(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.along(r="c")


def a_number_too_large(k: Composer, x: Buffer, tile: Tile) -> None:
    k.iota("r", 16) + (1 << 40)


def products_in_64_bits(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.to("f64").dot(tile.to("f64").along(r="q"))


def products_of_other_batches(k: Composer, x: Buffer, tile: Tile) -> None:
    halves = tile.shaped(dim("h", 2), dim("r", 8), dim("c", 16))
    quarters = tile.shaped(dim("h", 4), dim("c", 16), dim("n", 4))
    made = Type("f32", (dim("h", 2), dim("r", 8), dim("n", 4)))
    k.put(Dot(), halves, quarters, type=made)


def a_precision_of_nobody(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.dot(tile.along(r="q"), precision="PRECISE")


def integers_stored_as_reals(k: Composer, x: Buffer, tile: Tile) -> None:
    r = k.iota("r", 16)
    k.store(x, r, 0, value=r)


def a_missing_buffer(k: Composer, x: Buffer, tile: Tile) -> None:
    k.load(k.buffer("bias", c=16, optional=True), k.iota("c", 16))


def a_buffer_of_the_other_branch(k: Composer, x: Buffer, tile: Tile) -> None:
    bias = k.buffer("bias", c=16, optional=True)
    with k.branch(k.given(bias)) as there:
        k.load(bias, k.iota("c", 16))
    with k.otherwise(there):
        k.load(bias, k.iota("c", 16))


def branches_that_differ(k: Composer, x: Buffer, tile: Tile) -> None:
    with k.branch(k.lift(1, "i32") > 0) as yes:
        yes.give(k.full(1.0))
    with k.otherwise(yes) as no:
        no.give(k.full(1, dtype="i32"))


def a_barrier_of_some(k: Composer, x: Buffer, tile: Tile) -> None:
    with k.branch(k.program("p", 2).equals(0)):
        k.barrier(k.buffer("counter", one=1, dtype="i32"), 0)


def a_join_that_looks_outside(k: Composer, x: Buffer, tile: Tile) -> None:
    outside = tile.sum("c").sum("r")
    k.scan(lambda a, b: (a[0] + b[0] * outside,), "c", tile)


def a_count_that_becomes_longer(k: Composer, x: Buffer, tile: Tile) -> None:
    with k.loop(0, 4, k.full(0, dtype="i32")) as turn:
        turn.next(turn.carried[0] + k.full(1, dtype="i64"))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (sums_of_truth, "a sum in bool: `x_above_0` must be cast"),
        (truth_and_truth, "`add` of truth values: `x_above_0` must be cast"),
        (quotient_of_integers, "`div` of i32: `i_r` must be cast to f32"),
        (exp_of_integers, "`exp` of i32: `i_r` must be cast to f32"),
        (numbers_as_truth, "`i_r` is i32, no truth value"),
        (bits_of_long_numbers, "the bits of f32 as i64: they are of i32 and f32"),
        (no_such_dim, "[r, c] has no dim q"),
        (no_such_function, "no function `median` along a dim"),
        (two_dims_of_a_name, "[c, c] has a dim twice"),
        (a_number_too_large, "1.09951e+12 is no i32"),
        (products_in_64_bits, "a product of numbers of f64: it is summed in f32"),
        (products_of_other_batches, "no product of [h, r, c] and [h, c, n]"),
        (a_precision_of_nobody, "no precision `PRECISE`"),
        (integers_stored_as_reals, "`i_r` is i32, and `x` has IO"),
        (a_missing_buffer, "`bias` may be missing: only a branch on `given` may touch it"),
        (a_buffer_of_the_other_branch, "`bias` may be missing: only a branch on `given`"),
        (branches_that_differ, "both blocks of a branch give the same types"),
        (a_barrier_of_some, "a barrier that not every program comes to"),
        (a_join_that_looks_outside, "it is read where it is not made yet"),
        (a_count_that_becomes_longer, "what a turn hands on is not of the type"),
    ],
)
def test_what_readers_of_a_program_would_take_for_different_things(
    write: Write, reason: str
) -> None:
    found = [str(each) for each in verify(written(write))]
    assert any(reason in each for each in found), found


def test_a_mask_has_its_dims_in_the_order_of_the_indices() -> None:
    """By hand, as the composer would turn the mask around."""
    k = Composer("masked", "A mask that is laid on the wrong way round.")
    x = k.buffer("x", r=16, c=16)
    r, c = k.iota("r", 16), k.iota("c", 16)
    operands = tuple(tile.value for tile in (r, c, c < r))
    made = Value("made", Type("f32", (*r.dims, *c.dims)))
    program = k.done()
    program.body.statements.append(Statement(Load(x), operands, (made,)))
    found = [str(each) for each in verify(program)]
    assert found == ["`made`: `i_c_below_i_r` [c, r] does not line up with [r, c]"]


def narrow_at_launch(k: Composer, x: Buffer, tile: Tile) -> None:
    narrow = k.load(x, k.iota("r", 16), k.iota("c", 16), wide=False)
    k.apply("neg", narrow)


def wider_at_launch(k: Composer, x: Buffer, tile: Tile) -> None:
    (sums,) = k.dtypes("SUMS")
    tile.to(sums).scan("sum", "r") + tile


def too_many_elements(k: Composer, x: Buffer, tile: Tile) -> None:
    (N,) = k.sizes("N")
    k.load(k.buffer("z", n=N * N * 16, dtype="i32"), k.program("p", N) * N * k.iota("m", 16))


def rows_that_are_far(k: Composer, x: Buffer, tile: Tile) -> None:
    (N,) = k.sizes("N")
    at = k.load(k.buffer("at", m=16, dtype="i32"), k.iota("m", 16))
    k.load(k.buffer("z", n=N, d=N), at, k.iota("d", 16))


def rows_that_no_copy_begins_at(k: Composer, x: Buffer, tile: Tile) -> None:
    z = k.buffer("z", n=32, d=20, dtype="IO")
    k.load_block(z, 0, 0, n=dim("n", 16), d=dim("d", 16))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (narrow_at_launch, "arithmetic in IO, which is bf16: `x_2` must be cast to f32"),
        (wider_at_launch, "it is f64 at this launch, and the program says f32"),
        (too_many_elements, "is no i32"),
        (rows_that_are_far, "n is up to 99999 places of 100000 elements in `z`"),
        (rows_that_no_copy_begins_at, "a row of `z` has 40 bytes, no multiple of 16"),
    ],
)
def test_what_only_a_launch_makes_wrong(write: Write, reason: str) -> None:
    program = written(write)
    assert not verify(program)
    found = said(program, N=100_000, SUMS="f64")
    assert any(reason in each for each in found), found


def fewer_elements(k: Composer, x: Buffer, tile: Tile) -> None:
    tile.pick(k.iota("r", 16) * 0 + k.iota("c", 4), "c")


def rows_in_64_bits(k: Composer, x: Buffer, tile: Tile) -> None:
    (N,) = k.sizes("N")
    at = k.load(k.buffer("at", m=16, dtype="i32"), k.iota("m", 16)).to("i64")
    k.load(k.buffer("z", n=N, d=N), at, k.iota("d", 16))


def one_program_of_many(k: Composer, x: Buffer, tile: Tile) -> None:
    """What all programs have alike, one of them stores: by a mask, or in a branch."""
    p, r = k.program("p", 8), k.iota("r", 16)
    total = tile.sum("c")
    k.store(k.buffer("y", r=16), r, value=total, where=[p.equals(0)])
    with k.branch(p.equals(3)):
        k.store(k.buffer("z", r=16), r, value=total)


def a_place_in_two_parts(k: Composer, x: Buffer, tile: Tile) -> None:
    """A program's place as a quotient and a remainder."""
    p = k.program("p", 12)
    k.store(k.buffer("y", h=4, n=3), p // 3, p % 3, value=k.full(1.0))


def a_bound_in_a_branch(k: Composer, x: Buffer, tile: Tile) -> None:
    """A scalar that a branch keeps inside."""
    p = k.program("p", 8)
    with k.branch(p < 5):
        k.store(k.buffer("y", n=5), p, value=k.full(1.0))


def bounds_in_64_bits(k: Composer, x: Buffer, tile: Tile) -> None:
    """A loop between numbers that are read, as those of packed sequences."""
    ends = k.buffer("ends", n=2, dtype="i64")
    with k.loop(k.load(ends, 0), k.load(ends, 1), k.full(0, dtype="i64")) as turn:
        assert turn.index.dtype == "i64"
        turn.next(turn.carried[0] + turn.index)


def a_loop_of_no_turns(k: Composer, x: Buffer, tile: Tile) -> None:
    """From the second row of one: nothing is read before the first."""
    (M,) = k.sizes("M")
    z = k.buffer("z", m=M)
    with k.loop(1, M) as turn:
        k.load(z, turn.index - 2)


def no_programs(k: Composer, x: Buffer, tile: Tile) -> None:
    """A batch of nothing."""
    (none,) = k.sizes("NONE")
    p = k.program("p", none)
    k.store(k.buffer("y", n=none), p, value=k.full(1.0))


def chosen_in_the_dtype_of_the_data(k: Composer, x: Buffer, tile: Tile) -> None:
    """A choice is no arithmetic."""
    r, c = k.iota("r", 16), k.iota("c", 16)
    narrow = k.load(x, r, c, wide=False)
    none = k.full(0.0, *tile.dims, dtype="IO")
    k.store(x, r, c, value=k.where(r > c, narrow, none))


@pytest.mark.parametrize(
    "write",
    [
        rows_in_64_bits,
        one_program_of_many,
        a_place_in_two_parts,
        a_bound_in_a_branch,
        bounds_in_64_bits,
        a_loop_of_no_turns,
        no_programs,
        chosen_in_the_dtype_of_the_data,
        fewer_elements,
    ],
)
def test_what_is_right_is_not_refused(write: Write) -> None:
    found = said(written(write), N=100_000, M=1, NONE=0)
    assert not found, found


@pytest.mark.parametrize("number", [1.0, 1])
def test_a_number_of_whole_ones_is_whole(number: float) -> None:
    """What fills a tile of int32 is a float to whoever asks for it; it is one value with the 1 that
    a place is moved by, and as a float it would make real numbers of places."""
    k = Composer("moved", "Whole numbers, one row on.")
    x = k.buffer("x", r=16, dtype="i32")
    r = k.iota("r", 16)
    filled = k.where(r > 0, k.load(x, r), k.full(number, dtype="i32"))
    k.store(x, r, value=filled + (r - 1))
    assert [repr(s.op.number) for s in statements(k.done().body) if isinstance(s.op, Full)] == [
        "0", "1",
    ]  # fmt: skip

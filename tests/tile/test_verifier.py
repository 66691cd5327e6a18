"""What no tile program may do: each is refused with the name of the value, before it runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from archc.tile.compose import Composer, Tile, ceil_div, size
from archc.tile.interpreter import WrongProgram, run
from archc.tile.language import Buffer, Dim, Program
from archc.tile.resources import Launch, Room
from archc.tile.verifier import verify, verify_launch
from tests.tile.cases import CASES, Drawn

KNOWN = {"N": 10, "BLOCK": 4}
Write = Callable[[Composer, Buffer, Buffer, Tile], None]


def written(write: Write, grid: bool = True) -> Program:
    """A program on x [N] and y [N], a block of places a program."""
    k = Composer("small", "A small program.")
    (N,), (BLOCK,) = k.sizes("N"), k.lengths("BLOCK")
    x, y = k.buffer("x", n=N), k.buffer("y", n=N)
    n = k.iota("n", BLOCK)
    write(k, x, y, k.program("block", ceil_div(N, BLOCK)) * BLOCK + n if grid else n)
    return k.done()


def refused(program: Program, **known: int) -> list[str]:
    """What is said of a program and of a launch of it."""
    return [str(each) for each in (*verify(program), *verify_launch(program, {**KNOWN, **known}))]


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_wrong_with_the_seven(name: str) -> None:
    case = CASES[name](Drawn())
    found = [*verify(case.program), *verify_launch(case.program, case.known)]
    assert not [str(each) for each in found]


def copied(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    inside = [n < size("N")]
    k.store(y, n, value=k.load(x, n, where=inside), where=inside)


def test_a_copy_is_right() -> None:
    assert not refused(written(copied))


def read_without_a_mask(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    k.store(y, n, value=k.load(x, n), where=[n < size("N")])


def read_before_the_first(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    k.store(y, n, value=k.load(x, n - 1, where=[n < size("N")]), where=[n < size("N")])


def masked_one_too_far(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    k.store(y, n, value=k.load(x, n, where=[n <= size("N")]), where=[n < size("N")])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (read_without_a_mask, "`x`: n = 11 is outside of `x`, which has 10, and no mask hides it"),
        (
            read_before_the_first,
            "`x`: n = -1 is outside of `x`, which has 10, and no mask hides it",
        ),
        (masked_one_too_far, "`x`: n = 10 is outside of `x`, which has 10, and no mask hides it"),
    ],
)
def test_reads_outside_a_buffer_are_refused(write: Write, said: str) -> None:
    program = written(write)
    assert refused(program) == [said]
    tensors = {"x": torch.ones(10), "y": torch.zeros(10)}
    with pytest.raises(WrongProgram, match="the load of `x` is outside of `x`"):
        run(program, tensors, {"N": 10}, {"BLOCK": 4})
    if write is not read_before_the_first:
        assert not refused(program, N=12) or write is masked_one_too_far


def masked_unless_even(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    inside = [(n < size("N")) | k.at_most(1, *k.lengths("EVEN"))]
    k.store(y, n, value=k.load(x, n, where=inside), where=inside)


def test_a_mask_may_be_needless_where_blocks_are_full() -> None:
    program = written(masked_unless_even)
    assert not refused(program, EVEN=0) and not refused(program, EVEN=1, N=12)
    assert "n = 11 is outside of `x`" in refused(program, EVEN=1)[0]


def every_program_the_same(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    k.program("again", 2)
    copied(k, x, y, n)


def blocks_that_overlap(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    at = k.program("half", 3) * 2 + k.iota("n", size("BLOCK"))
    k.store(y, at, value=k.load(x, at, where=[at < size("N")]), where=[at < size("N")])


@pytest.mark.parametrize("write", [every_program_the_same, blocks_that_overlap])
def test_elements_that_are_stored_twice_are_refused(write: Write) -> None:
    program = written(write, grid=write is every_program_the_same)
    found = refused(program)
    assert found and all("store the same elements of it" in line for line in found), found


def parts_of_blocks(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    i = k.iota("n", size("BLOCK"))
    at = k.program("half", 5) * 2 + i
    where = [at < size("N"), i < 2]
    k.store(y, at, value=k.load(x, at, where=where), where=where)


def test_parts_of_blocks_that_a_mask_keeps_apart_are_right() -> None:
    assert not refused(written(parts_of_blocks, grid=False))


def scattered(exclusive: bool) -> Program:
    """y[at[n]] = x[n]: places that are read from memory."""
    k = Composer("scattered", "Places that are read.")
    (N,), (BLOCK,) = k.sizes("N"), k.lengths("BLOCK")
    x, y, at = k.buffer("x", n=N), k.buffer("y", n=N), k.buffer("at", n=N, dtype="i32")
    n = k.program("block", ceil_div(N, BLOCK)) * BLOCK + k.iota("n", BLOCK)
    inside = [n < N]
    place = k.load(at, n, where=inside)
    k.store(y, place, value=k.load(x, n, where=inside), where=inside, exclusive=exclusive)
    return k.done()


def test_places_from_memory_need_a_contract_which_is_checked_when_it_runs() -> None:
    assert refused(scattered(False)) == [
        "`y`: indices are read from memory, and nothing says that no two are the same"
    ]
    program = scattered(True)
    assert not refused(program)
    x, y = torch.arange(10.0), torch.zeros(10)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    run(program, {"x": x, "y": y, "at": order.int()}, {"N": 10}, {"BLOCK": 4})
    assert torch.equal(y[order], x)
    order[3] = order[4]
    with pytest.raises(WrongProgram, match="twice"):
        run(program, {"x": x, "y": y, "at": order.int()}, {"N": 10}, {"BLOCK": 4})


def no_power_of_two(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    copied(k, x, y, n)


def too_short_for_a_product(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    tile = k.full(1.0, Dim("a", size("BLOCK")), Dim("n", size("BLOCK")))
    made = tile.dot(tile.along(a="b")).sum("b").along(a="n")
    k.store(y, n, value=made, where=[n < size("N")])


def does_not_divide(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    tile = k.load(x, n, where=[n < size("N")])
    halves = tile.shaped(Dim("half", size("BLOCK") / 4), Dim("n", size("BLOCK") / 2))
    k.store(y, n, value=halves.sum("half").sum("n") + tile, where=[n < size("N")])


@pytest.mark.parametrize(
    ("write", "known", "said"),
    [
        (no_power_of_two, {"BLOCK": 6, "N": 12}, "`n`: a block of 6 is no power of two"),
        (too_short_for_a_product, {}, "`y_product`: a product over blocks of 4, at least 16"),
        (does_not_divide, {}, "`x_2`: 4 elements do not divide into 2"),
    ],
)
def test_blocks_that_do_not_fit_are_refused(write: Write, known: dict[str, int], said: str) -> None:
    found = refused(written(write), **known)
    assert found and all(line.startswith(said) for line in found), found


def large(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    tile = k.full(1.0, Dim("a", size("BLOCK")), Dim("n", size("BLOCK"))).named("matrix")
    k.store(y, n, value=(tile.dot(tile.along(a="b")).sum("b")).along(a="n"), where=[n < size("N")])


def test_what_a_device_has_no_room_for_is_refused() -> None:
    program, known = written(large), {"N": 512, "BLOCK": 512}
    found = [str(each) for each in verify_launch(program, known, Room(shared=232_448))]
    assert found == [
        "`matrix`: a program needs 1048576 bytes of shared memory, and there are 232448; this"
        " value is the largest",
        "`matrix`: a program holds 1048576 bytes in registers, and there are 262144; this value"
        " is the largest",
    ]
    assert not verify_launch(program, {"N": 512, "BLOCK": 64}, Room(shared=232_448))


def narrow(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    b_x = k.load(x, n, where=[n < size("N")]).to("bf16")
    k.store(y, n, value=b_x + b_x, where=[n < size("N")])


def unordered_sums(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    k.atomic(y, 0, value=k.load(x, 0))


def foreign(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    other = Composer("other", "Another program.").buffer("z", n=size("N"))
    k.store(other, n, value=k.load(x, n, where=[n < size("N")]), where=[n < size("N")])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (narrow, "`y_sum`: arithmetic in bf16: `x_bf16` must be cast to f32"),
        (unordered_sums, "`atomic`: sums of real numbers would change from run to run"),
        (foreign, "`z`: `z` is no buffer of the program"),
    ],
)
def test_what_no_size_makes_right_is_refused(write: Write, said: str) -> None:
    assert said in [str(each) for each in verify(written(write))]


def raced(k: Composer, x: Buffer, y: Buffer, n: Tile, barrier: bool) -> None:
    """Every program reads what the next one wrote."""
    inside = [n < size("N")]
    k.store(y, n, value=k.load(x, n, where=inside), where=inside)
    if barrier:
        k.barrier(k.buffer("counter", one=1, dtype="i32"), 0)
    z = k.buffer("z", n=size("N"))
    later = k.load(y, (n + size("BLOCK")), where=[(n + size("BLOCK")) < size("N")])
    k.store(z, n, value=later, where=inside)


def test_reading_what_another_program_wrote_needs_a_barrier() -> None:
    def tensors() -> dict[str, torch.Tensor]:
        found = {name: torch.zeros(10) for name in "yz"} | {"x": torch.arange(10.0)}
        return found | {"counter": torch.zeros(1, dtype=torch.int32)}

    def given(barrier: bool) -> Program:
        return written(lambda k, x, y, n: raced(k, x, y, n, barrier))

    with pytest.raises(WrongProgram, match="no barrier stands between them"):
        run(given(False), tensors(), {"N": 10}, {"BLOCK": 4})
    found = tensors()
    run(given(True), found, {"N": 10}, {"BLOCK": 4})
    assert found["z"].tolist() == [4, 5, 6, 7, 8, 9, 0, 0, 0, 0]


def shifted_in_place(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    """A program reads what the next one overwrites."""
    k.store(x, n, value=k.load(x, n + 1, where=[n + 1 < size("N")]), where=[n < size("N")])


def read_back(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    """A program reads what other threads of it wrote, and waits for none."""
    inside = [n < size("N")]
    k.store(y, n, value=k.load(x, n, where=inside), where=inside)
    k.store(x, n, value=k.load(y, n, where=inside), where=inside)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (shifted_in_place, "stores what another program read from `x`"),
        (read_back, "reads what its program wrote to `y`"),
    ],
)
def test_what_threads_do_in_any_order_is_refused(write: Write, said: str) -> None:
    with pytest.raises(WrongProgram, match=said):
        run(written(write), {"x": torch.ones(10), "y": torch.zeros(10)}, {"N": 10}, {"BLOCK": 4})


def test_a_loop_ends_after_as_many_turns_as_it_says() -> None:
    k = Composer("endless", "A loop whose contract is wrong.")
    y = k.buffer("y", one=1, dtype="i32")
    one = k.full(1, dtype="i32")
    with k.repeat(one > 0, one, most=5) as turn:
        (count,) = turn.carried
        turn.next(count < 7, count + 1)
    k.store(y, 0, value=turn.results[0])
    with pytest.raises(WrongProgram, match="goes on after 5 turns"):
        run(k.done(), {"y": torch.zeros(1, dtype=torch.int32)}, {}, {})


def picked_beyond(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    inside = [n < size("N")]
    b_x = k.load(x, n, where=inside)
    k.store(y, n, value=b_x.pick(k.iota("n", size("BLOCK")) + 1, "n"), where=inside)


def test_an_element_beyond_a_tile_is_refused() -> None:
    with pytest.raises(WrongProgram, match="is at 4 of 4 places"):
        run(
            written(picked_beyond),
            {"x": torch.ones(10), "y": torch.zeros(10)},
            {"N": 10},
            {"BLOCK": 4},
        )


def remainders_of_many(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    with k.loop(1, 20) as turn:
        k.store(y, n, value=k.load(x, n % turn.index), where=[n < size("N")])


def test_a_remainder_is_inside_if_it_is_for_every_divisor() -> None:
    assert any("is outside of `x`" in each for each in refused(written(remainders_of_many)))


def chosen_places(k: Composer, x: Buffer, y: Buffer, n: Tile) -> None:
    """Places that are inside either way need no mask."""
    at = k.where(k.iota("n", size("BLOCK")) > 1, k.iota("n", size("BLOCK")), 0)
    k.store(y, n, value=k.load(x, at), where=[n < size("N")])


def test_a_choice_of_places_is_inside_if_both_are() -> None:
    assert not refused(written(chosen_places))


@pytest.mark.parametrize(("N", "kept"), [(16, 0), (64, 1)])
def test_a_branch_that_is_never_done_needs_no_room(N: int, kept: int) -> None:
    """Its condition is known when machine code is made."""
    k = Composer("halved", "y = x x' x, or 2 x of few rows.")
    (length,) = k.lengths("N")
    x, y = k.buffer("x", r=length, c=length), k.buffer("y", r=length, c=length)
    r, c = k.iota("r", length), k.iota("c", length)
    tile = k.load(x, r, c)
    with k.branch(~(k.lift(length) < 32) & (k.lift(length) >= 1)) as many:
        many.give(tile.dot(tile.along(r="s")).dot(tile.along(r="s")))
    with k.otherwise(many) as few:
        few.give(tile * 2.0)
    k.store(y, r, c, value=many.results[0])
    work = Launch(k.done(), {"N": N}).work()
    assert work.products == kept * 2 * 2 * N**3
    assert work.moved == {"x": 4 * N**2, "y": 4 * N**2}


@pytest.mark.parametrize(("other", "found"), [(0, []), (1, ["n = 10"])])
def test_what_holds_in_a_branch_does_not_in_the_other(other: int, found: list[str]) -> None:
    """An element and the next, where there is one."""
    k = Composer("next", "y = x[n + 1], or x[n] of the last.")
    (N,) = k.sizes("N")
    x, y = k.buffer("x", n=N), k.buffer("y", n=N)
    n = k.program("n", N)
    with k.branch(n + 1 < size("N")) as there:
        there.give(k.load(x, n + 1))
    with k.otherwise(there) as last:
        last.give(k.load(x, n + other))
    k.store(y, n, value=there.results[0])
    said = [
        each.partition(": ")[2].partition(" is outside of `x`")[0] for each in refused(k.done())
    ]
    assert said == found


def test_a_load_that_is_never_done_is_not_outside() -> None:
    """By a size, by a dtype, or neither."""
    k = Composer("beyond", "y = x[n + 16] of bfloat16 alone.")
    k.dtypes("IO")
    x, y, n = k.buffer("x", n=16, dtype="IO"), k.buffer("y", n=16), k.iota("n", 16)
    with k.branch(k.chosen("IO", "bf16")) as narrow:
        narrow.give(k.load(x, n + 16))
    with k.otherwise(narrow) as wide:
        wide.give(k.load(x, n))
    k.store(y, n, value=narrow.results[0])
    program = k.done()
    assert not verify_launch(program, {"IO": "f16"})
    assert "outside of `x`" in str(verify_launch(program, {"IO": "bf16"})[0])

"""A small program for each op that the seven do not use, with what torch makes of the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product

import sympy
import torch
from torch import Tensor

from archc.runtime.philox import random_numbers
from archc.tile.compose import Composer, Tile
from tests.tile.cases import Case
from tests.tile.control import CONTROL
from tests.tile.functions import DTYPES, mixed
from tests.tile.sized import dim

R, C = 16, 32


def on_rows(
    name: str, write: Callable[[Composer, Tile], Tile], expected: Callable[[Tensor], Tensor]
) -> Case:
    """y from x [R, C], which is a tensor turned around, in one program."""
    x = torch.randn(C, R, generator=torch.Generator().manual_seed(1)).T
    wanted = expected(x.double())
    k = Composer(name, f"y = {name}(x).")
    given = k.buffer("x", r=R, c=C, strided=True)
    y = k.buffer("y", r=R, c=wanted.shape[1])
    made = write(k, k.load(given, k.iota("r", R), k.iota("c", C)))
    k.store(y, k.iota("r", R), k.iota("c", wanted.shape[1]), value=made)
    tensors = {"x": x, "y": torch.full(wanted.shape, -7.0)}
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def _halves(k: Composer, x: Tile) -> Tile:
    split = x.shaped(dim("r", R), dim("half", 2), dim("c", C // 2))
    return split.ordered("c", "half", "r").sum("half")


def _batched(k: Composer, x: Tile) -> Tile:
    """Two products at once, added up."""
    split = x.shaped(dim("r", R), dim("half", 2), dim("part", C // 2)).ordered("half", "r", "part")
    return split.dot(split.along(r="c")).sum("half")


def _from_the_last(k: Composer, x: Tile) -> Tile:
    index = C - 1 - k.iota("c", C) + k.iota("r", R) * 0
    return x.pick(index.ordered("r", "c"), "c")


def _pushed(k: Composer, x: Tile) -> Tile:
    """Three places of a run, beside one that stays, filled by x, 2x, 3x and 4x: what is left is 2x,
    3x and 4x, which are told apart by what they are multiplied with."""
    run = k.full(7.0, *x.dims, dim("w", 4))
    for n in range(1, 5):
        run = run.push(x * float(n), sympy.Integer(3))
    place = k.apply("real", k.iota("w", 4) + 1)
    return (run * place).sum("w")


def _first_largest(k: Composer, x: Tile) -> Tile:
    flat = k.apply("floor", x)  # many are equal
    return k.apply("real", flat.reduce("argmax", "c")) + x * 0.0


def _looped(k: Composer, x: Tile) -> Tile:
    """Turns of which machine code does two at once, and one is left."""
    with k.loop(0, 5, x, index="n", together=2) as turn:
        turn.next(turn.carried[0] + k.apply("real", turn.index))
    return turn.results[0]


ON_ROWS: Mapping[str, tuple[Callable[[Composer, Tile], Tile], Callable[[Tensor], Tensor]]] = {
    "transposed": (lambda k, x: x.ordered("c", "r").ordered("r", "c") * 2.0, lambda x: 2 * x),
    "halves": (_halves, lambda x: x[:, : C // 2] + x[:, C // 2 :]),
    "from_the_last": (_from_the_last, lambda x: x.flip(1)),
    "first_largest": (
        _first_largest,
        lambda x: torch.argmax(x.floor(), 1, keepdim=True).double().expand(R, C),
    ),
    "sums_from_the_end": (
        lambda k, x: x.scan("sum", "c", reverse=True), lambda x: x.flip(1).cumsum(1).flip(1)
    ),
    "places_moved": (_pushed, lambda x: (2 + 2 * 3 + 3 * 4) * x + 28),
    "products": (lambda k, x: x.scan("product", "c"), lambda x: x.cumprod(1)),
    "largest_so_far": (lambda k, x: x.scan("max", "r"), lambda x: x.cummax(0)[0]),
    "smallest_so_far": (lambda k, x: x.scan("min", "c"), lambda x: x.cummin(1)[0]),
    "flipped": (lambda k, x: x.flip("r"), lambda x: x.flip(0)),
    "sorted": (lambda k, x: x.sort(), lambda x: torch.sort(x, 1)[0]),
    "falling": (lambda k, x: x.sort(descending=True), lambda x: x.sort(1, True)[0]),
    "best": (lambda k, x: x.sort(most=dim("c", 16)), lambda x: x.sort(1, True)[0][:, :16]),
    "smallest": (lambda k, x: x.reduce("min", "r") + x * 0.0, lambda x: x.amin(0) + 0 * x),
    "batched": (_batched, lambda x: x @ x.T),
    "looped": (_looped, lambda x: x + 10),
    "below_zero": (
        lambda k, x: k.where(1.0 / k.full(-0.0, *x.dims) < 0, x, 2.0 * x), lambda x: x
    ),
}  # fmt: skip


def counted() -> Case:
    """How often each number stands in x: all programs add to the same counters, and one of them
    takes a branch."""
    k = Composer("counted", "Counts by atomics, and a mark by one program.")
    x, y = k.buffer("x", n=64, dtype="i32"), k.buffer("y", n=8, dtype="i32")
    mark = k.buffer("mark", one=1, dtype="i32")
    p = k.program("p", 4)
    n = p * 16 + k.iota("n", 16)
    k.atomic(y, k.load(x, n), value=k.full(1, dim("n", 16), dtype="i32"))
    with k.branch(p.equals(2)):
        k.store(mark, 0, value=k.full(9, dtype="i32"))
    given = torch.randint(0, 8, (64,), generator=torch.Generator().manual_seed(2)).int()
    zeros = {"y": torch.zeros(8, dtype=torch.int32), "mark": torch.zeros(1, dtype=torch.int32)}
    expected = {"y": torch.bincount(given, minlength=8).double(), "mark": torch.tensor([9.0])}
    return Case(k.done(), {"x": given, **zeros}, {}, {}, expected)


def of_many_axes() -> Case:
    """The place of each program along seven axes, as one number in digits."""
    k = Composer("of_many_axes", "A grid of seven axes.")
    y, lengths = k.buffer("y", n=96, dtype="i32"), (1, 2, 3, 1, 2, 2, 2, 2)
    places = [k.program(f"p{i}", length) for i, length in enumerate(lengths[:-1])]
    places.append(k.iota("n", 2))
    number, digits = places[0], places[0]
    for place, length in zip(places[1:], lengths[1:], strict=True):
        number, digits = number * length + place, digits * 10 + place
    k.store(y, number, value=digits, exclusive=True)
    expected = [int("".join(map(str, each))) for each in product(*map(range, lengths))]
    zeros = torch.zeros(96, dtype=torch.int32)
    return Case(k.done(), {"y": zeros}, {}, {}, {"y": torch.tensor(expected).double()})


def scattered() -> Case:
    """y[at[n]] = x[n], where no two places are the same."""
    k = Composer("scattered", "Places that are read from memory.")
    x, y, at = k.buffer("x", n=32), k.buffer("y", n=32), k.buffer("at", n=32, dtype="i32")
    n = k.program("p", 2) * 16 + k.iota("n", 16)
    k.store(y, k.load(at, n), value=k.load(x, n), exclusive=True)
    places = torch.randperm(32, generator=torch.Generator().manual_seed(3))
    given = torch.randn(32, generator=torch.Generator().manual_seed(4))
    wanted = torch.zeros(32, dtype=torch.float64).scatter(0, places, given.double())
    tensors = {"x": given, "y": torch.full((32,), -7.0), "at": places.int()}
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def blocks() -> Case:
    """Blocks by the copy engine, the last of which reaches beyond the tensor."""
    k = Composer("blocks", "y = x, read in blocks.")
    x, y = k.buffer("x", b=2, t=20, h=3, c=16), k.buffer("y", b=2, h=3, t=32, c=16)
    b, h, first = k.program("b", 2), k.program("h", 3), k.program("n", 2) * 16
    tile = k.load_block(x, b, first, h, 0, t=dim("t", 16), c=dim("c", 16))
    k.store(y, b, h, first + k.iota("t", 16), k.iota("c", 16), value=tile)
    given = torch.randn(2, 20, 3, 16, generator=torch.Generator().manual_seed(5))
    wanted = torch.zeros(2, 3, 32, 16, dtype=torch.float64)
    wanted[:, :, :20] = given.double().transpose(1, 2)
    tensors = {"x": given, "y": torch.full(wanted.shape, -7.0)}
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def drawn() -> Case:
    """Numbers of a seed: the interpreter's own function; Triton's `randint` is held against it
    in `interpreted.py`, and known answers in the tests."""
    k = Composer("drawn", "y = random(seed, place).")
    (seed,) = k.sizes("SEED")
    y, n = k.buffer("y", n=64, dtype="i32"), k.iota("n", 64)
    z = k.buffer("z", n=64, dtype="i32")
    k.store(y, n, value=k.random(k.lift(seed), n))
    eighth = k.iota("n", 8) + 16
    k.store(z, n, value=k.random(k.lift(seed), eighth, dim("n", 64)))
    wanted = random_numbers(torch.tensor([1234]), torch.arange(64))
    tensors = {name: torch.full((64,), -7, dtype=torch.int32) for name in "yz"}
    made = {"y": wanted[:, 0], "z": wanted[16:24].flatten()}
    return Case(k.done(), tensors, {"SEED": 1234}, {}, made)


OPS: Mapping[str, Callable[[], Case]] = {
    **{name: (lambda name=name, made=made: on_rows(name, *made)) for name, made in ON_ROWS.items()},
    "counted": counted,
    "of_many_axes": of_many_axes,
    "scattered": scattered,
    "blocks": blocks,
    "drawn": drawn,
    **CONTROL,
    **{f"mixed_{name}": (lambda name=name: mixed(name)) for name in DTYPES},
}

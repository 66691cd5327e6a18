"""Sums, moves, scans and spans along the rows of a chunk, beside what chunk ops mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from archc.ir import row_pairs
from archc.lowering import scans
from archc.tile.compose import Composer, Tile
from tests.lowering.test_pairs import is_right
from tests.tile.cases import Case

D = 32
Write = Callable[[Composer, Mapping[str, Tile]], Tile]


def drawn(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def case(write: Write, wanted: Tensor, **given: tuple[str, Tensor]) -> Case:
    """y of what `write` makes of tensors, each with the names of its dims, a letter each."""
    k = Composer("along_rows", "y.")
    tiles = {}
    for name, (dims, tensor) in given.items():
        sized = dict(zip(dims, tensor.shape, strict=True))
        places = [k.iota(d, n) for d, n in sized.items()]
        tiles[name] = k.load(k.buffer(name, **sized), *places)
    made = write(k, tiles)
    places = [k.iota(d.name, d.length) for d in made.dims]
    y = k.buffer("y", **{d.name: d.length for d in made.dims})
    k.store(y, *places, value=made)
    tensors = {name: tensor for name, (_, tensor) in given.items()}
    tensors["y"] = torch.full(wanted.shape, -7.0, dtype=torch.float64)
    return Case(k.done(), tensors, {}, {}, {"y": wanted})


def holds(write: Write, wanted: Tensor, **given: tuple[str, Tensor]) -> None:
    is_right(case(write, wanted, **given))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
def test_sums_run_along_the_rows(reverse: bool, exclusive: bool) -> None:
    x = drawn(16, D)
    way = x.flip(0) if reverse else x
    wanted = way.cumsum(0) - (way if exclusive else 0)
    wanted = wanted.flip(0) if reverse else wanted
    flags = {"reverse": reverse, "exclusive": exclusive}
    holds(lambda k, t: scans.sums(k, t["x"], "i", **flags), wanted, x=("id", x))


@pytest.mark.parametrize("exclusive", [False, True])
def test_sums_of_gates_stay_finite(exclusive: bool) -> None:
    x = drawn(16, D)
    x[3], x[5, ::2] = -torch.inf, -1e4
    near = x.clamp(min=-104.0)
    wanted = near.cumsum(0) - (near if exclusive else 0)
    flags = {"gates": True, "exclusive": exclusive, "dtype": "f64"}
    holds(lambda k, t: scans.sums(k, t["x"], "i", **flags).to("f32"), wanted, x=("id", x))


@pytest.mark.parametrize("steps", [1, 3, -2, 20, 0])
def test_rows_move(steps: int) -> None:
    x = drawn(16, D)
    wanted = row_pairs.moved(x, 0, steps, 9)
    holds(lambda k, t: scans.moved(k, t["x"], "i", steps, 9.0), wanted, x=("id", x))


@pytest.mark.parametrize("kind", ["linear", "max-plus"])
@pytest.mark.parametrize("reverse", [False, True])
def test_numbers_are_scanned(kind: str, reverse: bool) -> None:
    a, b, first = drawn(32), drawn(32, D, seed=2), drawn(D, seed=3)
    h, rows = first, []
    for i in [*range(32)][:: -1 if reverse else 1]:
        h = a[i] * h + b[i] if kind == "linear" else torch.maximum(a[i] + h, b[i])
        rows.append(h)
    wanted = torch.stack(rows[:: -1 if reverse else 1])

    def write(k: Composer, t: Mapping[str, Tile]) -> Tile:
        return scans.scan(k, t["a"], t["b"], t["h"], "i", kind=kind, reverse=reverse)

    holds(write, wanted, a=("i", a), b=("id", b), h=("d", first))


@pytest.mark.parametrize(("rows", "dims"), [(16, 16), (64, 64), (32, 128)])
@pytest.mark.parametrize("reverse", [False, True])
def test_a_matrix_is_scanned(rows: int, dims: int, reverse: bool) -> None:
    """By squares of it, and row by row where there is no room for them."""
    A, b, first = drawn(dims, dims) / dims, drawn(rows, dims, seed=2), drawn(dims, seed=3)
    h, found = first, []
    for i in [*range(rows)][:: -1 if reverse else 1]:
        h = A @ h + b[i]
        found.append(h)
    wanted = torch.stack(found[:: -1 if reverse else 1])

    def write(k: Composer, t: Mapping[str, Tile]) -> Tile:
        return scans.matrix_scan(k, t["A"], t["b"], t["h"], "i", ("e", "d"), reverse=reverse)

    holds(write, wanted, A=("ed", A), b=("id", b), h=("d", first))


def test_a_matrix_is_scanned_from_nothing() -> None:
    A, b = drawn(16, 16) / 16, drawn(16, 16, seed=2)
    h, found = torch.zeros(16, dtype=torch.float64), []
    for row in b:
        h = A @ h + row
        found.append(h)

    def write(k: Composer, t: Mapping[str, Tile]) -> Tile:
        return scans.matrix_scan(k, t["A"], t["b"], None, "i", ("e", "d"))

    holds(write, torch.stack(found), A=("ed", A), b=("id", b))


def gates(kind: str) -> Tensor:
    g = -drawn(32).abs()
    if kind == "hard":
        g[::5], g[7] = -1e4, -torch.inf
    return g


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_spans_are_sums_of_their_own(strict: bool, exclusive: bool, kind: str) -> None:
    g = gates(kind)
    wanted = row_pairs.spans(g, strict, exclusive)
    flags = {"strict": strict, "exclusive": exclusive}

    def write(k: Composer, t: Mapping[str, Tile]) -> Tile:
        span = scans.spans(k, t["g"], "i", "j", **flags)
        return k.where(span < -1e30, -5.0, span)

    holds(write, torch.where(wanted.isinf(), -5.0, wanted), g=("i", g))

    def decays(k: Composer, t: Mapping[str, Tile]) -> Tile:
        span = scans.spans(k, t["g"], "i", "j", **flags, in_exp=True, dtype="f64")
        return k.apply("exp", span)

    holds(decays, wanted.exp(), g=("i", g))


@pytest.mark.parametrize("exclusive", [False, True])
def test_gates_get_what_is_around_them(exclusive: bool) -> None:
    d = drawn(32, 32)
    wanted = row_pairs.between(d, True, exclusive)

    def write(k: Composer, t: Mapping[str, Tile]) -> Tile:
        return scans.spans_gradient(k, t["d"], "i", "j", exclusive=exclusive, dtype="f64")

    holds(write, wanted, d=("ij", d))

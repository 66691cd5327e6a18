"""How many rows a chunk may have on a GPU: at some sizes, and as a table by the lengths of tiles,
as sizes are known only when a file runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from archc.diagnostics import ArchError, fail
from archc.dims import in_words
from archc.ir import chunk as ck
from archc.ir.kernel import Kernels
from archc.schedule.devices import REFERENCE, Budget
from archc.schedule.memory import CHUNKS, VECTORS, Misfit, Tiles, fits
from archc.schedule.program import Program, Setting, Sizes, widths

LEAST, LONGEST = 16, 256
"""The shortest and the longest block of a dim. What is longer is one class, twice the longest."""

ENDLESS = 1 << 20
"""How long a dim of the last class may be: a program has a part of one that is split."""

DTYPES: Mapping[int, str] = {4: "float32", 2: "bfloat16"}
"""A dtype by the bytes of a number."""


class Sized:
    """How much shared memory a program takes, which is found once for sizes that are alike to it;
    `widths` are the bytes of a number of each tensor by its name."""

    def __init__(self, program: Program, widths: Mapping[str, int]):
        self.tiles, self.widths = Tiles(program), widths
        kernel = program.kernel
        lone = (kernel.split, kernel.rows, kernel.second_split)
        axes = [*program.axes.values(), *kernel.grid, *(each for each in lone if each)]
        self.names = sorted({str(s) for axis in axes for s in axis.size.free_symbols})
        self.found: dict[object, int] = {}

    def shared(self, sizes: Sizes, dtype: str, lengths: dict[object, int]) -> int:
        """Bytes of shared memory; `lengths` are those of axes at these sizes, for all programs."""
        key = (dtype, *map(sizes.get, self.names), sizes[ck.CHUNK.name])
        if key not in self.found:
            self.tiles.moved_to(Setting(sizes, dtype, self.widths), lengths)
            self.found[key] = self.tiles.shared()
        return self.found[key]

    def has_registers(self, sizes: Sizes, dtype: str, lengths: dict[object, int]) -> bool:
        """Whether the vectors of what is solved turn by turn stay in registers."""
        self.tiles.moved_to(Setting(sizes, dtype, self.widths), lengths)
        return self.tiles.vectors() <= VECTORS

    def in_blocks(self, sizes: Sizes, dtype: str, lengths: dict[object, int]) -> bool:
        """Whether a product takes a matrix from memory in blocks."""
        self.tiles.moved_to(Setting(sizes, dtype, self.widths), lengths)
        return self.tiles.in_blocks


Table = tuple[dict[str, int], dict[tuple[int, ...], int]]
"""Symbols with their shortest blocks; and how many rows a chunk has at most by (bytes of a number,
a block of each symbol), where these are not the most there are. Where not even the shortest chunk
fits, it is the bytes of shared memory that a program would need."""


def fitting(plans: Sequence[Kernels], budget: Budget = REFERENCE.budget) -> Table:
    """The table for the kernels of some graphs, which have chunks of one length."""
    programs = [(plan, [Program(kernel) for kernel in plan.kernels]) for plan in plans]
    sizes = _sizes([each for _, found in programs for each in found])
    counts = {str(s) for _, found in programs for each in found for s in each.row_counts}
    least = {name: 1 if name in counts else LEAST for name in sizes}
    every = [_blocks(each) for each in least.values()]
    rows: dict[tuple[int, ...], int] = {}
    for number, dtype in DTYPES.items():
        tiles = [
            Sized(program, widths(plan, dtype)) for plan, found in programs for program in found
        ]
        for blocks in product(*every):
            found = _longest(tiles, dict(zip(sizes, blocks, strict=True)), dtype, budget)
            if found != CHUNKS[0]:
                rows[number, *blocks] = found
    kept = [place for place in range(len(sizes)) if _decides(rows, place + 1, len(every[place]))]
    rows = {(key[0], *(key[place + 1] for place in kept)): count for key, count in rows.items()}
    return {sizes[place]: least[sizes[place]] for place in kept}, rows


def _blocks(least: int) -> list[int]:
    """The blocks of a size, of which `least` is the shortest."""
    return [least << n for n in range((2 * LONGEST // least).bit_length())]


def _decides(rows: Mapping[tuple[int, ...], int], place: int, blocks: int) -> bool:
    """Whether it matters how long the block at a place of the keys is."""
    found: dict[tuple[int, ...], list[int]] = {}
    for key, count in rows.items():
        found.setdefault((*key[:place], *key[place + 1 :]), []).append(count)
    return any(len(each) < blocks or len(set(each)) > 1 for each in found.values())


def _sizes(programs: Sequence[Program]) -> list[str]:
    """The symbols that tell how long tiles are."""
    tiled = {
        axis for program in programs for step in program.steps.values()
        for axis in step.node.type.axes
        if axis.kind != "stream" and axis.name not in program.inner and program.is_tiled(axis)
    }  # fmt: skip
    return sorted({str(each) for a in tiled for each in a.size.free_symbols - {ck.CHUNK}})


def _longest(
    tiles: Sequence[Sized], sizes: Mapping[str, int], dtype: str, budget: Budget
) -> int:  # fmt: skip
    """The longest chunk that fits, or the bytes that the shortest needs."""
    known = {name: ENDLESS if block > LONGEST else block for name, block in sizes.items()}
    found = longest(tiles, known, dtype, budget)
    if found is not None:
        return found
    given, lengths = {**sizes, ck.CHUNK.name: CHUNKS[-1]}, {}
    return max(each.shared(given, dtype, lengths) for each in tiles)


def longest(
    tiles: Sequence[Sized], sizes: Sizes, dtype: str, budget: Budget = REFERENCE.budget
) -> int | None:
    """The longest chunk with which every program fits, or None if none does. Where a program
    multiplies float32 in blocks it is the shortest of all: registers hold no taller tile beside
    the blocks."""
    for chunk in CHUNKS:
        lengths: dict[object, int] = {}
        given = {**sizes, ck.CHUNK.name: chunk}
        needed = (each.shared(given, dtype, lengths) for each in tiles)
        if all(shared <= budget.shared for shared in needed) and (
            chunk == CHUNKS[-1] or all(each.has_registers(given, dtype, lengths) for each in tiles)
        ):
            exact = dtype == "float32"
            wide = exact and any(each.in_blocks(given, dtype, lengths) for each in tiles)
            return CHUNKS[-1] if wide else chunk
    return None


def chunk_for(
    plans: Iterable[Kernels], sizes: Sizes, dtype: str = "bfloat16",
    budget: Budget = REFERENCE.budget,
) -> int:  # fmt: skip
    """The longest chunk with which every kernel of some graphs fits: that which a file takes at
    such sizes. Raises ArchError E0701 if there is none."""
    listed = [(each, widths(plan, dtype)) for plan in plans for each in plan.kernels]
    found = longest([Sized(Program(each), width) for each, width in listed], sizes, dtype, budget)
    if found is not None:
        return found
    given = {**sizes, str(ck.CHUNK): CHUNKS[-1]}
    misfits = (fits(each, Setting(given, dtype, width), budget) for each, width in listed)
    raise no_plan(next(filter(None, misfits)), sizes, CHUNKS[-1], dtype)


def no_plan(misfit: Misfit, sizes: Mapping[str, object], chunk: int, dtype: str) -> ArchError:
    """The error for sizes at which not even the shortest chunk fits."""
    shown = ", ".join(f"{in_words(name)} = {size}" for name, size in sorted(sizes.items()))
    return fail(
        "E0701",
        "no tile plan fits: the tiles of a chunk are too large for the memory of a program",
        notes=[f"{misfit}, in chunks of {chunk} in {dtype}", f"with {shown}"],
        helps=["make the dims of the state smaller, or use `--backend eager`, which has no tiles"],
    )

"""What kernels cost: bytes and operations counted by hand, and that nothing is below its floor."""

from __future__ import annotations

from functools import lru_cache

import pytest

import archc
from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.kernel import Kernels
from archc.schedule.cost import Cost, total
from archc.schedule.devices import DEVICES, REFERENCE
from archc.schedule.gate_sums import with_sums
from archc.schedule.partition import partition
from archc.schedule.program import Program, Setting, widths
from archc.tile.resources import Launch
from tests.lowering.test_systems import program as inverse

SIZES = {"batch": 2, "T#": 8192, "chunk": 64, "H": 32, "K": 128, "V": 128, "d": 4096}


@lru_cache
def cut(spec: str, gradient: bool = False) -> Kernels:
    layer = lowered(archc.load(spec).layer)
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    graph = recurrence.chunked.backward if gradient else recurrence.chunked.forward
    return partition(
        with_sums(graph, recurrence.heads), "memory", recurrence.stream, recurrence.heads, {}
    )


def costs(kernels: Kernels, dtype: str = "bfloat16") -> dict[str, Cost]:
    setting = Setting(SIZES, dtype, widths(kernels, dtype))
    return {each.name: each for each in total(kernels, setting, REFERENCE).kernels}


def test_every_tensor_counts_once_and_once_more_for_each_program_that_reads_it() -> None:
    kernels = cut("gla")
    tokens = 2 * 8192 * 32 * 128
    for name, cost in costs(kernels).items():
        for each in (*cost.reads, *cost.writes):
            if each.name in ("q", "k", "v", "log_alpha", "o"):
                assert each.bytes == tokens * 2
            if each.name in ("S[0]", "S[T]"):
                assert each.bytes == 2 * 32 * 128 * 128 * 4, "states are float32"
            assert each.moved >= each.bytes, (name, each.name)
        assert cost.again == sum(each.moved - each.bytes for each in cost.reads)


def test_programs_of_a_walk_read_what_is_the_same_for_every_block_again() -> None:
    kernels = cut("delta")
    (walk,) = (each for each in kernels.kernels if each.walk is not None)
    assert walk.split is not None and walk.split.name == "V"
    shared = [each for each in costs(kernels)[walk.name].reads if each.moved > each.bytes]
    assert shared
    assert all(each.moved == each.bytes * 128 // walk.most for each in shared)


def test_products_of_matrices_are_the_formulas() -> None:
    """The walk of a delta rule: the state is read at the keys, and written, at each chunk."""
    kernels = cut("delta")
    (walk,) = (each for each in kernels.kernels if each.walk is not None)
    heads, chunks = 2 * 32, 8192 // 64
    one = 2 * 64 * 128 * 128
    assert costs(kernels)[walk.name].work.products == heads * chunks * 2 * one


def test_processors_that_idle_make_no_token_of_a_walk_longer() -> None:
    """A walk waits at each token, on 8 programs of an eighth of the processors as on 64."""
    kernels = cut("delta")
    (walk,) = (each.name for each in kernels.kernels if each.walk is not None)
    few, many = (
        Setting({**SIZES, "batch": 1, "H": heads}, "bfloat16", widths(kernels, "bfloat16"))
        for heads in (4, 64)
    )
    times = [
        next(each for each in total(kernels, setting, REFERENCE).kernels if each.name == walk)
        for setting in (few, many)
    ]
    assert [each.programs for each in times] == [8, 128]
    assert times[0].expected < 1.01 * times[1].expected


@pytest.mark.parametrize("rows", [16, 32, 64])
def test_products_of_an_inverse_are_those_of_its_tile_program(rows: int) -> None:
    kernels = cut("kda")
    setting = Setting(SIZES | {"chunk": rows}, "bfloat16", widths(kernels, "bfloat16"))
    found = {each.name: each for each in total(kernels, setting, REFERENCE).kernels}
    solve = found["memory_solve_tril"]
    one = Launch(inverse(), {"R": rows, "SOLVE": "f32"}).work().products
    applied = 2 * (2 * rows * rows * 128)  # to rows of keys, and to rows of values
    assert solve.work.products == solve.programs * (one + applied)


@pytest.mark.parametrize("spec", ["kda", "mamba", "mesa"])
@pytest.mark.parametrize("gradient", [False, True])
def test_nothing_is_below_its_floor(spec: str, gradient: bool) -> None:
    kernels = cut(spec, gradient)
    sizes = {**SIZES, "N": 16, "D": 4096, "steps": 30}
    for device in DEVICES.values():
        found = total(kernels, Setting(sizes, "bfloat16", widths(kernels, "bfloat16")), device)
        for cost in found.kernels:
            assert cost.programs > 0 and cost.bytes > 0
            assert 0 < cost.floor < cost.expected and 0 < cost.share < 1
            assert cost.bytes / device.bandwidth <= cost.floor * (1 + 1e-9)
        assert 0 < found.share < 1


def test_a_program_reads_and_writes_what_its_kernel_says() -> None:
    """Every buffer is written once, and every tensor that is read was written or is an input."""
    kernels = cut("kda", gradient=True)
    inputs = {n.op.name for n in kernels.graph if isinstance(n.op, ir.Input)}
    written: list[str] = []
    for kernel in kernels.kernels:
        program = Program(kernel)
        assert {step.load for step in program.loads()} <= inputs | set(written)
        written += [name for name, _, _ in program.stored()]
    assert sorted(written) == sorted(buffer.name for buffer in kernels.buffers)

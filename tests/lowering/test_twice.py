"""Kernels of pairs of rows that decay, whose second launch is for chunks with hard gates."""

from __future__ import annotations

import pytest
import torch
from archc.backends.triton.kernel_program import KernelProgram, adds_up_few

import archc
from archc.compile import for_kernels, lowered
from archc.ir import layer as ir
from archc.ir.kernel import Kernel
from archc.lowering.kernels import Lowered
from archc.lowering.twice import HARD
from archc.runtime.kernels import chunks_of_run
from archc.tile.language import Program
from tests.few import slow
from tests.lowering import launches
from tests.lowering.launches import (
    OTHERS,
    SIZES,
    SMALL,
    Planned,
    launch,
    lowered_kernels,
    planned,
    plans,
)


def paired(spec: str, **scales: float) -> list[tuple[Planned, Kernel, Lowered]]:
    """The kernels of a memory and of its gradient that are launched twice."""
    found = []
    for plan in plans(spec, fused=False, scales=scales):
        for kernel, made in lowered_kernels(plan):
            assert isinstance(made, Lowered), made
            if any(buffer.name == HARD for buffer in made.program.buffers):
                found.append((plan, kernel, made))
    return found


def errors(found: list[tuple[Planned, Kernel, Lowered]]) -> float:
    """How far what kernels store is from what their graphs mean."""
    pairs = [pair for each in found for pair in launch(*each).values()]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-9)) for a, b in pairs)


@pytest.mark.default("kda")
@pytest.mark.parametrize(("spec", "gate"), [("kda", "log_alpha"), ("rwkv7", "log_w")])
def test_the_second_launch_makes_chunks_with_hard_gates(
    monkeypatch: pytest.MonkeyPatch, spec: str, gate: str
) -> None:
    """Some are hard here, and others not: the first launch alone is right for those others."""
    found = paired(spec, **{gate: 30.0})
    assert len(found) == 2
    assert errors(found) < 1e-7
    once, flags = launches._launches, list[torch.Tensor]()

    def first(made: Lowered, tensors: dict, known: dict) -> list[dict]:
        both = once(made, tensors, known)
        flags.append(tensors[HARD])
        return both[:1]

    monkeypatch.setattr(launches, "_launches", first)
    assert not errors(found) < 1e-7
    assert {0, 1} == {int(flag) for each in flags for flag in each.flatten()}


@pytest.mark.default("bf16-0.02-0.0")
@pytest.mark.parametrize("gate", [-5.0, 0.0])
@pytest.mark.parametrize(("operand", "far"), [("", 1e-9), slow(("f32", 1e-4)), ("bf16", 2e-2)])
def test_gates_that_all_are_at_a_bound(
    monkeypatch: pytest.MonkeyPatch, gate: float, operand: str, far: float
) -> None:
    """Of -5 a token a chunk forgets exp(-320): far more than rows at its middle have room for."""
    monkeypatch.setitem(launches.SIZES, "chunk", 64)
    layer = for_kernels(lowered(archc.load("kda").layer))
    (recurrence,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    sizes = SIZES["batch"], 70, OTHERS["H"], SMALL
    known = {"log_alpha": torch.full(sizes, gate, dtype=torch.float64)}
    plan = planned("kda", recurrence, recurrence.chunked.forward, known, tokens=70)
    for kernel, made in lowered_kernels(plan):
        assert isinstance(made, Lowered), made
        for name, (found, wanted) in launch(plan, kernel, made, operand).items():
            assert found.isfinite().all(), name
            assert (found - wanted).norm() <= far * wanted.norm() + 1e-30, name


@pytest.mark.slow
def test_few_matrices_of_pairs_leave_registers_for_a_fourth_program() -> None:
    """One of gla's forward; not where its system is solved (kda), not four of rwkv7."""
    few = {
        spec: [adds_up_few(KernelProgram(kernel, made)) for _, kernel, made in paired(spec)]
        for spec in ("gla", "kda", "rwkv7")
    }
    assert few == {"gla": [True, False], "kda": [False, False], "rwkv7": [False, False]}


def test_few_programs_look_at_a_chunk_each() -> None:
    assert (chunks_of_run(100), chunks_of_run(8192)) == (1, 16)


@pytest.mark.default("gla")
@pytest.mark.parametrize("spec", ["kda", "gla"])
def test_gates_in_bfloat16_are_summed_up_to_borders_by_products(
    monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    """The numbers are those that differences of sums give, of chunks with hard gates too."""
    forward, real, product = paired(spec, log_alpha=30.0)[0], launches.run, torch.matmul
    found, dots = [], list[int]()
    for dtype in (torch.float64, torch.bfloat16):

        def rounded(
            program: Program, tensors: dict, sizes: dict, fixed: dict, exact: bool,
            gate: torch.dtype = dtype,
        ) -> None:  # fmt: skip
            gates = tensors["log_alpha"].bfloat16()
            tensors |= {"log_alpha": gates.to(gate)}
            real(program, tensors, sizes, fixed | {"SUMS": "f32"}, exact=exact)

        def noted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            dots[-1] += 1
            return product(a, b)

        dots.append(0)
        monkeypatch.setattr(launches, "run", rounded)
        with monkeypatch.context() as patched:
            patched.setattr(torch.Tensor, "__matmul__", noted)
            found.append({name: stored for name, (stored, _) in launch(*forward).items()})
    assert dots[0] < dots[1]
    for name, stored in found[0].items():
        torch.testing.assert_close(found[1][name], stored, rtol=1e-9, atol=1e-12, msg=name)

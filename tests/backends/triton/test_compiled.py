"""Generated kernels become machine code for sm_90, without a GPU: Triton compiles ahead of time."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

import archc
from archc.compile import in_kernels, lowered
from archc.runtime.together import SPILLED
from archc.schedule.memory import Tiles
from archc.schedule.program import Program

pytest.importorskip("triton")

from tests.backends.triton.compiled import all_machine_code, launches_of, planned, promised, usual
from tests.backends.triton.launches import ROOM, SHARED, MachineCode, distinct, machine_code
from tests.backends.triton.texts import layer_text
from tests.gpu.memories import SPECS

ROOT = Path(__file__).parents[3]


def misfit(made: MachineCode) -> str:
    """What is wrong with a kernel."""
    if made.shared > SHARED:
        return f"{made.name}: {made.shared} bytes of shared memory"
    if made.large and not made.wgmma:
        return f"{made.name}: large products, and no wgmma"
    return ""


def test_small_kernels_compile_for_a_hopper_gpu() -> None:
    """A kernel before and along the chunks, which makes outputs, and three of the gradient; none
    spills."""
    made = [machine_code(each) for each in launches_of(usual("linear_attention_simple", 16))]
    assert len(made) >= 5
    assert not [line for line in map(misfit, made) if line]
    assert all(each.stack == 0 for each in made)
    assert any(each.wgmma for each in made) and any(not each.large for each in made)


@pytest.mark.parametrize(("dim", "dtype", "warps"), [
    (16, "bfloat16", {4}), (128, "bfloat16", {4, 8}), (16, "float32", {4, 8}),
])  # fmt: skip
def test_plans_know_how_many_warps_a_program_has(dim: int, dtype: str, warps: set[int]) -> None:
    """So they know how many registers there are. Half of 8 are enough for short dims in 16 bits."""
    case = usual("linear_attention_simple", dim, dtype)
    plan = planned(case)
    found = {each.name: each.options["num_warps"] for each in launches_of(case)}
    made = {name: Tiles(Program(*plan[name])).warps for name in found}
    assert made == found and {*made.values()} == warps


def test_launches_are_written_down() -> None:
    """As they stand in the file: two launches of the same kernel are one piece of machine code."""
    case = usual("linear_attention_simple", 16)
    found = launches_of(case)
    assert [each.grid for each in found[:1]] == [(case.B * 2 * case.H,)]
    first = found[0]
    assert first.constants["K"] == first.constants["B_K"] == 16
    assert {"T", "CHUNKS"}.isdisjoint([*first.constants, *first.aligned])
    pointers = {n: k for n, k in first.signature.items() if k.startswith("*")}
    assert set(pointers.values()) <= {"*bf16", "*fp32"} and pointers.keys() <= {*first.aligned}
    assert len(distinct([*found, *found])) == len(found)
    wider = launches_of(usual("linear_attention_simple", 16, "float32"))
    assert {each.key for each in found}.isdisjoint(each.key for each in wider)
    again = launches_of.__wrapped__(case)
    assert [each.key for each in again] == [each.key for each in found]


@pytest.mark.slow
def test_two_programs_of_a_delta_rule_walk_at_once() -> None:
    """Its products wait for each other: with half of the columns, one waits while the other
    multiplies. Of what solves its systems there are three programs."""
    launches = {each.name: each for each in distinct(launches_of(usual("delta", 128)))}
    walk, solve = (
        next(each for name, each in launches.items() if name.endswith(f"y_kernels_{role}"))
        for role in ("inter_chunk_scan", "solve_tril")
    )
    assert walk.constants["BLOCK"] == 32 and solve.options["maxnreg"] == 168
    made = machine_code(walk)
    assert 2 * made.shared <= SHARED and 2 * made.registers * 32 * made.warps <= 1 << 16
    assert made.stack == 0


@pytest.mark.parametrize(("dim", "dtype", "warps", "block"), [
    (64, "float32", 4, 64), (128, "float32", 4, 32), (256, "float32", 8, 64),
    (128, "bfloat16", 4, 64), (256, "bfloat16", 4, 64),
])  # fmt: skip
def test_walks_of_long_states_in_float32_have_more_warps(
    dim: int, dtype: str, warps: int, block: int
) -> None:
    """And shorter blocks; the plan knows them."""
    case = usual("gla", dim, dtype, 16)
    walks = [each for each in launches_of(case) if each.name.endswith("y_kernels_inter_chunk_scan")]
    assert {each.options["num_warps"] for each in walks} == {warps}
    assert {each.given["BLOCK"] for each in walks} == {block}
    plan = planned(case)
    assert {Program(*plan[each.name]).most for each in walks} == {block}


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "most"), [
    ("gla", 512), ("kda", 640), ("linear_attention_simple", 1024), ("gated_delta", 1024),
    ("delta", 1024),
])  # fmt: skip
def test_walks_of_long_states_in_float32_spill_little(spec: str, most: int) -> None:
    """Bytes of a thread; with 4 warps those of the first three took 1,768 to 2,352."""
    found = distinct(launches_of(usual(spec, 256, "float32", 16)))
    walks = [each for each in found if each.name.endswith("y_kernels_inter_chunk_scan")]
    assert walks and all(machine_code(each).stack <= most for each in walks)


def test_systems_compile_for_a_blackwell_gpu() -> None:
    """Triton 3.6 fails for it on a largest entry that is asked for dim by dim."""
    launches = {each.name: each for each in launches_of(usual("delta", 64))}
    solve = next(each for n, each in launches.items() if n.endswith("y_kernels_chunk_prepare"))
    assert machine_code(solve, 100).shared <= ROOM[100]


def test_what_does_not_fit_is_told() -> None:
    fits = MachineCode("f", 4, SHARED, 255, 0, large=True, wgmma=True, seconds=1.0)
    assert not misfit(fits)
    large = MachineCode("f", 4, SHARED + 1, 255, 0, large=True, wgmma=True, seconds=1.0)
    assert misfit(large) == "f: 232449 bytes of shared memory"
    slow = MachineCode("f", 4, 0, 255, 0, large=True, wgmma=False, seconds=1.0)
    assert misfit(slow) == "f: large products, and no wgmma"


@pytest.mark.slow
def test_a_spec_that_calls_another_has_its_kernels() -> None:
    """So only specs with a memory of their own are compiled."""

    texts = {s: layer_text(lowered(archc.load(s).layer), in_kernels) for s in ("gla", "gla_block")}
    kernels = {s: [line for line in t.split("\n") if "_kernels_" in line] for s, t in texts.items()}
    assert kernels["gla"]
    assert set(kernels["gla"]) <= set(kernels["gla_block"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "dtype"), [(64, "bfloat16"), (128, "bfloat16"), (64, "float32"), (100, "float16")]
)
def test_every_kernel_compiles_for_a_hopper_gpu(dim: int, dtype: str) -> None:
    """Every distinct kernel of the bundled specs fits into what a program may have."""
    cases = [usual(spec, dim, dtype) for spec in SPECS]
    made = [code for _, code in all_machine_code(cases)]
    assert len(made) >= 5 * len(SPECS)
    assert not [line for line in map(misfit, made) if line]


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 100])
def test_every_kernel_compiles_for_older_and_newer_gpus(capability: int) -> None:
    """In the room that a program has there, with fewer stages where a file would take fewer."""
    cases = [usual(spec, 64) for spec in SPECS]
    made = [code for _, code in all_machine_code(cases, capability=capability)]
    assert len(made) >= 5 * len(SPECS)
    assert not [(m.name, m.shared) for m in made if m.shared > ROOM[capability]]


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["linear_attention_simple", "gla", "gated_delta", "mlstm"])
def test_nothing_spills_where_the_plan_promised_none(spec: str) -> None:
    """Bytes of stack that the compiler took for what the plan says fits into registers."""
    case = usual(spec, 64)
    made = {code.name: code.stack for _, code in all_machine_code([case])}
    names = promised(case) & made.keys()
    limited = {each.name for each in launches_of(case) if "maxnreg" in each.options}
    assert len(names) >= 3
    assert {name: made[name] for name in names - limited if made[name]} == {}
    assert all(made[name] <= 4 * SPILLED for name in names & limited)  # for one more program


@pytest.mark.slow
def test_scans_of_a_matrix_for_every_row_are_short() -> None:
    """Such a tile is gone through index by index; as a whole it took compilers minutes. The first
    kernel spills 328 bytes with the masks of a last chunk, none without."""
    case = usual(str(Path(__file__).parent / "recurrences/by_element.arch"), 32)
    made = [machine_code(each) for each in distinct(launches_of(case))]
    assert len({code.name for code in made}) == 6
    assert max(code.seconds for code in made) < 20
    assert sum(code.stack for code in made) < 512


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dim", "dtype", "chunk"), [(256, "float32", 16), (128, "bfloat16", 32), (128, "float32", 16)]
)
def test_a_large_matrix_goes_along_the_rows(dim: int, dtype: str, chunk: int) -> None:
    """To square it there are neither registers nor shared memory: ptxas gave up, and with 32 rows
    Triton asked a GPU for 294,912 bytes."""
    found = distinct(launches_of(usual("ssm", dim, dtype, chunk=chunk)))
    made = [machine_code(each) for each in found if "_memory_kernels_" in each.name]
    assert len(made) == 3
    assert not [line for line in map(misfit, made) if line]


@pytest.mark.slow
def test_the_newest_triton_compiles_them_too(tmp_path: Path) -> None:
    """In an environment of its own that sees the packages of this one, and a newer Triton first."""
    venv.create(tmp_path / "newest", with_pip=True, system_site_packages=False)
    python = str(tmp_path / "newest/bin/python")
    command = [python, "-m", "pip", "install", "-q", "--no-input", "--upgrade", "triton"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.skip(f"the newest Triton cannot be installed: {done.stderr.strip()[-300:]}")
    (newest,) = tmp_path.glob("newest/lib/python*/site-packages")
    packages = Path(torch.__file__).parents[1]
    path = os.pathsep.join([str(newest), str(ROOT), str(packages)])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    script = ["-m", "tests.backends.triton.compiled", "gla", "delta", "mlstm", "--dims", "64"]
    made = subprocess.run(
        [sys.executable, *script], env=environment, cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr[-3000:]
    version = "import triton; print(triton.__version__, triton.__file__)"
    told = subprocess.run(
        [sys.executable, "-c", version], env=environment, cwd=ROOT, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert str(newest) in told.stdout
    assert len(made.stdout.splitlines()) > 18 and " NO " not in made.stdout, made.stdout

"""What the tests on a GPU are made of, without one: a case under Triton's interpreter, processes
that end, errors that are seen."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.gpu import cases, extremes, pool, record, sweep, worker
from tests.gpu.cases import Case
from tests.gpu.measure import GATE, GRADIENT, OUTPUT, costs, exact, limit, relative
from tests.gpu.memories import SPECS, memories
from tests.gpu.pool import SPOILED, run_all
from tests.gpu.rounded import raised, solves
from tests.gpu.sanitize import raced
from tests.gpu.sweep import cases_of
from tests.gpu.values import values_for

SMALL = Case("gla", "float32", 16, H=1, K=12, V=20, B=1, T=17, holes=0.1)


POSITIVE = Case("linear_attention", H=1, K=16, V=16, B=1, T=320, values="positive")


@pytest.fixture(scope="module")
def done() -> dict[Case, dict[str, Any]]:
    """Two cases, one after the other in a process of their own."""
    pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        return dict(run_all([SMALL, POSITIVE], "cpu", workers=1, seconds=600))


@pytest.mark.slow
def test_a_case_runs_in_a_process_of_its_own(done: dict[Case, dict[str, Any]]) -> None:
    found = done[SMALL]
    assert record.problems((SMALL, found)) == []
    assert found["repeats"] is True
    names = {name.rpartition(": ")[2] for name in found["errors"]}
    assert names >= {"o", "S", "d q", "d k", "d v", "d log_alpha", "d S", "o in inference"}


def test_what_quotients_cancel_is_not_lost(done: dict[Case, dict[str, Any]]) -> None:
    """A gradient in 16 bits that is a small part of each of its terms: values have a mean."""
    found = done[POSITIVE]
    assert record.problems((POSITIVE, found)) == []
    assert found["errors"]["grad linear_attention_memory: d q"][0] < 0.004


@pytest.mark.slow
def test_a_process_that_ends_costs_its_case_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    done = dict(run_all([Case("no spec"), SMALL], "cpu", workers=1, seconds=600))
    assert "the process was ended by itself" in record.problems((SMALL, done[Case("no spec")]))[0]
    assert record.problems((SMALL, done[SMALL])) == []


def test_a_launch_that_fails_late_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(worker, "measure", lambda *_: {})
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    found = worker.result('{"spec": "gla"}', "cuda")
    assert any(word in str(found["failed"]) for word in SPOILED) and "errors" not in found


def test_errors_are_relative_and_numbers() -> None:
    wanted = torch.tensor([3.0, -4.0, -torch.inf], dtype=torch.float64)
    assert relative(wanted, wanted) == 0
    assert relative(wanted, torch.tensor([3.0, -4.4, -torch.inf])) == pytest.approx(0.08)
    assert relative(wanted, torch.tensor([3.0, torch.nan, -torch.inf])) == torch.inf
    assert relative(wanted, torch.tensor([3.0, -4.0, 0.0])) == torch.inf
    nothing, rest = torch.tensor([1e-17, 0.0]).double(), torch.tensor([3e-8, 0.0])
    assert relative(nothing, rest) == 0 and relative(nothing, 100 * rest) > 1
    assert relative(nothing + 1e-9, rest) > 1


def test_what_is_over_its_limit_is_told() -> None:
    bad = {"errors": {"out gla_memory: o": (0.006, 0.005)}, "repeats": False}
    assert record.problems((SMALL, bad)) == ["out gla_memory: o 6.0e-03 > 0.005", "two runs differ"]
    row = record.rows([(SMALL, bad)])[0]
    assert (row["cases"], row["wrong"], row["out"]["error"]) == (1, 1, 0.006)
    assert any("WRONG spec=gla" in line for line in record.table([(SMALL, bad)]))


def test_a_run_goes_on_where_an_earlier_one_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the log is not run again, but for what found no memory; both commits are told."""
    log, output = tmp_path / "log", tmp_path / "out"
    asked = cases_of(["first"], ["gla"], 0, 0)
    full = {"failed": "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"}
    bad = {"errors": {"out gla_memory: o": (0.006, 0.005)}}
    for found in (full, bad):
        record.keep(log, (asked[0], found), record.where("cpu") | {"commit": "old"})
    record.keep(log, (asked[1], full), record.where("cpu"))
    ran: list[Case] = []

    def runs(cases: list[Case], *_: Any) -> Iterator[pool.Done]:
        ran.extend(cases)
        yield cases[0], {"errors": {}, "seconds": 1}

    monkeypatch.setattr(sweep, "run_all", runs)
    told = ["first", "--specs", "gla", "--device", "cpu", "--commit", "new"]
    assert sweep.main([*told, "--log", str(log), "-o", str(output)]) == 1
    made = json.loads(output.read_text(encoding="utf-8"))
    assert ran == asked[1:] and made["commit"] == ["old", "new"]
    assert (made["cases"], made["not run"], made["wrong"]) == (2, len(asked) - 2, 1)
    assert [*record.kept(log)] == asked[:2]


def test_limits_are_those_of_the_peer() -> None:
    narrow = replace(SMALL, dtype="bfloat16")
    assert [limit(narrow, name) for name in ("o", "S")] == [OUTPUT] * 2 == [0.005] * 2
    assert [limit(narrow, f"d {name}") for name in ("q", "S")] == [GRADIENT] * 2 == [0.008] * 2
    assert limit(narrow, "d log_alpha") == GATE == 0.02
    assert limit(SMALL, "d log_alpha") == 1e-4


ALIKE = Case(
    "rwkv7", chunk=32, H=1, K=16, B=1, T=127, gate=10.0, kept=0.5, values="positive", state=False,
    wide_gates=False, seed=6,
)  # fmt: skip
"""Keys that are much alike, and little that is forgotten: bfloat16 is short for corrections."""


@pytest.mark.slow
def test_limits_of_corrections_are_what_rounding_costs() -> None:
    """Of values that are not alike it costs less than the limits. Afterwards nothing rounds."""

    def cost(case: Case) -> dict[str, float]:
        (memory,) = memories(case.spec)
        values = values_for(memory, case, "cpu")
        return costs(memory, case, values, exact(memory, case, values))

    alike, usual = (cost(each) for each in (ALIKE, replace(ALIKE, values="normal")))
    assert alike["S"] > 2 * OUTPUT and alike["d kappa"] > GRADIENT
    assert not [name for name, each in usual.items() if each > limit(ALIKE, name)]
    assert cost(replace(ALIKE, dtype="float16"))["S"] < alike["S"] / 4
    x = torch.full((2, 2), 1 + 2**-20, dtype=torch.float64)
    assert torch.equal(x @ x, 2 * x * x)


@pytest.mark.slow
def test_limits_are_raised_a_little() -> None:
    assert raised(0.005, 0.003) == 0.005 and raised(0.005, 0.006) == 0.0075
    assert raised(0.005, 1.0) == 0.02


@pytest.mark.slow
def test_what_solves() -> None:
    assert solves(memories("rwkv7")[0]) and solves(memories("mesa")[0])
    assert not solves(memories("gla")[0])


@pytest.mark.slow
def test_kernels_round_corrections_as_any_chunked_form(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    ((_, found),) = run_all([ALIKE], "cpu", workers=1, seconds=600)
    assert record.problems((ALIKE, found)) == []
    error, most = found["errors"]["out rwkv7_memory: S"]
    assert OUTPUT < error < most


def test_a_case_without_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    full = {"failed": "Triton Error [CUDA]: out of memory"}
    said = [full, {"seconds": 1}, *[full] * pool.TRIES]
    monkeypatch.setattr(pool, "WAIT", 0)
    monkeypatch.setattr(pool.Worker, "run", lambda *_: said.pop(0))
    end = time.monotonic() + 600
    assert pool.Worker("cpu").run_in_turn(SMALL, False, 60, end) == {"seconds": 1}
    assert pool.Worker("cpu").run_in_turn(SMALL, False, 60, end) == full and not said


def test_random_cases_are_the_same_ones_every_time() -> None:
    found = cases_of(["random"], ("gla", "kda"), 100, seed=0)
    assert found == cases_of(["random"], ("gla", "kda"), 100, seed=0)
    assert len(found) == 100 and len({case.variant for case in found}) <= 2 * 5
    assert len(cases.by_variant(found)) == len({case.variant for case in found})


def test_values_are_laid_out_as_asked() -> None:
    memory = memories("gla")[0]
    for layout in ("turned", "sliced", "shared heads"):
        case = replace(SMALL, H=2, layout=layout)
        values = values_for(memory, case, "cpu")
        assert not values["q"].is_contiguous() and values["q"].shape == (1, 17, 2, 12)
        assert values["S"].dtype == torch.float32 and torch.isfinite(values["S"]).all()
        assert (values["log_alpha"] == -torch.inf).any()


@pytest.mark.parametrize(
    "what", ["memory", *(pytest.param(each, marks=pytest.mark.slow) for each in ("long", "wide"))]
)
def test_extremes_run_without_a_gpu(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that runs out in a gradient leaves everything as it was."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert extremes.apart(what, "linear_attention_simple", "cpu")["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_small_cases_under_the_interpreter(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and many tokens for a chunk, dims that fill no tile, gates that forget all, bfloat16."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    given = list(cases.small(spec))
    done = list(run_all(given, "cpu", workers=1, seconds=36_000, patience=36_000))
    assert len(done) == len(given)
    assert not [f"{one[0]}: {line}" for one in done for line in record.problems(one)]


SAID = """
========= Error: Potential WAW hazard detected at __shared__ 0x{} in block (2,0,0) :
=========     Write Thread (79,0,0) at gla_memory_kernels_pairs+0x2130 in <generated>:1635
=========     Write Thread ({}) at gla_memory_kernels_pairs+{} in <generated>:1635
=========     Current Value : 52, Incoming Value : 53
"""


def test_threads_that_write_one_sum_are_no_race() -> None:
    """Lanes of a warp, and threads of several where only the lowest byte differs."""
    lane, lowest = ("429", "80,0,0", "0x2130"), ("428", "96,0,0", "0x2130")
    other, later = ("429", "96,0,0", "0x2130"), ("428", "80,0,0", "0x2140")
    said = "".join(SAID.format(*each) for each in (lane, other, lowest, later, lane))
    races, shared = raced(said)
    assert shared == 3 and len(races) == 2
    assert "429" in races[0] and "96" in races[0] and "0x2140" in races[1].split()[-1]
    with pytest.raises(AssertionError, match="other words"):
        raced("Potential RAW hazard detected, and so on")

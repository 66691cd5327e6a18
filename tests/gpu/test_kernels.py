"""Generated kernels on a GPU, against the eager form in float64, with the tolerances of
flash-linear-attention's tests and never looser ones: but where corrections in 16 bits are beyond
them, and rounding what is multiplied is, without any kernel, too (see `rounded`).

    python -m pytest -m gpu -n 12 tests/gpu

Every test runs its cases in a process of its own. `python -m tests.gpu.sweep` runs the same cases
and records what they come to.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest
import torch

from tests.gpu import cases, extremes, record, sanitize
from tests.gpu.cases import Case
from tests.gpu.memories import EVERY, SPECS
from tests.gpu.pool import run_all

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
RANDOM = 1000
"""Random cases of all specs together."""


def wrong(given: Sequence[Case]) -> list[str]:
    """What is wrong with cases, a line each; every one of them is run."""
    done = list(run_all(given, "cuda", workers=1, seconds=3600))
    assert len(done) == len(given)
    return [f"{one[0]}: {line}" for one in done for line in record.problems(one)]


@pytest.mark.parametrize("spec", EVERY)
@pytest.mark.parametrize("suite", cases.SUITES)
def test_cases(suite: str, spec: str) -> None:
    assert not wrong(list(cases.SUITES[suite](spec)))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("what", ["long", "memory"])
def test_extremes(what: str, spec: str) -> None:
    """A million tokens; memory that runs out in the gradient."""
    assert extremes.apart(what, spec, "cuda")["wrong"] == []


def test_more_elements_than_32_bits_count() -> None:
    assert extremes.apart("wide", "linear_attention_simple", "cuda")["wrong"] == []


@pytest.mark.parametrize("spec", sanitize.CLASSES)
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool: str, spec: str) -> None:
    if shutil.which("compute-sanitizer") is None:
        pytest.skip("there is no compute-sanitizer")
    _, _, right, said = sanitize.watched(spec, tool)
    assert right, said


@pytest.mark.parametrize("spec", EVERY)
def test_random_shapes(spec: str) -> None:
    assert not wrong(list(cases.some(spec, -(-RANDOM // len(EVERY)), seed=0)))

"""Small recurrences that nobody would call an architecture: powers, remainders, comparisons, dims
and states of all kinds. Nothing in the compiler was written for them."""

from __future__ import annotations

from pathlib import Path

import pytest

import archc
from archc.compile import file_of
from archc.verify.measures import instance_of, measures
from tests.backends.triton import test_interpreted, test_stepped
from tests.backends.triton.compiled import launches_of, usual
from tests.backends.triton.launches import machine_code
from tests.backends.triton.test_compiled import misfit
from tests.few import few

pytest.importorskip("triton")

HERE = Path(__file__).parent / "unusual"
SPECS = sorted(HERE.glob("*.arch"))
WALKS = ("reductions",)
"""Those in chunks in PyTorch that kernels take token by token."""

pytestmark = pytest.mark.filterwarnings("ignore::archc.diagnostics.ArchWarning")
every = pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)


@pytest.mark.default("begun")
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[] if place % 3 == 0 or path.stem in WALKS else [pytest.mark.slow])
        for place, path in enumerate(SPECS)
    ],
    ids=lambda path: path.stem,
)
def test_a_file_with_kernels_checks_itself(path: Path) -> None:
    """Its values, pieces, gradients and chunks, in PyTorch, when it is written."""
    assert "_decode(" in file_of(archc.load(path).layer, "triton")


@pytest.mark.slow
def test_kernels_have_the_numbers() -> None:
    """Under Triton's interpreter, with gradients."""
    chunks = [f"layer {HERE / name}.arch 17 4" for name in ("running_sum", "log_sums")]
    assert not test_interpreted.wrong(test_interpreted.errors(*chunks))
    tokens = [f"train {HERE}/powers.arch 1 4"]
    assert not test_stepped.wrong(test_stepped.errors(*tokens))


@pytest.mark.parametrize("name", few(["powers", "remainders"], ["powers"]))
def test_functions_of_several_lines_compile_for_a_hopper_gpu(name: str) -> None:
    """Powers, and remainders of reals and of integers."""
    found = launches_of(usual(str(HERE / f"{name}.arch"), 16, "float32", 16))
    having = [x for x in found if "tile_" in x.kernel.src or "real_" in x.kernel.src]
    assert having and not [line for each in having if (line := misfit(machine_code(each)))]


@pytest.mark.slow
@every
def test_every_form_has_the_numbers_of_the_oracle(path: Path) -> None:
    """Outputs, gradients, pieces, packed sequences, chunks of several lengths, in float64."""
    forms = measures(instance_of(archc.load(path).layer, {}, 19))
    found = [(form, error(), limit) for form, error, limit in forms]
    assert not [each for each in found if not each[1] <= each[2]]


@pytest.mark.slow
@every
def test_kernels_of_every_one(path: Path) -> None:
    """In chunks or token by token, and of few tokens."""
    if "\nCHUNK = " in archc.load(path).source("triton"):
        found = test_interpreted.errors(f"layer {path} 20 4")
    else:
        found = test_stepped.errors(f"train {path} 5 4")
    assert not test_interpreted.wrong(found)
    assert not test_stepped.wrong(test_stepped.errors(f"{path} 3 4"))

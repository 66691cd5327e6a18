"""`archc doctor`, of this machine and of others."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from archc.backends.triton.quirks import QUIRKS

from archc.commands.doctor import (
    Machine,
    as_data,
    machine,
    obstacles,
    quirks_of,
    remarks,
    report,
    version_of,
)
from tests.console import run

HOPPER = Machine(
    "3.12.1", "0.1.0", "2.11.0+cu128", "12.8", "3.6.0", "2.3.5", "570.1", "NVIDIA H200", (9, 0),
    "cc",
)  # fmt: skip


def test_this_machine() -> None:
    done = run("doctor")
    assert done.exit_code == 0
    assert f"torch      {machine().torch}" in done.stdout
    data = json.loads(run("doctor", "--json").stdout)
    assert data["kernels"] == (not data["obstacles"])
    assert data["machine"]["python"] == machine().python


def test_where_all_is_there_kernels_run() -> None:
    assert list(obstacles(HOPPER)) == [] and list(remarks(HOPPER)) == []
    text = "\n".join(report(HOPPER))
    assert "NVIDIA H200, compute capability 9.0" in text and "\nkernels run here" in text
    assert as_data(HOPPER)["kernels"] is True


@pytest.mark.parametrize(
    ("lacks", "says"),
    [
        ({"triton": None}, "Triton is not installed"),
        ({"triton": "3.4.0"}, "Triton 3.4.0 is too old: kernels need 3.5 or newer"),
        ({"cuda": None, "device": None, "capability": None}, "this build of torch has no CUDA"),
        ({"device": None, "capability": None}, "torch finds no GPU"),
        ({"capability": (7, 5)}, "the GPU is of compute capability 7.5, below 8.0"),
        ({"compiler": None}, "there is no C compiler"),
    ],
)
def test_what_stands_in_the_way(lacks: dict[str, object], says: str) -> None:
    other = replace(HOPPER, **lacks)
    (why,) = obstacles(other)
    assert why.startswith(says)
    does = "refuse this Triton" if "too old" in says else "run their eager form"
    assert f"kernels do not run here: files {does}" in list(report(other))


def test_what_runs_may_surprise() -> None:
    (new,) = remarks(replace(HOPPER, capability=(10, 0)))
    assert "not been tried on compute capability 10.0" in new
    (numpy,) = remarks(replace(HOPPER, numpy="2.4.0"))
    assert "TRITON_INTERPRET" in numpy
    assert not list(remarks(replace(HOPPER, numpy="2.4.0", triton="3.7.0")))


def test_an_assembler_that_is_wrong_is_told_of() -> None:
    (old,) = remarks(replace(HOPPER, assembler="12.8"))
    assert "ptxas 12.8" in old and "TRITON_PTXAS_PATH" in old
    assert not list(remarks(replace(HOPPER, assembler="12.9")))
    assert machine().assembler is None or version_of(machine().assembler) >= (12, 9)


def test_quirks_are_those_of_the_machine() -> None:
    """With what is done about each, and where it was reported."""
    assert quirks_of(replace(HOPPER, capability=None, triton=None)) == list(QUIRKS)
    old = {quirk.id for quirk in quirks_of(replace(HOPPER, capability=(8, 0)))}
    new = {quirk.id for quirk in quirks_of(HOPPER)}
    assert new - old == {
        "turned-product", "warps-of-a-setting", "ptxas-12.8", "products-and-more",
    }  # fmt: skip
    text = "\n".join(report(HOPPER))
    for quirk in quirks_of(HOPPER):
        assert f"\n  {quirk.id}\n" in text and quirk.sources[0] in text
    assert "where: compute capability 9.0, Triton 3.5 to 3.6" in text, "of ptxas-12.8"
    assert "where: any GPU, any Triton" in text
    assert "block-pointers" not in text, "from Triton 3.7 on"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("3.6.0", (3, 6, 0)), ("3.5.1+git1", (3, 5, 1)), ("x", None), (None, None)],
)
def test_versions_are_numbers(text: str | None, numbers: tuple[int, ...] | None) -> None:
    assert version_of(text) == numbers

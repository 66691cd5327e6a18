"""The sizes and constants that kernels are given, beside what their texts name."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

import pytest
from archc.backends.triton.printer import to_triton

import archc
from archc.compile import programs_of
from archc.tile.given import given_names
from archc.tile.language import Program
from tests.few import few
from tests.tile.cases import CASES, Drawn

BY_TORCH = {"cross_attention"}
"""Specs that torch's own attention does whole: they have no kernels."""

SPECS = sorted(
    {path.stem for path in (Path(__file__).parents[2] / "specs").glob("*.arch")} - BY_TORCH
)


def _named(program: Program) -> set[str]:
    """The sizes and constants that the statements of the last function of a text name."""
    *_, kernel = ast.parse(to_triton(program)).body
    assert isinstance(kernel, ast.FunctionDef)
    words = {n.id for s in kernel.body for n in ast.walk(s) if isinstance(n, ast.Name)}
    return words & {*program.constants, *(symbol.name for symbol in program.sizes)}


def _check(programs: Mapping[str, Program]) -> None:
    assert programs
    for title, program in programs.items():
        assert given_names(program) == _named(program), title


@pytest.mark.parametrize("spec", few(SPECS, ("kda", "lstm", "mlstm", "nsa")))
def test_a_kernel_is_given_what_its_text_names(spec: str) -> None:
    _check(programs_of(archc.load(spec).layer))


def test_programs_written_by_hand_are_given_what_their_texts_name() -> None:
    _check({title: case(Drawn()).program for title, case in CASES.items()})

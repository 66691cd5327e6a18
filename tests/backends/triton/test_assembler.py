"""Which assembler makes the machine code of kernels."""

from __future__ import annotations

import os

import pytest

triton = pytest.importorskip("triton")
pieces = pytest.importorskip("archc.runtime.jit")
VARIABLE = "TRITON_PTXAS_PATH"


@pytest.mark.parametrize(("release", "taken"), [("3.5.1", True), ("3.6.0", True), ("3.7.1", False)])
def test_the_newer_one_where_triton_has_two(
    release: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(triton, "__version__", release)
    pieces.newer_assembler()
    found = os.environ.get(VARIABLE, "")
    assert found.endswith("ptxas-blackwell") is taken and (not taken or os.access(found, os.X_OK))
    monkeypatch.delenv(VARIABLE, raising=False)


def test_another_that_is_asked_for_goes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/usr/bin/ptxas")
    pieces.newer_assembler()
    assert os.environ[VARIABLE] == "/usr/bin/ptxas"


def test_kernels_are_assembled_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(triton, "__version__", "3.6.0")
    pieces.newer_assembler()
    tool = triton.knobs.nvidia.ptxas
    assert tuple(map(int, tool.version.split("."))) >= (12, 9)
    monkeypatch.delenv(VARIABLE, raising=False)

"""Settings that `archc tune` found: read when a file is told to, refused where they do not hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from archc.backends.load import load

import archc
from archc.compile import text_of
from archc.runtime import tuned

NAMED = {"B_K": 128, "CHUNK": 64, "DOT": "bf16", "H": 32, "num_warps": 4}
KIND = "B_K=128 CHUNK=64 DOT=bf16 programs=2^10"


class Kernel:
    """A kernel that notes how it was launched."""

    src = "def walk(): ..."

    def __init__(self) -> None:
        self.launched: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *given, **named: self.launched.append(named)


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The kernel of a file on a machine with a GPU."""
    made = Kernel()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    return made


def settings(path: Path, **changed: Any) -> str:
    """A file of settings for the kernel."""
    here = {"device": "a GPU", "torch": torch.__version__, "triton": triton.__version__}
    source = tuned.kernel_digest(Kernel())
    entry = {"source": source, "settings": {KIND: {"num_warps": 8, "num_stages": 2}}}
    data = {"valid_for": here, "kernels": {"walk": entry}} | changed
    path.write_text(json.dumps(data))
    return str(path)


def test_launches_of_a_class_get_its_settings(walk: Kernel, tmp_path: Path) -> None:
    named: dict[str, Any] = {"walk": walk}
    tuned.take_settings(settings(tmp_path / "tuned.json"), named)
    launcher = named["walk"]
    launcher[(1000,)](**NAMED)
    launcher[(513,)](**NAMED)
    launcher[(5000,)](**NAMED)
    launcher[(1000,)](**{**NAMED, "B_K": 64})
    launcher[(1000,)](**{**NAMED, "H": 2})
    better = {**NAMED, "num_warps": 8, "num_stages": 2}
    as_shipped = [NAMED, {**NAMED, "B_K": 64}]
    assert walk.launched == [better, better, *as_shipped, {**better, "H": 2}]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"valid_for": {"device": "another GPU"}}, "is valid for"),
        ({"kernels": {"walk": {"source": "0", "settings": {}}}}, "of other kernels, see `walk`"),
        ({"kernels": {"gone": {"source": "0", "settings": {}}}}, "of other kernels, see `gone`"),
    ],
)
def test_settings_that_do_not_hold_are_refused(
    walk: Kernel, tmp_path: Path, changed: dict[str, Any], told: str
) -> None:
    path = settings(tmp_path / "tuned.json", **changed)
    named = {"walk": walk}
    with pytest.raises(ValueError, match=told):
        tuned.take_settings(path, named)
    assert named == {"walk": walk}


def test_a_generated_file_reads_settings_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(archc.load("linear_attention_simple").layer, "triton")
    assert text.count("use_tuned(") == 2
    load(text, "untold")
    monkeypatch.setenv("ARCHC_TUNED", "no_such_file.json")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    load(text + "\n", "told_without_a_gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(FileNotFoundError):
        load(text + "\n\n", "told")


def test_without_kernels_there_is_nothing_to_tune() -> None:
    assert "ARCHC_TUNED" not in text_of(archc.load("attention").layer, "triton")

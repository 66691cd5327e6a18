"""Settings that `archc tune` found: read when a file is told to, refused where they do not hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton
from archc.backends import measured
from archc.backends.load import load

import archc
from archc.compile import text_of
from archc.runtime import tuned
from archc.runtime.launch import launch_kernel

FIXED = {"B_K": 128, "CHUNK": 64, "DOT": "bf16", "H": 32}
KIND = "B_K=128 CHUNK=64 DOT=bf16 programs=2^10"


class Kernel:
    """A kernel that notes how it was launched."""

    measured: Any
    arg_names: list[str]

    def __init__(self) -> None:
        self.src, self.fn = "def walk(): ...", None
        self.launched: list[dict[str, Any]] = []

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda *given, **named: self.launched.append(named)


@pytest.fixture
def walk(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """The kernel of a file on a machine with a GPU."""
    made = Kernel()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(measured, "kind_of_device", lambda: (9, 0, 132))
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
    shipped = {"num_warps": 4}
    for programs, more in (
        (1000, {}),
        (513, {}),
        (5000, {}),
        (1000, {"B_K": 64}),
        (1000, {"H": 2}),
    ):
        walk.arg_names = [*(FIXED | more)]
        launch_kernel(walk, programs, [], [], {**FIXED, **more}, shipped)
    assert shipped == {"num_warps": 4}
    better, before = {"num_warps": 8, "num_stages": 2}, {"num_warps": 4}
    assert walk.launched == [
        FIXED | better, FIXED | better, FIXED | before, FIXED | {"B_K": 64} | before,
        FIXED | {"H": 2} | better,
    ]  # fmt: skip


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
    assert named == {"walk": walk} and not hasattr(walk, "measured")


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


PRINTED = 'def walk(a, b):\n    """One."""\n    tl.store(a, b)\n'


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (PRINTED.replace("One", "A sum, kda.arch:7"), True),
        (PRINTED.replace("(a, b):", "(\n    a,\n    b,  # b\n):"), True),
        (PRINTED.replace("store(a, b)", "store(b, a)"), False),
        (PRINTED + "    tl.store(a, a)\n", False),
        (PRINTED.replace("tl.store", "if a:\n        tl.store"), False),
    ],
)
def test_a_kernel_is_known_by_what_it_does(text: str, same: bool) -> None:
    kernel, other = Kernel(), Kernel()
    kernel.src, other.src = PRINTED, text
    assert (tuned.kernel_digest(kernel) == tuned.kernel_digest(other)) is same


@pytest.fixture
def packaged(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The table of a device in the package."""
    entry = {
        "kernel": "walk", "source": tuned.kernel_digest(Kernel()),
        "settings": {KIND: {"num_warps": 8, "num_stages": 2}},
    }  # fmt: skip
    data = {
        "device": "a GPU", "kind": [9, 0, 132], "triton": triton.__version__, "kernels": [entry],
    }  # fmt: skip
    monkeypatch.setattr(measured, "tables", lambda: {"a_GPU.json": data})
    measured.table.cache_clear()
    yield data
    measured.table.cache_clear()


def test_the_packages_table_is_taken_by_the_text_of_a_kernel(
    walk: Kernel, packaged: dict[str, Any]
) -> None:
    assert measured.name_of("NVIDIA H100 80GB HBM3") == "NVIDIA_H100_80GB_HBM3.json"
    other, told = Kernel(), Kernel()
    other.src = "def walk(): another"
    told.measured = {"as it was told": {}}
    module = ModuleType("generated")
    vars(module).update(walk=walk, other=other, told=told)
    measured.take(module)
    assert walk.measured == packaged["kernels"][0]["settings"]
    assert other.measured == {} and told.measured == {"as it was told": {}}
    assert measured.told() == "measured on this device for 1 kernels, else by the cost model"


def test_a_device_of_the_same_kind_takes_a_table_and_says_whose(
    walk: Kernel, packaged: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a third")
    module = ModuleType("generated")
    vars(module).update(walk=walk)
    measured.take(module)
    assert walk.measured == packaged["kernels"][0]["settings"]
    said = "measured on a GPU, which has as many of such processors, for 1 kernels, else by the"
    assert measured.told() == f"{said} cost model"


@pytest.mark.parametrize(("field", "value"), [("triton", "1.0"), ("device", "another GPU")])
def test_a_device_without_a_table_says_so(
    field: str, value: str, walk: Kernel, packaged: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged[field] = value
    if field == "device":
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a third")
        monkeypatch.setattr(measured, "kind_of_device", lambda: (9, 0, 114))
    module = ModuleType("generated")
    vars(module).update(walk=walk)
    measured.take(module)
    assert not hasattr(walk, "measured")
    assert measured.told().startswith("by the cost model; measured ones are there for ")


def test_tables_in_the_package_are_of_their_device() -> None:
    for name, data in measured.tables().items():
        assert name == measured.name_of(data["device"]) and data["kernels"] and data["triton"]
        for each in data["kernels"]:
            for settings in each["settings"].values():
                assert {*settings} == {"num_warps", "num_stages"}

"""The file of settings: what it says, and what becomes of an older one."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.tune.candidates import Candidate
from archc.tune.store import document, joined, place, read

HERE = {"device": "a GPU", "torch": "2", "triton": "3"}
SOURCES = {"walk": "aa", "after": "bb"}


def settings(*launches: tuple[str, str, int]) -> dict:
    found = {(kernel, kind): Candidate(warps, 1) for kernel, kind, warps in launches}
    return document(found, SOURCES, HERE, {"date": "today"})


def test_settings_by_kernel_and_class() -> None:
    made = settings(("walk", "few", 4), ("walk", "many", 8), ("after", "many", 2))
    assert made["valid_for"] == HERE and [*made["kernels"]] == ["after", "walk"]
    assert made["kernels"]["walk"] == {
        "source": "aa",
        "settings": {
            "few": {"num_warps": 4, "num_stages": 1}, "many": {"num_warps": 8, "num_stages": 1},
        },
    }  # fmt: skip


def test_new_settings_go_over_old_ones_that_still_hold() -> None:
    old, new = settings(("walk", "few", 4), ("after", "many", 2)), settings(("walk", "many", 8))
    kernels = joined(old, new)["kernels"]
    assert {*kernels["walk"]["settings"]} == {"few", "many"} and "after" in kernels
    other = {**old, "kernels": {"walk": {**old["kernels"]["walk"], "source": "cc"}}}
    assert {*joined(other, new)["kernels"]["walk"]["settings"]} == {"many"}
    moved = {**old, "valid_for": {**HERE, "triton": "4"}}
    assert joined(moved, new) == new and joined({}, new) == new


def test_the_place_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = place("mine:Layer", "NVIDIA H200")
    assert found == tmp_path / "archc" / "tuned" / "mine-Layer_NVIDIA-H200.json"
    assert read(found) == {}

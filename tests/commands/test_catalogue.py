"""`archc list`, `archc explain` and `archc new`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from archc.commands.profile import in_short
from archc.specfile import bundled
from tests.console import run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_list_names_every_bundled_spec():
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(bundled())
    data = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in data] == list(bundled())
    assert all(entry["about"] and entry["layer"] for entry in data)


def test_the_long_list_says_class_and_cost():
    data = {entry["name"]: entry for entry in json.loads(run("list", "--long", "--json").stdout)}
    assert list(data) == list(bundled())
    assert "decay per channel of K" in data["kda"]["class"]
    assert data["attention"]["cache_bytes_per_token"] == 2 * 2 * 8 * 128
    assert data["kda"]["cache_bytes_per_token"] == 0 < data["kda"]["state_bytes"]
    assert all(entry["flops_per_token"] > 0 and entry["tokens"] == 4096 for entry in data.values())
    lines = run("list", "--long").stdout.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line.split()[0] for line in lines[1:] if re.match(r"\w+ .*(-|B)$", line)]
    assert rows == list(bundled())


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "1.00 kB"), (9999, "10.0 kB"),
        (541_000, "541 kB"), (999_600, "1.00 MB"), (6_298_000_000, "6.30 GB"),
    ],
)  # fmt: skip
def test_numbers_in_short(number: int, text: str):
    assert in_short(number, "B") == text


def test_explain():
    assert run("explain", "E0201").stdout.startswith("# E0201: ")
    assert run("explain", "e0201").exit_code == 0
    assert "E0201  a name is not declared" in run("explain").stdout
    done = run("explain", "E9201")
    assert done.exit_code == 2 and "Did you mean `E" in done.stderr


def test_new_copies_under_a_new_name(tmp_path: Path):
    done = run("new", "MyMemory", "--from", "kda")
    assert (done.exit_code, done.stdout) == (0, "")
    text = (tmp_path / "my_memory.arch").read_text("utf-8")
    assert text.startswith("layer MyMemory(d, H,")
    assert run("check", "my_memory.arch").exit_code == 0
    assert run("new", "MyMemory", "--from", "gla").exit_code == 1
    assert (tmp_path / "my_memory.arch").read_text("utf-8") == text
    assert run("new", "MyMemory", "--from", "gla", "--force").exit_code == 0


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_spec_can_be_started_from(name: str, tmp_path: Path):
    assert run("new", "Mine", "--from", name).exit_code == 0
    assert run("check", "mine.arch").exit_code == 0


@pytest.mark.parametrize("name", ["class", "torch", "__x", "a-b", "9x", "Ünder", "../x"])
def test_new_refuses_bad_names(name: str, tmp_path: Path):
    assert run("new", name, "--from", "kda").exit_code == 2
    assert list(tmp_path.iterdir()) == []

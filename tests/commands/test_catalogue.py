"""`archc list`, `archc explain` and `archc new`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archc.specfile import bundled
from tests.console import run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_list_names_every_bundled_spec():
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(bundled())
    data = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in data] == list(bundled())
    assert all(entry["about"] and entry["layer"] for entry in data)


def test_explain():
    assert run("explain", "E0201").stdout.startswith("# E0201: ")
    assert run("explain", "e0201").exit_code == 0
    assert "E0201  a name is not declared" in run("explain").stdout
    done = run("explain", "E021")
    assert done.exit_code == 2 and "Did you mean `E021" in done.stderr


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

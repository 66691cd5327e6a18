"""`archc list`, `archc explain` and `archc new`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from archc.cli import archc
from archc.commands import check
from archc.commands.profile import with_unit
from archc.specfile import bundled
from tests.console import run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_list_names_every_bundled_spec():
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(bundled())
    data = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in data] == list(bundled())
    assert all(entry["about"] and entry["layer"] for entry in data)


@pytest.mark.slow
def test_the_long_list_says_class_and_cost():
    """Of some specs: `test_gallery.py` has those of all."""
    told = json.loads(run("list", "[akl]*", "--long", "--json").stdout)
    data = {entry["name"]: entry for entry in told}
    assert list(data) == [name for name in bundled() if name[0] in "akl"]
    assert "decay per channel of K" in data["kda"]["class"]
    assert data["attention"]["cache_bytes_per_token"] == 2 * 2 * 8 * 128
    assert data["kda"]["cache_bytes_per_token"] == 0 < data["kda"]["state_bytes"]
    assert all(entry["flops_per_token"] > 0 and entry["tokens"] == 4096 for entry in data.values())
    lines = run("list", "--long", "a*").stdout.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line.split()[0] for line in lines[1:] if re.match(r"\w+ .*(-|B)$", line)]
    assert {"alibi", "attention"} <= {*rows} < {*bundled()}


@pytest.mark.default("gated*")
@pytest.mark.parametrize(
    ("pattern", "some", "not_"),
    [("gated*", "gated_delta", "kda"), ("Kimi", "kda", "gla"), ("*attention", "attention", "gla")],
)
def test_list_finds(pattern: str, some: str, not_: str):
    """By a pattern of names, or by a word of what is said of a spec."""
    names = [line.split()[0] for line in run("list", pattern).stdout.splitlines()]
    assert some in names and not_ not in names


def test_list_by_class():
    some = run("list", "[ak][dlt]*", "--class", "attention", "--json").stdout
    found = {each["name"] for each in json.loads(some)}
    assert {"attention", "alibi"} <= found and not found & {"kda", "lstm"}


@pytest.mark.default("form0-asked1")
@pytest.mark.parametrize("asked", [("no such thing",), ("alibi", "--class", "no such thing")])
@pytest.mark.parametrize(
    "form", [(), pytest.param(("--long",), marks=pytest.mark.slow), ("--json",)]
)
def test_a_search_without_a_match_is_no_wrong_usage(asked: tuple[str, ...], form: tuple[str, ...]):
    """Nothing in every form, and the same status in each: an empty answer is an answer."""
    done = run("list", *asked, *form)
    assert done.exit_code == 0 and done.stdout == ("[]\n" if "--json" in form else "")
    assert ("archc list" in done.stderr) == ("--json" not in form)


def test_cat_prints_the_file_as_it_is(tmp_path: Path):
    text = run("cat", "kda").stdout
    assert "recurrence S[K, V] over H" in text
    (tmp_path / "mine.arch").write_bytes(text.encode())
    assert run("cat", "mine.arch").stdout == run("cat", "kda:KDA").stdout == text
    assert run("cat", "no_such").exit_code == 1


def test_all_pages_as_data():
    assert "E0201" in json.loads(run("explain", "--json").stdout)


def test_shells_complete_codes():
    """As a shell asks for them, by the environment."""
    words = {"COMP_WORDS": "archc explain e020", "COMP_CWORD": "2"}
    asked = {**words, "_ARCHC_COMPLETE": "bash_complete"}
    told = CliRunner().invoke(archc, prog_name="archc", env=asked).stdout.split()
    assert "plain,E0201" in told and all(each.startswith("plain,E020") for each in told)


def test_shells_complete_specs():
    """The names that begin so, then files."""
    param = next(p for p in check.command.params if p.name == "specs")
    found = param.shell_complete(click.Context(check.command), "gated_")
    names = [each.value for each in found if each.type == "plain"]
    assert names == ["gated_delta", "gated_delta_product"]
    assert [each.type for each in found][-1] == "file"


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"), (7, "7 B"), (999, "999 B"), (1000, "1.00 kB"), (9999, "10.0 kB"),
        (541_000, "541 kB"), (999_600, "1.00 MB"), (6_298_000_000, "6.30 GB"),
    ],
)  # fmt: skip
def test_numbers_in_short(number: int, text: str):
    assert with_unit(number, "B") == text


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


def test_new_without_a_spec_is_a_recurrence_to_fill_in():
    assert run("new", "MyMemory").exit_code == 0
    assert run("check", "my_memory.arch").stderr.startswith("1 spec checked, nothing to report")
    assert run("verify", "my_memory.arch").exit_code == 0
    assert run("fmt", "--check", "my_memory.arch").exit_code == 0


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_spec_can_be_started_from(name: str, tmp_path: Path):
    assert run("new", "Mine", "--from", name).exit_code == 0
    assert run("check", "mine.arch").exit_code == 0


@pytest.mark.parametrize("name", ["class", "batch", "__x", "a-b", "9x", "Ünder", "../x"])
def test_new_refuses_bad_names(name: str, tmp_path: Path):
    assert run("new", name, "--from", "kda").exit_code == 2
    assert list(tmp_path.iterdir()) == []

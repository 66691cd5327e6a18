"""`archc check`: findings in every form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from archc.cli import archc
from tests.console import BAD, process, run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_check_prints_every_finding_and_counts_them():
    done = run("check", "-", "kda", stdin=BAD)
    assert done.exit_code == 1
    assert done.stdout.count("error[E0201]") == 2
    assert "2 specs checked, 2 errors" in done.stderr


def test_check_is_silent_when_asked():
    done = run("--quiet", "check", "kda")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_concise_findings():
    lines = run("check", "-", "--output-format", "concise", stdin=BAD).stdout.splitlines()
    assert lines[0] == "<stdin>:3:9: error[E0201]: `z` is not declared"
    assert len(lines) == 2


def test_json_findings():
    data = json.loads(run("check", "-", "--output-format", "json", stdin=BAD).stdout)
    assert [(f["code"], f["label"]["line"], f["label"]["column"]) for f in data] == [
        ("E0201", 3, 9), ("E0201", 4, 23),
    ]  # fmt: skip
    assert json.loads(run("check", "kda", "--output-format", "json").stdout) == []


def test_github_findings(tmp_path: Path):
    (tmp_path / "a,b%.arch").write_text(BAD)
    line = run("check", "a,b%.arch", "--output-format", "github").stdout.splitlines()[0]
    assert line.startswith("::error file=a%2Cb%25.arch,line=3,col=9,title=E0201::`z` is not")
    assert "%0A" in line


def test_colour_is_for_terminals():
    assert "\x1b[" not in process("check", "-", stdin=BAD).stdout
    shown = CliRunner().invoke(archc, ["check", "-"], input=BAD, color=True).stdout
    assert "\x1b[31m\x1b[1merror[E0201]\x1b[0m" in shown
    plain = CliRunner(env={"NO_COLOR": "1"}).invoke(archc, ["check", "-"], input=BAD, color=True)
    assert "\x1b[" not in plain.stdout

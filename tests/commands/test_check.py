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


GROWS = (
    "layer Forget(d, H, K):\n    input q[H, K], k[H, K], a[H, K]\n    recurrence S[K, K'] over H:\n"
    "        S[t] = diag(exp(a)) @ S[t-1] + k @ k.T\n        o    = S[t].T @ q\n    output o\n"
)


def test_warnings_are_those_of_compile(tmp_path: Path):
    """What stays a loop is said before a file is written; it is no error."""
    (tmp_path / "grows.arch").write_text(GROWS)
    done = run("check", "grows.arch", "kda")
    assert done.exit_code == 0
    assert done.stdout.startswith("warning[E0602]: `S` stays a loop over the tokens\n")
    assert "2 specs checked, 1 warning\n" in done.stderr
    compiled = run("compile", "grows.arch", "-o", "grows.py").stderr
    assert compiled.startswith(done.stdout)
    assert run("--quiet", "check", "grows.arch").stdout == ""
    data = json.loads(run("check", "grows.arch", "--output-format", "json").stdout)
    assert [(each["code"], each["severity"]) for each in data] == [("E0602", "warning")]
    line = run("check", "grows.arch", "--output-format", "github").stdout
    assert line.startswith("::warning file=grows.arch,line=")


def test_a_value_that_nothing_comes_of_is_a_warning():
    text = "layer Dead(d):\n    input x[d]\n    z = exp(x)\n    output y[d] = x\n"
    done = run("check", "-", stdin=text)
    assert done.exit_code == 0
    assert done.stdout.startswith("warning[E0226]: no output depends on `z`\n --> <stdin>:3:5\n")
    assert run("--quiet", "check", "-", stdin=text).stdout == ""


def test_a_loop_that_is_meant_is_no_warning(tmp_path: Path):
    text = GROWS.replace("    recurrence", "    chunk: sequential\n    recurrence")
    done = run("check", "-", stdin=text)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "nothing to report" in done.stderr


def test_a_text_for_a_size_is_one_finding():
    done = run("check", "kda", "--set", "K=foo", "--output-format", "concise")
    assert done.exit_code == 1
    assert [line.split(": ")[1] for line in done.stdout.splitlines()] == ["error[E0503]"]

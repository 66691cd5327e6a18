"""`archc derive`, and the page of one spec to the byte."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archc.verify import checks
from tests.console import BAD, GOOD, run

GOLDEN = Path(__file__).parents[1] / "golden" / "derive"


def test_the_page_of_a_spec(golden: Callable[[Path, str], None]):
    """As Markdown, with all its formulas and checks."""
    made = run("derive", "kda", "--as", "md")
    assert made.exit_code == 0
    golden(GOLDEN / "kda.md", made.stdout)


@pytest.mark.default("html")
@pytest.mark.usefixtures("empty_folder")
@pytest.mark.parametrize(
    ("form", "start"),
    [("html", "<!DOCTYPE html>"), ("text", "GLA, derived\n"), ("latex", "\\documentclass")],
)
def test_forms(form: str, start: str, tmp_path: Path):
    """To standard output and to a file the same, twice the same."""
    made = run("derive", "gla", "--as", form)
    assert made.exit_code == 0 and made.stdout.startswith(start)
    told = run("derive", "gla", "--as", form, "-o", "page")
    assert "page written" in told.stderr
    assert (tmp_path / "page").read_text("utf-8") == made.stdout


def test_sizes_are_those_that_are_set():
    made = run("derive", "gla", "--as", "text", "--set", "K=7").stdout
    assert "K = 7" in made and "relative error below" in made


def test_a_form_that_is_wrong(monkeypatch: pytest.MonkeyPatch):
    """The page says so, and so does the exit status."""
    monkeypatch.setattr(checks, "chunked", lambda trial, chunk: 0.5)
    made = run("derive", "gla", "--as", "text")
    assert made.exit_code == 3
    assert "[WRONG] chunks of 1: WRONG: a relative error of 5.0e-01, above 1e-10" in made.stdout
    assert "WRONG: chunks of 4" in made.stderr


def test_a_layer_that_remembers_nothing():
    made = run("derive", "-", "--as", "text", stdin=GOOD)
    assert made.exit_code == 0 and "No token sees another one" in made.stdout


def test_a_spec_that_is_refused():
    made = run("derive", "-", stdin=BAD)
    assert (made.exit_code, made.stdout) == (1, "")
    assert "error[E" in made.stderr


def test_torch_is_imported_for_numbers_only():
    """A layer without a recurrence has none."""
    command = [sys.executable, "-c", MAIN, "derive", "swiglu", "--as", "text"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("False\n")


MAIN = """
import sys
from archc.cli import main
try:
    main()
finally:
    print("torch" in sys.modules)
"""

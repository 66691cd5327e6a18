"""Every error code has a page whose failing example fails with it and whose fixed one passes.

Fences of a page say how they run: `arch fail` and `arch ok` are elaborated, with `--set a=1` while
elaborating and `--sizes d=8` for the sizes afterwards; `console fail` and `console ok` are commands
of a shell. The pages of warnings have `arch warn` in place of `arch fail`, and examples of E06.. go
on as far as the derivation of chunked forms.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from archc.cli import archc
from archc.commands.explain import codes, page
from archc.commands.parameters import read_value
from archc.commands.stages import warnings_of
from archc.diagnostics import ArchError
from archc.elaborate.elaborate import elaborate
from archc.ir.sizes import resolve_sizes
from archc.recurrence.law.numbers import with_laws
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "golden" / "errors"
CODE = re.compile(r"\bE0\d{3}\b")
FENCE = re.compile(r"^```(arch|console) (fail|ok|warn)(.*)\n((?s:.*?))^```$", re.MULTILINE)
CODES = list(codes())


def fences(code: str, verdict: str) -> tuple[str, Mapping[str, str], str]:
    """Language, options (`set` and `sizes`) and text of the only fence with a verdict."""
    found = [match for match in FENCE.finditer(page(code)) if match[2] == verdict]
    assert len(found) == 1, f"{code} has {len(found)} fences that are to {verdict}"
    options = dict(part.split(" ", 1) for part in found[0][3].strip().split("--") if part)
    return found[0][1], options, found[0][4]


def values(options: Mapping[str, str], key: str) -> dict[str, Any]:
    pairs = (item.split("=", 1) for item in options.get(key, "").split())
    return {name: read_value(text) for name, text in pairs}


def run_spec(text: str, options: Mapping[str, str]) -> tuple[list[str], str]:
    """Codes found in a spec, errors or else warnings, and how they are shown."""
    try:
        tree = parse(Source("example.arch", text))
        layer = elaborate(tree, None, values(options, "set"), import_source)
        if "sizes" in options:
            resolve_sizes(layer, values(options, "sizes"))
        found = warnings_of(with_laws(layer))
        return [each.code for each in found], "\n\n".join(each.render() for each in found)
    except ArchError as error:
        return [finding.code for finding in error.diagnostics], str(error)


def run_commands(text: str) -> tuple[list[str], str]:
    """Codes that the last of some commands reports, and what it prints to stderr."""
    result = None
    for line in text.splitlines():
        words = shlex.split(line.removeprefix("$ "))
        if words[0] == "archc":
            result = CliRunner().invoke(archc, words[1:])
        else:
            subprocess.run(["sh", "-c", line.removeprefix("$ ")], check=True)
    assert result is not None, "a console fence runs archc"
    shown = result.stderr if "error[" in result.stderr else result.stdout
    return CODE.findall(result.output), shown.strip()


def run(code: str, verdict: str) -> tuple[list[str], str]:
    language, options, text = fences(code, verdict)
    return run_commands(text) if language == "console" else run_spec(text, options)


def test_pages_and_codes_in_use_are_the_same():
    used = {
        code
        for folder in ("archc", "backends")
        for path in (ROOT / folder).rglob("*.py")
        for code in re.findall(r'"(E0\d{3})"', path.read_text("utf-8"))
    }
    assert sorted(used) == CODES


@pytest.mark.parametrize("code", CODES)
def test_page(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Any):
    """The failing example has just this error, shown as in its golden; the fixed one none."""
    if code == "E0003" and os.geteuid() == 0:
        pytest.skip("the superuser may read everything")
    monkeypatch.chdir(tmp_path)
    found, shown = run(code, "warn" if "arch warn" in page(code) else "fail")
    assert found == [code], shown
    assert run(code, "ok")[0] == []
    golden(GOLDEN / f"{code}.txt", shown + "\n")


@pytest.mark.parametrize("code", CODES)
def test_page_has_a_title_and_says_something(code: str):
    text = page(code)
    assert text.startswith(f"# {code}: ")
    assert len(codes()[code]) > 8
    assert len(text.split("```")[0].split()) > 15
    assert max(map(len, text.splitlines())) <= 125

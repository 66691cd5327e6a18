"""The generated file: the same to the byte, standing alone, checking itself."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from archc.backends.writer import COLUMNS

import archc
from archc.compile import compile_source
from archc.specfile import read

ROOT = Path(__file__).parents[3]
ALONE = ("gla", "cross_attention", "transformer", "mom")
"""Specs with a recurrence, another sequence, sub-layers and rotations, experts' memories."""


@cache
def text(name: str) -> str:
    return compile_source(read(name), command=f"archc compile {name} -o {name}.py")


def run(path: Path) -> subprocess.CompletedProcess[str]:
    """A file run by itself, in a folder and an environment without archc."""
    code = (
        "import sys, runpy; sys.modules['archc'] = None; sys.path = [p for p in sys.path if p]; "
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=path.parent, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.default("transformer", "gla")
@pytest.mark.parametrize("name", ALONE)
def test_the_same_bytes_every_time(name: str):
    assert compile_source(read(name), command=f"archc compile {name} -o {name}.py") == text(name)


@pytest.mark.parametrize("name", ALONE)
def test_imports_torch_math_and_the_standard_library_only(name: str):
    found = set()
    for node in ast.walk(ast.parse(text(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").split(".")[0])
    assert "torch" in found
    assert found <= {"torch", *sys.stdlib_module_names}


@pytest.mark.parametrize("name", ALONE)
def test_reads_as_written_by_hand(name: str):
    lines = text(name).split("\n")
    assert max(map(len, lines)) <= COLUMNS
    assert text(name).endswith("\n") and not text(name).endswith("\n\n")
    assert all(line == line.rstrip() for line in lines)
    source = read(name)
    assert f"sha256 {source.sha256[:16]}" in text(name)
    assert f"archc compile {name} -o {name}.py" in text(name)
    cited = re.findall(rf"# {re.escape(source.name)}:(\d+)  (.*)", text(name))
    assert cited
    for number, shown in cited:
        assert shown.removesuffix("...") in source.line(int(number))


CHUNKED = ("kda", "mlstm", "mesa", "ssm_selective", "linear_attention_full", "lstm")
"""Specs with corrections, a stabiliser, a solve, a scan, no order of tokens, and no chunks."""


@pytest.mark.default("lstm", "linear_attention_full", "transformer", "kda")
@pytest.mark.parametrize("name", (*ALONE, *CHUNKED))
def test_a_linter_has_nothing_to_say(name: str, tmp_path: Path):
    """Errors, names, order of imports, and no line of more than 100 columns."""
    path = tmp_path / "layer.py"
    path.write_text(source(name), encoding="utf-8")
    ruff = Path(sys.executable).parent / "ruff"
    done = subprocess.run(
        [str(ruff), "check", "--isolated", "--select", "E,F,I", "--line-length", str(COLUMNS),
         str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@cache
def source(name: str) -> str:
    """A file without its self-check, which the others are the same in."""
    return text(name) if name in ALONE else archc.load(name).source()


@pytest.mark.parametrize("name", CHUNKED)
def test_a_chunked_form_reads_as_written_by_hand(name: str):
    for line in source(name).split("\n"):
        assert line == line.rstrip() and "float(0)" not in line
        assert not re.search(r"\w__\w|^\s+[\w.]+ = \w+,$", line), line


@pytest.mark.parametrize(
    "name",
    ["gla", *(pytest.param(n, marks=pytest.mark.slow) for n in ("transformer", *ALONE[1::2]))],
)
def test_runs_and_checks_itself_without_archc(name: str, tmp_path: Path):
    path = tmp_path / "layer.py"
    path.write_text(text(name), encoding="utf-8")
    done = run(path)
    assert done.returncode == 0, done.stdout + done.stderr
    forms = 4 if "\nCHUNK = " in text(name) else 3
    assert done.stdout.count("  ok") == forms and "WRONG" not in done.stdout
    assert "tokens/s" in done.stdout


def test_a_wrong_number_is_found(tmp_path: Path):
    path = tmp_path / "layer.py"
    changed = text("gla").replace("F.silu", "F.relu", 1)
    assert changed != text("gla")
    path.write_text(changed, encoding="utf-8")
    done = run(path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "WRONG" in done.stdout.split("\n")[2]


def test_the_header_says_what_was_checked():
    head = ast.get_docstring(ast.parse(text("gla"))) or ""
    assert head.startswith("GLA: ")
    assert len(re.findall(r"\b1e-\d\d\b", head)) == 5


def test_source_is_what_compile_writes():
    written = archc.load("gla").source()
    assert written.split('"""')[2] == text("gla").split('"""')[2]

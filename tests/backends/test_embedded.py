"""The runtime in generated files: every definition that they need, and none that they do not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.embedding import exported

import archc
from archc.compile import BACKENDS, lowered
from tests.backends.triton.texts import layer_text

SPECS = sorted(path.stem for path in (Path(__file__).parents[2] / "specs").glob("*.arch"))
FEW = ("cross_attention", "fox", "gla", "lstm", "transformer")
"""Attention by torch and by kernels, a memory in chunks, a cell, and what stands around these."""


def name_of(node: ast.stmt) -> str:
    """The name of a function, a class or a constant."""
    match node:
        case ast.FunctionDef(name) | ast.ClassDef(name) | ast.Assign([ast.Name(name)]):
            return name
    return ""


def unread(text: str) -> set[str]:
    """The definitions of the runtime that no line of a file leads to which is the file's own."""
    every = ast.parse(text).body
    embedded = {name_of(node): node for node in every if name_of(node) in exported()}
    waiting = [node for node in every if name_of(node) not in embedded]
    while waiting:
        read = {each.id for each in ast.walk(waiting.pop()) if isinstance(each, ast.Name)}
        waiting += [embedded.pop(name) for name in sorted(read & {*embedded})]
    return {*embedded}


def lint(text: str) -> str:
    """What a linter says of imports that are not read, names that nothing defines, and names that
    are defined twice."""
    rules = ["check", "--isolated", "--select", "F401,F811,F821,F822", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *rules], input=text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=() if s in FEW else pytest.mark.slow) for s in SPECS]
)
def test_a_file_has_what_it_needs_and_nothing_else(spec: str, backend: str) -> None:
    """Each definition as the runtime has it, comments and all."""
    text = layer_text(lowered(archc.load(spec).layer), BACKENDS[backend])
    assert not unread(text)
    assert not lint(text)
    found = {name_of(node) for node in ast.parse(text).body} & {*exported()}
    assert found and all(exported()[name].text in text for name in found)


def test_a_file_that_checks_itself_has_what_that_needs() -> None:
    text = archc.load("lstm").source("triton")
    assert "def main(" in text and not unread(text) and not lint(text)


def test_what_is_not_read_would_be_seen() -> None:
    """A definition, those that it alone calls, and an import; and what is called and not there."""
    text = assembled(File(sections=["def f(x):\n    return in_runs([x], 4)\n"]))
    assert not unread(text) and not lint(text)
    more = f"{text}\n\n{exported()['few'].text}\n"
    assert unread(more) == {"few"}
    assert unread(text.replace("return in_runs", "return x or")) == {"in_runs", "runs_of_chunks"}
    assert "F401" in lint(f"import warnings\n{text}")
    assert "F821" in lint(text.replace("def runs_of_chunks", "def other_runs"))

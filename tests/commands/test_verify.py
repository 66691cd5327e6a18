"""`archc verify`: every form of a spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from archc.verify import measures as forms
from tests.console import run


def test_every_form_of_a_memory():
    """Of the code: whole, in pieces, packed, backwards, in chunks; and what was derived."""
    done = run("verify", "gla", "--tokens", "7", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)["forms"]
    assert all(form["right"] for form in found)
    names = [form["form"] for form in found]
    for name in (
        "whole sequence", "prompt, then the rest", "one token at a time", "packed sequences",
        "gradients", "whole sequence, chunks of 2", "S: normal form", "S: chunks of 2",
        "S: gradient, chunks of 2", "S: three parts composed", "S: merged from either side",
    ):  # fmt: skip
        assert name in names


def test_a_wrong_form(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(forms, "gradients", lambda instance: 0.1)
    done = run("verify", "swiglu", "--tokens", "5")
    assert done.exit_code == 3
    assert "WRONG" in done.stdout


def test_sizes_that_are_given():
    done = run("verify", "delta", "--tokens", "4", "--set", "K=3", "--set", "H=1")
    assert done.exit_code == 0 and "H = 1, K = 3" in done.stdout


def test_words_that_files_use(tmp_path: Path):
    """A size and parameters that are called otherwise in a file are what the spec says."""
    spec = "layer L(d, F):\n    input x[d]\n    param half[d, F]; type[F, d]\n"
    path = tmp_path / "words.arch"
    path.write_text(spec + "    output y[d] = tanh(x @ half) @ type\n")
    done = run("verify", str(path), "--tokens", "3", "--set", "F=3")
    assert done.exit_code == 0 and "F = 3" in done.stdout

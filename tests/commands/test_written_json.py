"""`--json` of verbs that write a file: what was written, as data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from archc.cli import archc
from archc.commands.status import Status

SPEC = """layer Small(d):
    input x[d]
    param A[d]
    a = sigmoid(A)
    recurrence h[d]:
        h[t] = a * h[t-1] + x
    output y[d] = h
"""


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "small.arch"
    path.write_text(SPEC, encoding="utf-8")
    return str(path)


def test_compile_tells_what_it_wrote(spec: str, tmp_path: Path):
    out = tmp_path / "small.txt"
    args = ["compile", spec, "--emit", "layer", "-o", str(out), "--json"]
    ran = CliRunner().invoke(archc, args)
    assert ran.exit_code == Status.FINE, ran.output
    told = json.loads(ran.stdout)
    assert told["output"] == str(out) and told["emit"] == "layer"
    assert told["lines"] == out.read_text(encoding="utf-8").count("\n") > 0


def test_derive_tells_every_check(spec: str, tmp_path: Path):
    out = tmp_path / "small.md"
    ran = CliRunner().invoke(archc, ["derive", spec, "--as", "md", "-o", str(out), "--json"])
    assert ran.exit_code == Status.FINE, ran.output
    told = json.loads(ran.stdout)
    assert told["layer"] == "Small" and told["steps"] > 0 and out.exists()
    assert told["checks"] and all(c["right"] and c["error"] <= c["limit"] for c in told["checks"])

"""`torch.export` of modules with a number of tokens that varies: what comes out computes the same
for other numbers, loops over the tokens as well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export, save

import archc
from tests.specs.cases import SMALL, inputs
from tests.specs.test_continued import OTHER_STREAMS, first

SHORTEST = {"nsa": 6}
"""Two blocks: torch writes down another graph where there is one."""
LONGEST = {"gpt": 16}
QUICK = {"linear_attention_simple"}


def built(name: str) -> tuple[nn.Module, dict[str, Tensor], dict[str, Tensor]]:
    """A small layer, and two batches for it of different lengths."""
    spec = archc.load(name, **SMALL[name])
    layer = spec.module(dtype=torch.float64).eval()
    needed = {op.name for _, op in spec.layer.inputs if not op.optional}
    first, second = (
        {k: x for k, x in inputs(spec.layer, SMALL[name], 2, T, T).items() if k in needed}
        for T in (12, 7)
    )
    return layer, first, second


def cases(names: set[str]) -> list[object]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in sorted(names)]


@pytest.mark.parametrize("name", cases({*SMALL}))
def test_another_number_of_tokens(name: str) -> None:
    layer, given, other = built(name)
    tokens = Dim("T", min=SHORTEST.get(name, 2), max=LONGEST.get(name, 4096))
    varying = {k: {} if k in OTHER_STREAMS else {1: tokens} for k in given}
    late = name in SHORTEST  # torch cannot prove what it guesses of the number of blocks
    program = export(
        layer,
        (),
        kwargs=given,
        dynamic_shapes=varying,
        prefer_deferred_runtime_asserts_over_guards=late,
    ).module()
    for values in (given, other):
        wanted = first(layer(**values))
        torch.testing.assert_close(first(program(**values)), wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
def test_another_process_runs_what_was_written(tmp_path: Path) -> None:
    """A file of torch's own: archc is not there when it is read."""
    layer, given, other = built("slstm")
    program = export(layer, (), kwargs=given, dynamic_shapes={"x": {1: Dim("T")}})
    save(program, tmp_path / "slstm.pt2")
    torch.save((other["x"], layer(**other)), tmp_path / "values.pt")
    code = (
        "import sys, torch; x, wanted = torch.load('values.pt')\n"
        "found = torch.export.load('slstm.pt2').module()(x=x)\n"
        "torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)\n"
        "assert 'archc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)

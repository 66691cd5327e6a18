"""`torch.export` of modules with a number of tokens that varies: what comes out computes the same
for other numbers; a loop over the tokens is refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

import archc
from tests.specs.cases import SMALL, inputs
from tests.specs.test_continued import OTHER_STREAMS, first

LOOPS = {"lstm", "slstm", "path", "path_fox"}
BLOCKS = {"nsa"}
"""Blocks of tokens with a stride: torch finds no one graph for every number of them."""
LONGEST = {"gpt": 16}
QUICK = {"linear_attention_simple", "slstm"}


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


@pytest.mark.parametrize("name", cases({*SMALL} - LOOPS - BLOCKS))
def test_another_number_of_tokens(name: str) -> None:
    layer, given, other = built(name)
    tokens = Dim("T", min=2, max=LONGEST.get(name, 4096))
    varying = {k: {} if k in OTHER_STREAMS else {1: tokens} for k in given}
    program = export(layer, (), kwargs=given, dynamic_shapes=varying).module()
    for values in (given, other):
        wanted = first(layer(**values))
        torch.testing.assert_close(first(program(**values)), wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", cases(LOOPS))
def test_loops_are_exported_for_one_number_alone(name: str) -> None:
    layer, given, _ = built(name)
    with pytest.raises(RuntimeError, match=r"is a loop over the tokens: torch\.export"):
        export(layer, (), kwargs=given, dynamic_shapes={k: {1: Dim("T")} for k in given})
    program = export(layer, (), kwargs=given).module()
    torch.testing.assert_close(program(**given), layer(**given))

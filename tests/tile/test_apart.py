"""Products that follow each other, with more warps than their rows are for."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

from archc.tile.compose import Composer
from tests.tile.cases import Case

pytest.importorskip("triton")


def chained(apart: str) -> Case:
    """(x y) z of 64 rows."""
    k = Composer("chained", "(x @ y) @ z.")
    k.sizes("T", varying=True)
    i, j = (k.iota(name, 64) for name in "ij")
    x, y, z = (k.load(k.buffer(n, "bf16", i=64, j=64), i, j, wide=False) for n in "xyz")
    first = x.dot(y.along(i="j", j="l")).to("bf16")
    made = first.dot(z.along(i="l", j="m"))
    k.store(k.buffer("o", i=64, m=64), i, j.along(j="m"), value=made)
    program = dataclasses.replace(k.done(), warps=8, ahead=1, apart=apart)
    tensors = {name: torch.zeros(64, 64, dtype=torch.bfloat16) for name in "xyz"}
    return Case(program, tensors | {"o": torch.zeros(64, 64)}, {"T": 64}, {}, {})


def layouts(case: Case) -> set[str]:
    """How warps lie on products: rows, columns."""
    from tests.tile.compiled import compiled  # Triton is not everywhere

    text = compiled(case).asm["ttgir"]
    return {*re.findall(r"nvidia_mma<\{.*?warpsPerCTA = \[([0-9, ]+)\]", text)}


def test_warps_share_the_columns_of_products_that_stand_apart() -> None:
    """Of 64 rows each of 4 warps has 16: 8 along the rows would make each number twice."""
    assert "8, 1" in layouts(chained(""))
    assert layouts(chained("T")) == {"4, 2"}

"""What is printed is what Triton compiles: the types of the language are those of machine code."""

from __future__ import annotations

import pytest
import torch

from archc.tile.compose import Composer
from tests.tile.cases import CASES, Case, Drawn
from tests.tile.functions import mixtures
from tests.tile.ops import OPS

pytest.importorskip("triton")


def compiles(case: Case) -> None:
    """Compile a program ahead of time."""
    from tests.tile.compiled import compiled  # Triton is not everywhere

    compiled(case)


@pytest.mark.parametrize("name", OPS)
def test_ops_have_the_types_that_triton_gives_them(name: str) -> None:
    compiles(OPS[name]())


@pytest.mark.parametrize("name", CASES)
def test_programs_have_the_types_that_triton_gives_them(name: str) -> None:
    compiles(CASES[name](Drawn(torch.bfloat16)))


def test_another_type_is_refused_by_triton() -> None:
    """A quotient of integers, which the verifier refuses: it is real in Triton."""
    k = Composer("halved", "n / 2.")
    n = k.iota("n", 16)
    k.store(k.buffer("y", n=16, dtype="i32"), n, value=n / k.full(2, dtype="i32"))
    with pytest.raises(Exception, match="static_assert"):
        compiles(Case(k.done(), {"y": torch.zeros(16, dtype=torch.int32)}, {}, {}, {}))


def test_what_is_moved_stays_as_it_is() -> None:
    """Of elements that move along a dim which threads have all of, nothing is left."""
    from tests.tile.compiled import compiled  # Triton is not everywhere

    assert "0f00000000" not in compiled(OPS["places_moved"]()).asm["ptx"]


def test_mixtures_are_many() -> None:
    """Not all is refused: sums of integers and reals are there, sums of truth values are not."""
    found = {*mixtures()}
    assert {("add", ("i32", "f32")), ("where", ("bool", "i64", "f64"))} <= found
    assert ("add", ("bool", "bool")) not in found and ("exp", ("i32",)) not in found

"""Programs by hand: right in float64 under the interpreter of tile programs, and, printed, in
Triton's own."""

from __future__ import annotations

import ast

import pytest
import torch
from archc.backends.triton.printer import to_triton

from archc.runtime.philox import random_numbers
from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.pretty import listing
from archc.tile.resources import Room
from archc.tile.verifier import verify, verify_launch
from tests.served import run as served
from tests.tile.cases import CASES, Drawn, errors
from tests.tile.ops import OPS


@pytest.mark.parametrize("name", CASES)
def test_programs_are_right_in_float64(name: str) -> None:
    case = CASES[name](Drawn())
    run(case.program, case.tensors, case.sizes, case.constants, exact=True)
    limit = 1e-6 if name == "delta_sweep" else 1e-12  # float16 inside of the solve
    assert max(errors(case).values()) < limit, errors(case)


@pytest.mark.parametrize("name", OPS)
def test_ops_make_what_torch_makes(name: str) -> None:
    case = OPS[name]()
    assert not verify(case.program)
    assert not verify_launch(case.program, case.known, Room(shared=232_448))
    run(case.program, case.tensors, case.sizes, case.constants)
    assert max(errors(case).values()) < 1e-6, errors(case)


def test_random_numbers_are_those_of_philox() -> None:
    """Known answers of Random123 (kat_vectors): philox4x32 10, counter and key 0, and all ones."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    known = [half for word in words for half in (word & 0xFFFF, word >> 16)]
    assert random_numbers(torch.tensor(0), torch.tensor(0)).tolist() == known
    many = random_numbers(torch.tensor(7), torch.arange(5_000)).double()
    assert many.min() >= 0 and many.max() < 1 << 16
    assert ((many.mean(0) / (1 << 16) - 0.5).abs() < 0.02).all()


@pytest.mark.parametrize("name", CASES)
def test_text_and_listing_are_the_same_each_time(name: str) -> None:
    """The printer decides nothing: two programs that are written alike are one text."""
    first, again = (CASES[name](Drawn()).program for _ in range(2))
    assert to_triton(first) == to_triton(again) and listing(first) == listing(again)
    assert all(len(line) <= 120 for line in listing(first).split("\n"))


@pytest.mark.slow
def test_printed_programs_are_right_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    done = served("tests.tile.interpreted")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_machine_code_does_not_know_is_said_in_the_text() -> None:
    """Sizes that vary are not specialised for, and a precision may be a constant."""
    k = Composer("varied", "A product of T rows.")
    (precision,), (T,) = k.precisions("PRECISION"), k.sizes("T", varying=True)
    x = k.buffer("x", t=T, c=16)
    tile = k.load(x, k.iota("t", 16), k.iota("c", 16), where=[k.iota("t", 16) < T])
    made = tile.dot(tile.along(t="u"), precision=precision).along(u="s")
    y = k.buffer("y", t=16, s=16)
    k.store(y, k.iota("t", 16), k.iota("s", 16), value=made)
    text = to_triton(k.done())
    assert '@kernel(varying=("T",))' in text
    assert "input_precision=PRECISION)" in text


def test_a_docstring_may_have_quotes_and_backslashes() -> None:
    doc = 'o = tril(q\' k"") S, a \\ b.'
    (function,) = ast.parse(to_triton(Composer("quoted", doc).done())).body
    assert isinstance(function, ast.FunctionDef) and ast.get_docstring(function) == doc


def test_a_number_keeps_its_sign() -> None:
    """0.0 and -0.0 are equal in Python, and a product with each is another number."""
    k = Composer("signs", "y = 0 x, z = -0 x.")
    x, y, z = (k.buffer(name, n=4) for name in "xyz")
    n = k.iota("n", 4)
    for buffer, number in ((y, 0.0), (z, -0.0)):
        k.store(buffer, n, value=k.load(x, n) * number)
    made = {name: torch.ones(4) for name in "xyz"}
    run(k.done(), made, {}, {})
    assert not made["y"].signbit().any() and made["z"].signbit().all()

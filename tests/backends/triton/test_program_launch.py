"""Tile programs in generated files: the text that launches them, and what it makes."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

import pytest
import sympy
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.load import load
from archc.backends.triton.printer import to_triton
from archc.backends.triton.program_launch import (
    ProgramLaunch,
    add_program,
    programs_text,
    write_program,
)
from archc.backends.writer import Writer

from archc.tile.compose import Composer, ceil_div, size
from archc.tile.given import given_names
from archc.tile.language import Dim, Program
from tests.backends.triton.processes import printed
from tests.backends.triton.programs_in_files import ROWS, file_of, scaled_rows
from tests.tile.programs import gated_rmsnorm

LINES = (
    "launch_kernel(scaled_rows, -(-x.shape[0] // 4), "
    "[x, *x.stride(), z, *((0,) if z is None else z.stride()), y.T, *y.T.stride()], "
    "[x.shape[0], x.shape[1]], compiled_for(IO=x.dtype, BLOCK_R=4, BLOCK_C=8), "
    '{"num_warps": 4, "num_stages": 3})'
)


def lines(program: Program, launch: ProgramLaunch) -> list[str]:
    """The lines that launch a program."""
    writer = Writer()
    write_program(File(), writer, program, launch)
    return writer.lines


def test_the_lines_of_a_launch():
    assert lines(scaled_rows(), ROWS) == [LINES]


def test_a_kernel_is_written_once_and_another_of_its_name_beside_it():
    file = File()
    first, again = add_program(file, scaled_rows()), add_program(file, scaled_rows())
    other = add_program(file, scaled_rows("BLOCK_T"))
    assert (first, again, other) == ("scaled_rows", "scaled_rows", "scaled_rows_2")
    assert len(file.sections) == 2
    assert 'kernel(varying=("T",))\ndef scaled_rows_2(' in file.sections[1]
    found = assembled(file)
    assert "def join_product(" in found and "def grid_barrier(" not in found


def test_a_file_has_the_runtime_that_its_programs_call():
    text = file_of(scaled_rows(), ROWS, "x, z, y")[1]
    assert all(f"def {name}(" in text for name in ("kernel", "join_product", "compiled_for"))
    assert "def real_power(" not in text and "def join_max(" not in text


COUNTS = {
    "1": sympy.Integer(1),
    "(batch * -(-(n + 1) // 64))": size("B") * ceil_div(size("T"), size("BLOCK")),
    "-(--(-(n + 1) // 64) // batch)": ceil_div(ceil_div(size("T"), 64), size("B")),
    "(-(-(n + 1) // 64) + 1)": ceil_div(size("T"), 64) + 1,
    "(-(-(n + 1) // 64)) ** 2": ceil_div(size("T"), 64) ** 2,
    "-(-(n + 1) // (batch * 64))": ceil_div(size("T"), size("BLOCK") * size("B")),
}


@pytest.mark.parametrize("text", COUNTS)
def test_how_many_programs(text: str):
    program = replace(scaled_rows(), grid=(("at", COUNTS[text]),))
    given = ProgramLaunch({}, {"B": "batch", "T": "n + 1"}, {"BLOCK": "64"})
    found = programs_text(program, given)
    assert found == text
    counted: Any = load(f"def count(batch, n):\n    return {found}\n", "count")
    for batch, tokens in ((3, 130), (2, 128), (1, 1)):
        known = {size("B"): batch, size("T"): tokens, size("BLOCK"): 64}
        assert counted.count(batch, tokens - 1) == COUNTS[text].subs(known)


def test_cooperative_programs_and_those_with_descriptors():
    k = Composer("turns", "y = x in blocks, after a barrier.", warps=8, ahead=2)
    (N,) = k.sizes("N")
    x, y, count = k.buffer("x", n=N), k.buffer("y", n=N), k.buffer("count", i=1, dtype="i32")
    n = k.program("n", ceil_div(N, 16)) * 16
    made = k.load_block(x, n, n=Dim("n", sympy.Integer(16)))
    k.barrier(count, 0)
    k.store(y, n + k.iota("n", 16), value=made)
    given = ProgramLaunch({"x": "x", "y": "y", "count": "count"}, {"N": "len(x)"}, {}, "told")
    found = lines(k.done(), given)
    assert found[0] == "descriptor_room()"
    assert found[1].startswith("told = launch_kernel(")
    assert '{"num_warps": 8, "num_stages": 2, "launch_cooperative_grid": True})' in found[1]


def test_real_sizes_are_floats_whatever_is_given():
    names = {name: name for name in ("x", "g", "y", "gain")}
    given = ProgramLaunch(
        names, {"R": "n", "D": "d", "EPS": "1"}, {"BLOCK_R": "1", "BLOCK_D": "2", "IO": "k"}
    )
    assert "[x, g, y, gain], [n, d, float(1)]," in lines(gated_rmsnorm(), given)[0]


@pytest.mark.parametrize(
    ("launch", "said"),
    [
        (replace(ROWS, sizes={"T": "1"}), "scaled_rows has sizes"),
        (replace(ROWS, buffers={"x": "x"}), "scaled_rows has buffers"),
        (replace(ROWS, constants={}), "scaled_rows has constants"),
    ],
)
def test_expressions_that_are_not_those_of_the_program(launch: ProgramLaunch, said: str):
    with pytest.raises(ValueError, match=said):
        lines(scaled_rows(), launch)


def test_one_stride_of_rows_that_lie_apart():
    """Of what stands before them strides follow; what stands after them is contiguous."""
    k = Composer("moved", "y = the tokens of x.")
    B, T, K = k.sizes("B", "T", "K")
    (BLOCK,) = k.lengths("BLOCK")
    x = k.memory("x", {"b": B, "t": T, "h": 2, "c": K}, rows="t")
    y = k.buffer("y", b=B, t=T, h=2, c=K)
    b, t = k.program("b", B), k.program("t", T)
    c = k.iota("c", BLOCK)
    k.store(y, b, t, 1, c, value=k.load(x, b, t, 1, c, where=(c < K,)), where=(c < K,))
    program = k.done()
    assert x.steps == ("t",)
    given = {"B": "b", "T": "t", "K": "c"}
    found = lines(program, ProgramLaunch({"x": "x", "y": "y"}, given, {"BLOCK": "4"}))
    assert "[x, x.stride(1), y], [" in found[0]
    text = to_triton(program)
    assert "\n    x_p, x_t, y_p,\n" in text
    assert "(p_b_64 * T + p_t) * x_t + tl.cast(1, tl.int64) * K" in text


def test_programs_in_files_against_float64():
    found = dict(line.rsplit(": ", 1) for line in printed("programs_in_files", "every"))
    assert len(found) == 4
    for name, error in found.items():
        assert float(error) < (1e-2 if "narrow" in name else 1e-6), name


def test_a_kernel_is_given_what_it_names():
    """Sizes that say how large a strided buffer is are for the verifier; they may decide how many
    programs there are."""
    k = Composer("first", "y = the first row of x.")
    B, R = k.sizes("B", "R")
    (WIDE,) = k.lengths("WIDE")
    x, y = k.buffer("x", b=B, r=R, strided=True), k.buffer("y", b=B, r=WIDE, strided=True)
    b = k.program("b", B)
    k.store(y, b, 0, value=k.load(x, b, 0))
    program = k.done()
    assert given_names(program) == frozenset()
    given = {"buffers": {"x": "x", "y": "y"}, "sizes": {"B": "b", "R": "r"}}
    found = lines(program, ProgramLaunch(**given, constants={"WIDE": "4"}, warps="w"))
    call = "launch_kernel(first, b, [x, *x.stride(), y, *y.stride()], [], compiled_for(), "
    assert found == [call + '{"num_warps": w, "num_stages": 3})']
    assert "\ndef first(\n    x_p, x_b, x_r,\n    y_p, y_b, y_r,\n):\n" in to_triton(program)


def test_no_argument_is_named_as_another():
    """A stride may be called as a pointer, as a stride of another buffer, as a size, as a function
    of the runtime, and as a place in the grid, which the body assigns."""
    k = Composer("first", "y = x for tensors of many names.")
    B, N = k.sizes("x_n", "N")
    buffers = [
        k.buffer("x", b=B, p=N, y_z=N, n=N, strided=True), k.buffer("x_y", b=B, z=N, strided=True),
        k.buffer("p", b=B, z=N, strided=True), k.buffer("grid", barrier=N, strided=True),
    ]  # fmt: skip
    b = k.program("b", B)
    x, x_y, p, grid = buffers
    k.store(x, b, 1, 1, 1, value=k.load(x_y, b, 1) + k.load(p, b, 1) + k.load(grid, 1) + 0 * N)
    text = to_triton(k.done())
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    assert len({*names}) == len(names)
    stored = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and n.id not in names}
    assigned = [n.id for n in ast.walk(function) if isinstance(getattr(n, "ctx", 0), ast.Store)]
    assert "p_b" in assigned and not {*assigned} & {*names} and "grid_barrier" not in names
    assert stored == {*assigned, "kernel", "tl"}


def doubled(name: str, buffer: str, factor: float = 2.0, narrow: str = "f32") -> Program:
    """y = a x for a buffer of that name."""
    k = Composer(name, f"{buffer} times a number.")
    (N,) = k.sizes("N")
    x, y = k.buffer(buffer, n=N), k.buffer(f"{buffer}_made", n=N, dtype=narrow)
    n = k.program("block", ceil_div(N, 16)) * 16 + k.iota("n", 16)
    k.store(y, n, value=(factor * k.load(x, n, where=[n < N])).to(narrow), where=[n < N])
    return k.done()


def test_programs_that_differ_in_names_alone_have_one_kernel():
    file = File()
    assert add_program(file, doubled("q_doubled", "q")) == "q_doubled"
    assert add_program(file, doubled("k_doubled", "k")) == "q_doubled"
    assert add_program(file, doubled("k_tripled", "k", 3.0)) == "k_tripled"
    assert add_program(file, doubled("k_narrow", "k", narrow="bf16")) == "k_narrow"
    assert [*file.programs] == ["q_doubled", "k_tripled", "k_narrow"]


@pytest.mark.parametrize("fill", [0.0, 1.0])
def test_each_address_is_made_by_a_line(fill: float) -> None:
    """A tile whose border is no 0 is loaded without `load_tile`, and so is its address written."""
    k = Composer("copied", "y = x, a tile a program.")
    B, R, C = k.sizes("B", "R", "C")
    BLOCK_R, BLOCK_C = k.lengths("BLOCK_R", "BLOCK_C")
    x = k.buffer("scores_of_a_sequence", b=B, r=R, c=C, strided=True)
    y = k.buffer("y", b=B, r=R, c=C)
    place = k.program("b", B), k.iota("r", BLOCK_R), k.iota("c", BLOCK_C)
    inside = place[1] < R, place[2] < C
    k.store(y, *place, value=k.load(x, *place, where=inside, fill=fill), where=inside)
    text = to_triton(k.done())
    assert ("load_tile(" in text) == (fill == 0)
    (function,) = ast.parse(text).body
    names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
    made = {n.id for n in names if isinstance(n.ctx, ast.Store) and "_at" in n.id}
    assert {n.id for n in names if "_at" in n.id} == made != set()

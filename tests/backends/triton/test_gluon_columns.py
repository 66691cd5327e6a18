"""Systems that are solved for one token by columns: machine code for compute capability 9, without
a GPU, and what is left to Triton alone."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, cast

import pytest
import torch
from archc.backends.load import load
from archc.backends.triton.gluon_columns import SUFFIX, to_gluon_columns

import archc
from archc.compile import text_of
from archc.ir.refusal import Refusal
from archc.runtime.gluon_kernels import are_in_columns
from tests.attention.test_gluon import machine_code
from tests.backends.triton.programs_in_files import scaled_rows

pytest.importorskip("triton")

NAME = f"mesa_memory_step_alone{SUFFIX}"


@cache
def text() -> str:
    return text_of(archc.load("mesa").layer, "triton")


def argument(name: str) -> tuple[str, Any, bool]:
    """The type of an argument, what it is where that is known, and whether 16 divides it."""
    fixed = {"H": 32, "K": 128, "B_K": 128, "steps": 30, "index_p": None, "index_after_p": None}
    if name in fixed:
        return "constexpr", fixed[name], False
    if name.endswith("_p"):
        wide = name[0] in "AG" or name in ("lam_p", "b_g_p", "b_b_p")
        return "*fp32" if wide else "*bf16", None, True
    return ("i32", None, False) if name == "T" else ("i64", None, True)


def test_warps_wait_for_each_other_twice_a_turn() -> None:
    """For a product with the system: sums of vectors are sums of a warp. A thread reads a quarter
    of the vector, and states by 16 bytes."""
    made = machine_code(getattr(load(text(), "mesa"), NAME), argument)
    ptx = made.asm["ptx"]
    label = re.findall(r"bra\s+(\$L\w+);", ptx)[-1]
    turn = ptx.split(f"{label}:")[1].split(label)[0]
    assert made.metadata.shared <= 1024
    assert turn.count("ld.shared.v4") == 9 and turn.count("shfl.sync.bfly") == 18
    assert turn.count("bar.sync") <= 4 and "global" not in turn
    assert len(re.findall(r"ld\.global[.\w:]*\.v4\.b32", ptx)) >= 64


def test_a_launch_chooses_one_of_both() -> None:
    words = " ".join(text().split())
    chosen = f"({NAME} if are_in_columns(A, G, A_after, G_after) else {NAME[: -len(SUFFIX)]})"
    assert chosen in words


def test_its_functions_and_dtypes_are_those_of_gluon() -> None:
    """Places and roots of sizes, too, which Triton's kernel has from its own module."""
    kernel, own = (
        text().split(f"def {name}(")[1].split("\n@")[0] for name in (NAME, NAME[: -len(SUFFIX)])
    )
    assert "tl.float32" in own and not re.search(r"\btl\.", kernel)
    assert {"gl.float32", "gl.constexpr"} <= {*re.findall(r"gl\.\w+", kernel)}


def test_they_are_launched_on_hopper_alone_of_states_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(3, 2, 128, 128)
    assert not are_in_columns(x)
    monkeypatch.setattr("archc.runtime.gluon_kernels._is_hopper", lambda device: True)
    others = [x.double(), x[..., :60], x[..., 1:65], x[:1].expand(3, 2, 128, 128)]
    assert are_in_columns(x) and not any(map(are_in_columns, others))


def test_a_program_of_other_ops_is_refused() -> None:
    made = to_gluon_columns(cast(Any, scaled_rows()))
    assert isinstance(made, Refusal)

"""Folds whose sums are of two groups of warps: machine code for compute capability 9, without a
GPU, and which programs have no such kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from archc.backends.load import load as loaded
from archc.backends.triton.gluon_printer import SUFFIX
from archc.backends.triton.gluon_wide import to_gluon_wide

import archc
from archc.compile import slots_text_of, text_of
from archc.ir.refusal import Refusal
from archc.lowering.attention_heads import by_parts, turned
from archc.runtime import gluon_kernels
from archc.runtime.gluon_kernels import are_halved
from tests.attention.cases import launch, spec
from tests.attention.test_folds import SCORES
from tests.attention.test_gluon import machine_code, walk

pytest.importorskip("triton")

SIZES = {"BLOCK_T": 64, "BLOCK_S": 64, "BLOCK_C": 512, "BLOCK_R": 64}


def kernels(text: str) -> tuple[Any, Any]:
    """The kernel of Triton for one token of latents, and that of Gluon."""
    module = loaded(text, "latents")
    (name,) = (name for name in vars(module) if name.endswith(f"_part_kernel{SUFFIX}"))
    return getattr(module, name.removesuffix(SUFFIX)), getattr(module, name)


def argument(name: str) -> tuple[str, Any, bool]:
    """The type of an argument, what it is where that is known, and whether 16 divides it."""
    import triton.language as tl

    fixed: dict[str, Any] = {"IO": tl.bfloat16, "PRECISION": "tf32x3", **SIZES}
    if name in fixed or name.endswith(("_d_C", "_d_R")):
        return "constexpr", fixed.get(name, 1), False
    if name.endswith("_p"):
        return {"part_lse_p": "*fp32", "own_pos_p": "*i32"}.get(name, "*bf16"), None, True
    return ("fp32", None, False) if name == "N0" else ("i32", None, name[0] not in "TSPBN")


@pytest.mark.parametrize("write", [partial(text_of, backend="triton"), slots_text_of])
def test_a_token_of_latents_compiles(write: Callable[..., str]) -> None:
    """With all registers of a processor given out, in its shared memory, and none spilled."""
    first, second = kernels(write(archc.load("mla").layer, backend="triton"))
    assert second.arg_names == first.arg_names
    made = machine_code(second, argument)
    assert made.metadata.num_warps == 16
    assert made.metadata.shared <= 232_448
    assert made.asm["ptx"].count("wgmma.mma_async") == 2 * (36 + 2 * 8)
    assert "setmaxnreg.dec.sync.aligned.u32 \t152" in made.asm["ptx"]


def test_a_launch_chooses_by_the_rows() -> None:
    text = " ".join(text_of(archc.load("mla").layer, "triton").split())
    assert "if are_halved(rows, c, k_r):" in text
    assert "elif are_turned(rows, c, k_r):" in text
    pages = " ".join(slots_text_of(archc.load("mla").layer, "triton").split())
    assert pages.count("if are_halved(rows, c, k_r):") == 1  # what is in pages is not
    assert pages.count("elif are_turned(rows, c, k_r):") == 1


def test_another_kind_of_program_is_refused() -> None:
    """A sum of vectors that are no keys, weights that are a choice's, and sums along other dims."""
    text = spec("(q[t].T @ k[s] + p[t].T @ m[s]) / 4", inputs="p[H, R], m[R]", sizes="R")
    text = text.replace("k[H, K], v[H, V]", "k[K]").replace("v[s]", "k[s]")
    fold = launch(text, 40, B=2, H=2, K=5, V=5, R=5).fold
    assert isinstance(to_gluon_wide(by_parts(fold)), str)
    assert isinstance(to_gluon_wide(turned(fold)), Refusal)
    assert to_gluon_wide(walk()) == Refusal(None, "sums of what is no factor of scores")
    text, sizes = SCORES["forgetting"]
    gates = launch(text, 64, H=4, K=16, V=16, **sizes).fold
    assert isinstance(to_gluon_wide(by_parts(gates)), Refusal)


def test_it_is_launched_on_hopper_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(1, 64, 512, dtype=torch.bfloat16)
    assert not are_halved(64, x)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(gluon_kernels, "is_copied", lambda x: True)
    monkeypatch.setattr(gluon_kernels, "fence_async_shared", object())
    monkeypatch.setattr(gluon_kernels, "triton", SimpleNamespace(__version__="3.6.0"))

    def asked(rows: int, *sizes: int, dtype: torch.dtype = torch.bfloat16) -> bool:
        device = torch.device("cuda")
        read = [SimpleNamespace(dtype=dtype, device=device, shape=(1, 64, size)) for size in sizes]
        return are_halved(rows, *cast(list[torch.Tensor], read))

    assert asked(64, 512, 64)
    assert asked(64, 512)
    assert not asked(32, 512, 64)
    assert not asked(64, 512, 128)
    assert not asked(64, 256, 64)
    assert not asked(64, 1024)
    assert not asked(64, 512, 64, dtype=torch.float16)

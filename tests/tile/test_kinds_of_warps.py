"""The fold by warps of three kinds: machine code for compute capability 9, without a GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("way", ["ahead", "in order"])
def test_nothing_spills_and_products_go_on(way: str, tmp_path: Path) -> None:
    """With all registers of a processor given out, and no product waited for as soon as begun."""
    import triton
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    from benchmarks import kinds_of_warps

    fixed = {**kinds_of_warps.constants(way), "sums_t": 1}
    block, half = (
        f"tensordesc<bf16[{rows}, 128],{kinds_of_warps.layout(rows)!r}>" for rows in (fixed["N"], 64)
    )
    sizes = dict.fromkeys(["sums_b", "sums_t", "sums_h", "sums_part", "T", "H"], "i32")
    signature = {"q_d": half, "k_d": block, "v_d": block, "o_d": half, "lse_p": "*fp32"}
    signature |= {"sums_p": "*fp32", "scale": "fp32", **sizes}
    signature |= dict.fromkeys(fixed, "constexpr")
    signature = {name: signature[name] for name in kinds_of_warps.forward.arg_names}
    source = GluonASTSource(kinds_of_warps.forward, signature, fixed, {})
    made = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})
    assert made.metadata.num_warps == 12
    assert made.metadata.shared <= 232_448
    text = tmp_path / "kernel.ptx"
    text.write_text(made.asm["ptx"])
    command = [knobs.nvidia.ptxas.path, "-v", "-arch=sm_90a", str(text), "-o", str(tmp_path / "x")]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores" in said
    assert "serialized" not in said

"""Kernels of bundled recurrences as tile programs, against the graphs that they came from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from archc.ir import chunk as ck
from archc.lowering.kernel_values import made_here
from archc.lowering.kernels import NOT_YET, Lowered
from archc.lowering.values import Refusal
from tests.lowering.launches import launch, lowered_kernels, plans

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mesa", "mlstm", "mom", "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence of its own that has a chunked form."""


@pytest.mark.parametrize("spec", SPECS)
def test_every_kernel_stores_what_its_graph_means(spec: str) -> None:
    made = 0
    for found in plans(spec):
        for kernel, lowered in lowered_kernels(found):
            if isinstance(lowered, Refusal):
                assert lowered.reason == NOT_YET, lowered
                continue
            made += 1
            solved = any(isinstance(node.op, ck.Conjugate) for node in made_here(kernel))
            for name, (stored, wanted) in launch(found, kernel, lowered).items():
                told, near = f"{found.name}: `{name}` of {kernel.name}", 1e-5 if solved else 1e-7
                torch.testing.assert_close(
                    stored, wanted.to(stored.dtype), rtol=near, atol=1e-2 * near,
                    msg=lambda m, t=told: f"{t}: {m}",
                )  # fmt: skip
    assert made


@pytest.mark.parametrize("dims", [("self", "optional"), ("doc", "strided"), ("name", "dtype")])
def test_dims_may_have_names_of_arguments(dims: tuple[str, str], tmp_path: Path) -> None:
    """What makes buffers and turns tiles takes dims by their names, beside arguments of its own."""
    file = tmp_path / "named.arch"
    file.write_text(NAMED.replace("K", dims[0]).replace("V", dims[1]), encoding="utf-8")
    for found in plans(str(file)):
        for _, lowered in lowered_kernels(found):
            assert isinstance(lowered, Lowered) or lowered.reason == NOT_YET


NAMED = """layer L(H, K, V):
    input k [H, K], v [H, V], a [H, K]
    recurrence S[K, V] over H:
        S[t] = diag(sigmoid(a)) @ S[t-1] + k @ v.T
        o = S[t].T @ k
    output o
"""


def test_own_buffers_have_no_strides() -> None:
    for found in plans("gla"):
        for _, lowered in lowered_kernels(found):
            if isinstance(lowered, Lowered):
                stored = _stored(found)
                for buffer in lowered.program.buffers:
                    name = lowered.names.get(buffer.name, "")
                    assert buffer.strided == (name != "" and name not in stored)
                assert stored & {*lowered.names.values()}


def _stored(found: object) -> set[str]:
    plan = found.plan  # type: ignore[attr-defined]
    return {name for each in plan.kernels for name in (*each.stores, *each.ends.values())}

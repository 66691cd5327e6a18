"""Generated kernels become machine code for sm_90, without a GPU: Triton compiles ahead of time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import Plan

triton = pytest.importorskip("triton")

KINDS = {torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.bool: "*i1", torch.int32: "*i32"}
Launch = tuple[Any, tuple, dict]


class Recorder:
    """In place of a kernel: writes down how it is launched."""

    def __init__(self, kernel: Any, launches: list[Launch]):
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid: tuple) -> Any:
        return lambda *given, **fixed: self.launches.append((self.kernel, given, fixed))


def launches(module: ModuleType, layer: torch.nn.Module, x: torch.Tensor) -> list[Launch]:
    """The launches of a forward and its backward; what they would compute is not there."""
    found: list[Launch] = []
    for name, value in list(vars(module).items()):
        if isinstance(value, triton.runtime.JITFunction) and "kernels" in name:
            setattr(module, name, Recorder(value, found))
    vars(module)["by_kernels"] = lambda chunk, *given: True
    layer(x).float().sum().backward()
    return found


def compiled(kernel: Any, given: tuple, fixed: dict) -> Any:
    """A kernel for sm_90 as it is launched; numbers that are 1 are known, as Triton does it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names, signature, known = kernel.arg_names, {}, {}
    for name, value in [*zip(names, given, strict=False), *fixed.items()]:
        if isinstance(value, torch.Tensor):
            signature[name] = KINDS[value.dtype]
        elif name in fixed or value == 1:
            signature[name], known[(names.index(name),)] = "constexpr", value
        else:
            signature[name] = "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=known)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["gla", "kda"])
def test_kernels_compile_for_a_hopper_gpu(spec: str) -> None:
    """Heads of 64, chunks of 64, bfloat16: every kernel fits into the memory of a program."""
    lower = lowered(archc.load(spec).layer)
    module = load(in_kernels(Plan(lower)), f"{spec}_compiled")
    layer = getattr(module, lower.name)(d=128, H=2, K=64, V=64).to(torch.bfloat16)
    found = launches(module, layer, torch.randn(2, 150, 128, dtype=torch.bfloat16))
    assert len(found) == 6
    for launch in found:
        made = compiled(*launch)
        assert made.metadata.shared <= 227 * 1024
        assert "wgmma" in made.asm["ptx"] or "mma" in made.asm["ptx"] or not made.metadata.shared

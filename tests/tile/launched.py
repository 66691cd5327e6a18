"""Printed tile programs, launched: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from archc.backends.load import load
from archc.backends.triton.arguments import runtime_names
from archc.backends.triton.printer import to_triton
from torch import Tensor

from archc.tile.given import given_names
from archc.tile.language import LoadBlock, Program, statements

HEAD = f"""import triton
import triton.language as tl

from archc.runtime.jit import kernel
from archc.runtime.tiles import {", ".join(sorted(runtime_names()))}


"""
DTYPES = {"f32": tl.float32, "bf16": tl.bfloat16, "f16": tl.float16, "f64": tl.float64}


@lru_cache(maxsize=64)
def kernel_of(program: Program) -> Any:
    """The kernel of a program."""
    return getattr(load(HEAD + to_triton(program), program.name), program.name)


def programs(program: Program, sizes: Mapping[str, Any], constants: Mapping[str, Any]) -> int:
    """How many programs a launch has."""
    count = 1
    for _, size in program.grid:
        count *= int(size.subs({s: {**sizes, **constants}[s.name] for s in size.free_symbols}))
    return count


def compiled_in(program: Program, constants: Mapping[str, int | str]) -> dict[str, Any]:
    """The constants of a program as Triton takes them."""
    return {name: DTYPES.get(str(constants[name]), constants[name]) for name in program.constants}


def launcher(
    program: Program,
    tensors: Mapping[str, Tensor | None],
    sizes: Mapping[str, float],
    constants: Mapping[str, int | str],
    **options: Any,
) -> Callable[[], Any]:
    """A function that launches a program."""
    kernel, count = kernel_of(program), programs(program, sizes, constants)
    given: list[Any] = []
    for buffer in program.buffers:
        tensor = tensors.get(buffer.name)
        strides = [0] * len(buffer.axes) if tensor is None else tensor.stride()
        axes = [axis for axis, _ in buffer.axes]
        given += [tensor, *(strides[axes.index(axis)] for axis in buffer.steps)]
    known = given_names(program)
    given += [sizes[symbol.name] for symbol in program.sizes if symbol.name in known]
    fixed = {n: x for n, x in compiled_in(program, constants).items() if n in known}
    options = {"num_warps": program.warps, "num_stages": program.ahead, **options}
    if program.cooperative:
        options["launch_cooperative_grid"] = True
    if any(isinstance(each.op, LoadBlock) for each in statements(program.body)):
        triton.set_allocator(_workspace)
    return lambda: kernel[(count,)](*given, **fixed, **options)


def _workspace(size: int, alignment: int, stream: int | None) -> Tensor:
    """Memory for descriptors that a kernel makes."""
    return torch.empty(size, device="cuda", dtype=torch.int8)

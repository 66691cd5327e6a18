"""What launches give to kernels of attention, without a GPU: tensors are of the dtypes and lie in
memory as their programs say, whatever the strides of what enters."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import triton.language as tl
from archc.backends.load import load as loaded
from archc.backends.writer import snake
from torch import Tensor

import archc
from archc.compile import programs_of, text_of
from archc.tile.language import Buffer
from tests.attention.files import SPECS, TEXTS

DTYPES = {
    "f32": torch.float32, "i32": torch.int32, "i64": torch.int64, tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16, tl.float32: torch.float32,
}  # fmt: skip


def lies(x: Tensor, buffer: Buffer) -> bool:
    """Whether the strides of a tensor that are no arguments are those of its program."""
    axes = [name for name, _ in buffer.axes]
    for i in reversed(range(x.dim())):
        told = buffer.strided or axes[i] == buffer.rows
        follows = 1 if i + 1 == x.dim() else x.stride(i + 1) * x.shape[i + 1]
        if not told and x.shape[i] > 1 and x.stride(i) != follows:
            return False
    return True


@pytest.mark.default("fox")
@pytest.mark.parametrize("spec", ["channels", "path_fox", "fox"])
def test_tensors_are_as_programs_say(spec: str) -> None:
    shapes, numbers = SPECS[spec]
    layer = (archc.parse(TEXTS[spec]) if spec in TEXTS else archc.load(spec)).layer
    module: Any = loaded(text_of(layer, "triton"), spec)
    programs, seen = programs_of(layer), set[str]()

    def launch(kernel: Any, count: int, given: Sequence[Any], sizes: Any, constants: Any, *_: Any):
        title = kernel.__name__
        buffers = [b for b in programs[title].buffers if f"{b.name}_p" in kernel.arg_names]
        tensors = [x for x in given if x is None or isinstance(x, Tensor)]
        for buffer, x in zip(buffers, tensors, strict=True):
            if x is not None:
                own = DTYPES.get(constants.get(buffer.dtype, buffer.dtype))
                assert x.dtype == (own or x.dtype), (title, buffer.name)  # of its own: any
                assert lies(x, buffer), (title, buffer.name, x.shape, x.stride())
        seen.add(title)

    module.launch_kernel = launch
    pos = shapes["k"][1] - shapes["q"][1]
    run = partial(getattr(module, f"{snake(layer.name)}_memory_fold"), pos=pos, **numbers)
    for dtype, turned in product((torch.bfloat16, torch.float32), (False, True)):
        given = [torch.randn(shape, dtype=dtype) for shape in shapes.values()]
        if turned:
            given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in given]
        o = run(*(x.requires_grad_() for x in given))
        slopes = torch.autograd.grad(o, given, torch.ones_like(o))
        assert all(d.dtype == dtype for d in slopes)
    assert len(seen) >= 3

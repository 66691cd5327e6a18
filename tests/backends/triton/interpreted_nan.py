"""How far a NaN of a token reaches by kernels, under Triton's interpreter: a process of its own.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_nan gla

Prints, of packed sequences and of rows of a batch, whether there is a NaN where the token stands,
and how many values of the others are another than without it.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from archc.backends.renamed import arguments
from torch import Tensor, nn

from archc.ir.plan import examples
from archc.ir.sizes import evaluate
from tests.backends.triton.interpreted import file_of
from tests.backends.triton.memory import guarded
from tests.backends.triton.quick import quick_scans

LENGTH = 18
"""Tokens of each of three sequences: fewer than a chunk has rows, so that some of it is masked."""


def values(module: ModuleType, layer: nn.Module, x: Tensor, packed: bool) -> list[Tensor]:
    """The output and the gradient of the input with a row for each sequence, and its states."""
    x = x.reshape(1, -1, x.shape[-1]) if packed else x
    x = x.clone().requires_grad_()
    borders = torch.arange(4) * LENGTH if packed else None
    decide, module.by_kernels = module.by_kernels, lambda chunk, *given: True
    try:
        with guarded(), quick_scans():
            y, state = layer(x, return_state=True, cu_seqlens=borders)
            (dx,) = torch.autograd.grad(y.sum(), x)
    finally:
        module.by_kernels = decide
    return [*(part.detach().reshape(3, LENGTH, -1) for part in (y, dx)), *state]


def main(spec: str) -> None:
    """Of one spec with a state of tensors alone."""
    made, module = file_of(spec)
    torch.manual_seed(0)
    sizes = next(examples(made, 4))
    layer = getattr(module, made.name)(**arguments(sizes))
    (_, op), *_ = made.inputs
    x = torch.randn(3, LENGTH, evaluate(op.type.axes[2].size, sizes))
    bad = x.clone()
    bad[1, 10] = torch.nan
    for packed in (True, False):
        found, wanted = (values(module, layer, given, packed) for given in (bad, x))
        own = all(part[1].isnan().any() for part in found)
        pairs = zip(found, wanted, strict=True)
        others = sum(int((a[[0, 2]] != b[[0, 2]]).sum()) for a, b in pairs)
        print(f"{'packed' if packed else 'rows'}: {own}, {others}")


if __name__ == "__main__":
    main(sys.argv[1])

"""Running sums by their kernel, in Triton's interpreter, beside those of PyTorch:

TRITON_INTERPRET=1 python -m tests.attention.sums
"""

from __future__ import annotations

import sys

import torch

from archc.runtime.folds import of_running_sums, running_sums
from archc.runtime.running_kernel import sums_by_kernel


def main() -> int:
    """Print how far sums and gradients are from those in float64; both are to be as near."""
    ok = True
    for dtype, tokens in ((torch.float32, 2500), (torch.bfloat16, 1030), (torch.float32, 1)):
        x = -torch.rand(2, 3, tokens, generator=torch.Generator().manual_seed(0)).to(dtype) * 1000
        x = x.transpose(1, 2)  # tokens side by side, or not, as given
        x[:, tokens // 2 : tokens // 2 + 1] = -torch.inf
        d = torch.randn(2, tokens, 3)
        wide = x.double().requires_grad_()
        exact = wide.clamp(min=-1e5).cumsum(1)
        (slope,) = torch.autograd.grad(exact, wide, d.double())
        made = sums_by_kernel(x, x, x.new_empty((2, 2, 3, tokens), dtype=torch.float32), False)
        found = made.movedim(0, -1).movedim(-2, 1)
        far = (found.double().sum(-1) - exact).abs().max() / exact.abs().max()
        ok &= far.item() < 1e-12 and found.stride() == running_sums(x).stride()
        back = sums_by_kernel(of_running_sums(d)[..., 0], x, torch.empty_like(x).contiguous(), True)
        away = (back.double() - slope).abs().max() / slope.abs().max().clamp(min=1e-9)
        ok &= away.item() < (8e-3 if dtype == torch.bfloat16 else 1e-6)
        print(dtype, tokens, far.item(), away.item())
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

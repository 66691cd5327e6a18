"""Layers by their kernels under Triton's interpreter where input is bad, and as they are trained: a
process of its own, which prints how far values and gradients are off, infinitely where one is no
number and should be, or the other way round.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_bad all
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import archc
from tests.backends.triton.interpreted_in_pieces import by_kernels
from tests.specs.references.weights import randomise

OWN = Path(__file__).parent / "regions"

Numbers = list[Tensor]

TINY = 1e-30
"""What a difference is measured against where all numbers are 0."""


def numbers(layer: nn.Module, given: Numbers, again: bool = False) -> Numbers:
    """The output, and the gradients of a fixed sum of it by inputs and parameters; `again`: made
    anew for the gradient."""
    leaves = [x.detach().requires_grad_() for x in given]
    y = checkpoint(layer, *leaves, use_reentrant=False) if again else layer(*leaves)
    total = (y * torch.linspace(-1, 1, y.shape[-1]).to(y)).sum()
    slopes = torch.autograd.grad(total, [*leaves, *layer.parameters()], materialize_grads=True)
    return [y.detach().double(), *(slope.double() for slope in slopes)]


def error(found: Numbers, wanted: Numbers) -> float:
    """The largest difference, against the largest number of a tensor, or a thousandth of that of
    all; infinite where other numbers are none."""
    largest = [float(x.nan_to_num(0, 0, 0).abs().max()) if x.numel() else 0.0 for x in wanted]
    worst = 0.0
    for a, b, scale in zip(found, wanted, largest, strict=True):
        if not torch.equal(a.isnan(), b.isnan()) or not torch.equal(a.isinf(), b.isinf()):
            return math.inf
        if not a.numel():
            continue
        apart = torch.where(b.isfinite(), a - b, 0.0).abs().max()
        worst = max(worst, float(apart) / max(scale, 1e-3 * max(largest), TINY))
    return worst


def bad(tokens: int, d: int, heads: int, dim: int) -> Numbers:
    """Input of `odd.arch`: zeros, a sequence with a gate of -inf and one with a gate of inf."""
    x = torch.randn(3, tokens, d, dtype=torch.float64)
    f = torch.randn(3, tokens, heads, dim, dtype=torch.float64)
    x[0] = 0
    f[1, tokens // 2, 0], f[2, tokens // 2, 0] = -math.inf, math.inf
    return [x, f]


def empty(sequences: int, tokens: int) -> Numbers:
    """Input of `odd.arch` without a number."""
    shapes = (sequences, tokens, 12), (sequences, tokens, 2, 5)
    return [torch.zeros(shape, dtype=torch.float64) for shape in shapes]


def single(given: Numbers) -> Numbers:
    """Tensors in float32."""
    return [x.float() for x in given]


def made(name: str, **sizes: Any) -> nn.Module:
    """A layer in float64."""
    spec = archc.load(OWN / f"{name}.arch", **sizes)
    return randomise(spec.module(dtype=torch.float64, backend="triton"), seed=0)


def checks() -> Iterator[tuple[str, float]]:
    """The error of each."""
    torch.manual_seed(0)
    odd, one, wide = made("odd", d=12, H=2, K=5), made("odd", d=1, H=1, K=1), made("wide", d=10_000)
    usual = [torch.randn(2, 18, 12), torch.randn(2, 18, 2, 5)]
    cases = {
        "18 tokens": (odd, bad(18, 12, 2, 5)), "3 tokens": (odd, bad(3, 12, 2, 5)),
        "a dim of 10,000": (wide, [torch.randn(1, 2, 10_000, dtype=torch.float64)]),
        "dims of 1": (one, bad(3, 1, 1, 1)), "no tokens": (odd, empty(2, 0)),
        "no sequences": (odd, empty(0, 18)),
    }  # fmt: skip
    wanted = {name: numbers(*case) for name, case in cases.items()}
    exact = numbers(odd, [x.double() for x in usual])
    singles = {layer: copy.deepcopy(layer).float() for layer in (odd, one, wide)}
    with by_kernels(nn.ModuleList(singles.values())):
        found = {n: numbers(singles[layer], single(given)) for n, (layer, given) in cases.items()}
        yield from ((name, error(found[name], wanted[name])) for name in cases)
        again = numbers(singles[one], single(cases["dims of 1"][1]), again=True)
        yield "checkpointed", error(again, found["dims of 1"])
        with torch.autocast("cpu", torch.bfloat16):
            yield "autocast", error(numbers(singles[odd], usual), exact)


def main() -> None:
    """A line for each."""
    for name, off in checks():
        print(f"{name}: {off:.1e}", flush=True)


if __name__ == "__main__":
    main()

"""Random weights for a reference, and its linear maps turned into the shapes specs use."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> nn.Module:
    """Fill every parameter: vectors around 1 (gains), maps with deviation 1/sqrt(size of a row)."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
        if parameter.dim() <= 1:
            parameter.copy_(1 + 0.3 * noise)
        else:
            parameter.copy_(noise / parameter[0].numel() ** 0.5)
    return module.eval()


def into(linear: nn.Linear, *axes: int) -> Tensor:
    """`W[d, *axes]` with x @ W = linear(x), its outputs cut into `axes`."""
    return linear.weight.detach().T.reshape(linear.in_features, *axes)


def out_of(linear: nn.Linear, *axes: int) -> Tensor:
    """`W[*axes, d]` with o @ W = linear(o flattened)."""
    return linear.weight.detach().T.reshape(*axes, linear.out_features)


def named(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under a path."""
    return {f"{prefix}.{name}": value for name, value in weights.items()}

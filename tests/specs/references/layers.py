"""What references share around the part that they are about: projections, convolutions, norms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import conv1d, pad

Weights = dict[str, Tensor]


def project(x: Tensor, weight: Tensor) -> Tensor:
    """x [B, T, d] through W[d, ...] to [B, T, ...]."""
    return torch.tensordot(x, weight, 1)


def join(o: Tensor, weight: Tensor) -> Tensor:
    """o [B, T, ...] through W[..., d] to [B, T, d]."""
    return torch.tensordot(o, weight, weight.dim() - 1)


def short_conv(x: Tensor, weight: Tensor) -> Tensor:
    """A causal convolution of each channel: x [B, T, ...], weight [..., width], as torch has it."""
    channels, width = weight[..., 0].numel(), weight.shape[-1]
    padded = pad(x.flatten(2).mT, (width - 1, 0))
    out = conv1d(padded, weight.reshape(channels, 1, width), groups=channels)
    return out.mT.reshape(x.shape)


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x over its length along the last axis."""
    return x / (x.square().sum(-1, keepdim=True) + eps).sqrt()


def rms_norm(x: Tensor, axes: int, eps: float) -> Tensor:
    """x over its root mean square along the last `axes` axes."""
    return torch.nn.functional.rms_norm(x, x.shape[-axes:], eps=eps)

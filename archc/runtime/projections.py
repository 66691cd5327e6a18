"""Products of one value with several parameters, whose gradients are one sum that products make."""

from typing import Any

import torch
from torch import Tensor

from archc.runtime.ops import transformed


def products_of(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """x [..., d] times each of `weights` [d, ...], which stay tensors of their own.

    Each is a product of torch. Where autograd alone looks on, the gradient of x is made by one
    function, whose products add to the sum so far: each gradient of its own would be written, and
    read again by an addition. Autocast would make a copy of x for each product: here it is one."""
    device = x.device.type
    exact = any(each.dtype == torch.float64 for each in (x, *weights))
    if torch.is_autocast_enabled(device) and not exact:  # float64 is left as it is
        kind = torch.get_autocast_dtype(device)
        x, weights = x.to(kind), tuple(weight.to(kind) for weight in weights)
    if one_gradient_for(x, weights):
        return tuple(ProductsOf.apply(x, *weights))
    return tuple(times(x, weight) for weight in weights)


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., d] times a weight [d, ...]: a view around a product, for which Python needs a third
    of what an einsum takes it."""
    if weight.dim() < 3:
        return x @ weight
    return (x @ weight.flatten(1)).unflatten(-1, weight.shape[1:])


def one_gradient_for(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether x has a gradient, and nothing but autograd looks at its products: no tensor of a kind
    of its own (of several devices, of a quantiser), no compiler, no transform."""
    if not (torch.is_grad_enabled() and x.requires_grad) or torch.compiler.is_compiling():
        return False
    if type(x) not in PLAIN or any(type(weight) not in PLAIN for weight in weights):
        return False
    return not transformed(x, *weights)


PLAIN = (Tensor, torch.nn.Parameter)
"""Tensors that are nothing else."""


class ProductsOf(torch.autograd.Function):
    """x [..., d] times each weight [d, ...]; gradients that do not arrive are not asked for.
    Autocast around the backward pass changes no dtype: products have those of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """The products."""
        ctx.save_for_backward(x, *weights)
        ctx.set_materialize_grads(False)
        return tuple(times(x, weight) for weight in weights)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        """That of x, each product added to those before, and that of each weight."""
        x, *weights = ctx.saved_tensors
        rows, total, found = x.reshape(-1, x.shape[-1]), None, list[Tensor | None]()
        count = len(rows)
        for weight, slope, learns in zip(weights, slopes, ctx.needs_input_grad[1:], strict=True):
            if slope is None:
                found.append(None)
                continue
            turned = weight.reshape(len(weight), -1).mT
            flat = slope.reshape(count, len(turned))
            with torch.autocast(x.device.type, enabled=False):
                found.append((rows.mT @ flat).reshape(weight.shape) if learns else None)
                if ctx.needs_input_grad[0]:
                    total = flat @ turned if total is None else total.addmm_(flat, turned)
        return (None if total is None else total.reshape(x.shape), *found)

"""Tensors whose dims have names, and functions of their elements, in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

REAL = torch.float64
BATCH, TIME = "B", "t"


class Named(NamedTuple):
    """A tensor whose dims have names."""

    data: Tensor
    names: tuple[str, ...]


def aligned(values: Sequence[Named]) -> tuple[list[Tensor], tuple[str, ...]]:
    """Tensors of one rank, to be broadcast."""
    names = tuple(dict.fromkeys(name for value in values for name in value.names))
    return [spread(value, names) for value in values], names


def spread(value: Named, names: Sequence[str]) -> Tensor:
    """A tensor with dims in this order, of size 1 where it has none."""
    order = [value.names.index(name) for name in names if name in value.names]
    data = value.data.permute(order)
    for place, name in enumerate(names):
        if name not in value.names:
            data = data.unsqueeze(place)
    return data


def renamed(value: Named, new: Mapping[str, str]) -> Named:
    return Named(value.data, tuple(new.get(name, name) for name in value.names))


def joined(a: Named, b: Named, over: Iterable[str]) -> Named:
    """The product of two values, summed over some dims."""
    (x, y), names = aligned([Named(real(a.data), a.names), Named(real(b.data), b.names)])
    product, gone = x * y, set(over)
    dims = [place for place, name in enumerate(names) if name in gone]
    kept = tuple(name for name in names if name not in gone)
    return Named(product.sum(dims) if dims else product, kept)


def real(data: Tensor) -> Tensor:
    return data.to(REAL)


# --- elementwise ---------------------------------------------------------------------------------

WHOLE = {"neg", "abs", "sign", "add", "sub", "mul", "mod", "floordiv", "max", "min", "where"}
TRUTH = {"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"}

FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "neg": lambda x: -x,
    "exp": torch.exp,
    "exp2": lambda x: 2.0**x,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1 / torch.sqrt(x),
    "abs": torch.abs,
    "sign": torch.sign,
    "floor": torch.floor,
    "sin": torch.sin,
    "cos": torch.cos,
    "erf": torch.erf,
    "sigmoid": lambda x: 1 / (1 + torch.exp(-x)),
    "logsigmoid": lambda x: -torch.logaddexp(-x, torch.zeros_like(x)),
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "relu": lambda x: x.clamp(min=0),
    "detach": lambda x: x.detach(),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "elu": torch.nn.functional.elu,
    "squared_relu": lambda x: x.clamp(min=0) ** 2,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "mod": lambda x, y: x - y * torch.floor(x / y) if x.is_floating_point() else x % y,
    "floordiv": lambda x, y: torch.floor(x / y) if x.is_floating_point() else x // y,
    "pow": lambda x, y: x**y,
    "max": torch.maximum,
    "min": torch.minimum,
    "where": lambda c, x, y: torch.where(c.bool(), x, y),
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
    "between": lambda x, y, z: (x <= y) & (y < z),
    "and": lambda x, y: x.bool() & y.bool(),
    "or": lambda x, y: x.bool() | y.bool(),
    "not": lambda x: ~x.bool(),
}

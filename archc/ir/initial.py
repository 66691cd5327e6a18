"""Starting values of parameters, the same for the same seed on every machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.sizes import Number, callee_sizes, evaluate, resolve_sizes


def sample(
    param: ir.Param,
    sizes: Mapping[str, Number],
    generator: torch.Generator,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """A parameter's starting value, with its axes in order; drawn in float64, then cast."""
    shape = [int(evaluate(axis.size, sizes)) for axis in param.axes]
    return _draw(param.init, shape, sizes, generator).to(dtype)


def sample_layer(
    layer: ir.Layer,
    sizes: Mapping[str, Number],
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor]:
    """Starting values of all parameters of a layer and of those it calls, by dotted path.

    sizes: as `resolve_sizes` takes them. On the CPU, from one generator, in the order of the spec.
    """
    generator = torch.Generator().manual_seed(seed)
    every = all_params(layer, resolve_sizes(layer, sizes))
    return {path: sample(param, known, generator, dtype) for path, param, known in every}


def all_params(
    layer: ir.Layer, sizes: Mapping[str, Number], prefix: str = ""
) -> Iterator[tuple[str, ir.Param, Mapping[str, Number]]]:
    """Every parameter of a layer, then of the layers it calls: dotted path, parameter, and the
    sizes in force there. `sizes` must be resolved."""
    for _, param in layer.params:
        yield prefix + param.name, param, sizes
    for _, call in layer.calls:
        yield from all_params(call.callee, callee_sizes(call, sizes), f"{prefix}{call.path}.")


def _draw(
    init: ir.Init, shape: list[int], sizes: Mapping[str, Number], generator: torch.Generator
) -> Tensor:
    """Numbers of a shape, as an `Init` says."""
    if init.fn in FUNCTIONS:
        return FUNCTIONS[init.fn](_draw(init.args[0], shape, sizes, generator))
    numbers = [float(evaluate(arg, sizes)) for arg in init.args]
    if init.fn == "value":
        return torch.full(shape, numbers[0], dtype=torch.float64)
    if init.fn in ("normal", "default"):
        # nothing is contracted where the size is 0, so any deviation does
        mean, deviation = numbers if init.fn == "normal" else (0.0, max(numbers[0], 1.0) ** -0.5)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        return mean + deviation * noise
    low, high = numbers
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    if init.fn == "loguniform":
        return low * (high / low) ** uniform
    return low + (high - low) * uniform


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "neg": torch.neg,
    # log(exp(y) - 1), written so that a small y keeps its digits and a large one does not overflow
    "inverse_softplus": lambda y: y + torch.log(-torch.expm1(-y)),
    "logit": torch.logit,
}
"""Functions of one `Init`."""

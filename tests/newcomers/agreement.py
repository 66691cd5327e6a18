"""A spec of a paper beside a reference in torch, by every way in which a user gets its numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import archc
from archc.api import Spec
from archc.ir.meaning import evaluate

HERE = Path(__file__).parent

Reference = Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], Tensor]
"""The only output of a layer, from its inputs and parameters by name."""


def held(name: str, reference: Reference, shapes: dict[str, list[int]], **sizes: Any) -> None:
    """The spec of a name gives the numbers of a reference, and its gradients by every input and
    parameter: by its meaning, as a module, token by token, and with kernels."""
    spec = archc.load(str(HERE / f"{name}.arch"))
    inputs = {key: leaf(shape, seed) for seed, (key, shape) in enumerate(shapes.items())}
    module = spec.module(dtype=torch.float64, **sizes)
    params = {}
    for seed, (key, parameter) in enumerate(sorted(module.named_parameters())):
        parameter.data = parameter.data * 0 + leaf(list(parameter.shape), 100 + seed).data / 2
        params[key] = parameter
    expected = reference(inputs, params)
    wanted = slopes(expected, [*inputs.values(), *params.values()])
    for way, found, weights in ways(spec, module, inputs, params, sizes):
        case = f"{name} {way}"
        torch.testing.assert_close(found, expected, msg=lambda text, case=case: f"{case}: {text}")
        got = slopes(found, [*inputs.values(), *weights.values()])
        for key, slope, other in zip([*inputs, *params], got, wanted, strict=True):
            at = f"{case}, by {key}"
            torch.testing.assert_close(slope, other, msg=lambda text, at=at: f"{at}: {text}")


def leaf(shape: list[int], seed: int) -> Tensor:
    """Random numbers in float64 that a gradient is taken by."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def slopes(y: Tensor, by: list[Tensor]) -> tuple[Tensor, ...]:
    """The gradient of a fixed weighted sum."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weights).sum(), by)


def ways(
    spec: Spec,
    module: torch.nn.Module,
    inputs: dict[str, Tensor],
    params: dict[str, Tensor],
    sizes: dict[str, Any],
) -> Iterator[tuple[str, Tensor, dict[str, Tensor]]]:
    """The output by each way, and the parameters that it is made from."""
    (meant,) = evaluate(spec.layer, inputs, params, sizes).outputs.values()
    yield "by its meaning", meant, params
    yield "as a module", module(**inputs), params
    state, rows = None, []
    for first, last in [(0, 2), *((t, t + 1) for t in range(2, inputs["x"].shape[1]))]:
        part = {name: value[:, first:last] for name, value in inputs.items()}
        y, state = module(**part, state=state, return_state=True)
        rows.append(y)
    yield "token by token", torch.cat(rows, 1), params
    yield "packed", packed(module, inputs), params
    kernels = spec.module(dtype=torch.float64, backend="triton", **sizes)
    kernels.load_state_dict(module.state_dict())
    own = dict(kernels.named_parameters())
    yield "with kernels", kernels(**inputs), {key: own[key] for key in params}
    yield "packed, with kernels", packed(kernels, inputs), {key: own[key] for key in params}


def packed(module: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The output for the sequences of a batch one after the other, put back into a batch."""
    B, T = inputs["x"].shape[:2]
    rows = {name: value.flatten(0, 1)[None] for name, value in inputs.items()}
    return module(**rows, cu_seqlens=T * torch.arange(B + 1))[0].unflatten(0, (B, T))

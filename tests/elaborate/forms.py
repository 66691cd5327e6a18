"""A spec by every way in which a user gets its numbers, for formulas written out in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from archc.backends.renamed import weights
from torch import Tensor

import archc
from archc.ir.meaning import evaluate

T = 6
"""Tokens of every example."""


def routes(
    text: str,
    inputs: dict[str, Tensor],
    given: dict[str, Any] | None = None,
    whole: bool = False,
    **sizes: Any,
) -> Iterator[tuple[str, Tensor]]:
    """The only output of a spec: by its meaning, by a module, by one that goes on from a prompt
    token by token, and by the module of the file with kernels; all with the same weights. `given`:
    options that the spec is loaded with."""
    spec = archc.parse(text, **(given or {}))
    torch.manual_seed(1)
    module = spec.module(dtype=torch.float64, **sizes)
    found = evaluate(spec.layer, inputs, weights(module), sizes).outputs
    assert len(found) == 1
    yield "meaning", next(iter(found.values()))
    yield "module", module(**inputs)
    if not whole:
        yield "tokens", token_by_token(module, inputs)
    kernels = spec.module(dtype=torch.float64, backend="triton", **sizes)
    kernels.load_state_dict(module.state_dict())
    yield "kernels", kernels(**inputs)


def token_by_token(module: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The first two tokens at once, then one at a time."""
    count = next(iter(inputs.values())).shape[1]
    state, rows = None, []
    for first, last in [(0, 2), *((t, t + 1) for t in range(2, count))]:
        part = {name: value[:, first:last] for name, value in inputs.items()}
        y, state = module(**part, state=state, return_state=True)
        rows.append(y)
    return torch.cat(rows, 1)


def agree(
    text: str,
    inputs: dict[str, Tensor],
    expected: Tensor,
    given: dict[str, Any] | None = None,
    **sizes: Any,
) -> None:
    """Every route gives the numbers of a formula."""
    for route, found in routes(text, inputs, given, **sizes):
        torch.testing.assert_close(
            found.to(expected.dtype), expected, msg=lambda m, route=route: f"{route}: {m}"
        )


def randn(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers in float64, a batch of 2 of T tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, T, *shape, generator=generator, dtype=torch.float64)


def same(
    text: str,
    inputs: dict[str, Tensor],
    formula: Callable[..., Tensor],
    given: dict[str, Any] | None = None,
    whole: bool = False,
    **sizes: Any,
) -> None:
    """Every route gives the numbers of a formula of the inputs, and its gradient by each of them.
    `whole`: the layer looks both ways, and is not asked for a token at a time."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    expected = formula(**leaves)
    weights_of = torch.linspace(-1, 1, expected.numel(), dtype=torch.float64).view_as(expected)
    slopes = torch.autograd.grad((expected * weights_of).sum(), [*leaves.values()])
    for route, found in routes(text, leaves, given, whole, **sizes):
        message = partial(_named, route)
        torch.testing.assert_close(found.to(expected.dtype), expected, msg=message)
        got = torch.autograd.grad((found * weights_of).sum(), [*leaves.values()])
        for slope, wanted in zip(got, slopes, strict=True):
            torch.testing.assert_close(slope, wanted, msg=message)


def _named(route: str, message: str) -> str:
    return f"{route}: {message}"

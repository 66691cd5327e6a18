"""Loops over the tokens, which `torch.export` writes down as scans if their number may vary."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from archc.runtime.layers import without_autocast


def over_tokens(carried: str, places: tuple = (), /, **along: int) -> Callable:
    """A loop over the tokens, with autocast switched off.

    `carried` names the states that it goes on from and gives back last, `along` the dim of the
    tokens in each argument that has one, `places` that in each result, where it is not 1.
    """

    def decorate(function: Callable) -> Callable:
        alone, parameters = without_autocast(function), signature(function)
        first, dim = next(iter(along.items()), (None, 0))
        place = [*parameters.parameters].index(first) if first is not None else -1

        def run(*args, **options):
            if torch.compiler.is_exporting():
                given = parameters.bind(*args, **options).arguments
                packed = given.get("cu_seqlens") is not None
                if not packed and any(is_varying(given[x], dim) for x, dim in along.items()):
                    return as_scan(alone, given, carried.split(), along, places)
            found = alone(*args, **options)
            whole = torch.compiler.is_exporting() or not 0 <= place < len(args)
            if whole or args[place].shape[dim]:
                return found
            return of_no_tokens(found, len(carried.split()), args)

        return run

    return decorate


def of_no_tokens(found: Any, states: int, given: tuple) -> Any:
    """The result of a loop over no tokens: empty results that depend on all inputs, so that their
    gradients exist and are 0."""
    if not isinstance(found, tuple):
        return found
    entered = (x for x in given if isinstance(x, Tensor) and x.is_floating_point())
    zero = sum((x.flatten()[:0].sum() for x in entered), found[0].new_zeros(()))
    made = len(found) - states
    return tuple(x + zero.to(x.dtype) if n < made else x for n, x in enumerate(found))


def is_varying(x: Tensor, dim: int) -> bool:
    """Whether torch.export wants any number of tokens here."""
    return torch.compiler.is_exporting() and not isinstance(x.shape[dim], int)


def as_scan(
    function: Callable, given: dict, carried: list[str], along: dict[str, int], places: tuple
) -> Any:
    """The result of a loop: one call for one token, a scan over several."""

    def step(state: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        one = {name: x.unsqueeze(along[name]) for name, x in zip(along, token, strict=True)}
        found = function(**{**given, **one, **dict(zip(carried, state, strict=True))})
        found = found if isinstance(found, tuple) else (found,)
        made, after = found[: -len(carried)], found[-len(carried) :]
        where = places or [1] * len(made)
        return [*after], [x.select(dim, 0) for x, dim in zip(made, where, strict=True)]

    streams = [given[name].movedim(dim, 0) for name, dim in along.items()]
    after, made = scan_tokens(step, [given[name] for name in carried], streams)
    where = places or [1] * len(made)
    found = [*(x.movedim(0, dim) for x, dim in zip(made, where, strict=True)), *after]
    return tuple(found) if len(found) > 1 else found[0]


def scan_tokens(
    step: Callable, state: list[Tensor], tokens: list[Tensor], back: bool = False
) -> tuple[list[Tensor], list[Tensor]]:
    """The state after all tokens (`back`: from the last on), and what each step gives, in front."""
    from torch._higher_order_ops.scan import scan as over  # torch's prototype: looked for late

    def apart(state: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        after, made = step(state, token)
        return [x.clone() for x in after], [x.clone() for x in made]  # none may be another's view

    return over(apart, [x.clone() for x in state], tokens, reverse=back)


def products_between(x: Tensor, readers: int) -> Tensor:
    """Products x[s + 1] @ ... @ x[t], for the last `readers` tokens t: the identity where s >= t.

    x [B, S, ..., K, K] -> [B, T, S, ..., K, K]
    """
    product = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device).expand_as(x)
    if is_varying(x, 1):
        s = torch.arange(x.shape[1], device=x.device)

        def step(state: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            earlier = (s < token[1]).reshape(-1, *[1] * (x.dim() - 2))
            after = torch.where(earlier, state[0] @ token[0][:, None], state[0])
            return [after], [after]

        _, (every,) = scan_tokens(step, [product], [x.movedim(1, 0), s])
        return every.movedim(0, 1)[:, x.shape[1] - readers :]
    rows = []
    for t, token in enumerate(x.unbind(1)):
        product = torch.cat([product[:, :t] @ token[:, None], product[:, t:]], 1)
        rows.append(product)
    rows = rows[len(rows) - readers :]
    return torch.stack(rows, 1) if rows else x[:, None][:, :0]


def products_between_for_each(x: Tensor) -> Tensor:
    """Products x[t, s + 1] @ ... @ x[t, t] for each reader t: the identity where s >= t.

    x [B, T, S, ..., K, K], over r, -> [B, T, S, ..., K, K], over s
    """
    readers, seen = x.shape[1:3]
    t = torch.arange(seen - readers, seen, device=x.device).reshape(-1, *[1] * (x.dim() - 3))
    product = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    product = product.expand(x.shape[:2] + x.shape[3:])
    if is_varying(x, 2):

        def step(state: list[Tensor], token: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            return [torch.where(token[1] <= t, token[0] @ state[0], state[0])], [state[0]]

        r = torch.arange(seen, device=x.device)
        _, (every,) = scan_tokens(step, [product], [x.movedim(2, 0), r], back=True)
        return every.movedim(0, 2)
    rows = []
    for r in reversed(range(seen)):
        rows.append(product)
        product = torch.where(r <= t, x[:, :, r] @ product, product)
    return torch.stack(rows[::-1], 2) if rows else x

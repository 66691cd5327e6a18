"""Keys that the matrices of later tokens have moved, beside those that a state keeps as they were.

    k[t, s] = M[t]' k[t-1, s] = k[t-1, s] + sign (k[t-1, s] . u[t]) w[t] + ...,    k[s, s] = k[s]

A reader that comes alone reads them as if no matrix stood between: a token moves each key once.
They are a state: float32 at least, as roundings to 16 bits by every token would add up. Where keys
have 16 bits, readers have a copy in their dtype, each rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archc.runtime.growing import has_room, most_of
from archc.runtime.kernels import needs_gradient


def moves_keys(*tensors: Tensor) -> bool:
    """Whether moved keys are kept beside a state: nothing learns by it, and torch does not look on,
    to which they would be one more input."""
    return not torch.compiler.is_compiling() and not needs_gradient(*tensors)


def moved_keys(
    move: Callable, title: str, past: Sequence[Tensor], seen: Sequence[Tensor], factors: Callable,
    signs: Sequence[int],
) -> Tensor:  # fmt: skip
    """The first of `seen`, keys [B, S, ..., K], as the matrices of later tokens have moved them, by
    `move`, in their dtype; `factors` makes u, w, u, ... [B, n, ..., K] of the others at n tokens,
    or the logarithms of gates alone, which have no signs.
    `past` is what a state has of these.

    Those of `past`, all but the last token, are moved in place, if what was kept beside it still is
    of them: a state may be continued twice, or written to. Else they are made anew of all tokens.
    """
    keys, S, known = seen[0], seen[0].shape[1], vars(past[0]).get("_moved", {})
    wide = torch.promote_types(keys.dtype, torch.float32)
    memory, copy, owner = known.get(title, (keys, keys, []))
    first = S - 1 if _still(owner, past, seen) and has_room(memory, S) else 0
    if first == 0:
        copy = keys.new_empty((keys.shape[0], most_of(keys) or 2 * S, *keys.shape[2:]))
        memory = copy if keys.dtype == wide else torch.empty_like(copy, dtype=wide)
        owner = []
    owner.clear()
    memory[:, first:S] = keys[:, first:]
    if copy is not memory:
        copy[:, S - 1] = keys[:, S - 1]
    made = factors(*(x[:, first:].to(wide) if x.is_floating_point() else x[:, first:]
                     for x in seen[1:]))  # fmt: skip
    w = [x if sign > 0 else -x for sign, x in zip(signs, made[1::2], strict=True)]
    move(memory, copy, S, first, *(torch.stack(x, -2) for x in (made[::2], w) if x))
    owner += map(_mark, seen)
    vars(keys)["_moved"] = {**known, title: (memory, copy, owner)}
    return copy[:, :S]


def _mark(x: Tensor) -> tuple[int, ...]:
    """How often a value was written to, where it lies, and its shape; torch does not count for what
    is made in inference mode."""
    return (-1 if x.is_inference() else x._version, x.data_ptr(), *x.shape)


def _still(owner: list[tuple[int, ...]], past: Sequence[Tensor], seen: Sequence[Tensor]) -> bool:
    """Whether values are those that were marked: since then the last token alone may have been
    written, behind them."""
    if len(owner) != len(past) or any(x.is_inference() for x in past):
        return False
    behind = (int(x.data_ptr() == y.data_ptr()) for x, y in zip(past, seen, strict=True))
    pairs = zip(map(_mark, past), behind, strict=True)
    now = [(count - more, *rest) for (count, *rest), more in pairs]
    return owner == now


def move_by_gates(memory: Tensor, copy: Tensor, S: int, first: int, gate: Tensor) -> None:
    """Let each of the tokens from `first` to S scale the keys before it, [B, room, ..., K], in
    place, and write them to `copy`: logarithms of gates [B, S - first, ..., 1, K]."""
    later = gate.squeeze(-2).flip(1).cumsum(1).flip(1).exp_()  # of a token and those behind it
    memory[:, :first] *= later[:, :1]
    memory[:, first : S - 1] *= later[:, 1:]
    if copy is not memory:
        copy[:, : S - 1] = memory[:, : S - 1]


def move_by_torch(
    memory: Tensor, copy: Tensor, S: int, first: int, u: Tensor, w: Tensor
) -> None:  # fmt: skip
    """Let each of the tokens from `first` to S move the keys before it, [B, room, ..., K], in
    place, and write them to `copy`, another memory where their dtypes differ: u and w
    [B, S - first, ..., ranks, K]."""
    for t in range(max(first, 1), S):
        by = (memory[:, :t, ..., None, :] * u[:, t - first, None]).sum(-1, keepdim=True)
        memory[:, :t] += (by * w[:, t - first, None]).sum(-2)
    if copy is not memory:
        copy[:, : S - 1] = memory[:, : S - 1]

"""Keys that the matrices of later tokens have moved, beside those that a state keeps as they were.

    k[t, s] = M[t]' k[t-1, s] = k[t-1, s] + sign (k[t-1, s] . u[t]) w[t] + ...,    k[s, s] = k[s]

A reader that comes alone reads them as if no matrix stood between: a token moves each key once.
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
    `move`; `factors` makes u, w, u, ... [B, n, ..., K] of the others at n tokens. `past` is what a
    state has of these.

    Those of `past`, all but the last token, are moved in place, if what was kept beside it still is
    of them: a state may be continued twice. Else they are made anew of all tokens.
    """
    keys, S, known = seen[0], seen[0].shape[1], vars(past[0]).get("_moved", {})
    memory, owner = known.get(title, (keys[:, :0], []))
    first = S - 1 if owner == _places(past) and has_room(memory, S) else 0
    if first == 0:
        memory = keys.new_empty((keys.shape[0], most_of(keys) or 2 * S, *keys.shape[2:]))
        owner = []
    owner.clear()
    memory[:, first:S] = keys[:, first:]
    made = factors(*(x[:, first:] for x in seen[1:]))
    w = [x if sign > 0 else -x for sign, x in zip(signs, made[1::2], strict=True)]
    move(memory, S, first, torch.stack(made[::2], -2), torch.stack(w, -2))
    owner += _places(seen)
    vars(keys)["_moved"] = {**known, title: (memory, owner)}
    return memory[:, :S]


def _places(values: Sequence[Tensor]) -> list[tuple[int, ...]]:
    """Where some values lie, and how many tokens they have."""
    return [(x.data_ptr(), *x.shape) for x in values]


def move_by_torch(memory: Tensor, S: int, first: int, u: Tensor, w: Tensor) -> None:
    """Let each of the tokens from `first` to S move the keys before it, [B, room, ..., K], in
    place: u and w [B, S - first, ..., ranks, K]."""
    for t in range(max(first, 1), S):
        by = (memory[:, :t, ..., None, :] * u[:, t - first, None]).sum(-1, keepdim=True)
        memory[:, :t] += (by * w[:, t - first, None]).sum(-2)

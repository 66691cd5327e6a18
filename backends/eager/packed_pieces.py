"""Functions that run a layer on packed sequences, written out into each generated file."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def sequence_bounds(layer: str, cu_seqlens: Tensor, x: Tensor) -> list[int]:
    """Where packed sequences begin and end, as numbers; refuses what cannot be that."""
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.is_floating_point():
        raise TypeError(f"{layer}: `cu_seqlens` must be a tensor of integers, got {cu_seqlens!r}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        got = f"got a tensor of shape {list(cu_seqlens.shape)}"
        raise ValueError(f"{layer}: `cu_seqlens` must be [N + 1] for N >= 1 sequences, {got}")
    if x.shape[0] != 1:
        got = f"got a batch of {x.shape[0]}"
        raise ValueError(f"{layer}: with `cu_seqlens` the batch must be 1, {got}")
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != x.shape[1] or sorted(bounds) != bounds:
        wanted = f"must ascend from 0 to the number of tokens, {x.shape[1]}"
        raise ValueError(f"{layer}: `cu_seqlens` {wanted}, got {bounds}")
    return bounds


def run_packed(
    layer: str, run: Callable, cu_seqlens: Tensor, tokens: dict, others: dict, state: Any
) -> tuple[Any, list]:
    """Outputs and states of sequences that stand one after the other, as if each ran by itself.

    `tokens` are inputs [1, T, ...], `others` hold one row a sequence; sequences of equal length
    run as one batch. Outputs come packed as the inputs are, states as a list.
    """
    bounds = sequence_bounds(layer, cu_seqlens, next(x for x in tokens.values() if x is not None))
    count = len(bounds) - 1
    groups: dict[int, list[int]] = {}
    for i in range(count):
        groups.setdefault(bounds[i + 1] - bounds[i], []).append(i)
    outputs, states = {}, {}
    for length, members in groups.items():
        given = {
            name: x if x is None else torch.cat([x[:, bounds[i] :][:, :length] for i in members])
            for name, x in tokens.items()
        }
        given |= {name: state_rows(layer, x, members, count) for name, x in others.items()}
        made, after = run(**given, state=state_rows(layer, state, members, count))
        for row, i in enumerate(members):
            outputs[i] = state_rows(layer, made, [row], len(members))
            states[i] = state_rows(layer, after, [row], len(members))
    every = [outputs[i] for i in range(len(outputs))]
    kept = [states[i] for i in range(len(states))]
    if isinstance(every[0], tuple):
        return tuple(torch.cat(ys, 1) for ys in zip(*every, strict=True)), kept
    return torch.cat(every, 1), kept


def state_rows(layer: str, state: Any, rows: list[int], count: int) -> Any:
    """Some rows of a state, or of another value, of `count` sequences."""
    if isinstance(state, tuple):
        parts = [state_rows(layer, part, rows, count) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    if not isinstance(state, Tensor):
        return state
    if state.shape[0] != count:
        got = f"got {state.shape[0]}"
        raise ValueError(f"{layer}: `cu_seqlens` has {count} sequences, so must the state, {got}")
    return state[rows]


def joined_states(layer: str, states: list) -> Any:
    """The states of several sequences as one of a batch; refused where their shapes differ."""
    first = states[0]
    if isinstance(first, tuple):
        parts = [joined_states(layer, list(part)) for part in zip(*states, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    shapes = [x.shape[1:] if isinstance(x, Tensor) else x for x in states]
    if any(shape != shapes[0] for shape in shapes):
        raise ValueError(
            f"{layer}: what is kept of sequences of different lengths does not fit into one state"
        )
    return torch.cat(states) if isinstance(first, Tensor) else first

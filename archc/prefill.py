"""Prompts that a model reads together, before it continues each of them.

prompts of `chunk` tokens in all    packed, one after the other, read at once
prompts longer than that            side by side, a piece of each at once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from archc.runtime.kept_states import joined_states
from archc.runtime.packed import row_of_state
from archc.sampling import TextModel, reading, to_continue

SHORTEST = 64
"""Tokens that a piece of a long prompt has at least, if `chunk` is as many."""


def groups(lengths: Sequence[int], chunk: int | None) -> Iterator[list[int]]:
    """The places of prompts that are read together: those that have `chunk` tokens in all, in
    order, and longer ones as many as have pieces of some tokens each."""
    long = [i for i, n in enumerate(lengths) if chunk is not None and n > chunk]
    group, tokens = list[int](), 0
    for place, length in enumerate(lengths):
        if place in long:
            continue
        if group and chunk is not None and tokens + length > chunk:
            yield group
            group, tokens = [], 0
        group.append(place)
        tokens += length
    if group:
        yield group
    width = max((chunk or 1) // SHORTEST, 1)
    for first in range(0, len(long), width):
        yield long[first : first + width]


@dataclass(frozen=True)
class Prefill:
    """A model that reads prompts; `room`: tokens that a state which is kept as it is may need."""

    model: nn.Module
    kind: TextModel
    room: int | None

    def read(
        self,
        prompts: Sequence[Tensor],
        chunk: int | None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> list[tuple[Any, Tensor]]:
        """The state after each prompt [T] of a group, and the logits [1, vocab] behind it; `beside`
        has the other sequences of a single one, by name."""
        if len(prompts) == 1:
            first = self._with_room(self._first_state(1))
            others = {name: x[None] for name, x in (beside or {}).items()}
            text = to_continue(
                self.model, prompts[0][None], 0, state=first, chunk=chunk, beside=others
            )
            with reading(self.model):
                logits = text.next_logits()
            return [(text.state, logits)]
        if chunk is not None and max(map(len, prompts)) > chunk:
            return self._side_by_side(prompts, chunk)
        lengths = torch.tensor([0, *map(len, prompts)], device=prompts[0].device)
        borders = lengths.cumsum(0)
        with reading(self.model):
            made, states = self.model(
                torch.cat([*prompts])[None], cu_seqlens=borders, return_state=True
            )
            logits = self.kind.logits(made)[0, borders[1:] - 1]
        rows = [self._with_room(row_of_state(states, row)) for row in range(len(prompts))]
        return [*zip(rows, logits.split(1), strict=True)]

    def _side_by_side(self, prompts: Sequence[Tensor], chunk: int) -> list[tuple[Any, Tensor]]:
        """The same of long prompts, of which those that have not ended are a batch: as many tokens
        of each as have `chunk` tokens in all, or as the shortest has left."""
        rows, low = list(range(len(prompts))), 0
        found: dict[int, tuple[Any, Tensor]] = {}
        state = self._first_state(len(rows))
        while rows:
            step = min(max(chunk // len(rows), 1), *(len(prompts[row]) - low for row in rows))
            tokens = torch.stack([prompts[row][low : low + step] for row in rows])
            with reading(self.model):
                made, state = self.model(tokens, state=state, return_state=True)
            low += step
            ended = [place for place, row in enumerate(rows) if len(prompts[row]) == low]
            last = self.kind.logits(made)[:, -1] if ended else None
            for place in ended:
                assert last is not None
                own = self._with_room(row_of_state(state, place))
                found[rows[place]] = own, last[place : place + 1]
            if ended and len(ended) < len(rows):
                going = [place for place in range(len(rows)) if place not in ended]
                state = joined_states([row_of_state(state, place) for place in going])
            rows = [row for place, row in enumerate(rows) if place not in ended]
        return [found[row] for row in range(len(prompts))]

    def _first_state(self, rows: int) -> Any:
        """The state that prompts are read from."""
        return self.model.initial_state(rows)  # type: ignore[operator]

    def _with_room(self, state: Any) -> Any:
        """A state with as much room as a sequence may need, where it is kept as it is."""
        return state if self.room is None else state.reserve(self.room)

"""The states of a model between calls, where Hugging Face's library has `past_key_values`."""

from __future__ import annotations

from typing import Any

from torch import Tensor


class StateCache:
    """The state of a model, and how many tokens it was given, padding too. It is changed in place,
    as caches of that library are."""

    is_compileable = False

    def __init__(self, state: Any = None, seen: int = 0):
        self.state, self.seen = state, seen

    def update(self, state: Any, tokens: int) -> StateCache:
        """The state after `tokens` more of each sequence."""
        self.state, self.seen = state, self.seen + tokens
        return self

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens each sequence was given, padding too."""
        return self.seen

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        """No limit but the model's own, which is -1 there."""
        return -1

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the sequences that a beam search goes on with, in their order."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences of the batch."""
        if self.state is not None:
            self.state = self.state.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence so many times, one after the other."""
        if self.state is not None:
            count = rows_of(self.state)
            self.state = self.state.select([i for i in range(count) for _ in range(repeats)])

    def crop(self, max_length: int) -> None:
        """Refused: a state does not know what it was some tokens ago."""
        raise ValueError("a state cannot be cut back to fewer tokens: keep `state.clone()` of then")

    def reset(self) -> None:
        """Forget everything."""
        self.state, self.seen = None, 0

    def __repr__(self) -> str:
        kind = "nothing" if self.state is None else type(self.state).__name__
        return f"StateCache({kind}, {self.seen} tokens)"


def rows_of(state: Any) -> int:
    """How many sequences a state is of; 0 for one that holds no tensor."""
    if hasattr(state, "rows"):
        return len(state.rows)
    for part, name in zip(state, getattr(state, "_fields", [""] * len(state)), strict=True):
        if isinstance(part, Tensor) and name not in getattr(type(state), "_shared", ()):
            return part.shape[0] if part.dim() else 0
        if isinstance(part, tuple) and (found := rows_of(part)):
            return found
    return 0

"""Functions around launches of tile programs, beside the launcher."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from archc.runtime.optional import tl, triton
from archc.runtime.repeated import noted


def compiled_for(**constants: Any) -> dict:
    """The constants of a tile program as Triton takes them: dtypes of torch become its own."""
    return {
        name: kind_of(value) if value.__class__ is torch.dtype else value
        for name, value in constants.items()
    }


@cache
def kind_of(dtype: torch.dtype) -> Any:
    """A dtype of torch as Triton has it."""
    return getattr(tl, str(dtype).removeprefix("torch."))


def descriptor_room() -> None:
    """Let launches of this thread have memory for the descriptors that their kernels make."""

    def room(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    triton.set_allocator(room)
    noted(None)  # a call that is done again says nothing to this thread

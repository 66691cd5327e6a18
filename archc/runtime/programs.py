"""Functions around launches of tile programs, beside the launcher."""

from __future__ import annotations

from typing import Any

import torch

from archc.runtime.optional import tl, triton


def compiled_for(**constants: Any) -> dict:
    """The constants of a tile program as Triton takes them: dtypes of torch become its own."""
    return {
        name: getattr(tl, str(value).removeprefix("torch."))
        if type(value) is torch.dtype
        else value
        for name, value in constants.items()
    }


def descriptor_room() -> None:
    """Let launches of this thread have memory for the descriptors that their kernels make."""

    def room(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, device="cuda", dtype=torch.int8)

    triton.set_allocator(room)

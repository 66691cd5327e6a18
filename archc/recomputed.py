"""Layers that keep what enters them and make the rest again in their gradient: time for memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from archc.origin import blocks_of, origin_of


class Again:
    """The forward of a layer whose values are computed anew for the gradient; `function` is
    torch's `checkpoint`, or what stands for it."""

    def __init__(self, block: nn.Module, function: Callable[..., Any]):
        self.block, self.function = block, function

    def __call__(self, *given: Any, **named: Any) -> Any:
        forward = type(self.block).forward
        if not (self.block.training and torch.is_grad_enabled()):
            return forward(self.block, *given, **named)
        return self.function(partial(forward, self.block), *given, **named)


def keep_less(module: nn.Module) -> nn.Module:
    """The module itself, of which each layer that a `repeat` made (without one, the whole) keeps
    what enters it alone, in training: its gradient begins with its forward once more, with the same
    dropout. Copies and pickles do so too."""
    again = partial(checkpoint, use_reentrant=False)
    for block in blocks_of(module, origin_of(module)) or [module]:
        block.forward = Again(block, again)  # type: ignore[method-assign]
    return module

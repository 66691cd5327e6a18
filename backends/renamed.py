"""Words of a spec that a generated file spells otherwise, as they have a meaning there already: a
parameter or a size `F` is `F_` in a file that imports that word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from archc.backends.writer import attribute

if TYPE_CHECKING:
    from torch import Tensor, nn


class Weights(dict[str, "Tensor"]):
    """Tensors by the names that a module has for them, and by those of the spec."""

    def __missing__(self, name: str) -> Tensor:
        own = ".".join(p if p.isdigit() else attribute(p) for p in name.split("."))
        if own not in self:
            raise KeyError(name)
        return self[own]


def weights(module: nn.Module) -> Weights:
    """The parameters of a module."""
    return Weights(module.state_dict())


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and other arguments of a layer, as its module takes them."""
    return {attribute(name): value for name, value in given.items()}

"""Tensors whose dims have names: the values of the reference semantics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Named:
    """A tensor whose dims have names."""

    data: Tensor
    names: tuple[str, ...]

    def to(self, names: Sequence[str]) -> Tensor:
        """The tensor with its dims in this order; a name it does not have is a dim of size 1."""
        if names == self.names:
            return self.data
        data = self.data.permute([self.names.index(n) for n in names if n in self.names])
        for i, name in enumerate(names):
            if name not in self.names:
                data = data.unsqueeze(i)
        return data

    def renamed(self, names: Mapping[str, str]) -> Named:
        """The tensor with some of its axes renamed."""
        return Named(self.data, tuple(names.get(name, name) for name in self.names))

    def but(self, *gone: str) -> list[str]:
        """The names of its other axes."""
        return [name for name in self.names if name not in gone]

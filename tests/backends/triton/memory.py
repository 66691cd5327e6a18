"""Kernels under Triton's interpreter may touch only what is theirs.

A GPU says little when a kernel reads past the end of a tensor, and nothing when two programs write
one place. `guarded()` makes the interpreter refuse both: every address that is loaded or stored
lies inside the tensor whose pointer it was made from, no place is stored by two programs of one
launch, and none is loaded that the launch has stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from torch import Tensor
from triton.runtime import interpreter

CARRYING = ("create_addptr", "create_splat", "create_unsplat", "create_broadcast",
            "create_expand_dims", "create_trans", "create_bitcast")  # fmt: skip
"""What makes pointers of pointers: the first operand that has a tensor tells whose they are."""


class Guard:
    """What one tensor of a launch holds, and which program has stored which of its elements."""

    def __init__(self, name: str, x: Tensor):
        self.name, self.first, self.size = name, x.data_ptr(), x.element_size()
        reach = sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True))
        self.count = reach + 1 if x.numel() else 0
        self.shape, self.written = tuple(x.shape), np.full(self.count, -1)

    def places(self, addresses: np.ndarray, mask: np.ndarray, what: str) -> np.ndarray:
        """The elements at these addresses; IndexError if one is outside."""
        found = np.broadcast_to(addresses, np.broadcast_shapes(addresses.shape, mask.shape))
        found = found[np.broadcast_to(mask, found.shape).astype(bool)].astype(np.int64)
        places = (found - self.first) // self.size
        off = places[(places < 0) | (places >= self.count)]
        if off.size:
            raise IndexError(f"{what} of {self.name} {self.shape} at element {off[0]}")
        return places

    def load(self, addresses: np.ndarray, mask: np.ndarray) -> None:
        """Refuse places outside, and those that this launch has stored, unless its programs hand
        values to each other."""
        places = self.places(addresses, mask, "load")
        if (self.written[places] >= 0).any() and not self.name.endswith("_on_grid"):
            raise IndexError(f"load of {self.name}, which the same launch stores")

    def store(self, addresses: np.ndarray, mask: np.ndarray, program: int) -> None:
        """Refuse places outside, and those that another program has stored."""
        places = self.places(addresses, mask, "store")
        before = self.written[places]
        if ((before >= 0) & (before != program)).any():
            raise IndexError(f"two programs store one element of {self.name}")
        self.written[places] = program


def _carrying(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose result is of the tensor that its operands are of."""

    def run(*given: Any) -> Any:
        made = method(*given)
        for x in given:
            if "guard" in getattr(x, "attr", ()):
                made.attr["guard"] = x.attr["guard"]
        return made

    return run


@contextmanager
def guarded() -> Iterator[None]:
    """Every load and store is checked; without the interpreter this does nothing."""
    builder, convert = interpreter.InterpreterBuilder, interpreter._implicit_cvt
    load, store, launch = (
        builder.create_masked_load, builder.create_masked_store, interpreter.GridExecutor.__call__,
    )  # fmt: skip

    def converted(given: Any) -> Any:
        made = convert(given)
        if isinstance(given, Tensor):
            made.handle.attr["guard"] = Guard(f"argument of {launched[-1]}", given)
        return made

    def checked_load(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        ptrs.attr["guard"].load(ptrs.data, mask.data)
        return load(self, ptrs, mask, *rest)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        ptrs.attr["guard"].store(ptrs.data, mask.data, self.grid_idx[0])
        return store(self, ptrs, value, mask, *rest)

    def launching(self: Any, *given: Any, **named: Any) -> Any:
        launched.append(self.fn.__name__)
        return launch(self, *given, **named)

    launched = ["?"]
    carrying = {name: _carrying(getattr(builder, name)) for name in CARRYING}
    checks = {"create_masked_load": checked_load, "create_masked_store": checked_store}
    with (
        mock.patch.multiple(builder, **carrying, **checks),
        mock.patch.object(interpreter, "_implicit_cvt", converted),
        mock.patch.object(interpreter.GridExecutor, "__call__", launching),
    ):
        yield

"""Scans of Triton's interpreter row by row, not element by element.

It calls the function of a scan for every element of a tile; here it is called for all elements of a
row at once, in the same order, so that the numbers are the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from triton.language import core as tl
from triton.runtime.interpreter import ScanOps

ELEMENT_BY_ELEMENT = ScanOps.generic_scan


def row_by_row(self: ScanOps, given: list[Any]) -> list[Any]:
    """What `ScanOps.generic_scan` returns."""
    if given[0].handle.data.ndim == 1:
        return ELEMENT_BY_ELEMENT(self, given)
    tiles = [np.moveaxis(x.handle.data, self.axis, 0) for x in given]
    made = [np.empty_like(tile) for tile in tiles]
    before: tuple[Any, ...] = ()
    for row in range(tiles[0].shape[0]):
        here = [
            self.to_tensor(tile[row].copy(), x.dtype)
            for tile, x in zip(tiles, given, strict=True)
        ]  # fmt: skip
        found = self.combine_fn.fn(*before, *here) if before else tuple(here)
        before = found if isinstance(found, tuple) else (found,)
        for into, x in zip(made, before, strict=True):
            into[row] = x.handle.data if isinstance(x, tl.tensor) else x
    return [
        self.to_tensor(np.moveaxis(tile, 0, self.axis), x.dtype)
        for tile, x in zip(made, given, strict=True)
    ]  # fmt: skip


@contextmanager
def quick_scans() -> Iterator[None]:
    """Every scan goes row by row."""
    with mock.patch.object(ScanOps, "generic_scan", row_by_row):
        yield

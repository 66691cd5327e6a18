"""What a backend is given: a layer, and what the file that it writes says and checks about itself."""

from __future__ import annotations

from dataclasses import dataclass

from archc.ir import layer as ir


@dataclass(frozen=True)
class Check:
    """A small instance of the layer and what the float64 oracle computed for it.

    `sizes` are the arguments of the instance, `batch` and `tokens` the shape of its inputs (`others`:
    the lengths of other sequences, by stream). Parameters and inputs follow `sample.py`. `expected`
    holds some elements of each output, by name: their flat indices and values.
    """

    sizes: dict[str, int | float]
    batch: int
    tokens: int
    others: dict[str, int]
    expected: dict[str, tuple[tuple[int, ...], tuple[float, ...]]]


@dataclass(frozen=True)
class Plan:
    """Everything that source text is made from; the same plan gives the same text."""

    layer: ir.Layer
    backend: str = "eager"
    version: str = ""
    command: str = ""
    check: Check | None = None

"""The limits of a device: the on-chip budget of a program, and the rates that bound its time.

Rates of data sheets are peaks; where one was measured it is the measured one, as nothing runs
faster than a plain copy, or than the largest products of matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """The on-chip budget of a program: bytes of shared memory a block, and registers of 4 bytes
    that all blocks of a processor have together."""

    shared: int
    registers: int = 65_536


@dataclass(frozen=True)
class Device:
    """A GPU: `processors` run programs, memory moves `bandwidth` bytes a second, and operations a
    second are `products` by dtype for products of matrices, `arithmetic` in float32 for others,
    and `special` for exponentials, logarithms and roots. `sources` say where each number is from.
    """

    name: str
    capability: tuple[int, int]
    budget: Budget
    processors: int
    bandwidth: float
    products: Mapping[str, float]
    arithmetic: float
    special: float
    sources: tuple[str, ...]

    def product_rate(self, dtype: str) -> float:
        """Operations a second in products of matrices of a dtype; float32 is three products in
        tf32, for the digits that one of them drops."""
        return self.products["tf32"] / 3 if dtype == "float32" else self.products[dtype]


LAUNCH = 3e-6
"""Seconds from one launch to the next, on any of them: a kernel that does less is as slow."""

_GUIDE = (
    "special functions: 16 a clock and processor, CUDA C++ Programming Guide,"
    " table of arithmetic instructions"
)
_SMEM = "shared memory: the same guide, table of compute capabilities"


def _tensor(half: float, tf32: float) -> dict[str, float]:
    return {"bfloat16": half, "float16": half, "tf32": tf32}


DEVICES: Mapping[str, Device] = {
    "H200": Device(
        "H200", (9, 0), Budget(232_448), 132, 4.2e12, _tensor(790e12, 395e12), 67e12, 4.18e12,
        (
            "bandwidth: 4.2 TB/s, a copy that was measured; 4.8 TB/s in NVIDIA's data sheet",
            "bfloat16: 790 TFLOP/s, measured; 989 in NVIDIA's data sheet; tf32 half of it",
            "float32: 67 TFLOP/s, NVIDIA's data sheet", _GUIDE, _SMEM,
        ),
    ),
    "H100": Device(
        "H100", (9, 0), Budget(232_448), 132, 3.35e12, _tensor(989e12, 494e12), 67e12, 4.18e12,
        ("peaks of the SXM board, NVIDIA's data sheet", _GUIDE, _SMEM),
    ),
    "A100": Device(
        "A100", (8, 0), Budget(166_912), 108, 2.039e12, _tensor(312e12, 156e12), 19.5e12, 2.44e12,
        ("peaks of the 80 GB SXM board, NVIDIA's data sheet", _GUIDE, _SMEM),
    ),
}  # fmt: skip
"""Devices by name; the first is what plans are printed for unless another is asked for."""

REFERENCE = DEVICES["H200"]

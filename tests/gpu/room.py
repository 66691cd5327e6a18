"""Heads of up to 256 dims, for which the tiles of long chunks have no room: right on a GPU.

    python -m tests.gpu.room kda delta

prints the largest error of outputs, last states and gradients against float64.
"""

from __future__ import annotations

import sys

from tests.gpu.cases import Case
from tests.gpu.measure import measure

DIMS = ((60, 60), (128, 128), (256, 256), (64, 256), (256, 64), (200, 130))


def main() -> None:
    """A line for each case."""
    for spec in sys.argv[1:]:
        for dtype in ("float32", "bfloat16"):
            for K, V in DIMS:
                case = Case(spec, dtype, 64, K=K, V=V, T=333)
                try:
                    found = str(measure(case, "cuda"))
                except (RuntimeError, ValueError) as reason:
                    found = f"{type(reason).__name__}: {str(reason)[:200]}"
                print(spec, dtype, f"K={K} V={V}", found, flush=True)


if __name__ == "__main__":
    main()

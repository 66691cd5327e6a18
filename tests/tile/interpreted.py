"""Printed programs in Triton's interpreter, in a process of their own (TRITON_INTERPRET=1):

TRITON_INTERPRET=1 python -m tests.tile.interpreted
"""

from __future__ import annotations

import sys

import torch

from tests.tile import by_hand
from tests.tile.cases import CASES, Drawn, errors
from tests.tile.launched import compiled_in, launcher, programs

ALONE = "cell"
"""Programs with a barrier: Triton's interpreter runs one program after the other."""

LIMIT = {"delta_sweep": 2e-3}
"""What float16 inside costs."""


def main() -> int:
    """How far every output is off; 1 if one is too far."""
    wrong = 0
    for name, make in CASES.items():
        if name == ALONE:
            continue
        for kind in ("printed", "by hand"):
            case = make(Drawn(torch.float32))
            if kind == "printed":
                launcher(case.program, case.tensors, case.sizes, case.constants)()
            else:
                ordered = [case.tensors[buffer.name] for buffer in case.program.buffers]
                numbers = [case.sizes[symbol.name] for symbol in case.program.sizes]
                fixed = compiled_in(case.program, case.constants)
                count = programs(case.program, case.sizes, case.constants)
                getattr(by_hand, name)[(count,)](*ordered, *numbers, **fixed)
            found = errors(case)
            far = not max(found.values()) < LIMIT.get(name, 2e-5)
            wrong += far
            print(f"{name} {kind}: {found}{' TOO FAR' if far else ''}", flush=True)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())

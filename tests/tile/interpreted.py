"""Printed programs in Triton's interpreter, in a process of their own:

TRITON_INTERPRET=1 python -m tests.tile.interpreted
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import torch

from tests.tile import by_hand
from tests.tile.cases import CASES, Case, Drawn, errors
from tests.tile.launched import compiled_in, launcher, programs
from tests.tile.ops import OPS

ALONE = ("cell",)
"""Programs with a barrier: Triton's interpreter runs one program after the other."""

LIMIT = {"delta_sweep": 2e-3}
"""What float16 inside costs; 2e-5 where nothing is said."""


def printed(case: Case) -> None:
    """Run what the printer makes of a program."""
    launcher(case.program, case.tensors, case.sizes, case.constants)()


def hand_written(case: Case) -> None:
    """Run its twin of `by_hand.py`."""
    given = [case.tensors[buffer.name] for buffer in case.program.buffers]
    given += [case.sizes[symbol.name] for symbol in case.program.sizes]
    fixed = compiled_in(case.program, case.constants)
    count = programs(case.program, case.sizes, case.constants)
    getattr(by_hand, case.program.name)[(count,)](*given, **fixed)


def runs() -> Iterator[tuple[str, Case, Callable[[Case], None]]]:
    """Every program; with `--by-hand` its twin too, which is no code of the compiler."""
    for name, make in CASES.items():
        if name not in ALONE:
            yield name, make(Drawn(torch.float32)), printed
            if "--by-hand" in sys.argv:
                yield f"{name} by hand", make(Drawn(torch.float32)), hand_written
    for name, make in OPS.items():
        yield name, make(), printed


def main() -> int:
    """How far every output is off; 1 if one is too far."""
    wrong = False
    for name, case, go in runs():
        go(case)
        found = errors(case)
        far = not max(found.values()) < LIMIT.get(case.program.name, 2e-5)
        wrong |= far
        print(f"{name}: {found}{' TOO FAR' if far else ''}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

"""How much a kernel that walks tokens holds on chip: counted as its launch in a generated file does
(`step_fits`), which takes the loop in PyTorch where that is more than there is."""

from __future__ import annotations

import math

from archc.schedule.memory import OnChip
from archc.schedule.program import WIDE, Program
from archc.schedule.steps import ALONG

LEAST, THREADS = 8, 16 << 10
"""The shortest block of a dim that is split; bytes of shared memory for what threads share."""


def walks_tokens(program: Program) -> bool:
    """Whether a kernel is one of `steps`."""
    return program.kernel.why == (ALONG,)


def of_steps(program: Program) -> OnChip:
    """The states, which have half of the registers; and in shared memory weights that all sequences
    share, in float32 in parts, with what comes with a token."""
    split, weights, moving = program.kernel.split, 0, 0
    for step in program.loads():
        axes = step.node.type.axes
        tile, kinds = program.tile(axes), {axis.kind for axis in axes}
        if "stream" in kinds:
            moving += math.prod(tile)
        elif "batch" not in kinds and len(tile) > 1:
            weights += math.prod(tile)
    states = sum(math.prod(program.tile(type.axes)) for type in program.states.values())
    if split is not None:
        states = states * LEAST // max(LEAST, *program.tile([split]))
    held = weights * (2 * WIDE if program.setting.dtype == "float32" else 2)
    return OnChip(held + WIDE * moving + THREADS if weights else 0, 2 * WIDE * states)

"""The on-chip memory of a kernel that goes token by token: folds over the program that is printed.

Its launch in a generated file (`step_fits`) takes the loop in PyTorch where that is more than there
is.
"""

from __future__ import annotations

from archc.ir.kernel import Kernel
from archc.ir.sizes import evaluate
from archc.lowering.steps import Stepping, stepping
from archc.lowering.values import Refusal
from archc.schedule.memory import OnChip
from archc.schedule.program import Setting
from archc.tile.language import Dot, statements
from archc.tile.resources import Launch

DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}

SHORT, LEAST = 8, 16
"""The shortest block of a dim that programs share, and that of a dim of a product of matrices."""


def walks_tokens(kernel: Kernel) -> bool:
    """Whether a kernel is one of `steps`."""
    return kernel.tokenwise


def of_steps(kernel: Kernel, setting: Setting) -> OnChip:
    """What a program holds where it holds most, with the shortest block of what programs share;
    nothing, where there is no program."""
    made = stepping(kernel)
    if isinstance(made, Refusal):
        return OnChip(0, 0)
    held = Launch(made.program, _known(made, setting)).on_chip()
    return OnChip(held.shared, held.held)


def _known(made: Stepping, setting: Setting) -> dict[str, int | float | str]:
    """The sizes and constants of a launch."""
    dtype, sizes = DTYPES[setting.dtype], setting.sizes
    dots = any(isinstance(each.op, Dot) for each in statements(made.program.body))
    found: dict[str, int | float | str] = {"IO": dtype, "DOT": dtype, "PRECISION": "tf32x3"}
    found |= {"BLOCK": LEAST if dots else SHORT, "BLOCKS": 1}
    found |= {symbol.name: 1 for symbol in made.program.sizes}  # of which no tile is made
    found |= {name: evaluate(size, sizes) for name, size in made.sizes.items()}
    for name, size in made.blocks.items():
        found[name] = max(LEAST, 1 << (int(evaluate(size, sizes)) - 1).bit_length())
    return found

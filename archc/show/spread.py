"""A recurrence by tokens that one program has no room for: it is spread over the GPU, or a loop in
PyTorch, with the reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.ir.kernel import Kernel
from archc.ir.sizes import evaluate
from archc.lowering.grid_steps import PAIR, over_grid
from archc.lowering.values import Refusal
from archc.runtime.steps import grid_way

if TYPE_CHECKING:
    from archc.show.planned import Planned

LOOP = "its tokens are a loop in PyTorch"


def instead_of(kernel: Kernel, plan: Planned) -> str:
    """In words, what is done in place of a kernel that has no room."""
    made, setting = over_grid(kernel), plan.setting
    if isinstance(made, Refusal) or made.spread is None:
        reason = made.reason if isinstance(made, Refusal) else "it is not spread"
        return f"{LOOP}, as it has {reason}"
    values, *axes = (size for _, size in made.spread.exchange.axes)
    own = {str(name): evaluate(symbol, setting.sizes) for name, symbol in made.sizes.items()}
    own["B"] = setting.sizes["batch"]
    batch, *heads, dim = (
        int(axis.subs({s: own[str(s)] for s in axis.free_symbols})) for axis in axes
    )
    count, products = heads[0] if heads else 1, made.spread.products
    width = 8 if setting.dtype == "float32" else 2
    processors = plan.conditions.device.processors
    way = grid_way(batch, count, dim, products, width, processors)
    if way is None:
        return (
            f"{LOOP}, as {products} x {dim:,} x {dim:,} weights do not fit into the shared memory"
            f" of {processors} processors"
        )
    rows, part, *_ = way
    programs = -(-batch // rows) * count * -(-dim // part)
    each = int(values) // PAIR
    return (
        f"it is spread over the GPU, {programs} programs with {part} of {dim:,} each, which hand"
        f" {each} value{'s' * (each > 1)} to each other at every token"
    )

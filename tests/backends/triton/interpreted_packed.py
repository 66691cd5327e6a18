"""Packed sequences by kernels in float32, against each alone in float64 without them, under
Triton's interpreter: a process of its own.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_packed kda 4 0,1,63,64,65,0

With the states after a few tokens to start from. Prints every value's name and its largest error,
against the largest value. Several can be named one after the other, with a `;` between.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import torch
from archc.backends.renamed import arguments
from torch import Tensor, nn

from archc.ir import layer as ir
from archc.ir.plan import examples
from archc.ir.sizes import evaluate
from tests.backends.triton.interpreted import Named, file_of, narrow, with_gaps
from tests.backends.triton.memory import guarded
from tests.backends.triton.quick import quick_scans

BEFORE = 5
"""How many tokens each sequence has had before."""


def values_of(made: Any) -> list[Tensor]:
    """The tensors in outputs or states."""
    if isinstance(made, Tensor):
        return [made]
    return [x for part in made for x in values_of(part)] if isinstance(made, tuple) else []


def row_of(state: Any, i: int) -> Any:
    """The state of one of several sequences."""
    if isinstance(state, Tensor):
        return state[i : i + 1]
    if isinstance(state, int):
        return state
    return type(state)(*(row_of(part, i) for part in state))


def alone(layer: nn.Module, x: Tensor, state: Any, lengths: Sequence[int]) -> list[Tensor]:
    """Outputs and final states of every sequence by itself."""
    made = []
    for i, (first, end) in enumerate(pairwise([0, *accumulate(lengths)])):
        y, after = layer(x[:, first:end], state=row_of(state, i), return_state=True)
        made.append([y, *values_of(after)])
    ys, *states = zip(*made, strict=True)
    return [torch.cat(ys, 1), *(torch.cat(parts) for parts in states)]


def packed(layer: nn.Module, x: Tensor, state: Any, lengths: Sequence[int]) -> list[Tensor]:
    """The same in one run."""
    borders = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=x.device)
    y, after = layer(x, state=state, return_state=True, cu_seqlens=borders)
    return [y, *values_of(after)]


def with_gradients(made: Sequence[Tensor], given: Named) -> Named:
    """Outputs and states, and the gradients of everything for one sum of them."""
    torch.manual_seed(1)
    loss = sum((y * torch.randn(y.shape, dtype=torch.float64).to(y)).sum() for y in made)
    found = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
    pairs = zip(given, found, strict=True)
    outputs = {f"output {i}": y.detach() for i, y in enumerate(made)}
    return outputs | {f"d {name}": d for name, d in pairs if d is not None}


def given_to(layer: nn.Module, x: Tensor, state: Any) -> Named:
    """Everything that has a gradient, by name."""
    states = {f"state {i}": s.requires_grad_() for i, s in enumerate(values_of(state))}
    return {"x": x.requires_grad_(), **states, **dict(layer.named_parameters())}


def like(state: Any, dtype: torch.dtype) -> Any:
    """A state anew, what is real in this dtype."""
    if isinstance(state, Tensor):
        return state.detach().to(dtype if state.is_floating_point() else state.dtype).clone()
    if isinstance(state, int):
        return state
    return type(state)(*(like(part, dtype) for part in state))


def with_kernels(module: ModuleType, small: nn.Module, *given: Any) -> Named:
    """The same by kernels; what is not written holds no number."""
    decide, new = module.by_kernels, torch.empty
    module.by_kernels, torch.empty = lambda chunk, *given: True, with_gaps
    try:
        values = given_to(small, *given[:2])
        with guarded(), quick_scans():
            return with_gradients(packed(small, *given), values)
    finally:
        module.by_kernels, torch.empty = decide, new


def check(layer: ir.Layer, module: ModuleType, unit: int, lengths: Sequence[int]) -> None:
    """A whole layer with dims of about `unit`."""
    sizes = next(examples(layer, unit))
    exact = getattr(module, layer.name)(**arguments(sizes)).double()
    (_, op), *_ = layer.inputs
    shape = [evaluate(axis.size, sizes) for axis in op.type.axes[2:]]
    with torch.no_grad():
        seen = torch.randn(len(lengths), BEFORE, *shape, dtype=torch.float64)
        _, state = exact(seen, return_state=True)
    x = torch.randn(1, sum(lengths), *shape, dtype=torch.float64)
    state = like(state, torch.float64)
    values = given_to(exact, x, state)
    wanted = with_gradients(alone(exact, x, state, lengths), values)
    small = getattr(module, layer.name)(**arguments(sizes))
    small.load_state_dict(narrow(exact.state_dict()))
    found = with_kernels(module, small, x.detach().float(), like(state, torch.float32), lengths)
    for name, value in wanted.items():
        error = (found[name].double() - value).abs().max() / value.abs().max().clamp(min=1e-9)
        print(f"{name}: {float(error):.1e}")


def main(arguments: list[str]) -> None:
    """Every check in turn."""
    for each in " ".join(arguments).split(";"):
        spec, unit, lengths = each.split()
        torch.manual_seed(0)
        print(f"== {each.strip()}")
        check(*file_of(spec), int(unit), [int(length) for length in lengths.split(",")])


if __name__ == "__main__":
    main(sys.argv[1:])

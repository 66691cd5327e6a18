"""Whole layers by their kernels, piece after piece with the state that the last one left, under
Triton's interpreter, in float32 against float64 without kernels: prints how far values, with
gradients, without and in slots, and gradients of the parameters are off.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_in_pieces gla,lfm2
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

import archc
from archc import slots
from archc.runtime import between, folds, kernels, steps, tokens
from tests.backends.triton.quick import quick_scans
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise
from tests.specs.test_continued import OTHER_STREAMS, continued, first

PIECES = [17, 0, 1, 3]
"""More than the smallest chunk, nothing, one token, a few."""

DECIDING = ("by_kernels", "by_token_kernels", "by_folds", "on_gpu", "has_span_room")
"""The functions that see whether kernels can do the work."""

FEW = 5
"""Tokens that are read in slots."""

SMALLEST = 1e-3
"""Of the largest gradient: one that is less is held against this much, as it may be 0."""


def can(*given: Any) -> bool:
    """Whether kernels can do it, as on a GPU: in float32, and where there is something to do."""
    xs = [x for x in given if isinstance(x, Tensor)]
    return all(x.numel() and x.dtype != torch.float64 for x in xs)


@contextmanager
def by_kernels(layer: nn.Module) -> Iterator[None]:
    """A layer whose kernels are launched, of tensors on a CPU."""
    spaces = [vars(module) for module in (between, folds, kernels, steps, tokens)]
    spaces += [type(each).forward.__globals__ for each in layer.modules()]
    with ExitStack() as stack:
        stack.enter_context(quick_scans())
        for space in spaces:
            known = {name: can for name in DECIDING if name in space}
            stack.enter_context(patch.dict(space, known))
        yield


def numbers(layer: nn.Module, values: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of all pieces, and the gradients of a fixed sum of them."""
    made = continued(layer, values, PIECES)
    weights = torch.linspace(-1, 1, made.shape[-1], dtype=torch.float64).to(made)
    learned = [each for each in layer.parameters() if each.requires_grad]
    slopes = torch.autograd.grad((made * weights).sum(), learned, materialize_grads=True)
    return [made.detach().double(), *(slope.double() for slope in slopes)]


@torch.no_grad()
def in_slots(layer: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """The first outputs token by token, with states that are written over; of a layer that cannot
    have them so, those of one token after the other."""
    if slots.alone(layer) is not None:
        return continued(layer, given, [1] * FEW).double()
    made, found = slots.in_slots(layer), list[Tensor]()
    state = made.initial_state(2, FEW)
    live = torch.ones(2, dtype=torch.bool)
    with by_kernels(made):
        for t in range(FEW):
            piece = {n: x if n in OTHER_STREAMS else x[:, t : t + 1] for n, x in given.items()}
            y, after = made(**piece, state=state, return_state=True)
            slots.advance(state, after, live)
            found.append(first(y))
    return torch.cat(found, 1).double()


def check(name: str) -> tuple[float, float]:
    """How far values and gradients are off, each against its largest."""
    spec = archc.load(name, **SMALL[name])
    exact = randomise(spec.module(dtype=torch.float64, backend="triton"), seed=0).eval()
    layer = copy.deepcopy(exact).float()
    values = inputs(spec.layer, SMALL[name], B=2, T=sum(PIECES), seed=1)
    values = {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}
    given = {k: x.float() if x.is_floating_point() else x for k, x in values.items()}
    wanted = numbers(exact, values)
    with by_kernels(layer):
        found = numbers(layer, given)
        with torch.no_grad():
            found.append(continued(layer, given, PIECES).double())
        found.append(in_slots(layer, given))
    wanted += [wanted[0], wanted[0][:, :FEW]]
    least = SMALLEST * max(float(x.abs().max()) for x in wanted[1:-2])
    off = [
        float((a - b).abs().max()) / max(float(b.abs().max()), least)
        for a, b in zip(found, wanted, strict=True)
    ]
    return max(off[0], *off[-2:]), max(off[1:-2])


def main() -> None:
    """A line for each spec."""
    for name in sys.argv[1].split(","):
        print(name, *(f"{each:.1e}" for each in check(name)), flush=True)


if __name__ == "__main__":
    main()

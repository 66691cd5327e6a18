"""Every bundled layer and model on a batch with padding, against its sequences one by one: values,
gradients, and what it remembers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise
from tests.specs.test_continued import OTHER_STREAMS, first

LEFT, RIGHT, BETWEEN = [0, 0, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 1, 0, 1, 1, 0]
PROMPT = torch.tensor([LEFT, RIGHT, BETWEEN, LEFT])
NEXT = torch.tensor([[1, 0], [1, 1], [0, 1], [0, 0]])
WHOLE_ONLY = {"linear_attention_full"}


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small layer and a batch for it, of as many tokens as the prompt and what comes next."""
    spec = archc.load(name, **SMALL[name])
    layer = randomise(spec.module(dtype=torch.float64), seed=0)
    values = inputs(spec.layer, SMALL[name], B=len(PROMPT), T=8, seed=1)
    needed = {op.name for _, op in spec.layer.inputs if not op.optional}
    return layer, {key: value for key, value in values.items() if key in needed}


def part(values: dict[str, Tensor], tokens: Any, rows: Any = slice(None)) -> dict[str, Tensor]:
    """Some tokens of some sequences."""
    whole = {key: value[rows] for key, value in values.items()}
    return {k: x if k in OTHER_STREAMS else x[:, tokens] for k, x in whole.items()}


def gradients(y: Tensor, layer: nn.Module, values: dict[str, Tensor]) -> list[Tensor]:
    """Of a sum that treats no two numbers alike, for all parameters and inputs."""
    wanted = [x for x in [*layer.parameters(), *values.values()] if x.requires_grad]
    found = torch.autograd.grad((y * y).sum(), wanted, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return [torch.zeros_like(x) if g is None else g for g, x in pairs]


QUICK = {"alibi", "cross_attention", "gpt", "kda", "linear_attention_full", "mamba", "moe", "nsa"}
"""One of each kind: all of them take half a minute."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SMALL]
)
def test_padding_changes_nothing(name: str) -> None:
    layer, values = built(name)
    values = {k: x.requires_grad_(x.is_floating_point()) for k, x in values.items()}
    keeps = {} if name in WHOLE_ONLY else {"return_state": True}
    made = layer(**part(values, slice(0, 6)), attention_mask=PROMPT, **keeps)
    y, state = (first(made[0]), made[1]) if keeps else (first(made), None)
    more = None
    if keeps:
        now = part(values, slice(6, 8))
        more = first(layer(**now, attention_mask=NEXT, state=state))
    wanted, later = torch.zeros_like(y), None if more is None else torch.zeros_like(more)
    for row in range(len(PROMPT)):
        mask = PROMPT[row].nonzero().squeeze(1)
        made = layer(**part(values, mask, slice(row, row + 1)), **keeps)
        wanted[row, mask] = first(made[0] if keeps else made)[0]
        if later is not None:
            mask = NEXT[row].nonzero().squeeze(1)
            given = part(values, 6 + mask, slice(row, row + 1))
            later[row, mask] = first(layer(**given, state=made[1]))[0]
    if later is not None:
        y, wanted = torch.cat([y, more], 1), torch.cat([wanted, later], 1)
    both = (gradients(each, layer, values) for each in (y, wanted))
    torch.testing.assert_close([y, *next(both)], [wanted, *next(both)], rtol=1e-9, atol=1e-10)

"""Groups of parameters for an optimizer: those that decay, and those that do not."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of a model's parameters, for `torch.optim.AdamW` and the like: maps and tables,
    with the decay, and everything else without.

    Layers of archc have marked what only scales, shifts or gates: gains of norms, biases, rates of
    decay, constants of gates. Of other layers in the model, parameters with one dim or none do not
    decay. Frozen parameters are in neither group; one that stands in several places is in one
    group, that without decay if any of them marks it.
    """
    every: dict[int, nn.Parameter] = {}
    without: set[int] = set()
    for owner in module.modules():
        marked = getattr(owner, "_without_decay", None)
        for name, parameter in owner.named_parameters(recurse=False):
            if parameter.requires_grad:
                every.setdefault(id(parameter), parameter)
            if parameter.dim() < 2 if marked is None else name in marked:
                without.add(id(parameter))
    decaying = [p for key, p in every.items() if key not in without]
    return [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": [every[key] for key in every if key in without], "weight_decay": 0.0},
    ]

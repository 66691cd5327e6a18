"""How near a spec comes to a reference: one number each, checked and, if asked, recorded.

With ARCHC_RECORD naming a file, every check appends a line of JSON to it: `python -m
tests.specs.record` uses that to make docs/references.md.
"""

from __future__ import annotations

import json
import os

import torch

LIMIT = 1e-5


def difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Largest |ours - theirs| / (|theirs| + rms(theirs)); infinite where one is not a number.

    The rms keeps values that happen to be near zero from counting as errors of any size.
    """
    assert ours.shape == theirs.shape, f"{tuple(ours.shape)} against {tuple(theirs.shape)}"
    a, b = ours.detach().double(), theirs.detach().double()
    error = (a - b).abs() / (b.abs() + b.square().mean().sqrt())
    return float("inf") if error.isnan().any() else float(error.max())


def agree(
    spec: str, reference: str, ours: torch.Tensor, theirs: torch.Tensor, limit: float = LIMIT
) -> None:
    """Fail if the two differ by more than `limit`; `reference` says what `theirs` comes from."""
    reached = difference(ours, theirs)
    print(f"{spec} against {reference}: {reached:.1e} ({str(theirs.dtype).removeprefix('torch.')})")
    if path := os.environ.get("ARCHC_RECORD"):
        row = {"spec": spec, "reference": reference, "reached": reached, "limit": limit}
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    assert reached <= limit, (
        f"{spec} is {reached:.1e} away from {reference}, not within {limit:.0e}"
    )

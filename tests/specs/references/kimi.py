"""transformers' Kimi Linear, its memory layer and a whole model, run in processes of their own.

With fla at hand transformers calls its GPU kernels, which fail on a CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.specs.references import apart


def layer(folder: Path, **sizes: int) -> dict[str, Any]:
    """`weights` of `KDA`, `x` and `y` ([B, T, d]), `eps`: a layer with random weights, run once.

    sizes: B, T, d, H, K (= V = the inner size of its low-rank maps), width, seed.
    """
    return apart.run("kimi_without_fla", folder, **sizes)


def model(folder: Path, **sizes: Any) -> dict[str, Any]:
    """`weights` of `KimiLinear`, `tokens` [B, T] and `logits`.

    sizes: B, T, seed, and those of `KimiLinear`.
    """
    return apart.run("kimi_model_without_fla", folder, **sizes)

"""transformers' Kimi Delta Attention layer, run in a process of its own.

With fla at hand transformers calls its GPU kernels, which fail on a CPU: see kimi_without_fla.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def layer(folder: Path, **sizes: int) -> dict[str, Any]:
    """`weights` of `KDA`, `x` and `y` ([B, T, d]), `eps`: a layer with random weights, run once.

    sizes: B, T, d, H, K (= V = the inner size of its low-rank maps), width, seed.
    """
    file = folder / "kimi.pt"
    torch.save(sizes, file)
    command = [sys.executable, "-m", "tests.specs.references.kimi_without_fla", str(file)]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return torch.load(file)

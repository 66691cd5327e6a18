"""The inputs of a memory, as its own layer makes them: from normal numbers, by the parameters that
the spec draws. So keys have the length that the layer gives them and gates are where they start."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from archc.bench.job import Job

DTYPES = {
    "float64": torch.float64, "float32": torch.float32,
    "bfloat16": torch.bfloat16, "float16": torch.float16,
}  # fmt: skip


def load_file(path: Path, name: str) -> ModuleType:
    """The module that a file holds; Triton reads the text of its functions from there."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def draw(job: Job, batch: int, tokens: int) -> dict[str, Tensor]:
    """The inputs by name, the same for the same job and lengths.

    They are made in float32 (in float64 for that) and rounded; logarithms of decays and weights
    stay as they are.
    """
    dtype = DTYPES[job.dtype]
    wide = torch.promote_types(dtype, torch.float32)
    before = load_file(Path(job.folder) / "before.py", "archc_bench_before")
    torch.manual_seed(0)
    layer = getattr(before, job.layer)(**job.sizes, device=job.device, dtype=wide)
    lengths = {"B": batch, "T": tokens}
    given = {
        each.name: torch.randn(
            [lengths[axis] if isinstance(axis, str) else axis for axis in each.axes],
            device=job.device, dtype=wide,
        )
        for each in job.inputs
    }  # fmt: skip
    with torch.no_grad():
        made = layer(**given)
    made = made if isinstance(made, tuple) else (made,)
    return {
        each.name: (x if each.wide else x.to(dtype)).detach().contiguous()
        for each, x in zip(job.enters, made, strict=True)
    }

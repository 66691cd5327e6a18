"""The sequence of one layer on several GPUs (`cp`), beside one GPU with as many tokens as each of
them has: milliseconds forward and backward, and how far values and gradients are from one process
in float32.

    torchrun --nproc-per-node 2 -m benchmarks.parallel -o benchmarks/results/parallel.json

x is [1, T, 2304] in bfloat16, T tokens on each GPU. The first process writes a row as it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import triton
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import archc
from archc import parallel
from archc.bench.record import record

ROWS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "kda": (32768, {"d": 2304, "H": 32, "K": 128, "V": 128, "r": 128}),
    "gated_delta": (32768, {"d": 2304, "H": 16, "K": 128, "V": 128}),
    "attention": (16384, {"d": 2304, "H": 18}),
}
"""Tokens on each GPU, and the sizes of a layer."""

CALLS = 10


def both(module: nn.Module, x: Tensor) -> Callable[[], None]:
    """A call and its gradients."""

    def run() -> None:
        y = module(x)
        y.backward(torch.ones_like(y))

    return run


def timed(call: Callable[[], None]) -> float:
    """Milliseconds of a call that all processes make."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    start = time.monotonic()
    for _ in range(CALLS):
        call()
    torch.cuda.synchronize()
    dist.barrier()
    return (time.monotonic() - start) / CALLS * 1000


def made(name: str, dtype: torch.dtype) -> nn.Module:
    """The same module on every process."""
    torch.manual_seed(0)
    return archc.load(name).module(device="cuda", dtype=dtype, **ROWS[name][1])


def error(name: str, mesh: DeviceMesh) -> float:
    """The largest relative difference from one process: of the output, and of each gradient."""
    alone, together = made(name, torch.float32), parallel.apply(made(name, torch.float32), mesh)
    torch.manual_seed(1)
    x, slope = torch.randn(2, 1, 512, ROWS[name][1]["d"], device="cuda")
    y = alone(x)
    y.backward(slope)
    own, wanted, part = (parallel.split(mesh, each) for each in (x, y.detach(), slope))
    found = together(own)
    found.backward(part)
    pairs = [(found.detach(), wanted)]
    for p, q in zip(together.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        pairs.append((p.grad, q.grad))
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def row(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    """The numbers of one layer."""
    tokens, sizes = ROWS[name]
    wrong = error(name, mesh)
    x = torch.randn(1, tokens, sizes["d"], device="cuda", dtype=torch.bfloat16)
    one = timed(both(made(name, torch.bfloat16), x))
    every = timed(both(parallel.apply(made(name, torch.bfloat16), mesh), x))
    return {
        "layer": name, **sizes, "GPUs": mesh.size(), "tokens a GPU": tokens, "one_ms": one,
        "all_ms": every, "efficiency": one / every, "error": wrong,
    }  # fmt: skip


def main() -> None:
    """Every row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, required=True, dest="output")
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    given, rank = parser.parse_args(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
    command = ["torchrun", "-m", "benchmarks.parallel", *sys.argv[1:]]
    data = record(command, None) | {"device": torch.cuda.get_device_name(), "rows": []}
    data["commit"] = given.commit or data["commit"]
    data["versions"] |= {"torch": torch.__version__, "triton": triton.__version__}
    for name in ROWS:
        data["rows"].append(row(name, mesh))
        if rank == 0:
            print(data["rows"][-1], flush=True)
            given.output.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

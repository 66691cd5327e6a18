"""The sequence of one layer on several GPUs (`cp`), beside one GPU with as many tokens as each of
them has: milliseconds forward and backward, and how far values and gradients are from one process
in float32.

    torchrun --nproc-per-node 2 -m benchmarks.parallel -o benchmarks/results/parallel.json
    torchrun --nproc-per-node 2 -m benchmarks.parallel --one-gpu -o out/parallel_values.json

x is [1, T, 2304] in bfloat16, T tokens on each GPU. The first process writes a row as it comes.
With `--one-gpu` all processes share one, and tell each other through the host: only values and
gradients are compared, those of many layers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import archc
from archc import parallel
from benchmarks.rows import Record, arguments

ROWS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "kda": (32768, {"d": 2304, "H": 32, "K": 128, "V": 128, "r": 128}),
    "gated_delta": (32768, {"d": 2304, "H": 16, "K": 128, "V": 128}),
    "attention": (16384, {"d": 2304, "H": 18}),
}
"""Tokens on each GPU, and the sizes of a layer."""

CALLS = 10

HEADS: Mapping[str, Any] = {"d": 256, "H": 4, "K": 64, "V": 64}
SHARED: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("gated_delta", "gla", "delta", "linear_attention_simple"), HEADS),
    "kda": {**HEADS, "r": 64},
    "gated_delta_product": {**HEADS, "n": 2},
    "rwkv7": {"d": 256, "H": 4},
    "mlstm": {"d": 256, "H": 4},
    "mamba2": {"d": 256, "H": 4},
    "mamba": {"d": 256},
    "attention": {"d": 256, "H": 4, "G": 2},
    "fox": {"d": 256, "H": 4},
    "mla": {"d": 256, "H": 4},
    "transformer": {"d": 256, "H": 4},
    "lm": {"vocab": 64, "d": 256, "H": 4, "L": 2},
}
"""Layers whose values are compared on one GPU, and their sizes."""

LENGTHS = (256, 1000)
"""Tokens on each process there."""


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


def made(name: str, sizes: Mapping[str, Any], dtype: torch.dtype) -> nn.Module:
    """The same module on every process."""
    torch.manual_seed(0)
    layers = {"L": sizes["L"]} if "L" in sizes else {}
    rest = {key: size for key, size in sizes.items() if key not in layers}
    return archc.load(name, **layers).module(device="cuda", dtype=dtype, **rest)


def error(
    name: str, sizes: Mapping[str, Any], mesh: DeviceMesh, dtype: torch.dtype, tokens: int
) -> float:
    """The largest relative difference from one process: of the output, and of each gradient."""
    alone = made(name, sizes, dtype)
    together = parallel.apply(made(name, sizes, dtype), mesh)
    torch.manual_seed(1)
    if "vocab" in sizes:
        x = torch.randint(0, sizes["vocab"], (1, tokens), device="cuda")
    else:
        x = torch.randn(1, tokens, sizes["d"], device="cuda", dtype=dtype)
    y = alone(x)
    slope = torch.randn_like(y)
    y.backward(slope)
    own, wanted, part = (parallel.split(mesh, each) for each in (x, y.detach(), slope))
    found = together(own)
    found.backward(part)
    pairs = [(found.detach(), wanted)]
    for p, q in zip(together.parameters(), alone.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        pairs.append((p.grad, q.grad))
    return max(float((a.double() - b.double()).norm() / b.double().norm()) for a, b in pairs)


def through_host() -> None:
    """Have what processes of gloo tell each other of a GPU go through the memory of the host, in
    the order of the calls."""

    def on_host(collective: Callable[..., Any]) -> Callable[..., Any]:
        def run(into: Any, given: Any = None, **rest: Any) -> None:
            one = collective in (dist.all_reduce,) or given is None
            every = into if isinstance(into, list) else [into]
            here = [x.cpu() for x in every]
            target = here if isinstance(into, list) else here[0]
            known[collective](*((target,) if one else (target, given.cpu())), **rest)
            for x, y in zip(every, here, strict=True):
                x.copy_(y)

        return run

    names = ("all_gather_into_tensor", "reduce_scatter_tensor", "all_gather", "all_reduce")
    known = {getattr(dist, name): getattr(dist, name) for name in names}
    for name in names:
        setattr(dist, name, on_host(getattr(dist, name)))


def values(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    """How far a layer is from one process, on one GPU."""
    found: dict[str, Any] = {"layer": name, **SHARED[name], "ranks": mesh.size()}
    for dtype in (torch.float32, torch.bfloat16):
        for length in LENGTHS:
            what = f"{str(dtype).removeprefix('torch.')}, {length} tokens each"
            try:
                found[what] = error(name, SHARED[name], mesh, dtype, length * mesh.size())
            except (RuntimeError, ValueError) as reason:  # of one layer: the others are told still
                found[what] = f"{type(reason).__name__}: {reason}"[:500]
    return found


def row(name: str, mesh: DeviceMesh) -> dict[str, Any]:
    """The numbers of one layer."""
    tokens, sizes = ROWS[name]
    wrong = error(name, sizes, mesh, torch.float32, 512)
    x = torch.randn(1, tokens, sizes["d"], device="cuda", dtype=torch.bfloat16)
    one = timed(both(made(name, sizes, torch.bfloat16), x))
    every = timed(both(parallel.apply(made(name, sizes, torch.bfloat16), mesh), x))
    return {
        "layer": name, **sizes, "GPUs": mesh.size(), "tokens a GPU": tokens, "one_ms": one,
        "all_ms": every, "efficiency": one / every, "error": wrong,
    }  # fmt: skip


def main() -> None:
    """Every row."""
    parser = arguments(__doc__)
    parser.add_argument("--one-gpu", action="store_true", help="values alone, on one GPU")
    parser.add_argument("--only", nargs="*", help="which layers")
    given, rank = parser.parse_args(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(0 if given.one_gpu else rank)
    if given.one_gpu:
        through_host()
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("cp",))
    kept = Record(given, launcher="torchrun")
    for name in given.only or (SHARED if given.one_gpu else ROWS):
        found = (values if given.one_gpu else row)(name, mesh)
        if rank == 0:
            print(found, flush=True)
            kept.add(found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

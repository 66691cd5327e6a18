"""Layers on several GPUs beside one: milliseconds of a sequence that is split (`cp`) beside one GPU
with as many tokens as each of them has, and beside one with all tokens, or how far values and
gradients are from one process.

    torchrun --nproc-per-node 2 -m benchmarks.parallel -o benchmarks/results/parallel.json
    torchrun --nproc-per-node 2 -m benchmarks.parallel --values -o out/parallel_values.json
    torchrun --nproc-per-node 4 -m benchmarks.parallel --values --device cpu -o out/values.json

Timed is x [1, T, 2304] in bfloat16, T tokens on each GPU: `efficiency` is that of as many tokens,
`of_whole` that of all of them on one GPU, which is what counts where every token reads all earlier
ones; `graph`: each of the first two is a CUDA graph, exchanges and all, as the host may take longer
than the GPU where a layer is small. Values are those of many layers, whose
heads (`tp`), sequence (`cp`) or parameters (`dp`, by FSDP2) are split, or which are cut into stages
(`pp`, by a schedule of torch). The first process writes a row as it comes. With `--one-gpu` all
processes share one, and tell each other through the host; with `--device cpu` there is none, and
layers and sequences are a quarter as large.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.pipelining import ScheduleGPipe
from torch.distributed.tensor import DTensor

import archc
from archc import parallel
from archc.bench.clock import Call, captured
from benchmarks.rows import Record, arguments, kernels

ROWS: Mapping[str, tuple[int, dict[str, Any]]] = {
    "kda": (32768, {"d": 2304, "H": 32, "K": 128, "V": 128, "r": 128}),
    "gated_delta": (32768, {"d": 2304, "H": 16, "K": 128, "V": 128}),
    "attention": (16384, {"d": 2304, "H": 18}),
}
"""Tokens on each GPU, and the sizes of a layer."""

CALLS = 10

HEADS: Mapping[str, Any] = {"d": 256, "H": 4, "K": 64, "V": 64}
FEW: Mapping[str, Any] = {"d": 256, "H": 4}
VALUES: Mapping[str, Mapping[str, Any]] = {
    "kda": {**HEADS, "r": 64},
    **dict.fromkeys(("gated_delta", "gla", "delta", "linear_attention_simple"), HEADS),
    "gated_delta_product": {**HEADS, "n": 2},
    **dict.fromkeys(("mamba2", "rwkv7", "mlstm", "fox", "mla", "transformer"), FEW),
    "mamba": {"d": 256},
    "attention": {"d": 256, "H": 4, "G": 2},
    "lm": {"vocab": 64, "d": 256, "H": 4, "L": 2},
    "lfm2": {"vocab": 64, "d": 256, "H": 4, "G": 2, "f": 512, "L": 4, "attention": [2]},
}
"""Layers whose values are compared, and their sizes."""

EVERY = ("dp", "tp", "cp", "pp")
DIMS = {"lm": EVERY, **dict.fromkeys(("kda", "transformer", "lfm2"), EVERY[:3])}
"""What is split; of other layers heads and tokens."""

LENGTHS = {"cp": (256, 1000)}
"""Tokens on each process, or of each sequence where these are not split: 256."""

WIDTHS = ("d", "K", "V", "r", "f")
LESS = 4
"""What widths and lengths are divided by where there is no GPU: 4 processes take 2 GB then."""


def both(module: nn.Module, x: Tensor) -> Call:
    """A call and its gradients."""

    def run() -> None:
        y = module(x)
        y.backward(torch.ones_like(y))

    return run


def timed(call: Call, mesh: DeviceMesh) -> float:
    """Milliseconds of a call that all processes make."""
    wait = torch.cuda.synchronize if mesh.device_type == "cuda" else (lambda: None)
    for _ in range(3):
        call()
    wait()
    dist.barrier()
    start = time.monotonic()
    for _ in range(CALLS):
        call()
    wait()
    dist.barrier()
    return (time.monotonic() - start) / CALLS * 1000


def recorded(call: Call) -> Call:
    """The same as a CUDA graph. Whatever was exchanged before is waited for: the thread that looks
    after it must not meet the recording."""

    def settle() -> None:
        dist.barrier()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the stream keeps as much as the graph needs

    return captured(call, settle, "thread_local")


def made(name: str, sizes: Mapping[str, Any], dtype: torch.dtype, device: str) -> nn.Module:
    """The same module on every process."""
    torch.manual_seed(0)
    return archc.load(name).module(device=device, dtype=dtype, **sizes)


def given_to(sizes: Mapping[str, Any], tokens: int, like: Tensor) -> Tensor:
    """Four sequences, the same on every process."""
    torch.manual_seed(1)
    if "vocab" in sizes:
        return torch.randint(0, sizes["vocab"], (4, tokens)).to(like.device)
    return torch.randn(4, tokens, sizes["d"]).to(like)


def entropy(y: Tensor, target: Tensor) -> Tensor:
    """The loss of a model that is cut into stages."""
    return nn.functional.cross_entropy(y.flatten(0, 1).float(), target.flatten())


def in_stages(alone: nn.Module, together: nn.Module, mesh: DeviceMesh, x: Tensor) -> list[Any]:
    """Pairs of what a model cut into stages makes, in two parts of the batch, and of one process's:
    its loss, whose gradients both have then."""
    wanted = entropy(alone(x), x.roll(1, 1))
    wanted.backward()
    schedule = ScheduleGPipe(parallel.stage(together, mesh), 2, loss_fn=entropy)
    losses: list[Tensor] = []
    if mesh.get_local_rank() == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.roll(1, 1), losses=losses)
    return [(torch.stack(losses).mean().detach(), wanted.detach())] if losses else []


def in_parts(alone: nn.Module, together: nn.Module, mesh: DeviceMesh, x: Tensor) -> list[Any]:
    """A pair of outputs, this process's and the same of one process, whose gradients of a fixed sum
    both have then."""
    wanted = alone(x)
    slope = torch.randn_like(wanted)
    wanted.backward(slope)
    own, part, same = (parallel.split(mesh, each) for each in (x, slope, wanted.detach()))
    found = together(own)
    found.backward(
        part * mesh.size() if mesh.mesh_dim_names == ("dp",) else part
    )  # FSDP2 takes the mean
    return [(found.detach(), same)]


def error(
    name: str, sizes: Mapping[str, Any], mesh: DeviceMesh, dtype: torch.dtype, tokens: int
) -> float:
    """The largest relative difference from one process, of all processes: of the output, and of
    each gradient."""
    alone = made(name, sizes, dtype, mesh.device_type)
    together = parallel.apply(made(name, sizes, dtype, mesh.device_type), mesh)
    x = given_to(sizes, tokens, next(alone.parameters()))
    pairs = (in_stages if mesh.mesh_dim_names == ("pp",) else in_parts)(alone, together, mesh, x)
    every = dict(alone.named_parameters())
    for path, p in together.named_parameters():
        have, want = p.grad, every[path].grad
        assert have is not None and want is not None
        pairs.append((have.full_tensor() if isinstance(have, DTensor) else have, want))
    off = [(a.double() - b.double()).norm() / b.double().norm() for a, b in pairs]
    worst = torch.stack(off).max()
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    return float(worst)


def through_host() -> None:
    """Have what processes of gloo tell each other of a GPU go through the memory of the host, in
    the order of the calls."""

    def on_host(collective: Callable[..., Any]) -> Callable[..., Any]:
        def run(into: Any, given: Any = None, async_op: bool = False, **rest: Any) -> None:
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


def values(name: str, dim: str, mesh: DeviceMesh) -> dict[str, Any]:
    """How far a layer is from one process."""
    less = LESS if mesh.device_type == "cpu" else 1
    sizes = {n: size // less if n in WIDTHS else size for n, size in VALUES[name].items()}
    found: dict[str, Any] = {"layer": name, **sizes, "split": dim, "ranks": mesh.size()}
    for dtype in (torch.float32, torch.bfloat16):
        for length in (tokens // less for tokens in LENGTHS.get(dim, (256,))):
            what = f"{str(dtype).removeprefix('torch.')}, {length} tokens"
            tokens = length * mesh.size() if dim == "cp" else length
            try:
                found[what] = error(name, sizes, mesh, dtype, tokens)
            except (RuntimeError, ValueError) as reason:  # of one layer: the others are told still
                found[what] = f"{type(reason).__name__}: {reason}"[:500]
    return found


def row(name: str, mesh: DeviceMesh, given: Namespace) -> dict[str, Any]:
    """The numbers of one layer; `quick`: its kernels are compiled, and nothing is timed."""
    tokens, sizes = ROWS[name]
    if mesh.device_type == "cpu":
        tokens, sizes = 128, {**sizes, "d": 64, "H": 2}
    dtype = torch.bfloat16
    x = torch.randn(1, tokens, sizes["d"], device=mesh.device_type, dtype=dtype)
    one = both(made(name, sizes, dtype, mesh.device_type), x)
    every = both(parallel.apply(made(name, sizes, dtype, mesh.device_type), mesh), x)
    if given.quick:
        one()
        every()
        return {}
    found = {"layer": name, **sizes, "GPUs": mesh.size(), "tokens a GPU": tokens}
    found["graph"] = given.graph
    as_run = recorded if given.graph else (lambda call: call)
    one, every = as_run(one), as_run(every)
    found |= {"one_ms": timed(one, mesh), "all_ms": timed(every, mesh)}
    found["efficiency"] = found["one_ms"] / found["all_ms"]
    long = torch.randn(1, mesh.size() * tokens, sizes["d"], device=x.device, dtype=dtype)
    found["whole_ms"] = timed(both(made(name, sizes, dtype, mesh.device_type), long), mesh)
    found["of_whole"] = found["whole_ms"] / mesh.size() / found["all_ms"]
    if mesh.device_type == "cuda":
        found |= {"one": kernels(one), "all": kernels(every)}
    return found


def main() -> None:
    """Every row."""
    parser = arguments(__doc__)
    parser.add_argument("--values", action="store_true", help="how far from one process")
    parser.add_argument("--one-gpu", action="store_true", help="all processes on one")
    parser.add_argument("--only", nargs="*", help="which layers")
    parser.add_argument("--dims", nargs="*", help="what is split, of dp, tp, cp, pp")
    parser.add_argument("--quick", action="store_true", help="compile kernels, and time nothing")
    parser.add_argument("--graph", action="store_true", help="calls as CUDA graphs")
    parser.add_argument("--device", default="cuda")
    given, rank = parser.parse_args(), int(os.environ["LOCAL_RANK"])
    begin(given, rank)
    by = ("layer", "split") if given.values else ("layer", "graph")
    kept = Record(given, by=by, launcher="torchrun")
    world = (dist.get_world_size(),)
    meshes = {d: init_device_mesh(given.device, world, mesh_dim_names=(d,)) for d in EVERY}
    for name in given.only or (VALUES if given.values else ROWS):
        for dim in given.dims or (DIMS.get(name, ("tp", "cp")) if given.values else ("cp",)):
            mesh = meshes[dim]
            try:
                found = values(name, dim, mesh) if given.values else row(name, mesh, given)
            except RuntimeError as reason:  # told by each, as torchrun shows the first alone
                print(f"rank {rank}, {name}: {type(reason).__name__}: {reason}", flush=True)
                raise
            if rank == 0 and found:  # nothing is timed with `--quick`
                print({k: v for k, v in found.items() if k not in ("one", "all")}, flush=True)
                kept.add(found)
    dist.destroy_process_group()


def begin(given: Namespace, rank: int) -> None:
    """The processes, which wait two minutes at most for one another."""
    limit = timedelta(seconds=120)
    if given.device == "cuda":
        torch.cuda.set_device(0 if given.one_gpu else rank)
    if given.one_gpu:
        through_host()
    if given.one_gpu or given.device == "cpu":
        dist.init_process_group("gloo", timeout=limit)
    else:
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank), timeout=limit)


if __name__ == "__main__":
    main()

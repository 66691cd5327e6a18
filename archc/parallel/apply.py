"""A module on the processes of a device mesh."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from archc.backends.writer import attribute
from archc.origin import blocks_of, origin_of
from archc.parallel.exchange import checked_length, own_part
from archc.parallel.execute import ParallelForward
from archc.parallel.mesh import Ranks, names_of, ranks_of, refuse_aborts
from archc.parallel.pipeline import cut


def apply(module: nn.Module, mesh: DeviceMesh, **fully_shard_options: Any) -> nn.Module:
    """The module, changed in place, as this process has it: every process of the mesh makes the
    same module, and calls this.

    The mesh's dims say what is split: `dp` (parameters, by FSDP2 `fully_shard`, block by block),
    `tp` (heads), `cp` (the sequence), `pp` (layers: what stays is the part of this process, for
    `stage`); `split` gives a process its part of a batch. Options are those of `fully_shard`.
    Raises ValueError for a dim that is not known, a module that archc has not made, a size that
    the number of processes does not divide, a layer that cannot be split, parameters that are not
    the same on all processes, and settings of NCCL by which processes outlive one that has ended.
    """
    names, origin = names_of(mesh), origin_of(module)
    refuse_aborts(mesh)
    check_same_parameters(module, mesh)
    tp, cp, pp = (ranks_of(mesh, dim) for dim in ("tp", "cp", "pp"))
    if tp is not None or cp is not None or pp is not None:
        forwards = forwards_of(module, tp, cp)
        if tp is not None:
            distribute(module, forwards, mesh["tp"])
        for path, forward in forwards.items():
            module.get_submodule(path).forward = forward
        if pp is not None:
            cut(module, forwards[""], pp)
    if "dp" in names:
        shard = mesh["dp"]
        for block in blocks_of(module, origin):
            fully_shard(block, mesh=shard, **fully_shard_options)
        fully_shard(module, mesh=shard, **fully_shard_options)
    return module


def check_same_parameters(module: nn.Module, mesh: DeviceMesh) -> None:
    """Refuse a module whose parameters another process has drawn otherwise. Raises ValueError."""
    own = [p.detach() for p in module.parameters() if not p.is_meta]
    if not own:
        return
    marks = [
        torch.stack([p.sum(dtype=torch.float64), torch.linalg.vector_norm(p, dtype=torch.float64)])
        for p in own
    ]
    mine = torch.stack(marks).to(mesh.device_type).view(torch.int64)
    for dim in names_of(mesh):
        ranks = ranks_of(mesh, dim)
        if ranks is None:
            continue
        every = [torch.empty_like(mine) for _ in range(ranks.count)]
        what, group = "the parameters to compare", ranks.group
        ranks.ask(what, lambda every=every, group=group: dist.all_gather(every, mine, group=group))
        other = next((n for n, each in enumerate(every) if not torch.equal(each, mine)), None)
        if other is not None:
            raise ValueError(
                f"{type(module).__name__} has other parameters on rank {other} along `{dim}` than "
                f"on rank {ranks.rank}: draw them by the same seed, or load them, before `apply`"
            )


def forwards_of(
    module: nn.Module, tp: Ranks | None, cp: Ranks | None
) -> dict[str, ParallelForward]:
    """The forward of every layer in a module, by its path."""
    layers = layers_of(module).items()
    return {path: ParallelForward(each, tp, cp, root=not path) for path, each in layers}


def layers_of(module: nn.Module) -> dict[str, nn.Module]:
    """Every layer in a module, by its path. Raises ValueError for one that archc has not made,
    which mixes tokens or heads in a way that is not known."""
    found = {}
    for path, each in module.named_modules():
        if isinstance(each, nn.ModuleList):
            continue
        if "_archc" not in vars(each):
            raise ValueError(f"`{path}` is a {type(each).__name__}, which archc has not made")
        found[path] = each
    return found


def distribute(module: nn.Module, forwards: dict[str, ParallelForward], mesh: DeviceMesh) -> None:
    """Make DTensors of all parameters: shards of those with a dim that is split."""
    made: dict[int, nn.Parameter] = {}
    for path, forward in forwards.items():
        kinds, own = placements(forward), module.get_submodule(path)
        for name, old in own.named_parameters(recurse=False, remove_duplicate=False):
            if id(old) not in made:
                part = distribute_tensor(old.detach(), mesh, [kinds.get(name, Replicate())])
                made[id(old)] = nn.Parameter(part, old.requires_grad)
            setattr(own, name, made[id(old)])


def placements(forward: ParallelForward) -> dict[str, Shard]:
    """Of which parameters of a layer a process has a part, by their names in the module."""
    program = forward.full
    split = {} if program.heads is None else program.heads.parameters
    return {
        attribute(param.name): Shard([axis.name for axis in param.axes].index(split[id]))
        for id, param in program.layer.params
        if id in split
    }


def split(mesh: DeviceMesh, x: Tensor, batch: int = 0, tokens: int = 1) -> Tensor:
    """This process's part of what every process has all of: of the batch along `dp`, of the tokens
    along `cp`. `batch` and `tokens` are the dims of x. Raises ValueError where the number of
    processes does not divide a length."""
    names_of(mesh)
    for dim, place, what in (("dp", batch, "the batch"), ("cp", tokens, "T")):
        ranks = ranks_of(mesh, dim)
        if ranks is not None:
            checked_length(what, x.shape[place], ranks.count, dim)
            x = own_part(ranks, x, place)
    return x

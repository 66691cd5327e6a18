"""The dims of a device mesh that are known here, and the processes along one of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

DIMS = {
    "dp": "parameters, their gradients and the optimizer's states are sharded, the batch is split",
    "tp": "heads, or another dim that the spec has, are split",
    "cp": "the sequence is split",
    "pp": "the layers that a `repeat` makes are split",
}
"""Names of mesh dims, and what is split over each."""

LOST = re.compile(r"connect|peer|timed? ?out|abort", re.IGNORECASE)
"""The words of gloo, in an error without a type of its own, where a process has gone."""

Made = TypeVar("Made")


class RankLost(RuntimeError):
    """A process of the mesh does not answer."""


@dataclass(frozen=True)
class Ranks:
    """The processes along one dim of a mesh, and which of them this is."""

    dim: str
    group: dist.ProcessGroup
    rank: int
    count: int

    def ask(self, what: str, collective: Callable[[], Made]) -> Made:
        """The result of a collective. Raises RankLost where another process has ended, or has not
        come to it within the timeout of its process group."""
        try:
            return collective()
        except RuntimeError as error:  # what every backend of torch raises, DistBackendError too
            if not isinstance(error, dist.DistError) and not LOST.search(str(error)):
                raise
            raise RankLost(
                f"rank {self.rank} of the {self.count} along `{self.dim}` waits for {what}: "
                f"another rank has ended or does not come to it ({error}); its own output says "
                "why. Nothing was changed here: start all ranks again from the last checkpoint"
            ) from error


def ranks_of(mesh: DeviceMesh, dim: str) -> Ranks | None:
    """The processes along a dim of a mesh; None if it has no such dim, or one process along it."""
    if dim not in names_of(mesh) or mesh[dim].size() == 1:
        return None
    line = mesh[dim]
    return Ranks(dim, line.get_group(), line.get_local_rank(), line.size())


def names_of(mesh: DeviceMesh) -> tuple[str, ...]:
    """The names of a mesh's dims. Raises ValueError for a mesh without names, and for a name that
    is not known."""
    names = mesh.mesh_dim_names
    if names is None:
        known = ", ".join(f'"{name}"' for name in DIMS)
        raise ValueError(f"the dims of the mesh need names (mesh_dim_names), of {known}")
    for name in names:
        known_dim(name)
    return names


def refuse_aborts(mesh: DeviceMesh) -> None:
    """Refuse a setting of NCCL by which torch aborts what a process waits for where another one has
    ended: it goes on, with a sum that lacks what the other had. Not under torchrun, which has this
    setting, but ends all processes long before torch aborts anything. Raises ValueError."""
    if dist.is_torchelastic_launched():
        return
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        value = os.environ.get(name)
        if mesh.device_type == "cuda" and value in ("1", "2"):
            raise ValueError(
                f"{name}={value}: where a rank ends, others go on with sums that are not whole; "
                "leave it at torch's own value (3), which ends them"
            )


def known_dim(name: str) -> str:
    """The name of a mesh dim. Raises ValueError for one that is not known."""
    if name not in DIMS:
        known = "; ".join(f"`{each}`: {what}" for each, what in DIMS.items())
        raise ValueError(f"the mesh has a dim `{name}`; known are {known}")
    return name

"""Layers on several processes, by torch.distributed.

    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("dp", "tp"))
    layer = archc.parallel.apply(archc.load("my.arch").module(d=2304, H=32), mesh)
    y = layer(archc.parallel.split(mesh, x))

How the heads of a layer, and its sequence, can be split is found from its spec: `print(plan(module,
mesh))` tells.
"""

from archc.parallel.apply import apply, split
from archc.parallel.execute import Unsupported
from archc.parallel.listing import plan
from archc.parallel.mesh import RankLost
from archc.parallel.pipeline import stage

__all__ = ["RankLost", "Unsupported", "apply", "plan", "split", "stage"]

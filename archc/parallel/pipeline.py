"""A model cut where a `repeat` of its spec has made layers, a part for each process along `pp`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage

from archc.backends.writer import attribute
from archc.ir import layer as ir
from archc.parallel.execute import ParallelForward, Program, Run
from archc.parallel.mesh import Ranks, ranks_of
from archc.parallel.pieces import CALL


@dataclass(frozen=True)
class Part:
    """Some of the pieces of a model: which, what enters them, and what is handed on (None: they
    give the outputs of the model). `blocks` are the paths of the layers that are called in them,
    `parameters` the model's own that they read."""

    places: range
    reads: tuple[int, ...]
    makes: tuple[int, ...] | None
    blocks: frozenset[str]
    parameters: frozenset[str]


def parts_of(program: Program, count: int) -> list[Part]:
    """The pieces of a model in about equal parts, each but the first beginning with a layer that a
    `repeat` made. Raises ValueError where there are too few of these, and for a parameter that two
    parts would share."""
    blocks = [i for i, piece in enumerate(program.pieces) if _repeated(program, i)]
    name = program.layer.name
    if len(blocks) < count:
        raise ValueError(
            f"{name} cannot be cut into {count} parts for the ranks along `pp`: its `repeat` makes "
            f"{len(blocks)} layers, and each part needs one"
        )
    starts = [0, *(blocks[len(blocks) * n // count] for n in range(1, count))]
    ends = [*starts[1:], len(program.pieces)]
    parts = [_part(program, range(*each)) for each in zip(starts, ends, strict=True)]
    for n, part in enumerate(parts):
        for later in parts[n + 1 :]:
            for both in sorted(part.parameters & later.parameters | part.blocks & later.blocks):
                raise ValueError(
                    f"{name} cannot be cut into {count} parts for the ranks along `pp`: `{both}` "
                    "would be in two of them, and learn on each by itself"
                )
    return parts


def _repeated(program: Program, place: int) -> bool:
    """Whether a piece is a layer that a `repeat` made."""
    node = program.pieces[place].node
    if node is None or not isinstance(node.op, ir.Call):
        return False
    return node.op.path.rpartition(".")[2].isdigit()


def _part(program: Program, places: range) -> Part:
    """The values that enter and leave some of the pieces."""
    graph, pieces = program.layer.graph, program.pieces
    read = [id for i in places for id in pieces[i].reads]
    made = {id for i in places for id in pieces[i].makes}
    last = places.stop == len(pieces)
    if last:
        read += graph.outputs.values()
    params = dict(program.layer.params)
    reads = tuple(dict.fromkeys(id for id in read if id not in made and id not in params))
    before = {id for i in range(places.stop) for id in pieces[i].makes} | {
        id for id, _ in program.layer.inputs
    }
    later = {id for i in range(places.stop, len(pieces)) for id in pieces[i].reads}
    handed = tuple(sorted(before & (later | set(graph.outputs.values()))))
    calls = [pieces[i].node for i in places if pieces[i].kind == CALL]
    return Part(
        places, reads, None if last else handed,
        frozenset(node.op.path for node in calls if node is not None),
        frozenset(params[id].name for id in read if id in params),
    )  # fmt: skip


class PartForward:
    """The forward of one part of a model: of what the part before has handed on."""

    def __init__(self, forward: ParallelForward, part: Part, reads: tuple[int, ...]):
        self.forward, self.part, self.reads = forward, part, reads
        self.program = forward.program(frozenset())

    def __call__(self, *values: Tensor) -> Any:
        if len(values) != len(self.reads):
            names = len(self.reads)
            raise TypeError(f"this part of {self.program.layer.name} takes {names} values")
        run = Run(self.forward, self.program, dict(zip(self.reads, values, strict=True)))
        run.compute(self.part.places)
        if self.part.makes is not None:
            made = [run.values[id] for id in self.part.makes]
        else:
            made = [run.output(id) for id in self.program.layer.graph.outputs.values()]
        return made[0] if len(made) == 1 else tuple(made)


def cut(module: nn.Module, forward: ParallelForward, ranks: Ranks) -> None:
    """Leave in a module the part of this process. What stays keeps its name."""
    program = forward.program(frozenset())
    parts = parts_of(program, ranks.count)
    part = parts[ranks.rank]
    first = tuple(id for id, _ in program.layer.inputs)
    handed = first if ranks.rank == 0 else parts[ranks.rank - 1].makes or ()
    for path in {node.op.path for node in _calls(program)} - part.blocks:
        *owners, last = [own if own.isdigit() else attribute(own) for own in path.split(".")]
        owner = module.get_submodule(".".join(owners))
        del owner._modules[last]
    for _, param in program.layer.params:
        if param.name not in part.parameters:
            del module._parameters[attribute(param.name)]
    module.forward = PartForward(forward, part, handed)


def _calls(program: Program) -> list[Any]:
    return [piece.node for piece in program.pieces if piece.kind == CALL]


def stage(
    module: nn.Module, mesh: DeviceMesh, device: torch.device | str | None = None,
    **options: Any,
) -> PipelineStage:  # fmt: skip
    """The stage of `torch.distributed.pipelining` that a part of a model is, which `apply` has left
    on this process: to be given to one of its schedules. Options are those of `PipelineStage`.
    Raises ValueError for a mesh without `pp`."""
    ranks = ranks_of(mesh, "pp")
    if ranks is None:
        raise ValueError("the mesh has no dim `pp` of two processes or more")
    place = device or next(module.parameters()).device
    return PipelineStage(
        module, ranks.rank, ranks.count, torch.device(place), group=ranks.group, **options
    )

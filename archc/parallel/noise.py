"""What dropout draws on several processes: the same for a value that all of them have, something
else for each part of one that is split, whatever their own generators are at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.parallel.mesh import Ranks

MOST = 2**31
"""Seeds that are drawn are below this."""


def noises(graph: Graph) -> Iterator[Node]:
    """The ops of dropout in a graph, and in the bodies of its recurrences and attends."""
    for node in graph:
        if isinstance(node.op, ir.Noise):
            yield node
        elif isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from noises(node.op.body)


def along_tokens(graph: Graph) -> bool | None:
    """Whether dropout is of values of each token: None where some of it is, and other not."""
    kinds = {any(axis.kind == "stream" for axis in node.type.axes) for node in noises(graph)}
    inner = any(isinstance(node.op, ir.Recurrence) and any(noises(node.op.body)) for node in graph)
    kinds |= {True} if inner else set()
    return None if len(kinds) == 2 else True in kinds


def agreed_seed(ranks: Sequence[Ranks], device: torch.device) -> int:
    """A number that the first process draws from its generator, on all of them."""
    seed = torch.randint(MOST, (1,)).to(device)
    for each in ranks:
        every = seed.new_empty(each.count)
        each.ask(
            "the seed of dropout",
            lambda every=every, each=each, seed=seed: dist.all_gather_into_tensor(
                every, seed, group=each.group
            ),
        )
        seed = every[:1].clone()
    return int(seed)


@contextmanager
def drawing(seed: int, like: Tensor) -> Iterator[None]:
    """What is drawn inside comes from a seed; the generators go on from where they were."""
    places = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices=places):
        torch.manual_seed(seed)
        yield

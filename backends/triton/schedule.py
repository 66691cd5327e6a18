"""The kernels of a graph, written: what a kernel cannot hold stays with PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from archc.backends.triton.kernel_program import KernelProgram, memory_of

from archc.attention.recognise import Found
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernel, Kernels, Segments
from archc.ir.refusal import Refusal
from archc.ir.token_region import TokenRegion
from archc.lowering.kernels import lower
from archc.lowering.token import RegionKernels


@dataclass(frozen=True)
class Schedule:
    """How graphs become kernels: `prepare` rewrites one of these heads for kernels, `partition`
    cuts it, given its name, stream and heads, the nodes that PyTorch does, and why, and whether
    walks make what follows on them. `tokenwise` makes a recurrence with its results a graph by
    itself, of which `steps` makes the kernel of that name that walks its tokens; `with_gradient`
    adds to such a graph its gradient. `fitting` says how many rows a chunk may have: the symbols
    that decide with the shortest blocks of them, and the table (`rows_that_fit`). `segments` is how
    a walk of a chunked form of these tokens goes in segments, or why it goes whole.
    `is_checkpointed`: whether a recurrence token by token is learned from in spans of tokens.
    `folds`: what the sums over the tokens read of an attend are. `regions` are the token regions of
    a layer that have kernels, but for nodes that stay where they are; `packed` are the kernels of
    one that looks back on tokens, for packed sequences, or why there are none."""

    prepare: Callable[[Graph, Collection[str]], Graph]
    partition: Callable[[Graph, str, Axis, Collection[str], Mapping[int, str], bool], Kernels]
    tokenwise: Callable[[Graph, Node, Collection[str]], Graph]
    steps: Callable[[Graph, str, bool], Kernel]
    with_gradient: Callable[[Graph], ChunkForm | None]
    fitting: Callable[[Sequence[Kernels]], tuple[Mapping[str, int], Mapping[tuple[int, ...], int]]]
    segments: Callable[[Kernel, Axis], Segments | str]
    is_checkpointed: Callable[[ir.Recurrence], bool]
    folds: Callable[[ir.Attend], tuple[Found, ...]]
    regions: Callable[[ir.Layer, Collection[int]], Sequence[RegionKernels]]
    packed: Callable[[TokenRegion, bool], RegionKernels | str]


def written(
    graph: Graph,
    name: str,
    stream: Axis,
    heads: Collection[str],
    schedule: Schedule,
    fused: bool = False,
) -> tuple[Kernels, list[KernelProgram]]:
    """The kernels, each with its program."""
    fallback: dict[int, str] = {}
    while True:
        plan = schedule.partition(graph, name, stream, heads, fallback, fused)
        found = _lowered(plan, stream.name)
        if not isinstance(found, Refusal):
            return plan, found
        assert found.node is not None and found.node not in fallback, str(found)
        fallback[found.node] = found.reason


def _lowered(plan: Kernels, tokens: str) -> list[KernelProgram] | Refusal:
    """The programs of a plan's kernels, or why one has none."""
    memory, made = memory_of(plan), list[KernelProgram]()
    for kernel in plan.kernels:
        found = lower(kernel, tokens, memory)
        if isinstance(found, Refusal):
            return found
        made.append(KernelProgram(kernel, found))
    return made

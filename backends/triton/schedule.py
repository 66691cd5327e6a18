"""The kernels of a graph, written: what a kernel cannot hold stays with the host."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from archc.backends.triton.kernel import KernelWriter, source
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.ops import OPS

from archc.dims import Axis
from archc.ir.graph import Graph
from archc.ir.kernel import Kernels

Partition = Callable[[Graph, str, Axis, Collection[str], Mapping[int, str]], Kernels]
"""Cuts a graph into kernels: of its stream and heads; nodes that the host does, and why."""


def written(
    graph: Graph, name: str, stream: Axis, heads: Collection[str], partition: Partition
) -> tuple[Kernels, list[KernelWriter]]:
    """The kernels and their texts."""
    host: dict[int, str] = {}
    while True:
        plan = partition(graph, name, stream, heads, host)
        try:
            return plan, [source(each, OPS, stream.name) for each in plan.kernels]
        except NotInKernel as reason:
            assert reason.node is not None and reason.node not in host, str(reason)
            host[reason.node] = str(reason)

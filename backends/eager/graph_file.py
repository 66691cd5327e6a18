"""Graphs -> source text: a file with one function for each, its inputs the arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.parts import Parts
from archc.backends.eager.table import EMITTERS

from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph


@dataclass(frozen=True)
class Arguments:
    """The arguments of a function, in order: the inputs of its graph by name, options that no shape
    tells, and at last the length of a chunk."""

    inputs: tuple[str, ...]
    options: tuple[str, ...]


def emit_graphs(
    layer: ir.Layer, graphs: Mapping[str, Graph], order: Sequence[str], titles: Mapping[str, str]
) -> tuple[str, dict[str, Arguments]]:
    """The text, and the arguments of each function. `layer` is where the graphs come from, `order`
    that of the inputs."""
    file = File()
    for name in graphs:
        file.names.fresh(name)
    parts = Parts(file, layer, EMITTERS, file.classes_of([layer]), root=True)
    arguments = {}
    for name, graph in graphs.items():
        scope = parts.scope("", {})
        function = GraphFunction(scope, graph, name, {}, order, TIME)
        layouts = {out: graph[id].type.names for out, id in graph.outputs.items()}
        options = function.write(layouts, titles[name])
        arguments[name] = Arguments(tuple(function.inputs), tuple(options))
    return assembled(file, embedded=False), arguments

"""One graph as one tile program: its inputs are buffers, and every output is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.meaning import evaluate_graph
from archc.ir.refusal import Refusal
from archc.ir.sizes import evaluate
from archc.lowering.rules import RULES
from archc.lowering.values import Frame, Index, Made, Place, Rules, Values
from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.language import Buffer, Program
from archc.tile.unread import swept
from archc.tile.verifier import verify, verify_launch

TORCH = {"int": "i32", "bool": "bool"}


class Single(Values):
    """Every input is loaded where it is wanted; a program has one index of the axes of `grid`."""

    def __init__(self, graph: Graph, grid: Sequence[str], rules: Rules = RULES):
        super().__init__(Composer("single", "A graph by itself."), rules, Frame(graph, self.loaded))
        self.graph = graph
        axes = {axis.name: axis for node in graph for axis in node.type.axes}
        for name in grid:
            at = self.k.program(name, self.size(axes[name].size))
            self.indices[name] = Index(at)
        self.buffers = {node.op.name: self.buffer(node.op.name, node) for node in inputs(graph)}

    def buffer(self, name: str, node: Node) -> Buffer:
        dtype = TORCH.get(node.type.dtype, "f32")
        sizes = {axis.name: self.size(axis.size) for axis in node.type.axes}
        return self.k.buffer(name, dtype, **sizes)

    def loaded(self, node: Node, place: Place) -> Made | None:
        if isinstance(node.op, ir.Input):
            return self.load(self.buffers[node.op.name], place)
        return None

    def is_loaded(self, id: int) -> bool:
        return isinstance(self.frame.graph[id].op, ir.Input)

    def program(self) -> Program | Refusal:
        for name, id in self.graph.outputs.items():
            node = self.graph[id]
            buffer = self.buffer(f"out_{name}", node)
            place = self.at(node, {})
            assert not isinstance(place, Refusal)
            x = self.value(id, place)
            if isinstance(x, Refusal):
                return x
            self.store(buffer, x, place)
        return swept(self.k.done())


def inputs(graph: Graph) -> list[Node]:
    return [node for node in graph if isinstance(node.op, ir.Input)]


def block(size: int) -> int:
    """The length of a tile along an axis."""
    return max(16, 1 << (size - 1).bit_length())


def made(
    graph: Graph, given: Mapping[str, Tensor], sizes: Mapping[str, int], grid: Sequence[str] = ()
) -> dict[str, Tensor]:
    """What the program of a graph stores, run in float64."""
    single = Single(graph, grid)
    program = single.program()
    assert isinstance(program, Program), program
    assert not verify(program), verify(program)
    known: dict[str, int | str] = {**sizes}
    known |= {name: block(int(evaluate(size, sizes))) for name, size in single.blocks.items()}
    known = {name: known[name] for name in program.constants}
    assert not verify_launch(program, known), verify_launch(program, known)
    tensors = dict(given)
    kinds = {"real": torch.float64, "int": torch.int32, "bool": torch.bool}
    for name, id in graph.outputs.items():
        type = graph[id].type
        shape = [int(evaluate(axis.size, sizes)) for axis in type.axes]
        tensors[f"out_{name}"] = torch.full(shape, -7, dtype=torch.float64).to(kinds[type.dtype])
    run(program, tensors, {}, known, exact=True)
    return {name: tensors[f"out_{name}"] for name in graph.outputs}


def check(
    graph: Graph, given: Mapping[str, Tensor], sizes: Mapping[str, int], grid: Sequence[str] = ()
) -> None:
    """Hold every output against the meaning of its graph."""
    expected = evaluate_graph(graph, given, sizes)
    for name, found in made(graph, given, sizes, grid).items():
        wanted = expected[name].expand(found.shape).to(found.dtype)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9, equal_nan=True)

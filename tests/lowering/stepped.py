"""Programs that walk tokens, run by the interpreter of tile programs in float64, beside what their
graphs mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

import archc
from archc.compile import for_kernels, lowered, with_epilogues, with_gradient, with_prologues
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernel
from archc.ir.meaning import evaluate_graph
from archc.ir.plan import examples
from archc.ir.refusal import Refusal
from archc.ir.sizes import Number, evaluate
from archc.lowering.steps import INDICES, Stepping, Steps, stepping
from archc.schedule.token_walks import steps, tokenwise
from archc.tile.interpreter import run
from archc.tile.language import Dot, statements
from archc.tile.resources import Room
from archc.tile.verifier import verify, verify_launch

BATCH = 3


@dataclass(frozen=True)
class Walk:
    """A kernel that walks the tokens of a recurrence, and the sizes of its layer."""

    kernel: Kernel
    sizes: Mapping[str, Number]
    learns: bool


def walks(spec: str, unit: int) -> Iterator[Walk]:
    """The kernels of a spec's recurrences, at dims of about `unit`."""
    layer, kernels = kernels_of(spec)
    return walks_of(layer, kernels, unit)


def walks_of(layer: ir.Layer, kernels: list[tuple[Kernel, bool]], unit: int) -> Iterator[Walk]:
    """Kernels at dims of about `unit`."""
    sizes = next(examples(layer, unit))
    return (Walk(kernel, sizes, learns) for kernel, learns in kernels)


@lru_cache
def kernels_of(spec: str) -> tuple[ir.Layer, list[tuple[Kernel, bool]]]:
    """A layer, and what walks the tokens of its recurrences: for a few tokens, and where there are
    no chunks to learn, forward and back."""
    layer = lowered(archc.load(spec).layer)
    return layer, kernels_in(layer)


def kernels_in(layer: ir.Layer) -> list[tuple[Kernel, bool]]:
    """The kernels of a layer's recurrences, and whether they are for learning."""
    found = []
    for graph, node in recurrences(for_kernels(with_prologues(with_epilogues(layer)))):
        own = tokenwise(graph, node, results(graph, node))
        found.append((steps(own, "step"), False))
        form = None if node.op.chunked is not None else with_gradient(own)
        for each in [] if form is None else [form.forward, form.backward]:
            assert each is not None
            for recurrence in (n for n in each if isinstance(n.op, ir.Recurrence)):
                alone = tokenwise(each, recurrence, results(each, recurrence))
                found.append((steps(alone, "walk", True), True))
    return found


def recurrences(layer: ir.Layer) -> Iterator[tuple[Graph, Node]]:
    """The recurrences of a layer and of those that it calls."""
    for node in layer.graph:
        if isinstance(node.op, ir.Recurrence):
            yield layer.graph, node
        if isinstance(node.op, ir.Call):
            yield from recurrences(node.op.callee)


def results(graph: Graph, node: Node) -> list[str]:
    """The results of a recurrence that are read."""
    users = (graph[user].op for user in graph.users(node.id))
    names = {op.name for op in users if isinstance(op, ir.Result)}
    return [name for name in node.op.body.outputs if name in names]


def block(size: int, least: int) -> int:
    """The length of a block that holds a dim."""
    return max(least, 1 << (size - 1).bit_length())


class Launch:
    """One launch of a walk, of numbers that are drawn. States are in rows of pools in any order,
    where one sequence has none; `in_place`: they go back to where they came from; `kind`: whose
    program it is."""

    def __init__(self, walk: Walk, tokens: int, in_place: bool, kind: type[Steps] | None = None):
        self.kernel, self.in_place, self.kind = walk.kernel, in_place, kind
        made = self.lowered(walk)
        assert not isinstance(made, Refusal), made
        self.made: Stepping = made
        self.known = {**walk.sizes, "batch": BATCH, "T#": tokens, "T_seen#": tokens}
        self.pools = not walk.learns
        types = {n.op.name: n.type for n in walk.kernel.graph if isinstance(n.op, ir.Input)}
        self.inputs = {name: self.drawn(type) for name, type in types.items()}
        self.tensors: dict[str, Tensor] = {}
        self.rows = {name: torch.arange(BATCH) for name in INDICES}

    def lowered(self, walk: Walk) -> Stepping | Refusal:
        """The program of a walk."""
        return stepping(walk.kernel, (), not walk.learns, self.kind)

    def drawn(self, type: ir.Type) -> Tensor:
        """Numbers that every function has a value of; square matrices can be solved."""
        shape = [int(evaluate(axis.size, self.known)) for axis in type.axes]
        if type.dtype != "real":
            return torch.randint(0, 2, shape).to(
                torch.bool if type.dtype == "bool" else torch.int64
            )
        x = 0.1 + 0.8 * torch.rand(shape, dtype=torch.float64)
        if "batch" not in type.names and len(shape) > 1:
            x = (x - 0.5) / shape[0]
        square = (
            len(shape) > 2 and shape[-1] == shape[-2] and type.names[-1] == f"{type.names[-2]}'"
        )
        return x @ x.mT / shape[-1] + torch.eye(shape[-1]) if square else x

    def wanted(self) -> dict[str, Tensor]:
        """What the graph means, of states that are 0 where a sequence has none."""
        given, states = dict(self.inputs), {f"{s.name}[0]" for s in self.recurrence.states}
        if self.pools:
            for name in states:
                given[name] = torch.where(
                    (self.rows["index"] >= 0).reshape(-1, *[1] * (given[name].dim() - 1)),
                    given[name], 0.0,
                )  # fmt: skip
        return evaluate_graph(self.kernel.graph, given, self.known)

    @property
    def recurrence(self) -> ir.Recurrence:
        """The recurrence."""
        assert self.kernel.walk is not None
        return self.kernel.graph[self.kernel.walk].op

    def run(self) -> dict[str, Tensor]:
        """What the program makes: results, and the states of each sequence that has one."""
        numbers = self.numbers()
        self.place()
        known = {**self.sizes(), **numbers, "IO": "bf16", "DOT": "bf16"}
        refused = [*verify(self.made.program)]
        refused = refused or verify_launch(self.made.program, known, Room(shared=232_448))
        assert not refused, [str(each) for each in refused]
        run(self.made.program, self.tensors, self.sizes(), numbers, exact=True)
        return self._found()

    @property
    def block(self) -> int:
        """How long a block is of the dim that programs share."""
        return int(self.numbers()["BLOCK"])

    def numbers(self) -> dict[str, int | str]:
        """The constants of the program."""
        made = self.made
        dots = any(isinstance(s.op, Dot) for s in statements(made.program.body))
        found: dict[str, int | str] = {"IO": "f64", "DOT": "f64", "PRECISION": "ieee"}
        found |= {name: evaluate(symbol, self.known) for name, symbol in made.sizes.items()}
        blocks = made.blocks.items()
        found |= {name: block(int(evaluate(size, self.known)), 16) for name, size in blocks}
        if self.kernel.split is not None:
            size = int(evaluate(self.kernel.split.size, self.known))
            found["BLOCK"] = 16 if dots else min(8, block(size, 2) // 2)
            count = -(-size // int(found["BLOCK"]))
            found["BLOCKS"] = count if self.in_place else 1
        return found

    def sizes(self) -> dict[str, int]:
        """The numbers of the launch."""
        found = {"T": int(self.known["T#"]), "B": BATCH}
        names = {symbol.name for symbol in self.made.program.sizes} - {*found}
        return found | dict.fromkeys(names, BATCH + 2 if self.pools else BATCH)

    def place(self) -> None:
        """Put states into rows of pools."""
        tensors, made = self.tensors, self.made
        if self.pools:
            for name in INDICES:
                self.rows[name] = torch.randperm(BATCH + 2)[:BATCH]
            self.rows["index"][0] = -1
            if self.in_place:
                self.rows["index_after"] = self.rows["index"]
            tensors |= self.rows
        ends = {end: f"{state}[0]" for state, end in self.kernel.ends.items()}
        for name, buffer in made.tensors.items():
            if name in ends and self.in_place:
                tensors[buffer.name] = tensors[made.tensors[ends[name]].name]
            elif name in self.inputs and f"{name}" in ends.values():
                tensors[buffer.name] = self._pool(self.inputs[name])
            elif name in self.inputs:
                tensors[buffer.name] = self.inputs[name].clone()
            else:
                tensors[buffer.name] = self._empty(name, name in ends)

    def _pool(self, states: Tensor) -> Tensor:
        """States in their rows of a pool."""
        if not self.pools:
            return states.clone()
        pool = torch.full((BATCH + 2, *states.shape[1:]), torch.nan, dtype=states.dtype)
        there = self.rows["index"] >= 0
        pool[self.rows["index"][there]] = states[there]
        return pool

    def _empty(self, name: str, state: bool) -> Tensor:
        """Memory for what a program makes: numbers that are none."""
        graph = self.kernel.graph
        type = graph[graph.outputs[name]].type
        shape = [int(evaluate(axis.size, self.known)) for axis in type.axes]
        if state and self.pools:
            shape[0] = BATCH + 2
        if name in self.kernel.summed:
            assert self.kernel.split is not None
            shape.insert(0, -(-int(evaluate(self.kernel.split.size, self.known)) // self.block))
        if type.dtype == "real":
            return torch.full(shape, torch.nan, dtype=torch.float64)
        return torch.full(shape, -7).to(torch.bool if type.dtype == "bool" else torch.int64)

    def _found(self) -> dict[str, Tensor]:
        found = {}
        for name in self.kernel.graph.outputs:
            found[name] = self.tensors[self.made.tensors[name].name]
            if name in self.kernel.summed:
                found[name] = found[name].sum(0)
            if name in self.kernel.ends.values():
                found[name] = found[name][self.rows["index_after"].clamp(min=0)]
        return found

    def error(self) -> float:
        """How far the program is off, against the largest number of each output."""
        found, wanted = self.run(), self.wanted()
        worst = 0.0
        for name, want in wanted.items():
            rows = torch.ones(BATCH, dtype=torch.bool)
            if name in self.kernel.ends.values() and self.pools:
                rows = self.rows["index_after"] >= 0
            a, b = (x[rows].double() for x in (found[name], want))
            if b.numel():
                far = (a - b).abs().max() / b.abs().max().clamp(min=1.0)
                worst = max(worst, float(far) if not torch.isnan(far) else float("inf"))
        return worst

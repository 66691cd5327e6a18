"""One recurrence with numbers: random values, what the recurrence gives for them, and how far off
something else is. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from archc.dims import T_SEEN, TIME, at
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.meaning import evaluate_graph
from archc.ir.plan import examples
from archc.ir.typing import layer_graph
from archc.verify.study import Study

Values = dict[str, Tensor]

SMALL = 3
BATCH = 2
BEFORE = 3
"""Tokens before the state that a trial begins from."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One recurrence with numbers: sizes, random captures, and a random state to start from."""

    study: Study
    tokens: int
    sizes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def step(self) -> Graph:
        """The recurrence alone: inputs and outputs as a chunked form has them."""
        return step_graph(self.study)

    @cached_property
    def shapes(self) -> dict[str, int]:
        """A number for every symbol: those given, an example of the layer's, or a small one."""
        graphs = [self.step, *([self.study.derived.graph] if self.study.derived.graph else [])]
        small = dict(self.sizes) or next(examples(self.study.layer, SMALL), {})
        found = {name: int(small.get(name, SMALL)) for g in graphs for name in symbols(g)}
        return found | {"batch": BATCH, **lengths(self.tokens)}

    @cached_property
    def inputs(self) -> Values:
        """Random numbers within the intervals of the captures, and a state that follows others."""
        generator = torch.Generator().manual_seed(0)
        known = {name: self.study.known[id] for name, id in self.study.captured.items()}
        given = {n.op.name: n.type for n in self.step if isinstance(n.op, ir.Input)}
        found = {
            name: random(type, self.shapes, known.get(name, Interval()), generator)
            for name, type in given.items()
        }
        return found | self._reached(found) | self._fixed(found)

    @property
    def starts(self) -> Values:
        """The states before the first token."""
        names = [ck.start(state.name) for state in self.study.recurrence.states]
        return {name: self.inputs[name] for name in names}

    def _reached(self, found: Values) -> Values:
        """States that the recurrence comes to from the spec's own: a sum of squares, of which it
        may take the root, is never below 0."""
        stream, begun = self.study.recurrence.stream.name, self._begun()
        count = min(BEFORE, self.tokens)
        given = found | {name: torch.full_like(found[name], x) for name, x in begun.items()}
        ends = self.run(self.step, cut(self.step, given, stream, 0, count), tokens=count)
        names = (state.name for state in self.study.recurrence.states)
        made = {ck.start(name): ends[ck.final(name)] for name in names}
        return {name: x for name, x in made.items() if x.isfinite().all()}

    def _begun(self) -> dict[str, float]:
        """Starts that are numbers in the spec."""
        recurrence = self.study.recurrence
        operands = self.study.node.operands[len(recurrence.captures) :]
        pairs = zip(recurrence.states, operands, strict=True)
        ops = {ck.start(state.name): self.study.graph[id].op for state, id in pairs}
        return {n: float(op.value) for n, op in ops.items() if isinstance(op, ir.Constant)}

    def _fixed(self, found: Values) -> Values:
        """Starts that the spec gives and that must stay: -inf, and 0 where a system is solved."""
        form = self.study.derived.graph
        solved = form is not None and any(isinstance(n.op, ck.Conjugate) for n in form)
        begun = {n: x for n, x in self._begun().items() if solved or not math.isfinite(x)}
        return {name: torch.full_like(found[name], x) for name, x in begun.items()}

    def run(
        self, graph: Graph, inputs: Values, chunk: int = 1, tokens: int | None = None
    ) -> Values:
        """A graph on inputs, with a number of tokens in a chunk, and of tokens if not all."""
        count = self.tokens if tokens is None else tokens
        sizes = self.shapes | {str(ck.CHUNK): chunk, **lengths(count)}
        return evaluate_graph(graph, inputs, sizes)

    @cached_property
    def expected(self) -> Values:
        """The values of the recurrence, token by token."""
        return self.run(self.step, self.inputs)

    def sizes_text(self) -> str:
        """The sizes, for a reader."""
        used = symbols(self.step) - {*lengths(0)}
        shown = [f"{name} = {self.shapes[name]}" for name in sorted(used)]
        return ", ".join([*shown, f"{self.tokens} tokens"])


def step_graph(study: Study, recurrence: ir.Recurrence | None = None) -> Graph:
    """The recurrence of a study as a graph of its own, or another Recurrence in its place."""
    step, op = layer_graph(), recurrence or replace(study.recurrence, chunked=None)
    captured = study.captured.items()
    ids = [step.add(ir.Input(n, study.graph[id].type), name=n) for n, id in captured]
    starts = [step.add(ir.Input(ck.start(s.name), Type(s.axes))) for s in op.states]
    node = step.add(op, *ids, *starts)
    read = {study.graph[user].op.name for user in study.graph.users(study.node.id)}
    for name in op.body.outputs:
        if name in read:
            step.outputs[name] = step.add(ir.Result(name), node)
    for state, start in zip(op.states, starts, strict=True):
        after = step.add(ir.Result(state.name), node)
        step.outputs[ck.final(state.name)] = step.add(ck.Last(op.stream.name), after, start)
    return step


def lengths(tokens: int) -> dict[str, int]:
    """The sizes of a sequence of so many tokens, with none before."""
    return {str(TIME.size): tokens, str(T_SEEN): tokens}


def symbols(graph: Graph) -> set[str]:
    """The names of the sizes in a graph."""
    found = {str(s) for n in graph for axis in n.type.axes for s in axis.size.free_symbols}
    for node in graph:
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            found |= symbols(node.op.body)
        if isinstance(node.op, ir.Constant):
            found |= {str(symbol) for symbol in node.op.value.free_symbols}
    return found - {"batch", str(ck.CHUNK)}


def random(
    type: Type, sizes: Mapping[str, int], lies: Interval, generator: torch.Generator
) -> Tensor:
    """Random numbers of a type, on the side of 0 that an interval says, and above its low end if
    that is above 0."""
    shape = [int(at(axis.size, sizes)) for axis in type.axes]
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    if type.dtype == "bool":
        return x > 0
    if type.dtype == "int":
        return (x.abs() * 2 + max(float(lies.low), 0)).long()
    if lies.low > 0:
        return x.abs() + float(lies.low)
    return -x.abs() if lies.nonpositive else x.abs() if lies.nonnegative else x


def furthest(found: Values, wanted: Values, together: bool = False) -> float:
    """The largest difference of values of one name, against the largest value of that name, or
    `together` of all. What is no number in both is the same."""
    finite = {name: x[x.isfinite()] for name, x in wanted.items()}
    sizes = {name: x.abs().max().item() if x.numel() else 0.0 for name, x in finite.items()}
    whole = max(sizes.values(), default=0.0)
    errors = [0.0]
    for name, x in wanted.items():
        y = found[name].to(x.dtype)
        if x.numel():
            same = (x == y) | (x.isnan() & y.isnan())
            away = torch.where(same, 0.0, (x - y).abs()).max().item()
            least = whole if together else 1e-3 * whole
            error = away / max(sizes[name], least, 1e-30)
            errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)


def cut(step: Graph, inputs: Values, stream: str, begin: int, end: int) -> Values:
    """The captures of some of the tokens, and what does not go by tokens."""
    found = {}
    for node in step:
        if isinstance(node.op, ir.Input):
            x, names = inputs[node.op.name], node.type.names
            inside = stream in names
            found[node.op.name] = x.narrow(names.index(stream), begin, end - begin) if inside else x
    return found


def cotangent_of(x: Tensor) -> Tensor:
    """Random numbers of the shape of an output."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=x.dtype)

"""Chunked forms by hand, for tests: a frame, and a form beside the same recurrence token by token.

`agree` runs both on the same numbers: states before and after every token, the final state, and
the gradients of all three, for chunks of several lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import sympy
import torch
from torch import Tensor

from archc.dims import TIME, Axis
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate_graph
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import Carried
from tests.graphs import Sketch, axes

CHUNKS = Axis("n", sympy.ceiling(TIME.size / CHUNK), "stream")
ROWS, COLUMNS = Axis("i", CHUNK), Axis("j", CHUNK)

SIZES = {"batch": 2, "H": 2, "K": 3, "V": 2, "D": 3, "N": 2}
LENGTHS = [(0, 4), (1, 1), (1, 4), (5, 1), (5, 3), (6, 3), (5, 5), (5, 7)]
"""Numbers of tokens, and of tokens in a chunk."""

Ids = Mapping[str, int]
Body = Callable[[Sketch, Ids], dict[str, int]]
"""In a Recurrence's body: captures by name, and states as `S[t-1]` -> updates and other results."""

Inputs = Mapping[str, str]
"""Axes of inputs by name; `S[0]` is the initial value of S, all others are captures."""


def frame(sketch: Sketch, *outer: str) -> Frame:
    """A frame on a sketch's graph."""
    return Frame(sketch.graph, TIME, CHUNKS, ROWS, COLUMNS, outer)


def states(inputs: Inputs) -> list[ir.State]:
    """The states that the inputs begin, as wide as their initial values."""
    return [ir.State(name[:-3], axes(dims)) for name, dims in inputs.items() if "[0]" in name]


def recurrence(inputs: Inputs, body: Body) -> ir.Recurrence:
    """The recurrence of a body; every state's axes are those of its initial value."""
    inner, known = Sketch(), {}
    captures = tuple(name for name in inputs if "[0]" not in name)
    for name in captures:
        known[name] = inner.input(name, " ".join(a for a in inputs[name].split() if a != "t"))
    for state in states(inputs):
        name = f"{state.name}[t-1]"
        known[name] = inner.input(name, " ".join(axis.name for axis in state.axes))
    inner.graph.outputs = body(inner, known)
    return ir.Recurrence(TIME, captures, tuple(states(inputs)), inner.graph)


def stepped(inputs: Inputs, body: Body) -> Graph:
    """The recurrence token by token; outputs `S` and what else its body gives, along t."""
    outer, op = Sketch(), recurrence(inputs, body)
    given = {name: outer.input(name, dims) for name, dims in inputs.items()}
    firsts = [given[f"{state.name}[0]"] for state in op.states]
    node = outer.add(op, *(given[name] for name in op.captures), *firsts)
    return outer.outputs(**{n: outer.add(ir.Result(n), node) for n in op.body.outputs}).graph


def numbers(inputs: Inputs, length: int, seed: int = 0) -> dict[str, Tensor]:
    """Random tensors for inputs."""
    generator, sizes = torch.Generator().manual_seed(seed), {**SIZES, "t": length}
    return {
        name: torch.randn(
            [sizes[a.rstrip("'")] for a in dims.split()], generator=generator, dtype=torch.float64
        )
        for name, dims in inputs.items()
    }


def ends(found: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """A state before and after every token, and at last, of a recurrence token by token."""
    after, first = found[name], given[f"{name}[0]"]
    before = torch.cat([first[:, None], after], 1)[:, :-1]
    return {"before": before, "after": after, "final": torch.cat([first[:, None], after], 1)[:, -1]}


def chunked(inputs: Inputs, build: Callable[[Frame, Ids], Sequence[Carried]], *outer: str) -> Graph:
    """The states in chunks: outputs `before S`, `after S`, `final S`."""
    sketch = Sketch()
    given = {name: sketch.input(name, dims) for name, dims in inputs.items()}
    outputs = {}
    for state, found in zip(states(inputs), build(frame(sketch, *outer), given), strict=True):
        for part in ("before", "after", "final"):
            outputs[f"{part} {state.name}"] = getattr(found, part)
    sketch.graph.outputs = outputs
    sketch.graph.prune()
    return sketch.graph


def run(graph: Graph, given: Mapping[str, Tensor], length: int, chunk: int) -> dict[str, Tensor]:
    """A graph's outputs on numbers; those that it does not read are left out."""
    needed = {n.op.name for n in graph if isinstance(n.op, ir.Input)}
    sizes = {**SIZES, TIME.size.name: length, "chunk": chunk}
    return evaluate_graph(graph, {n: x for n, x in given.items() if n in needed}, sizes)


def same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Equal numbers under equal names, NaN and infinity included."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        assert torch.allclose(found[name], value, atol=1e-9, equal_nan=True), name


def gradients(outputs: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of a weighted sum of outputs, the same weights for the same names."""
    generator, total = torch.Generator().manual_seed(1), torch.zeros((), dtype=torch.float64)
    for name in sorted(outputs):
        weights = torch.randn(outputs[name].shape, generator=generator, dtype=torch.float64)
        total = total + (weights * outputs[name]).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(x) for name, x in given.items()}
    found = torch.autograd.grad(total, list(given.values()), allow_unused=True)
    pairs = zip(given.items(), found, strict=True)
    return {name: torch.zeros_like(x) if g is None else g for (name, x), g in pairs}


def agree(
    inputs: Inputs,
    body: Body,
    build: Callable[[Frame, Ids], Sequence[Carried]],
    given: Callable[[int], dict[str, Tensor]] | None = None,
    grads: bool = True,
) -> None:
    """The chunked form means what the body means token by token."""
    form, plain = chunked(inputs, build), stepped(inputs, body)
    for length, chunk in LENGTHS:
        values = given(length) if given else numbers(inputs, length)
        leaves = {name: x.clone().requires_grad_(grads) for name, x in values.items()}
        found, steps = run(form, leaves, length, chunk), run(plain, leaves, length, chunk)
        wanted = {}
        for state in states(inputs):
            parts = ends(steps, leaves, state.name)
            wanted |= {f"{part} {state.name}": value for part, value in parts.items()}
        same(found, wanted)
        if grads:
            same(gradients(found, leaves), gradients(wanted, leaves))

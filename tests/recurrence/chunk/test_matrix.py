"""A matrix state by hand: any number of micro-steps, terms and gates, read at any moment."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import sympy
import torch
from torch import Tensor

from archc.dims import BATCH, TIME, Axis, size_symbol
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.meaning import evaluate_graph
from archc.ir.typing import layer_graph
from archc.recurrence.chunk.frame import Frame, input_of
from archc.recurrence.chunk.matrix import MatrixForm, TokenStep, TokenTerm

K, V, H = (Axis(name, size_symbol(name)) for name in "KVH")
SIZES = {"batch": 2, "H": 2, "K": 3, "V": 4}
STATE = ir.State("S", (BATCH, H, K, V))


@dataclass
class Example:
    """A form under construction, and the numbers of its inputs."""

    tokens: int
    inputs: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chunk = Axis("n", sympy.ceiling(TIME.size / ck.CHUNK), "stream")
        row = Axis("i", ck.CHUNK)
        self.frame = Frame(layer_graph(), TIME, chunk, row, row.renamed("j"), ("H",))
        self.generator = torch.Generator().manual_seed(0)

    def input(self, name: str, *dims: Axis, gate: bool = False, scale: float = 1.0) -> int:
        """An input along tokens."""
        axes = (BATCH, TIME, H, *dims)
        shape = [{**SIZES, "t": self.tokens}[axis.name] for axis in axes]
        x = scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)
        self.inputs[name] = -x.abs() if gate else x
        return input_of(self.frame.graph, name, Type(axes))


def step(example: Example, p: int, terms: int, key: str, value: bool, after: bool) -> TokenStep:
    """A micro-step whose even terms read the state, where that is possible."""
    dims = {"none": None, "scalar": (), "channel": (K,)}[key]
    gate = None if dims is None else example.input(f"g{p}", *dims, gate=True)
    other = example.input(f"h{p}", V, gate=True) if value else None
    made = []
    for m in range(terms):
        x, c = example.input(f"x{p}{m}", K), example.input(f"c{p}{m}", V)
        reads = m % 2 == 0 and not value
        w = example.input(f"w{p}{m}", K, scale=0.3) if reads else None
        made.append(TokenTerm(x, (c,), w, after))
    return TokenStep(gate, other, tuple(made))


def by_hand(example: Example, steps: int, terms: int, after: bool) -> dict[str, Tensor]:
    """The same, token by token."""
    given = example.inputs
    S = given["S[0]"]
    found: dict[str, list[Tensor]] = {}
    for t in range(example.tokens):
        for p in range(steps):
            kept = S
            if f"g{p}" in given:
                gate = given[f"g{p}"][:, t].exp()
                kept = kept * (gate[..., None] if gate.dim() == 3 else gate[..., None, None])
            if f"h{p}" in given:
                kept = kept * given[f"h{p}"][:, t].exp()[..., None, :]
            new = kept
            for m in range(terms):
                row = given[f"c{p}{m}"][:, t]
                if f"w{p}{m}" in given:
                    read = kept if after else S
                    row = row + (given[f"w{p}{m}"][:, t, :, :, None] * read).sum(-2)
                new = new + given[f"x{p}{m}"][:, t, :, :, None] * row[..., None, :]
            for when, state in (("before", S), ("after", kept), ("written", new)):
                read = (given["q"][:, t, :, :, None] * state).sum(-2)
                found.setdefault(f"{when}{p}", []).append(read)
            S = new
    return {name: torch.stack(rows, 1) for name, rows in found.items()} | {"S[T]": S}


@pytest.mark.parametrize("tokens, chunk", [(7, 4), (5, 1), (5, 16), (1, 3), (0, 3)])
@pytest.mark.parametrize(
    "steps, terms, key, value, after",
    [
        (1, 1, "none", False, True),
        (1, 1, "scalar", False, True),
        (1, 1, "channel", False, False),
        (1, 2, "channel", False, False),
        (1, 5, "channel", False, True),
        (3, 1, "channel", False, True),
        (3, 2, "scalar", False, False),
        (1, 2, "channel", True, True),
        (2, 1, "none", True, True),
    ],
)
def test_in_chunks_as_by_hand(
    steps: int, terms: int, key: str, value: bool, after: bool, tokens: int, chunk: int
) -> None:
    example = Example(tokens)
    made = [step(example, p, terms, key, value, after) for p in range(steps)]
    query = example.input("q", K)
    graph, shape = example.frame.graph, [SIZES[axis.name] for axis in STATE.axes]
    example.inputs["S[0]"] = torch.randn(shape, generator=example.generator, dtype=torch.float64)
    initial = input_of(graph, "S[0]", Type(STATE.axes))
    form = MatrixForm(example.frame, [K], [STATE], made, [initial])
    for p in range(steps):
        for when in ("before", "after", "written"):
            read = form.read(0, form.query(query, p, when), when)
            graph.outputs[f"{when}{p}"] = form.tokens(read, p, when)
    graph.outputs["S[T]"] = form.final[0]
    found = evaluate_graph(graph, example.inputs, {**SIZES, TIME.size.name: tokens, "chunk": chunk})
    for name, wanted in by_hand(example, steps, terms, after).items():
        assert torch.allclose(found[name], wanted, rtol=1e-10, atol=1e-10), name


def test_only_the_carried_state_is_sequential() -> None:
    """Grams, inverses and reads are computed for all chunks at once: the Recurrence holds products
    with the state and nothing else."""
    example = Example(4)
    made = step(example, 0, 1, "channel", False, True)
    initial = input_of(example.frame.graph, "S[0]", Type(STATE.axes))
    form = MatrixForm(example.frame, [K], [STATE], [made], [initial])
    form.read(0, form.query(example.input("q", K), 0, "written"), "written")
    (recurrence,) = (node.op for node in example.frame.graph if isinstance(node.op, ir.Recurrence))
    inside = {type(node.op) for node in recurrence.body}
    assert inside <= {ir.Input, ir.Contract, ir.Elementwise}
    outside = {type(node.op) for node in example.frame.graph}
    assert {ck.Gram, ck.Inverse, ck.Sums} <= outside

"""Formulas of chunks that a page prints, evaluated as they stand, against the recurrence itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Tensor

from archc.commands.stages import layer_of
from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.maths import EQUALS, Math, Row, named, slope
from archc.derivation.page import Formula
from archc.derivation.row_names import Lettered, rows_of
from archc.derivation.walk_formulas import Walk
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.affine.form import MATRIX, NormalForm, StateForm
from archc.verify.study import Study, studies_of
from archc.verify.trial import Trial, step_graph
from tests.derivation.evaluated import Chunk, parts_of

ROWS = 5
SPECS = ["kda", "delta", "gla", "gated_delta", "linear_attention"]


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@lru_cache
def study_of(spec: str) -> tuple[Study, NormalForm]:
    study = next(studies_of(layer_of(spec, {})))
    return study, next(form for form in study.derived.forms if form.kind == MATRIX)


class Case:
    """A recurrence with numbers, one state of it, and what is known of a chunk at its start."""

    def __init__(self, spec: str, number: int = 0) -> None:
        self.study, self.form = study_of(spec)
        self.own: StateForm = self.form.forms[number]
        self.trial = Trial(self.study, ROWS)
        self.leaves = {
            name: x.clone().requires_grad_(x.is_floating_point())
            for name, x in self.trial.inputs.items()
        }
        (self.read,) = self.own.reads
        (self.part,) = self.read.parts
        states = {state.name: state for state in self.study.recurrence.states}
        self.axes = [axis.name for axis in states[self.own.state].axes]

    def chunk(self, last: str) -> Chunk:
        """The names that a page begins with."""
        chunk = Chunk(ROWS, last)
        chunk.keep(named(self.own.state, "0"), self.start())
        for name in self.study.captured:
            x = self.leaves[name]
            gate = name.startswith("log_")
            for i, value in enumerate(self.rows(name, x), 1):
                here = named(name.removeprefix("log_"), "i")
                chunk.keep(here, value.exp() if gate else value, i=i)
        return chunk

    def start(self) -> Tensor:
        """The state before the chunk."""
        return self.column(self.leaves[ck.start(self.own.state)], self.axes)

    def rows(self, name: str, x: Tensor) -> list[Tensor]:
        """A capture at each row, of the first sequence and head."""
        type = self.study.graph[self.study.captured[name]].type
        x = x.movedim(type.names.index("t"), 0)
        return [self.column(each, [n for n in type.names if n != "t"]) for each in x]

    def column(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """The vector or matrix of the first sequence and head; a vector as a column."""
        vector = {axis.name for axis in (*self.own.key, *self.own.value)}
        x = x[tuple(slice(None) if name in vector else 0 for name in names)]
        return x if x.dim() == 2 else x.reshape(-1, 1)

    def reached(self, values: Sequence[Tensor]) -> list[str]:
        """The captures and states that some values depend on."""
        some = [value.sum() for value in values if value.requires_grad]
        names = [name for name, x in self.leaves.items() if x.requires_grad]
        leaves = [self.leaves[name] for name in names]
        grads = (
            torch.autograd.grad(sum(some), leaves, retain_graph=True, allow_unused=True)
            if some
            else [None] * len(leaves)
        )
        return [name for name, grad in zip(names, grads, strict=True) if grad is not None]

    def real(self) -> tuple[list[Tensor], Tensor]:
        """The reads at every row, and the state after the last, as the recurrence has them."""
        recurrence = self.study.recurrence
        body = recurrence.body.copy()
        body.outputs["read"] = self.read.node
        graph = step_graph(self.study, replace(recurrence, body=body, chunked=None))
        node = next(node.id for node in graph if isinstance(node.op, ir.Recurrence))
        graph.outputs["read"] = graph.add(ir.Result("read"), node)
        found = self.trial.run(graph, self.leaves)
        names = graph[graph.outputs["read"]].type.names
        reads = found["read"].movedim(names.index("t"), 0)
        inner = [name for name in names if name != "t"]
        end = self.column(found[ck.final(self.own.state)], self.axes)
        return [self.column(x, inner) for x in reads], end


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def forward(formulas: ChunkFormulas, chunk: Chunk) -> None:
    """What a page says of a chunk, up to what rows write."""
    for math in formulas.products():
        chunk.define(math)
    for reader in formulas.reading:
        for writer in formulas.slots:
            chunk.define(formulas.weights(reader, writer), "j < i")
        chunk.define(formulas.with_weights(reader))
    if formulas.reading:
        for math in formulas.solution():
            chunk.define(math)


@pytest.mark.parametrize("spec", SPECS)
def test_a_chunk_is_what_its_page_says(spec: str) -> None:
    case = Case(spec)
    formulas = ChunkFormulas(rows_of(case.study, case.form, case.own))
    chunk = case.chunk(formulas.last)
    forward(formulas, chunk)
    for reader in formulas.reading:
        for i in range(1, ROWS + 1):  # the system row after row, by its inverse, and as it arose
            y, whole = (chunk.value(x, {"i": i}) for x in (formulas.y(reader, "i"), formulas.Y))
            close(whole[i - 1][:, None], y)
            chunk.define_at(formulas.unrolled(reader), i=i)
            close(chunk.value(right(formulas.what_is_written(reader)), {"i": i}), y)
            chunk.define_at(formulas.one_row(), i=i)
    ends = [formulas.end()] if formulas.reading else formulas.added()
    for math in ends:
        chunk.define(math)
    reads, end = case.real()
    close(chunk.value(formulas.state(formulas.last), {}), end)
    if formulas.reading:
        close(chunk.value(formulas.state("i"), {"i": ROWS}), end)
    for i, wanted in enumerate(reads, 1):
        close(chunk.value(formulas.read(case.part), {"i": i}), wanted)


@pytest.mark.parametrize("spec", SPECS)
def test_the_printed_walk_is_the_gradient(spec: str) -> None:
    """Gradients of letters, handed on to what the letters stand for, beside those of the loop."""
    case = Case(spec)
    rows = Lettered(case.study, case.form, case.own)
    formulas = ChunkFormulas(rows)
    walk, chunk = Walk(formulas, case.study, case.form), case.chunk(formulas.last)
    letters = {letter: maths[0] for letter, maths in rows.meanings()}
    letters[walk.query()] = rows.at("i").value(case.part.covector)
    every = range(1, ROWS + 1)
    meant = {(x, i): chunk.value(math, {"i": i}) for x, math in letters.items() for i in every}
    for (letter, i), value in meant.items():
        chunk.keep(letter, value.detach(), i=i)
    chunk.keep(formulas.state("0"), case.start().detach())
    forward(formulas, chunk)
    reads, end = case.real()
    d_end = torch.randn_like(end)
    chunk.keep(slope(walk.end), d_end)
    loss = (end * d_end).sum()
    for i, read in enumerate(reads, 1):
        chunk.keep(slope(walk.read()), torch.randn_like(read), i=i)
        loss = loss + (read * chunk.value(slope(walk.read()), {"i": i})).sum()
    for block in walk.blocks():
        if isinstance(block, Formula):
            chunk.define(block.math, "j < i" if "j < i" in block.note else "")
    gate = rows.gate("i")
    pairs = [
        (value * chunk.value(slope(letter), {"i": i})).sum()
        for (letter, i), value in meant.items() if letter != gate
    ]  # fmt: skip
    total = sum(pairs) + (case.start() * chunk.value(slope(formulas.state("0")), {})).sum()
    gates = case.reached([value for (letter, _), value in meant.items() if letter == gate])
    names = [name for name in case.reached([total]) if name not in gates]
    leaves = [case.leaves[name] for name in names]
    assert len(names) >= 3
    wanted = torch.autograd.grad(loss, leaves, retain_graph=True)
    for found, real in zip(torch.autograd.grad(total, leaves), wanted, strict=True):
        close(found, real)


def right(math: Math) -> Math:
    """The right side of an equation."""
    parts = parts_of(math)
    return Row(parts[parts.index(EQUALS) + 1 :])

"""Random recurrences: every form of one is the same recurrence, whatever the chunk."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from inspect import signature
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from torch import Tensor

import archc
from archc.compile import before_chunks, in_chunks
from archc.dims import TIME, at
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.ir.verify import verify
from archc.recurrence.chunk.chunked import derived_of
from tests.recurrence.chunk.test_chunked import agree, gradients
from tests.recurrence.forms import both, furthest
from tests.recurrence.rebuilt import rebuilt
from tests.recurrence.recurrences import recurrences

SIZES = {"H": 2, "K": 4, "V": 3, "D": 3, "N": 2, "R": 3}
NEAR = 1e-8

lengths = st.tuples(st.sampled_from([0, 1, 2, 5, 9]), st.sampled_from([1, 2, 4, 16]))
"""Tokens, and tokens in a chunk: shorter, longer, no divisor."""


parsed = lru_cache(64)(archc.parse)
"""The spec of a text; what is derived of its layer is kept with it."""

chunked = lru_cache(64)(in_chunks)


def inputs_of(made: ir.Layer, tokens: int, batch: int = 2) -> dict[str, Tensor]:
    """Random inputs of a layer."""
    generator = torch.Generator().manual_seed(0)
    sizes = {**SIZES, "batch": batch, TIME.size.name: tokens}
    return {
        op.name: torch.randn(
            [int(at(axis.size, sizes)) for axis in op.type.axes],
            generator=generator, dtype=torch.float64,
        )
        for _, op in made.inputs
    }  # fmt: skip


def near(found: Tensor, wanted: Tensor, what: object) -> None:
    """Equal numbers, up to rounding."""
    assert found.shape == wanted.shape, what
    equal = found == wanted  # a stabiliser may be -inf
    if not equal.all():
        scale = max(1.0, float(wanted[wanted.isfinite()].abs().max()))
        difference = torch.where(equal, 0.0, (found - wanted).abs()).max()
        assert float(difference) / scale < NEAR, what


def check_graphs(text: str, tokens: int, chunk: int) -> None:
    """The normal form, the chunked form and its gradient, by the oracle."""
    made = before_chunks(parsed(text).layer)
    ready = chunked(made)
    verify(ready)
    for node in made.graph:
        if isinstance(node.op, ir.Recurrence):
            found = derived_of(made.graph, node)
            if found.graph is not None:
                step, chunks = both(made.graph, node, found.graph, tokens, chunk)
                assert furthest(step, chunks) < NEAR, (tokens, chunk)
    for node in ready.graph:
        if isinstance(node.op, ir.Recurrence) and node.op.chunked is not None:
            agree(*gradients(ready.graph, node, tokens, chunk))


def sizes_for(made: ir.Layer) -> dict[str, int]:
    return {arg.name: SIZES[arg.name] for arg in made.args}


def check_module(text: str) -> None:
    """The module: its chunks, its steps, and both by turns."""
    spec = parsed(text)
    sizes = sizes_for(spec.layer)
    torch.manual_seed(0)
    module = spec.module(**sizes, dtype=torch.float64)
    given = inputs_of(spec.layer, 37)
    params = dict(module.state_dict())
    wanted = evaluate(spec.layer, given, params, sizes).outputs["o"]
    normal = evaluate(rebuilt(before_chunks(spec.layer)), given, params, sizes).outputs["o"]
    near(normal, wanted, "normal form")
    near(module(**given), wanted, "module")
    state, parts = None, []
    for first, last in ((0, 17), (17, 17), (17, 20), (20, 36), (36, 37)):
        piece = {name: x[:, first:last] for name, x in given.items()}
        out, state = module(**piece, state=state, return_state=True)
        parts.append(out)
    near(torch.cat(parts, 1), wanted, "pieces")


def check_op(text: str) -> None:
    """The function of the memory alone, for several chunks, and for packed sequences."""
    spec = parsed(text)
    given = arguments(spec, 21)
    op = spec.fused_op
    steps, last = op(**given, **by_chunks(op, None))
    for chunk in (1, 3, 21, 64):
        found, state = op(**given, **by_chunks(op, chunk))
        near(found, steps, f"op, chunk {chunk}")
        for one, other in zip(state, last, strict=True):
            near(one, other, f"state, chunk {chunk}")
    along = {op.name for _, op in spec.layer.inputs}
    if set(given) <= along:
        check_packed(op, given, along)


def by_chunks(op: Any, chunk: int | None) -> dict[str, int | None]:
    """`chunk=`, for a function that can be done in chunks."""
    return {"chunk": chunk} if "chunk" in signature(op).parameters else {}


def arguments(spec: archc.Spec, tokens: int) -> dict[str, Tensor]:
    """Random values for the arguments of the op: inputs of the layer, and its parameters."""
    torch.manual_seed(0)
    module = spec.module(**sizes_for(spec.layer), dtype=torch.float64)
    known = {**inputs_of(spec.layer, tokens), **module.state_dict()}
    names = signature(spec.fused_op).parameters
    missing = set(names) - set(known) - {"state", "chunk", "cu_seqlens", "training"}
    assert not missing, f"arguments {missing} are no values of the spec"
    return {name: known[name] for name in names if name in known}


def check_packed(op: Any, given: Mapping[str, Tensor], along: Collection[str]) -> None:
    """Sequences one after the other, some of them empty, against each by itself."""
    borders = [0, 0, 5, 21, 21]
    packed = {name: x[:1] if name in along else x for name, x in given.items()}
    for chunk in (None, 4):
        more = by_chunks(op, chunk)
        found, state = op(**packed, **more, cu_seqlens=torch.tensor(borders))
        for place, (first, end) in enumerate(pairwise(borders)):
            alone = {n: x[:, first:end] if n in along else x for n, x in packed.items()}
            wanted, states = op(**alone, **by_chunks(op, None))
            near(found[:, first:end], wanted, f"packed, chunk {chunk}, sequence {place}")
            for one, other in zip(state, states, strict=True):
                near(one[place], other[0], f"packed state, chunk {chunk}, sequence {place}")


def check(text: str, tokens: int, chunk: int) -> None:
    """Everything about one recurrence."""
    note(text)
    check_graphs(text, tokens, chunk)
    check_module(text)
    check_op(text)


QUICK = settings(
    max_examples=3, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


@QUICK
@given(recurrences, lengths)
def test_every_form_is_the_same_recurrence(text: str, length: tuple[int, int]) -> None:
    check(text, *length)


@pytest.mark.slow
@settings(QUICK, max_examples=300, derandomize=False)
@given(recurrences, lengths)
def test_every_form_of_many(text: str, length: tuple[int, int]) -> None:
    check(text, *length)

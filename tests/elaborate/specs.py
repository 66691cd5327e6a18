"""Small specs for tests of the elaboration, and their meaning on random numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from archc.diagnostics import ArchError, fail
from archc.dims import TIME, at
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

T = 6
"""Tokens of every example."""


def layer(text: str, name: str | None = None, **given: object) -> ir.Layer:
    """The layer IR of a spec given as text."""
    return elaborate(parse(Source("test.arch", text)), name, given, import_source)


def codes(text: str, **given: object) -> list[str]:
    """The codes of the errors a spec is refused with; none if it is not."""
    try:
        layer(text, **given)
    except ArchError as error:
        return [finding.code for finding in error.diagnostics]
    return []


def refusal(text: str, **given: object) -> str:
    """How the refusal of a spec reads."""
    try:
        layer(text, **given)
    except ArchError as error:
        return str(error)
    raise fail("E0000", "the spec was not refused")


def random_inputs(made: ir.Layer, sizes: dict[str, int], seed: int = 0) -> dict[str, Tensor]:
    """Random inputs of a batch of 2 with T tokens, in float64."""
    generator = torch.Generator().manual_seed(seed)
    inputs = {}
    for _, op in made.inputs:
        known = {"batch": 2, TIME.size.name: T, **sizes}
        shape = [int(at(axis.size, known)) for axis in op.type.axes]
        inputs[op.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return inputs


def outputs(
    text: str, inputs: dict[str, Tensor] | None = None, **sizes: int
) -> tuple[Tensor, dict]:
    """The only output of a spec without parameters, and the random inputs it was given."""
    made = layer(text)
    given = inputs if inputs is not None else random_inputs(made, sizes)
    found = evaluate(made, given, {}, sizes).outputs
    assert len(found) == 1
    return next(iter(found.values())), given

"""Which products are exact because a quotient would show how they were rounded."""

from __future__ import annotations

import pytest

import archc
from archc.compile import for_kernels, lowered
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm
from archc.ir.kernel import WIDE
from archc.schedule.decisions import of_buffer
from archc.schedule.partition import partition
from archc.schedule.quotients import exact_products, exact_states


def recurrence_of(spec: str) -> ir.Recurrence:
    """A spec's one recurrence, as it is cut into kernels."""
    layer = for_kernels(lowered(archc.load(spec).layer))
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    return recurrence


def form_of(spec: str) -> ChunkForm:
    found = recurrence_of(spec).chunked
    assert found is not None
    return found


@pytest.mark.parametrize(("spec", "states"), [("linear_attention", "Sz"), ("mlstm", "Cn")])
def test_states_that_are_divided_are_saved_in_float32(spec: str, states: str) -> None:
    recurrence, form = recurrence_of(spec), form_of(spec)
    saved = {form.forward.outputs[f"saved.{name}@start"] for name in states}
    assert saved <= exact_states(form.forward)
    made = partition(form.forward, "memory", recurrence.stream, recurrence.heads, {})
    widths = {buffer.name: buffer.width for buffer in made.buffers}
    assert {widths[f"saved.{name}@start"] for name in states} == {WIDE}
    why = {each.name: of_buffer(made, each)[1].rule for each in made.buffers}
    assert {why[f"saved.{name}@start"] for name in states} == {"divided"}


def test_a_quotient_is_computed_again_and_not_read() -> None:
    """What the caller has of it is rounded."""
    form = form_of("linear_attention")
    assert set(form.saved) == {"saved.S@start", "saved.z@start"}


def test_products_that_a_quotient_is_made_of_are_exact() -> None:
    """o = (q S + P v) / (q z + P 1): the gradients of P and of q, which sum over V, and make what
    the quotient would be needed for; those that sum over rows are not."""
    recurrence, form = recurrence_of("linear_attention"), form_of("linear_attention")
    exact = exact_products(form.backward)
    found = [[a.name for _, a in form.backward[id].op.out] for id in sorted(exact)]
    shapes = sorted(" ".join(names[3:]) for names in found)
    assert shapes == ["i", "i", "i K", "i j"]
    made = partition(form.backward, "memory", recurrence.stream, recurrence.heads, {})
    assert all(each.in_parts == exact for each in made.kernels if each.walk is None)
    assert not exact_products(form.forward)


@pytest.mark.parametrize("spec", ["linear_attention_simple", "gla", "kda"])
def test_without_a_quotient_nothing_is(spec: str) -> None:
    form = form_of(spec)
    assert not exact_products(form.backward) and not exact_states(form.forward)

"""States by a composition law of the spec, in chunks: the same as token by token."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import archc
from archc.compile import before_chunks, in_chunks
from archc.diagnostics import ArchError
from archc.ir import layer as ir
from archc.recurrence.chunk.loops import loops
from archc.recurrence.law.numbers import with_laws
from tests.elaborate.specs import layer
from tests.recurrence.chunk.test_chunked import gradients
from tests.recurrence.forms import both, furthest, recurrences
from tests.recurrence.law.user_laws import EVERY, LOG_SPACE, PRODUCTS

LENGTHS = ((0, 4), (1, 1), (1, 4), (7, 1), (7, 3), (7, 7), (8, 4), (7, 20))


@pytest.mark.default("log space", "rotation", "affine", "phase")
@pytest.mark.parametrize("name", EVERY)
def test_the_chunked_form_is_the_loop(name: str) -> None:
    for graph, node, derived in recurrences(with_laws(layer(EVERY[name]))):
        assert derived.graph is not None and not derived.kept
        for tokens, chunk in LENGTHS:
            by_loop, in_chunks = both(graph, node, derived.graph, tokens, chunk)
            assert furthest(by_loop, in_chunks) < 1e-10


@pytest.mark.default("log space", "rotation", "affine", "phase")
@pytest.mark.parametrize("name", EVERY)
def test_the_gradient_is_that_of_the_loop(name: str) -> None:
    made = in_chunks(before_chunks(with_laws(layer(EVERY[name]))))
    for node in [node for node in made.graph if isinstance(node.op, ir.Recurrence)]:
        for tokens, chunk in ((1, 2), (7, 3), (6, 6)):
            by_loop, derived = gradients(made.graph, node, tokens, chunk)
            assert furthest(by_loop, derived) < 1e-8


FRACTIONS = """
layer Token(D):
    input a[D]
    output p[D] = 1 / a

layer Merge(D):
    input p[D], p'[D]
    output q[D] = 1 / (1 / p + 1 / p')

layer Apply(D):
    input p[D], s[D]
    output after[D] = s + 1 / p

layer Fractions(D):
    input x[D]
    chunk: law(Token, Merge, Apply)
    a = exp(x)
    recurrence s[D]:
        s[t] = s[t-1] + a
    output s
"""


def test_what_fills_the_last_chunk_does_not_matter() -> None:
    """A token of 0 would be 1 / 0."""
    made = in_chunks(before_chunks(with_laws(layer(FRACTIONS))))
    (node,) = (node for node in made.graph if isinstance(node.op, ir.Recurrence))
    by_loop, derived = gradients(made.graph, node, 5, 4)
    assert furthest(by_loop, derived) < 1e-8
    assert all(x.isfinite().all() for x in derived.values())


def test_only_those_that_need_states_of_a_law_come_after_it() -> None:
    made = with_laws(layer(PRODUCTS))
    notes = [note for _, _, derived in recurrences(made) for note in derived.notes]
    assert notes == [
        "`c`: by the composition law `law(Token, Merge, Apply)`, proved",
        "`m`: by the composition law `law(Largest, Larger, Reached)`, proved",
    ]
    assert not loops(before_chunks(made))


COLUMNS = """
layer Token(V):
    input f[], x[V]
    output p[] = f
    output q[V] = x

layer Merge(V):
    input p[], q[V], p'[], q'[V]
    output P[] = p + p'
    output Q[V] = exp(p') * q + q'

layer Apply(V):
    input p[], q[V], z[V]
    output after[V] = exp(p) * z + q

layer Columns(V):
    input x[V], y[V], e[]
    chunk: law(Token, Merge, Apply)
    f = -softplus(e)
    recurrence z[V], w[V], u[V]:
        z[t] = exp(f) * z[t-1] + x
        w[t] = exp(f) * w[t-1] + {w}
        u[t] = tanh(w[t-1] + z[t]) + u[t-1]
    output z; output u
"""


def test_a_state_like_that_of_a_law_has_its_own_form() -> None:
    ((graph, node, derived),) = recurrences(with_laws(layer(COLUMNS.format(w="y"))))
    assert derived.graph is not None and not derived.kept
    assert furthest(*both(graph, node, derived.graph, 7, 3)) < 1e-10


def test_a_law_of_one_of_two_states_that_need_one_another_is_no_use() -> None:
    text = COLUMNS.format(w="z[t-1]").replace("input f[], x[V]", "input f[], x[V], w[V]")
    text = text.replace("output q[V] = x", "output q[V] = x + 0 * w").replace(
        "+ x\n", "+ x + 0 * w\n"
    )
    with pytest.raises(ArchError, match="depends on the state"):
        layer(text)
    before = text.replace("f[], x[V], w[V]", "f[], x[V], old[V]").replace("* w\n", "* old\n")
    before = before.replace("        z[t] =", "        old = w[t-1]\n        z[t] =")
    ((graph, node, derived),) = recurrences(with_laws(layer(before)))
    assert [kept.states for kept in derived.kept] == [("w", "z")]
    assert derived.graph is not None
    assert furthest(*both(graph, node, derived.graph, 7, 3)) < 1e-10


def test_a_summary_that_reads_a_state_after_its_own_is_no_use() -> None:
    text = COLUMNS.format(w="z[t]").replace("input f[], x[V]", "input f[], x[V], old[V]")
    text = text.replace("output q[V] = x", "output q[V] = x + 0 * old")
    text = text.replace("        z[t] =", "        old = w[t-1]\n        z[t] =")
    ((graph, node, derived),) = recurrences(with_laws(layer(text)))
    assert [kept.states for kept in derived.kept] == [("z",)]
    assert derived.graph is not None
    assert furthest(*both(graph, node, derived.graph, 7, 3)) < 1e-10


def test_a_law_is_used_in_the_file_and_for_packed_sequences() -> None:
    spec = archc.parse(LOG_SPACE)
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(1, 40, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    bounds = [0, 0, 17, 40, 40]
    found, state = spec.op(a, b, cu_seqlens=torch.tensor(bounds), chunk=8)
    for place, (low, high) in enumerate(pairwise(bounds)):
        own, end = spec.op(a[:, low:high], b[:, low:high], chunk=None)
        assert torch.allclose(found[:, low:high], own, 1e-10, 1e-10)
        assert torch.allclose(state.m[place], end.m[0], 1e-10, 1e-10)

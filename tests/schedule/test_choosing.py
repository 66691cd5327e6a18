"""What readers choose by a score of pairs is chosen in the attend that makes it."""

from __future__ import annotations

import pytest

import archc
from archc.compile import elaborated, lowered, text_of
from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.rewrite import rewrite
from archc.schedule.choosing import choices_within
from archc.source import Source
from tests.attention.files import GROUPED
from tests.schedule.same import check_same

INDEXED = """
layer Indexed(d, H, K, n):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, K]; W_i[d, H]; W_j[d, H]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    i = x @ W_i
    j = x @ W_j
    index s <= t:
        I = sum[H](i[t] * j[s])
    {between}
    attend {range} in chosen over H:
        o = softmax(q[t].T @ k[s]) @ v[s]
    output y[K] = sum[H](o){more}
"""


def indexed(between: str, range: str = "s <= t", more: str = "") -> ir.Layer:
    """A layer that reads what an index has chosen."""
    text = INDEXED.format(between=between, range=range, more=more)
    return elaborated(Source("indexed.arch", text))


def moved(layer: ir.Layer) -> ir.Layer:
    """A layer with choices where they are scored."""
    return rewrite(layer, [choices_within])


def choosing(layer: ir.Layer) -> list[ir.Attend]:
    """The attends of a layer that make choices alone."""
    return [n.op for n in layer.graph if isinstance(n.op, ir.Attend) and chooses(n.op)]


@pytest.mark.parametrize("spec", ["dsa", "nsa"])
def test_choices_of_specs_are_made_where_they_are_scored(spec: str):
    layer = lowered(archc.load(spec).layer)
    after = moved(layer)
    assert not choosing(layer) and len(choosing(after)) == 1
    assert not any(isinstance(node.op, ir.Top) for node in after.graph)
    check_same(layer, after)


@pytest.mark.parametrize(
    "between",
    ["chosen = top(n, I)", "chosen = top(n, tanh(I) + 1)", "chosen = top(n, I * sum[d](x))"],
)
def test_what_is_of_the_reader_enters_with_the_choice(between: str):
    layer = indexed(between)
    after = moved(layer)
    (found,) = choosing(after)
    assert {role for name, role in found.captures if name not in ("i", "j")} <= {"reader"}
    check_same(layer, after)


def test_a_layer_without_choices_stays_as_it_is():
    layer = lowered(archc.load("mla").layer)
    assert moved(layer) is layer


def test_how_many_tokens_are_read_is_not_read_off_a_list():
    """A list is as long as what is chosen."""
    text = text_of(archc.parse(GROUPED).layer, "triton")
    folded = text.partition("def grouped_memory_o_fold(")[2].partition("return")[0]
    assert "S, G = k.shape[1:3]" in folded


def test_lists_are_made_of_what_is_read_by_attends_alone():
    """A score that is not -inf after the reader could be chosen there: truth values at once."""
    assert "chosen_by_readers(" in text_of(indexed("chosen = top(n, I)"), "triton")
    text = text_of(indexed("chosen = top(n, exp(I))", "all s"), "triton")
    assert "top_of(" in text and "chosen_by_readers(" not in text

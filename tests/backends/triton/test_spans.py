"""Recurrences without a chunked form whose states are matrices learn from spans of tokens: the same
gradients, and the states before every token are never there at once."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from archc.backends.triton.step_pieces import span_of

from archc.schedule.steps import span
from tests.backends.triton.processes import printed

THERE_AND_BACK = "7 7 7 2 2 7 7 7"
"""Tokens of spans, of 23: forward, and each again from the last on."""


def test_a_span_is_about_the_square_root_of_all_tokens() -> None:
    """Where the states before each would take more than a gigabyte; in files as in plans."""
    assert span_of(8192, 2**15) == 8192
    assert span_of(8192, 2**15 + 1) == 91
    assert span_of(20, 2**30) == 16
    sizes = [(8192, 2**15), (8192, 2**15 + 1), (20, 2**30), (1, 1), (100_000, 2**20)]
    assert [span_of(*each) for each in sizes] == [span(*each) for each in sizes]


def test_gradients_are_the_same_to_the_bit() -> None:
    assert printed("spans", "plain") == [f"spans: {THERE_AND_BACK}", "same: True"]


def test_packed_sequences_go_in_spans_too() -> None:
    """Each by itself."""
    assert printed("spans", "packed") == ["spans: 7 4 7 5 5 7 4 7", "same: True"]


def test_what_all_tokens_share_learns_from_every_span() -> None:
    *errors, spans = printed("spans", "shared")
    assert spans == f"spans: {THERE_AND_BACK}" and any("d gain: True" in each for each in errors)
    assert not [each for each in errors if not each.endswith("True")]

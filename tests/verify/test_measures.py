"""Forms that `archc verify` measures: what each is given, and sizes that are tried for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import archc
from archc.diagnostics import ArchError
from archc.verify import measures
from archc.verify.measures import Instance, instance_of

SUMMED = archc.parse("""
layer Summed(d, K):
    input x[d]
    param W[d, K]
    require K > 2
    k = x @ W
    recurrence S[K]:
        S[t] = S[t-1] + k
    output S
""").layer


def test_pieces_that_a_layer_is_continued_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt, no token at all and the rest; and one token at a time."""
    given: list[list[int]] = []

    def noted(instance: Instance, counts: Sequence[int]) -> float:
        given.append([*counts])
        return 0.0

    monkeypatch.setattr(measures, "continued", noted)
    for name, measure, _ in measures.measures(instance_of(SUMMED, {}, 6)):
        if name in ("prompt, then the rest", "one token at a time"):
            measure()
    assert given == [[4, 0, 2], [1] * 6]


def test_a_size_that_is_given_is_refused_by_what_it_breaks() -> None:
    """And not as one that no others go with; one that is missing is drawn."""
    with pytest.raises(ArchError) as error:
        instance_of(SUMMED, {"K": 2}, 6)
    assert {each.code for each in error.value.diagnostics} == {"E0504"}
    assert instance_of(SUMMED, {"K": 5}, 6).sizes["K"] == 5

"""What is chosen from times, and what cannot be."""

from __future__ import annotations

from archc.tune.candidates import GAIN, SHIPPED, Candidate, chosen, every

WALK = ("walk", "bfloat16 64 128 2^9")
TIMES = {SHIPPED: [1.0, 1.1, 5.0], "4:1": [0.5, 0.5, 0.5], "8:2": [0.7, 0.7, 9.0]}


def test_the_fastest_that_is_right_is_chosen() -> None:
    right = {SHIPPED, "4:1", "8:2"}
    assert chosen({WALK: TIMES}, right) == {WALK: Candidate(4, 1)}
    assert chosen({WALK: TIMES}, right - {"4:1"}) == {WALK: Candidate(8, 2)}


def test_what_disagrees_with_the_oracle_cannot_be_chosen() -> None:
    assert chosen({WALK: TIMES}, {SHIPPED}) == {}
    assert chosen({WALK: TIMES}, ()) == {}


def test_shipped_settings_stay_unless_others_are_clearly_faster() -> None:
    near = {SHIPPED: [1.0, 1.0], "4:1": [0.98, 0.98]}
    assert chosen({WALK: near}, {SHIPPED, "4:1"}) == {}
    assert chosen({WALK: {SHIPPED: [2.0], "4:1": [(1 - GAIN) * 2.0]}}, {SHIPPED, "4:1"}) == {}
    assert chosen({WALK: {"4:1": [0.1]}}, {"4:1"}) == {}  # nothing to compare with


def test_names_of_candidates_are_read_again() -> None:
    assert len(every()) == 16 and len({each.name for each in every()}) == 16
    assert all(Candidate.of(each.name) == each for each in every())

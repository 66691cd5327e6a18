"""Drawn programs: every backend writes each, and every form computes what it means."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.programs.attempt import Outcome, attempt
from tests.programs.programs import draw
from tests.programs.reduce import reduced


def fail(outcome: Outcome, numbers: bool) -> None:
    """Fail with the program made small."""

    def same(program: object) -> bool:
        found = attempt(program, numbers, seconds=20)
        return found.status == "failed" and found.sort == outcome.sort

    small = reduced(draw(outcome.seed), same, tries=100)
    text, why = small.text(), attempt(small, numbers).why
    pytest.fail(f"seed {outcome.seed}, {outcome.gate}: {outcome.why}\n\nin small: {why}\n{text}")


def run(seeds: range, numbers: bool) -> Counter[str]:
    """What became of the programs of some seeds; fails for one that did not do as it should."""
    found = Counter[str]()
    for seed in seeds:
        outcome = attempt(draw(seed), numbers)
        if outcome.status == "failed":
            fail(outcome, numbers)
        found[outcome.numbers or outcome.status] += 1
    return found


def test_some_are_written() -> None:
    found = run(range(12), numbers=False)
    assert found["ok"] >= 11, "programs are meant to be legal"


def test_some_compute_what_they_mean() -> None:
    found = run(range(1000, 1006), numbers=True)
    assert found["right"] >= 5, "programs are meant to have numbers"


def test_the_same_seed_is_the_same_program() -> None:
    assert [draw(seed).text() for seed in range(40)] == [draw(seed).text() for seed in range(40)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_compute_what_they_mean(part: int) -> None:
    run(range(2000 + 50 * part, 2050 + 50 * part), numbers=True)

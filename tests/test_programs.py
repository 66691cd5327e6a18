"""Drawn programs: every backend writes each, and every form computes what it means."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.programs.attempt import Outcome, attempt
from tests.programs.programs import draw
from tests.programs.record import Record, remaining
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
    found = run(range(3), numbers=False)
    assert found["ok"] >= 2, "programs are meant to be legal"


def test_some_compute_what_they_mean() -> None:
    found = run(range(1000, 1002), numbers=True)
    assert found["right"] >= 1, "programs are meant to have numbers"


def test_the_same_seed_is_the_same_program() -> None:
    assert [draw(seed).text() for seed in range(40)] == [draw(seed).text() for seed in range(40)]


def test_a_record_is_added_to(tmp_path: Path) -> None:
    """What it has is not done again, failures that pass later are told, and files become one."""
    texts, numbers = tmp_path / "texts.json", tmp_path / "numbers.json"
    done = [Outcome(5), Outcome(6, "failed", "eager", "KeyError: 'x'"), Outcome(9, numbers="right")]
    Record(texts).add("texts", done[:2], 1.5)
    Record(texts).add("texts", done[2:], 0.5)
    Record(numbers).add("numbers", done, 1.0)
    (run,) = Record(texts).runs
    assert run["seeds"] == [[5, 6], [9, 9]] and run["outcomes"] == {"ok": 2, "failed": 1}
    assert [*remaining(range(4, 11), Record(texts).seeds("texts"))] == [4, 7, 8, 10]
    Record(texts).passed("texts", [6])
    assert Record(texts).failed("texts") == [] and Record(numbers).failed("numbers") == [6]
    both = Record(None)
    both.take(Record(texts))
    both.take(Record(numbers))
    assert both.totals()["texts"]["programs"] == both.totals()["numbers"]["programs"] == 3
    with pytest.raises(SystemExit, match="3 programs, 5 first, are there already"):
        both.take(Record(texts))


@pytest.mark.slow
def test_more_are_written() -> None:
    run(range(3, 60), numbers=False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_compute_what_they_mean(part: int) -> None:
    run(range(1002 + 50 * part, 1052 + 50 * part), numbers=True)

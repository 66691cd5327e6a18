"""Mutants are drawn from every room, mean something else, and are asked of the nearest tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import Queue, Reach, Results, draw, rooms
from tests.mutation import Mutant, is_another, mutants_of, mutated

CODE = '''"""Not 1 < 2 here."""

from functools import lru_cache


@lru_cache(maxsize=8)
def most(x: list[int], low: int = 3) -> int:
    """At least 0."""
    found = [v for v in x if v > low]
    if not found and low == 3:
        raise ValueError("fewer than 1")
    assert low < 9
    found = sorted(found)
    return max(found[0], low) + sum(found, -1)
'''

TEXT = """def line(x: str) -> str:
    note = "this is 1 line of words"
    return f"tl.where({x[0]} < end, {x}, 0.0)"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two rooms with a file each."""
    for file, text in (("archc/most.py", CODE), ("backends/deep/line.py", TEXT)):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def found(tree: Path, file: str) -> set[tuple[int, str]]:
    """Lines, and what they become."""
    return {(line, each.after.strip()) for line, m in mutants_of(tree, file).items() for each in m}


def test_mistakes_in_code(tree: Path) -> None:
    """None in what a reader is told, in types, in decorators, in assertions, and of `max` alone."""
    assert found(tree, "archc/most.py") == {
        (7, "def most(x: list[int], low: int = 4) -> int:"),
        (9, "found = [v for v in x if True]"),
        (9, "found = [v for v in x if v >= low]"),
        (10, "if (found) and low == 3:"),
        (10, "if not found or low == 3:"),
        (10, "if not found:"),
        (10, "if not found and low != 3:"),
        (10, "if not found and low == 4:"),
        (10, "if not (not found and low == 3):"),
        (13, "pass"),
        (14, "return max(found[0], low) - sum(found, -1)"),
        (14, "return max(found[1], low) + sum(found, -1)"),
        (14, "return max(found[0], low) + sum(found, 0)"),
        (14, "return max(found[0], low) + sum(-1, found)"),
    }


def test_mistakes_in_text_of_generated_files(tree: Path) -> None:
    """None in prose, and none in what is filled in."""
    assert found(tree, "backends/deep/line.py") == {
        (3, 'return f"tl.where({x[0]} <= end, {x}, 0.0)"'),
        (3, 'return f"tl.where({x[0]} < end, {x}, 1.0)"'),
    }


def test_a_draw_is_settled_by_its_seed(tree: Path) -> None:
    """Every mutant is another program, in one line, of a line of its own."""
    made = draw(tree, 7, 1)
    assert made == draw(tree, 7, 1) != draw(tree, 7, 2)
    assert [*rooms(tree)] == ["archc", "backends/deep"]
    assert len({(each.file, each.line) for each in made}) == len(made)
    for each in made:
        text = (tree / each.file).read_text()
        pairs = zip(text.split("\n"), mutated(text, each).split("\n"), strict=True)
        assert is_another(text, each) and sum(old != new for old, new in pairs) == 1


MUTANT = Mutant("archc/algebra/fold.py", 3, "another flag", "x = True", "x = False")


def test_near_and_quick_tests_come_first() -> None:
    """Those that reach the line, and pass, before those beside them; parts are no longer than is
    meant."""
    seconds = {"tests/ir/test_a.py::a": 1.0, "tests/algebra/test_fold.py::b": 20.0,
               "tests/algebra/test_c.py::c": 9.0, "tests/ir/test_d.py::d": 70.0,
               "tests/algebra/test_fold.py::beside": 1.0, "tests/ir/test_e.py::f": 1.0}  # fmt: skip
    lines = dict.fromkeys([*[*seconds][:4], "tests/ir/test_failing.py::e"], 1 << 3)
    lines["tests/ir/test_e.py::f"] = 1 << 4
    reach = Reach(seconds, {MUTANT.file: lines})
    b, c, a, d = [f"tests/{name}" for name in (
        "algebra/test_fold.py::b", "algebra/test_c.py::c", "ir/test_a.py::a", "ir/test_d.py::d",
    )]  # fmt: skip
    beside = "tests/algebra/test_fold.py::beside"
    assert reach.tests_for(MUTANT) == [b, c, a, d, beside]
    assert reach.slices(MUTANT) == [[b], [c, a], [d], [beside]]


def test_what_is_known_stays_known(tmp_path: Path) -> None:
    """Slices that have passed are not run again; a mutant lives when all have."""
    reach = Reach({"x": 20.0, "y": 20.0}, {MUTANT.file: {"x": 8, "y": 8}})
    queue = Queue([MUTANT], reach, Results(tmp_path / "found.jsonl"))
    assert queue.next() == (MUTANT, 0, ["x"])
    queue.passed(MUTANT, 0, 1.0)
    again = Queue([MUTANT], reach, Results(tmp_path / "found.jsonl"))
    assert again.next() == (MUTANT, 1, ["y"]) and again.next() is None
    again.passed(MUTANT, 1, 1.0)
    known = Results(tmp_path / "found.jsonl")
    assert known.known[MUTANT.id]["outcome"] == "lives"
    assert Queue([MUTANT], reach, known).next() is None
    missed = Queue([MUTANT], Reach({}, {}), Results(tmp_path / "other.jsonl"))
    assert missed.next() is None and missed.results.known[MUTANT.id]["outcome"] == "unreached"

"""Mutants are drawn from every room, mean something else, and are asked of the nearest tests."""

from __future__ import annotations

import json
import shutil
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from tests import mutants, reach
from tests.forked import Ended, Job, run_all
from tests.judged import EQUIVALENT, LEFT
from tests.mutants import Asking, Reach, Record, draw, rooms
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


# --- which tests are asked, and what is known then -----------------------------------------------

MUTANT = Mutant("archc/algebra/scales.py", 3, "another flag", "x = True", "x = False")


def map_of(tmp_path: Path, seconds: dict[str, float], lines: dict[str, int]) -> Reach:
    tests = {test: ("passed", spent) for test, spent in seconds.items()}
    found = Reach(tmp_path / "reach.json", tests=tests)
    found.files |= {file: mutants.digest(file) for file in found.missing(["tests"])}
    found.lines[MUTANT.file] = lines
    found.files[MUTANT.file] = mutants.digest(MUTANT.file)
    return found


def test_near_and_quick_tests_come_first(tmp_path: Path) -> None:
    """Those that reach the line, and pass, before those beside them; no more than is meant."""
    a, b, c = (
        "tests/ir/test_a.py::a",
        "tests/algebra/test_scales.py::b",
        "tests/algebra/test_c.py::c",
    )
    beside = "tests/algebra/test_scales.py::beside"
    seconds = {a: 1.0, b: 12.0, c: 9.0, beside: 1.0, "tests/ir/test_e.py::e": 1.0}
    lines = dict.fromkeys([a, b, c, "tests/ir/test_failing.py::d"], 1 << 3)
    found = map_of(tmp_path, seconds, {**lines, "tests/ir/test_e.py::e": 1 << 4})
    assert found.tests_for(MUTANT) == ([b, c, a], [beside])
    assert found.parts(MUTANT, 60) == [[b], [c, a, beside]]
    assert found.parts(MUTANT, 22) == [[b], [c, a]]
    found.files[MUTANT.file] = "changed since"
    assert "tests/ir/test_e.py::e" in found.tests_for(MUTANT)[0]


def test_a_map_is_kept(tmp_path: Path) -> None:
    """Lines of a file that has changed meanwhile count as reached by all that reached any."""
    found = map_of(tmp_path, {}, {})
    job = Job(["tests/test_mutants.py"], 1.0, lines=True)
    ended = Ended(job, 1.0, 0, {"one": ("passed", 0.5, "")}, {MUTANT.file: {"one": 8}})
    found.add(ended)
    found.write()
    again = Reach(tmp_path / "reach.json")
    assert again.tests_for(MUTANT) == (["one"], []) and again.seconds("one") == 0.5
    assert not again.missing(["tests/test_mutants.py", "tests/test_house.py"])
    del again.files["tests/test_house.py"]
    assert again.missing(["tests"]) == ["tests/test_house.py"]
    again.files[MUTANT.file] = "changed since"
    again.add(Ended(job, 1.0, 0, {"two": ("passed", 0.5, "")}, {MUTANT.file: {"two": 16}}))
    assert again.tests_for(MUTANT) == (["one"], [])


def test_a_test_that_fails_by_itself_says_nothing(tmp_path: Path) -> None:
    """What kills a mutant passes without it."""
    found = map_of(tmp_path, {"x": 1.0}, {"x": 8})
    record = Record(tmp_path / "mutants.json", 1, 1)
    asking = Asking([MUTANT], found, record, 60)
    job = asking.jobs.popleft()
    asking.take(Ended(job, 1.0, 1, {"x": ("failed", 1.0, "assert 1 == 2")}))
    assert record.outcome(MUTANT) == "waiting"
    control = asking.jobs.popleft()
    assert (control.mutant, [*control.tests]) == (None, ["x"])
    asking.take(Ended(control, 1.0, 0, {"x": ("passed", 1.0, "")}))
    assert record.outcome(MUTANT) == "killed"
    known = Record(tmp_path / "mutants.json", 1, 1).entries[MUTANT.id]
    assert (known["test"], known["why"]) == ("x", "assert 1 == 2")
    asking.sound["x"] = False
    other = Mutant(MUTANT.file, 3, "another flag", "x = True", "x = None")
    asked = Job(["x", "y"], 1.0, other)
    asking.take(Ended(asked, 1.0, 1, {"x": ("failed", 1.0, "assert 1 == 2")}))
    assert record.outcome(other) == "waiting" and asking.jobs[0] == replace(asked, without=["x"])


def test_a_mutant_lives_when_all_have_passed(tmp_path: Path) -> None:
    found = map_of(tmp_path, {"x": 20.0, "y": 20.0, "z": 90.0}, {"x": 8, "y": 8})
    for most, outcome in ((60, "lives"), (30, "open")):
        record = Record(tmp_path / f"{most}.json", 1, 1)
        asking = Asking([MUTANT], found, record, most)
        while asking.jobs:
            job = asking.jobs.popleft()
            asking.take(Ended(job, 1.0, 0, dict.fromkeys(job.tests, ("passed", 1.0, ""))))
        assert record.outcome(MUTANT) == outcome
    record = Record(tmp_path / "none.json", 1, 1)
    (near,) = Asking([MUTANT], map_of(tmp_path, {}, {}), record, 60).jobs
    assert "tests/algebra/test_scales.py" in near.tests  # what Triton compiles is in no map
    far = Mutant("archc/nowhere.py", 3, "another flag", "x = True", "x = False")
    Asking([far], map_of(tmp_path, {}, {}), record, 60)
    assert record.outcome(far) == "unreached"


def test_files_that_are_not_mapped_are_asked_second(tmp_path: Path) -> None:
    """Those that name the module, or are near; what they take is not known, so that it is no sign
    of a mistake."""
    found = map_of(tmp_path, {"t::x": 10.0, "t::y": 30.0}, {"t::x": 8, "t::y": 8})
    for file in (
        "tests/algebra/test_scales.py",
        "tests/algebra/test_cut.py",
        "tests/test_cli.py",
    ):
        del found.files[file]
    record = Record(tmp_path / "mutants.json", 1, 1)
    asking = Asking([MUTANT], found, record, 60)
    mapped = asking.jobs.popleft()
    assert [*mapped.tests] == ["t::x"] and not asking.jobs
    asking.take(Ended(mapped, 1.0, 0, {"t::x": ("passed", 1.0, "")}))
    near = asking.jobs.popleft()
    assert [*near.tests] == ["tests/algebra/test_scales.py", "tests/algebra/test_cut.py"]
    assert not asking.jobs
    asking.take(Ended(near, 1.0, None, {"y": ("passed", 1.0, "")}))
    (mapped,) = asking.jobs
    assert [*mapped.tests] == ["t::y"]
    asking.take(Ended(mapped, 1.0, 0, {"t::y": ("passed", 1.0, "")}))
    assert record.outcome(MUTANT) == "open"  # more may reach it
    asking.take(Ended(mapped, 1.0, None, {}))
    assert record.outcome(MUTANT) == "timeout"


def test_a_record_finds_its_lines_again(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they have moved to; those that are no more are gone, and others are drawn for them."""
    monkeypatch.setattr(mutants, "ROOT", tree)
    record = Record(tree / "mutants.json", 1, 7)
    record.draw()
    record.write()
    drawn = {each.id: each for each in record.mutants()}
    for file, text in (("archc/most.py", CODE), ("backends/deep/line.py", "x = None\n")):
        (tree / file).write_text(f"import math\n{text}")
    again = Record(tree / "mutants.json", 1, 7)
    again.draw()
    kept = {each.id: each for each in again.mutants()}
    assert kept and all(each.line == drawn[id].line + 1 for id, each in kept.items())
    gone = [entry["file"] for entry in again.entries.values() if entry["outcome"] == "gone"]
    assert {*gone} == {"backends/deep/line.py"} and len(kept) + len(gone) == len(drawn)
    (tree / "backends" / "deep" / "line.py").write_text(TEXT.replace("end", "stop"))
    more = {each.id for each in again.mutants()} - {*kept}
    assert not more
    again.draw()
    more = {each.id: each for each in again.mutants() if each.id not in kept}
    assert {each.file for each in more.values()} == {"backends/deep/line.py"}
    again.draw()
    assert {each.id for each in again.mutants()} == {*kept, *more}
    with pytest.raises(SystemExit, match="another seed"):
        Record(tree / "mutants.json", 2, 7)


@pytest.mark.parametrize(
    "there, found",
    [
        ({"archc/deep/most.py": CODE}, "archc/deep/most.py"),
        ({"archc/deep/least.py": CODE}, "archc/deep/least.py"),
        ({"archc/most.py": "x = 1\n", "archc/found.py": CODE}, "archc/found.py"),
        ({"archc/most.py": "x = 1\n", "archc/found.py": CODE.replace("most(", "least(")}, None),
        ({"archc/one.py": CODE, "archc/other.py": CODE}, None),
        ({"archc/one.py": CODE, "archc/deep/most.py": CODE}, "archc/deep/most.py"),
    ],
)
def test_a_line_is_found_in_the_file_it_has_moved_to(
    tree: Path, monkeypatch: pytest.MonkeyPatch, there: dict[str, str], found: str | None
) -> None:
    """By the name of its file or function, where nothing else reads so; and it keeps its id."""
    monkeypatch.setattr(mutants, "ROOT", tree)
    mutant = mutants_of(tree, "archc/most.py")[13][0]
    (tree / "archc" / "most.py").unlink()
    for file, text in there.items():
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text(text)
    now = mutants.moved(mutant, "most", mutants.compiler())
    assert (now and now.file) == found
    assert now is None or (now.id, now.before) == (mutant.id, mutant.before)
    record = Record(tree / "mutants.json", 1, 1)
    record.add(now or mutant, "killed")
    record.write()
    (kept,) = Record(tree / "mutants.json", 1, 1).entries.values()
    assert (kept["file"], kept.get("moved to")) == ("archc/most.py", found)


def test_the_record_of_the_project_is_read() -> None:
    """Those that are judged are in it."""
    path = reach.ROOT / "benchmarks" / "results" / "mutants.json"
    record = Record(path, 14, 200)
    assert {*EQUIVALENT, *LEFT} <= {*record.entries}
    together = json.loads(path.read_text())["rooms"]["together"]
    assert together["drawn"] - together.get("gone", 0) == 200


# --- runs -----------------------------------------------------------------------------------------


RUNS = """import pytest

from archc.most import most


def test_of_one():
    assert most((4,)) == 7


def test_of_none():
    with pytest.raises(ValueError):
        most((3,))


def test_of_two():
    assert most((4, 5)) == 12
"""


TESTS = [f"tests/test_runs.py::test_of_{name}" for name in ("one", "none", "two")]


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Path:
    """A tree with tests of its own, beside the folder of what they write."""
    copy = tmp_path / "0" / "tree"
    for folder in ("archc", "backends"):
        shutil.copytree(tree / folder, copy / folder)
    (copy / "tests").mkdir()
    (copy.parent / "tmp").mkdir()
    shutil.copy(reach.ROOT / "tests" / "reach.py", copy / "tests")
    (copy / "tests" / "test_runs.py").write_text(RUNS)
    (copy / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    return copy


def ended(copy: Path, job: Job) -> Ended:
    found: list[Ended] = []
    run_all(deque([job]), [copy], time.monotonic() + 60, found.append)
    return found[0]


@pytest.mark.slow
def test_runs_of_forked_processes(copy: Path) -> None:
    """A mutant is there for its own run alone, which ends with the first test that fails. A test
    that never ends has not passed, though what it needs was there."""
    one, none, two = TESTS
    file = "archc/most.py"
    less = Mutant(file, 10, "and for or", "    if not found and low == 3:", "    if found:")
    run = ended(copy, Job([one, none, two], 60, less))
    assert run.status and {test: out for test, (out, *_) in run.tests.items()} == {one: "failed"}
    endless = Mutant(file, 12, "endless", "    assert low < 9", "    while True: pass")
    run = ended(copy, Job([none, two], 2 * run.seconds + 1, endless))
    assert run.status is None, run.said
    assert {test: out for test, (out, *_) in run.tests.items()} == {none: "passed"}
    assert (copy / file).read_text() == CODE


def test_lines_that_tests_reach(copy: Path) -> None:
    """Blocks begin anew after what may have left the function."""
    run = ended(copy, Job(["tests/test_runs.py"], 60, lines=True))
    lines = run.lines["archc/most.py"]

    assert run.status == 0 and {out for out, *_ in run.tests.values()} == {"passed"}, run.said
    one, none, two = (
        {line for line in range(1, 15) if lines[test] >> line & 1} for test in TESTS
    )  # fmt: skip
    assert one == two == {7, 8, 9, 10, 12, 13, 14}
    assert none == {7, 8, 9, 10, 11}

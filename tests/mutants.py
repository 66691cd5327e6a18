"""Whether the default tests notice mistakes: mutants of one line, drawn from every room of the
compiler, and for each the tests that reach that line until one fails.

    PYTHONPATH=. python -m tests.mutants -o out/mutants.jsonl --workers 32 --seconds 480
    PYTHONPATH=. python -m tests.mutants -o out/mutants.jsonl --workers 32 --seconds 480   # goes on
    PYTHONPATH=. python -m tests.mutants -o out/mutants.jsonl --table                      # so far
    PYTHONPATH=. python -m tests.mutants --draw                                  # lists the mutants
    PYTHONPATH=. python -m tests.mutants -o out/mine.jsonl --only archc/algebra/fold.py:76

from the root of a checkout, whether installed or not: what archc needs, and pytest and hypothesis.
The draw is settled by `--seed`, `--count` and the tree. First a map of which test reaches which
line is made by one run of all default tests (`tests.reach`; kept beside the results as
`reach.json`, made again when a file has changed): only tests that pass there are asked later. Then
each worker makes one mutant after another in a copy of the tree of its own, and runs slices of
tests, nearest and quickest first; of mutants that outlive their first slice the next ones come
after the first slices of all others. Each slice has a time limit; a mutant that exceeds it is
noticed, and counted apart.

Results are lines of JSON, written as they come. A mutant is "killed" (by `test`), "timeout",
"lives" (every test that reaches it passes), "unreached" (there is none), or still "open" (some
slices have passed). `EQUIVALENT` has those that mean the same, and why; they are not counted.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.mutation import Mutant, is_another, mutants_of, mutated

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("archc", "backends", "specs", "tests")
FLOOR = 5
"""How many mutants a room has at least."""

EQUIVALENT: Mapping[str, str] = {}
"""Mutants that mean the same, by id, and why."""

FIRST, NEXT = 25.0, 60.0
"""Seconds of tests in the first slice of a mutant, and in others."""

START, SLOWER = 40.0, 4.0
"""The time limit of a slice: seconds for its start, and times what its tests took for the map."""

MEMORY = 48 << 30
"""Bytes of addresses that a run may have."""

SITE = "from tests import reach\nreach.start()\n"
"""What a process does that a test starts while the map is made."""


# --- the draw -----------------------------------------------------------------------------------


def rooms(root: Path) -> dict[str, list[str]]:
    """The files of the compiler by folder."""
    found = defaultdict(list)
    for folder in ("archc", "backends"):
        for path in sorted((root / folder).rglob("*.py")):
            file = path.relative_to(root)
            if not {"backends", "specs"} & {*file.parts[1:-1]}:  # links to other rooms
                found[str(file.parent)].append(str(file))
    return dict(sorted(found.items()))


def draw(root: Path, count: int, seed: int) -> list[Mutant]:
    """So many mutants, of each room by how many of its lines can have one, and of each line one."""
    lines = {
        room: [each for file in files for each in sorted(mutants_of(root, file).items())]
        for room, files in rooms(root).items()
    }
    total = sum(map(len, lines.values()))
    shares = {
        room: min(max(FLOOR, round(count * len(each) / total)), len(each))
        for room, each in lines.items()
    }
    while sum(shares.values()) != count:
        largest = max(shares, key=lambda room: (shares[room], room))
        shares[largest] += 1 if sum(shares.values()) < count else -1
    return [each for room in lines for each in drawn(root, lines[room], shares[room], room, seed)]


def drawn(
    root: Path, lines: list[tuple[int, list[Mutant]]], count: int, room: str, seed: int
) -> Iterator[Mutant]:
    """The mutants of a room: as many of one kind as of another, and one of a line. Each has a place
    in the draw of its own, so that changes elsewhere leave it there."""

    def place(mutant: Mutant) -> str:
        return sha256(f"{seed} {mutant.id}".encode()).hexdigest()

    kinds: dict[str, list[Mutant]] = defaultdict(list)
    for _, choices in lines:
        for each in choices:
            kinds[each.kind.partition(":")[0]].append(each)
    for each in kinds.values():
        each.sort(key=place)
    order = sorted(kinds, key=lambda kind: sha256(f"{seed} {room} {kind}".encode()).digest())
    taken = set[object]()
    while count and any(kinds.values()):
        for kind in order:
            mutant = kinds[kind].pop() if count and kinds[kind] else None
            if mutant is None or {(mutant.file, mutant.line), mutant.id} & (taken | {*EQUIVALENT}):
                continue
            if is_another((root / mutant.file).read_text("utf-8"), mutant):
                taken |= {(mutant.file, mutant.line), mutant.id}
                yield mutant
                count -= 1


def named(root: Path, places: Iterable[str]) -> list[Mutant]:
    """Every mutant of some lines, `file:line`."""
    found = []
    for place in places:
        file, _, line = place.rpartition(":")
        text = (root / file).read_text("utf-8")
        choices = mutants_of(root, file).get(int(line), [])
        found += [mutant for mutant in choices if is_another(text, mutant)]
    return found


# --- copies of the tree, and runs in them -------------------------------------------------------


def lay_out(copy: Path) -> None:
    """The tree as it is installed: packages in their places, and what tells the version."""
    ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name in (*FOLDERS, "docs", "examples", "benchmarks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=ignored, symlinks=True)
    for path in [*ROOT.glob("*.toml"), *ROOT.glob("*.md"), ROOT / "Makefile"]:
        shutil.copy2(path, copy)
    for name in ("backends", "specs"):
        link = copy / "archc" / name
        if link.is_symlink():
            link.unlink()
        shutil.rmtree(link, ignore_errors=True)
        link.symlink_to(Path("..") / name)
    info = copy / "archc-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: archc\nVersion: 0.1.0\n")
    (copy / "site").mkdir()
    (copy / "site" / "sitecustomize.py").write_text(SITE)
    command = [sys.executable, "-m", "compileall", "-q", "archc", "tests"]
    subprocess.run(command, cwd=copy, check=False, capture_output=True)


@dataclass(frozen=True)
class Run:
    """How a run of pytest ended: its exit status (None: it took too long), and what it printed."""

    status: int | None
    output: str


def pytest(copy: Path, tests: Sequence[str], limit: float, *more: str, out: Path | None) -> Run:
    """Some tests in a copy of the tree; with `out`, what they reach is written there."""
    select = copy / "selected.txt"
    select.write_text("\n".join(tests), encoding="utf-8")
    path = [str(copy), *[str(copy / "site")] * bool(out), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "REACH_SELECT": str(select),
        "TMPDIR": str(copy.parent / "tmp"), "PYTHONHASHSEED": "0",
        "REACH_MEMORY": str(MEMORY),
    }  # fmt: skip
    env |= {} if out is None else {"REACH_OUT": str(out)}
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "tests.reach", "-p", "no:cacheprovider",
        "--tb=line", "--hypothesis-seed=0", f"--basetemp={copy / 'made'}", *more, *files,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, cwd=copy, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(max(limit, 1.0))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end(process)
        log.seek(0)
        return Run(status, log.read())


def end(process: subprocess.Popen) -> None:
    """A process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# --- the map ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reach:
    """Which tests reach a line, and how long each takes."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, int]]
    """By file and test, as bits."""

    def tests_for(self, mutant: Mutant) -> list[str]:
        """Those that reach its line, the nearest first, and then the quickest; then others of their
        files, which may use what these have made. A line that only an import reaches may matter to
        all that reach anything in its file."""
        tests = self.lines.get(mutant.file, {})
        found = {test for test, lines in tests.items() if lines >> mutant.line & 1}
        if found == {""}:
            found = {*tests}
        homes = {test.partition("::")[0] for test in found}
        beside = {test for test in self.seconds if test.partition("::")[0] in homes}

        def order(test: str) -> tuple[bool, int, float, str]:
            return test not in found, -near(mutant.file, test), self.seconds[test], test

        return sorted((found & self.seconds.keys()) | beside, key=order)

    def slices(self, mutant: Mutant) -> list[list[str]]:
        """The same in parts that take about as long as is meant."""
        parts: list[list[str]] = []
        room = 0.0
        for test in self.tests_for(mutant):
            if not parts or self.seconds[test] > room:
                parts.append([])
                room = FIRST if len(parts) == 1 else NEXT
            parts[-1].append(test)
            room -= self.seconds[test]
        return parts


def near(file: str, test: str) -> int:
    """How alike the places of a file and of a test are."""
    home = Path(test.partition("::")[0])
    words = {*Path(file).parent.parts, *Path(file).stem.split("_")} - {"archc"}
    return len(words & {*home.parts, *home.stem.split("_")})


def digest() -> str:
    """Of everything that a map depends on."""
    found = sha256()
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".arch", ".lark", ".md", ".txt", ".html") and path.is_file():
                found.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return found.hexdigest()


def mapped(path: Path, copies: Sequence[Path], until: float, files: Sequence[str]) -> Reach:
    """The map of this tree, from the file, or made and written there."""
    tree = digest() + " ".join(files)
    if path.exists():
        kept = json.loads(path.read_text("utf-8"))
        if kept["tree"] == tree:
            return reach_of(kept["tests"], kept["reached"])
    begun = time.monotonic()
    groups = groups_of(collected(copies[0], files))
    tests: dict[str, list[Any]] = {}
    reached: dict[str, dict[str, str]] = defaultdict(dict)
    with tempfile.TemporaryDirectory() as out:
        free = [*copies]

        def one(number: int) -> None:
            copy, place = free.pop(), Path(out) / str(number)
            place.mkdir()
            pytest(copy, groups[number], until - time.monotonic(), out=place)
            free.append(copy)

        with ThreadPoolExecutor(len(copies)) as pool:
            list(pool.map(one, range(len(groups))))
        for each in sorted(Path(out).glob("*/*.json")):
            found, ended = json.loads(each.read_text("utf-8"))
            tests |= ended
            for test, lines in found.items():
                for file, bits in lines.items():
                    before = int(reached[file].get(test, "0x0"), 16)
                    reached[file][test] = hex(before | int(bits, 16))
    kept = {"tree": tree, "tests": tests, "reached": reached}
    path.write_text(json.dumps(kept), encoding="utf-8")
    counts = Counter(ended[0] for ended in tests.values())
    print(f"the map: {dict(counts)} tests, {sum(e[1] for e in tests.values()):.0f} s of them, made "
          f"in {time.monotonic() - begun:.0f} s", flush=True)  # fmt: skip
    for test in sorted(test for test, ended in tests.items() if ended[0] == "failed"):
        print(f"  fails without a mutant, and is not asked: {test}")
    return reach_of(tests, reached)


def reach_of(tests: dict[str, list[Any]], reached: Mapping[str, Mapping[str, str]]) -> Reach:
    passed = {
        test: max(seconds, 0.005) for test, (end, seconds) in tests.items() if end == "passed"
    }
    lines = {f: {t: int(bits, 16) for t, bits in found.items()} for f, found in reached.items()}
    return Reach(passed, lines)


def collected(copy: Path, files: Sequence[str]) -> list[str]:
    """Every default test, in the order of a run."""
    run = pytest(copy, [*files] or ["tests"], 300, "--collect-only", out=None)
    found = [line for line in run.output.splitlines() if "::" in line and " " not in line[:9]]
    if not found:
        raise SystemExit(f"no tests were collected:\n{run.output[-3000:]}")
    return found


def groups_of(tests: Sequence[str]) -> list[list[str]]:
    """Tests of one file that run in one process: not so many that one takes long."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        files[test.partition("::")[0]].append(test)
    groups = []
    for file, each in files.items():
        most = 6 if "/triton/" in file or "/specs/" in file else 30
        groups += [each[at : at + most] for at in range(0, len(each), most)]
    return sorted(groups, key=lambda group: "triton" not in group[0])


# --- mutants, one slice of tests after another --------------------------------------------------

FINAL = ("killed", "timeout", "lives", "unreached")
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - (.*))?$", re.MULTILINE)


class Results:
    """What is known of each mutant, in a file of lines."""

    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()
        self.known: dict[str, dict[str, Any]] = {}
        self.passed: dict[str, set[int]] = defaultdict(set)
        if path.exists():
            for line in path.read_text("utf-8").splitlines():
                self.take(json.loads(line))

    def take(self, entry: dict[str, Any]) -> None:
        self.known[entry["id"]] = entry
        if entry["outcome"] == "open":
            self.passed[entry["id"]].add(entry["slice"])

    def add(self, mutant: Mutant, outcome: str, **more: Any) -> None:
        place = {"id": mutant.id, "file": mutant.file, "line": mutant.line, "kind": mutant.kind,
                 "before": mutant.before.strip(), "after": mutant.after.strip()}  # fmt: skip
        entry = {**place, "outcome": outcome, **more}
        with self.lock:
            if not self.over(mutant):
                self.take(entry)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(entry) + "\n")

    def over(self, mutant: Mutant) -> bool:
        return self.known.get(mutant.id, {}).get("outcome") in FINAL


class Queue:
    """Slices that wait: all first ones, then all second ones, and so on."""

    def __init__(self, mutants: Sequence[Mutant], reach: Reach, results: Results):
        self.results, self.lock = results, threading.Lock()
        self.slices = {mutant.id: reach.slices(mutant) for mutant in mutants}
        self.waiting: list[tuple[int, int]] = []
        self.mutants = mutants
        for place, mutant in enumerate(mutants):
            if not self.slices[mutant.id]:
                results.add(mutant, "unreached")
            for number in range(len(self.slices[mutant.id])):
                if number not in results.passed[mutant.id]:
                    heapq.heappush(self.waiting, (number, place))

    def next(self) -> tuple[Mutant, int, list[str]] | None:
        """A slice of a mutant of which it is not known yet what becomes of it."""
        with self.lock:
            while self.waiting:
                number, place = heapq.heappop(self.waiting)
                mutant = self.mutants[place]
                if not self.results.over(mutant):
                    return mutant, number, self.slices[mutant.id][number]
        return None

    def passed(self, mutant: Mutant, number: int, seconds: float) -> None:
        """A slice has; if it was the last one, the mutant lives."""
        count = len(self.slices[mutant.id])
        self.results.add(mutant, "open", slice=number, slices=count, seconds=seconds)
        if len(self.results.passed[mutant.id]) >= count:
            self.results.add(mutant, "lives", slices=count, tests=self.tests(mutant))

    def tests(self, mutant: Mutant) -> int:
        return sum(map(len, self.slices[mutant.id]))


@contextmanager
def in_place(copy: Path, mutant: Mutant) -> Iterator[None]:
    """A mutant in a copy of the tree."""
    path = copy / mutant.file
    text = path.read_text("utf-8")
    path.write_text(mutated(text, mutant), encoding="utf-8")
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        cached.unlink()
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def work(copy: Path, queue: Queue, reach: Reach, until: float) -> None:
    """One slice after another, until there is none or the time is over."""
    while time.monotonic() < until - 5 and (found := queue.next()) is not None:
        mutant, number, tests = found
        begun = time.monotonic()
        limit = START + SLOWER * sum(reach.seconds[test] for test in tests)
        limit = min(limit, until - begun)
        with in_place(copy, mutant):
            run = pytest(copy, tests, limit, "-x", out=None)
        seconds = round(time.monotonic() - begun, 1)
        if run.status is None and time.monotonic() > until - 1:
            return  # the time of all is over, not that of this one
        if run.status is None:
            queue.results.add(mutant, "timeout", seconds=seconds, slice=number)
        elif run.status == 0:
            queue.passed(mutant, number, seconds)
        else:
            failed = FAILED.findall(run.output) or [("?", run.output[-300:])]
            test, why = failed[-1]
            queue.results.add(
                mutant, "killed", test=test, why=why[:200], slice=number, seconds=seconds
            )


def measure(given: argparse.Namespace, mutants: Sequence[Mutant], results: Results) -> None:
    """The map, and then every mutant, for as long as there is time."""
    until = time.monotonic() + given.seconds
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        first = Path(scratch).resolve() / "0" / "tree"
        (first.parent / "tmp").mkdir(parents=True)
        first.mkdir()
        lay_out(first)
        copies = [first]
        for number in range(1, given.workers):
            other = first.parents[1] / str(number)
            shutil.copytree(first.parent, other, symlinks=True)
            copies.append(other / "tree")
        kept = given.map or given.output.with_name("reach.json")
        reach = mapped(kept, copies, until, given.tests)
        queue = Queue(mutants, reach, results)
        in_threads(given.workers, lambda at: work(copies[at], queue, reach, until))


def in_threads(count: int, run: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(run, number) for number in range(count)]:
            done.result()


# --- what has been found ------------------------------------------------------------------------


def table(mutants: Sequence[Mutant], results: Results) -> str:
    """A line for each room, and then the mutants that live."""
    columns = ("drawn", *FINAL, "open", "waiting")
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    living = []
    for mutant in mutants:
        entry = results.known.get(mutant.id, {"outcome": "waiting"})
        for room in (str(Path(mutant.file).parent), "together"):
            rows[room].update(["drawn", entry["outcome"]])
        if entry["outcome"] in ("lives", "unreached", "open"):
            done = len(results.passed[mutant.id])
            more = f" (after {done} of {entry['slices']} slices)" if "slice" in entry else ""
            living.append(f"{entry['outcome']}{more}  {mutant.id}  {mutant}")
    lines = [f"{'room':20}" + "".join(f"{name:>10}" for name in columns) + "  noticed"]
    for room, found in rows.items():
        noticed = found["killed"] + found["timeout"]
        settled = found["drawn"] - found["waiting"]
        share = f"{100 * noticed / settled:6.0f} %" if settled else ""
        lines.append(f"{room:20}" + "".join(f"{found[c]:10}" for c in columns) + f"  {share}")
    return "\n".join([*lines, "", *living])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("out/mutants.jsonl"))
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--count", type=int, default=200, help="how many mutants are drawn")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=480, help="when it ends, done or not")
    parser.add_argument("--map", type=Path, help="of tests and lines; else beside the results")
    parser.add_argument("--scratch", type=Path, help="where copies of the tree are made")
    parser.add_argument("--only", nargs="*", help="the mutants of these places, file:line")
    parser.add_argument("--tests", nargs="*", default=(), help="only of these files of tests")
    parser.add_argument("--draw", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--table", action="store_true", help="show what is known and run nothing")
    given = parser.parse_args()
    only = given.only
    mutants = named(ROOT, only) if only else draw(ROOT, given.count, given.seed)
    if given.draw:
        print("\n".join(f"{mutant.id}  {mutant}" for mutant in mutants))
        return
    given.output.parent.mkdir(parents=True, exist_ok=True)
    results = Results(given.output)
    if not given.table:
        measure(given, mutants, results)
    print(table(mutants, results))


if __name__ == "__main__":
    main()

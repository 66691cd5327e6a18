"""Whether the default tests notice mistakes: mutants of one line, drawn from every room of the
compiler, and for each the tests that reach that line until one fails.

    PYTHONPATH=. python -m tests.mutants --draw                         # lists the mutants
    PYTHONPATH=. python -m tests.mutants --map tests/ir --seconds 480   # what these tests reach
    PYTHONPATH=. python -m tests.mutants --seconds 480 --workers 2  # asks about mutants; goes on
    PYTHONPATH=. python -m tests.mutants --again                    # those that live, once more
    PYTHONPATH=. python -m tests.mutants --only archc/algebra/cost.py:76 --tests tests/algebra
    PYTHONPATH=. python -m tests.mutants --table                        # what is known so far

from the root of a checkout, whether installed or not: what archc needs, pytest and hypothesis.

The draw is settled by `--seed`, `--count` and the tree, and stands in the record (`-o`) from then
on: later runs find its lines again where they have moved to, in other files, too, and call those
"gone" that are no more; each that is gone is replaced by the next of its room. The map (`--kept`)
says which test reaches which line, and how long it takes; it is made file by file and grows. Only
tests in it that pass are asked about a mutant, the nearest and quickest first, for as long as
`--each` says (in the seconds of the map). A test of a file that has changed since counts as
reaching all of it; `--tests` names files that are asked as they are.

Every run is a fork of one process that has imported torch, Triton and the like (`tests.forked`).
A mutant is "killed" (by `test`), "timeout" (a test takes six times as long, which counts as
noticed), "lives" (every test of the map that reaches it passes), "open" (those that were asked do),
or "unreached". `tests.judged` has those that mean the same, and why others live.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from tests.forked import ROOT, Ended, Job, lay_out, ready, run_all
from tests.judged import EQUIVALENT, LEFT
from tests.mutation import Mutant, home_of, is_another, mutants_of

FLOOR = 5
"""How many mutants a room has at least."""

FIRST, FILES = 15.0, 6
"""Seconds of tests that are asked about a mutant first, and of how many files."""

NEAREST, UNKNOWN = 2, 75.0
"""How many files of tests that are not in the map are asked, and for how many seconds."""

START, SLOWER = 90.0, 6.0
"""The time limit of a run: seconds for its start, and times what its tests took for the map."""

CONTROLS = 10
"""How many tests that have failed are asked without a mutant in one run."""

MAPPING = 900.0
"""Seconds that a file of tests may take for the map; those of its tests that end in time count."""


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
            if mutant is None or {(mutant.file, mutant.line), mutant.id} & taken:
                continue
            if is_another((root / mutant.file).read_text("utf-8"), mutant):
                taken |= {(mutant.file, mutant.line), mutant.id}
                yield mutant
                count -= 1


# --- the map ------------------------------------------------------------------------------------


@dataclass
class Reach:
    """Which tests reach a line, how each ended and how long it took."""

    path: Path
    files: dict[str, str] = field(default_factory=dict)
    """Files of tests that are in it and of the compiler, and what they held."""
    tests: dict[str, tuple[str, float]] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By file and test, as bits."""

    def __post_init__(self) -> None:
        if self.path.exists():
            kept = json.loads(self.path.read_text("utf-8"))
            self.files, self.tests = kept["files"], kept["tests"]
            for file, found in kept["lines"].items():
                self.lines[file] = {test: int(bits, 16) for test, bits in found.items()}

    def write(self) -> None:
        lines = {f: {t: hex(bits) for t, bits in each.items()} for f, each in self.lines.items()}
        kept = {"files": self.files, "tests": self.tests, "lines": lines}
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps(kept), encoding="utf-8")
        beside.replace(self.path)

    def add(self, ended: Ended) -> None:
        """What a file of tests reaches."""
        (file,) = ended.job.tests
        self.files[file] = digest(file)
        for test, (outcome, seconds, _) in ended.tests.items():
            self.tests[test] = (outcome, max(seconds, 0.005))
        for changed, found in ended.lines.items():
            if self.files.setdefault(changed, now := digest(changed)) != now:
                self.files[changed] = now
                self.lines[changed] = dict.fromkeys(self.lines[changed], EVERY)
            self.lines[changed] |= found

    def missing(self, files: Sequence[str]) -> list[str]:
        """Files of tests that are not in it as they are now."""
        found = [str(p.relative_to(ROOT)) for f in files for p in python_files(ROOT / f)]
        tests = [file for file in dict.fromkeys(found) if Path(file).name.startswith("test_")]
        return [file for file in tests if self.files.get(file) != digest(file)]

    def seconds(self, test: str) -> float:
        return self.tests[test][1]

    def tests_for(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """Those that pass and reach its line, the nearest first, and then the quickest; and others
        of their files, which may use what these have made. A line that only an import reaches may
        matter to all that reach anything in its file."""
        tests = self.lines.get(mutant.file) or self.lines.get(mutant.drawn_in, {})
        changed = self.files.get(mutant.file) != digest(mutant.file)
        found = {test for test, lines in tests.items() if changed or lines >> mutant.line & 1}
        if found == {""}:
            found = {*tests}
        homes = {test.partition("::")[0] for test in found}

        def order(test: str) -> tuple[int, float, str]:
            return -near(mutant.file, test), self.seconds(test), test

        passed = sorted((t for t, ended in self.tests.items() if ended[0] == "passed"), key=order)
        beside = [t for t in passed if t not in found and t.partition("::")[0] in homes]
        return [test for test in passed if test in found], beside

    def parts(self, mutant: Mutant, most: float) -> list[list[str]]:
        """Which are asked in one run, and which in a second if all of those pass."""
        first, second = list[str](), list[str]()
        spent, homes = 0.0, set[str]()
        for test in (each for tests in self.tests_for(mutant) for each in tests):
            spent += self.seconds(test)
            home = test.partition("::")[0]
            if not first or (spent <= FIRST and len(homes | {home}) <= FILES and not second):
                first.append(test)
                homes.add(home)
            elif spent <= most:
                second.append(test)
        return [part for part in (first, second) if part]


@cache
def texts() -> list[tuple[str, str]]:
    """Files of tests, and what they hold."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [(str(path.relative_to(ROOT)), path.read_text("utf-8")) for path in paths]


def nearest(mutant: Mutant, known: Mapping[str, str]) -> list[str]:
    """Files of tests that name the mutant's module or are near, but for those that are known."""
    module = (
        mutant.file.removesuffix(".py").replace("/", ".").replace("backends.", "archc.backends.")
    )
    scores: dict[str, int] = {}
    for file, text in texts():
        if file not in known:
            names = text.count(f"from {module} import")
            scores[file] = 4 * names + near(mutant.file, file)
    best = sorted((file for file in scores if scores[file]), key=lambda file: (-scores[file], file))
    return best[:NEAREST]


EVERY = (1 << 2000) - 1
"""All lines of a file."""


def python_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("*.py"))


def digest(file: str) -> str:
    """Of what a file holds."""
    path = ROOT / file
    return sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "gone"


def near(file: str, test: str) -> int:
    """How alike the places of a file and of a test are."""
    return len((words(file) - {"archc"}) & words(test.partition("::")[0]))


@cache
def words(file: str) -> set[str]:
    """Its folders, and the words of its name."""
    return {*Path(file).parent.parts, *Path(file).stem.split("_")}


# --- what is known ------------------------------------------------------------------------------

NOTICED = ("killed", "timeout")
OUTCOMES = (*NOTICED, "equivalent", "lives", "open", "unreached", "gone", "waiting")


@dataclass
class Record:
    """The draw, and what has become of each mutant, in a file."""

    path: Path
    seed: int
    count: int
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    drawn_at: str = ""

    def __post_init__(self) -> None:
        if self.path.exists():
            kept = json.loads(self.path.read_text("utf-8"))
            if (kept["seed"], kept["count"]) != (self.seed, self.count):
                raise SystemExit(f"{self.path} has a draw with another seed or count")
            self.drawn_at = kept["drawn at"]
            self.entries = {mutant_of(entry).id: entry for entry in kept["mutants"]}

    def draw(self) -> None:
        """All mutants, if there are none yet; and others for those that are gone."""
        if not self.entries:
            self.drawn_at = commit()
            for mutant in draw(ROOT, self.count, self.seed):
                self.add(mutant, "waiting")
        self.mutants()
        for entry in [*self.entries.values()]:
            if entry["outcome"] == "gone" and "replaced by" not in entry:
                for mutant in self.next(str(Path(entry["file"]).parent)):
                    entry["replaced by"] = mutant.id
                    self.add(mutant, "waiting")

    def next(self, room: str) -> list[Mutant]:
        """One of a room, as it is now, that has not been drawn yet; none, if all have."""
        lines = [
            found
            for folder, files in rooms(ROOT).items()
            for file in files
            if f"{folder}/".startswith(f"{room}/")
            for found in sorted(mutants_of(ROOT, file).items())
        ]
        known = {(entry["file"], entry["before"]) for entry in self.entries.values()}
        others = drawn(ROOT, lines, len(known) + 1, room, self.seed)
        return [m for m in others if (m.file, m.before.strip()) not in known][:1]

    def mutants(self) -> list[Mutant]:
        """All that are still there."""
        found, files = [], compiler()
        for entry in self.entries.values():
            mutant = moved(mutant_of(entry), entry.get("in", ""), files)
            if mutant is not None:
                found.append(mutant)
                entry["in"] = home_of(files[mutant.file], mutant.line)
                if entry["outcome"] == "gone":
                    entry["outcome"] = "waiting"
            elif entry["outcome"] not in NOTICED:
                entry["outcome"] = "gone"
        return found

    def outcome(self, mutant: Mutant) -> str:
        return self.entries.get(mutant.id, {"outcome": "waiting"})["outcome"]

    def add(self, mutant: Mutant, outcome: str, **more: Any) -> None:
        place = {"file": mutant.drawn_in or mutant.file, "line": mutant.line, "kind": mutant.kind,
                 "before": mutant.before.strip(), "after": mutant.after.strip(),
                 "in": self.entries.get(mutant.id, {}).get("in", "")}  # fmt: skip
        if mutant.file != place["file"]:
            place["moved to"] = mutant.file
        at = {} if outcome == "waiting" else {"commit": commit()}
        self.entries[mutant.id] = {**place, "outcome": outcome, **more, **at}

    def write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for id, entry in self.entries.items():
            if entry["outcome"] not in NOTICED and id in EQUIVALENT:
                entry |= {"outcome": "equivalent", "why": EQUIVALENT[id]}
            elif entry["outcome"] in ("lives", "open", "unreached") and id in LEFT:
                entry["why"] = LEFT[id]
        kept = {
            "what": "mutants of one line, and which default test notices each",
            "seed": self.seed, "count": self.count, "drawn at": self.drawn_at,
            "rooms": {room: dict(found) for room, found in self.rooms().items()},
            "mutants": [*self.entries.values()],
        }  # fmt: skip
        self.path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")

    def rooms(self) -> dict[str, Counter[str]]:
        """How many of each room, and of all."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for entry in self.entries.values():
            for room in (str(Path(entry["file"]).parent), "together"):
                found[room].update(["drawn", entry["outcome"]])
        return dict(sorted(found.items(), key=lambda each: (each[0] == "together", each[0])))

    def table(self) -> str:
        """A line for each room, and then the mutants that live."""
        columns = ("drawn", *OUTCOMES)
        lines = [f"{'room':18}" + "".join(f"{name:>11}" for name in columns) + "  noticed"]
        for room, found in self.rooms().items():
            noticed = sum(found[each] for each in NOTICED)
            asked = noticed + sum(found[each] for each in ("lives", "open", "unreached"))
            share = f"{100 * noticed / asked:6.0f} %" if asked else ""
            lines.append(f"{room:18}" + "".join(f"{found[c]:11}" for c in columns) + f"  {share}")
        for id, entry in self.entries.items():
            if entry["outcome"] in ("lives", "open", "unreached", "timeout"):
                asked = f" (asked {entry.get('asked', 0)} of {entry.get('of', 0)})"
                lines.append(f"{entry['outcome']}{asked}  {id}  {mutant_of(entry)}")
        return "\n".join(lines)


def mutant_of(entry: Mapping[str, Any]) -> Mutant:
    """As it was when it was written."""
    file, *rest = (entry[name] for name in ("file", "line", "kind", "before", "after"))
    return Mutant(entry.get("moved to", file), *rest, drawn_in=file)


def moved(mutant: Mutant, home: str, files: Mapping[str, str]) -> Mutant | None:
    """The same in the files of today, in a line that reads so: of the same function and file, of
    the file, of a function of that name in another file, or of a file of that name. None, if none
    does, or several do and nothing tells which it is."""
    name, last = Path(mutant.file).name, (home or "?").rpartition(".")[2]
    places = []
    for file, text in files.items():
        for at, line in enumerate(text.split("\n"), 1):
            if line.strip() == mutant.before.strip():
                same = home_of(text, at).rpartition(".")[2] == last
                known = (file == mutant.file, same, Path(file).name == name)
                places.append((known, -abs(at - mutant.line), file, at, line))
    known, _, file, at, before = max(places, default=((False,) * 3, 0, "", 0, ""))
    if len({place[2] for place in places if place[0] == known}) != 1:
        return None
    if mutant.file in files and not any(known):
        return None
    after = before.replace(mutant.before.strip(), mutant.after.strip())
    return Mutant(file, at, mutant.kind, before, after, mutant.drawn_in or mutant.file)


def compiler() -> dict[str, str]:
    """The compiler's files, and what they hold."""
    files = [file for found in rooms(ROOT).values() for file in found]
    return {file: (ROOT / file).read_text("utf-8") for file in files}


def commit() -> str:
    asked = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


# --- asking about mutants -----------------------------------------------------------------------


class Asking:
    """Runs for mutants: the first tests of each, then the others of those that these let live."""

    def __init__(self, mutants: Sequence[Mutant], reach: Reach, record: Record, most: float):
        self.reach, self.record = reach, record
        self.jobs = deque[Job]()
        self.later: dict[str, list[list[str]]] = {}
        self.asked: dict[str, set[str]] = defaultdict(set)
        self.sound: dict[str, bool] = {}
        self.doubted: dict[str, list[tuple[Job, dict[str, Any]]]] = defaultdict(list)
        self.controlled = set[str]()
        for mutant in mutants:
            parts = reach.parts(mutant, most)
            files = nearest(mutant, reach.files) or ([] if parts else nearest(mutant, {}))
            self.later[mutant.id] = [*parts[:1], *([files] if files else []), *parts[1:]]
            if self.later[mutant.id]:
                self.next(mutant)
            elif not reach.missing(["tests"]):
                record.add(mutant, "unreached")

    def whole(self, mutants: Sequence[Mutant], files: Sequence[str]) -> None:
        """Files of tests as they are, before all others."""
        for mutant in reversed(mutants):
            self.jobs.appendleft(Job([*files], MAPPING, mutant))

    def next(self, mutant: Mutant) -> None:
        """Tests of the map have a limit by what they took for it; others have one for all."""
        tests = self.later[mutant.id].pop(0)
        mapped = all(test in self.reach.tests for test in tests)
        limit = START + SLOWER * sum(map(self.reach.seconds, tests)) if mapped else UNKNOWN
        self.jobs.append(Job(tests, limit, mutant))

    def take(self, ended: Ended) -> None:
        """What a run says of its mutant."""
        mutant = ended.job.mutant
        failed = [(t, why) for t, (out, _, why) in ended.tests.items() if out == "failed"]
        self.asked[mutant.id if mutant else ""] |= {*ended.tests}
        if mutant is None:
            for test in ended.job.tests:
                self.settle(test, ended.passes(test))
        elif self.record.outcome(mutant) in NOTICED:
            pass
        elif ended.status is None and "::" in ended.job.tests[0]:
            told(mutant, "timeout")
            self.record.add(mutant, "timeout", seconds=ended.seconds)
        elif not failed and ended.status in (0, None):
            self.passed(mutant)
        else:
            test, why = failed[-1] if failed else (ended.job.tests[0], ended.said[-160:])
            more = {"test": test, "why": why, "seconds": ended.seconds}
            self.doubted[test].append((ended.job, more))
            if test in self.sound:
                self.settle(test, self.sound[test])
        self.control()
        self.record.write()

    def control(self) -> None:
        """Do those that have failed pass without the mutant? Several are asked at once."""
        tests = [test for test in self.doubted if test not in self.controlled]
        if tests and (len(tests) >= CONTROLS or not self.jobs):
            self.controlled |= {*tests}
            self.jobs.appendleft(Job(tests, MAPPING))

    def settle(self, test: str, sound: bool) -> None:
        """A test that fails without a mutant says nothing of one: the others are asked."""
        self.sound[test] = sound
        for job, more in self.doubted.pop(test, []):
            assert job.mutant is not None
            if sound:
                told(job.mutant, f"killed by {test}")
                self.record.add(job.mutant, "killed", **more)
            else:
                without = [each for each, sound in self.sound.items() if not sound]
                self.jobs.appendleft(replace(job, without=without))

    def passed(self, mutant: Mutant) -> None:
        parts = self.later.get(mutant.id, [])
        if parts:
            self.next(mutant)
            return
        reaching = set(self.reach.tests_for(mutant)[0])
        asked = self.asked[mutant.id]
        mapped = not set(self.reach.missing(["tests"]))
        outcome = "lives" if reaching <= asked and mapped else "open"
        told(mutant, outcome)
        self.record.add(mutant, outcome, asked=len(asked), of=len(reaching | asked))


def told(mutant: Mutant, what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {mutant.file}:{mutant.line} {what}", flush=True)


def measure(given: argparse.Namespace, record: Record) -> None:
    """The map, or what becomes of mutants, for as long as there is time."""
    until = time.monotonic() + given.seconds
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    reach = Reach(given.kept)
    ready()
    with tempfile.TemporaryDirectory(dir=given.scratch) as scratch:
        copies = [Path(scratch).resolve() / str(at) / "tree" for at in range(given.workers)]
        with ThreadPoolExecutor(len(copies)) as pool:  # it is over before the first fork
            list(pool.map(lay_out, copies))
        if given.map is not None:
            files = reach.missing(given.map or ["tests"])
            jobs = deque(Job([file], MAPPING, lines=True) for file in files)

            def take(ended: Ended) -> None:
                reach.add(ended)
                reach.write()
                counts = Counter(outcome for outcome, *_ in ended.tests.values())
                print(f"{ended.job.tests[0]}: {dict(counts)} in {ended.seconds} s", flush=True)

            run_all(jobs, copies, until, take)
            return
        asking = Asking(chosen(given, record), reach, record, given.each)
        if given.tests:
            asking.jobs.clear()
            asking.whole(chosen(given, record), given.tests)
        run_all(asking.jobs, copies, until, asking.take)


def chosen(given: argparse.Namespace, record: Record) -> list[Mutant]:
    """The mutants that are asked about: those that nothing is known of, or that are named; in an
    order of the seed's, so that those that have been asked about are a fair sample at any time."""
    if given.only:
        return named(ROOT, given.only, record)
    wanted = {"waiting", *({"lives", "open", "unreached"} if given.again else ())}
    found = [each for each in record.mutants() if record.outcome(each) in wanted]
    found = [each for each in found if each.file.startswith(tuple(given.rooms or [""]))]
    return sorted(found, key=lambda each: sha256(f"{given.seed} {each.id}".encode()).digest())


def named(root: Path, places: Iterable[str], record: Record) -> list[Mutant]:
    """Mutants by id, or all that are drawn of some lines, `file:line`; else every one of them."""
    drawn = record.mutants()
    found = []
    for place in places:
        here = [each for each in drawn if place in (each.id, f"{each.file}:{each.line}")]
        if not here and ":" in place:
            file, _, line = place.rpartition(":")
            text = (root / file).read_text("utf-8")
            choices = mutants_of(root, file).get(int(line), [])
            here = [mutant for mutant in choices if is_another(text, mutant)]
        found += here
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="tests.mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    where = ROOT / "benchmarks" / "results" / "mutants.json"
    parser.add_argument("-o", "--output", type=Path, default=where, help="the record")
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--count", type=int, default=200, help="how many mutants are drawn")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=480, help="when it ends, done or not")
    parser.add_argument("--each", type=float, default=60, help="seconds of tests for a mutant")
    parser.add_argument("--map", nargs="*", help="map these tests (all, if none is named)")
    parser.add_argument("--kept", type=Path, default=ROOT / "out" / "reach.json", help="the map")
    parser.add_argument("--scratch", type=Path, help="where copies of the tree are made")
    parser.add_argument("--rooms", nargs="*", help="only mutants of these folders or files")
    parser.add_argument("--only", nargs="*", help="these mutants, by id or file:line")
    parser.add_argument("--tests", nargs="*", help="ask these files of tests, and no others")
    parser.add_argument("--again", action="store_true", help="those, too, that have lived")
    parser.add_argument("--draw", action="store_true", help="list the mutants and run nothing")
    parser.add_argument("--table", action="store_true", help="show what is known and run nothing")
    given = parser.parse_args()
    record = Record(given.output, given.seed, given.count)
    record.draw()
    if given.draw:
        print("\n".join(f"{mutant.id}  {mutant}" for mutant in record.mutants()))
        return
    if not given.table:
        measure(given, record)
    if given.map is None:
        record.write()
        print(record.table())


if __name__ == "__main__":
    main()

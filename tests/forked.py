"""Runs of pytest in processes that are forked from this one, which has imported what all of them
need (torch, Triton, sympy) and nothing of the compiler: each has its own copy of the tree, and
imports the compiler from there, with a mutant in it or none."""

from __future__ import annotations

import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path

from tests.mutation import Mutant, mutated

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("archc", "backends", "specs", "tests")

IMPORTED = (
    "torch", "torch._dynamo", "triton", "triton.language", "sympy", "networkx", "lark", "click",
    "click.testing", "rich.console", "numpy", "hypothesis", "_pytest.assertion.rewrite", "pytest",
    "difflib", "importlib.metadata", "unittest.mock",
)  # fmt: skip
"""What a run finds there already."""

OWN = {"archc", "backends", "tests"}
"""What each run imports itself."""

SITE = """import os
if "REACH_LINES" in os.environ:
    from tests import reach
    reach.start()
"""
"""What a process does that a test starts while the map is made."""

MEMORY = 48 << 30
"""Bytes of addresses that a run may have."""

BROKEN = 70
"""The exit status of a process that has not come to its tests."""

PAUSE = 0.05
"""Seconds between two looks at what runs."""


@dataclass
class Job:
    """Some tests, in their order, up to the first that fails where there is a mutant; how long they
    may take; whether the lines that they reach are wanted; and tests that are left out."""

    tests: Sequence[str]
    limit: float
    mutant: Mutant | None = None
    lines: bool = False
    without: Sequence[str] = ()


@dataclass
class Ended:
    """What is known of a job: its exit status (None: it took too long), its tests (how each ended,
    its seconds, and why it has failed), and the lines they reach."""

    job: Job
    seconds: float
    status: int | None
    tests: dict[str, tuple[str, float, str]] = field(default_factory=dict)
    lines: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """By file and test, as bits."""
    said: str = ""

    def passes(self, test: str) -> bool:
        """Whether a test has passed, or whatever has run of a file of tests."""
        ran = [self.tests[each][0] for each in self.tests if (each + "::").startswith(test + "::")]
        return bool(ran) and not {*ran} - {"passed", "skipped"}

    def read(self, out: Path) -> None:
        """What its processes have written."""
        for each in sorted(out.glob("ended-*.jsonl")):
            for test, outcome, seconds, why in records(each):
                worst, spent, because = self.tests.get(test, ("passed", 0.0, ""))
                worst = outcome if worst == "passed" else worst
                self.tests[test] = (worst, round(spent + seconds, 3), because or why)
        for each in sorted(out.glob("lines-*.jsonl")):
            for found in records(each):
                for test, files in found.items():
                    for file, bits in files.items():
                        before = self.lines[file].get(test, 0)
                        self.lines[file][test] = before | int(bits, 16)
        self.said = (out / "said.txt").read_text("utf-8", "replace")[-2000:]


def records(path: Path) -> Iterator[list | dict]:
    """The lines of a file; the last may have been cut."""
    for line in path.read_text("utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            yield json.loads(line)


# --- copies of the tree -------------------------------------------------------------------------


def lay_out(copy: Path) -> None:
    """The tree as it is installed: packages in their places, and what tells the version."""
    copy.mkdir(parents=True)
    (copy.parent / "tmp").mkdir()
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


@contextmanager
def in_place(copy: Path, mutant: Mutant | None) -> Iterator[None]:
    """A mutant in a copy of the tree, and nothing that was compiled of it left behind."""
    path = copy / mutant.file if mutant else copy
    text = path.read_text("utf-8") if mutant else ""

    def write(text: str) -> None:
        for cached in Path(cache_from_source(path)).parent.glob(f"{path.stem}.*"):
            cached.unlink()
        path.write_text(text, encoding="utf-8")

    if mutant:
        write(mutated(text, mutant))
    try:
        yield
    finally:
        if mutant:
            write(text)


# --- processes ----------------------------------------------------------------------------------


def ready() -> None:
    """Import what all runs need. Threads of torch would not outlive a fork; the default tests need
    no GPU, wherever they run."""
    os.environ |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)


def run_all(
    jobs: deque[Job], copies: Sequence[Path], until: float, take: Callable[[Ended], None]
) -> None:
    """One job after another in every copy, until there is none or the time is over. What takes
    the results may add more."""
    runs, free = list[Run](), [*copies]
    try:
        while True:
            while free and jobs and time.monotonic() < until:
                runs.append(Run(free.pop(), jobs.popleft(), until))
            if not runs:
                return
            time.sleep(PAUSE)
            for each in [run for run in runs if run.is_over()]:
                runs.remove(each)
                free.append(each.copy)
                if each.ended is not None:
                    take(each.ended)
    finally:
        for each in runs:
            each.end()


class Run:
    """A job in its process."""

    def __init__(self, copy: Path, job: Job, until: float):
        self.copy, self.job, self.until = copy, job, until
        self.begun = time.monotonic()
        self.place = in_place(copy, job.mutant)
        self.place.__enter__()
        self.out = Path(tempfile.mkdtemp(dir=copy.parent))
        (self.out / "select.txt").write_text("\n".join(job.tests), encoding="utf-8")
        self.ended: Ended | None = None
        self.pid = os.fork()
        if not self.pid:
            status = BROKEN
            try:
                status = in_child(copy, job, self.out)
            finally:  # a fork never returns into what its parent does
                if status == BROKEN:
                    traceback.print_exc()
                os._exit(status)

    def is_over(self) -> bool:
        """Whether it has ended, by itself or by its limit; if so, what is known stands in `ended`,
        but where the time of all was over first."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        now = time.monotonic()
        late = now > self.until or now > self.begun + self.job.limit
        if not pid and not late:
            return False
        if pid or now <= self.until or self.job.lines:
            code = os.waitstatus_to_exitcode(status) if pid else None
            self.ended = Ended(self.job, round(now - self.begun, 1), code)
        self.end(reaped=bool(pid))
        return True

    def end(self, reaped: bool = False) -> None:
        """End it and all that it has started, and leave the copy as it was."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not reaped:
            os.waitpid(self.pid, 0)
        self.place.__exit__(None, None, None)
        if self.ended is not None:
            self.ended.read(self.out)
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(self.copy / "made", ignore_errors=True)


def in_child(copy: Path, job: Job, out: Path) -> int:
    """The tests of a job, in a process that is for them alone."""
    os.setsid()
    with (out / "said.txt").open("w", encoding="utf-8") as said:
        for number, stream in ((1, said), (2, said)):
            os.dup2(stream.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    as_if_started(copy, job, out)
    import pytest

    files = list(dict.fromkeys(test.partition("::")[0] for test in job.tests))
    more = [*["-x"] * bool(job.mutant), *(f"--deselect={test}" for test in job.without)]
    return int(pytest.main([
        "-q", "-p", "tests.reach", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line",
        "--hypothesis-seed=0", f"--basetemp={copy / 'made'}", *more, *files,
    ]))  # fmt: skip


def as_if_started(copy: Path, job: Job, out: Path) -> None:
    """Folder, environment and modules of a process that was started in a copy of the tree."""
    os.chdir(copy)
    path = [str(copy), *[str(copy / "site")] * job.lines, os.environ.get("PYTHONPATH", "")]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)), "TMPDIR": str(copy.parent / "tmp"),
        "REACH_SELECT": str(out / "select.txt"), "REACH_OUT": str(out),
    }  # fmt: skip
    if job.lines:
        sys.pycache_prefix = str(copy.parent / "watched")
        os.environ |= {"REACH_LINES": "1", "PYTHONPYCACHEPREFIX": sys.pycache_prefix}
    tempfile.tempdir = None
    sys.path[:] = [str(copy), *(each for each in sys.path if each not in ("", str(ROOT)))]
    for name in [name for name in sys.modules if name.partition(".")[0] in OWN]:
        del sys.modules[name]
    importlib.invalidate_caches()

"""A plugin of pytest: which lines of the compiler each test reaches, in this process and in those
that it starts; and which tests run, in which order.

    REACH_OUT=folder   write what each process has reached there: `{test: {file: lines as bits}}`,
                       and how each test ended: `{test: [outcome, seconds]}`
    REACH_SELECT=file  run the tests that are named there, a line each, in that order
    REACH_MEMORY=most  bytes of addresses that this process and each that it starts may have

Pieces of generated files are lines of the files that they are copied from. A process that a test
starts takes part if `start()` is called in it, as the `sitecustomize` of `tests.mutants` does.
"""

from __future__ import annotations

import ast
import atexit
import json
import linecache
import os
import resource
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("archc/", "backends/")
AT_IMPORT = ""
"""In place of a test: what is reached before the first."""

Where = dict[str, set[int]]


class Reached:
    """The lines that a test has reached so far, of each test of this process."""

    def __init__(self) -> None:
        self.test = os.environ.get("REACH_TEST", AT_IMPORT)
        self.found: dict[str, Where] = defaultdict(lambda: defaultdict(set))
        self.ended: dict[str, list[Any]] = {}
        self.homes: dict[CodeType, tuple[str, Any] | None] = {}
        self.pid = os.getpid()

    def hit(self, code: CodeType, line: int) -> None:
        """A line is about to run."""
        if code not in self.homes:
            self.homes[code] = home_of(code)
        home = self.homes[code]
        if home is not None:
            file, lines = home
            known = line if lines is None else original(lines, code, line)
            self.found[self.test][file].add(known)

    def write(self) -> None:
        """One file for this process; those that it was forked from write their own."""
        out = Path(os.environ["REACH_OUT"])
        reached = {
            test: {file: hex(sum(1 << line for line in lines)) for file, lines in files.items()}
            for test, files in list(self.found.items())
        }
        name = f"{os.getpid()}-{threading.get_native_id()}-{id(self)}.json"
        (out / name).write_text(json.dumps([reached, self.ended]), encoding="utf-8")


_reached: list[Reached] = []


def home_of(code: CodeType) -> tuple[str, Any] | None:
    """The file of the compiler that code stands in; for that of a generated file, the lines of the
    piece that it is a copy of as well."""
    name = code.co_filename
    if name.startswith("<archc_generated") or ("site-packages" not in name and _is_loose(name)):
        return pieces().get(code.co_qualname)
    if not name.startswith(str(ROOT)):
        return None
    file = os.path.relpath(os.path.realpath(name), ROOT)
    return (file, None) if file.startswith(ROOMS) else None


def _is_loose(name: str) -> bool:
    """Whether a file stands in no package: one that a test has written."""
    return name.endswith(".py") and not name.startswith((sys.prefix, sys.base_prefix, str(ROOT)))


@cache
def pieces() -> dict[str, tuple[str, dict[str, list[int]]]]:
    """The functions that are copied into generated files: their file, and where each line is."""
    found = {}
    for path in sorted((ROOT / "backends").rglob("*pieces.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        for name, node in _functions(ast.parse(text), ""):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            places: dict[str, list[int]] = defaultdict(list)
            for line in range(first, (node.end_lineno or first) + 1):
                places[lines[line - 1].strip()].append(line)
            found[name] = (str(path.relative_to(ROOT)), {**places, "": [first]})
    return found


def _functions(node: ast.AST, before: str) -> Iterator[tuple[str, Any]]:
    """Functions by their qualified names."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            name = before + each.name
            inner = f"{name}." if isinstance(each, ast.ClassDef) else f"{name}.<locals>."
            if isinstance(each, ast.FunctionDef):
                yield name, each
            yield from _functions(each, inner)
        else:
            yield from _functions(each, before)


def original(lines: dict[str, list[int]], code: CodeType, line: int) -> int:
    """The line of a piece that a line of a generated file is a copy of; its first, if of none."""
    places = lines.get(linecache.getline(code.co_filename, line).strip(), lines[""])
    wanted = lines[""][0] + line - code.co_firstlineno
    return min(places, key=lambda place: abs(place - wanted))


# --- watching lines -----------------------------------------------------------------------------

TOOL = 4
"""One of the numbers that `sys.monitoring` keeps for tools."""


def start() -> None:
    """Watch this process, and write what was reached when it ends."""
    reached = Reached()
    _reached.append(reached)
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring

        def lined(code: CodeType, line: int) -> Any:
            reached.hit(code, line)
            return monitoring.DISABLE  # until the next test

        monitoring.use_tool_id(TOOL, "reach")
        monitoring.register_callback(TOOL, monitoring.events.LINE, lined)
        monitoring.set_events(TOOL, monitoring.events.LINE)
    else:

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                reached.hit(frame.f_code, frame.f_lineno)
            return local

        def called(frame: FrameType, *_: Any) -> Any:
            code = frame.f_code
            if code not in reached.homes:
                reached.homes[code] = home_of(code)
            return None if reached.homes[code] is None else local

        threading.settrace(called)
        sys.settrace(called)
    atexit.register(reached.write)
    os.register_at_fork(after_in_child=reached.found.clear)


def begin(test: str) -> None:
    """What is reached from now on is reached by this test."""
    os.environ["REACH_TEST"] = test
    _reached[0].test = test
    if sys.version_info >= (3, 12):
        sys.monitoring.restart_events()


# --- the hooks of pytest ------------------------------------------------------------------------


def pytest_configure() -> None:
    if "REACH_MEMORY" in os.environ:
        most = int(os.environ["REACH_MEMORY"])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if "REACH_OUT" in os.environ and not _reached:
        start()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Those that are named, in that order; all, if none of them is there."""
    if "REACH_SELECT" in os.environ:
        path = Path(os.environ["REACH_SELECT"])
        order = {name: at for at, name in enumerate(path.read_text("utf-8").splitlines())}
        chosen = [item for item in items if item.nodeid in order]
        items[:] = sorted(chosen, key=lambda item: order[item.nodeid]) or items


def pytest_runtest_logstart(nodeid: str) -> None:
    if _reached:
        begin(nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    if _reached:
        ended = _reached[0].ended.setdefault(report.nodeid, ["passed", 0.0])
        ended[1] = round(ended[1] + report.duration, 3)
        if report.outcome != "passed":
            ended[0] = report.outcome

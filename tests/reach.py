"""A plugin of pytest: which lines of the compiler each test reaches, in this process and in those
that it starts; and which tests run, in which order.

    REACH_OUT=folder   write how each test ended, as it does: `[test, outcome, seconds, why]`
    REACH_LINES=1      and what each process has reached there: `{test: {file: lines as bits}}`
    REACH_SELECT=file  run the tests that are named there, a line each, in that order

Modules of the compiler are compiled with a call before every run of statements that are entered
together, which adds them to a set: a test takes hardly longer than without. (What Triton compiles
it reads from the text; that is not seen.) Pieces of generated files are lines of the files that
they are copied from. A process that a test starts takes part if `start()` is called in it, as the
`sitecustomize` of `tests.forked` does, and what is compiled is kept where `PYTHONPYCACHEPREFIX`
says, apart from what others use.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.abc import SourceLoader
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("archc", "backends")
AT_IMPORT = ""
"""In place of a test: what is reached before the first."""

REACHED = "__reached__"
"""What is called, a built-in name."""

LINES = 1 << 20
"""More than a file has lines: a block is `(file * LINES + first) * LINES + last`."""

_found: set[int] = set()
_test = [os.environ.get("REACH_TEST", AT_IMPORT)]
_seconds = [0.0]
"""What the test that runs has spent and not told yet."""


@cache
def files() -> list[str]:
    """Those of the compiler."""
    found = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    return sorted({os.path.relpath(os.path.realpath(path), ROOT) for path in found})


# --- blocks of statements -----------------------------------------------------------------------


class Blocks(ast.NodeTransformer):
    """A call before every run of statements that are entered together."""

    def __init__(self, file: int, lines: dict[str, list[int]] | None = None, text: str = ""):
        self.file, self.lines, self.text = file, lines, text.split("\n")

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                setattr(node, name, self.told(body, node))
        return node

    def told(self, body: list[ast.stmt], node: ast.AST) -> list[ast.stmt]:
        """Statements in runs: one ends with what may not go on to the next."""
        told: list[ast.stmt] = []
        first = node.lineno if isinstance(node, ast.FunctionDef) else body[0].lineno
        run: list[ast.stmt] = []
        for each in body:
            told, run = [*told, each], [*run, each]
            plain = isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Import)
            if not (plain or is_first(each)) or each is body[-1]:
                at = len(told) - len(run) + sum(map(is_first, run))
                told.insert(at, self.call(min(first, run[0].lineno), each))
                first, run = LINES, []
        return told

    def call(self, first: int, last: ast.stmt) -> ast.stmt:
        inner = getattr(last, "body", None)
        end = inner[0].lineno - 1 if isinstance(inner, list) else last.end_lineno or first
        first, end = self.original(first), max(self.original(end), self.original(first))
        block = (self.file * LINES + first) * LINES + end
        made = ast.Expr(ast.Call(ast.Name(REACHED, ast.Load()), [ast.Constant(block)], []))
        return ast.fix_missing_locations(ast.copy_location(made, last))

    def original(self, line: int) -> int:
        """The line of a piece that a line of a generated file is a copy of; its first, if of
        none."""
        if self.lines is None:
            return line
        places = self.lines.get(self.text[line - 1].strip(), self.lines[""])
        return min(places, key=lambda place: abs(place - line))


def is_first(node: ast.stmt) -> bool:
    """Whether it must stay where it is: a docstring, or an import from the future."""
    future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
    return future or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def watched(text: str, path: str) -> ast.Module | None:
    """A module that tells what is reached; none, if it is not of the compiler."""
    if path.startswith("<archc_generated"):
        return pieces_watched(text)
    file = os.path.relpath(os.path.realpath(path), ROOT)
    if not file.startswith(tuple(f"{room}/" for room in ROOMS)) or file not in files():
        return None
    return Blocks(files().index(file)).visit(ast.parse(text))


def pieces_watched(text: str) -> ast.Module:
    """A generated file in which the functions tell that are copies of pieces."""
    tree = ast.parse(text)
    for name, node in functions(tree, ""):
        if name in pieces():
            file, lines = pieces()[name]
            Blocks(files().index(file), lines, text).visit(node)
    return tree


@cache
def pieces() -> dict[str, tuple[str, dict[str, list[int]]]]:
    """The functions that are copied into generated files: their file, and where each line is."""
    found = {}
    for path in sorted((ROOT / "archc" / "runtime").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.split("\n")
        for name, node in functions(ast.parse(text), ""):
            places: dict[str, list[int]] = defaultdict(list)
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                places[lines[line - 1].strip()].append(line)
            found[name] = (str(path.relative_to(ROOT)), {**places, "": [node.lineno]})
    return found


def functions(node: ast.AST, before: str) -> Iterator[tuple[str, ast.AST]]:
    """Functions by their qualified names, and methods; those within others belong to these."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef):
            yield before + each.name, each
        elif isinstance(each, ast.ClassDef):
            yield from functions(each, f"{before}{each.name}.")


# --- this process -------------------------------------------------------------------------------


def start() -> None:
    """Watch this process, and write what was reached when it ends."""
    setattr(builtins, REACHED, _found.add)
    loader = next(each for each in SourceLoader.__mro__ if each is not SourceLoader)
    plain = loader.source_to_code

    def source_to_code(self: Any, data: Any, path: Any, **more: Any) -> Any:
        tree = watched(data.decode("utf-8"), str(path)) if isinstance(data, bytes) else None
        return plain(self, data if tree is None else tree, path, **more)

    loader.source_to_code = source_to_code
    atexit.register(write)
    os.register_at_fork(after_in_child=_found.clear)


def write() -> None:
    """What this process has reached since it was last asked."""
    lines: dict[str, int] = defaultdict(int)
    for block in list(_found):
        place, last = divmod(block, LINES)
        file, first = divmod(place, LINES)
        lines[files()[file]] |= (1 << last + 1) - (1 << first)
    _found.clear()
    told("lines", {_test[0]: {file: hex(bits) for file, bits in lines.items()}})


def told(kind: str, what: object) -> None:
    """One line more of what this process has to tell."""
    name = f"{kind}-{os.getpid()}-{threading.get_native_id()}.jsonl"
    with (Path(os.environ["REACH_OUT"]) / name).open("a", encoding="utf-8") as file:
        file.write(json.dumps(what) + "\n")


# --- the hooks of pytest ------------------------------------------------------------------------


def pytest_configure() -> None:
    if "REACH_LINES" in os.environ and not hasattr(builtins, REACHED):
        start()


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Those that are named, in that order; all, if none of them is there."""
    if "REACH_SELECT" in os.environ:
        path = Path(os.environ["REACH_SELECT"])
        order = {name: at for at, name in enumerate(path.read_text("utf-8").splitlines())}
        chosen = [item for item in items if item.nodeid in order]
        items[:] = sorted(chosen, key=lambda item: order[item.nodeid]) or items


def pytest_runtest_logstart(nodeid: str) -> None:
    """What is reached from now on is reached by this test."""
    if "REACH_LINES" in os.environ:
        write()
        _test[0] = os.environ["REACH_TEST"] = nodeid


def pytest_runtest_logfinish() -> None:
    if "REACH_LINES" in os.environ:
        write()


def pytest_runtest_logreport(report: Any) -> None:
    """What a test needs and has got is nothing that it has passed: its seconds count with the
    test's own, which may never end."""
    if "REACH_OUT" not in os.environ:
        return
    _seconds[0] += report.duration
    if report.when != "setup" or not report.passed:
        told("ended", [report.nodeid, report.outcome, round(_seconds[0], 3), why(report)])
        _seconds[0] = 0.0


def pytest_collectreport(report: Any) -> None:
    if "REACH_OUT" in os.environ and report.failed:
        told("ended", [report.nodeid, report.outcome, 0.0, why(report)])


def why(report: Any) -> str:
    """Why a test has not passed, in a line."""
    if report.outcome != "failed":
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line for line in (crash.message if crash else report.longreprtext).split("\n") if line]
    return lines[0 if crash else -1].strip()[:160] if lines else ""

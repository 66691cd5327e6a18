"""What cases came to: a table, and what is recorded."""

from __future__ import annotations

import json
import platform
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.gpu.cases import Case
from tests.gpu.pool import Done, is_full

KINDS = ("out", "grad", "gate")
"""Outputs and last states; gradients; gradients of gates."""

Row = dict[str, Any]


def problems(done: Done) -> list[str]:
    """What is wrong with a case, a line each."""
    found = done[1]
    if "failed" in found:
        return [found["failed"]]
    errors = found["errors"].items()
    wrong = [
        f"{name} {error:.1e} > {limit:g}" for name, (error, limit) in errors if not error < limit
    ]
    return wrong + ["two runs differ"] * (not found.get("repeats", True))


def rows(done: Sequence[Done]) -> list[Row]:
    """For every spec and dtype: how many cases, how many are wrong, and the worst errors."""
    sorted_out: dict[tuple[str, str], list[Done]] = defaultdict(list)
    for case, found in done:
        sorted_out[case.spec, case.dtype].append((case, found))
    return [_row(*key, sorted_out[key]) for key in sorted(sorted_out)]


def _row(spec: str, dtype: str, done: Sequence[Done]) -> Row:
    row: Row = {"spec": spec, "dtype": dtype, "cases": len(done)}
    row["wrong"] = sum(bool(problems(one)) for one in done)
    row["seconds"] = round(sum(found.get("seconds", 0) for _, found in done), 1)
    errors = [item for _, found in done for item in found.get("errors", {}).items()]
    for kind in KINDS:
        own = [(pair[0] / pair[1], *pair, name) for name, pair in errors if name.startswith(kind)]
        if own:
            _, error, limit, name = max(own)
            row[kind] = {"error": error, "limit": limit, "of": name.partition(" ")[2]}
    return row


def table(done: Sequence[Done]) -> Iterator[str]:
    """What is wrong, a few cases for each row, and then the rows: errors, each with its limit."""
    yield from told(done)
    head = f"{'spec':24}{'dtype':9}{'cases':>6}{'wrong':>6}{'s':>6}"
    yield head + "".join(f"  {kind:32}" for kind in KINDS)
    for row in rows(done):
        line = f"{row['spec']:24}{row['dtype']:9}{row['cases']:6}{row['wrong']:6}"
        line += f"{row['seconds']:6.0f}"
        for kind in KINDS:
            worst = row.get(kind)
            if worst:
                over = " " if worst["error"] < worst["limit"] else "!"
                short = worst["of"].rpartition(": ")[2][:14]
                line += f"  {worst['error']:.1e}{over}of {worst['limit']:<6g} {short:14}"
        yield line.rstrip()


def told(done: Sequence[Done], each: int = 2, traces: int = 6) -> Iterator[str]:
    """So many wrong cases of each row, and so many tracebacks in all."""
    shown: dict[tuple[str, str], int] = defaultdict(int)
    seen: set[str] = set()
    for one in done:
        case, found = one
        wrong = problems(one)
        shown[case.spec, case.dtype] += bool(wrong)
        if wrong and shown[case.spec, case.dtype] <= each:
            yield f"WRONG {case}: {'; '.join(wrong)[:300]}"
        trace = found.get("trace", "")
        if trace and trace[-120:] not in seen and len(seen) < traces:
            seen.add(trace[-120:])
            yield "    " + trace[-400:].replace("\n", "\n    ")


def keep(log: Path, one: Done, where: Row) -> None:
    """A line more of what is done, and where it was."""
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps([asdict(one[0]), one[1], where]) + "\n")


def kept(log: Path) -> dict[Case, tuple[Row, Row]]:
    """What became of the cases of earlier runs, and where; not of those that found no memory."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    read = (json.loads(line) for line in lines)
    return {Case(**case): (found, where) for case, found, where in read if not is_full(found)}


def recorded(
    done: Sequence[Done], suites: Sequence[str], planned: int, places: Sequence[Row]
) -> Row:
    """What the file of results says; all that `places` say, where runs were in several."""
    names = {name: [each[name] for each in places] for name in places[0]}
    return {
        "what": "generated kernels against the eager form in float64: relative RMS errors",
        **{name: _all_of(each) for name, each in names.items()},
        "suites": list(suites),
        "cases": len(done),
        "not run": planned - len(done),
        "wrong": sum(bool(problems(one)) for one in done),
        "run twice": sum("repeats" in found for _, found in done),
        "rows": rows(done),
        "failures": [
            {"case": asdict(one[0]), "problems": problems(one)} for one in done if problems(one)
        ],
    }


def _all_of(values: Sequence[Any]) -> Any:
    """The one value, or all, in turn."""
    found = [value for n, value in enumerate(values) if value not in values[:n]]
    return found[0] if len(found) == 1 else found


def where(device: str) -> Row:
    """The machine, the versions and the commit."""
    import torch

    root = Path(__file__).parents[2]
    asked = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, cwd=root, capture_output=True, text=True, check=False)
    there = {each.metadata["Name"] for each in metadata.distributions()}
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "triton": metadata.version("triton") if "triton" in there else "none",
        },
        "commit": commit.stdout.strip() or "unknown",
    }

"""`python -m tests.specs.record`: run the comparisons, and write what they reached to a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "references.md"

HEAD = """# What the bundled specs agree with

Same weights, random inputs, float64 on our side; the references compute parts of their work in
float32, which is what most of these numbers show. "Largest difference" is the largest
|ours - theirs| / (|theirs| + rms(theirs)) over all values; the tests in `tests/specs` fail above
the limit. Written by `python -m tests.specs.record`.

| spec | reference | largest difference | limit |
|---|---|---:|---:|
"""


def table(rows: list[dict[str, str | float]]) -> str:
    """The page's text, one line a comparison, by spec and in the order in which they ran."""
    ordered = sorted(rows, key=lambda row: row["spec"])
    lines = (
        f"| {r['spec']} | {r['reference']} | {r['reached']:.1e} | {r['limit']:.0e} |"
        for r in ordered
    )
    return HEAD + "\n".join(lines) + "\n"


def main() -> int:
    """Exit status of pytest; the page is written only when every comparison passed."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reached.jsonl"
        command = [sys.executable, "-m", "pytest", "-q", "tests/specs"]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"ARCHC_RECORD": str(file)}, check=False
        )
        if done.returncode == 0:
            rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
            PAGE.write_text(table(rows), encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

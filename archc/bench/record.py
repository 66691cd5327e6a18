"""The circumstances of numbers that are kept: the command, the commit, versions, the date."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from archc.bench.drawn import load_file

HERE = Path(__file__).resolve().parent


def record(command: Sequence[str], peers: str | None, commit: str | None = None) -> dict[str, Any]:
    """The circumstances of numbers, as data: command, date, commit (given where this is a copy
    without git) and versions."""
    named = getattr(load_file(Path(peers), "archc_bench_peers"), "PACKAGES", ()) if peers else ()
    return {
        "command": shlex.join(command),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit or _commit(),
        "versions": {name: _version(name) for name in ("archc", *named)},
    }


def peers_file() -> str:
    """The table of peers that stands beside the bundled specs."""
    return str(resources.files("archc.specs") / "peers.py")


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit that the compiler is at; empty where it is not in a repository."""
    try:
        made = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=HERE, check=False, capture_output=True,
            text=True,
        )  # fmt: skip
    except FileNotFoundError:
        return ""
    return made.stdout.strip()

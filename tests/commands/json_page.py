"""The table of `docs/command_line.md` on `--json`: an example of every verb, and its keys."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "command_line.md"
ROWS = re.findall(r"^\| `archc ([^`]*--json)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
EXAMPLES = dict(ROWS)


def verb(command: str) -> str:
    """The verb of an example."""
    return shlex.split(command)[0]


def keys(command: str) -> tuple[bool, set[str]]:
    """Whether the page promises a list, and which keys, of the whole or of an entry of it; those
    after a semicolon are for other options."""
    listed, always = EXAMPLES[command].split(";")[0].rpartition("list: ")[1:]
    return bool(listed), set(re.findall(r"`(\w+)`", always))


def as_promised(command: str, data: Any) -> bool:
    """Whether an answer has the keys of the page, and no others."""
    listed, promised = keys(command)
    assert isinstance(data, list) == listed, command
    entries = data if listed else [data]
    return bool(entries) and all({*entry} == promised for entry in entries)

"""For the site: a page of each error code, from the texts that `archc explain` prints; and no link
that leads out of it."""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path
from typing import Any

EXPLAIN = Path(__file__).parent.parent / "archc" / "explain"


def on_files(files: Any, config: Any) -> Any:
    """Add `errors/E0201.md` and the like, and a list of them."""
    from mkdocs.structure.files import File

    rows = []
    for path in sorted(EXPLAIN.glob("E*.md")):
        text = path.read_text(encoding="utf-8")
        rows.append(f"| [{path.stem}]({path.name}) | {text.splitlines()[0].partition(': ')[2]} |")
        text = re.sub(r"^```(\w+) (?:fail|ok|warn).*$", r"```\1", text, flags=re.MULTILINE)
        text = text.replace("](../../docs/", "](../")
        files.append(File.generated(config, f"errors/{path.name}", content=text))
    table = "\n".join(["# Every error", "", "| code | what it says |", "|---|---|", *rows, ""])
    files.append(File.generated(config, "errors/index.md", content=table))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Of a link to a file that is no page of the site, such as `../ARCHITECTURE.md`, the text."""
    folder = Path(page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = normpath(folder / match[2])
        return match[1] if target.startswith("..") else match[0]

    return re.sub(r"(?<!!)\[([^\]\n]+)\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", kept, markdown)

"""Text of a Python file: lines at an indentation, names that cannot clash, comments that cite
the spec."""

from __future__ import annotations

import builtins
import keyword
import re
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from archc.source import Span

COLUMNS = 100
INDENT = "    "
FORBIDDEN = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | frozenset(dir(builtins))
"""Words that no generated name may be: they mean something else in Python."""


class Names:
    """Hands out identifiers that are valid, unused in this scope, and as close to the hint as
    can be."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def fresh(self, hint: str) -> str:
        """`q`, or `q_2` where `q` is in use."""
        base = identifier(hint)
        name, count = base, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def copy(self) -> Names:
        """The same names in use, for an inner scope."""
        return Names(self.taken)


def identifier(text: str) -> str:
    """The nearest Python identifier in ASCII: `K'` is `K_prime`, `lambda` is `lambda_`,
    `layers.0` is `layers_0`."""
    text = text.replace("'", "_prime")
    text = "".join(
        char if char.isascii() and (char.isalnum() or char == "_") else "_" for char in text
    )
    if not text or text[0].isdigit() or text.startswith("__"):
        text = "n" + text
    return text + "_" if text in FORBIDDEN else text


def snake(name: str) -> str:
    """A class name in snake case: `GatedShortConv` is `gated_short_conv`, `KDA` is `kda`."""
    return identifier(re.sub(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z]{2,})", "_", name).lower())


def quoted(text: str) -> str:
    """A Python string literal in double quotes."""
    shown = text.encode("unicode_escape").decode("ascii")
    return '"' + shown.replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """Text of a spec as a comment or docstring may hold it: one line, nothing that ends either."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean.replace("\\", "/").replace('"""', "'''").strip()


class Writer:
    """Collects the lines of a file."""

    def __init__(self, margin: int = 0) -> None:
        self.lines: list[str] = []
        self.depth, self.margin = 0, margin
        self._cited = ""

    @property
    def room(self) -> int:
        """Columns that a line has behind its indentation; `margin` is what an outer block will
        add."""
        return COLUMNS - self.margin - len(INDENT) * self.depth

    def line(self, text: str = "", note: str = "") -> None:
        """One line; the note becomes a comment behind it where it fits."""
        if note and len(text) + 4 + len(note) <= self.room:
            text = f"{text}  # {note}"
        self.lines.append(INDENT * self.depth + text if text else "")

    def include(self, lines: Iterable[str]) -> None:
        """Lines that were written elsewhere, one step after the other in here."""
        self.lines += [INDENT * self.depth + line if line else "" for line in lines]

    def comment(self, text: str) -> None:
        """A comment line, cut at the margin."""
        text = f"# {printable(text)}"
        self.line(text if len(text) <= self.room else text[: self.room - 3].rstrip() + "...")

    def cite(self, span: Span | None) -> None:
        """The line of the spec that the next lines come from: `# kda.arch:21  S[t] = ...`."""
        text = f"{span.where}  {statement(span)}" if span is not None else ""
        if text and text != self._cited:
            self.comment(text)
            self._cited = text

    def docstring(self, paragraphs: Iterable[str]) -> None:
        """A docstring of paragraphs, wrapped; lines that start with a blank are kept as they
        are."""
        width = self.room
        blocks = []
        for paragraph in paragraphs:
            kept = [line.rstrip() for line in paragraph.split("\n")]
            blocks.append([part for line in kept for part in wrapped(line, width)])
        if len(blocks) == 1 and len(blocks[0]) == 1 and len(blocks[0][0]) <= width - 6:
            self.line(f'"""{blocks[0][0]}"""')
            return
        blocks[0] = wrapped("   " + blocks[0][0], width) + blocks[0][1:]
        first = '"""' + blocks[0][0].lstrip()
        for number, block in enumerate(blocks):
            if number:
                self.line()
            for index, line in enumerate(block):
                self.line(first if number == index == 0 else line)
        self.line('"""')

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """`header` and everything written inside, one step further in."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    def call(self, before: str, items: list[str], after: str, note: str = "") -> None:
        """`before item, item after` on one line, or one item a line where that is too long."""
        text = before + ", ".join(items) + after
        if len(text) <= self.room:
            self.line(text, note)
            return
        self.line(before)
        self.depth += 1
        joined = ", ".join(items)
        if len(joined) <= self.room:
            self.line(joined)
        else:
            for item in items:
                self.line(item + ",")
        self.depth -= 1
        self.line(after)

    def text(self) -> str:
        """The file so far, with one newline at its end and no run of more than two blank lines."""
        joined = "\n".join(line.rstrip() for line in self.lines)
        return re.sub(r"\n{4,}", "\n\n\n", joined).strip("\n") + "\n"


def wrapped(line: str, width: int) -> list[str]:
    """A line in pieces of at most `width`; an indented line keeps its indentation."""
    lead = line[: len(line) - len(line.lstrip())]
    hang = lead + INDENT if lead else ""
    pieces = textwrap.wrap(line.strip(), width, initial_indent=lead, subsequent_indent=hang)
    return pieces or [""]


def statement(span: Span) -> str:
    """What a span says on its first line, without the comment behind it."""
    return span.text.split("\n")[0].split("#")[0].strip()

"""Messages of the command line beside its product: findings, remarks, and the report of a crash."""

from __future__ import annotations

import re
import sys
import tempfile
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import click

from archc.commands.status import Status
from archc.diagnostics import Diagnostic

_MARKS = re.compile(
    r"^(?P<severity>(?:error|warning)\[E\d+\])|^ *(?P<margin>-->|\||=|\d+ \|)"
    r"|(?<= \| )(?P<primary> *\^+(?: .*)?)$|(?<= \| )(?P<secondary> *-+(?: .*)?)$"
)
_COLOURS = {"severity": "red", "margin": "blue", "primary": "red", "secondary": "blue"}


@dataclass
class Console:
    """Standard error, as one run uses it."""

    quiet: bool = False

    def say(self, text: str) -> None:
        """A remark, which `--quiet` leaves out."""
        if not self.quiet:
            click.echo(text, err=True)

    def findings(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Diagnostics with their source lines, a blank line between two."""
        for number, finding in enumerate(diagnostics):
            click.echo(("\n" if number else "") + coloured(finding.render()), err=True)

    def warnings(self, diagnostics: Iterable[Diagnostic]) -> None:
        """The warnings, of what is right but may not be meant; `--quiet` leaves them out."""
        if not self.quiet:
            self.findings(diagnostics)


def coloured(text: str) -> str:
    """A rendered finding with colours; click drops them where they do not belong."""

    warns = text.startswith("warning")

    def paint(match: re.Match[str]) -> str:
        kind = str(match.lastgroup)
        if warns and _COLOURS[kind] == "red":
            return click.style(match[0], fg="yellow", bold=kind == "severity")
        return click.style(match[0], fg=_COLOURS[kind], bold=kind == "severity")

    return "\n".join(_MARKS.sub(paint, line) for line in text.split("\n"))


def crash(error: Exception) -> int:
    """Write the traceback to a file, tell the user, and return the exit status."""
    where = _crash_file(error)
    brief = str(error).split("\n", 1)[0][:200]
    click.echo(f"archc stopped: {type(error).__name__}: {brief}", err=True)
    click.echo(
        "This is a bug in archc, not in your spec. Please open an issue with the spec, the\n"
        f"command, and this file: {where}",
        err=True,
    )
    return Status.BUG


def _crash_file(error: Exception) -> str:
    """A new file with the traceback; where none can be written, why."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="archc-crash-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"archc {_version()}, Python {sys.version}\n{' '.join(sys.argv)}\n\n")
            file.writelines(traceback.format_exception(error))
            return file.name
    except OSError as refused:
        return f"(none could be written: {refused.strerror})"


def refused(error: OSError) -> Diagnostic:
    """The diagnostic E0030 for an error of the operating system."""
    known = error.filename is not None
    what = f"read or write `{error.filename}`" if known else "write to standard output"
    reason = (error.strerror or str(error)).lower()
    return Diagnostic("E0030", f"cannot {what}", notes=(reason,))


def _version() -> str:
    try:
        return version("archc")
    except PackageNotFoundError:
        return "(not installed)"

"""Exit statuses of the command line: what a shell or a CI job may rely on."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The exit statuses of `archc`; `archc --help` lists them."""

    FINE = 0
    REFUSED = 1
    """The spec, or what the system was asked for, is refused, with a diagnostic."""
    USAGE = 2
    """The command line itself is wrong (click's own status)."""
    DISAGREE = 3
    """Numbers disagree with their reference, or a measurement of ours failed."""
    BUG = 4
    """A bug in archc: the message names a file to report."""
    INTERRUPTED = 130
    """Ctrl-C, as other programs of a shell end."""

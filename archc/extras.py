"""The optional packages of archc's extras, and how to install them."""

from __future__ import annotations

from importlib.util import find_spec


class MissingExtra(ImportError):
    """A part of archc needs packages that are missing; the message names them and their extra."""


def needs(extra: str, what: str, *packages: str) -> None:
    """Raise `MissingExtra` unless the packages of an extra are there."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        names, verb = " and ".join(missing), "are" if missing[1:] else "is"
        raise MissingExtra(
            f"{what} needs {names}, which {verb} not installed: pip install 'archc[{extra}]'"
        )

"""Writing products: whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from archc.diagnostics import ArchError, fail


def write(output: str, text: str) -> None:
    """Write a product to a file, or to standard output for `-`.

    A file is replaced in one step, so that nobody sees half of it and a failure leaves what was
    there. Raises ArchError E0030 if the file cannot be written.
    """
    if output == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        _replace(Path(output), text)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise _cannot_write(output, error) from None


def _replace(path: Path, text: str) -> None:
    target = path.resolve()
    if target.exists() and not target.is_dir() and not target.is_file():  # such as /dev/null
        target.write_text(text, encoding="utf-8")
        return
    if target.is_dir():
        raise IsADirectoryError
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        if target.exists():
            if not os.access(target, os.W_OK):
                raise PermissionError
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _cannot_write(output: str, error: OSError | ValueError) -> ArchError:
    """E0030 with the reason."""
    match error:
        case IsADirectoryError():
            reason = "it is a folder"
        case FileNotFoundError() | NotADirectoryError():
            reason = f"there is no folder `{Path(output).parent}`"
        case PermissionError():
            reason = "no permission"
        case OSError():
            reason = (error.strerror or "the system refused").lower()
        case _:
            reason = str(error)
    return fail("E0030", f"cannot write `{output}`", notes=(reason,))

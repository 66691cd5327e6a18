"""Writing products: whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import sys
from pathlib import Path
from typing import Any

import click

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


def json_text(data: object) -> str:
    """Data as a product."""
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def check_json(output: str, as_json: bool) -> None:
    """Refuse `--json` where the product goes to standard output: only one of them can be there."""
    if as_json and output == "-":
        raise click.UsageError("--json prints what was written: name a file with -o.")


def tell(output: str | None, **data: Any) -> None:
    """Print the name of the file written, and more about it, as data; None: no file was written."""
    click.echo(json.dumps({"output": output, **data}, indent=2, ensure_ascii=False))


def make_folder(path: Path) -> None:
    """Make a folder for a product, with those above it, but no home folder where there is none."""
    home = Path.home()
    if not home.exists() and home in (path, *path.parents):
        raise fail("E0030", f"cannot write to `{path}`", notes=(f"there is no folder `{home}`",))
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(str(path), error) from None


def _replace(path: Path, text: str) -> None:
    target = Path(os.path.realpath(path))
    if target.is_symlink():  # it leads to itself
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if target.exists() and not target.is_dir() and not target.is_file():  # such as /dev/null
        target.write_text(text, encoding="utf-8")
        return
    if target.is_dir():
        raise IsADirectoryError
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}.tmp")
    new = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # nobody's link
    try:
        with os.fdopen(new, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
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
            home = Path(output).parent
            reason = f"there is no folder `{home}`"
            if home.is_dir():  # such as /proc
                reason = f"the system makes nothing new in `{home}`"
        case PermissionError():
            reason = "no permission"
        case OSError():
            reason = (error.strerror or "the system refused").lower()
        case _:
            reason = str(error)
    return fail("E0030", f"cannot write `{output}`", notes=(reason,))

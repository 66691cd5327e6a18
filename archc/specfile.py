"""The places a spec's text comes from: a path, standard input, or the bundle of specs.

A text is read whole, at most `LIMIT` bytes of UTF-8, and every way in which that can fail is a
diagnostic with its own code. What a spec imports lies beside it or in the bundle, nowhere else.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from archc.diagnostics import ArchError, did_you_mean, fail
from archc.source import Source, Span

LIMIT = 1 << 20
"""The largest spec, in bytes."""

SUFFIX = ".arch"
STDIN = "<stdin>"
_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*\.arch")
_WITH_LAYER = re.compile(r"(.+):([^\W\d]\w*)")


@dataclass(frozen=True, eq=False)
class BundledSource(Source):
    """A spec of the bundle: it imports from the bundle alone, whatever the working folder holds."""


def split(spec: str) -> tuple[str, str | None]:
    """The parts of `my.arch:Block`: where the text is, and which layer of it (None: the last)."""
    match = _WITH_LAYER.fullmatch(spec)
    return (match[1], match[2]) if match else (spec, None)


@cache
def bundled() -> tuple[str, ...]:
    """Names of the bundled specs, sorted"""
    names = (entry.name for entry in resources.files("archc.specs").iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def read(spec: str) -> Source:
    """The text that `spec` names: `-` (standard input), a bundled name, or a path.

    A bundled name wins over a file of that name in the working folder; write `./name` for the file.
    Raises ArchError: E0001 missing, E0002 a folder, E0003 no permission, E0004 not text, E0005 too
    large, E0008 unreadable for another reason.
    """
    if spec == "-":
        return Source(STDIN, _decode(_standard_input(), STDIN))
    if spec in bundled():
        return _bundled(spec)
    text = _read_path(spec)
    if text is None:
        raise _missing(spec)
    return Source(spec, text)


def import_source(name: str, from_source: Source, span: Span | None = None) -> Source:
    """The text of `import ... from "name"` in `from_source`; `span` is where that is written.

    `name` is a plain file name, `my.arch`: it is looked for beside the importing file, then in the
    bundle. A text that came from no file imports from the bundle alone.
    Raises ArchError E0020 (not a plain file name), E0021 (no such file), and what `read` raises.
    """
    if not _FILE_NAME.fullmatch(name):
        raise fail(
            "E0020",
            f"cannot import from `{name}`",
            span,
            "not a plain file name",
            notes=("an import names a file beside the spec or in the bundle, such as `my.arch`",),
        )
    if not isinstance(from_source, BundledSource) and not from_source.name.startswith("<"):
        path = str(Path(from_source.name).parent / name)
        text = _read_path(path)
        if text is not None:
            return Source(path, text)
    stem = name.removesuffix(SUFFIX)
    if stem in bundled():
        return _bundled(stem)
    raise fail(
        "E0021",
        f"there is no `{name}` to import from",
        span,
        "neither beside this file nor in the bundle",
        helps=did_you_mean(name, [spec + SUFFIX for spec in bundled()]),
    )


@cache
def _bundled(name: str) -> BundledSource:
    """The text of a spec of the bundle."""
    text = resources.files("archc.specs").joinpath(name + SUFFIX).read_text(encoding="utf-8")
    return BundledSource(name + SUFFIX, text)


def _standard_input() -> bytes:
    """All of standard input; a process may have been started without one."""
    reason = "it is closed"
    if sys.stdin is not None:
        try:
            return sys.stdin.buffer.read(LIMIT + 1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
    raise fail("E0008", "cannot read standard input", notes=(reason,))


def _read_path(path: str) -> str | None:
    """Text of a file, or None if there is none: the caller knows what else may have been meant."""
    shown = _printable(path)
    try:
        with Path(path).open("rb") as file:
            return _decode(file.read(LIMIT + 1), shown)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise fail("E0002", f"`{shown}` is a folder, not a spec") from None
    except PermissionError:
        raise fail("E0003", f"no permission to read `{shown}`") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise fail("E0008", f"cannot read `{shown}`", notes=(str(reason).lower(),)) from None


def _decode(data: bytes, shown: str) -> str:
    """UTF-8 text with plain newlines and no byte order mark."""
    if len(data) > LIMIT:
        raise fail("E0005", f"`{shown}` is larger than {LIMIT >> 20} MiB, the limit of a spec")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _not_text(shown, f"byte 0x{data[error.start]:02x} in line {line}") from None
    if "\0" in text:
        raise _not_text(
            shown, f"a NUL character in line {text.partition(chr(0))[0].count(chr(10)) + 1}"
        )
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _not_text(shown: str, found: str) -> ArchError:
    return fail("E0004", f"`{shown}` is not UTF-8 text", notes=(f"found {found}",))


def _missing(spec: str) -> ArchError:
    """E0001, with the bundled name that was probably meant."""
    shown, stem = _printable(spec), Path(spec).name.removesuffix(SUFFIX)
    near = (
        (f"`{stem}` alone is a bundled spec",)
        if stem in bundled()
        else did_you_mean(stem, bundled())
    )
    if spec == stem:
        helps = near or ("`archc list` shows the bundled specs",)
        return fail("E0001", f"`{shown}` is neither a bundled spec nor a file", helps=helps)
    return fail("E0001", f"there is no file `{shown}`", helps=near)


def _printable(path: str) -> str:
    """A path that cannot disturb a terminal."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in path)

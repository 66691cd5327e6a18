"""A generated file is put together: imports, constants, runtime, its own sections, self-check."""

from __future__ import annotations

import re

from archc.backends.eager.file import File
from archc.backends.embedding import imports_of, needs_of

NOTES = {"CHUNK": "tokens of a chunk", "STEPS": "fewer tokens than these go one by one"}
"""The meaning of numbers at the head of a file, by the first letters of their names."""

CHECK = "# --- self-check: run this file ---"


def assembled(file: File, embedded: bool = True, check: str = "") -> str:
    """The text of a file from its imports on, with its runtime embedded or imported; `check` is the
    definitions of its self-check, which stand at its end."""
    own = [*constants(file), *file.sections, *file.ending]
    needs = needs_of([*own, check], embedded)
    first = {each.name for each in needs_of(own, embedded).definitions}
    texts = [each.text for each in needs.definitions if embedded and each.name in first]
    sections = [*constants(file), *texts, *file.sections, *file.ending]
    if check:
        later = [each.text for each in needs.definitions if embedded and each.name not in first]
        sections += [CHECK, *later, check]
    body = "\n\n\n".join(text.strip("\n") for text in sections)
    body = re.sub(r"(?m)^([A-Z_]+ = .*)\n\n\n(?=[A-Z_]+ = )", r"\1\n", body)
    body = re.sub(r"(?m)^\)\n\n\n(?=\w+ = )", ")\n", body)
    blank = [""] if re.match(r"[A-Z_]+ = ", body) else ["", ""]
    return "\n".join([*imports_of(needs, embedded), *blank, body, ""])


def constants(file: File) -> list[str]:
    """The numbers at the head of a file that a reader may want to change."""
    lines = [f"{name} = {value}  # {NOTES[name[:5]]}" for name, value in file.constants.items()]
    return ["\n".join(lines)] if lines else []

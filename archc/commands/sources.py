"""From a SPEC on the command line to its Python file."""

from __future__ import annotations

import shlex

from archc.commands.stages import Given
from archc.compile import EMBEDDED, Dump, Style, compile_source, unseen
from archc.ir.text import option_text
from archc.specfile import read, split

BACKENDS = {"auto": "eager", "eager": "eager", "triton": "triton"}
"""The backend that each choice of `--backend` stands for."""


def source_of(
    spec: str,
    given: Given,
    backend: str = "eager",
    output: str = "-",
    dump: Dump = unseen,
    style: Style = EMBEDDED,
) -> str:
    """The Python file for what `spec` names; `output` is the file that it says it is made as."""
    where, name = split(spec)
    line = ["archc", "compile", spec, "-o", output]
    for key, value in given.items():
        line += ["--set", f"{key}={option_text(value)}"]
    line += ["--backend", backend] if backend != BACKENDS["auto"] else []
    line += ["--runtime", style.runtime] if style.runtime != EMBEDDED.runtime else []
    line += ["--no-check"] if not style.check else []
    return compile_source(read(where), name, given, backend, shlex.join(line), dump, style)

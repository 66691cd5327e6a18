"""From a SPEC on the command line to the stages of its compilation."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from archc.compile import compile_source, elaborated
from archc.ir.layer import Layer
from archc.ir.text import option_text
from archc.specfile import read, split
from archc.syntax import tree
from archc.syntax.parse import parse

Given = Mapping[str, Any]
"""Sizes and options by name, as `--set` gives them."""


def tree_of(spec: str) -> tree.File:
    """The tree of the whole file that `spec` names."""
    return parse(read(split(spec)[0]))


def layer_of(spec: str, given: Given) -> Layer:
    """The layer IR of what `spec` names, with the given sizes and options."""
    where, name = split(spec)
    return elaborated(read(where), name, given)


def source_of(spec: str, given: Given, backend: str = "eager", output: str = "-") -> str:
    """The Python file for what `spec` names; `output` is the file that it says it is made as."""
    where, name = split(spec)
    command = ["archc", "compile", spec, "-o", output]
    for key, value in given.items():
        command += ["--set", f"{key}={option_text(value)}"]
    return compile_source(read(where), name, given, backend, shlex.join(command))

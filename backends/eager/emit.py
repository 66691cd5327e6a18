"""Plan -> source text: one file that holds a layer, everything it calls, and its own check."""

from __future__ import annotations

import ast
from functools import cache
from importlib import resources

from archc.backends.eager.file import File
from archc.backends.eager.module import write_class
from archc.backends.eager.parts import Parts
from archc.backends.eager.table import EMITTERS
from archc.backends.writer import Writer
from archc.ir import layer as ir
from archc.ir.plan import Plan

IMPORTS = {
    "math.": "import math",
    "Callable": "from collections.abc import Callable",
    "NamedTuple": "from typing import NamedTuple",
}


def emit(plan: Plan) -> str:
    """The whole file, the same to the byte for the same plan."""
    file, classes = File(), dict[int, str]()
    layers = called_first(plan.layer)
    for layer in layers:
        classes[id(layer)] = file.names.fresh(layer.name)
        file.names.fresh(f"{classes[id(layer)]}State")
    for layer in layers:
        write_class(Parts(file, layer, EMITTERS, classes, layer is plan.layer))
    return assemble(plan, file)


def called_first(layer: ir.Layer) -> list[ir.Layer]:
    """Every layer that is called, each once, before those that call it."""
    found: dict[int, ir.Layer] = {}

    def visit(layer: ir.Layer) -> None:
        for _, call in layer.calls:
            if call.callee.kind != "argument" and id(call.callee) not in found:
                visit(call.callee)
        found[id(layer)] = layer

    visit(layer)
    return list(found.values())


def assemble(plan: Plan, file: File) -> str:
    """Header, imports, pieces, then the sections."""
    pieces = [text for name, text in pieces_by_name().items() if name in file.pieces]
    body = "\n\n\n".join(text.strip("\n") for text in [*pieces, *file.sections])
    writer = Writer()
    for line in imports(body):
        writer.line(line)
    return f"{writer.text()}\n\n{body}\n"


def imports(body: str) -> list[str]:
    """The import block for what the text uses."""
    standard = [line for word, line in IMPORTS.items() if word in body]
    torch = ["import torch"]
    if " Tensor" in body or "(Tensor" in body:
        torch.append("from torch import Tensor, nn" if "nn." in body else "from torch import Tensor")
    elif "nn." in body:
        torch.append("from torch import nn")
    if "F." in body:
        torch.append("from torch.nn import functional as F")
    return [*sorted(standard, key=lambda line: line.startswith("from")), "", *torch]


@cache
def pieces_by_name() -> dict[str, str]:
    """The text of each function of `pieces.py`."""
    text = resources.files("archc.backends.eager").joinpath("pieces.py").read_text("utf-8")
    tree = ast.parse(text)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = ast.get_source_segment(text, node) or ""
    return found

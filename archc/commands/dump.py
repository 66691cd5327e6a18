"""Every stage of a compilation as a file: `archc compile --dump DIR`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from archc.commands import writing
from archc.commands.show import DERIVED, kernels_text, plan_text
from archc.ir.layer import Layer, Recurrence
from archc.ir.text import as_text, called_layers, graph_text
from archc.syntax import text as tree_text
from archc.syntax.tree import File

LISTED = ("normal", "chunk", "grad")
"""Stages that are listings of recurrences, as `archc show` prints them."""


class Stages:
    """The stages of one compilation, as text, in order."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def see(self, stage: str, value: object) -> None:
        """Keep a stage: the tree, a layer after a pass, or the source."""
        match value:
            case File():
                self.texts[stage] = tree_text.as_text(value)
            case Layer():
                self.texts[stage] = as_text(value) + "".join(_forms(value))
            case str():
                self.texts[stage] = value

    def write(self, folder: Path, layer: Layer) -> int:
        """Write a file for each stage that was seen, and for what is derived of the layer as it is
        written; how many. Raises ArchError E0030 if one cannot be written."""
        derived = {stage: DERIVED[stage]["text"](layer) for stage in LISTED}
        derived |= {"plan": plan_text(layer), "kernels": kernels_text(layer)}
        source = {name: self.texts[name] for name in ("source",) if name in self.texts}
        passes = {name: text for name, text in self.texts.items() if name not in derived | source}
        for number, (stage, text) in enumerate({**passes, **derived, **source}.items(), 1):
            ending = "py" if stage == "source" else "txt"
            writing.write(str(folder / f"{number:02}-{stage}.{ending}"), text)
        return len({**passes, **derived, **source})


def _forms(layer: Layer) -> Iterator[str]:
    """The chunked form of each recurrence and its gradient, which passes for kernels change."""
    for each, name in called_layers(layer).items():
        for node in each.graph:
            form = node.op.chunked if isinstance(node.op, Recurrence) else None
            if form is not None:
                states = ", ".join(state.name for state in node.op.states)
                yield f"\nchunked form of {states} in {name}\n{graph_text(form.forward)}"
                if form.backward is not None:
                    yield f"\nits gradient\n{graph_text(form.backward)}"

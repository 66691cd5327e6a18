"""`archc compile`: a layer as one standalone Python file."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console as Terminal

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import json_option, set_option, spec_argument
from archc.commands.sources import BACKENDS, source_of
from archc.commands.stage_views import DERIVED, kernels_text, plan_text
from archc.commands.stages import Given, layer_of, tree_of
from archc.compile import KERNEL_PASSES, PASSES, RUNTIMES, Dump, Style, kernels_of
from archc.diagnostics import Diagnostic, fail
from archc.elaborate.last import parts_at_the_end
from archc.elaborate.ones import ones
from archc.ir.layer import Layer, Recurrence
from archc.ir.text import as_text, called_layers, graph_text
from archc.recurrence.chunk.loops import loops
from archc.specfile import split
from archc.syntax import text as tree_text
from archc.syntax.tree import File


@click.command()
@spec_argument
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is stdout.")
@set_option
@click.option(
    "--backend", type=click.Choice(list(BACKENDS)), default="auto", show_default=True,
    help="What the file is written in; auto takes the fastest there is.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if FILE is out of date.")
@click.option(
    "--emit", type=click.Choice(["tree", "layer", "source"]), default="source", show_default=True,
    help="Stop early and write that stage as text.",
)  # fmt: skip
@click.option(
    "--runtime", type=click.Choice(RUNTIMES), default="embed", show_default=True,
    help="Write what the file calls into it, or import it from archc.",
)  # fmt: skip
@click.option("--no-check", "bare", is_flag=True, help="Leave the self-check out of the file.")
@click.option(
    "--dump", "folder", default="", metavar="DIR",
    help="Write every stage of the compilation into this folder, a file each.",
)  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context, spec: str, output: str, given: Given, backend: str, check: bool, emit: str,
    runtime: str, bare: bool, folder: str, as_json: bool,
) -> None:  # fmt: skip
    """The file imports torch alone, and Triton where it launches kernels (with `--runtime import`
    archc, too). Run it: it checks itself and shows how fast it is.

    It is written only after all its forms agree with the meaning of the spec.
    """
    _check_options(check, output, emit, folder, as_json)
    console, stages = ctx.ensure_object(Console), Stages()
    ready: list[Layer] = []
    written: list[Layer] = []

    def note(stage: str, value: object) -> None:
        """Keep the layer as written, and that which the chunked forms are derived from."""
        stages.see(stage, value)
        if stage != "chunk" and isinstance(value, Layer):
            ready[:] = [value]
            written.append(value)

    with _waiting(spec, console.quiet):
        text = _stage(spec, given, BACKENDS[backend], output, emit, note, Style(runtime, not bare))
    for layer in ready:
        console.warnings(_may_not_be_meant(spec, written[0], layer))
    if folder:
        count = stages.write(Path(folder), written[0])
        console.say(f"{folder}: {count} stages written")
    if BACKENDS[backend] == "triton" and emit == "source" and "@kernel" not in text:
        console.say(f"no kernel is in this file: {kernels_of(written[0])}")
    if check:
        _compare(output, text)
        return
    writing.write(output, text)
    if as_json:
        writing.tell(output, emit=emit, backend=BACKENDS[backend], lines=text.count("\n"))
    elif output != "-":
        lines = text.count("\n")
        hint = f"; `python {output}` checks it" if emit == "source" and not bare else ""
        console.say(f"{output} written, {lines} lines{hint}")


def _may_not_be_meant(spec: str, written: Layer, layer: Layer) -> tuple[Diagnostic, ...]:
    """Warnings of a layer as written, and as its chunked forms are derived from."""
    parts = () if split(spec)[1] else parts_at_the_end(written)
    return (*parts, *ones(written), *loops(layer))


def _check_options(check: bool, output: str, emit: str, folder: str, as_json: bool) -> None:
    """Refuse options that do not go together, and a folder that cannot be made."""
    writing.check_json(output, as_json)
    if check and as_json:
        raise click.UsageError("--check writes nothing: its exit status is the answer, not --json.")
    if check and output == "-":
        raise click.UsageError("--check compares with a file: name it with -o.")
    if folder and (check or emit != "source"):
        raise click.UsageError("--dump writes every stage: leave --check and --emit out.")
    if folder:
        writing.make_folder(Path(folder))


def _stage(
    spec: str, given: Given, backend: str, output: str, emit: str, dump: Dump, style: Style
) -> str:
    if emit == "tree":
        return tree_text.as_text(tree_of(spec))
    if emit == "layer":
        return as_text(layer_of(spec, given))
    return source_of(spec, given, backend, output, dump, style)


def _waiting(spec: str, quiet: bool):
    """A sign of life on a terminal: checking the numbers takes seconds."""
    shown = sys.stderr.isatty() and not quiet
    return Terminal(stderr=True, quiet=not shown).status(f"compiling {spec}")


def _compare(output: str, text: str) -> None:
    """Refuse a file that is not what would be written now."""
    try:
        current = Path(output).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        current = ""
    if current != text:
        helps = ("compile again without --check",)
        raise fail("E0032", f"`{output}` is out of date, or is not there", helps=helps)


LISTED = ("normal", "chunk", "grad")
"""Stages that are listings of recurrences, as `archc show` prints them."""

EVERY = {"tree", "layer", *(name for name, _ in PASSES), *(name for name, _ in KERNEL_PASSES),
         *LISTED, "plan", "kernels", "source"}  # fmt: skip
"""Every stage that a dump may have."""

FILE = re.compile(r"\d\d-(\w+)\.(?:txt|py)")
"""The name of a stage's file."""


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
        written, and leave none there of an earlier compilation; how many are written. Raises
        ArchError E0030 if one cannot be."""
        derived = {stage: DERIVED[stage]["text"](layer) for stage in LISTED}
        derived |= {"plan": plan_text(layer), "kernels": kernels_text(layer)}
        source = {name: self.texts[name] for name in ("source",) if name in self.texts}
        passes = {name: text for name, text in self.texts.items() if name not in derived | source}
        made = dict[str, str]()
        for number, (stage, text) in enumerate({**passes, **derived, **source}.items(), 1):
            ending = "py" if stage == "source" else "txt"
            made[f"{number:02}-{stage}.{ending}"] = text
        for name, text in made.items():
            writing.write(str(folder / name), text)
        for path in folder.iterdir():
            of_a_stage = FILE.fullmatch(path.name)
            if of_a_stage and of_a_stage[1] in EVERY and path.name not in made:
                path.unlink()
        return len(made)


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

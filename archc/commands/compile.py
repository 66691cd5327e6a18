"""`archc compile`: a layer as one standalone Python file."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click
from rich.console import Console as Terminal

from archc.commands import files
from archc.commands.arguments import set_option, spec_argument
from archc.commands.console import Console
from archc.commands.stages import Given, layer_of, tree_of
from archc.compile import EMBEDDED, RUNTIMES, Dump, Style, compile_source, kernels_of, unseen
from archc.diagnostics import fail
from archc.ir.layer import Layer
from archc.ir.text import as_text, option_text
from archc.recurrence.loops import loops
from archc.specfile import read, split
from archc.syntax import text as tree_text

BACKENDS = {"auto": "eager", "eager": "eager", "triton": "triton"}
"""What each choice of `--backend` stands for."""


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
@click.pass_context
def command(
    ctx: click.Context, spec: str, output: str, given: Given, backend: str, check: bool, emit: str,
    runtime: str, bare: bool,
) -> None:  # fmt: skip
    """The file imports torch alone, and Triton where it launches kernels (with `--runtime import`
    archc, too). Run it: it checks itself and shows how fast it is.

    It is written only after all its forms agree with the meaning of the spec.
    """
    if check and output == "-":
        raise click.UsageError("--check compares with a file: name it with -o.")
    console = ctx.ensure_object(Console)
    ready: list[Layer] = []
    written: list[Layer] = []

    def note(stage: str, value: object) -> None:
        """Keep the layer as written, and that which the chunked forms are derived from."""
        if stage != "chunk" and isinstance(value, Layer):
            ready[:] = [value]
            written.append(value)

    with _waiting(spec, console.quiet):
        text = _stage(spec, given, BACKENDS[backend], output, emit, note, Style(runtime, not bare))
    for layer in ready:
        console.warnings(loops(layer))
    if BACKENDS[backend] == "triton" and emit == "source" and "@kernel" not in text:
        console.say(f"no kernel is in this file: {kernels_of(written[0])}")
    if check:
        _compare(output, text)
        return
    files.write(output, text)
    if output != "-":
        lines = text.count("\n")
        hint = f"; `python {output}` checks it" if emit == "source" and not bare else ""
        console.say(f"{output} written, {lines} lines{hint}")


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

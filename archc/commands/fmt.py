"""`archc fmt`: specs in the standard form."""

from __future__ import annotations

import difflib
from pathlib import Path

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.status import Status
from archc.diagnostics import ArchError, Diagnostic
from archc.source import Source
from archc.specfile import STDIN, BundledSource, read
from archc.syntax.format import format_source


@click.command()
@click.argument("paths", metavar="SPEC...", nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if something would.")
@click.option("--diff", is_flag=True, help="Change nothing; print what would change.")
@click.option("--unicode", is_flag=True, help="Print the symbols of papers, β for beta.")
@click.pass_context
def command(
    ctx: click.Context, paths: tuple[str, ...], check: bool, diff: bool, unicode: bool
) -> None:
    """Files are rewritten, folders searched for *.arch; - and bundled specs go to stdout.

    Comments, line breaks and meaning stay. A file with syntax errors is left as it is.
    """
    console = ctx.ensure_object(Console)
    found: list[Diagnostic] = []
    changed = 0
    for path in expanded(paths):
        try:
            source = read(path)
            text = format_source(source, unicode)
        except ArchError as error:
            found += error.diagnostics
            continue
        changed += text != source.text
        if diff:
            click.echo(unified(source, text), nl=False)
        elif not check:
            save(path, source, text)
        if (check or diff) and text != source.text:
            console.say(f"{path} would change")
        elif text != source.text:
            console.say(f"{path} formatted")
    console.findings(found)
    ctx.exit(Status.REFUSED if found or (check and changed) else Status.FINE)


def expanded(paths: tuple[str, ...]) -> list[str]:
    """The paths, with each folder replaced by the specs in it."""
    found: list[str] = []
    for path in paths:
        inside = sorted(Path(path).rglob("*.arch")) if Path(path).is_dir() else []
        found += [str(each) for each in inside] or [path]
    return found


def save(path: str, source: Source, text: str) -> None:
    """Write a formatted spec back to where it came from."""
    if source.name == STDIN or isinstance(source, BundledSource):
        writing.write("-", text)
    elif text != source.text:
        writing.write(path, text)


def unified(source: Source, text: str) -> str:
    """The change as a unified diff."""
    before, after = source.text.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, source.name, source.name))

"""`archc fmt`: specs in the standard form."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import json_option
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
@json_option
@click.pass_context
def command(
    ctx: click.Context, paths: tuple[str, ...], check: bool, diff: bool, unicode: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Files are rewritten, folders searched for *.arch; - and bundled specs go to stdout.

    Comments, line breaks and meaning stay. A file with syntax errors is left as it is.
    """
    console = ctx.ensure_object(Console)
    found: list[Diagnostic] = []
    told: list[dict[str, Any]] = []
    written = not (check or diff)
    for path in expanded(paths):
        try:
            source = read(path)
            text = format_source(source, unicode)
        except ArchError as error:
            found += error.diagnostics
            continue
        changed = text != source.text
        told.append({"spec": path, "changed": changed, "written": changed and written})
        if diff:
            told[-1]["diff"] = unified(source, text)
        elif written and as_json and homeless(source):
            told[-1] |= {"written": False, "text": text}
        elif written:
            save(path, source, text)
        if changed:
            console.say(f"{path} {'formatted' if written else 'would change'}")
    if as_json:
        click.echo(json.dumps(told, indent=2, ensure_ascii=False))
    elif diff:
        click.echo("".join(each["diff"] for each in told), nl=False)
    console.findings(found)
    wrong = found or (check and any(each["changed"] for each in told))
    ctx.exit(Status.REFUSED if wrong else Status.FINE)


def expanded(paths: tuple[str, ...]) -> list[str]:
    """The paths, with each folder replaced by the specs in it."""
    found: list[str] = []
    for path in paths:
        inside = sorted(Path(path).rglob("*.arch")) if Path(path).is_dir() else []
        found += [str(each) for each in inside] or [path]
    return found


def homeless(source: Source) -> bool:
    """Whether a spec has no file that could be written over: it came from elsewhere."""
    return source.name == STDIN or isinstance(source, BundledSource)


def save(path: str, source: Source, text: str) -> None:
    """Write a formatted spec back to where it came from."""
    if homeless(source):
        writing.write("-", text)
    elif text != source.text:
        writing.write(path, text)


def unified(source: Source, text: str) -> str:
    """The change as a unified diff."""
    before, after = source.text.splitlines(keepends=True), text.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, source.name, source.name))

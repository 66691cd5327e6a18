"""`archc check`: is a spec right?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from archc.commands.console import Console, coloured
from archc.commands.parameters import json_option, set_option, specs_argument
from archc.commands.stages import layer_of, warnings_of
from archc.commands.status import Status
from archc.diagnostics import ArchError, Diagnostic
from archc.specfile import split


@click.command()
@specs_argument
@set_option
@click.option(
    "--output-format",
    "form",
    type=click.Choice(["full", "concise", "json", "github"]),
    default="full",
    show_default=True,
    help="How findings are printed; github makes annotations of them.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, specs: tuple[str, ...], given: Mapping[str, Any], form: str, as_json: bool
) -> None:
    """Every finding of every SPEC is printed; the exit status is 1 if one is an error.

    Warnings are about what is right but may not be meant: --quiet leaves them out.
    """
    console = ctx.ensure_object(Console)
    found: list[Diagnostic] = []
    for spec in specs:
        try:
            found += warnings_of(layer_of(spec, given), bool(split(spec)[1]))
        except ArchError as error:
            found += error.diagnostics
    errors = [finding for finding in found if finding.severity == "error"]
    text = FORMS["json" if as_json else form](errors if console.quiet else found)
    if text:
        click.echo(text)
    console.say(_summary(len(specs), len(errors), len(found) - len(errors)))
    ctx.exit(Status.REFUSED if errors else Status.FINE)


def _summary(specs: int, errors: int, warnings: int) -> str:
    counted = [_counted(errors, "error")] if errors else []
    counted += [_counted(warnings, "warning")] if warnings else []
    return f"{_counted(specs, 'spec')} checked, {', '.join(counted) or 'nothing to report'}"


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def full(found: Sequence[Diagnostic]) -> str:
    """With source lines and carets."""
    return "\n\n".join(coloured(finding.render()) for finding in found)


def concise(found: Sequence[Diagnostic]) -> str:
    """One line a finding: `my.arch:3:5: error[E0202]: no value q`."""
    return "\n".join(f"{_place(f)}{f.severity}[{f.code}]: {f.message}" for f in found)


def json_text(found: Sequence[Diagnostic]) -> str:
    """A list of objects, empty if there is nothing to report."""
    return json.dumps([finding.as_json() for finding in found], indent=2, ensure_ascii=False)


def github(found: Sequence[Diagnostic]) -> str:
    """Workflow commands, which become annotations of the changed lines."""
    return "\n".join(_annotation(finding) for finding in found)


def _place(finding: Diagnostic) -> str:
    if finding.label is None:
        return ""
    span = finding.label.span
    return f"{span.source.name}:{span.line}:{span.column}: "


def _annotation(finding: Diagnostic) -> str:
    place = ""
    if finding.label:
        span = finding.label.span
        file = _escaped(span.source.name).replace(":", "%3A").replace(",", "%2C")
        place = f"file={file},line={span.line},col={span.column},"
    lines = [finding.message, *finding.notes, *finding.helps]
    return f"::{finding.severity} {place}title={finding.code}::{_escaped(chr(10).join(lines))}"


def _escaped(text: str) -> str:
    """Text as a workflow command takes it."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


FORMS: dict[str, Callable[[Sequence[Diagnostic]], str]] = {
    "full": full,
    "concise": concise,
    "json": json_text,
    "github": github,
}

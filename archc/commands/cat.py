"""`archc cat`: the text of a spec."""

from __future__ import annotations

import click

from archc.commands.parameters import spec_argument
from archc.specfile import read, split


@click.command()
@spec_argument
def command(spec: str) -> None:
    """The whole file that SPEC names, byte by byte: `archc cat NAME > mine.arch` copies a bundled
    one."""
    click.echo(read(split(spec)[0]).text, nl=False)

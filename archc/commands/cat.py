"""`archc cat`: the text of a spec."""

from __future__ import annotations

import json

import click

from archc.commands.parameters import json_option, spec_argument
from archc.specfile import read, split


@click.command()
@spec_argument
@json_option
def command(spec: str, as_json: bool) -> None:
    """The whole file that SPEC names, byte by byte: `archc cat NAME > mine.arch` copies a bundled
    one."""
    source = read(split(spec)[0])
    if as_json:
        data = {"spec": spec, "file": source.name, "text": source.text}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
    else:
        click.echo(source.text, nl=False)

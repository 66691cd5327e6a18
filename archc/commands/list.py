"""`archc list`: the bundled specs."""

from __future__ import annotations

import json
import re
import sys

import click
from rich.console import Console
from rich.table import Table

from archc.specfile import bundled, read
from archc.syntax import tree
from archc.syntax.parse import parse

_SOURCE = re.compile(r"\bsource:\s*")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print data instead of a table.")
def command(as_json: bool) -> None:
    """The name of a bundled spec can stand wherever a SPEC is asked for."""
    entries = [entry(name) for name in bundled()]
    if as_json:
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        _print_table(entries)
    else:
        width = max(len(e["name"]) for e in entries)
        for each in entries:
            click.echo(f"{each['name']:<{width}}  {each['about']}")


def entry(name: str) -> dict[str, str]:
    """What `archc list` says of a bundled spec: name, layer, kind, one line about it, source."""
    decl = next(d for d in reversed(parse(read(name)).decls) if d.kind != "function")
    about, source = doc_parts(decl)
    return {"name": name, "layer": decl.name, "kind": decl.kind, "about": about, "source": source}


def doc_parts(decl: tree.Decl) -> tuple[str, str]:
    """The first sentence of a docstring, and the source that it names after `source:`."""
    text, _, source = " ".join(decl.doc.split()).partition("source:")
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0], source.strip()


def _print_table(entries: list[dict[str, str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("spec", style="bold", no_wrap=True)
    table.add_column("kind")
    table.add_column("what it is")
    table.add_column("source", style="dim")
    for each in entries:
        table.add_row(each["name"], each["kind"], each["about"], each["source"])
    Console().print(table)

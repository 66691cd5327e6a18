"""`archc new`: a spec of one's own, started from a bundled one or from a template."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import Spec, json_option
from archc.diagnostics import fail
from archc.source import Source
from archc.specfile import SUFFIX, read, split
from archc.syntax.format import TOKEN
from archc.syntax.names import reserved
from archc.syntax.parse import parse


@click.command()
@click.argument("name")
@click.option(
    "--from", "origin", type=Spec(), metavar="SPEC",
    help="The spec to start from; without it, a short recurrence to fill in.",
)  # fmt: skip
@click.option("-o", "--output", metavar="FILE", help="Where to write; - is standard output.")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, name: str, origin: str | None, output: str | None, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """NAME is the new layer's name; the file is named after it, MyLayer in my_layer.arch."""
    if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII) or reserved(name):
        raise click.BadParameter(f"`{name}` cannot be the name of a layer", ctx, param_hint="NAME")
    path = output or f"{snake_case(name)}{SUFFIX}"
    writing.check_json(path, as_json)
    if origin is None:
        text = renamed(Source("template.arch", template()), None, name)
    else:
        text = renamed(read(split(origin)[0]), split(origin)[1], name)
    if path != "-" and not force and Path(path).exists():
        raise fail("E0031", f"`{path}` exists already", helps=("--force replaces it",))
    writing.write(path, text)
    if as_json:
        writing.tell(path, layer=name, origin=origin)
    elif path != "-":
        ctx.ensure_object(Console).say(f"{path} written; `archc check {path}` checks it")


def template() -> str:
    """A layer with one recurrence and a comment on each part."""
    return resources.files("archc.commands").joinpath("template.arch").read_text("utf-8")


def renamed(source: Source, old: str | None, new: str) -> str:
    """The text of a spec in which one layer (None: the last) has another name."""
    layers = [decl for decl in parse(source).decls if decl.kind != "function"]
    old = old or layers[-1].name

    def rename(match: re.Match[str]) -> str:
        return new if match.lastgroup == "name" and match[0] == old else match[0]

    return TOKEN.sub(rename, source.text)


def snake_case(name: str) -> str:
    """`GatedMLP` -> `gated_mlp`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

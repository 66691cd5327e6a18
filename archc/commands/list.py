"""`archc list`: the bundled specs."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click
from rich.console import Console as Terminal
from rich.table import Table

from archc.commands.catalogue import entry
from archc.commands.console import Console
from archc.commands.parameters import json_option
from archc.specfile import bundled

COLUMNS = 100
"""How wide the long list is."""


@click.command()
@click.argument("pattern", default="*")
@click.option(
    "--class", "family", metavar="WORD",
    help="Only specs whose class, as `--long` shows it, has this word: `decay`, `attention`.",
)  # fmt: skip
@click.option("--long", is_flag=True, help="Add what each costs a token, its class and its source.")
@json_option
@click.pass_context
def command(
    ctx: click.Context, pattern: str, family: str | None, long: bool, as_json: bool
) -> None:
    """The name of a bundled spec can stand wherever a SPEC is asked for.

    PATTERN is a name with `*` and `?`, or a word to find in names, descriptions and sources:
    `archc list 'gated*'`, `archc list delta`, `archc list --class decay`. Where nothing is like
    that, nothing is printed, and a remark on standard error says so: the exit status is 0.
    """
    entries: list[dict[str, Any]] = [entry(name) for name in bundled()]
    entries = [each for each in entries if _matches(each, pattern)]
    if long or family is not None:
        entries = [each | _costs(each["name"]) for each in entries]
    if family is not None:
        entries = [each for each in entries if family.lower() in each["class"].lower()]
    if as_json:
        click.echo(json.dumps(entries, indent=2, ensure_ascii=False))
    elif not entries:
        remark = "no bundled spec is like that; `archc list` shows them all"
        ctx.ensure_object(Console).say(remark)
    elif long:
        click.echo("\n".join(long_lines(entries)))
    elif sys.stdout.isatty():
        _print_table(entries)
    else:
        width = max(len(e["name"]) for e in entries)
        for each in entries:
            click.echo(f"{each['name']:<{width}}  {each['about']}")


def _matches(found: Mapping[str, str], pattern: str) -> bool:
    """Whether a pattern fits the name of a spec, or is a word in what is said of it."""
    if any(sign in pattern for sign in "*?["):
        return fnmatchcase(found["name"], pattern)
    said = " ".join(found[each] for each in ("name", "layer", "about", "source"))
    return pattern.lower() in said.lower()


def _costs(name: str) -> dict[str, Any]:
    """Class and cost of a spec, as data."""
    from archc.commands.profile import TOKENS, profile  # the short list needs no compiler

    found = profile(name)
    return {
        "class": found.memory, "sizes": found.sizes, "tokens": TOKENS,
        "parameters": found.parameters, "flops_per_token": found.flops, "state_bytes": found.state,
        "cache_bytes_per_token": found.cache,
    }  # fmt: skip


def long_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line of numbers for each spec, its class and its source below."""
    from archc.commands.profile import CONDITIONS, with_unit

    width = max(len(each["name"]) for each in entries)
    head = ("flops a token", "state", "cache a token")
    yield click.style(f"{'spec':<{width}}  {head[0]:>13}  {head[1]:>8}  {head[2]:>13}", bold=True)
    for each in entries:
        flops = with_unit(each["flops_per_token"])
        state, cache = (
            with_unit(each[key], "B") if each[key] else "-"
            for key in ("state_bytes", "cache_bytes_per_token")
        )
        name = click.style(f"{each['name']:<{width}}", bold=True)
        yield f"{name}  {flops:>13}  {state:>8}  {cache:>13}"
        for text in (each["class"], each["source"]):
            yield from _indented(text)
    yield ""
    yield from textwrap.wrap(CONDITIONS, COLUMNS)


def _indented(text: str) -> list[str]:
    """A text in lines below a name."""
    return textwrap.wrap(text, COLUMNS, initial_indent="    ", subsequent_indent="      ")


def _print_table(entries: Sequence[Mapping[str, str]]) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("spec", style="bold", no_wrap=True)
    table.add_column("kind")
    table.add_column("what it is")
    table.add_column("source", style="dim")
    for each in entries:
        table.add_row(each["name"], each["kind"], each["about"], each["source"])
    Terminal().print(table)

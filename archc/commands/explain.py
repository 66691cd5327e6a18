"""`archc explain`: the page of an error code."""

from __future__ import annotations

import json
import re
import sys
from importlib import resources

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.markdown import Markdown

from archc.commands.parameters import json_option
from archc.diagnostics import did_you_mean


def codes_that_begin(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """For the completion of a shell: codes, each with its title."""
    wanted = incomplete.upper()
    return [CompletionItem(c, help=title) for c, title in codes().items() if c.startswith(wanted)]


@click.command()
@click.argument("code", required=False, shell_complete=codes_that_begin)
@json_option
def command(code: str | None, as_json: bool) -> None:
    """Without a CODE, the codes there are, each with its title."""
    pages = codes()
    if code is None and as_json:
        click.echo(json.dumps(pages, indent=2, ensure_ascii=False))
        return
    if code is None:
        width = max(map(len, pages))
        click.echo("\n".join(f"{each:<{width}}  {title}" for each, title in pages.items()))
        return
    wanted = code.strip().upper()
    if wanted not in pages:
        near = did_you_mean(wanted, pages)
        hint = near[0].replace("did", "Did", 1) if near else "`archc explain` lists the codes."
        raise click.UsageError(f"There is no error code `{code}`. {hint}")
    text = page(wanted)
    if as_json:
        found = {"code": wanted, "title": pages[wanted], "page": text}
        click.echo(json.dumps(found, indent=2, ensure_ascii=False))
    elif sys.stdout.isatty():
        shown = re.sub(r"^```arch .*$", "```python", text, flags=re.MULTILINE)
        Console().print(Markdown(shown, code_theme="ansi_dark"))
    else:
        click.echo(text, nl=False)


def page(code: str) -> str:
    """The page of a code, in Markdown."""
    return resources.files("archc").joinpath("explain", f"{code}.md").read_text("utf-8")


def codes() -> dict[str, str]:
    """Every error code and the title of its page."""
    names = (entry.name for entry in resources.files("archc").joinpath("explain").iterdir())
    found = sorted(name.removesuffix(".md") for name in names if name.endswith(".md"))
    return {code: page(code).split("\n", 1)[0].lstrip("# ").partition(": ")[2] for code in found}

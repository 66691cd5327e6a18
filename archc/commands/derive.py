"""`archc derive`: the derivation of a layer as a page to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import click

from archc.commands import writing
from archc.commands.catalogue import doc_parts
from archc.commands.console import Console
from archc.commands.parameters import json_option, output_option, set_option, spec_argument
from archc.commands.stages import Given, layer_of
from archc.commands.status import Status
from archc.derivation import document, html
from archc.derivation.page import Page
from archc.derivation.story import page_of

FORMS: dict[str, Callable[[Page], str]] = {
    "html": html.as_html,
    "text": document.as_text,
    "md": document.as_markdown,
    "latex": document.as_tex,
}


@click.command()
@spec_argument
@set_option
@click.option(
    "--as", "form", type=click.Choice(list(FORMS)), default="html", show_default=True,
    help="The form to write it in; html is one file that needs no other.",
)  # fmt: skip
@output_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, spec: str, given: Given, form: str, output: str, as_json: bool
) -> None:
    """From the formula as printed to its normal form, its class, its chunked form with safe
    exponents, its gradient, its decode step and its composition law; and what was decided about the
    layer as a whole.

    Every form is run on random numbers beside the recurrence itself, with the sizes that are set
    and small ones for the rest. The exit status is 3 if a form disagrees.
    """
    writing.check_json(output, as_json)
    layer = layer_of(spec, given)
    sizes = {name: value for name, value in given.items() if isinstance(value, int)}
    page = page_of(layer, sizes, *doc_parts(layer.doc))
    writing.write(output, FORMS[form](page))
    console = ctx.ensure_object(Console)
    for each in page.wrong:
        click.echo(f"WRONG: {each.what}, {each.shown}; {each.sizes}", err=True)
    steps = sum(len(chapter.steps) for chapter in page.chapters)
    if as_json:
        checks = [asdict(each) | {"right": each.right} for each in page.checks]
        writing.tell(output, layer=page.title, steps=steps, checks=checks)
    elif output != "-":
        console.say(f"{output} written, {steps} steps")
    ctx.exit(Status.DISAGREE if page.wrong else Status.FINE)

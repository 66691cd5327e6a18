"""`archc show`: a stage of the compilation, as text, data or a picture."""

from __future__ import annotations

from collections.abc import Callable

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import json_option, output_option, set_option, spec_argument
from archc.commands.stages import Given, layer_of, tree_of
from archc.commands.writing import json_text
from archc.compile import before_chunks
from archc.elaborate.ones import ones
from archc.ir import diagram, picture, text
from archc.recurrence.chunk.loops import loops
from archc.syntax import text as tree_text

WRITTEN: dict[str, dict[str, Callable[[str, Given], str]]] = {
    "tree": {
        "text": lambda spec, given: tree_text.as_text(tree_of(spec)),
        "json": lambda spec, given: json_text(tree_text.as_json(tree_of(spec))),
    },
    "layer": {
        "text": lambda spec, given: text.as_text(layer_of(spec, given)),
        "json": lambda spec, given: json_text(text.as_json(layer_of(spec, given))),
        "dot": lambda spec, given: diagram.as_dot(layer_of(spec, given)),
        "mermaid": lambda spec, given: diagram.as_mermaid(layer_of(spec, given)),
        "svg": lambda spec, given: picture.as_svg(layer_of(spec, given)),
    },
}
"""The stages before any pass: stage -> form -> its function."""

STAGES = ["tree", "layer", "normal", "chunk", "grad", "plan", "kernels", "source", "cost"]
"""The stages in the order of the compilation, then what the layer costs."""


@click.command()
@spec_argument
@set_option
@click.option(
    "--stage", type=click.Choice(STAGES), default="layer", show_default=True,
    help="The parsed tree, the layer's ops, the normal form of each recurrence, its chunked form, "
    "its gradient, the plan of kernels and what they cost, the kernels that are tile programs, "
    "statement by statement, the Python source, or what each layer has and takes.",
)  # fmt: skip
@click.option(
    "--as", "form", type=click.Choice(list(WRITTEN["layer"])), default="text", show_default=True,
    help="The form to show it in.",
)  # fmt: skip
@json_option
@output_option
@click.pass_context
def command(
    ctx: click.Context,
    spec: str,
    given: Given,
    stage: str,
    form: str,
    as_json: bool,
    output: str,
) -> None:
    """Pictures (svg, dot, mermaid) have one box for each statement of the spec.

    A plan is for B=2 sequences of T=8192 tokens in bfloat16 on an H200, and for the longest chunk
    that fits: `--set B=1 --set T=65536 --set chunk=32 --set dtype=float32 --set device=A100` say
    otherwise, but for a name that is a size or an option of the layer. Costs are for T=4096
    tokens.
    """
    form = "json" if as_json else form
    if stage in WRITTEN:
        views, derived = WRITTEN, {}
    else:  # these import torch, which takes seconds
        from archc.commands.stage_views import DERIVED as derived
        from archc.commands.stage_views import VIEWS as views
    known = {**views, **derived}[stage]
    if form not in known:
        forms = ", ".join(known)
        raise click.UsageError(f"Stage `{stage}` cannot be shown as {form}; it can as {forms}.")
    if stage not in derived:
        writing.write(output, views[stage][form](spec, given))
        return
    layer = layer_of(spec, given)
    shown = derived[stage][form](layer)
    ctx.ensure_object(Console).warnings((*ones(layer), *loops(before_chunks(layer))))
    writing.write(output, shown)

"""`archc show`: a stage of the compilation, as text, data or a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

import click

from archc.commands import cost_stage, writing
from archc.commands.console import Console
from archc.commands.parameters import json_option, output_option, set_option, spec_argument
from archc.commands.sources import source_of
from archc.commands.stages import Given, layer_and_rest, layer_of, tree_of
from archc.compile import before_chunks, programs_of
from archc.elaborate.ones import ones
from archc.ir import diagram, picture, text
from archc.ir.layer import Layer
from archc.recurrence.chunk.loops import loops
from archc.show import attends, plan_listing, region_listing, stage_listing, token_listing
from archc.show.attends import Attended, attends_of
from archc.show.planned import CONDITIONS, Conditions, Planned, conditions, plans_of
from archc.syntax import text as tree_text
from archc.tile.pretty import listing as listing_of
from archc.verify.study import Study, studies_of


def _json(data: object) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _studied(show: Callable[[Study], str]) -> Callable[[Layer], str]:
    """A listing of every recurrence."""
    return lambda layer: stage_listing.titled(studies_of(layer), show)


def _data(show: Callable[[Study], object]) -> Callable[[Layer], str]:
    """The same as data."""
    return lambda layer: _json([show(each) for each in studies_of(layer)])


def _normal(layer: Layer) -> str:
    forms = stage_listing.titled(studies_of(layer), stage_listing.normal_text)
    made = stage_listing.decisions_text(layer)
    return f"{forms}\n{made}" if made else forms


DERIVED: dict[str, dict[str, Callable[[Layer], str]]] = {
    "normal": {"text": _normal, "json": _data(stage_listing.normal_json)},
    "chunk": {"text": _studied(stage_listing.chunk_text), "json": _data(stage_listing.chunk_json)},
    "grad": {
        "text": _studied(stage_listing.gradient_text),
        "json": _data(stage_listing.gradient_json),
    },
}
"""Listings by stage, then by format: the function that makes each."""


def _placed(spec: str, given: Given) -> tuple[Layer, Conditions]:
    """A layer and where it runs, as `--set` says."""
    layer, where = layer_and_rest(spec, given, CONDITIONS)
    return layer, conditions(where)


def _planned(
    show: Callable[[Iterable[Planned], Iterable[Attended]], str],
) -> Callable[[str, Given], str]:
    """The kernels of every recurrence and attend, with their costs at the sizes of `--set`."""

    def view(spec: str, given: Given) -> str:
        layer, where = _placed(spec, given)
        return show(plans_of(layer, where), attends_of(layer))

    return view


def _plan_text(plans: Iterable[Planned], sums: Iterable[Attended]) -> str:
    """Recurrences, then attends."""
    own, other = plan_listing.as_text(plans), attends.as_text(sums)
    if not other:
        return own
    return f"{other}\n" if own == plan_listing.NOTHING else f"{own}\n{other}\n"


def plan_text(layer: Layer) -> str:
    """The plan of a layer, as it is shown where nothing else is said."""
    return _with_regions(_plan_text(plans_of(layer, conditions({})), attends_of(layer)), layer)


def _with_regions(text: str, layer: Layer) -> str:
    """A plan, and after it what is computed together around recurrences."""
    found = (region_listing.as_text(layer), token_listing.as_text(layer))
    regions = "\n\n".join(filter(None, found))
    if not regions:
        return text
    return f"{regions}\n" if text == plan_listing.NOTHING else f"{text}\n{regions}\n"


def _plan(spec: str, given: Given) -> str:
    """The plan of a layer at the sizes that `--set` says."""
    layer, where = _placed(spec, given)
    return _with_regions(_plan_text(plans_of(layer, where), attends_of(layer)), layer)


def kernels_text(layer: Layer) -> str:
    """The kernels of a layer as tile programs."""
    parts = [listing_of(program) for program in programs_of(layer).values()]
    return "\n".join(f"{part.rstrip()}\n" for part in parts) or "no kernel\n"


VIEWS: dict[str, dict[str, Callable[[str, Given], str]]] = {
    "tree": {
        "text": lambda spec, given: tree_text.as_text(tree_of(spec)),
        "json": lambda spec, given: _json(tree_text.as_json(tree_of(spec))),
    },
    "layer": {
        "text": lambda spec, given: text.as_text(layer_of(spec, given)),
        "json": lambda spec, given: _json(text.as_json(layer_of(spec, given))),
        "dot": lambda spec, given: diagram.as_dot(layer_of(spec, given)),
        "mermaid": lambda spec, given: diagram.as_mermaid(layer_of(spec, given)),
        "svg": lambda spec, given: picture.as_svg(layer_of(spec, given)),
    },
    "plan": {
        "text": _plan,
        "json": _planned(
            lambda plans, sums: _json([*plan_listing.as_json(plans), *attends.as_json(sums)])
        ),
    },
    "cost": {
        "text": lambda spec, given: cost_stage.as_text(cost_stage.costs_of(spec, given)),
        "json": lambda spec, given: _json(cost_stage.as_json(cost_stage.costs_of(spec, given))),
    },
    "kernels": {"text": lambda spec, given: kernels_text(layer_of(spec, given))},
    "source": {"text": source_of},
}
"""The other stages that can be shown: stage -> form -> its function."""

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
    "--as", "form", type=click.Choice(list(VIEWS["layer"])), default="text", show_default=True,
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
    known = {**VIEWS, **DERIVED}[stage]
    if form not in known:
        forms = ", ".join(known)
        raise click.UsageError(f"Stage `{stage}` cannot be shown as {form}; it can as {forms}.")
    if stage not in DERIVED:
        writing.write(output, VIEWS[stage][form](spec, given))
        return
    layer = layer_of(spec, given)
    text = DERIVED[stage][form](layer)
    ctx.ensure_object(Console).warnings((*ones(layer), *loops(before_chunks(layer))))
    writing.write(output, text)

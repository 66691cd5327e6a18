"""The stages of `archc show` after the layer as it is written: forms, plan, kernels, source, costs.

They need torch, which takes seconds to import: `show` imports this module where one is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from archc.commands import cost_stage
from archc.commands.sources import source_of
from archc.commands.stages import Given, layer_and_rest, layer_of
from archc.commands.writing import json_text
from archc.compile import programs_of
from archc.ir.layer import Layer
from archc.show import attends, plan_listing, region_listing, stage_listing, token_listing
from archc.show.attends import Attended, attends_of
from archc.show.planned import CONDITIONS, Conditions, Planned, conditions, plans_of
from archc.tile.pretty import listing as listing_of
from archc.verify.study import Study, studies_of


def _studied(show: Callable[[Study], str]) -> Callable[[Layer], str]:
    """A listing of every recurrence."""
    return lambda layer: stage_listing.titled(studies_of(layer), show)


def _data(show: Callable[[Study], object]) -> Callable[[Layer], str]:
    """The same as data."""
    return lambda layer: json_text([show(each) for each in studies_of(layer)])


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
    "plan": {
        "text": _plan,
        "json": _planned(
            lambda plans, sums: json_text([*plan_listing.as_json(plans), *attends.as_json(sums)])
        ),
    },
    "cost": {
        "text": lambda spec, given: cost_stage.as_text(cost_stage.costs_of(spec, given)),
        "json": lambda spec, given: json_text(cost_stage.as_json(cost_stage.costs_of(spec, given))),
    },
    "kernels": {"text": lambda spec, given: kernels_text(layer_of(spec, given))},
    "source": {"text": source_of},
}
"""The others: stage -> form -> its function of a spec and the given sizes."""

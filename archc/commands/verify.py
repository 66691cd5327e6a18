"""`archc verify`: every form of a layer against its step-by-step meaning."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import click
from rich.console import Console as Terminal
from rich.progress import track

from archc.commands.console import Console
from archc.commands.parameters import json_option, set_option, spec_argument
from archc.commands.stages import Given, layer_of
from archc.commands.status import Status


@dataclass(frozen=True)
class Row:
    """One form of a layer: how far it is from the layer's meaning, and how far it may be."""

    form: str
    error: float
    limit: float

    @property
    def right(self) -> bool:
        """Whether the error is small enough; not a number is not."""
        return self.error <= self.limit


@click.command()
@spec_argument
@set_option
@click.option(
    "--tokens", type=click.IntRange(2, 4096), default=19, show_default=True,
    help="How long the sequence is.",
)  # fmt: skip
@json_option
@click.pass_context
def command(ctx: click.Context, spec: str, given: Given, tokens: int, as_json: bool) -> None:
    """The meaning is computed op by op in float64, the forms by the code that archc writes, and for
    each recurrence also by what was derived of it: its normal form, its chunked form for several
    lengths of a chunk, the gradient of that, and the composition law.

    Sizes that are not set are small. The exit status is 3 if a form disagrees.
    """
    from archc.verify.measures import instance_of, measures, warned  # torch takes a second

    console = ctx.ensure_object(Console)
    layer = layer_of(spec, given)
    instance = instance_of(layer, given, tokens)
    steps = list(measures(instance))
    shown = sys.stderr.isatty() and not console.quiet
    rows = [
        Row(form, measure(), limit)
        for form, measure, limit in track(
            steps, layer.name, console=Terminal(stderr=True), disable=not shown, transient=True
        )
    ]
    console.warnings(warned(layer))
    if as_json:
        data = {"layer": layer.name, "sizes": instance.sizes, "tokens": tokens}
        forms = [asdict(row) | {"right": row.right} for row in rows]
        click.echo(json.dumps(data | {"forms": forms}, indent=2))
    else:
        shown_sizes = ", ".join(f"{name} = {size}" for name, size in instance.sizes.items())
        click.echo(f"{layer.name} with {shown_sizes}; {tokens} tokens, float64")
        click.echo("\n".join(table(rows)))
    ctx.exit(0 if all(row.right for row in rows) else Status.DISAGREE)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """One line a form: its relative error, and whether that is right."""
    width = max(len(row.form) for row in rows)
    yield click.style(f"  {'form':<{width}}  {'error':>8}", bold=True)
    for row in rows:
        verdict = click.style("ok", fg="green") if row.right else click.style("WRONG", fg="red")
        yield f"  {row.form:<{width}}  {row.error:8.1e}  {verdict}"

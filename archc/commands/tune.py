"""`archc tune`: how kernels are launched best on this GPU, found by a search that was asked for."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from archc.commands import writing
from archc.commands.bench import DTYPES, SHAPES, Numbers
from archc.commands.console import Console
from archc.commands.parameters import json_option, set_option, spec_argument
from archc.commands.status import Status

if TYPE_CHECKING:
    from archc.tune.search import Found


@click.command()
@spec_argument
@click.option(
    "--shapes", type=Numbers("B,T,H,D", 4), multiple=True,
    help="Batch, tokens, heads, dim of a head; may be repeated. [default: 2,8192,32,128]",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(list(DTYPES)), metavar="DTYPE", default="bf16", show_default=True,
    help="bf16, fp16 or fp32.",
)  # fmt: skip
@click.option("--warps", type=Numbers("N,..."), default="2,4,8,16", show_default=True)
@click.option("--stages", type=Numbers("N,..."), default="1,2,3,4", show_default=True)
@click.option(
    "--seconds", type=click.FloatRange(1, 3600), default=300.0, show_default=True,
    help="How long each part of the search may take: compiling and checking, timing, all together.",
)  # fmt: skip
@set_option
@click.option(
    "-o", "--output", metavar="FILE",
    help="Where the settings go; by default a file for this spec and GPU in the user's cache.",
)  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context, spec: str, output: str | None, as_json: bool, **options: Any
) -> None:
    """Nothing searches by itself: generated files launch their kernels with the settings they are
    shipped with. This tries others (how many warps, how many stages of loads) at the shapes that
    you name, on the GPU that is here. Every candidate is compiled, all cores at once, and its
    outputs and gradients are held against the float64 meaning of the spec before it is timed: one
    that is off cannot be chosen. The shipped settings stay where no other is 3 % faster,
    and where what is faster one by one is not so together.

    What is better is written into a JSON file, by kernel, dtype, blocks and about how many programs
    there are, with the GPU and the versions that it holds for. A generated file reads it only when
    it is told to: ARCHC_TUNED=FILE in the environment, or `use_tuned(FILE)`, a function in it.

    The exit status is 3 if shipped settings are wrong, or the search failed.
    """
    import torch

    from archc.algebra.cut import NoMemory
    from archc.tune.search import SearchFailed

    console = ctx.ensure_object(Console)
    if not torch.cuda.is_available():
        raise click.UsageError("archc tune measures on a GPU, and torch sees none here.")
    try:
        with tempfile.TemporaryDirectory(prefix="archc-tune-") as name:
            found = list(_searched(spec, options, Path(name), console))
    except NoMemory as error:
        raise click.UsageError(str(error)) from None
    except SearchFailed as error:
        click.echo(f"nothing is written: {error}", err=True)
        ctx.exit(Status.DISAGREE)
    if not as_json:
        for each in found:
            click.echo("\n".join(told(each)))
    path = _write(found, output, console)
    if as_json:
        writing.tell(path, shapes=[as_data(each) for each in found])


def _searched(
    spec: str, options: dict[str, Any], folder: Path, console: Console
) -> Iterator[Found]:
    """The result of the search at every shape."""
    from archc.bench.job import BACKWARD, FORWARD
    from archc.bench.subject import Request, subject
    from archc.tune.candidates import every
    from archc.tune.search import search

    candidates = every(options["warps"], options["stages"])
    asked = Request(
        (FORWARD, BACKWARD), (), (), None, "cuda", DTYPES[options["dtype"]], 2.0, options["given"]
    )
    for number, shape in enumerate(options["shapes"] or [SHAPES["cuda"]]):
        job = subject(spec, shape, asked, folder / f"job_{number}")
        yield search(job, console.say, options["seconds"], candidates)


def told(found: Found) -> Iterator[str]:
    """A line for every launch: its time as shipped and at best, and what is chosen."""
    from archc.tune.candidates import SHIPPED

    shape = ", ".join(map(str, found.job.shape))
    yield click.style(f"{found.job.title} at {shape}, {found.job.dtype}", bold=True)
    width = max((len(kernel) for kernel, _ in found.times), default=0)
    for launch, tried in found.times.items():
        medians = {name: 1e3 * statistics.median(taken) for name, taken in tried.items()}
        best = found.settings.get(launch)
        line = f"  {launch[0]:<{width}}  {medians[SHIPPED]:8.3f} ms as shipped"
        if best is None:
            yield f"{line}, which stays"
        else:
            yield f"{line}, {medians[best.name]:8.3f} ms with {best.settings}"
    for what, times in found.faster.items():
        yield f"  {what} together: {times:.2f} times as fast as shipped"
    if found.faster and not found.settings:
        yield "  not faster together: the shipped settings stay"
    for name, reason in found.left_out.items():
        yield f"  left out: {name} (warps:stages): {reason}"


def as_data(found: Found) -> dict[str, Any]:
    """The result of a search as data: the times of every launch in milliseconds, by candidate, and
    the settings chosen (None: the shipped settings stay)."""
    launches = [
        {
            "kernel": launch[0],
            "programs": launch[1],
            "milliseconds": {name: 1e3 * statistics.median(taken) for name, taken in tried.items()},
            "chosen": found.settings[launch].settings if launch in found.settings else None,
        }
        for launch, tried in found.times.items()
    ]
    return {
        "spec": found.job.title, "shape": list(found.job.shape), "dtype": found.job.dtype,
        "launches": launches, "faster": found.faster, "left_out": found.left_out,
    }  # fmt: skip


def _write(found: list[Found], output: str | None, console: Console) -> str | None:
    """One file for all shapes, over what it held before; None where nothing is better."""
    from archc.bench.record import record
    from archc.tune.store import document, joined, place, read

    better = [each for each in found if each.settings]
    if not better:
        console.say("the shipped settings are the best: nothing is written")
        return None
    made: dict[str, Any] = {}
    path = Path(output) if output else place(found[0].job.title, found[0].machine["device"])
    for each in better:
        here = {key: each.machine[key] for key in ("device", "torch", "triton")}
        kept = record(["archc", *sys.argv[1:]], None)
        made = joined(made or read(path), document(each.settings, each.sources, here, kept))
    writing.make_folder(path.parent)
    writing.write(str(path), json.dumps(made, indent=1) + "\n")
    console.say(f"{path} written; ARCHC_TUNED={path} makes generated files use it")
    return str(path)

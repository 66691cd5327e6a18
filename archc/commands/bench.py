"""`archc bench`: ours and peers, timed in one run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console as Terminal

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import Spec, json_option, set_option
from archc.commands.status import Status
from archc.extras import needs

if TYPE_CHECKING:
    from archc.bench.job import Job
    from archc.bench.report import Report
    from archc.bench.resume import Progress

DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64",
    "bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "float64": "float64",
}  # fmt: skip

SHAPES = {"cuda": ((2, 8192, 32, 128),), "cpu": ((1, 1024, 4, 32),)}
"""The shape where none is given, by device."""

WIDTH = 170
"""Columns of a table that goes into a file."""


class Numbers(click.ParamType[tuple[int, ...]]):
    """`2,8192,32,128`: whole numbers from 1 on; so many, if `count` says it."""

    name = "numbers"

    def __init__(self, metavar: str, count: int | None = None):
        self.metavar, self.count = metavar, count

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """How help shows the value."""
        return self.metavar

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read the numbers."""
        if isinstance(value, tuple):
            return value
        parts = str(value).replace("x", ",").split(",")
        if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"`{value}` is not {self.metavar}, such as 2,8192,32,128", param, ctx)
        if self.count is not None and len(parts) != self.count:
            self.fail(f"`{value}` has {len(parts)} numbers, not {self.metavar}", param, ctx)
        return tuple(int(part) for part in parts)


def _names(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, ...]:
    """The names in `a,b,c`, each once."""
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


@click.command()
@click.argument("specs", metavar="[SPEC]...", type=Spec(), nargs=-1)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Every spec that the file of peers has a row for, of those that are named by --against.",
)
@click.option(
    "--against", default="eager", show_default=True, metavar="NAME,...", callback=_names,
    help="Whom to time beside the generated file: eager (its PyTorch alone), compile (the same"
    " under torch.compile), and the names in the file of peers.",
)  # fmt: skip
@click.option(
    "--peers", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="How peers are called; the table beside the bundled specs where none is given.",
)  # fmt: skip
@click.option(
    "--shapes", type=Numbers("B,T,H,D", 4), multiple=True,
    help="Batch, tokens, heads, dim of a head; may be repeated. [default: on a GPU that of the spec"
    " in the file of peers, else 2,8192,32,128; 1,1024,4,32 without a GPU]",
)  # fmt: skip
@click.option(
    "--what", default="forward,backward", show_default=True, metavar="NAME,...", callback=_names,
    help="forward; backward (a forward and the gradients); decode (one token after a state); layer"
    " (the whole layer, without and with gradients, beside layers of peers).",
)  # fmt: skip
@click.option(
    "--batches", type=Numbers("B,..."), default="1,64,256", show_default=True,
    help="The batches that decode is timed with.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(list(DTYPES)), metavar="DTYPE",
    help="bf16, fp16, fp32 or fp64. [default: bf16 on a GPU, fp32 without]",
)  # fmt: skip
@click.option(
    "--device", type=click.Choice(["cuda", "cpu"]), help="[default: a GPU if there is one]"
)
@click.option(
    "--seconds", type=click.FloatRange(0.01, 600), default=2.0, show_default=True,
    help="How long each thing is timed, all contenders together.",
)  # fmt: skip
@click.option(
    "--limit", type=click.FloatRange(1, 3600), default=240.0, show_default=True,
    help="Seconds after which a process is stopped: first calls, all candidates of peers, a spec at"
    " a shape. What it found by then is shown.",
)  # fmt: skip
@click.option("--no-first-call", is_flag=True, help="Leave out the first calls in fresh processes.")
@click.option(
    "--keep", type=click.Path(file_okay=False), metavar="FOLDER",
    help="Keep the generated files, the cache and the logs there.",
)  # fmt: skip
@set_option
@click.option(
    "--again", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
    help="Measure nothing: show, and plot, what an earlier run wrote with -o.",
)  # fmt: skip
@click.option(
    "-o", "--output", metavar="FILE",
    help="Write everything as JSON, as it comes. What the file has already, of the same commit and"
    " versions, is not measured again.",
)  # fmt: skip
@json_option
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--plot", metavar="FILE", help="Draw it (.png, .svg, .pdf); needs the extra `bench`.")
@click.pass_context
def command(ctx: click.Context, specs: tuple[str, ...], **options: Any) -> None:
    """The memory of each SPEC (its recurrence or attention, without what comes before and after) is
    timed as the generated file computes it, beside peers, in one run: each contender once in every
    round, in turns. Shown are medians, quartiles, how many times as fast ours is (the median over
    rounds), the share of the roofline, the peak of memory, and the largest error of outputs and
    gradients against the float64 meaning of the spec, at the same batch, heads and dim.

    The first call of the generated file is timed in fresh processes, with an empty and with a
    filled cache. A peer that is missing or refuses is reported with its reason. The file of -o has
    each spec as soon as it is done, so that a run that was cut off can go on.

    The exit status is 3 if a number of ours is wrong or missing.

    \b
    Examples:
      archc bench one.arch two.arch --against fla,sdpa -o found.json --plot found.png
      archc bench one.arch --what decode --batches 1,64 --against fla
      archc bench my.arch --device cpu --shapes 1,256,2,16 --against eager
      archc bench --all --against fla -o all.json
    """
    from archc.bench.record import peers_file, record  # torch takes a second
    from archc.bench.report import recorded

    _check_plot(options["plot"])
    if sum(map(bool, (specs, options["every"], options["again"]))) != 1:
        raise click.UsageError("Give a SPEC, or --all, or the file of an earlier run with --again.")
    options["peers"] = options["peers"] or peers_file()
    if options["again"]:
        data = json.loads(Path(options["again"]).read_text(encoding="utf-8"))
        found = recorded(data)
    else:
        data = record(["archc", *sys.argv[1:]], options["peers"])
        with _folder(options["keep"]) as folder:
            made = _measured(specs, options, folder, ctx.ensure_object(Console), data)
        found, data = made.found, {**data, **made.data()}
    _show(found, data, options)
    for reason in found.failures():
        click.echo(f"not to be relied on: {reason}", err=True)
    ctx.exit(Status.DISAGREE if found.failures() else Status.FINE)


def _show(found: Report, data: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """The table and what is below it, or all of it as data; the plot, where it is asked for."""
    from archc.bench.report import markdown, notes, table

    if options["as_json"]:
        click.echo(json.dumps(data, indent=1))
    elif options["markdown"]:
        click.echo("\n".join(markdown(found)))
    else:
        terminal = Terminal(width=None if sys.stdout.isatty() else WIDTH, highlight=False)
        terminal.print(table(found))
        click.echo("\n".join(["", *notes(found)]))
    if options["plot"]:
        from archc.bench.chart import picture

        picture(found).savefig(options["plot"], dpi=150)


def _measured(
    specs: Sequence[str], options: dict[str, Any], folder: Path, console: Console,
    data: Mapping[str, Any],
) -> Progress:  # fmt: skip
    """The outcomes of every spec at every shape, beside what the file of -o has of them."""
    from archc.bench.processes import Limits, measure
    from archc.bench.resume import OtherRun, Progress

    output = options["output"]
    try:
        progress = Progress.of(output, data) if output else Progress()
    except OtherRun as other:
        raise click.UsageError(f"-o: {other}; name another file.") from None
    jobs = [job for job in _jobs(specs, options, folder, console) if not progress.has(job)]
    if progress.done:
        console.say(f"{output} has {len(progress.done)} of them; {len(jobs)} are left")
    limits = Limits(options["limit"], options["limit"], options["limit"])
    for outcome in measure(jobs, folder, console.say, limits, not options["no_first_call"]):
        progress.add(outcome)
        if output:
            writing.write(output, json.dumps({**data, **progress.data()}, indent=1) + "\n")
    return progress


def _jobs(
    specs: Sequence[str], options: dict[str, Any], folder: Path, console: Console
) -> list[Job]:
    """The jobs to measure, each in a folder of its own."""
    import torch

    from archc.algebra.cut import NoMemory
    from archc.bench.contenders import shapes_of
    from archc.bench.job import LAYER, WHAT
    from archc.bench.subject import Request, subject
    from archc.bench.whole import whole

    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("torch sees no GPU here; --device cpu times the eager forms.")
    if strange := [name for name in options["what"] if name not in WHAT]:
        raise click.UsageError(f"--what: `{strange[0]}` is none of {', '.join(WHAT)}.")
    dtype = DTYPES[options["dtype"] or ("bf16" if device == "cuda" else "fp32")]
    asked = Request(
        tuple(name for name in options["what"] if name != LAYER), options["against"],
        options["batches"], options["peers"], device, dtype, options["seconds"], options["given"],
    )  # fmt: skip
    makers = [subject] if asked.what else []
    makers += [whole] if LAYER in options["what"] else []
    usual = shapes_of(options["peers"]) if device == "cuda" else {}
    jobs: list[Job] = []
    for make in makers:
        for spec in specs or _every(options, make is whole):
            own = [usual[Path(spec).stem]] if Path(spec).stem in usual else SHAPES[device]
            for shape in options["shapes"] or own:
                console.say(f"compiling {spec}")
                try:
                    jobs.append(make(spec, shape, asked, folder / f"job_{len(jobs)}"))
                except NoMemory as error:
                    raise click.UsageError(str(error)) from None
    return jobs


def _every(options: Mapping[str, Any], whole: bool) -> tuple[str, ...]:
    """The specs of --all."""
    from archc.bench.contenders import rows_of

    if not (found := rows_of(options["peers"], options["against"], whole)):
        raise click.UsageError("--all: no peer that --against names has a row for a spec.")
    return found


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    """The folder of the run's files: kept, or gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="archc-bench-") as name:
            yield Path(name)
        return
    made = Path(os.path.realpath(keep))
    writing.make_folder(made)
    yield made


def _check_plot(plot: str | None) -> None:
    if plot is not None:
        needs("bench", "--plot", "matplotlib")

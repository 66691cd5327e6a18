"""`archc bench`: ours and peers, timed in one run."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
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
    from archc.bench.contenders import Row
    from archc.bench.job import Job
    from archc.bench.orders import Order
    from archc.bench.report import Report
    from archc.bench.resume import Progress

DTYPES = {
    "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64",
    "bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "float64": "float64",
}  # fmt: skip

SHAPES = {"cuda": (2, 8192, 32, 128), "cpu": (1, 1024, 4, 32)}
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


def _names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    """The names in `a,b,c`, each once."""
    value = value or ""
    return tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))


@click.command()
@click.argument("specs", metavar="[SPEC]...", type=Spec(), nargs=-1)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="The table of the file of peers: every row, or those of the SPECs, beside those of"
    " --against that have it.",
)
@click.option(
    "--other-shapes", is_flag=True,
    help="With --all: only the rows of memories that have a shape of their own or are packed.",
)  # fmt: skip
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
    "--what", metavar="NAME,...", callback=_names,
    help="forward; backward (a forward and the gradients); decode (one token after a state); layer"
    " (the whole layer, without and with gradients, beside layers of peers); token (one of each of"
    " several sequences through the whole layer). [default: forward,backward; with --all decode,"
    " too]",
)  # fmt: skip
@click.option(
    "--batches", type=Numbers("B,..."), default="1,64,256", show_default=True,
    help="The batches that decode and token are timed with.",
)  # fmt: skip
@click.option("--fused", is_flag=True, help="The memory and what is done token by token before it.")
@click.option(
    "--packed", type=click.IntRange(2), metavar="N",
    help="The tokens as N sequences, one after the other in a batch of 1.",
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
    help="Keep the generated files, the cache and the logs there; a later run takes what fits.",
)  # fmt: skip
@click.option(
    "--prepare", is_flag=True,
    help="Measure nothing: compile all that a run with the same --keep and --no-first-call will"
    " launch, many processes side by side.",
)  # fmt: skip
@click.option(
    "--prepared",
    is_flag=True,
    help="Measure only rows that --prepare has compiled, beside those peers that it has.",
)
@click.option(
    "--jobs", type=click.IntRange(1), default=lambda: os.cpu_count() or 1, metavar="N",
    help="How many processes compile at once. [default: one a core]",
)  # fmt: skip
@click.option(
    "--within", type=click.FloatRange(1), metavar="SECONDS",
    help="Begin nothing more after so many seconds; -o has the rest when it is run again.",
)  # fmt: skip
@click.option("--commit", help="What the numbers are of, where this is a copy without git.")
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
      archc bench --all --against fla,flash_qla -o all.json
      archc bench --all --against fla --what layer --keep there --prepare
    """
    from archc.bench.record import peers_file, record  # torch takes a second
    from archc.bench.report import recorded

    _check(specs, options)
    options["peers"] = options["peers"] or peers_file()
    if options["again"]:
        data = json.loads(Path(options["again"]).read_text(encoding="utf-8"))
        found = recorded(data)
    else:
        data = record(["archc", *sys.argv[1:]], options["peers"], options["commit"])
        with _folder(options["keep"]) as folder:
            made = _measured(specs, options, folder, ctx.ensure_object(Console), data)
        if options["prepare"]:
            ctx.exit(Status.FINE)
        found, data = made.found, {**data, **made.data()}
    _show(found, data, options)
    for reason in found.failures():
        click.echo(f"not to be relied on: {reason}", err=True)
    ctx.exit(Status.DISAGREE if found.failures() else Status.FINE)


def _show(found: Report, data: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """The table and what is below it, or all of it as data; the plot, where it is asked for."""
    from archc.bench.markdown import markdown
    from archc.bench.report import notes, table

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
    from archc.bench.processes import Limits, measure, prepare, prepared
    from archc.bench.resume import OtherRun, Progress

    start, output = time.monotonic(), options["output"]
    try:
        progress = Progress.of(output, data) if output else Progress()
    except OtherRun as other:
        raise click.UsageError(f"-o: {other}; name another file.") from None
    jobs = _jobs(specs, options, folder, console, progress)
    limits = Limits(options["limit"], options["limit"], options["limit"], options["jobs"])
    if options["prepare"]:
        for remark in prepare(jobs, folder, console.say, limits):
            console.say(remark)
        return progress
    jobs = [job for job in jobs if not progress.has(job)]
    if options["prepared"]:
        ready = [made for job in jobs if (made := prepared(job)) is not None]
        jobs = [job for job in ready if not progress.has(job)]
    if progress.done:
        console.say(f"{output} has {len(progress.done)} of them; {len(jobs)} are left")
    for outcome in measure(jobs, folder, console.say, limits, not options["no_first_call"]):
        progress.add(outcome)
        if output:
            writing.write(output, json.dumps({**data, **progress.data()}, indent=1) + "\n")
        if options["within"] and time.monotonic() - start > options["within"]:
            console.say("the time is up: run it again for the rest")
            break
    return progress


def _jobs(
    specs: Sequence[str], options: dict[str, Any], folder: Path, console: Console,
    progress: Progress,
) -> list[Job]:  # fmt: skip
    """The jobs to measure, each in a folder of its own. A spec of --all that cannot be made is
    noted as broken."""
    from archc.algebra.cut import NoMemory
    from archc.bench.orders import make
    from archc.diagnostics import ArchError

    orders = _orders(specs, options, folder)
    make(orders, folder, console.say, options["jobs"])
    jobs: list[Job] = []
    for order in orders:
        if not order.made(folder):
            console.say(f"compiling {order.spec}")
        try:
            jobs.append(order.job(folder))
        except NoMemory as error:
            raise click.UsageError(str(error)) from None
        except ArchError as error:
            if not options["every"]:
                raise
            progress.note_broken(f"{order.spec}: {error}")
    return jobs


def _orders(specs: Sequence[str], options: dict[str, Any], folder: Path) -> list[Order]:
    """What is to be made: each row at each shape."""
    import torch

    from archc.bench.contenders import shapes_of
    from archc.bench.job import WHAT
    from archc.bench.orders import Order
    from archc.bench.subject import Request

    device = options["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("torch sees no GPU here; --device cpu times the eager forms.")
    if strange := [name for name in options["what"] if name not in WHAT]:
        raise click.UsageError(f"--what: `{strange[0]}` is none of {', '.join(WHAT)}.")
    dtype = DTYPES[options["dtype"] or ("bf16" if device == "cuda" else "fp32")]
    usual = shapes_of(options["peers"]) if device == "cuda" else {}
    orders = []
    for row in _rows(specs, options):
        asked = Request(
            row.what, row.beside, row.batches or options["batches"], options["peers"], device,
            dtype, options["seconds"], row.given, row.fused, row.packed,
        )  # fmt: skip
        spec = row.spec
        if row.text:
            spec = str(folder / f"{row.spec}.arch")
            writing.write(spec, row.text)
        own = row.shape if device == "cuda" else None
        shape = own or usual.get(Path(spec).stem) or SHAPES[device]
        for each in options["shapes"] or [shape]:
            orders.append(Order(spec, each, asked, row.whole))
    return list({order.place(folder): order for order in orders}.values())


def _rows(specs: Sequence[str], options: dict[str, Any]) -> list[Row]:
    """The rows of the table, of the specs that are named or of all; or one for each spec and kind
    of measurement."""
    from archc.bench.contenders import Row, rows_of
    from archc.bench.job import LAYER, TOKEN, WHAT

    if options["every"]:
        found = rows_of(options["peers"], options["against"], options["what"] or WHAT[:3])
        found = [row for row in found if not specs or row.spec in specs]
        if options["other_shapes"]:
            found = [row for row in found if row.elsewhere]
        if not found:
            raise click.UsageError("--all: the file of peers has no such row.")
        return found
    what = options["what"] or WHAT[:2]
    kinds = [tuple(name for name in what if name not in (LAYER, TOKEN))]
    kinds += [(name,) for name in (LAYER, TOKEN) if name in what]
    return [
        Row(
            spec, None, kind, options["given"], options["against"], fused=options["fused"],
            packed=options["packed"] or 0,
        )
        for kind in kinds if kind for spec in specs
    ]  # fmt: skip


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


def _check(specs: Sequence[str], options: Mapping[str, Any]) -> None:
    """Refuse options that do not go together, before anything is done."""
    if options["plot"] is not None:
        needs("bench", "--plot", "matplotlib")
    if bool(options["again"]) == bool(specs or options["every"]):
        raise click.UsageError("Give a SPEC, or --all, or the file of an earlier run with --again.")
    if options["other_shapes"] and not options["every"]:
        raise click.UsageError("--other-shapes chooses rows of --all.")
    if options["prepare"] and not options["keep"]:
        raise click.UsageError("--prepare compiles into a folder: name it with --keep.")

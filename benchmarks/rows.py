"""What scripts that time something on a GPU share: their command line, the clock, and a file of
rows that is written as they come."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor, nn

from archc.bench.fill import compile_a_share, search_briefly
from archc.bench.record import record


def arguments(doc: str | None, rows: Iterable[str] = ()) -> ArgumentParser:
    """A command line, with the first paragraph of a script's docstring: which of its named `rows`,
    the file, and the commit of a copy."""

    def known(name: str) -> str:
        if name not in rows:
            raise ArgumentTypeError(f"no row is called {name}")
        return name

    parser = ArgumentParser(description=str(doc).split("\n\n", maxsplit=1)[0])
    if rows:
        shown = ", ".join(rows)
        parser.add_argument("names", nargs="*", default=[*rows], type=known, help=shown)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--commit", help="where this is a copy without git: what it is a copy of")
    return parser


def with_fla(parser: ArgumentParser) -> ArgumentParser:
    """The option of scripts that call fla."""
    told = "compile share I of N of what fla's autotuners try, on a quick run"
    parser.add_argument("--share", type=int, nargs=2, metavar=("I", "N"), help=told)
    return parser


def prepare_fla(given: Namespace) -> None:
    """From now on fla's autotuners time each candidate for 10 ms, a tenth of what is usual, or
    time none and compile a share of them."""
    if given.share:
        compile_a_share(*given.share)
    elif torch.cuda.is_available():
        search_briefly()


class Record:
    """A file of numbers and where they come from.

    `by`: the fields that tell its rows apart, where rows that the file has are to stay: one that is
    measured again takes the place of the other. `data`: all that is written.
    """

    def __init__(
        self, given: Namespace, by: tuple[str, ...] = (), launcher: str = "python", **more: Any
    ):
        self.output, self.by = given.output, by
        script = Path(sys.argv[0]).stem
        command = [launcher, "-m", f"benchmarks.{script}", *sys.argv[1:]]
        self.data = record(command, None, given.commit)
        self.data["versions"] |= {"torch": torch.__version__, "triton": triton.__version__}
        device = getattr(given, "device", "cuda")
        self.data["device"] = torch.cuda.get_device_name() if device == "cuda" else device
        self.data |= {"rows": [], **more}
        if by and self.output.exists():
            self.data["rows"] = json.loads(self.output.read_text(encoding="utf-8"))["rows"]

    def like(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row in whose place this one comes; nothing where there is none."""
        rows = self.data["rows"] if self.by else []
        return next((e for e in rows if all(e.get(name) == row[name] for name in self.by)), {})

    def add(self, row: dict[str, Any]) -> None:
        """Write a row."""
        before = self.like(row)
        self.data["rows"] = [each for each in self.data["rows"] if each is not before] + [row]
        self.write()

    def write(self) -> None:
        """Write what is known so far."""
        self.output.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")


def record_rows(
    what: str, rows: Iterable[str], row: Callable[[str], dict[str, Any]], doc: str | None
) -> int:
    """The whole of a script that times rows, each of a `what`, forward and with gradients."""
    given = with_fla(arguments(doc, rows)).parse_args()
    prepare_fla(given)
    made = Record(given, by=(what,))
    for name in given.names:
        found = row(name)
        made.add(found)
        print(
            f"{name:24} forward {found['forward_ms']:8.3f} ms, with gradients"
            f" {found['both_ms']:8.3f} ms, {found['MiB']:7.0f} MiB",
            flush=True,
        )
    return 0


def passes(module: nn.Module, x: Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
    """What runs a layer without gradients, and what runs it with those of all that it is made
    of."""

    def run() -> Tensor:
        made = module(x)
        return made[0] if isinstance(made, tuple) else made

    slope = torch.randn_like(run())

    def forward() -> None:
        with torch.no_grad():
            run()

    def both() -> None:
        module.zero_grad(set_to_none=True)
        x.grad = None
        run().backward(slope)

    return forward, both


def timed(call: Callable[[], Any], rep: int = 150) -> float:
    """Milliseconds: the median of some tens of calls, in `rep` milliseconds."""
    found: Any = triton.testing.do_bench(call, warmup=20, rep=rep, return_mode="median")
    return found


def brief(call: Callable[[], Any]) -> float:
    """Milliseconds: the median of some calls, or one call that takes long."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    alone = begin.elapsed_time(end)
    return alone if alone > 100 else timed(call, 30)


def kernels(call: Callable[[], Any], many: int = 40) -> list[tuple[str, float, int]]:
    """What takes the GPU longest of a call: kernels, microseconds and launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    rows = [(e.key[:80], e.self_device_time_total, e.count) for e in found.key_averages()]
    return sorted(rows, key=lambda row: -row[1])[:many]

"""The command line. Products go to stdout, everything else to stderr.

Each verb is a module of `archc.commands` and is imported when it is used: `archc --help` needs
neither sympy nor torch. Exit statuses are those of `archc.commands.status`.
"""

from __future__ import annotations

import difflib
import errno
import gc
import importlib
import inspect
import io
import os
import signal
import sys
from types import FrameType, TracebackType

import click

from archc.commands.console import Console, crash, refused
from archc.commands.status import Status
from archc.diagnostics import ArchError
from archc.extras import MissingExtra

VERBS = {
    "list": "Show the bundled specs: what each is, where it comes from, what it costs.",
    "cat": "Print a spec as it is written.",
    "check": "Check specs: syntax, names and shapes.",
    "compile": "Write a layer as one standalone Python file.",
    "show": "Show a stage of the compilation as text, data or a picture.",
    "derive": "Write the derivation of a layer as a page to read, with every number checked.",
    "gallery": "Write one page with the pictures, classes and costs of specs.",
    "fmt": "Put specs into the standard form.",
    "explain": "Explain an error code.",
    "new": "Start a spec of your own, from a bundled one or from a short template.",
    "verify": "Hold every form of a layer against its step-by-step meaning.",
    "convert": "Turn a public checkpoint into parameters of a spec, or back.",
    "bench": "Time the generated file beside its peers, in one run.",
    "doctor": "Say what this machine has, and whether kernels can run on it.",
    "tune": "Search for the best settings of kernels on this GPU, and keep them.",
}
"""The verbs in the order of `archc --help`, each with its first line there."""

EXAMPLES = """\b
Examples:
  archc list
  archc check my_layer.arch
  archc show my_layer.arch --as svg -o my_layer.svg
  archc compile my_layer.arch -o my_layer.py

\b
Exit status: 0 fine; 1 the spec is refused; 2 wrong usage; 3 numbers disagree;
  4 a bug in archc; 130 Ctrl-C.
"""


class Verbs(click.Group):
    """A group whose commands are modules of `archc.commands`, imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in their own order."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a verb."""
        if cmd_name not in VERBS:
            return None
        command = importlib.import_module(f"archc.commands.{cmd_name}").command
        command.help = f"{VERBS[cmd_name]}\n\n{inspect.cleandoc(command.help or '')}".strip()
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; a misspelt verb is told the nearest."""
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise click.UsageError(f"No such verb `{args[0]}`.{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of verbs, without importing any."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb; what archc refuses is shown once, here."""
        try:
            return super().invoke(ctx)
        except ArchError as error:
            ctx.ensure_object(Console).findings(error.diagnostics)
            ctx.exit(Status.REFUSED)
        except MissingExtra as error:
            raise click.UsageError(str(error)) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read has enough
                raise
            ctx.ensure_object(Console).findings([refused(error)])
            ctx.exit(Status.REFUSED)


@click.group(
    cls=Verbs,
    subcommand_metavar="VERB ...",
    epilog=EXAMPLES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="archc", message="archc %(version)s")
@click.option("-q", "--quiet", is_flag=True, help="Print products and errors only.")
@click.pass_context
def archc(ctx: click.Context, quiet: bool) -> None:
    """Compile a sequence-model layer, written as its paper writes it, to PyTorch.

    SPEC is a path, `-` for standard input, or the name of a bundled spec, with `:Layer` for another
    layer than the last one of the file, such as `my.arch:Block`.
    """
    ctx.ensure_object(Console).quiet = quiet
    if os.environ.get("NO_COLOR"):
        ctx.color = False


class Closed(io.TextIOBase):
    """A standard output that was closed before the process began."""

    def write(self, text: str) -> int:
        """Nothing can be written."""
        raise OSError(errno.EBADF, "it is closed")


def _interrupted(signum: int, frame: FrameType | None) -> None:
    """Ctrl-C ends the process, at once where it is asked for again."""
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(Status.INTERRUPTED))
    raise SystemExit(int(Status.INTERRUPTED))


class _Boundary:
    """The outermost frame: an exception that reaches it is a bug, and is reported as one."""

    def __enter__(self) -> None:
        signal.signal(signal.SIGINT, _interrupted)
        if sys.stdout is None:
            sys.stdout = Closed()
        if sys.stderr is None:
            sys.stderr = open(os.devnull, "w", encoding="utf-8")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        status = error.code if isinstance(error, SystemExit) else 0
        try:
            if isinstance(error, Exception):
                status = crash(error)
            sys.stdout.flush()
        except OSError:  # what is left has no reader
            status = status or Status.REFUSED
        if status not in (0, None):
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        # all is done: a handler would be taken away as Python ends, and Ctrl-C then kill it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.exit(status)


def main() -> None:
    """Entry point of the `archc` command."""
    gc.set_threshold(100_000)  # imports make many objects that stay: do not search them for waste
    with _Boundary():
        archc(prog_name="archc")

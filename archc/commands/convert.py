"""`archc convert`: public checkpoints to parameters of a spec, and back."""

from __future__ import annotations

from pathlib import Path

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import json_option, spec_argument
from archc.diagnostics import fail


@click.command()
@spec_argument
@click.argument("source", metavar="FROM", type=click.Path())
@click.option("-o", "--output", metavar="TO", required=True, help="The file or folder to write.")
@click.option("--force", is_flag=True, help="Replace what is there.")
@click.option(
    "--shard", type=click.FloatRange(0.001, 1000), default=5.0, show_default=True, metavar="GB",
    help="How large a file of a public checkpoint may be.",
)  # fmt: skip
@json_option
@click.pass_context
def command(
    ctx: click.Context, spec: str, source: str, output: str, force: bool, shard: float,
    as_json: bool,
) -> None:  # fmt: skip
    """FROM a folder as Hugging Face keeps it (config.json, safetensors) TO a file of parameters
    named as in SPEC, NAME.safetensors; or from such a file to such a folder. Nothing but names and
    arrangements of numbers changes, and what does not fit is named before anything is written.

    \b
    Examples:
      archc convert my.arch their-folder -o my.safetensors
      archc convert my.arch my.safetensors -o their-folder
    """
    from archc.api import load, save_pretrained
    from archc.weights.pretrained import save_own

    to = Path(output)
    if to.exists() and not force:
        raise fail("E0031", f"`{output}` exists already", helps=("--force replaces it",))
    back = Path(source).suffix == ".safetensors"
    if back == (to.suffix == ".safetensors"):
        raise click.UsageError("Give a folder and a .safetensors file, in either order.")
    own = load(spec)
    module = own.from_pretrained(source, backend="eager")
    if back:
        save_pretrained(module, to, shard_bytes=int(shard * 1e9))
    else:
        save_own(module, to)
    count = sum(p.numel() for p in module.parameters())
    if as_json:
        tensors = len(list(module.parameters()))
        writing.tell(output, source=source, layer=own.name, tensors=tensors, parameters=count)
    else:
        ctx.ensure_object(Console).say(f"{output} written, {count:,} parameters")

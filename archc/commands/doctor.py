"""`archc doctor`: what this machine has, whether kernels run on it, and which quirks may show."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata

import click
import torch

from archc.backends.measured import told
from archc.backends.triton.quirks import CAPABLE, QUIRKS, SUPPORTED, Quirk, Version
from archc.commands.parameters import json_option

COLUMNS = 100
"""How wide the report is."""

TRIED: tuple[Version, Version] = ((8, 0), (9, 0))
"""Compute capabilities that kernels are made for: what is beyond has never run them."""


WRONG: Version = (12, 8)
"""The newest ptxas that makes wrong machine code (`ptxas-12.8` in the table of quirks)."""


@dataclass(frozen=True)
class Machine:
    """Versions as text, None for what is not there; `cuda` is that of torch's build, `capability`
    the compute capability of the first device, `compiler` the C compiler that Triton calls, and
    `assembler` the version of ptxas that generated files take."""

    python: str
    archc: str
    torch: str
    cuda: str | None = None
    triton: str | None = None
    numpy: str | None = None
    driver: str | None = None
    device: str | None = None
    capability: Version | None = None
    compiler: str | None = None
    assembler: str | None = None


@click.command()
@json_option
def command(as_json: bool) -> None:
    """A file with kernels runs anywhere: where kernels cannot run, its eager form does. This says
    which of the two it is, and why."""
    found = machine()
    if as_json:
        click.echo(json.dumps(as_data(found), indent=2, ensure_ascii=False))
    else:
        click.echo("\n".join(report(found)))


# --- what there is ------------------------------------------------------------------------------


def machine() -> Machine:
    """This machine."""
    found = Machine(
        platform.python_version(), str(_version("archc")), torch.__version__, torch.version.cuda,
        _version("triton", "pytorch-triton"), _version("numpy"), _driver(),
        compiler=next((each for each in ("cc", "gcc", "clang") if shutil.which(each)), None),
        assembler=_assembler(),
    )  # fmt: skip
    if not torch.cuda.is_available():
        return found
    name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
    return replace(found, device=name, capability=capability)


def _version(*names: str) -> str | None:
    """The version of the first of some packages that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _driver() -> str | None:
    """The version of the NVIDIA driver."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else None


def _assembler() -> str | None:
    """The version of ptxas, chosen as a generated file chooses it."""
    try:
        from triton import knobs

        from archc.runtime.jit import newer_assembler
    except ImportError:
        return None
    newer_assembler()
    try:
        return knobs.nvidia.ptxas.version
    except RuntimeError:  # there is none
        return None


def version_of(text: str | None) -> Version | None:
    """The numbers that a version starts with: (3, 6, 0) of `3.6.0+git1`."""
    numbers = re.match(r"\d+(?:\.\d+)*", text or "")
    return tuple(map(int, numbers[0].split("."))) if numbers else None


# --- what follows -------------------------------------------------------------------------------


def obstacles(found: Machine) -> Iterator[str]:
    """The reasons why kernels cannot run on a machine."""
    triton = version_of(found.triton)
    if triton is None:
        yield "Triton is not installed"
    elif triton[:2] < SUPPORTED:
        oldest = ".".join(map(str, SUPPORTED))
        yield f"Triton {found.triton} is too old: kernels need {oldest} or newer"
    if found.cuda is None:
        yield "this build of torch has no CUDA"
    elif found.device is None:
        yield "torch finds no GPU" + ("" if found.driver else ", and there is no NVIDIA driver")
    if found.capability is not None and found.capability < CAPABLE:
        least = ".".join(map(str, CAPABLE))
        yield f"the GPU is of compute capability {_dotted(found.capability)}, below {least}"
    if found.device is not None and found.compiler is None:
        yield "there is no C compiler, which Triton calls at the first launch of a kernel"


def remarks(found: Machine) -> Iterator[str]:
    """Remarks on versions that run, but may surprise."""
    if found.capability is not None and found.capability > TRIED[1]:
        yield f"kernels have not been tried on compute capability {_dotted(found.capability)}"
    numpy, triton = version_of(found.numpy), version_of(found.triton)
    if numpy and triton and numpy >= (2, 4) and triton < (3, 7):
        yield (
            f"TRITON_INTERPRET=1 does not work: Triton's interpreter before 3.7 needs numpy below"
            f" 2.4, and this is {found.numpy} (https://github.com/triton-lang/triton/issues/9171)"
        )

    if found.assembler and (version_of(found.assembler) or WRONG) <= WRONG:
        yield (
            f"ptxas {found.assembler} makes wrong machine code for Hopper GPUs (quirk ptxas-12.8):"
            " let TRITON_PTXAS_PATH name a newer one"
        )


def quirks_of(found: Machine) -> list[Quirk]:
    """The quirks that may show on a machine; what it does not say may be anything."""
    return [each for each in QUIRKS if each.shows(found.capability, version_of(found.triton))]


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


# --- how it is told -----------------------------------------------------------------------------


def report(found: Machine) -> Iterator[str]:
    """Lines to read."""
    shown = {name: value for name, value in asdict(found).items() if name != "capability"}
    if found.capability is not None:
        shown["device"] = f"{found.device}, compute capability {_dotted(found.capability)}"
    width = max(map(len, shown))
    yield from (f"{name:<{width}}  {value or '-'}" for name, value in shown.items())
    yield ""
    why = list(obstacles(found))
    yield f"kernels do not run here: files {_instead(found)}" if why else "kernels run here"
    yield from (f"  {line}" for line in why)
    if not why:
        yield f"  launched with settings {told()}"
    for line in remarks(found):
        yield from _wrapped(f"note: {line}")
    yield ""
    yield f"quirks that may show {'here' if found.capability else 'with this Triton on some GPU'}"
    for quirk in quirks_of(found):
        yield f"  {quirk.id}"
        yield f"    where: {_where(quirk)}"
        yield from _wrapped(f"what: {quirk.pattern}", 4)
        yield from _wrapped(f"done: {quirk.instead}", 4)
        yield from (f"    {each}" for each in quirk.sources)


def _where(quirk: Quirk) -> str:
    """The GPUs and the releases of Triton that a quirk shows with."""
    devices, triton = _span(quirk.devices), _span(quirk.triton)
    gpus = f"compute capability {devices}" if devices else "any GPU"
    return f"{gpus}, {f'Triton {triton}' if triton else 'any Triton'}"


def _span(span: tuple[Version, Version | None]) -> str:
    """`3.5 to 3.6`; "" for all there are."""
    first, last = span
    if last is None:
        return f"{_dotted(first)} and later" if first > (0,) else ""
    return _dotted(first) if first == last else f"{_dotted(first)} to {_dotted(last)}"


def _instead(found: Machine) -> str:
    """The behaviour of a file with kernels where they cannot run."""
    triton = version_of(found.triton)
    old = found.device is not None and triton is not None and triton[:2] < SUPPORTED
    return "refuse this Triton" if old else "run their eager form"


def _wrapped(text: str, indent: int = 2) -> list[str]:
    first, rest = " " * indent, " " * (indent + 6)
    return textwrap.wrap(
        text, COLUMNS, initial_indent=first, subsequent_indent=rest, break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def as_data(found: Machine) -> dict[str, object]:
    """The same as data."""
    why = list(obstacles(found))
    return {
        "machine": asdict(found),
        "kernels": not why,
        "obstacles": why,
        "remarks": list(remarks(found)),
        "quirks": [
            {
                "id": quirk.id, "pattern": quirk.pattern, "instead": quirk.instead,
                "devices": [None if v is None else _dotted(v) for v in quirk.devices],
                "triton": [None if v is None else _dotted(v) for v in quirk.triton],
                "sources": [each.removeprefix("source: ") for each in quirk.sources],
            }
            for quirk in quirks_of(found)
        ],
    }  # fmt: skip

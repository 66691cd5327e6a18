"""Launches with settings that `archc tune` found."""

from __future__ import annotations

import hashlib
import io
import json
import tokenize
from typing import Any

import torch

from archc.runtime.optional import triton
from archc.runtime.repeated import Recording


def take_settings(path: str, named: dict) -> None:
    """Launch the kernels of a file, by their names there, from now on as `archc tune` found best;
    those it says nothing of, and classes of launches it has not seen, stay as shipped. Without a
    GPU there is nothing to launch.

    Raises ValueError for settings of another GPU, of other versions, or of other kernels.
    """
    if triton is None or not torch.cuda.is_available():
        return
    with open(path, encoding="utf-8") as file:
        data = json.load(file)
    here = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    here["triton"] = triton.__version__
    if data["valid_for"] != here:
        raise ValueError(f"{path} is valid for {data['valid_for']}, not for {here}")
    for name, entry in data["kernels"].items():
        made = named.get(name)
        if made is None or kernel_digest(made) != entry["source"]:
            raise ValueError(f"{path} is of other kernels, see `{name}`: run archc tune again")
    for name, entry in data["kernels"].items():
        named[name].measured = entry["settings"]
    Recording.settings += 1  # calls are done as before no longer


def kernel_digest(made: Any) -> str:
    """The digest of what a kernel does: of its text but for its docstring, its comments and how its
    lines are broken."""
    kept: list[str] = []
    for kind, text, *_ in tokenize.generate_tokens(io.StringIO(made.src).readline):
        if kind in (tokenize.COMMENT, tokenize.NL):
            continue
        if kind == tokenize.STRING and kept[-1] in ("NEWLINE", "INDENT"):
            continue
        if text == ")" and kept[-1] == ",":
            kept.pop()
        kept.append(text if text.strip() and kind != tokenize.INDENT else tokenize.tok_name[kind])
    return hashlib.sha256(" ".join(kept).encode()).hexdigest()[:16]


def measured_options(kernel: Any, programs: int, fixed: dict, options: dict) -> dict:
    """The options of a launch, with those that were measured to be better."""
    measured = getattr(kernel, "measured", None)
    if not measured:
        return options
    return {**options, **measured.get(launch_class((programs,), fixed), {})}


def launch_class(grid: tuple, named: dict) -> str:
    """The class of launches that share their settings: the lengths of tiles, how products are made,
    and about how many programs there are, as a power of 2."""
    blocks = [f"{n}={x}" for n, x in sorted(named.items()) if n == "CHUNK" or n.startswith("B_")]
    programs = grid[0].bit_length()
    return " ".join([*blocks, f"DOT={named.get('DOT')}", f"programs=2^{programs}"])

"""Launches that were measured to be the best on a device: a table in the package for each.

A table is what `python -m benchmarks.tuned` writes: settings by the text of a kernel and the class
of a launch, found with one version of Triton. A device without a table takes that of one with as
many processors of the same kind. A kernel that has changed since, another version and any other
device get the settings of the cost model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from types import ModuleType
from typing import Any

import torch

from archc.runtime.optional import triton
from archc.runtime.tuned import kernel_digest

Settings = Mapping[str, Mapping[str, int]]
"""The class of a launch -> warps and stages."""


def name_of(device: str) -> str:
    """The name of a device's table."""
    return re.sub(r"[^A-Za-z0-9]+", "_", device).strip("_") + ".json"


@cache
def tables() -> dict[str, Any]:
    """The tables in the package, by the name of their file."""
    folder = resources.files("archc.backends").joinpath("tuned")
    if not folder.is_dir():
        return {}
    files = (file for file in folder.iterdir() if file.name.endswith(".json"))
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}


@cache
def table(device: str, kind: tuple[int, int, int], version: str) -> tuple[str, dict[str, Settings]]:
    """The settings for a device with a version of Triton, by the digest of a kernel, and the device
    that they were measured on: itself, or another of its `kind`, which has as many processors of
    the same compute capability."""
    every = tables()
    same = [each for each in every.values() if tuple(each.get("kind", ())) == kind]
    for found in (every.get(name_of(device), {}), *same):
        if found.get("triton") == version:
            return found["device"], {each["source"]: each["settings"] for each in found["kernels"]}
    return device, {}


def here() -> tuple[str, Mapping[str, Settings]]:
    """Those of this machine."""
    if triton is None or not tables() or not torch.cuda.is_available():
        return "", {}
    return table(torch.cuda.get_device_name(), kind_of_device(), triton.__version__)


def kind_of_device() -> tuple[int, int, int]:
    """The compute capability of this machine's GPU, and how many processors it has."""
    processors = torch.cuda.get_device_properties().multi_processor_count
    return (*torch.cuda.get_device_capability(), processors)


def kernels_of(module: ModuleType) -> Iterator[Any]:
    """The kernels of a generated file."""
    for each in vars(module).values():
        if hasattr(each, "src") and hasattr(each, "fn"):
            yield each


def take(module: ModuleType) -> None:
    """Launch the kernels of a generated file as the package's table says from now on, but for those
    that were told otherwise."""
    _, known = here()
    for kernel in kernels_of(module) if known else ():
        if not getattr(kernel, "measured", None):
            kernel.measured = known.get(kernel_digest(kernel), {})


def told() -> str:
    """Where launches of this machine's device get their settings from."""
    device, known = here()
    if known:
        this = device == torch.cuda.get_device_name()
        where = "on this device" if this else f"on {device}, which has as many of such processors,"
        return f"measured {where} for {len(known)} kernels, else by the cost model"
    names = ", ".join(sorted(each["device"] for each in tables().values()))
    return "by the cost model" + (f"; measured ones are there for {names}" if names else "")

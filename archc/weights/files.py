"""A checkpoint in a folder: safetensors, whole or in shards, and its config.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from archc.diagnostics import fail

WHOLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
UNDER_WAY = ".new"
"""How a file is called in addition, as long as it is not whole."""


@dataclass(frozen=True)
class Checkpoint:
    """Tensors by name, read when they are asked for; `config` is what config.json says."""

    folder: Path
    config: Mapping[str, Any]
    homes: Mapping[str, Path]

    def read(self, name: str) -> Tensor:
        """One tensor."""
        with _opened(self.homes[name]) as file:
            return file.get_tensor(name)

    def length(self, name: str, dim: int) -> int | None:
        """The length of a dim of a tensor; None if it is not there, or has no such dim."""
        if name not in self.homes:
            return None
        with _opened(self.homes[name]) as file:
            shape = file.get_slice(name).get_shape()
        return shape[dim] if dim < len(shape) else None

    def dtype(self) -> torch.dtype:
        """The dtype of the first real tensor."""
        for name in self.homes:
            found = self.read(name)
            if found.is_floating_point():
                return found.dtype
        return torch.get_default_dtype()


def checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in a folder; ArchError E0041 for a file that is missing or torn."""
    config = _json(folder / CONFIG)
    if (folder / INDEX).exists():
        names = _json(folder / INDEX).get("weight_map", {})
        homes = {name: folder / Path(home).name for name, home in names.items()}
    elif (folder / WHOLE).exists():
        with _opened(folder / WHOLE) as file:
            homes = dict.fromkeys(file.keys(), folder / WHOLE)
    else:
        raise _unreadable(folder / WHOLE, f"there is neither it nor {INDEX}")
    _check(homes)
    return Checkpoint(folder, config, homes)


def _check(homes: Mapping[str, Path]) -> None:
    """Every file is whole, and has what the index says."""
    for path in dict.fromkeys(homes.values()):
        with _opened(path) as file:
            there = set(file.keys())
        lacks = [name for name, home in homes.items() if home == path and name not in there]
        if lacks:
            raise _unreadable(path, f"`{lacks[0]}` is not in it, though {INDEX} says so")


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, f"it is no whole safetensors file: {error}") from None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=_number)
    except OSError as error:
        raise _unreadable(path, (error.strerror or str(error)).lower()) from None
    except ValueError as error:
        raise _unreadable(path, str(error)) from None


def _number(made: dict[str, Any]) -> Any:
    """A number that JSON has no word for, as it is written there: `{"__float__": "Infinity"}`."""
    return float(made["__float__"]) if made.keys() == {"__float__"} else made


def save(
    folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any], shard_bytes: int
) -> None:
    """Write a folder as Hugging Face keeps it; files are of at most `shard_bytes`, but for a tensor
    that is larger by itself. What the folder has is replaced when all is written."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    names = names if len(shards) > 1 else [WHOLE]
    with _replacing(folder, "model*.safetensors*") as new:
        for name, shard in zip(names, shards, strict=True):
            save_file(shard, new(name), metadata={"format": "pt"})
        if len(shards) > 1:
            where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
            total = sum(tensor.nbytes for tensor in tensors.values())
            index = {"metadata": {"total_size": total}, "weight_map": where}
            new(INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
        new(CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


@contextmanager
def _replacing(folder: Path, olds: str = "") -> Iterator[Callable[[str], Path]]:
    """Where to write files of a folder: they take their names, and the places of old ones, when all
    are written. Where one cannot be, the folder stays as it was."""
    new = dict[str, Path]()

    def path(name: str) -> Path:
        return new.setdefault(name, folder / f"{name}{UNDER_WAY}")

    try:
        yield path
        for old in folder.glob(olds) if olds else ():
            if not old.name.endswith(UNDER_WAY):
                old.unlink()
        for name, made in new.items():
            made.replace(folder / name)
    finally:
        for made in new.values():
            made.unlink(missing_ok=True)


def own(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Parameters by name, and sizes, of a file that `save_own` wrote; ArchError E0041."""
    with _opened(path) as file:
        said = (file.metadata() or {}).get("sizes")
        if said is None:
            raise _unreadable(path, "it does not say the sizes of a spec: archc did not write it")
        return {name: file.get_tensor(name) for name in list(file.keys())}, json.loads(said)


def save_own(path: Path, values: Mapping[str, Tensor], sizes: Mapping[str, Any]) -> None:
    """Write parameters by their own names, with the sizes of the spec."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _replacing(path.parent) as new:
        told = {"format": "pt", "sizes": json.dumps(sizes)}
        save_file(dict(values), new(path.name), metadata=told)


def _unreadable(path: Path, why: str) -> Exception:
    return fail("E0041", f"cannot read the checkpoint `{path}`", notes=(why,))

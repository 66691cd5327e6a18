"""Tensors of a checkpoint as parameters of a module, and back, as a table says."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import prod

import torch
from einops import EinopsError, rearrange
from torch import Tensor

from archc.weights.table import PLACE, Entry, Part, Table

Sizes = Mapping[str, int]
Shape = tuple[int, ...]
Read = Callable[[str], Tensor]


@dataclass(frozen=True)
class Source:
    """Where one parameter comes from: its entry, the numbers in its name, and its tensors."""

    parameter: str
    entry: Entry
    tensors: tuple[str, ...]


class Misfit(Exception):
    """The misfits between a checkpoint and a module: a finding a line."""

    def __init__(self, findings: Sequence[str]):
        super().__init__("; ".join(findings))
        self.findings = tuple(findings)


FORWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x, "exp": torch.exp, "neg_exp": lambda x: -torch.exp(x),
    "one_plus": lambda x: 1 + x,
}  # fmt: skip
BACKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x, "exp": torch.log, "neg_exp": lambda x: torch.log(-x),
    "one_plus": lambda x: x - 1,
}  # fmt: skip


def sources(table: Table, parameters: Iterable[str], tensors: Iterable[str]) -> list[Source]:
    """Where every parameter comes from; Misfit with each that no entry, or no tensor, is for, and
    with each tensor that none needs."""
    present, used, findings, found = set(tensors), set[str](), list[str](), list[Source]()
    for parameter in parameters:
        source = _source(table, parameter, present)
        if source is None:
            findings.append(f"{table.name} has no tensor for the parameter `{parameter}`")
            continue
        missing = [name for name in source.tensors if name not in present]
        if missing or not source.tensors:
            what = f"`{missing[0]}`" if missing else f"tensors like `{source.entry.tensor}`"
            findings.append(f"missing: {what}, for the parameter `{parameter}`")
        used |= {*source.tensors}
        found.append(source)
    known = used | set(table.tied)
    for name in sorted(present - known):
        if not name.endswith(table.ignored or ("\0",)):
            findings.append(f"extra: `{name}`, which no parameter needs")
    if findings:
        raise Misfit(findings)
    return found


def targets(table: Table, parameters: Mapping[str, Tensor]) -> list[Source]:
    """The tensors that every parameter becomes; Misfit for parameters without an entry."""
    found, findings = [], []
    for parameter, value in parameters.items():
        match, entry = _matching(table, parameter)
        if match is None or entry is None:
            findings.append(f"{table.name} has no tensor for the parameter `{parameter}`")
            continue
        name = _filled(entry.tensor, match)
        each = range(value.shape[0]) if entry.stacked else (0,)
        found.append(
            Source(
                parameter,
                entry,
                tuple(name.replace("{" + entry.stacked + "}", str(i)) for i in each),
            )
        )
    if findings:
        raise Misfit(findings)
    return found


def parameter(source: Source, read: Read, sizes: Sizes, wanted: Shape) -> Tensor:
    """One parameter from its tensors; Misfit, which names them, for another shape than `wanted`."""
    entry, values = source.entry, [read(name) for name in source.tensors]
    shown = f"`{source.tensors[0]}` is {list(values[0].shape)}"
    try:
        value = torch.stack(values) if entry.stacked else values[0]
        if entry.pattern:
            value = rearrange(value, entry.pattern, **_needed(entry, sizes))
        if entry.part is not None:
            value = _cut(value, entry, sizes)
        if entry.then:
            value = rearrange(value, entry.then, **_inside(entry.then, sizes))
    except (EinopsError, RuntimeError, IndexError):
        raise Misfit([f"{shown}, not `{entry.pattern.partition('->')[0].strip()}`"]) from None
    if tuple(value.shape) != wanted:
        raise Misfit(
            [f"{shown}: `{source.parameter}` would be {list(value.shape)}, not {list(wanted)}"]
        )
    return FORWARD[entry.map](value).contiguous()


def tensors(
    found: Sequence[Source], parameters: Mapping[str, Tensor], sizes: Sizes
) -> dict[str, Tensor]:
    """All tensors of a checkpoint from a module's parameters."""
    whole: dict[str, Tensor] = {}
    parts: dict[str, list[Source]] = defaultdict(list)
    for source in found:
        if source.entry.part is not None:
            parts[source.tensors[0]].append(source)
            continue
        value = _turned(BACKWARD[source.entry.map](parameters[source.parameter]), source.entry)
        several = bool(source.entry.stacked)
        for at, name in enumerate(source.tensors):
            whole[name] = (value[at] if several else value).contiguous()
    for name, pieces in parts.items():
        whole[name] = _joined(name, pieces, parameters, sizes)
    return whole


def _source(table: Table, parameter: str, present: set[str]) -> Source | None:
    match, entry = _matching(table, parameter)
    if match is None or entry is None:
        return None
    name = _filled(entry.tensor, match)
    if not entry.stacked:
        return Source(parameter, entry, (name,))
    like = re.compile(re.escape(name).replace(re.escape("{" + entry.stacked + "}"), r"(\d+)"))
    numbers = sorted(int(found[1]) for each in present if (found := like.fullmatch(each)))
    names = [name.replace("{" + entry.stacked + "}", str(each)) for each in range(len(numbers))]
    return Source(parameter, entry, tuple(names))


def _matching(table: Table, parameter: str) -> tuple[re.Match[str] | None, Entry | None]:
    """The entry of a parameter, and the numbers in its name."""
    for entry in table.entries:
        like = "".join(
            rf"(?P<{text}>\d+)" if odd else re.escape(text)
            for text, odd in zip(PLACE.split(entry.parameter), cycle((False, True)), strict=False)
        )
        match = re.fullmatch(like, parameter)
        if match is not None:
            return match, entry
    return None, None


def _filled(name: str, match: re.Match[str]) -> str:
    return PLACE.sub(lambda m: match.groupdict().get(m[1], m[0]), name)


def _needed(entry: Entry, sizes: Sizes) -> dict[str, int]:
    """The sizes of the dims that a pattern has in brackets, as far as they are known."""
    known = _inside(entry.pattern, sizes)
    if entry.part is not None and entry.part.count:
        known[entry.part.dim] = entry.part.count
    return known


def _inside(pattern: str, sizes: Sizes) -> dict[str, int]:
    """The sizes of the dims that a pattern has in brackets, as far as they are known."""
    inside = set(re.findall(r"\w+", " ".join(re.findall(r"\(([^)]*)\)", pattern))))
    return {name: size for name, size in sizes.items() if name in inside}


def _right(entry: Entry) -> list[str]:
    """Dims of what a pattern makes, before a part is taken."""
    return entry.pattern.partition("->")[2].split()


def _turned(value: Tensor, entry: Entry) -> Tensor:
    """A parameter as the tensor, or the stack of tensors, that it comes from."""
    if not entry.pattern:
        return value
    left, _, right = entry.pattern.partition("->")
    return rearrange(value, f"{right} -> {left}")


def bound(text: str, sizes: Sizes, default: int) -> int:
    """A sum of products of sizes and numbers; KeyError for a name that is no size."""
    if not text:
        return default
    terms = [each.split("*") for each in text.split("+")]
    return sum(prod(int(n) if n.isdigit() else sizes[n] for n in term) for term in terms)


def _cut(value: Tensor, entry: Entry, sizes: Sizes) -> Tensor:
    part = entry.part
    assert part is not None
    dim = _right(entry).index(part.dim)
    if part.index is not None:
        return value.select(dim, part.index)
    start, stop = _span(part, sizes, value.shape[dim])
    return value.narrow(dim, start, stop - start)


def _span(part: Part, sizes: Sizes, length: int) -> tuple[int, int]:
    return bound(part.start, sizes, 0), bound(part.stop, sizes, length)


def _joined(
    name: str, pieces: Sequence[Source], parameters: Mapping[str, Tensor], sizes: Sizes
) -> Tensor:
    """One tensor from the parameters that are parts of it, side by side along their dim."""
    placed = []
    for piece in pieces:
        entry, value = piece.entry, BACKWARD[piece.entry.map](parameters[piece.parameter])
        if entry.then:
            left, _, right = entry.then.partition("->")
            value = rearrange(value, f"{right} -> {left}", **_inside(entry.then, sizes))
        part = entry.part
        assert part is not None
        dim = _right(entry).index(part.dim)
        if part.index is not None:
            placed.append((part.index, value.unsqueeze(dim), dim, entry))
        else:
            placed.append((bound(part.start, sizes, 0), value, dim, entry))
    placed.sort(key=lambda each: each[0])
    _, _, dim, entry = placed[0]
    end = 0
    for start, value, at, _ in placed:
        if start != end or at != dim:
            raise Misfit([f"parts of `{name}` leave a gap before {start}"])
        end += value.shape[dim]
    return _turned(torch.cat([value for _, value, _, _ in placed], dim), entry).contiguous()

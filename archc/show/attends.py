"""The computation of each attend on a GPU: torch's attention, kernels that fold, or PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from archc.algebra.simplify import simplify
from archc.attention.between import Between
from archc.attention.between_lines import lines_between
from archc.attention.listing import lines
from archc.attention.moved_keys import moved_keys
from archc.attention.recognise import sums
from archc.attention.recurrent import states_of
from archc.attention.row_heads import all_by_rows, rows_of
from archc.attention.scores import scores_of
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import WeightedSum
from archc.backends.triton.fold import (
    for_kernels,
    how_on_hopper,
    how_packed,
    is_library,
    launched_on_hopper,
    told,
)
from archc.compile import folded, lowered, placed
from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.graph import Node
from archc.ir.text import called_layers
from archc.source import Span


@dataclass(frozen=True)
class Attended:
    """One sum over the tokens read of one attend: where it stands, what becomes of it, and more
    about that, a title and a text each; the fold, or the tree of folds, that kernels compute, and
    what it is of."""

    layer: str
    span: Span | None
    name: str | None
    how: str
    more: tuple[tuple[str, str], ...] = ()
    fold: WeightedSum | None = None
    attend: ir.Attend | None = None
    tree: Between | None = None

    @property
    def where(self) -> str | None:
        """File and line."""
        return self.span.where if self.span is not None else None


def attends_of(layer: ir.Layer) -> Iterator[Attended]:
    """Every sum over the tokens read of a layer and of those that it calls."""
    for each, name in called_layers(simplify(layer)).items():
        for node in each.graph:
            if states := states_of(node):
                yield Attended(name, node.span, _result(node.op), FACTORS, _of_states(states))
    ready = placed(lowered(layer))
    for each, name in called_layers(ready).items():
        for node in each.graph:
            if isinstance(node.op, ir.Attend) and chooses(node.op):
                yield _choices(node, name)
            elif isinstance(node.op, ir.Attend):
                yield from _sums(for_kernels(folded, node.op), name, each)


FACTORS = "a recurrence: its weights are products of what readers, tokens read and decays have"


def _result(attend: ir.Attend) -> str | None:
    """The name of the one result of an attend."""
    (result, *others) = attend.body.outputs
    return None if others else result


def _of_states(states: Iterable[ir.State]) -> tuple[tuple[str, str], ...]:
    """What is kept in place of the tokens."""
    shapes = (f"{s.name}[{', '.join(a.name for a in s.axes if a.kind == 'dim')}]" for s in states)
    return (("state", ", ".join(shapes)),)


def _choices(node: Node, name: str) -> Attended:
    """Choices that an attend makes."""
    (chosen, id), *_ = node.op.body.outputs.items()
    along = node.op.body[id].op.axis
    scores = scores_of(as_folds(node.op))
    by = "by PyTorch"
    if scores is not None:
        by = "by a kernel" + (f" that sums over `{scores.over}`" if scores.over else "")
    how = f"lists of places along `{along}`, of some readers at a time; scores {by}"
    return Attended(name, node.op.body[id].span, chosen, how, (("gradient", "none"),))


def _sums(attend: ir.Attend, name: str, layer: ir.Layer) -> Iterator[Attended]:
    found = folded(attend)
    for node, fold in zip(sums(attend), found, strict=True):
        more: tuple[tuple[str, str], ...] = ()
        by_torch = is_library(attend.body, node, fold)
        kernels = fold if isinstance(fold, WeightedSum) and not by_torch else None
        if kernels is not None:
            more = (*lines(kernels), ("packed", how_packed(layer, attend, found)))
            more += _hopper(kernels)
        if isinstance(fold, Between):
            more = (*lines_between(fold), ("packed", how_packed(layer, attend, found)))
            more += (*_hopper(fold), *_alone(attend))
        if attend.decode is not None:
            more = tuple(line for line in more if line[0] != "few readers") + _few(attend)
        how = told(attend, node, fold)
        called = node.name or _result(attend)
        kernels = kernels if kernels is not None and kernels.node == node.id else None
        tree = fold if isinstance(fold, Between) else None
        yield Attended(name, node.span, called, how, more, kernels, attend, tree)


def _hopper(found: WeightedSum | Between) -> tuple[tuple[str, str], ...]:
    """The kernels that such a GPU has, if there are any."""
    text = how_on_hopper(found)
    return (("on Hopper", text), ("launched", launched_on_hopper(found))) if text else ()


def _few(attend: ir.Attend) -> tuple[tuple[str, str], ...]:
    """The kernels of the form for few readers, whose products go in another order."""
    assert attend.decode is not None
    found = all_by_rows(folded(as_folds(replace(attend, body=attend.decode, decode=None))))
    if not found:
        return ()
    rows = " and ".join(filter(None, ["readers", rows_of(found[0]).text]))
    text = f"products in another order; rows are {rows}; parts of what is read, joined after"
    return (("few readers", f"{text}; no gradient"),)


def _alone(attend: ir.Attend) -> tuple[tuple[str, str], ...]:
    """A reader that comes alone, where keys are moved for it."""
    moved = moved_keys(attend)
    if moved is None:
        return ()
    text = f"reads `{moved.key}` as later tokens have moved it: a token moves each key in place"
    return (("a reader alone", f"{text}; no gradient"),)


def as_text(attends: Iterable[Attended]) -> str:
    """One paragraph each; empty where there is none."""
    return "\n\n".join("\n".join(_lines(each)) for each in attends)


def _lines(attended: Attended) -> Iterator[str]:
    name = f"{attended.name} of an attend" if attended.name else "a sum of an attend"
    yield f"{name} in {attended.layer}" + (f"  # {attended.where}" if attended.where else "")
    yield f"  {attended.how}"
    width = max((len(title) for title, _ in attended.more), default=0)
    yield from (f"    {title:<{width}}  {text}" for title, text in attended.more)


def as_json(attends: Iterable[Attended]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [
        {"layer": each.layer, "where": each.where, "attend": each.name, "how": each.how,
         "more": dict(each.more)}
        for each in attends
    ]  # fmt: skip

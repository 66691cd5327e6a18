"""The chapter of an attend: its statements as they are written, and what becomes of each of its
sums over the tokens read."""

from __future__ import annotations

from collections.abc import Iterator

from archc.derivation.as_written import attended
from archc.derivation.maths import Name, named
from archc.derivation.page import Block, Chapter, Step, Table, para
from archc.derivation.step_between import between_steps
from archc.derivation.step_fold import fold_steps
from archc.derivation.step_formula import letters
from archc.derivation.telling import excerpt
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.text import called_layers
from archc.show.attends import Attended, attends_of
from archc.source import Span


def attends(layer: ir.Layer) -> Iterator[Chapter]:
    """A chapter for each attend of an elaborated layer and of those that it calls."""
    found, seen = list(attends_of(layer)), list[Span]()
    for each in called_layers(layer):
        for node in each.graph:
            if isinstance(node.op, ir.Attend) and node.span and node.span not in seen:
                seen.append(node.span)
                own = [told for told in found if told.span and _inside(told.span, node.span)]
                yield _chapter(each, node, node.span, own)


def _inside(part: Span, whole: Span) -> bool:
    same = part.source is whole.source
    return same and whole.start <= part.start and part.end <= whole.end


def _chapter(layer: ir.Layer, node: Node, span: Span, told: list[Attended]) -> Chapter:
    lines = list(attended(layer.graph, node))
    reader, read = Name(node.op.reader.name), Name(node.op.read.name)
    blocks: list[Block] = [
        para("What token ", reader, " makes of the tokens ", read, " that it reads, as the spec"
             " has it:"),
        excerpt(span, []),
    ]  # fmt: skip
    if lines:
        said = "For one sequence and one head, and with the tokens of each value marked, that is:"
        blocks += [para(said), *lines]
    captured = {
        name: id
        for (name, _), id in zip(node.op.captures, node.operands, strict=False)
        if layer.graph[id].name is not None or isinstance(layer.graph[id].op, ir.Param)
    }
    blocks.append(letters(layer.graph, captured, node.op.reader.name, span))
    steps = [Step("As printed", tuple(blocks), span)]
    if told:
        steps.append(Step("What computes it", (*_computed(told),)))
    for each in told:
        if each.fold is not None and each.attend is not None:
            steps += fold_steps(layer, each.fold, each.attend, each.name or "")
        if each.tree is not None and each.attend is not None:
            steps += between_steps(layer, each.tree, each.attend, each.name or "")
    head = span.text.split(":")[0]
    return Chapter(f"The `{head}` of {layer.name}", tuple(steps), span)


def _computed(told: list[Attended]) -> Iterator[Block]:
    """How backends compute the sums over the tokens read."""
    yield para(COMPUTED)
    for each in told:
        name = (named(each.name), ": ") if each.name else ()
        yield para(*name, f"{each.how}.")
        if each.more:
            rows = tuple(
                (title, f"`{text}`" if title in CODE else text) for title, text in each.more
            )
            yield Table(("", ""), rows)


COMPUTED = (
    "A sum over the tokens read need not hold all pairs of tokens at once. Where its weights come"
    " from a score of each pair, it is a running sum over blocks of the tokens read; plain softmax"
    " attention is so well known that PyTorch has a function for it."
)
CODE = ("score", "where", "read")
"""Rows of the table that are formulas in the spec's own words."""

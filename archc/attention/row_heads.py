"""The rows of a program of few readers: for each reader the heads that read one vector of a
token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from archc.attention.between import Between
from archc.attention.weighted_sum import WeightedSum
from archc.dims import Axis
from archc.ir.refusal import Refusal


@dataclass(frozen=True)
class Rows:
    """The heads that are rows of one program: `share` of `head` at a time, as many as read one
    place of `groups`, or all where that is None. Without a head, a row is a reader alone. Where
    readers choose and no heads share what is chosen, each is a group of itself."""

    head: Axis | None = None
    groups: str | None = None
    share: sympy.Expr = sympy.S.One

    @property
    def text(self) -> str:
        """The meaning of rows beside readers, in words."""
        if self.head is None:
            return ""
        if self.groups is None:
            return f"all of `{self.head.name}`, which read the same vectors"
        if self.groups == self.head.name:
            return f"one of `{self.head.name}`, which share nothing"
        return f"the heads of `{self.head.name}` that share a `{self.groups}`"


def rows_of(fold: WeightedSum) -> Rows:
    """The rows of programs of few readers, as all vectors of the tokens read have it, and what is
    chosen of these."""
    vectors = [s for s in fold.sources if s.role == "read" and s.dim is not None]
    vectors += [] if fold.choice is None else [fold.choice.source]
    for head in fold.heads:
        found = {
            (own, share)
            for source in vectors for own, at, share in source.shares if at == head.name
        }  # fmt: skip
        if not found:
            return Rows(head, None, head.size)
        (own, share), *others = found
        if not others and own != head.name:
            return Rows(head, own, share)
    if fold.choice is not None and fold.heads:
        return Rows(fold.heads[0], fold.heads[0].name)
    return Rows()


def heads_beside(fold: WeightedSum) -> list[str]:
    """The axes of heads that share nothing: groups of those that are rows of one program, and the
    other heads."""
    rows = rows_of(fold)
    others = [head.name for head in fold.heads if head != rows.head]
    return [*([rows.groups] if rows.groups is not None else []), *others]


def not_by_choice(fold: WeightedSum) -> str:
    """Why a sum over what each reader has chosen has no kernel; empty where it has one."""
    rows = rows_of(fold)
    if fold.alone:
        return "the log of a sum of weights, of chosen tokens"
    if rows.head is None:
        return "no heads share what a reader has chosen"
    if fold.lookups:
        return "a table is read at an index of each pair that a reader has chosen"
    if any(source.summed for source in fold.sources):
        return "a sum of tokens between two is part of a score of chosen tokens"
    for source in fold.sources:
        if source.role == "read" and any(
            at == rows.head.name and own != rows.groups for own, at, _ in source.shares
        ):
            return "a chosen token has a number for each of the heads that share it"
    assert fold.choice is not None
    differing = [own for own, _, _ in fold.choice.heads]
    if fold.choice.single and differing not in ([], heads_beside(fold)):
        return "tokens are chosen for some of the heads by themselves, and for others together"
    return ""


def all_by_rows(found: Sequence[WeightedSum | Between | Refusal]) -> list[WeightedSum]:
    """The sums of an attend's form for few readers, if programs whose rows are heads do all of
    them; else none."""
    able = [
        fold for fold in found
        if isinstance(fold, WeightedSum) and fold.choice is None and rows_of(fold).head is not None
    ]  # fmt: skip
    return able if len(able) == len(found) else []


def together(
    found: Sequence[WeightedSum | Between | Refusal],
) -> tuple[WeightedSum | Between | Refusal, ...]:
    """The sums of an attend, all by kernels or none where tokens are chosen one by one: these are
    given as lists of places, and what stays in PyTorch has a mask."""
    chosen = [isinstance(each, WeightedSum) and _is_single(each) for each in found]
    if not any(chosen) or all(isinstance(each, WeightedSum) for each in found):
        return tuple(found)
    reason = "another sum of the same chosen tokens has no kernel"
    return tuple(
        Refusal(each.node, reason) if isinstance(each, WeightedSum) and _is_single(each) else each
        for each in found
    )


def _is_single(fold: WeightedSum) -> bool:
    """Whether a reader reads tokens that it has chosen one by one."""
    return fold.choice is not None and fold.choice.single

"""Which rows a program of few readers has: the heads that read one vector of a token, for each
reader."""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.attention.weighted_sum import WeightedSum
from archc.dims import Axis


@dataclass(frozen=True)
class Rows:
    """The heads that are rows of one program: `share` of `head` at a time, as many as read one
    place of `groups`, or all where that is None. Without a head, a row is a reader alone."""

    head: Axis | None = None
    groups: str | None = None
    share: sympy.Expr = sympy.S.One

    @property
    def text(self) -> str:
        """What rows are, in words."""
        if self.head is None:
            return "rows are readers, as no heads share what they read"
        if self.groups is None:
            return f"rows are readers and all of `{self.head.name}`, which read the same vectors"
        return f"rows are readers and the heads of `{self.head.name}` that share a `{self.groups}`"


def rows_of(fold: WeightedSum) -> Rows:
    """The rows of programs of few readers, as all vectors of the tokens read have it."""
    vectors = [s for s in fold.sources if s.role == "read" and s.dim is not None]
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
    return Rows()

"""Scores of pairs that are sums over heads -> a tile program: a block of pairs, all heads in turn.

Vectors that heads share are loaded once. Nothing is masked: what may not be read is left out where
choices are made of the scores.
"""

from __future__ import annotations

from archc.attention.scores import Scores
from archc.attention.weighted_sum import Source
from archc.dims import Axis
from archc.lowering.attention import READ, READER, Sweep, Tokens, clean
from archc.lowering.formula import Known
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Program


class _Scores(Sweep):
    """A program of a block of readers and a block of tokens read."""

    def __init__(self, scores: Scores, name: str):
        doc = "Scores of a block of pairs: the sum over heads of a number of each."
        super().__init__(scores.fold, name, doc, READER, 4, 3)
        self.over = next(head for head in self.fold.heads if head.name == scores.over)
        others = {f"n_{clean(head.name)}": self.N[head.name] for head in self.others()}
        self.o = self.k.memory("o", {"b": self.B, **others, "t": self.T, "s": self.S})

    def others(self) -> list[Axis]:
        """The heads that are not summed over."""
        return [head for head in self.fold.heads if head != self.over]

    def stand_among_heads(self) -> None:
        """The grid of sequences and of the heads that are not summed over."""
        k = self.k
        self.b = k.program("b", self.B)
        self.heads = {h.name: k.program(clean(h.name), self.N[h.name]) for h in self.others()}
        self.stand_along_vectors()

    def stand(self) -> None:
        """The grid: sequences, heads, blocks of tokens read, and of readers."""
        k = self.k
        self.stand_among_heads()
        place = k.program("block_s", ceil_div(self.S, self.BLOCK[READ]))
        first = k.program("block_t", ceil_div(self.T, self.BLOCK[READER])) * self.BLOCK[READER]
        self.stand_on(first.named("first"))
        self.seen = self.tokens((place * self.BLOCK[READ]).named("first_s"), READ)
        self.in_seen = self.inside_of(self.seen, READ)

    def every(self, own: bool) -> dict[str, Known]:
        """The sources that differ along the heads that are summed, or those that do not."""
        tokens: dict[str, tuple[Tokens | None, list[Tile]]] = {
            READER: (self.mine, [self.in_mine]), READ: (self.seen, [self.in_seen]),
            "same": (None, []),
        }  # fmt: skip
        wanted = [s for s in self.fold.sources if self._of_each(s) == own]
        return {source.name: self.load(source, *tokens[source.role]) for source in wanted}

    def _of_each(self, source: Source) -> bool:
        """Whether a source differs along the heads that are summed."""
        return any(at == self.over.name for _, at, _ in source.shares)


def of_pairs(scores: Scores, name: str = "attend_scores") -> Program:
    """o[b, t, s], for each of the heads that are not summed over."""
    w = _Scores(scores, name)
    k, fold = w.k, w.fold
    w.stand()
    shared, standing = w.every(False), w.heads
    start = k.full(0.0, w.rows, w.columns).named("sum")
    with k.loop(0, w.N[w.over.name], start, index=clean(w.over.name)) as loop:
        w.heads = {**standing, w.over.name: loop.index}
        inputs = {**shared, **w.every(True)}
        inputs |= w.products(inputs, inputs)
        formula = w.formula(fold.pairs, inputs, w.seen)
        score = formula.value(fold.pairs.outputs["score"]).over(w.rows, w.columns)
        loop.next(loop.carried[0] + score)
    places = [*(standing[head.name] for head in w.others()), w.mine.at, w.seen.at]
    k.store(w.o, w.b, *places, value=loop.results[0], where=[w.in_mine, w.in_seen])
    return k.done()

"""Scores of pairs that are sums over heads -> a tile program: a block of pairs, all heads in turn.

Vectors that heads share are loaded once. Weights of a softmax are 0 where nothing is read, of which
another program finds the log of the sum for each reader and head before; scores may be -inf there.
What else may not be read is left out where choices are made of the scores.
"""

from __future__ import annotations

from dataclasses import replace

import sympy

from archc.attention.scores import Scores
from archc.attention.weighted_sum import Source, WeightedSum
from archc.dims import Axis
from archc.ir import layer as ir
from archc.lowering.attention import LOG2E, NEVER, READ, READER, Sweep, Tokens, clean
from archc.lowering.attention_forward import forward
from archc.lowering.formula import Known, tile
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Program
from archc.tile.unread import swept


class _Scores(Sweep):
    """A program of a block of readers and a block of tokens read."""

    def __init__(self, scores: Scores, name: str):
        doc = "Scores of a block of pairs: the sum over heads of a number of each."
        self.scores, fold = scores, scores.fold
        super().__init__(fold, name, doc, READER, 4, 3)
        self.over = next((head for head in fold.heads if head.name == scores.over), None)
        self.lse = self.made("lse", READER, None) if fold.softmax else None
        self.count = sympy.S.One if self.over is None else self.N[self.over.name]
        others = {f"n_{clean(head.name)}": self.N[head.name] for head in self.others()}
        if scores.groups is not None:
            self.count = self._known(scores.share)
            if scores.groups not in self.N:
                self.N[scores.groups] = self.k.sizes(f"N_{clean(scores.groups)}")[0]
            others[f"n_{clean(scores.groups)}"] = self.N[scores.groups]
        dtype = self.IO if scores.summed else "f32"
        self.o = self.k.memory("o", {"b": self.B, "t": self.T, **others, "s": self.S}, dtype)

    def equations(self, fold: WeightedSum) -> list[str]:
        """The formulas of the docstring."""
        of = self.scores.over + (f" of a {self.scores.groups}" if self.scores.groups else "")
        weight = "exp(score - lse)" if fold.softmax else "score"
        made = f"o = sum[{of}]({weight})" if of else "o = score"
        lines = _instead(super().equations(fold), made)
        return [line + ", else -inf" * (self.scores.masked and line[:2] == "o ") for line in lines]

    def others(self) -> list[Axis]:
        """The heads that are not summed over."""
        return [head for head in self.fold.heads if head.name != self.scores.over]

    def stand_among_heads(self) -> None:
        """The grid of sequences, of the heads that are not summed over, and of groups."""
        self.group = self.stand_among(self.others(), self.scores.groups)

    def stand(self) -> None:
        """The grid: sequences, heads, blocks of readers, whose heads are many, and of tokens read:
        programs side by side have the same readers."""
        k = self.k
        self.stand_among_heads()
        first = k.program("block_t", ceil_div(self.T, self.BLOCK[READER])) * self.BLOCK[READER]
        place = k.program("block_s", ceil_div(self.S, self.BLOCK[READ]))
        self.stand_on(first.named("first"))
        self.seen_first = (place * self.BLOCK[READ]).named("first_s")
        self.seen = self.tokens(self.seen_first, READ)
        self.in_seen = self.inside_of(self.seen, READ)

    def place_of(self, source: Source, head: str, share: sympy.Expr) -> Tile:
        """Where a source is read along an axis of its own: one place where a group shares it."""
        if self.group is not None and self._of_group(head, share):
            return self.group
        return super().place_of(source, head, share)

    def _of_group(self, head: str, share: sympy.Expr) -> bool:
        """Whether all heads that a program sums over read one place."""
        grouped = self.scores.groups is not None and share == self.scores.share
        return grouped and head == self.scores.over

    def every(self, own: bool) -> dict[str, Known]:
        """The sources that differ along the heads that are summed, or those that do not."""
        tokens: dict[str, tuple[Tokens | None, list[Tile]]] = {
            READER: (self.mine, [self.in_mine]), READ: (self.seen, [self.in_seen]),
            "same": (None, []),
        }  # fmt: skip
        wanted = [s for s in self.fold.sources if self._of_each(s) == own]
        found = {source.name: self.load(source, *tokens[source.role]) for source in wanted}
        for dot in self.fold.dots:
            if dot.square and dot.reader in found:
                source = self.fold.source(dot.reader)
                assert source.dim is not None
                x = tile(self.load(source, *tokens[source.role], apart=True)).to("f32")
                found[dot.name] = (x * x).sum(self.dim(source.dim).name).named(dot.name)
        return found

    def _of_each(self, source: Source) -> bool:
        """Whether a source differs along the heads that are summed."""
        own = [(at, share) for _, at, share in source.shares if at == self.scores.over]
        return any(not self._of_group(*each) for each in own)

    def head(self, index: Tile) -> Tile:
        """One of the heads that a program sums over."""
        return index if self.group is None else self.group * self.k.lift(self.count) + index

    def number(self, inputs: dict[str, Known]) -> Tile:
        """The number that is summed, of one head: a score, or its weight where the log of the sum
        is known."""
        k, fold = self.k, self.fold
        formula = self.formula(fold.pairs, inputs, self.seen)
        score = formula.value(fold.pairs.outputs["score"]).over(self.rows, self.columns)
        if self.lse is None:
            return score
        index = [self.b, *self.among_heads(), self.mine.at]
        lse = k.load(self.lse, *index, where=[self.in_mine])
        lse = k.where(lse.equals(NEVER), 0.0, lse).named("b_lse", "0 where nothing is read")
        p = k.apply("exp2", score * LOG2E - lse * LOG2E)
        p = p.named("p", "exp(score - lse), as exp2: log2(e) is 1.4427")
        seen = self.visible(self.seen, formula, True)
        return p if seen is None else k.where(seen, p, 0.0)

    def turns(self) -> Tile:
        """How many heads are summed: none where no pair of the block is read."""
        k, count = self.k, self.k.lift(self.count, "i32")
        if not self.scores.masked:
            there = self.by_places()
            return count if there is None else k.where(there, count, 0)
        low, _, _, high = self._range(self.fold.bounds)
        first = self.seen_first
        some = ((first < high) & (first + self.BLOCK[READ] > low)).named("some")
        return k.where(some, count, 0)

    def by_places(self) -> Tile | None:
        """Whether a pair of the block has a number that is not 0 by its place; None where places
        alone say of no pair that it is 0."""
        k, graph = self.k, self.fold.pairs
        score = graph[graph.outputs["score"]]
        if score.op != ir.Elementwise("where") or self.lse is not None:
            return None
        mask, _, rest = score.operands
        ops = [graph[id].op for id in (mask, *graph.ancestors(mask))]
        heads = [head.name for head in self.fold.heads]
        told = any(isinstance(op, ir.Position) and op.axis.name in heads for op in ops)
        if told or ir.Constant(sympy.S.Zero) != graph[rest].op or any(map(_is_input, ops)):
            return None
        seen = self.formula(graph, {}, self.seen).value(mask).over(self.rows, self.columns)
        each = k.where(seen, k.lift(1, "i32"), 0).max(self.columns.name)
        return (each.max(self.rows.name) > 0).named("some", "pair that is not 0 by its place")

    def whole(self, total: Tile) -> Tile:
        """The sum, -inf where a pair is not read."""
        if not self.scores.masked:
            return total
        nothing = self.formula(self.fold.pairs, {}, None)
        seen = self.visible(self.seen, nothing, True)
        return total if seen is None else self.k.where(seen, total, NEVER)


def _is_input(op: ir.Op) -> bool:
    return isinstance(op, ir.Input)


def _instead(lines: list[str], made: str) -> list[str]:
    """Formulas of a weighted sum, with another one of what is made."""
    head = "o = "
    return [made + line[line.find(" where") :] * (" where" in line) if line.startswith(head)
            else line for line in lines]  # fmt: skip


def of_pairs(scores: Scores, name: str = "attend_scores") -> Program:
    """o[b, t, s], for each of the heads that are not summed over, and each group of those that
    are."""
    w = _Scores(scores, name)
    k = w.k
    w.stand()
    w.edges()
    shared, standing = w.every(False), w.heads
    start = k.full(0.0, w.rows, w.columns).named("sum")
    with k.loop(0, w.turns(), start, index=clean(w.scores.over) or "turn") as loop:
        w.heads = {**standing, w.scores.over: w.head(loop.index)} if w.over else standing
        w.heads = {head.name: w.heads[head.name] for head in w.fold.heads}
        inputs = {**shared, **w.every(True)}
        inputs |= w.products(inputs, inputs)
        loop.next(loop.carried[0] + w.number(inputs))
    places = [*(standing[head.name] for head in w.others()), *([w.group] if w.group else [])]
    where = [w.in_mine, w.in_seen]
    total = w.whole(loop.results[0])
    k.store(w.o, w.b, w.mine.at, *places, w.seen.at, value=total, where=where)
    return swept(k.done())


def log_sums(fold: WeightedSum, name: str = "attend_log_sums") -> Program:
    """lse[b, h, t]: the log of the sum of a softmax's weights, -inf where nothing is read."""
    return forward(replace(fold, total=fold.node), name)

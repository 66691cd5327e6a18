"""The gradient of a fold over the tokens read -> two tile programs, and no sum that depends on the
order in which programs run.

    dP = dO V',   dS = P (dP - delta),   delta[t] = dO[t] . O[t]

and the chain through the score's own derivative. What is of the reader is summed over the tokens
read by programs that hold readers, what is of the token read by programs that hold those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from archc.attention.listing import slopes
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir import layer as ir
from archc.ir.value_names import cotangent
from archc.lowering.attention import LOG2E, NEVER, READ, READER, Sweep, Tokens, clean
from archc.lowering.attention_dropout import kept
from archc.lowering.attention_forward import factor_of
from archc.lowering.attention_walked import looked_up, vectors
from archc.lowering.formula import Formula, Known, tile
from archc.tile.compose import Tile, ceil_div
from archc.tile.language import Buffer, Dim, Program
from archc.tile.unread import swept


class Gradient(Sweep):
    """A program of the gradient under construction. `keeps_delta`: whether another program is told
    of the common part of all scores of a reader."""

    keeps_delta = True

    def __init__(self, fold: WeightedSum, name: str, doc: str, held: str, warps: int, ahead: int):
        super().__init__(fold, name, doc, held, warps, ahead)
        assert fold.slopes is not None
        self.slopes = fold.slopes
        self.values = fold.source(fold.values) if fold.values else None
        self.d_o, delta = self.made_of("d_o", self.values), fold.softmax and held == READER
        self.o = self.made_of("o", self.values) if delta else None
        self.d_lse = self.made("d_lse", READER, None) if delta and fold.total is not None else None
        self.lse = self.made("lse", READER, None) if fold.softmax else None
        kept = fold.softmax and (held == READ or self.keeps_delta)
        self.delta = self.made("delta", READER, None) if kept else None
        own = (held, "same") if held == READER else (held,)
        self.wanted = [
            source for name in fold.learned for source in [fold.source(name)]
            if source.role in own and source.table is None
        ]  # fmt: skip
        self.results = {source.name: self._result(source) for source in self.wanted}
        self.squares = {
            dot.name: self.made(f"d_{dot.name}", role, None)
            for dot in fold.squares for role in [fold.source(dot.reader).role] if role == held
        }  # fmt: skip

    def equations(self, fold: WeightedSum) -> list[str]:
        """The formulas of the docstring, with those of the gradients."""
        roles = (READER, "same") if self.held == READER else (READ,)
        return [*slopes(fold, roles), *super().equations(fold)]

    def _result(self, source: Source) -> Buffer:
        """Memory for a gradient: for each head of the pairs, whoever shares the value."""
        role = READER if source.role == "same" else source.role
        shared = len(source.shares) < len(self.fold.heads) or any(
            n != 1 for _, _, n in source.shares
        )
        dtype = "f32" if source.dim is None else self._shared() if shared else self.IO
        if any(dot.reader == source.name for dot in self.fold.squares):
            dtype = "f32"  # the caller adds more, which may take most of it away again
        return self.made(cotangent(source.name).replace(".", "_"), role, source.dim, dtype)

    def _shared(self) -> str:
        """The dtype of gradients of values that heads may share: that of the data where a launch
        finds one head for each, else one that they are summed in."""
        if "SHARED" not in self.k.constants:
            self.k.dtypes("SHARED")
        return "SHARED"

    def begin(self) -> None:
        """Make what is needed before the loop over tokens: sources of the block that is held, and
        of all tokens."""
        self.stand()
        self.stand_at()
        self.fixed = self.loaded("same", None, ())
        self.own = self.loaded(self.held, self.mine, [self.in_mine])
        known = self.sided({**self.fixed, **self.own}, False)
        for graph in (self.fold.pairs, self.slopes):
            self.formula(graph, known, None).ready()
        self.edges()

    def arriving(self, t: Tokens, masks: Sequence[Tile], known: bool = True) -> dict[str, Tile]:
        """The cotangents of some readers, and the kept sums of a softmax; delta where it is
        `known`."""
        found = {"d_o": self.d_o, "lse": self.lse, "delta": self.delta if known else None}
        return {name: self.of_readers(x, t, masks) for name, x in found.items() if x is not None}

    def of_readers(self, buffer: Buffer, t: Tokens, masks: Sequence[Tile]) -> Tile:
        """A result of the forward, or what arrives, at some readers; the log of a sum of no weights
        as 0."""
        heads = self.among_heads()
        vector = self.values is not None and buffer in (self.d_o, self.o)
        if not vector:
            found = self.k.load(buffer, self.b, *heads, t.at, where=masks)
            if buffer is not self.lse or self.fold.total is None:
                return found.named(f"b_{buffer.name}")
            return self.k.where(found.equals(NEVER), 0.0, found).named("b_lse")
        assert self.values is not None and self.values.dim is not None
        dim = self.values.dim

        def index(at: Tile) -> list[Tile | int]:
            return [self.b, at, *heads, self.places[dim.name]]

        return vectors(self, buffer, index, t, dim, masks).named(f"b_{buffer.name}")

    def pairs_of(
        self, walked: Tokens, masked: bool, other: dict[str, Known], readers: dict[str, Tile]
    ) -> tuple[Tile, dict[str, Tile]]:
        """The weights of a block of pairs, and the gradient of each input of the score."""
        k, fold = self.k, self.fold
        inputs = self.sided({**self.fixed, **self.own, **other}, masked)
        inputs = looked_up(self, inputs, walked) | self.products(self.own, other)
        formula = self.formula(fold.pairs, inputs, walked)
        made_of, common = fold.pairs.outputs["score"], None
        if fold.softmax and self.held == READER:
            common = formula.common(made_of, self.own_sums())
        whole = common is None
        score = formula.value(made_of) if whole else formula.rest(made_of, self.own_sums())
        score = score.over(self.rows, self.columns).named("score")
        seen = self.visible(walked, formula, masked)
        p = score
        if fold.softmax:
            log_total = readers["lse"] if common is None else readers["lse"] - common
            p = k.apply("exp2", score * LOG2E - log_total * LOG2E)
            p = p.named("p", "exp(score - lse), as exp2: log2(e) is 1.4427")
        p = p if seen is None else k.where(seen, p, 0.0)
        factor = factor_of(self, formula, seen)
        p, *arrived = self._at_scores(p, factor, walked, other, readers)
        if seen is not None and not fold.softmax:
            arrived = [k.where(seen, d, 0.0) for d in arrived]
        names = {cotangent("score"): "d_s", cotangent("factor"): "d_f"}
        known = {n: d.named(c) for (n, c), d in zip(names.items(), arrived, strict=False)}
        slopes = self.formula(self.slopes, {**inputs, **known}, walked)
        made = {name: slopes.value(id) for name, id in self.slopes.outputs.items()}
        if seen is None or self._is_multiple():
            return p, made
        return p, {name: k.where(seen, d, 0.0) for name, d in made.items()}

    def _is_multiple(self) -> bool:
        """Whether all gradients of the score's inputs are the score's own times a number: 0 where
        that is 0, whatever the score is of pairs that are not read."""
        score = cotangent("score")
        inner = [node.op for node in self.slopes if not isinstance(node.op, ir.Constant)]
        return all(
            op.name == score if isinstance(op, ir.Input) else isinstance(op, ir.Elementwise)
            for op in inner
        )

    def _at_scores(
        self, p: Tile, factor: Tile | None, walked: Tokens, other: dict[str, Known],
        readers: dict[str, Tile],
    ) -> tuple[Tile, ...]:  # fmt: skip
        """The weights that are left of P, and the cotangent of each score: P (dP - delta) of a
        softmax, dP without; and of each factor F, of which P F are the weights: P dP, and
        P (F dP - delta) of the score."""
        if self.fold.alone:
            return p, p * (0.0 - readers["delta"])
        d_p = self._arriving(other, readers).over(self.rows, self.columns).named("d_p")
        left, d_p = kept(self, [p, d_p], walked)
        if factor is not None:
            return left * factor, p * (factor * d_p - readers["delta"]), p * d_p
        return left, p * (d_p - readers["delta"]) if self.fold.softmax else d_p

    def _arriving(self, other: dict[str, Known], readers: dict[str, Tile]) -> Tile:
        """dP: what arrives at each weight."""
        if self.values is None:
            return readers["d_o"]
        v = tile((self.own if self.held == READ else other)[self.values.name])
        both = (v, readers["d_o"]) if self.held == READ else (readers["d_o"], v)
        return both[0].dot(both[1], precision=self.PRECISION)

    def starts(self) -> list[Tile]:
        """Sums of nothing, one for each gradient, then of what arrives at squares."""
        found = []
        for source in self.wanted:
            dims = (self.rows,) if source.dim is None else (self.rows, self.dim(source.dim))
            found.append(self.k.full(0.0, *dims).named(f"sum_{source.name}"))
        return [*found, *(self.k.full(0.0, self.rows).named(f"sum_{n}") for n in self.squares)]

    def sums(
        self, p: Tile, found: dict[str, Tile], other: dict[str, Known], readers: dict[str, Tile],
        before: Sequence[Tile],
    ) -> list[Tile]:  # fmt: skip
        """Every gradient with a block of pairs more."""
        many = len(self.wanted)
        made = [
            self._sum(source, so_far, p, found, other, readers)
            for source, so_far in zip(self.wanted, before[:many], strict=True)
        ]
        for name, so_far in zip(self.squares, before[many:], strict=True):
            d = found[cotangent(name)].over(self.rows, self.columns)
            made.append(so_far + d.sum(self.columns.name))
        return made

    def _sum(
        self, source: Source, so_far: Tile, p: Tile, found: dict[str, Tile],
        other: dict[str, Known], readers: dict[str, Tile],
    ) -> Tile:  # fmt: skip
        """One gradient with a block of pairs more."""
        total = so_far
        if self.values is not None and source.name == self.values.name:
            total = p.to(self.IO).dot(readers["d_o"], total, precision=self.PRECISION)
        for dot in self.fold.dots:
            ends = {READER: dot.reader, READ: dot.read}
            d = found.get(cotangent(dot.name))
            if not dot.square and ends[self.held] == source.name and d is not None:
                d = d.over(self.rows, self.columns).to(self.IO)
                total = d.dot(tile(other[ends[self.walked]]), total, precision=self.PRECISION)
        d = found.get(cotangent(source.name))
        if d is not None:
            total = total + d.over(self.rows, self.columns).sum(self.columns.name)
        return total

    def pairs_done(
        self, s: Tokens, p: Tile, found: dict[str, Tile], readers: dict[str, Tile]
    ) -> None:
        """Store what is made of each block of pairs: of most programs nothing."""

    def leave(self, made: Sequence[Tile]) -> None:
        """Store every gradient, and what arrives at squares: the caller knows the vectors."""
        many = len(self.wanted)
        for buffer, sum in zip(self.squares.values(), made[many:], strict=True):
            self.keep(buffer, None, sum)
        for source, sum in zip(self.wanted, made[:many], strict=True):
            self.keep(self.results[source.name], source.dim, sum)


def by_readers(fold: WeightedSum, name: str = "attend_gradient_of_readers") -> Program:
    """The gradients of what is of the reader, or of the head, which is a number a reader that the
    caller sums; and delta, for the other program."""
    w = Gradient(fold, name, "Gradients of readers: a block of them walks what they read.",
                 READER, 8, 3)  # fmt: skip
    return gradient_of_readers(w)


def _delta(w: Gradient, readers: dict[str, Tile]) -> Tile:
    """The common part of all scores of each reader: dO . O, less the cotangent of the log of the
    sum of its weights."""
    found, own = None, [w.in_mine]
    if w.o is not None:
        found = w.of_readers(w.o, w.mine, own).to("f32") * readers["d_o"].to("f32")
        if w.values is not None and w.values.dim is not None:
            found = found.sum(w.dim(w.values.dim).name)
        found = found.named("d_o_o", "dO . O")
    if w.d_lse is not None:
        found = (0.0 if found is None else found) - w.of_readers(w.d_lse, w.mine, own)
    assert found is not None
    return found


def gradient_of_readers(w: Gradient) -> Program:
    """The gradients of what a program of readers holds."""
    k, fold = w.k, w.fold
    w.begin()
    readers = w.arriving(w.mine, [w.in_mine], known=False)
    if fold.softmax:
        readers["delta"] = _delta(w, readers).named("b_delta")
        if w.delta is not None:
            w.keep(w.delta, None, readers["delta"])

    def turn(s: Tokens, masked: bool, before: tuple[Tile, ...]) -> Sequence[Tile]:
        there = w.inside_of(s, READ)
        other = w.loaded(READ, s, [there] if masked else [])
        p, found = w.pairs_of(s, masked, other, readers)
        w.pairs_done(s, p, found, readers)
        return w.sums(p, found, other, readers, before)

    made = w.walk(w.starts(), turn)
    if fold.sink is not None:
        place = next(i for i, source in enumerate(w.wanted) if source.name == fold.sink)
        sink = tile({**w.fixed, **w.own}[fold.sink])
        made[place] = made[place] - k.apply("exp", sink - readers["lse"]) * readers["delta"]
    w.leave(made)
    return swept(k.done())


def by_distances(fold: WeightedSum, name: str = "attend_gradient_of_tables") -> Program:
    """The gradients of tables that are read by the distance of two tokens.

    A program has the blocks of pairs along one diagonal, which share their distances: t - s is u,
    or u less a block, for the places u of a block. It turns the rows of every block until distances
    stand in columns, and sums over rows; the caller sums over sequences, and over what is read at
    one index. Blocks are square."""
    w = Gradient(fold, name, "Gradients by distance: the blocks along one diagonal.", READER, 4, 2)
    k, lookups = w.k, fold.learned_lookups
    alone = [ceil_div(n, w.BLOCK[role]) for n, role in ((w.T, READER), (w.S, READ))]
    diagonals = w.programs(alone[0] + alone[1] - 1)
    made = {lookup.name: _at_distances(w, lookup.name, diagonals) for lookup in lookups}
    w.stand_among_heads()
    place = k.program("diagonal", diagonals)
    beside = w.in_sequence(place, lambda: place - k.lift(alone[1] - 1))
    beside = beside.named("beside", "block of t less block of s")
    w.fixed = w.loaded("same", None, ())
    readers_blocks, read_blocks = (
        (w.lengths[role] + (w.BLOCK[role] - 1)) // w.BLOCK[role] for role in (READER, READ)
    )
    low = k.apply("max", beside, 0)
    high = k.apply("min", readers_blocks, beside + read_blocks)
    nothing = [k.full(0.0, Dim("s", w.BLOCK[READ])) for _ in range(2 * len(lookups))]
    with k.loop(low, _last(w, beside, low, high), *nothing, index="i") as turn:
        found = _on_block(w, turn.index, beside)
        sums = [_turned(w, found[cotangent(lookup.name)]) for lookup in lookups]
        flat = [each for pair in sums for each in pair]
        turn.next(*(a + b for a, b in zip(turn.carried, flat, strict=True)))
    for count, lookup in enumerate(lookups):
        d, at = made[lookup.name]
        for half in (0, 1):
            u = k.iota("s", w.BLOCK[READ])
            index = [w.b, *w.heads.values(), place, half, u]
            k.store(d, *index, value=turn.results[2 * count + half])
            k.store(at, *index, value=_index(w, lookup.index, beside, u, half))
    return swept(k.done())


def _at_distances(w: Gradient, name: str, diagonals: sympy.Expr) -> tuple[Buffer, Buffer]:
    """Memory for sums of pairs by distance, and for the index that a distance stands for."""
    axes: dict[str, Any] = {f"n_{clean(head.name)}": w.N[head.name] for head in w.fold.heads}
    axes = {"b": w.B, **axes, "diagonal": diagonals, "half": 2, "u": w.BLOCK[READ]}
    d = cotangent(name).replace(".", "_")
    return w.k.memory(d, axes), w.k.memory(f"at_{name}", axes, "i32")


def _last(w: Gradient, beside: Tile, low: Tile, high: Tile) -> Tile:
    """Where a diagonal ends: where it begins, if a bound of the mask leaves nothing of it."""
    k, N = w.k, w.BLOCK[READ]
    for bound in w.fold.bounds:
        if bound.slope == 1:
            limit = k.lift(-w._known(bound.offset) - w.POS + w.START, "i32")
            far = beside * N + (N - 1) if bound.most else beside * N - (N - 1)
            out = far < limit if bound.most else far > limit
            high = k.where(out, low, high)
    return high


def _on_block(w: Gradient, i: Tile, beside: Tile) -> dict[str, Tile]:
    """The gradient of each input of the score in the block of readers i on a diagonal."""
    k = w.k
    w.stand_on((i * w.BLOCK[READER]).named("first"))
    w.own = w.loaded(READER, w.mine, [w.in_mine])
    w.edges()
    readers = w.arriving(w.mine, [w.in_mine])
    s = w.tokens((i - beside) * w.BLOCK[READ], READ)
    other = w.loaded(READ, s, [s.place >= 0, w.inside_of(s, READ)])
    found = w.pairs_of(s, True, other, readers)[1]
    both = (w.rows, w.columns)
    return {name: k.where(w.in_mine, d.over(*both), 0.0) for name, d in found.items()}


def _turned(w: Gradient, d: Tile) -> tuple[Tile, Tile]:
    """Sums over the readers of a block for each u: of pairs with t - s = u, and u less a block."""
    k, N = w.k, w.BLOCK[READ]
    t, u = (k.iota(dim.name, dim.length) for dim in (w.rows, w.columns))
    ahead = t.over(w.rows, w.columns) - u
    turned = d.pick((ahead + N) % N, "s")
    return k.where(ahead >= 0, turned, 0.0).sum("t"), k.where(ahead >= 0, 0.0, turned).sum("t")


def _index(w: Gradient, output: str, beside: Tile, u: Tile, half: int) -> Tile:
    """The index of a table at each distance of a diagonal."""
    k, N, fold = w.k, w.BLOCK[READ], w.fold
    far = beside * N + u + k.lift(w.POS - w.START - half * N, "i32")
    positions = {**w.heads, fold.reader.name: far, fold.read.name: k.lift(0, "i32")}
    pairs = (w.rows, w.columns)
    formula = Formula(k, fold.pairs, {}, positions, w.numbers, pairs)
    return formula.value(fold.pairs.outputs[output]).over(w.columns)


def by_tokens(fold: WeightedSum, name: str = "attend_gradient_of_tokens") -> Program:
    """The gradients of what is of the token read, for each head of the pairs."""
    w = Gradient(fold, name, "Gradients of tokens read: a block of them walks its readers.",
                 READ, 8, 2)  # fmt: skip
    w.copies = fold.copied
    return gradient_of_tokens(w)


def gradient_of_tokens(w: Gradient) -> Program:
    """The gradients of what a program of tokens read holds."""
    w.begin()

    def turn(t: Tokens, masked: bool, before: tuple[Tile, ...]) -> Sequence[Tile]:
        where = [w.inside_of(t, READER)] if masked else []
        other = w.loaded(READER, t, where)
        readers = w.arriving(t, where)
        p, found = w.pairs_of(t, masked, other, readers)
        return w.sums(p, found, other, readers, before)

    w.leave(w.walk(w.starts(), turn))
    return swept(w.k.done())

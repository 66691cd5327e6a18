"""A fold over the tokens read -> the tile program of its values: a block of readers walks what they
read, with a running softmax or none."""

from __future__ import annotations

from collections.abc import Sequence

from archc.attention.weighted_sum import Source, WeightedSum
from archc.lowering.attention import LOG2E, NEVER, READ, READER, Sweep, Tokens
from archc.lowering.attention_dropout import kept
from archc.lowering.attention_walked import looked_up
from archc.lowering.formula import Formula, Known, tile
from archc.tile.compose import Tile
from archc.tile.language import Buffer, Program
from archc.tile.unread import swept


def forward(fold: WeightedSum, name: str = "attend") -> Program:
    """o, and of a softmax the log of the sum of weights of each reader and head, for gradients."""
    w = Sweep(fold, name, "A block of readers walks the tokens that they read.", READER, 8, 3)
    # beside running sums in shared memory, there is room for one program less
    w.copies = fold.copied and not any(s.summed or s.table for s in fold.sources)
    return of_values(w, fold)


def of_values(w: Sweep, fold: WeightedSum) -> Program:
    """The program of a walk over what is read that leaves the sums of a fold, and nothing else."""
    values = fold.source(fold.values) if fold.values else None
    o = w.made_of("o", values)
    lse = w.made("lse", READER, None) if fold.softmax else None
    w.stand()
    leave(w, o, lse, summed(w, values), values)
    return swept(w.k.done())


def summed(
    w: Sweep, values: Source | None, first: Tile | None = None, before: Sequence[Tile] = ()
) -> list[Tile]:
    """The sums of a program of readers over the values that it walks, and of a softmax the largest
    score and the sum of weights before it. `first`: whether what enters a softmax's total alone is
    counted here, where it is not always. `before`: the same sums of other tokens, to begin with."""
    k, fold = w.k, w.fold
    fixed, mine = _held(w)
    acc = (w.rows, w.dim(values.dim)) if values and values.dim else (w.rows,)
    acc = acc[::-1] if w.turned else acc
    carried = [] if fold.alone else [k.full(0.0, *acc).named("acc")]
    if fold.softmax:
        sink = None if fold.sink is None else tile({**fixed, **mine}[fold.sink]).over(w.rows)
        carried = [*_begin(w, sink, first), *carried]
    carried = [*before] or carried
    if w.turned and fold.softmax:
        carried[1] = w.of_first(carried[1])

    def turn(s: Tokens, masked: bool, before: tuple[Tile, ...]) -> Sequence[Tile]:
        in_s = w.inside_of(s, READ)
        other = w.loaded(READ, s, [in_s] if masked else [])
        inputs = looked_up(w, w.sided({**fixed, **mine, **other}, masked), s)
        inputs |= w.products(mine, other)
        formula = w.formula(fold.pairs, inputs, s)
        score = _score(w, formula).named("score")
        seen = w.visible(s, formula, masked)
        weighted = tile(other[values.name]) if values else None
        if fold.softmax:
            return _softmax(w, score, weighted, seen, factor_of(w, formula, seen), s, before)
        (score,) = kept(w, [score], s)
        return [_sum(w, score if seen is None else k.where(seen, score, 0.0), weighted, before[-1])]

    made = w.walk(carried, turn)
    if w.turned and fold.softmax:
        made[1] = made[1].sum("s").named("total")
    return made


def _held(w: Sweep) -> tuple[dict[str, Known], dict[str, Known]]:
    """What a program of readers reads before any token: for all of them, and for each."""
    w.stand_at()
    fixed, mine = w.loaded("same", None, ()), w.loaded(READER, w.mine, [w.in_mine])
    formula = w.formula(w.fold.pairs, w.sided({**fixed, **mine}, False), None)
    formula.ready()
    if w.fold.softmax:
        found = formula.common(w.fold.pairs.outputs["score"], w.own_sums())
        w.common = None if found is None else found.named("common", "in all scores of a reader")
    w.edges()
    return fixed, mine


def _score(w: Sweep, formula: Formula) -> Tile:
    """The scores of a block of pairs, without what is left out."""
    id = w.fold.pairs.outputs["score"]
    return formula.value(id) if w.left_out is None else formula.rest(id, w.own_sums())


def _begin(w: Sweep, sink: Tile | None, first: Tile | None) -> tuple[Tile, Tile]:
    """The largest score and the sum of weights before any token is read."""
    k = w.k
    m = k.full(NEVER, w.rows) if sink is None else sink + 0.0
    total = k.full(0.0 if sink is None else 1.0, w.rows)
    if sink is not None and first is not None:
        m, total = k.where(first, m, NEVER), k.where(first, total, 0.0)
    return m.named("m"), total.named("total")


def factor_of(w: Sweep, formula: Formula, seen: Tile | None) -> Tile | None:
    """What the weights of a block of pairs are multiplied by, 0 where a pair is not read."""
    if not w.fold.multiplied:
        return None
    factor = formula.value(w.fold.pairs.outputs["factor"]).over(w.rows, w.columns)
    return (factor if seen is None else w.k.where(seen, factor, 0.0)).named("factor")


def _softmax(
    w: Sweep, score: Tile, values: Tile | None, seen: Tile | None, factor: Tile | None, s: Tokens,
    before: tuple[Tile, ...],
) -> Sequence[Tile]:  # fmt: skip
    """The largest score so far, the sum of weights, and the sum of weighted values, with a block of
    tokens more. A turned program has a sum for each place in a block: threads add theirs up at the
    end, and not for each other in every block."""
    k, (m, total, *acc) = w.k, before
    score = score.over(w.rows, w.columns)
    if seen is not None:
        score = k.where(seen, score, NEVER).named("seen_score")
    m_next = k.apply("max", m, score.max("s")).named("m_next")
    least = k.where(m_next.equals(NEVER), 0.0, m_next).named("least", "0 where nothing is read yet")
    p = k.apply("exp2", score * LOG2E - least * LOG2E)
    p = p.named("p", "exp(score - m), as exp2: log2(e) is 1.4427")
    decay = k.apply("exp2", (m - least) * LOG2E).named("decay")
    (left,) = kept(w, [p if factor is None else p * factor], s)
    more = [_sum(w, left, values, each * decay) for each in acc]
    return m_next, total * decay + (p if w.turned else p.sum("s")), *more


def _sum(w: Sweep, p: Tile, values: Tile | None, before: Tile) -> Tile:
    """A sum of weights, or of what they weight, with a block of tokens more."""
    p = p.over(w.rows, w.columns)
    if values is None:
        return before + p.sum("s")
    first, second = (values, p.to(w.IO)) if w.turned else (p.to(w.IO), values)
    return first.dot(second, before, precision=w.PRECISION)


def leave(
    w: Sweep, o: Buffer | None, lse: Buffer | None, made: list[Tile], values: Source | None
) -> None:
    """Store what a block of readers found. Of a layer that reads the log of the sum of weights, it
    is -inf where nothing is read."""
    k, acc = w.k, made[-1]
    if lse is not None:
        m, total, *_ = made
        read = (m > NEVER).named("read", "whether a reader read anything")
        safe = k.where(read, total, 1.0)
        acc = acc / safe
        nothing = 0.0 if w.fold.total is None else NEVER
        log = k.where(read, m + k.apply("log", safe), nothing)
        w.keep(lse, None, log)
    if o is not None:
        w.keep(o, values.dim if values else None, acc)

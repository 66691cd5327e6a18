"""Steps of an attend's chapter: a sum over the tokens read as a fold over blocks, and its
gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from archc.attention.weighted_sum import Bound, Choice, Dot, Source, WeightedSum
from archc.derivation.costs import cost_math
from archc.derivation.fold_formulas import READ, FoldFormulas
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    NEGATIVE,
    PLUS,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
    slope,
    transposed,
)
from archc.derivation.page import Block, Checked, Formula, Inline, Step, Table, para
from archc.derivation.telling import Telling
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.plan import examples
from archc.verify.checks import Check
from archc.verify.fold_numbers import TOKENS, fold_checks
from archc.verify.trial import SMALL


def fold_steps(layer: ir.Layer, fold: WeightedSum, attend: ir.Attend, title: str) -> Iterator[Step]:
    """How the sum of that name of an attend is folded, and how its gradient is."""
    told, of = Told(fold, attend.body), f" of `{title}`" if title else ""
    measured = checked(layer, TOKENS, lambda small: fold_checks(fold, attend, small))
    yield Step(f"Block after block{of}", (*told.forward(), *measured[:1]))
    if fold.slopes is not None:
        yield Step(f"The gradient{of}", (*told.gradient(), *measured[1:]))


def checked(
    layer: ir.Layer, tokens: int, checks: Callable[[Mapping[str, float]], Iterable[Check]]
) -> list[Checked]:
    """What checks of a fold of so many tokens come to, for small sizes of its layer."""
    small = {n: size for n, size in next(examples(layer, SMALL), {}).items() if size is not None}
    sizes = f"{tokens} tokens, " + ", ".join(f"{name} = {size}" for name, size in small.items())
    return list(Telling.measured(checks(small), sizes))


class Told:
    """The formulas of one fold, in order."""

    def __init__(self, fold: WeightedSum, body: Graph, formulas: FoldFormulas | None = None):
        self.fold, self.f = fold, formulas or FoldFormulas(fold, body)
        self.score, self.weight = self.f.pair(self.f.score), self.f.pair(self.f.letter("p"))
        self.factor = self.f.pair(self.f.factor) if fold.multiplied else None
        self.values = fold.source(fold.values) if fold.values else None
        self.o = Name(self.f.letter("o"), ("t",))
        self.alone = fold.alone
        self.total, self.acc = Name("ℓ"), self.f.letter("a")
        self.block, self.kept = Name(self.f.letter("J")), Name(self.f.letter("L"), ("t",))
        self.all = Name(self.f.letter("δ"), ("t",))

    # --- the forward ---

    def forward(self) -> Iterator[Block]:
        """The score, the fold, and what of all pairs is never looked at."""
        yield para("A reader ", Name("t"), " and a token ", Name(READ), " that it reads have the"
                   " score")  # fmt: skip
        yield Formula(row(self.score, EQUALS, self.f.output("score")))
        if self.factor is not None:
            yield para("and the weight that it gets among them is multiplied by")
            yield Formula(row(self.factor, EQUALS, self.f.output("factor")))
        if self.fold.softmax:
            who = CHOOSING if self.fold.choice is not None else "A reader walks blocks "
            yield para("No pair is kept. ", who, self.block,
                       RUNNING_TOTAL if self.alone else RUNNING)  # fmt: skip
            yield from self._softmax()
        else:
            yield para(*PLAIN, self.block, " of the tokens, one after the other.")
            yield self._grown(None)
        yield para(*self._skipped())

    def _softmax(self) -> Iterator[Block]:
        letter, total = self.f.letter("m"), self.total
        m, new = Name(letter), Name(letter, prime=True)
        decay = self._exp(row(m, MINUS, new))
        largest = row(Sum("max", self._in_block()), self.score)
        start = f"begins with {self.fold.sink}" if self.fold.sink else "begins with −∞"
        one = "begins with 1" if self.fold.sink else "begins with 0"
        yield Formula(row(new, EQUALS, function("max", m, largest)), start)
        yield Formula(row(self.weight, EQUALS, self._exp(row(self.score, MINUS, new))))
        sums = row(total, decay, PLUS, Sum("∑", self._in_block()), self.weight)
        yield Formula(row(Name("ℓ", prime=True), EQUALS, sums), one)
        kept = row(self.kept, EQUALS, m, PLUS, Words("log "), total)
        sizes = cost_math(TIME.size), cost_math(TIME.size * self.fold.read.size)
        if self.alone:
            yield para("After the last block the result is ", kept, ": ", sizes[0], " numbers a"
                       " head, where all weights are ", sizes[1], ".")  # fmt: skip
            return
        yield self._grown(decay)
        made = row(self.o, EQUALS, Fraction(Name(self.acc), total))
        also = "" if self.fold.total is None else ", which is a result too"
        yield para("After the last block the result is ", made, ". Of each reader and head one"
                   " number is kept for the gradient, ", kept, also, ": ", sizes[0], " numbers a"
                   " head, where all weights are ", sizes[1], ".")  # fmt: skip

    def _grown(self, decay: Math | None) -> Formula:
        """The formula of the running sum with one block more."""
        weight = self.weight if self.fold.softmax else self.score
        value = None if self.values is None else self.f.source(self.values)
        more = row(Sum("∑", self._in_block()), weight, self.factor, value)
        old, new = Name(self.acc), Name(self.acc, prime=True)
        return Formula(row(new, EQUALS, old, decay, PLUS, more), "begins with 0")

    def _in_block(self) -> Math:
        return row(Name(READ), Sign("∈"), self.block)

    def _exp(self, inner: Math) -> Math:
        return function("exp", inner)

    def _skipped(self) -> list[Inline]:
        """A sentence: the blocks that are not walked, and those that are not masked."""
        seen = self.fold.pairs.outputs.get("visible")
        if self.fold.choice is not None:
            return [*self._chosen(self.fold.choice), *self._asked()]
        if not self.fold.bounds and seen is None:
            return ["Every token is read: there is no block to skip."]
        if not self.fold.bounds and not self.fold.ranges:
            return ["Every pair is asked whether ", self.f.output("visible"), "."]
        bounds = self._all(self.fold.bounds)
        for i, own in enumerate(self.fold.ranges):
            bounds += [", and " * bool(bounds) if i == 0 else " or ", *self._all(own)]
        whole = [] if self.fold.ranges else [
            ", and which all of them read whole, which no mask is made for"]  # fmt: skip
        more = ["."]
        if seen is not None:
            more = [", and of those that are walked every pair is asked whether ",
                    self.f.output("visible"), "."]  # fmt: skip
        return ["A token is read where ", *bounds, ". Of the readers of a program the first and"
                " the last tell from that which blocks none of them reads, which are skipped",
                *whole, *more]  # fmt: skip

    def _all(self, bounds: Sequence[Bound]) -> list[Inline]:
        """Bounds that all hold."""
        found: list[Inline] = []
        for bound in bounds:
            found += [" and ", self.f.bound(bound)] if found else [self.f.bound(bound)]
        return found

    def _chosen(self, choice: Choice) -> list[Inline]:
        """A sentence: the list that a reader walks."""
        if choice.single:
            return ["Of each reader a list says which tokens it has chosen, and no other is ever"
                    " loaded: time grows with how many these are, not with the square of ",
                    cost_math(TIME.size), "."]  # fmt: skip
        return ["Of each reader a list says which blocks of ", cost_math(choice.size), " tokens it"
                " has chosen, and no other is ever loaded: time grows with how many these are, not"
                " with the square of ", cost_math(TIME.size), "."]  # fmt: skip

    def _asked(self) -> list[Inline]:
        """A sentence: what is asked of every pair whose token is chosen."""
        bounds = [self.f.bound(bound) for bound in self.fold.bounds]
        seen = self.fold.pairs.outputs.get("visible")
        asked = [*bounds, *([] if seen is None else [self.f.output("visible")])]
        parts: list[Inline] = []
        for each in asked:
            parts += [" and ", each] if parts else [each]
        return [" Of these, a token is read where ", *parts, "."] if parts else []

    # --- the gradient ---

    def gradient(self) -> Iterator[Block]:
        """Weights again, what arrives at scores, and from these every gradient."""
        made = self.kept if self.alone else self.o
        more = self.fold.total is not None and not self.alone
        also = (" and ", slope(self.kept), " at ", self.kept) if more else ()
        yield para("Weights are made again, block by block, from what was kept; what arrives at a"
                   " score is, with ", slope(made), " arriving at ", made, *also, ",")  # fmt: skip
        yield from self._at_scores()
        choice = self.fold.choice
        walk = WALKS if choice is None else SINGLY if choice.single else BLOCKS
        yield para("The score's own derivative takes it to what entered. What is of the reader is"
                   " summed by programs that hold readers and walk the tokens that they read, "
                   + walk + ": no two add to one number, and every sum has one order.")  # fmt: skip
        yield Table(("gradient", "by"), tuple(self._rows()))

    def _at_scores(self) -> Iterator[Block]:
        d_score = slope(self.score)
        value = None if self.values is None else self.f.source(self.values)
        arriving = slope(self.o) if value is None else row(transposed(slope(self.o)), value)
        if not self.fold.softmax:
            yield Formula(row(d_score, EQUALS, arriving))
            return
        yield Formula(row(self.weight, EQUALS, self._exp(row(self.score, MINUS, self.kept))))
        if self.alone:
            yield Formula(row(d_score, EQUALS, self.weight, slope(self.kept)))
            return
        less = () if self.fold.total is None else (MINUS, slope(self.kept))
        yield Formula(row(self.all, EQUALS, transposed(slope(self.o)), self.o, *less))
        inner = Fence(row(self.factor, arriving, MINUS, self.all))
        yield Formula(row(d_score, EQUALS, self.weight, inner))
        if self.factor is not None:
            yield Formula(row(slope(self.factor), EQUALS, self.weight, arriving))

    def _rows(self) -> Iterator[tuple[Inline, ...]]:
        """Each gradient, and what holds it."""
        if self.values is not None:
            weight = self.weight if self.fold.softmax else self.score
            made = row(Sum("∑", Name("t")), weight, self.factor, slope(self.o))
            yield row(self._d(self.values), EQUALS, made), "tokens read"
        for name, factor in self.f.learned():
            if name in self.f.dots:
                yield from self.of_product(self.f.dots[name], factor)
            elif name in self.f.lookups:
                text = row(slope(named(self.f.lookups[name].table)), EQUALS, factor)
                yield text, "diagonals of blocks, which share their distances"
            elif not self.fold.source(name).summed:
                yield self._number(self.fold.source(name), factor)
            elif self.fold.source(name).role == "reader":
                source = self.fold.source(name)
                between = row(Name(READ), Sign("<"), Name("r"), Sign("≤"), Name("t"))
                made = row(Sum("∑", between), factor)
                yield row(self._d(source), EQUALS, made), "both, as running sums from the end"
        if self.fold.sink is not None:
            sink = self.f.source(self.fold.source(self.fold.sink))
            assert isinstance(sink, Name), "a sink has a name"
            weight = self._exp(row(sink, MINUS, self.kept))
            made = row(NEGATIVE, Sum("∑", Name("t")), weight, self.all)
            yield row(slope(Name(sink.text)), EQUALS, made), "readers"

    def of_product(self, dot: Dot, factor: Math) -> Iterator[tuple[Inline, ...]]:
        """The gradients of the vectors of a product."""
        if dot.square:
            source = self.fold.source(dot.reader)
            letter = {"reader": READ}.get(source.role, "t")
            twice = row(Number("2"), Sum("∑", Name(letter)), Fence(factor))
            yield row(self._d(source), EQUALS, row(twice, self.f.source(source))), BY[source.role]
            return
        ends = self.fold.source(dot.reader), self.fold.source(dot.read)
        for own, other, letter in ((*ends, READ), (*ends[::-1], "t")):
            made = row(Sum("∑", Name(letter)), Fence(factor), self.f.source(other))
            yield row(self._d(own), EQUALS, made), BY[own.role]

    def _number(self, source: Source, factor: Math) -> tuple[Inline, ...]:
        """The gradient of a number of a token, or of the head."""
        over = {"reader": Name(READ), "read": Name("t")}.get(
            source.role, row(Name("t"), Sign(","), Name(READ))
        )
        return row(self._d(source), EQUALS, Sum("∑", over), Fence(factor)), BY[source.role]

    def _d(self, source: Source) -> Math:
        """The gradient of a value that enters; of a logarithm, before the word."""
        name = self.f.source(source)
        return slope(name) if isinstance(name, Name) else row(Words("d"), Fence(name))


WALKS = "what is of a token read by programs that hold those and walk their readers"
BLOCKS = (
    "what is of a token read by programs that hold a block and walk those who chose it, of whom"
    " another list is made"
)
SINGLY = (
    "what is of a token read in two steps: what each pair of a reader and a token that it chose"
    " adds is written down, of so many readers at a time as there is room for, and these entries"
    " are added for each token in their order"
)
CHOOSING = "A reader, with the heads that share what it has chosen, walks its list in blocks "
BY = {"reader": "readers", "read": "tokens read", "same": "readers"}
RUNNING = (
    " of tokens with the largest score so far, the sum of weights below it, and the sum of what"
    " they weight; a larger score scales both down:"
)
RUNNING_TOTAL = (
    " of tokens with the largest score so far, and the sum of weights below it; a larger score"
    " scales that down:"
)
PLAIN = ("The weights are the scores themselves, and what they weight is summed over blocks ",)

"""Steps of an attend's chapter: a sum whose score goes through matrices or gates of the tokens
between, as folds of a tree of spans, and its gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from archc.attention.between import SPAN, Between, Rank, rows_of_token
from archc.attention.weighted_sum import Dot, Source
from archc.derivation.fold_formulas import READ, FoldFormulas
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    PLUS,
    TIMES,
    Fence,
    Math,
    Name,
    Number,
    Sign,
    Sum,
    Words,
    function,
    inverse,
    named,
    row,
    slope,
    transposed,
)
from archc.derivation.page import Block, Formula, Inline, Step, para
from archc.derivation.step_fold import Told, checked
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.verify.fold_numbers import TOKENS_OF_TREE, tree_checks


def between_steps(layer: ir.Layer, tree: Between, attend: ir.Attend, title: str) -> Iterator[Step]:
    """How the sum of that name of an attend is folded, and how its gradient is."""
    told, of = _Told(tree, attend.body), f" of `{title}`" if title else ""
    measured = checked(layer, TOKENS_OF_TREE, lambda small: tree_checks(tree, attend, small))
    yield Step(f"A tree of spans{of}", tuple(told.spans()))
    yield Step(f"Within the smallest spans{of}", tuple(told.smallest()))
    yield Step(f"Block after block{of}", (*told.forward(), *measured[:1]))
    if tree.whole.slopes is not None:
        yield Step(f"The gradient{of}", (*told.gradient(), *measured[1:]))


class Formulas(FoldFormulas):
    """The formulas of such a fold, whose one product has what is between in it."""

    def __init__(self, tree: Between, body: Graph):
        super().__init__(tree.whole, body)
        self.tree, self.P, self.r = tree, self.letter("P"), "r"

    def matrix(self) -> Math:
        """`M_r`, or of gates their exponentials."""
        if self.tree.gate is not None:
            return function("exp", self.gate())
        return Name(self.letter("M"), (self.r,))

    def gate(self) -> Math:
        """`g_r`, the logarithm of a token's gates."""
        assert self.tree.gate is not None, "it has gates"
        return named(self._called(self.tree.gate), self.r)

    def _called(self, source: Source) -> str:
        return self.body[source.node].name or source.name

    def outers(self) -> Math:
        """`I - beta_r w_r w_r'`."""
        parts: list[Math] = []
        for rank in self.tree.ranks:
            parts += [MINUS if rank.sign < 0 else PLUS, self._outer(rank)]
        return row(Name("I"), *parts)

    def _outer(self, rank: Rank) -> Math:
        u, w = (named(self._called(each), self.r) for each in (rank.u, rank.w))
        return row(u, w if rank.u.dim is None else None, transposed(w))

    def product(self, name: str) -> Math:
        """`k_s' M_(s+1) ... M_t q_t`, or `(q_t * exp(sum of g))' k_s`."""
        if name != self.tree.dot.name:
            return super().product(name)
        q, k = (self.source(self.sources[n]) for n in (self.tree.dot.reader, self.tree.dot.read))
        first = row(Name(self.r), EQUALS, Name(READ), PLUS, Number("1"))
        if self.tree.gate is not None:
            gates = row(Sum("∑", first, Name("t")), self.gate())
            return row(transposed(Fence(row(q, TIMES, function("exp", gates)))), k)
        return row(transposed(k), Fence(row(Sum("∏", first, Name("t")), self.matrix())), q)


class _Told(Told):
    """The formulas of one tree, in order."""

    f: Formulas

    def __init__(self, tree: Between, body: Graph):
        super().__init__(tree.whole, body, Formulas(tree, body))
        self.tree, self.gated = tree, tree.gate is not None
        dot = tree.dot
        self.q, self.k = (self._name(tree.whole.source(n)) for n in (dot.reader, dot.read))
        self.border = Name(self.f.letter("b"))
        self.to_q, self.to_k = self._moved(self.q), self._moved(self.k)
        self.span = Name(self.f.P)

    def _name(self, source: Source) -> Name:
        """What enters, at its token."""
        found = self.f.source(source)
        assert isinstance(found, Name), "a vector has a name"
        return found

    def _moved(self, x: Name) -> Name:
        """A vector at the border of two spans."""
        return Name(x.text, (*x.subs, self.border.text))

    def forward(self) -> Iterator[Block]:
        """The folds; the score is known."""
        yield from [*super().forward()][2:]

    # --- the tree ---

    def spans(self) -> Iterator[Block]:
        """What goes from token to token, and what of it is at a border."""
        yield para("A reader ", Name("t"), " and a token ", Name(READ), " that it reads have the"
                   " score")  # fmt: skip
        yield Formula(row(self.score, EQUALS, self.f.output("score")))
        if not self.gated:
            yield para("where the matrix of a token is")
            yield Formula(row(self.f.matrix(), EQUALS, self.f.outers()))
        tokens = SPAN // rows_of_token(len(self.tree.ranks))
        yield para(TREE[0], f"{tokens}", TREE[1], self.border, TREE[2])
        first, last = Name(self.f.r), self.f.matrix()
        upto = Sum("∏", row(first, EQUALS, self.border), Name("t"))
        after = Sum("∏", row(Name(READ), Sign("<"), first, Sign("<"), self.border))
        if self.gated:
            yield Formula(row(self.to_q, EQUALS, self.q, TIMES, upto, last), "to the begin")
            yield Formula(row(self.to_k, EQUALS, self.k, TIMES, after, last), "to the end")
        else:
            yield Formula(row(self.to_q, EQUALS, Fence(row(upto, last)), self.q), "to the begin")
            left = row(transposed(self.k), Fence(row(after, last)))
            yield Formula(row(transposed(self.to_k), EQUALS, left), "to the end")
        meeting = row(transposed(self.to_k), self.to_q)
        yield para("so that what is between is in neither any more: of the pair it is ", meeting,
                   ", a product of two vectors as that of any other score.")  # fmt: skip
        yield from self._level()

    def _level(self) -> Iterator[Block]:
        """From a level to the next."""
        whole = "the product of its gates" if self.gated else "the product of its matrices"
        yield para("With ", self.span, f" for {whole}, a span's vectors go on to the borders of"
                   " spans of twice the length by what the other half is as a whole, each once a"
                   " level:")  # fmt: skip
        sign = TIMES if self.gated else None
        back = self.span if self.gated else transposed(self.span)
        yield Formula(row(self.to_q, Sign("←"), self.span, sign, self.to_q), "of the later half")
        yield Formula(row(self.to_k, Sign("←"), back, sign, self.to_k), "of the earlier half")
        more = NO_DIFFERENCE if self.gated else NO_INVERSE
        yield para(more)

    def smallest(self) -> Iterator[Block]:
        """Scores of the smallest spans."""
        if self.gated:
            yield para(PAIRS_OF_GATES)
            return
        yield para(*WY)
        U, W, Q, K = (Name(letter, bold=True) for letter in "UWQK")
        A, L, R = (Name(self.f.letter(letter), bold=True) for letter in "ALR")
        strict = function("stril", row(U, transposed(W)))
        yield Formula(row(A, EQUALS, inverse(Fence(row(Name("I"), PLUS, strict)))))
        yield Formula(row(L, EQUALS, function("tril", row(Q, transposed(W))), A))
        made = function("stril", row(U, transposed(K)))
        yield Formula(row(R, EQUALS, transposed(made)))
        products = row(Q, transposed(K), MINUS, L, transposed(R))
        yield para("The products of all pairs of the span, its vectors at both borders, and its"
                   " own matrix are then")  # fmt: skip
        yield Formula(products, "products")
        yield Formula(row(Q, MINUS, L, U), "to the begin")
        yield Formula(row(K, MINUS, R, transposed(A), W), "to the end")
        yield Formula(row(self.span, EQUALS, Name("I"), MINUS, transposed(Fence(row(A, U))), W))

    # --- the gradient ---

    def gradient(self) -> Iterator[Block]:
        """The gradient of the folds, and down the levels."""
        yield from super().gradient()
        yield para(DOWN)
        d_q, d_k, d_P = slope(self.to_q), slope(self.to_k), slope(self.span)
        outer = row(Sum("∑", Name("t")), d_q, transposed(self.to_q))
        logs = row(Words("d log "), self.span)
        if self.gated:
            d_P, outer = logs, row(Sum("∑", Name("t")), d_q, TIMES, self.to_q)
        yield Formula(row(d_P, Sign("+="), outer), "the earlier half's; the later half's by tokens")
        sign = TIMES if self.gated else None
        back = self.span if self.gated else transposed(self.span)
        yield Formula(row(d_q, Sign("←"), back, sign, d_q), "of the later half")
        yield Formula(row(d_k, Sign("←"), self.span, sign, d_k), "of the earlier half")
        if self.tree.gate is None:
            yield para(THROUGH_SYSTEM)
            return
        yield para(*SUMS)
        q, k = self.q, replace(self.k, subs=self.q.subs)
        pairs = Fence(row(q, TIMES, slope(q), MINUS, k, TIMES, slope(k)))
        own = row(Words("d "), self.f.gate())
        ends = row(Sum("∑", Name(READ)), self.to_k, TIMES, d_k)
        tokens = row(Sum("∑", row(Name("t"), Sign("≥"), Name(self.f.r))), pairs)
        yield Formula(row(own, EQUALS, tokens, PLUS, ends, PLUS, logs), "in its span")

    def of_product(self, dot: Dot, factor: Math) -> Iterator[tuple[Inline, ...]]:
        """The gradient of the vectors at their border."""
        if dot != self.tree.dot:
            yield from super().of_product(dot, factor)
            return
        d_q = row(Sum("∑", Name(READ)), Fence(factor), self.to_k)
        d_k = row(Sum("∑", Name("t")), Fence(factor), self.to_q)
        yield row(slope(self.to_q), EQUALS, d_q), "readers"
        yield row(slope(self.to_k), EQUALS, d_k), "tokens read"


TREE = (
    "No pair is taken through all that is between. The tokens are a tree of spans instead, the"
    " smallest of ",
    " tokens, then each of two: a reader in the later half of a span reads all of the earlier half,"
    " so that each pair of tokens is of one span of the tree. Between the halves is a border,"
    " before token ",
    ", to which both can be brought by themselves:",
)
NO_DIFFERENCE = (
    "All that is multiplied is a product of gates, at most 1 where these are: no difference of"
    " running sums is formed, and a gate of 0, whose logarithm is −∞, gives 0."
)
NO_INVERSE = (
    "No matrix is divided by, so that none need have an inverse: there is no running product of all"
    " tokens from the first on."
)
PAIRS_OF_GATES = (
    "There the products are found for each pair, within 16 tokens one token after the other: the"
    " rows of all readers behind it are multiplied by its gates. Sixteen tokens of which all are"
    " earlier are brought to the begin of the readers' sixteen, as everywhere, and matrices"
    " multiplied."
)
WY = (
    "There the product of matrices has the form of a chunk of the delta rule (WY). With a row of ",
    Name("U", bold=True), " and of ", Name("W", bold=True), " for each outer product of each token,"
    " in the order of time and signs taken into ", Name("U", bold=True), ",",
)  # fmt: skip
DOWN = (
    "Gradients come down the levels as values went up, with what each span is as a whole known from"
    " before:"
)
SUMS = (
    "Within the smallest spans those of all readers and tokens come together, and a gate, which is"
    " between all pairs around it, takes in what is behind it and what arrives at the end:",
)
THROUGH_SYSTEM = (
    "The gradients of the outer products of the tokens come out of the smallest spans' triangular"
    " system, whose own is that of its inverse turned around: nothing goes through it token by"
    " token."
)

"""A layer in the making, and expressions of given dims: nearly always legal.

Every term has bounds, so that logarithms, roots, divisions and exponentials are drawn where they
have a value, and numbers stay where a comparison of numbers says something.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.programs.bounds import TAME, elementwise, number
from tests.programs.terms import Decl, Declared, Let, Statement, Term

INITS: tuple[tuple[str, float, float], ...] = (
    *(("", -0.7, 0.7), ("", -0.7, 0.7), (" = 0", -0.5, 0.5), (" = 1", 0.5, 1.5)),
    *((" = normal(0, 0.02)", -0.5, 0.5), (" = uniform(-1, 1)", -1, 1), (" = -0.5", -1, 0)),
    *((" = log(uniform(1, 4))", 0, 1.4), (" = inverse_softplus(loguniform(0.01, 0.1))", -4, -2)),
    *((" = logit(uniform(0.2, 0.8))", -1.4, 1.4), (" = 1 / sqrt(2)", 0.5, 1), (" = 1e-2", 0, 0.1)),
    *((" = exp(normal(0, 0.1))", 0.7, 1.4), (" = -uniform(0, 1)", -1, 0)),
)


@dataclass
class Draft:
    """A layer or function in the making."""

    rng: random.Random
    sizes: dict[str, int]
    prefix: str = ""
    known: list[Term] = field(default_factory=list)
    params: list[Declared] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    functions: list[Decl] = field(default_factory=list)
    layers: list[Decl] = field(default_factory=list)
    options: list[tuple[str, str, object]] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    varying: set[str] = field(default_factory=set)
    batched: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    rules: list[str] = field(default_factory=list)
    decls: list[Decl] = field(default_factory=list)
    causal: bool = True
    without: frozenset[str] = frozenset()
    count: int = 0

    # --- small choices ---

    def one(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def maybe(self, share: float = 0.5) -> bool:
        return self.rng.random() < share

    def fresh(self, stem: str) -> str:
        """A name that nothing has yet."""
        self.count += 1
        return f"{stem}{self.prefix}{self.count}"

    # --- declarations ---

    def param(
        self, *dims: str, low: float | None = None, high: float = 1.0, init: str | None = None
    ) -> Term:
        """A new parameter."""
        if low is None or init is None:
            drawn = self.rng.choice(INITS)
            after, low, high = (drawn[0], drawn[1], drawn[2]) if low is None else ("", low, high)
        else:
            after = init
        name = self.fresh("w")
        self.params.append(Declared(name, dims, after, low, high))
        return Term("name", (), (name,), dims, low, high)

    def let(self, term: Term, dims: tuple[str, ...] | None = None, stem: str = "u") -> Term:
        """A named value; with dims, in their order."""
        name = self.fresh(stem)
        self.body.append(Let((name,), term, dims))
        order = dims if dims is not None else term.dims
        made = Term("name", (), (name,), order, term.low, term.high, term.whole)
        self.known.append(made)
        if self.varies(term):
            self.varying.add(name)
        if self.depends(term):
            self.batched.add(name)
        return made

    def depends(self, term: Term) -> bool:
        """Whether a value is made from an input."""
        return any(each.op == "name" and each.data[0] in self.batched for each in term.live())

    def varies(self, term: Term) -> bool:
        """Whether a value differs from token to token."""
        leaves = ("position", "row", "place")
        return any(
            each.op in leaves or (each.op == "name" and each.data[0] in self.varying)
            for each in term.live()
        )

    def named(self, *dims: str, stem: str = "u", low: float = -TAME, high: float = TAME) -> Term:
        """A named value of these dims in this order."""
        if self.maybe(0.2):
            found = [k for k in self.known if k.dims == dims and not k.whole]
            found = [k for k in found if low <= k.low and k.high <= high]
            if found:
                return self.rng.choice(found)
        return self.let(self.draw(dims, 2), dims, stem)

    # --- expressions ---

    def draw(self, dims: Sequence[str], depth: int) -> Term:
        """A real value of exactly these dims, in any order."""
        wanted = frozenset(dims)
        if depth <= 0:
            return self.tame(self.leaf(wanted))
        from tests.programs.ways import DRAWS  # which draw with a Draft

        ways = [way for way in DRAWS if way[1] not in self.without]
        for _ in range(6):
            way = self.rng.choices(ways, [w[0] for w in ways])[0]
            made = way[2](self, wanted, depth)
            if made is not None and frozenset(made.dims) == wanted:
                return self.tame(made)
        return self.tame(self.leaf(wanted))

    def tame(self, term: Term) -> Term:
        """The term, or what brings it back to where numbers mean something."""
        if term.low >= -TAME and term.high <= TAME:
            return term
        return elementwise(self.one("tanh", "tanh", "sin", "erf"), term)

    def leaf(self, wanted: frozenset[str]) -> Term:
        """A named value of these dims, or one made from another by a projection."""
        found = [k for k in self.known if frozenset(k.dims) == wanted and not k.whole]
        if found and self.maybe(0.8):
            return self.rng.choice(found)
        made = self.project(wanted)
        if made is not None and self.maybe(0.85):
            return made
        order = self.order(wanted)
        if found or self.prefix == "f" or not self.known:
            return self.rng.choice(found) if found else self.constant(order)
        token = self.rng.choice([k for k in self.known if not k.whole])
        gone = [dim for dim in token.dims if dim not in wanted]
        first = self.reduce_to(token, gone)
        lacking = wanted - set(first.dims)
        return elementwise("mul", first, self.param(*self.order(lacking))) if lacking else first

    def constant(self, order: Sequence[str]) -> Term:
        """A value made of indices: it needs nothing."""
        made = number(self.one("1", "0.5", "2"))
        for dim in order:
            made = elementwise("add", made, self.tame(self.index(dim)))
        return elementwise("sin", made)

    def reduce_to(self, term: Term, gone: Sequence[str]) -> Term:
        """A term without some of its dims."""
        if not gone:
            return term
        fn = self.one("sum", "mean", "max", "min")
        return self.reduction(fn, term, tuple(gone))

    def reduction(self, fn: str, term: Term, gone: tuple[str, ...]) -> Term:
        dims = tuple(dim for dim in term.dims if dim not in gone)
        many = math.prod(self.sizes[dim.rstrip("'")] for dim in gone)
        scale = many if fn == "sum" else 1
        low, high = min(scale * term.low, term.low), max(scale * term.high, term.high)
        if fn == "prod":
            top = max(abs(term.low), abs(term.high), 1.0) ** many
            low, high = -top, top
        whole = term.whole and fn != "mean"
        return Term("reduce", (term,), (fn, ", ".join(gone)), dims, low, high, whole)

    def order(self, dims: Sequence[str] | frozenset[str]) -> tuple[str, ...]:
        """Dims in some order."""
        found = sorted(dims)
        self.rng.shuffle(found)
        return tuple(found)

    def project(self, wanted: frozenset[str]) -> Term | None:
        """`x @ W`, or `W @ x`, of a value whose order of dims is known."""
        if self.prefix == "f":
            return None
        found = [k for k in self.known if k.dims and not k.whole and not k.dims[-1].endswith("'")]
        self.rng.shuffle(found)
        for value in found:
            for count in sorted(range(1, len(value.dims) + 1), key=lambda _: self.rng.random()):
                kept, gone = value.dims[:-count], value.dims[-count:]
                new = self.order(wanted - set(kept))
                if not set(kept) <= wanted or set(gone) & wanted:
                    continue
                if self._ambiguous(value.dims, (*gone, *new)):
                    continue
                weight = self.param(*gone, *new)
                dims = (*kept, *new)
                return Term("matmul", (value, weight), gone, dims, -6.0, 6.0)
        return None

    @staticmethod
    def _ambiguous(left: tuple[str, ...], right: tuple[str, ...]) -> bool:
        """Whether `@` could join these in more than one way."""
        ways = [n for n in range(1, min(len(left), len(right)) + 1) if left[-n:] == right[:n]]
        return len(ways) != 1

    # --- integers ---

    def index(self, dim: str) -> Term:
        return Term("index", (), (dim,), (dim,), 0, self.sizes[dim] - 1, True)

    def size(self, dim: str) -> Term:
        """The size of a dim: by its name, or by `size`."""
        op = "sizeof" if self.prefix == "f" or self.maybe(0.2) else "size"
        count = self.sizes[dim]
        return Term(op, (), (dim,), (), count, count, True)

    def position(self) -> Term:
        value = self.rng.choice([k for k in self.known if k.data[0] in self.varying])
        return Term("position", (value,), (), (), 0, 30, True)

    def whole(self, wanted: frozenset[str], depth: int) -> Term:
        """An integer of these dims."""
        ways: list[Callable[[], Term]] = [lambda: number(self.one("0", "1", "2", "3"))]
        if self.prefix != "f":
            ways.append(self.position)
        made = self.rng.choice(ways)()
        for dim in sorted(wanted):
            op = self.one("add", "sub", "mul", "max")
            made = (
                elementwise(op, self.index(dim), made)
                if self.maybe()
                else elementwise("add", made, self.index(dim))
            )
        for _ in range(self.rng.randrange(depth + 1)):
            other = number(self.one("2", "3", "5"))
            made = elementwise(self.one("mod", "floordiv", "add", "mul", "min"), made, other)
            if made.op == "mod":
                made = self.ranged(made, 0, other.high - 1)
        found = [k for k in self.known if k.whole and set(k.dims) <= wanted]
        if found and self.maybe(0.3):
            made = elementwise("add", made, self.rng.choice(found))
        return made

    @staticmethod
    def ranged(term: Term, low: float, high: float) -> Term:
        """The term with bounds that are known otherwise."""
        return Term(term.op, term.args, term.data, term.dims, low, high, term.whole)

    def place_in(self, dim: str, wanted: frozenset[str]) -> Term:
        """An integer between 0 and the size of a dim, below it."""
        size, last = self.size(dim), self.sizes[dim] - 1
        if dim in wanted and self.maybe(0.4):
            back = elementwise("sub", elementwise("sub", size, number("1")), self.index(dim))
            return self.ranged(back, 0, last)
        value = self.whole(wanted, 1)
        if not wanted and self.prefix != "f":
            value = self.position()
        if value.low < 0:
            value = elementwise("abs", value)
        if self.maybe():
            return self.ranged(elementwise("mod", value, size), 0, last)
        # how long a dim of a layer or function is, is up to who calls it
        most = elementwise("sub", size, number("1")) if self.prefix else number(str(last))
        return self.ranged(elementwise("min", value, most), 0, last)

    # --- conditions ---

    def condition(self, wanted: frozenset[str], depth: int) -> Term:
        """A comparison whose outcome no rounding changes."""
        left = self.whole(wanted, 1)
        made = any(each.op in ("name", "position", "index") for each in left.walk())
        if made and self.maybe(0.4):
            ops = ("lt", "le", "gt", "ge", "eq", "ne")
            made = Term(self.one(*ops), (left, number(self.one("1", "2", "3"))), (), left.dims)
            if self.maybe(0.2):
                ends = number(self.one("0", "1")), number(self.one("2", "3"))
                made = Term("between", (ends[0], left, ends[1]), (), left.dims)
        else:
            left = self.draw(wanted, depth - 1)
            right = number(self.one("0.1", "0.25", "0")) if self.maybe(0.7) else self.draw((), 0)
            dims = elementwise("add", left, right).dims
            made = Term(self.one("lt", "le", "gt", "ge"), (left, right), (), dims)
        if depth > 1 and self.maybe(0.25):
            other = self.condition(wanted, depth - 1)
            both = elementwise("add", made, other).dims
            made = Term(self.one("and", "or"), (made, other), (), both)
        return Term("not", (made,), (), made.dims) if self.maybe(0.15) else made

    def positive(self, wanted: Sequence[str] | frozenset[str], depth: int) -> Term:
        """A value of at least 0.3."""
        x = self.draw(tuple(sorted(wanted)), depth - 1)
        half = number(self.one("0.5", "1", "2"))
        ways = {
            "softplus": lambda: elementwise("add", elementwise("softplus", x), half),
            "abs": lambda: elementwise("add", half, elementwise("abs", x)),
            "sigmoid": lambda: elementwise("add", elementwise("sigmoid", x), half),
            "max": lambda: elementwise("max", x, half),
            "square": lambda: self.square(x, half),
            "exp": lambda: elementwise("exp", elementwise("tanh", x)),
        }
        if "powers" in self.without:
            del ways["square"]
        return ways[self.one(*ways)]()

    def square(self, x: Term, more: Term) -> Term:
        top = max(abs(x.low), abs(x.high)) ** 2
        square = Term("pow", (x, number("2")), (), x.dims, 0.0, top)
        return elementwise("add", square, more)

    def gate(self, *dims: str, depth: int = 1) -> Term:
        """A value between 0 and 1 of these dims."""
        x = self.draw(dims, depth)
        ways = {
            "sigmoid": lambda: elementwise("sigmoid", x),
            "softplus": lambda: elementwise("exp", elementwise("neg", elementwise("softplus", x))),
            "logsigmoid": lambda: elementwise("exp", elementwise("logsigmoid", x)),
            "root": lambda: Term(
                "pow",
                (elementwise("sigmoid", x), number(self.one("0.5", "0.25"))),
                (),
                x.dims,
                0,
                1,
            ),
            "rate": lambda: elementwise(
                "exp",
                elementwise("neg", elementwise("mul", self.rate(dims), elementwise("softplus", x))),
            ),
        }
        if "powers" in self.without:
            del ways["root"]
        made = ways[self.one(*ways)]()
        return self.ranged(made, 0.0, 1.0)

    def rate(self, dims: tuple[str, ...]) -> Term:
        if self.prefix == "f":
            return number("0.5")
        some = dims[: self.rng.randint(0, len(dims))]
        return elementwise("exp", self.param(*some, low=0, high=1.4, init=" = log(uniform(1, 4))"))

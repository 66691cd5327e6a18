"""Recurrences of drawn programs: states of every sort, updates and reads from the whole algebra."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.programs.bounds import elementwise, number
from tests.programs.drawing import Draft
from tests.programs.terms import Block, Let, Line, Statement, Term

State = tuple[str, tuple[str, ...], Term]
"""A state: its name, its dims for one head, and what it starts from."""


def name(text: str, *dims: str) -> Term:
    """A name as one head sees it."""
    return Term("name", (), (text,), dims, -2.0, 2.0)


def state(text: str, when: str, *dims: str) -> Term:
    return Term("state", (), (text, when), dims, -2.0, 2.0)


def outer(a: Term, b: Term) -> Term:
    cols = b.dims[0] + "'" if b.dims[0] == a.dims[0] else b.dims[0]
    return Term("outer", (a, b), (), (*a.dims, cols), -2.0, 2.0)


def inner(a: Term, b: Term) -> Term:
    return Term("inner", (a, b), (), (), -2.0, 2.0)


def scaled(a: Term, x: Term) -> Term:
    """A number times a column or matrix."""
    return Term("mul", (a, x), (), x.dims, -2.0, 2.0)


def plus(x: Term, y: Term, sign: str = "add") -> Term:
    return Term(sign, (x, y), (), x.dims, -2.0, 2.0)


def call(fn: str, *args: Term) -> Term:
    dims = max((arg.dims for arg in args), key=len)
    return Term(fn, args, (), dims, -2.0, 2.0)


@dataclass
class Memory:
    """A recurrence in the making: what enters it, and its statements."""

    s: Draft
    heads: tuple[str, ...]
    grouped: bool
    states: list[State] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    results: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    laws: str = ""

    def enter(self, *dims: str, stem: str = "e", group: bool = False) -> Term:
        """A value for each head, computed before."""
        heads = tuple("G" if h == "H" and self.grouped and group else h for h in self.heads)
        made = self.s.named(*heads, *dims, stem=stem)
        return name(made.data[0], *dims)

    def key(self, *dims: str, group: bool = False) -> Term:
        """A value of length 1 at most for each head."""
        heads = tuple("G" if h == "H" and self.grouped and group else h for h in self.heads)
        x = self.s.draw((*heads, *dims), 1)
        fn = self.s.one("l2norm", "l2norm", "softmax")
        made = self.s.let(Term("norm", (x,), (fn, dims[-1]), x.dims, -1, 1), (*heads, *dims), "k")
        return name(made.data[0], *dims)

    def gate(self, *dims: str) -> Term:
        """A value between 0 and 1 for each head."""
        heads = self.heads if self.s.maybe(0.8) else ()
        made = self.s.let(self.s.gate(*heads, *dims), (*heads, *dims), "g")
        return Term("name", (), made.data, dims, 0.0, 1.0)

    def let(self, stem: str, term: Term) -> Term:
        """A name inside of the recurrence."""
        text = self.s.fresh(stem)
        self.body.append(Let((text,), term))
        return Term("name", (), (text,), term.dims, term.low, term.high)

    def declare(self, stem: str, *dims: str, start: Term | None = None) -> str:
        text = self.s.fresh(stem)
        self.states.append((text, dims, start or number("0")))
        return text

    def update(self, text: str, term: Term) -> None:
        self.body.append(Let((text,), term, (), "state"))

    def result(self, text: str, *dims: str) -> None:
        self.results.append((text, dims))

    # --- small terms ---

    def scalar(self, depth: int = 1) -> Term:
        """A number for each head."""
        s = self.s
        way = s.one("gate", "gate", "enter", "number", "inner", "place", "function")
        if way == "gate" or depth == 0:
            return self.gate()
        if way == "enter":
            return call("tanh", self.enter())
        if way == "number":
            return number(s.one("0.5", "0.25", "2", "0.9"))
        if way == "inner":
            return call("sigmoid", inner(self.enter("K"), self.key("K")))
        if way == "place" and "positions" not in s.without:
            where = s.position()
            kept = Term("mod", (where, number("3")), (), (), 0, 2, True)
            return Term("div", (kept, number("4")), (), (), 0, 1)
        return call(s.one("tanh", "sigmoid", "cos"), self.enter())

    def column(self, dim: str, depth: int = 1) -> Term:
        """A column of bounded numbers."""
        s = self.s
        way = s.one("enter", "enter", "key", "scaled", "sum", "function", "where", "power")
        if depth == 0 or way == "enter":
            return self.enter(dim)
        if way == "key":
            return self.key(dim)
        x = self.column(dim, depth - 1)
        if way == "scaled":
            return scaled(self.scalar(0), x)
        if way == "sum":
            return plus(x, self.column(dim, depth - 1), s.one("add", "sub", "mul"))
        if way == "where":
            at = Term("gt", (x, number("0")), (), (dim,))
            return call("where", at, x, scaled(number("0.5"), x))
        if way == "power" and "powers in memory" not in s.without:
            return Term("pow", (call("tanh", x), number("2")), (), (dim,))
        return call(s.one("tanh", "sigmoid", "relu", "sin"), x)


# --- kinds of memory ------------------------------------------------------------------------------


def matrix(m: Memory) -> None:
    """A state [K, V], or [K, K'], with a decay, a correction, a write and a read."""
    s = m.s
    rows, cols = "K", s.one("V", "V", "K'")
    S = m.declare("S", rows, cols)
    before, after = state(S, "t-1", rows, cols), state(S, "t", rows, cols)
    kept = decayed(m, before, rows, cols)
    k, v = m.key("K", group=True), m.column(cols.rstrip("'"))
    write = outer(k, v)
    if s.maybe():
        write = scaled(m.gate(), write)
    way = s.one("plain", "plain", "delta", "delta", "removed", "twice")
    beta = m.gate()
    if way == "delta":
        kept = Term("mm", (householder(beta, k), kept), (), (rows, cols), -2, 2)
    elif way == "removed":
        other = m.key("K")
        kept = Term("mm", (householder(beta, other), kept), (), (rows, cols), -2, 2)
    elif way == "twice":
        write = plus(write, outer(m.key("K"), m.column(cols.rstrip("'"), 0)))
    update = plus(kept, write)
    if way == "plain" and s.maybe(0.3):
        read = Term("tmv", (kept, k), (), (cols.rstrip("'"),), -2, 2)
        update = plus(kept, scaled(beta, outer(k, plus(v, read, "sub"))))
    m.update(S, update)
    reads(m, S, before, after, rows, cols)


def decayed(m: Memory, before: Term, rows: str, cols: str) -> Term:
    """The state with its decay: none, a number, one for each row, or each column."""
    s = m.s
    way = s.one("none", "scalar", "scalar", "rows", "rows", "right", "log", "cols", "constant")
    if way == "none":
        return before
    if way == "rows":
        turn = Term("diag", (m.gate("K"),), (), ("K", "K'"), 0, 1)
        return Term("mm", (turn, before), (), (rows, cols), -2, 2)
    if way == "cols" and "decays of columns" not in s.without:
        dim = cols.rstrip("'")
        turn = Term("diag", (m.gate(dim),), (), (dim, dim + "'"), 0, 1)
        return Term("mm", (before, turn), (), (rows, cols), -2, 2)
    if way == "right":
        return Term("mul", (before, m.gate()), (), before.dims, -2, 2)
    if way == "log":
        log = call("neg", call("softplus", m.enter()))
        return scaled(call("exp", log), before)
    if way == "constant":
        return scaled(number(s.one("0.9", "0.5")), before)
    return scaled(m.gate(), before)


def householder(beta: Term, k: Term) -> Term:
    rows = k.dims[0]
    product = Term("outer", (scaled(beta, k), k), (), (rows, rows + "'"), -1, 1)
    return Term("one_minus", (product,), (), (rows, rows + "'"), -1, 1)


def reads(m: Memory, S: str, before: Term, after: Term, rows: str, cols: str) -> None:
    """What a token reads of a matrix state."""
    s, value = m.s, cols.rstrip("'")
    q = m.column(rows, 1)
    from_ = after if s.maybe(0.8) else before
    made = Term("tmv", (from_, q), (), (value,), -2, 2)
    if rows == "K" and cols == "K'" and s.maybe(0.4):
        made = Term("mv", (from_, q), (), (rows,), -2, 2)
        value = rows
    way = s.one("plain", "plain", "scaled", "function", "residual", "two", "normalised")
    if way == "scaled":
        made = Term("div", (made, call("sqrt", s.size("K"))), (), (value,), -2, 2)
    elif way == "function" and "functions of reads" not in s.without:
        made = call(s.one("tanh", "silu", "relu"), made)
    elif way == "residual":
        made = plus(made, scaled(m.gate(), m.enter(value)))
    elif way == "two":
        made = (
            plus(made, Term("tmv", (before, m.enter(rows)), (), (cols.rstrip("'"),), -2, 2))
            if (value == cols.rstrip("'"))
            else made
        )
    elif way == "normalised" and "normalised reads" not in s.without:
        n = m.declare("n", rows)
        k = m.key(rows)
        m.update(n, plus(scaled(m.gate(), state(n, "t-1", rows)), k))
        size = call("max", call("abs", inner(state(n, "t", rows), q)), number("1"))
        made = Term("div", (made, size), (), (value,), -2, 2)
    o = m.let("o", made)
    m.result(o.data[0], value)
    if s.maybe(0.15):
        m.result(S, rows, cols)


def vector(m: Memory) -> None:
    """A state [V] whose elements go by themselves: gated sums, maxima, products, counts."""
    s = m.s
    way = s.one("gated", "gated", "max", "min", "running", "convex", "pair", "stabilised", "lag")
    dim = s.one("V", "K")
    h = m.declare("h", dim, start=number(s.one("0", "0", "1", "0.5")))
    last = state(h, "t-1", dim)
    if way == "gated":
        m.update(h, plus(call("mul", m.gate(dim), last), m.column(dim)))
    elif way in ("max", "min"):
        m.update(h, call(way, plus(m.gate(dim), last, s.one("mul", "sub")), m.column(dim)))
    elif way == "running" and "running sums" not in s.without:
        m.update(h, plus(last, m.column(dim, 0)))
    elif way == "pair":
        c = m.declare("c", dim)
        gate = m.gate(dim)
        m.update(c, plus(call("mul", gate, state(c, "t-1", dim)), m.column(dim)))
        m.update(h, plus(call("mul", m.gate(dim), last), state(c, "t", dim)))
    elif way == "stabilised":
        top = m.declare("m", dim, start=number(s.one("-inf", "0")))
        log, e = m.let("f", call("logsigmoid", m.enter(dim))), m.enter(dim)
        m.update(top, call("max", plus(log, state(top, "t-1", dim)), e))
        keep = call("exp", plus(plus(log, state(top, "t-1", dim)), state(top, "t", dim), "sub"))
        add = call("exp", plus(e, state(top, "t", dim), "sub"))
        m.update(h, plus(call("mul", keep, last), call("mul", add, m.column(dim, 0))))
    elif way == "lag":
        p = m.declare("P", dim)
        m.update(p, m.column(dim, 0))
        m.update(h, plus(scaled(number("0.5"), last), state(p, "t-1", dim)))
    else:
        f = m.let("f", call("sigmoid", m.enter(dim)))
        rest = Term("sub", (number("1"), f), (), (dim,))
        m.update(h, plus(call("mul", f, last), call("mul", rest, m.enter(dim))))
    if s.maybe():
        m.result(h, dim)
    else:
        o = m.let("o", call(s.one("tanh", "sigmoid", "abs"), state(h, "t", dim)))
        m.result(o.data[0], dim)


def cell(m: Memory) -> None:
    """States that their gates read, so that nothing is known of a run of tokens."""
    s = m.s
    h = m.declare("h", "V")
    weights = s.param(*m.heads, "V", "V'", low=-0.5, high=0.5)
    w = name(weights.data[0], "V", "V'")
    a = m.enter("V")
    turned = Term("mv", (w, state(h, "t-1", "V")), (), ("V",), -2, 2)
    i = m.let("i", call("sigmoid", plus(a, turned)))
    z = m.let("z", call("tanh", plus(m.enter("V"), turned)))
    if s.maybe():
        c = m.declare("c", "V")
        m.update(c, plus(call("mul", i, state(c, "t-1", "V")), call("mul", m.gate("V"), z)))
        m.update(h, call("mul", m.gate("V"), call("tanh", state(c, "t", "V"))))
    else:
        less = Term("sub", (number("1"), i), (), ("V",))
        m.update(h, plus(call("mul", less, state(h, "t-1", "V")), call("mul", i, z)))
    m.result(h, "V")


def scalar(m: Memory) -> None:
    """States that are numbers."""
    s = m.s
    n = m.declare("n", start=number(s.one("0", "1")))
    last = state(n, "t-1")
    if s.maybe(0.3):
        m.update(n, call("max", plus(last, m.gate(), "sub"), m.enter()))
    else:
        m.update(n, plus(scaled(m.gate(), last), m.enter()))
    if s.maybe():
        m.result(n)
    else:
        o = m.let("o", scaled(call("tanh", state(n, "t")), m.enter("V")))
        m.result(o.data[0], "V")


def coupled(m: Memory) -> None:
    """Two matrix states: one feeds the other, or a system is solved with one."""
    s = m.s
    if s.maybe():
        A, G = m.declare("A", "K", "K'"), m.declare("G", "K", "V")
        k, v, gate = m.key("K"), m.enter("V"), m.gate()
        m.update(A, plus(scaled(gate, state(A, "t-1", "K", "K'")), outer(k, k)))
        m.update(G, plus(scaled(gate, state(G, "t-1", "K", "V")), outer(k, v)))
        lam = s.let(
            elementwise("add", elementwise("softplus", s.draw((*m.heads, "K"), 1)), number("1")),
            (*m.heads, "K"),
            "lam",
        )
        extra = Term("diag", (name(lam.data[0], "K"),), (), ("K", "K'"))
        system = Term("add", (state(A, "t", "K", "K'"), extra), (), ("K", "K'"))
        more = s.one("", "", ", iterations = 8")
        z = Term("solve", (system, m.enter("K")), (more,), ("K",), -2, 2)
        o = m.let("o", Term("tmv", (state(G, "t", "K", "V"), z), (), ("V",), -2, 2))
    else:
        M, S = m.declare("M", "K", "V"), m.declare("S", "K", "V")
        write = scaled(m.gate(), outer(m.key("K"), m.enter("V")))
        m.update(M, plus(scaled(m.gate(), state(M, "t-1", "K", "V")), write))
        other = state(M, s.one("t", "t-1"), "K", "V")
        m.update(S, plus(scaled(m.gate(), state(S, "t-1", "K", "V")), other))
        o = m.let("o", Term("tmv", (state(S, "t", "K", "V"), m.enter("K")), (), ("V",), -2, 2))
    m.result(o.data[0], "V")


def steps(m: Memory) -> None:
    """Several corrections a token."""
    s = m.s
    s.used.add("n")
    S = m.declare("S", "K", "V")
    heads = m.heads
    x = s.draw(("n", *heads, "K"), 1)
    k = s.let(Term("norm", (x,), ("l2norm", "K"), x.dims, -1, 1), ("n", *heads, "K"), "k")
    v = s.let(s.draw(("n", *heads, "V"), 1), ("n", *heads, "V"), "v")
    beta = s.let(s.gate("n", *heads), ("n", *heads), "b")
    R, j = s.fresh("R"), s.fresh("j")
    first = state(S, "t-1", "K", "V")
    m.body.append(Let((R,), scaled(m.gate(), first) if s.maybe() else first))

    def at(value: Term, *dims: str) -> Term:
        return Term("lookup", (Term("name", (), value.data, ("n",)), name(j)), (), dims, -1, 1)

    kj, vj, bj = at(k, "K"), at(v, "V"), at(beta)
    kept = Term("mm", (householder(bj, kj), name(R, "K", "V")), (), ("K", "V"), -2, 2)
    update = plus(kept, scaled(bj, outer(kj, vj)))
    m.body.append(Block("repeat", f"repeat n as {j}", (Let((R,), update),), (j, "n", False, (R,))))
    m.update(S, name(R, "K", "V"))
    o = m.let("o", Term("tmv", (state(S, "t", "K", "V"), m.enter("K")), (), ("V",), -2, 2))
    m.result(o.data[0], "V")


def linear(m: Memory) -> None:
    """A state that a matrix turns, constant or not."""
    s = m.s
    h = m.declare("h", "V")
    w = s.param(*m.heads, "V", "V'", low=-0.4, high=0.4)
    turned = Term("mv", (name(w.data[0], "V", "V'"), state(h, "t-1", "V")), (), ("V",), -2, 2)
    if s.maybe(0.4):
        turned = scaled(m.gate(), turned)
    m.update(h, plus(turned, m.column("V")))
    m.result(h, "V")


KINDS = (
    (5, "matrix", matrix), (4, "vector", vector), (1.5, "cells", cell), (1.5, "scalars", scalar),
    (1.5, "coupled", coupled), (1, "steps", steps), (1, "linear", linear),
)  # fmt: skip


def recurrence(s: Draft) -> Term:
    """A recurrence, and one of its results."""
    heads = s.rng.choice((("H",), ("H",), ("H",), (), ("G",), ("H", "D")))
    if "several heads" in s.without and len(heads) > 1:
        heads = ("H",)
    s.used |= {*heads, "K", "V"}
    grouped = heads == ("H",) and s.maybe(0.2)
    if grouped:
        s.used.add("G")
    m = Memory(s, heads, grouped)
    kinds = [kind for kind in KINDS if kind[1] not in s.without]
    s.rng.choices(kinds, [k[0] for k in kinds])[0][2](m)
    if s.maybe(0.15):
        m.body.append(Line("# what the states become"))
    over = f" over {', '.join(heads)}" if heads else ""
    over += " grouped G" if grouped else ""
    written = []
    for text, dims, start in m.states:
        shape = f"{text}[{', '.join(dims)}]"
        written.append(shape if start.data == ("0",) and s.maybe(0.8) else f"{shape} = {start}")
    head = f"recurrence {', '.join(written)}{over}"
    data = (tuple(m.states), heads, ("H", "G") if grouped else None)
    s.body.append(Block("recurrence", head, tuple(m.body), data))
    for text, dims in m.results:
        made = Term("name", (), (text,), (*heads, *dims), -5.0, 5.0)
        s.varying.add(text)
        s.known.append(made)
    return s.known[-1]

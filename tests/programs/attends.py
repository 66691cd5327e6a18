"""Attends of drawn programs: ranges, scores, weights, groups, choices and blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.programs.bounds import elementwise, number
from tests.programs.drawing import Draft
from tests.programs.memories import call, inner, name, plus, scaled
from tests.programs.terms import Block, Let, Line, Statement, Term


@dataclass
class Pairs:
    """An attend in the making."""

    s: Draft
    heads: tuple[str, ...]
    grouped: bool
    variable: str = "s"
    ahead: bool = False
    body: list[Statement] = field(default_factory=list)
    source: str = ""
    range_: str = ""
    chosen: bool = False

    def reader(self, *dims: str, bounded: bool = False) -> Term:
        """A value of the reader."""
        made = self._named(self.heads, dims, bounded)
        value = name(made.data[0], *dims)
        if self.s.maybe(0.6):
            return Term("at", (value,), ("t",), dims, -2, 2)
        return value

    def read(self, *dims: str, bounded: bool = False) -> Term:
        """A value of the token read."""
        heads = tuple("G" if h == "H" and self.grouped else h for h in self.heads)
        made = self._other(heads, dims) if self.source else self._named(heads, dims, bounded)
        return Term("at", (name(made.data[0], *dims),), (self.variable,), dims, -2, 2)

    def _named(self, heads: tuple[str, ...], dims: tuple[str, ...], bounded: bool) -> Term:
        s = self.s
        if bounded:
            x = elementwise("tanh", s.draw((*heads, *dims), 1))
            made = s.let(x, (*heads, *dims), "k")
        else:
            made = s.named(*heads, *dims, stem="k")
        if made.data[0] in s.varying:
            return made
        token = next(k for k in s.known if k.data[0] in s.varying and not k.whole)
        number_ = s.reduce_to(token, token.dims)
        return s.let(elementwise("add", made, s.tame(number_)), (*heads, *dims), "k")

    def _other(self, heads: tuple[str, ...], dims: tuple[str, ...]) -> Term:
        """A value of the other sequence."""
        s = self.s
        w = s.param("e", *heads, *dims, low=-0.6, high=0.6)
        other = Term("name", (), (self.source,), ("e",))
        text = s.fresh("k")
        term = Term("matmul", (other, w), ("e",), (*heads, *dims))
        s.body.append(Let((text,), term))
        return Term("name", (), (text,), (*heads, *dims), -3, 3)

    def let(self, stem: str, term: Term) -> Term:
        text = self.s.fresh(stem)
        self.body.append(Let((text,), term))
        return Term("name", (), (text,), term.dims, term.low, term.high)


def score(p: Pairs) -> Term:
    """A number for each reader and token read."""
    s = p.s
    made = inner(p.reader("K", bounded=True), p.read("K", bounded=True))
    if s.maybe(0.15):
        made = inner(p.read("K", bounded=True), p.reader("K", bounded=True))
    if s.maybe(0.4):
        made = Term("div", (made, call("sqrt", s.size("K"))), (), (), -2, 2)
    ways = ["none", "none", "cap", "bias", "slope", "sum", "path", "where", "second", "function"]
    ways += ["far", *(["vectors"] if not p.grouped else [])]
    if p.ahead or p.source:
        ways = ["none", "cap", "bias", "second", "function"]
    way = s.one(*ways)
    distance = Term("sub", (Term("place", (), ("t",)), Term("place", (), (p.variable,))), (), ())
    if way == "cap":
        made = Term("softcap", (made,), (s.one("2", "5"),), (), -5, 5)
    elif way == "bias":
        made = plus(made, p.read())
    elif way == "slope":
        made = plus(made, scaled(number(s.one("0.5", "0.25")), distance), "sub")
    elif way == "sum":
        log = s.let(elementwise("logsigmoid", s.draw(p.heads, 1)), p.heads, "f")
        between = Term("at", (name(log.data[0]),), ("r",), ())
        made = plus(made, Term("along", (between,), ("sum",), (), -9, 0))
    elif way == "vectors":
        row = Term("at", (name(p._named(p.heads, ("K",), True).data[0], "K"),), ("r",), ("K",))
        total = Term("along", (row,), ("sum",), ("K",))
        made = plus(made, scaled(number("0.25"), inner(total, p.read("K", bounded=True))))
    elif way == "path" and "products along" not in s.without:
        made = path(p)
    elif way == "where":
        near = Term("lt", (distance, number(s.one("2", "3"))), (), ())
        made = call("where", near, made, scaled(number("0.5"), made))
    elif way == "second":
        made = plus(made, inner(p.reader("V", bounded=True), p.read("V", bounded=True)))
    elif way == "far":
        made = distance_of_vectors(p)
    elif way == "function":
        made = call(s.one("tanh", "sin", "softplus"), made)
    return made


def distance_of_vectors(p: Pairs) -> Term:
    """A score that falls with the distance of two vectors, or rises to 1."""
    s = p.s
    far = Term("far", (p.reader("K", bounded=True), p.read("K", bounded=True)), ("K",), ())
    made = scaled(number(s.one("0.5", "0.1")), far)
    return Term("neg", (made,), (), (), -9, 0) if s.maybe(0.6) else call("tanh", made)


def path(p: Pairs) -> Term:
    """`k[s].T @ P @ q[t]` with P a product of matrices along the way."""
    s = p.s
    heads = p.heads
    x = s.draw((*heads, "K"), 1)
    w = s.let(Term("norm", (x,), ("l2norm", "K"), x.dims, -1, 1), (*heads, "K"), "w")
    beta = s.let(s.gate(*heads), heads, "b")
    wr = Term("at", (name(w.data[0], "K"),), ("r",), ("K",))
    br = Term("at", (name(beta.data[0]),), ("r",), ())
    turn = Term("outer", (scaled(br, wr), wr), (), ("K", "K'"))
    token = Term("one_minus", (turn,), (), ("K", "K'"))
    product = p.let("P", Term("along", (token,), ("product",), ("K", "K'")))
    k, q = p.read("K", bounded=True), p.reader("K", bounded=True)
    return Term("through", (k, product, q), (), (), -2, 2)


def weights(p: Pairs) -> Term:
    """What each token read weighs."""
    s = p.s
    found = score(p)
    if s.maybe(0.4):
        found = p.let("a", found)
    way = s.one("softmax", "softmax", "softmax", "softmax", "sink", "raw", "exp", "difference",
                "stick")  # fmt: skip
    if way == "stick" and p.range_ == "le" and not p.chosen:
        return stick(p, found)
    nearby = way not in ("raw", "exp") and p.range_ in ("le", "window")
    if nearby and s.maybe(0.2) and "ranges in scores" not in s.without:
        found = within(p, found)
    if way == "sink":
        sink = s.param(*p.heads, low=-1, high=1, init="")
        return Term("softmax_sink", (found, name(sink.data[0])), (), (), 0, 1)
    if way == "raw":
        return scaled(number("0.5"), found)
    if way == "exp":
        return call("exp", call("tanh", found))
    soft = Term("softmax", (found,), (), (), 0, 1)
    if way == "difference" and "several softmaxes" not in s.without:
        one = p.let("p", soft)
        two = p.let("p", Term("softmax", (score(p),), (), (), 0, 1))
        return plus(
            one, scaled(name(s.param(*p.heads, low=0, high=0.5, init="").data[0]), two), "sub"
        )
    return soft


def within(p: Pairs, score_: Term) -> Term:
    """A score of the tokens nearby alone, or of those and the first ones."""
    s = p.s
    t, read = Term("place", (), ("t",)), Term("place", (), (p.variable,))
    near = Term("lt", (Term("sub", (t, read), (), ()), number(s.one("1", "3"))), (), ())
    if s.maybe():
        near = Term("or", (near, Term("lt", (read, number("2")), (), ())), (), ())
    return call("where", near, score_, number("-inf"))


def stick(p: Pairs, score_: Term) -> Term:
    """The share of a stick that is left when later tokens have broken off theirs."""
    z = score_ if score_.op == "name" else p.let("z", score_)
    rest = call("logsigmoid", Term("neg", (Term("of_reader", (z,), (), ()),), (), ()))
    left = p.let("l", Term("along", (rest,), ("sum",), (), -9, 0))
    return call("exp", plus(call("logsigmoid", z), left))


def solved(s: Draft) -> Term:
    """A value that is made from its own earlier tokens."""
    heads = s.rng.choice((("H",), ("H",), ()))
    s.used |= {*heads, "K", "V"}
    p = Pairs(s, heads, False, range_="lt")
    own = s.rng.choice((("V",), ("V",), ()))
    w = p.let("p", weights(p))
    v, b = p.reader(*own), call("sigmoid", p.reader())
    text = s.fresh("u")
    p.body.append(Let((text,), Term("solved", (v, b, w), (text,), own, -9, 9), own))
    over = f" over {', '.join(heads)}" if heads else ""
    s.body.append(Block("attend", f"attend s < t{over}", tuple(p.body), ("s", ("lt",), None, "")))
    s.varying.add(text)
    s.known.append(Term("name", (), (text,), (*heads, *own), -9.0, 9.0))
    return s.known[-1]


def attend(s: Draft) -> Term:
    """An attend, and one of its results."""
    heads = s.rng.choice((("H",), ("H",), ("H",), (), ("H", "D")))
    if "several heads" in s.without and len(heads) > 1:
        heads = ("H",)
    s.used |= {*heads, "K", "V"}
    grouped = heads == ("H",) and s.maybe(0.3)
    p = Pairs(s, heads, grouped)
    range_, text = _range(s, p)
    if grouped:
        s.used.add("G")
    chosen = ""
    p.range_ = range_[0]
    if range_[0] == "le" and s.maybe(0.3) and "choices" not in s.without:
        chosen = choose(s, heads) if s.maybe() else choose_blocks(s, heads, grouped)
        p.chosen = True
    elif range_[0] == "le" and s.maybe(0.12) and "blocks" not in s.without:
        chosen = compressed(s, heads, grouped)
    over = f" over {', '.join(heads)}" if heads else ""
    over += " grouped G" if grouped else ""
    results = [_result(p)]
    if s.maybe(0.2):
        results.append(_result(p))
    if s.maybe(0.1):
        p.body.append(Line("# what is read"))
    if s.maybe(0.15) and range_[0] in ("le", "window"):
        fn = s.one("sum", "max", "min")
        w = p.let("a", score(p))
        made = p.let("o", Term("reduce", (w,), (fn, p.variable), (), -9, 9))
        results.append((made.data[0], ()))
    results += [_total(p)] if s.maybe(0.15) and p.range_ in ("le", "window") else []
    if s.maybe(0.1):
        s.rng.shuffle(results)
    head = f"attend {text}{f' in {chosen}' if chosen else ''}{over}"
    data = (p.variable, range_, ("H", "G") if grouped else None, chosen)
    s.body.append(Block("attend", head, tuple(p.body), data))
    for result, dims in results:
        s.varying.add(result)
        s.known.append(Term("name", (), (result,), (*heads, *dims), -4.0, 4.0))
    return s.known[-1]


def _total(p: Pairs) -> tuple[str, tuple[str, ...]]:
    """The log of the sum of a softmax's weights, where each token reads one."""
    if p.chosen:
        return _result(p)
    made = p.let("o", Term("total", (p.let("a", score(p)),), (), (), -9, 9))
    return made.data[0], ()


def _result(p: Pairs) -> tuple[str, tuple[str, ...]]:
    """A value that the reader gets."""
    s = p.s
    w = weights(p)
    if s.maybe(0.4):
        w = p.let("p", w)
    if s.maybe(0.1) and w.op in ("name", "softmax"):
        made = p.let("o", Term("reduce", (w,), ("sum", p.variable), (), -4, 4))
        return made.data[0], ()
    value = Term("weigh", (w, p.read("V")), (), ("V",), -4, 4)
    if s.maybe(0.2):
        value = scaled(call("sigmoid", p.reader()), value)
    made = p.let("o", value)
    return made.data[0], ("V",)


def _range(s: Draft, p: Pairs) -> tuple[tuple, str]:
    """Which tokens are read."""
    way = s.one("le", "le", "le", "lt", "window", "window", "all", "other", "both")
    if way == "other" and "other sequences" not in s.without and not p.grouped:
        p.source, p.variable = "c", "m"
        s.used |= {"e", "@c"}
        return ("all", "m"), "all m"
    if way == "all":
        p.ahead, s.causal = True, False
        return ("all", "s"), "all s"
    if way == "both":
        width = s.one("1", "2", "3")
        p.ahead, s.causal = True, False
        return ("both", width), f"all t - {width} < s < t + {width}"
    if way == "lt":
        return ("lt",), "s < t"
    if way == "window":
        width = s.one("1", "2", "3", "20", "W")
        if width == "W":
            s.used.add("W")
        return ("window", width), f"t - {width} < s <= t"
    return ("le",), "s <= t"


def choose(s: Draft, heads: tuple[str, ...]) -> str:
    """The name of a choice of tokens, by an `index`."""
    s.used.add("D")
    over: tuple[str, ...] = ()
    p = Pairs(s, over, False)
    q, k = s.named("D", stem="q"), s.named("D", stem="k")
    q, k = (x if x.data[0] in s.varying else p._named((), ("D",), True) for x in (q, k))
    one = Term("at", (Term("name", (), q.data, ("D",)),), ("t",), ("D",))
    other = Term("at", (Term("name", (), k.data, ("D",)),), ("s",), ("D",))
    found = inner(one, other)
    if s.maybe():
        found = call("tanh", found)
    text = s.fresh("I")
    head = "index s <= t"
    s.body.append(Block("attend", head, (Let((text,), found),), ("s", ("le",), None, "")))
    count = s.one("1", "2", "3", "n")
    if count == "n":
        s.used.add("n")
    choice = s.fresh("c")
    score_ = Term("name", (), (text,), ())
    s.body.append(Let((choice,), Term("chosen", (score_,), (count, "s"), ())))
    return choice


def choose_blocks(s: Draft, heads: tuple[str, ...], grouped: bool) -> str:
    """The name of a choice of blocks: by raw scores, or by weights summed over heads."""
    s.used |= {"D", "Z"}
    stride, b = s.one("1", "2", "3"), s.fresh("b")
    raw = s.maybe() or not heads or "D" in heads
    own = () if raw else heads
    p = Pairs(s, own, grouped and not raw, b)
    key = p._named(("G",) if p.grouped else own, ("D",), True)
    block = Term("at", (key,), (b,), ("Z", *key.dims))
    kb, fn = s.fresh("kb"), s.one("sum", "mean", "max")
    made = Let((kb,), Term("reduce", (block,), (fn, "Z"), key.dims))
    data = (b, "Z", stride, "Z")
    s.body.append(Block("blocks", f"blocks {b} of Z every {stride}", (made,), data))
    found = inner(p.reader("D", bounded=True), Term("at", (name(kb, "D"),), (b,), ("D",)))
    if not raw:
        found = Term("softmax", (found,), (), (), 0, 1)
    text = p.let("I", found).data[0]
    over = "" if raw else f" over {', '.join(heads)}" + " grouped G" * grouped
    head, range_ = f"{b} ending <= t{over}", ("ending", "Z", stride)
    shares = ("H", "G") if p.grouped else None
    word = "index" if raw else "attend"
    s.body.append(Block("attend", f"{word} {head}", tuple(p.body), (b, range_, shares, "")))
    score_ = Term("name", (), (text,), own)
    if p.grouped:
        score_ = Term("group", (score_,), ("sum", "H", "G"), ("G",))
    elif own and s.maybe():
        score_ = Term("reduce", (score_,), ("sum", ", ".join(own)), ())
    return picked(s, score_, b, stride)


def picked(s: Draft, score_: Term, b: str, stride: str) -> str:
    """The name of the best blocks: of those that have scores, or of larger ones."""
    count, choice = s.one("1", "2", "3"), s.fresh("c")
    pick, first, last, text = None, False, 0, ""
    if s.maybe(0.7):
        pick, first, last = s.one("2", "3", "4"), s.maybe(0.3), s.rng.choice((0, 0, 1, 2))
        forced = f" always first and last {last}" if first and last else ""
        forced = " always first" if first and not last else forced
        forced = f" always last {last}" if last and not first else forced
        text = f" on blocks of {pick}{forced}"
    data = (count, pick, text, b, "Z", stride, first, last)
    s.body.append(Let((choice,), Term("chosen_blocks", (score_,), data, ())))
    return choice


def compressed(s: Draft, heads: tuple[str, ...], grouped: bool) -> str:
    """Blocks of tokens that are read whole; no choice comes of them."""
    stride = s.one("1", "2", "3")
    b, own = s.fresh("b"), tuple("G" if h == "H" and grouped else h for h in heads)
    k, v = s.named(*own, "K", stem="k"), s.named(*own, "V", stem="v")
    p = Pairs(s, heads, grouped)
    k = k if k.data[0] in s.varying else p._named(own, ("K",), True)
    v = v if v.data[0] in s.varying else p._named(own, ("V",), True)
    names = []
    body: list[Statement] = []
    s.used.add("Z")
    for value, dim in ((k, "K"), (v, "V")):
        block = Term("at", (value,), (b,), ("Z", *value.dims))
        text = s.fresh("kb")
        fn = s.one("sum", "mean", "max")
        body.append(Let((text,), Term("reduce", (block,), (fn, "Z"), value.dims)))
        names.append((text, dim))
    s.body.append(
        Block("blocks", f"blocks {b} of Z every {stride}", tuple(body), (b, "Z", stride, "Z"))
    )
    q = p.reader("K", bounded=True)
    (kb, _), (vb, _) = names
    found = inner(q, Term("at", (name(kb, "K"),), (b,), ("K",)))
    over = f" over {', '.join(heads)}" if heads else ""
    over += " grouped G" if grouped else ""
    weight = p.let("p", Term("softmax", (found,), (), (), 0, 1))
    made = p.let(
        "o", Term("weigh", (weight, Term("at", (name(vb, "V"),), (b,), ("V",))), (), ("V",))
    )
    data = (b, ("ending", "Z", stride), ("H", "G") if grouped else None, "")
    s.body.append(Block("attend", f"attend {b} ending <= t{over}", tuple(p.body), data))
    s.varying.add(made.data[0])
    s.known.append(Term("name", (), made.data, (*heads, "V"), -4.0, 4.0))
    return ""

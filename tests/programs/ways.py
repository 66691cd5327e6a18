"""Ways to draw an expression: each makes one of some dims, or None where it has none."""

from __future__ import annotations

from collections.abc import Callable

from tests.programs.bounds import TAME, elementwise, interval, number, ordered
from tests.programs.drawing import Draft
from tests.programs.structures import Around, sizes_in_words
from tests.programs.terms import LIBRARY, NORMS, UNARY, Term

SUMMED = frozenset(("d", "H", "K", "V", "D", "G", "n", "p", "P", "R", "A", "C", "J", "L", "M"))
"""Dims that a value may be summed over."""


def _unary(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    op = s.one(*UNARY, *LIBRARY, "tanh", "sigmoid", "exp")
    if op in ("log", "sqrt", "rsqrt"):
        return elementwise(op, s.positive(wanted, depth))
    x = s.draw(ordered(wanted), depth - 1)
    if op in ("exp", "exp2") and x.high > 3:
        x = elementwise("neg", elementwise("abs", x))
    return elementwise(op, x)


def _part(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    """A value of some of the dims."""
    some = [dim for dim in sorted(wanted) if s.maybe(0.6)]
    if not some and s.maybe():
        return number(s.one("2", "0.5", "1", "3", "1e-2", "0.25", "1.5"))
    return s.draw(some, depth - 1)


def _binary(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    pair = [s.draw(ordered(wanted), depth - 1), _part(s, wanted, depth)]
    s.rng.shuffle(pair)
    return elementwise(s.one("add", "add", "sub", "mul", "mul", "max", "min"), *pair)


def _divided(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    x, y = s.draw(ordered(wanted), depth - 1), s.positive(ordered(wanted)[:1], depth)
    top = max(abs(x.low), abs(x.high)) / 0.3
    if s.maybe(0.2):
        y = elementwise("sqrt", _length(s, s.rng.choice(sorted(wanted)))) if wanted else number("3")
    if y.op == "number" and s.maybe(0.3):
        step = number(s.one("2", "3"))
        return Term(s.one("mod", "floordiv"), (x, step), (), x.dims, -TAME, TAME)
    return Term("div", (x, y), (), elementwise("add", x, y).dims, -top, top)


def _length(s: Draft, dim: str) -> Term:
    """The size of a dim, or the next multiple of a number."""
    size = s.size(dim)
    if size.op != "size" or s.maybe(0.7):
        return size
    step = s.one("2", "4")
    return Term("rounded", (), (dim, step), (), size.low, size.high + int(step), True)


def _power(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    if s.maybe(0.4):
        x = s.draw(ordered(wanted), depth - 1)
        count = s.one("2", "3")
        top = max(abs(x.low), abs(x.high)) ** int(count)
        return Term("pow", (x, number(count)), (), x.dims, 0 if count == "2" else -top, top)
    base = number(s.one("2", "0.5")) if s.maybe(0.3) else s.positive(wanted, depth)
    power = (
        s.draw(ordered(wanted), depth - 1) if s.maybe(0.4) else number(s.one("0.5", "1.5", "0.25"))
    )
    if power.op == "number" and base.op == "number":
        return elementwise("mul", base, s.draw(ordered(wanted), depth - 1))
    if max(abs(power.low), abs(power.high)) > 2:
        power = elementwise("tanh", power)
    if s.maybe(0.2):
        power = elementwise("neg", power)
    top = max(base.high, 4) ** 2
    return Term("pow", (base, power), (), elementwise("add", base, power).dims, 0.0, top)


def _where(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    condition = s.condition(frozenset(ordered(wanted)[:1]), depth - 1)
    return elementwise(
        "where", condition, s.draw(ordered(wanted), depth - 1), _part(s, wanted, depth)
    )


def _conditioned(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    """A condition counts as 0 or 1."""
    condition = s.condition(wanted, depth - 1)
    counted = Term(condition.op, condition.args, (), condition.dims, 0.0, 1.0)
    return elementwise("mul", s.draw(ordered(wanted), depth - 1), counted)


def _reduced(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    others = [dim for dim in s.used if dim not in wanted and dim in SUMMED]
    if not others or len(wanted) > 2:
        return None
    gone = tuple(s.rng.sample(sorted(others), min(len(others), s.rng.choice((1, 1, 2)))))
    if len(wanted) + len(gone) > 3:
        gone = gone[:1]
    fn = s.one("sum", "sum", "mean", "max", "min", "prod")
    x = s.draw((*wanted, *gone), depth - 1)
    if fn == "prod":
        x = elementwise("tanh", x)
    return s.reduction(fn, x, tuple(dim for dim in gone if dim in x.dims) or gone)


def _grouped(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    if "G" not in wanted or "H" in wanted or "H" not in s.used:
        return None
    fns = ("sum",) if "group reductions" in s.without else ("sum", "max", "min", "mean", "prod")
    fn = s.one(*fns)
    x = s.draw((*(wanted - {"G"}), "H"), depth - 1)
    if fn == "prod":
        x = elementwise("tanh", x)
    dims = tuple("G" if dim == "H" else dim for dim in x.dims)
    return Term("group", (x,), (fn, "H", "G"), dims, 4 * min(x.low, 0), 4 * max(x.high, 0))


def _projected(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    return s.project(wanted)


def _normed(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    if not wanted:
        return None
    dim, fn = s.rng.choice(sorted(wanted)), s.one(*NORMS)
    x, over = s.draw(ordered(wanted), depth - 1), dim
    if fn == "rmsnorm" and len(wanted) > 1 and s.maybe(0.2):
        over = ", ".join(s.order(wanted))
    return Term("norm", (x,), (fn, over), x.dims, 0.0 if fn == "softmax" else -3.0, 3.0)


def _roped(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    found = [dim for dim in sorted(wanted) if dim in ("K", "D") and s.sizes[dim] % 2 == 0]
    if not found or s.prefix == "f":
        return None
    x = s.draw(ordered(wanted), depth - 1)
    top = 1.5 * max(abs(x.low), abs(x.high))
    base = s.one("10", "100", "10000")
    return Term("rope", (x,), (s.one("rope", "rope_half"), found[0], base), x.dims, -top, top)


def _taken(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    if not wanted:
        return None
    dim = s.rng.choice(sorted(wanted))
    if s.maybe(0.3):
        more = [each for each in s.used if each not in wanted and each in SUMMED]
        if more:
            dim = s.rng.choice(sorted(more))
            x = s.draw((*ordered(wanted)[1:], dim), depth - 1)
            place = s.place_in(dim, frozenset(ordered(wanted)[:1]))
            dims = tuple(dict.fromkeys([*place.dims, *(d for d in x.dims if d != dim)]))
            return Term("take", (x, place), (dim,), dims, x.low, x.high)
    x, place = s.draw(ordered(wanted), depth - 1), s.place_in(dim, frozenset([dim]))
    if dim not in place.dims:
        return None
    return Term("take", (x, place), (dim,), x.dims, x.low, x.high)


def _table(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    if s.prefix == "f":
        return None
    order = s.order(wanted)
    if s.maybe(0.3):
        s.used.add("length")
        table = s.param("length", *order)
        return Term("row", (table,), (), order, table.low, table.high)
    rows = s.one("vocab", "D")
    if rows in wanted:
        return None
    s.used.add(rows)
    table = s.param(rows, *order)
    tokens = [k for k in s.known if k.whole and k.data[0] == "tokens"]
    place = tokens[0] if tokens and rows == "vocab" else s.place_in(rows, frozenset())
    return Term("lookup", (table, place), (), order, table.low, table.high)


def _earlier(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    found = [k for k in s.known if set(k.dims) == wanted and k.data[0] in s.varying]
    if not found or s.prefix == "f":
        return None
    value = s.rng.choice(found)
    low, high = min(value.low, 0), max(value.high, 0)
    return Term("shift", (value,), (s.one("1", "1", "2", "3"),), value.dims, low, high, value.whole)


def _convolved(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    if s.prefix == "f" or "W" in wanted:
        return None
    s.used.add("W")
    x = s.draw(ordered(wanted), depth - 1)
    if s.maybe(0.7):
        w = s.param(*s.order(wanted), "W", low=-0.6, high=0.6)
        return Term("shortconv", (x, w), (), x.dims, -8.0, 8.0)
    run = Term("window", (x,), ("W",), ("W", *x.dims), min(x.low, 0), max(x.high, 0))
    return s.reduction(s.one("sum", "mean", "max"), run, ("W",))


def _branch(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    """`a if option else b`."""
    if not s.options:
        return None
    name, _, value = s.rng.choice(s.options)
    if isinstance(value, bool):
        text, outcome = (name, value) if s.maybe() else (f"not {name}", not value)
    elif isinstance(value, str):
        text, outcome = s.rng.choice(
            [(f'{name} == "a"', value == "a"), (f'{name} != "a"', value != "a")]
        )
    elif isinstance(value, tuple):
        text, outcome = s.rng.choice([("0 in full", 0 in value), ("1 in full", 1 in value)])
    elif value is None:
        text, outcome = s.rng.choice([(f"{name} == none", True), (f"{name} != none", False)])
    else:
        text, outcome = s.rng.choice(
            [(f"{name} > 2", value > 2), (f"{name} % 2 == 0", value % 2 == 0)]
        )
    a, b = s.draw(ordered(wanted), depth - 1), s.draw(ordered(wanted), depth - 1)
    low, high = interval("choice", (a, b))
    chosen = a if outcome else b
    return Term("choice", (a, b), (text, outcome), chosen.dims, low, high)


def _called(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    """A function of the spec's own."""
    found = [f for f in s.functions if len(f.axes) <= len(wanted)]
    if not found:
        return None
    decl = s.rng.choice(found)
    axes = s.order(wanted)[: len(decl.axes)]
    if any(dim.endswith("'") for dim in axes):
        return None
    args = tuple(s.draw(ordered(wanted), depth - 1) for _ in decl.inputs)
    written = f"{decl.name}[{', '.join(axes)}]" if axes else decl.name
    extra = [f"{n} = {s.one('2', '0.5')}" for n, _ in decl.sizes if s.maybe(0.3)]
    result = decl.result
    assert result is not None
    return Term("function", args, (written, decl.name, *extra), args[0].dims, -TAME, TAME)


def _applied(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    """Another layer, applied once."""
    found = [d for d in s.layers if d.name not in s.taken and len(d.inputs[0].dims) == len(wanted)]
    found = [d for d in found if getattr(d, "argument", "") not in s.taken]
    if not found:
        return None
    decl, order = s.rng.choice(found), s.order(wanted)
    s.taken |= {decl.name, getattr(decl, "argument", "")} - {
        ""
    }  # each once: one path of parameters
    args = tuple(s.let(s.draw(order, depth - 1), order) for _ in decl.inputs)
    given = dict(zip(decl.inputs[0].dims, order, strict=True))
    sizes = [given[n] if s.maybe() else f"{n} = {given[n]}" for n, _ in decl.sizes if n in given]
    named = False
    for place, text in enumerate(sizes):  # what follows a named argument is named too
        named = named or "=" in text
        if named and "=" not in text:
            sizes[place] = f"{[n for n, _ in decl.sizes if n in given][place]} = {text}"
    if isinstance(decl, Around):
        inner = next(each for each in s.layers if each.name == decl.argument)
        sizes.append(f"inside = {inner.name}({sizes_in_words(inner, order)})")
    written = f"{decl.name}({', '.join(sizes)})"
    return Term("layer", args, (written, decl.name), order, -TAME, TAME)


def _capped(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    x = s.draw(ordered(wanted), depth - 1)
    if s.maybe(0.3):
        return Term("dropout", (x,), (s.one("0.1", "0.5"),), x.dims, x.low, x.high)
    return Term("softcap", (x,), (s.one("2", "5"),), x.dims, -5, 5)


def _integer(s: Draft, wanted: frozenset[str], depth: int) -> Term:
    return elementwise("mul", s.draw(ordered(wanted), depth - 1), s.tame(s.whole(wanted, depth)))


def _joined(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    """Two parts as one dim, or two dims counted as one and cut again."""
    if s.prefix or "K" not in wanted:
        return None
    if "H" in wanted and s.maybe():
        s.used.add("M")
        x = s.draw(ordered(wanted), depth - 1)
        rest = tuple(dim for dim in x.dims if dim not in "HK")
        one = Term("merge", (x,), ("H", "K", "M"), (*rest, "M"), x.low, x.high)
        if s.maybe():
            one = Term("norm", (one,), (s.one(*NORMS), "M"), one.dims, -5.0, 5.0)
        return Term("split", (one,), ("M", "H", "K"), (*rest, "H", "K"), one.low, one.high)
    s.used |= {"J", "L"}
    rest = tuple(dim for dim in ordered(wanted) if dim != "K")
    a, b = s.draw((*rest, "J"), depth - 1), s.draw((*rest, "L"), depth - 1)
    low, high = min(a.low, b.low), max(a.high, b.high)
    return Term("join", (a, b), ("J", "L", "K"), (*rest, "K"), low, high)


def _mixed(s: Draft, wanted: frozenset[str], depth: int) -> Term | None:
    """A doubly stochastic matrix, made from a parameter or a token, applied along a dim."""
    if s.prefix or "D" not in wanted:
        return None
    a = s.param("D", "D'", low=-1, high=1, init="")
    x = s.draw(ordered(wanted), depth - 1)
    matrix = Term("sinkhorn", (a,), (s.one("1", "2", "3"),), ("D", "D'"), 0, 1)
    x = s.let(x, ("D", *(dim for dim in ordered(wanted) if dim != "D")))
    return Term("mixed", (matrix, x), (), x.dims, x.low, x.high)


DRAWS: tuple[tuple[float, str, Callable[[Draft, frozenset[str], int], Term | None]], ...] = (
    (5, "unary", _unary), (6, "binary", _binary), (2, "divisions", _divided), (2, "powers", _power),
    (1.5, "where", _where), (0.7, "conditions", _conditioned), (2, "reductions", _reduced),
    (4, "groups", _grouped), (4, "projections", _projected), (1.5, "norms", _normed),
    (1.5, "positions", _roped), (1, "take", _taken), (1, "tables", _table), (1, "shifts", _earlier),
    (1, "convolutions", _convolved), (1.5, "options", _branch), (1.5, "functions", _called),
    (2, "layers", _applied), (0.7, "caps", _capped), (0.7, "integers", _integer),
    (1, "parts", _joined), (0.5, "mixed", _mixed),
)  # fmt: skip
"""How often each way is tried, what switches it off, and the way."""

"""Structure of drawn programs: layers under a name, as arguments and in one another, memories that
a token is sent to, inputs that may be left out, composition laws and promises."""

from __future__ import annotations

from dataclasses import dataclass

from tests.programs.bounds import elementwise
from tests.programs.drawing import Draft
from tests.programs.memories import Memory, call, householder, name, outer, plus, scaled, state
from tests.programs.terms import Block, Decl, Declared, Let, Line, Statement, Term

LAW = """layer Token(d):
    input {a}[], {b}[d]
    output p[] = {a}
    output q[d] = {b}

layer Merge(d):
    input p[], q[d], p'[], q'[d]
    output P[] = p + p'
    output Q[d] = {merge}

layer Apply(d):
    input p[], q[d], {m}[d]
    output after[d] = {apply}
"""
"""The composition law of a state that a number is added to and that is joined with a row."""

LAYERS = ("Token", "Merge", "Apply")

JOINED = {
    "log": ("log(exp(q + p') + exp(q'))", "log(exp({m} + p) + exp(q))"),
    "max": ("max(q + p', q')", "max({m} + p, q)"),
}
"""How rows are joined: of two runs, and of a run and the state."""


@dataclass(frozen=True)
class Written(Decl):
    """Declarations that no term stands for."""

    written: str = ""
    declares: tuple[str, ...] = ()

    def text(self) -> str:
        return self.written


@dataclass(frozen=True)
class Around(Decl):
    """A layer that is given another one."""

    argument: str = ""


def tied(s: Draft) -> Term | None:
    """A layer under a name, applied twice, or in every pass of a loop."""
    found = [d for d in s.layers if d.name not in s.taken and not isinstance(d, Around)]
    if not found:
        return None
    decl = s.rng.choice(found)
    s.taken.add(decl.name)
    order = s.order(set(s.rng.sample(sorted(s.used & set("dHKVD")), len(decl.inputs[0].dims))))
    shared = s.fresh("shared")
    s.body.append(Line(f"{shared} = {decl.name}({sizes_in_words(decl, order)})"))

    def applied(first: Term) -> Term:
        more = [s.let(s.draw(order, 1), order) for _ in decl.inputs[1:]]
        return Term("tied", (first, *more), (shared, decl.name), order, -4, 4)

    one = s.let(applied(token(s, order)), order, "h")
    if s.maybe():
        return s.let(elementwise("add", one, applied(one)), order, "h")
    made = elementwise("add", one, s.tame(applied(one)))
    return loop(s, one.data[0], made)


def sizes_in_words(decl: Decl, order: tuple[str, ...]) -> str:
    """`p = d`: the sizes of a layer that is applied to values of these dims."""
    given = dict(zip(decl.inputs[0].dims, order, strict=True))
    return ", ".join(f"{n} = {given[n]}" for n, _ in decl.sizes if n in given)


def token(s: Draft, order: tuple[str, ...]) -> Term:
    """A named value of these dims that differs from token to token."""
    made = s.let(s.draw(order, 1), order, "h")
    if made.data[0] in s.varying:
        return made
    first = next(k for k in s.known if k.data[0] in s.batched and not k.whole)
    return s.let(elementwise("add", made, s.tame(s.reduce_to(first, first.dims))), order, "h")


def loop(s: Draft, text: str, made: Term) -> Term:
    """A value carried through passes; `made` is what a pass makes of it."""
    index, count = s.fresh("l"), s.one("1", "2", "3")
    data = (index, count, True, (text,))
    s.body.append(Block("repeat", f"repeat {count} as {index}", (Let((text,), made),), data))
    s.varying.add(text)
    return next(k for k in s.known if k.data[0] == text)


def nested(s: Draft) -> Term:
    """Passes in each pass, every one with parameters of its own."""
    h = token(s, ("d",))
    text, outside, inside = s.fresh("u"), s.fresh("l"), s.fresh("l")
    carried = Term("name", (), (text,), ("d",), -4, 4)
    dim = s.one(*sorted(s.used & set("HKV")) or ["d'"])
    a = Declared(s.fresh("w"), ("d", dim), "", -0.5, 0.5, inside=True)
    b = Declared(s.fresh("w"), (dim, "d") if dim != "d'" else ("d",), "", -0.5, 0.5, inside=True)
    turned = Term("matmul", (carried, Term("name", (), (a.name,), a.dims)), ("d",), (dim,), -9, 9)
    weight = Term("name", (), (b.name,), b.dims, -0.5, 0.5)
    if dim == "d'":
        made = elementwise("add", carried, elementwise("mul", call("tanh", carried), weight))
        lines = [Line(f"param {b}")]
        params = [b]
    else:
        back = Term("matmul", (call("tanh", turned), weight), (dim,), ("d",), -4, 4)
        made = elementwise("add", carried, back)
        lines, params = [Line(f"param {a}"), Line(f"param {b}")], [a, b]
    scale = Declared(s.fresh("w"), ("d",), " = 1", 0.5, 1.5, inside=True)
    own = Term("name", (), (scale.name,), ("d",), 0.5, 1.5)
    kept = Term("name", (), (h.data[0],), ("d",), -4, 4)
    count, often = s.one("1", "2", "3"), s.one("1", "2")
    data = (inside, count, True, (text,))
    inner = Block("repeat", f"repeat {count} as {inside}", (*lines, Let((text,), made)), data)
    body = (
        Line(f"param {scale} = 1"),
        Let((text,), call("tanh", elementwise("mul", kept, own))),
        inner,
        Let(h.data, elementwise("add", kept, carried)),
    )
    s.params.extend([*params, scale])
    data = (outside, often, True, h.data)
    s.body.append(Block("repeat", f"repeat {often} as {outside}", body, data))
    return h


def sent(s: Draft) -> Term:
    """Memories, each of which moves on the tokens that are sent to it."""
    s.used |= {"D", "K", "V"}
    x = s.known[0]
    heads = ("H",) if s.maybe() else ()
    s.used |= {*heads}
    score = s.project(frozenset("D")) or s.draw(("D",), 0)
    p = s.let(Term("norm", (score,), ("softmax", "D"), ("D",), 0, 1), ("D",), "p")
    expert = s.fresh("e")

    def own(*dims: str) -> Term:
        w = s.param("D", *x.dims, *heads, *dims, low=-0.6, high=0.6)
        return Term("expert", (Term("name", (), w.data, w.dims),), (expert,), w.dims[1:])

    k, v = s.fresh("k"), s.fresh("v")
    row = Term("matmul", (x, own("K")), x.dims, (*heads, "K"), -6, 6)
    lets: list[Statement] = [
        Let((k,), Term("norm", (row,), ("l2norm", "K"), (*heads, "K"), -1, 1), (*heads, "K")),
        Let((v,), Term("matmul", (x, own("V")), x.dims, (*heads, "V"), -6, 6), (*heads, "V")),
    ]
    memory, o = written(s, heads, k, v)
    weighed = Term("normalised", (p,), ("D",), ("D",), 0, 1)
    count = s.one("1", "2")
    head = f"route {expert} in top({count}, {{0}}) weight {{1}}"
    s.body.append(Block("route", head, (*lets, memory), ("D", count), (p, weighed)))
    s.varying.add(o)
    s.known.append(Term("name", (), (o,), (*heads, "V"), -4, 4))
    return s.known[-1]


def written(s: Draft, heads: tuple[str, ...], k: str, v: str) -> tuple[Block, str]:
    """A memory of keys and values, and the name of what is read of it."""
    m = Memory(s, heads, False)
    S = m.declare("S", "K", "V")
    before = scaled(m.gate(), state(S, "t-1", "K", "V"))
    key, write = name(k, "K"), outer(name(k, "K"), name(v, "V"))
    if s.maybe():
        beta = m.gate()
        before = Term("mm", (householder(beta, key), before), (), ("K", "V"), -2, 2)
        write = scaled(beta, write)
    m.update(S, plus(before, write))
    read = Term("tmv", (state(S, "t", "K", "V"), m.key("K")), (), ("V",), -2, 2)
    o = m.let("o", read).data[0]
    over = f" over {', '.join(heads)}" if heads else ""
    data = (tuple(m.states), heads, None)
    return Block("recurrence", f"recurrence {S}[K, V]{over}", tuple(m.body), data), o


def lawful(s: Draft) -> Term | None:
    """A recurrence whose composition law the spec gives."""
    if s.rules:
        return None
    s.used |= {"H", "V"}
    a = s.let(elementwise("neg", s.positive(("H",), 1)), ("H",), "a")
    b, m = s.let(s.draw(("H", "V"), 1), ("H", "V"), "b"), s.fresh("m")
    how = s.one("log", "max")
    merge, apply = (text.format(m=m) for text in JOINED[how])
    law = LAW.format(a=a.data[0], b=b.data[0], m=m, merge=merge, apply=apply)
    s.decls.append(Written("layer", "Law", written=law, declares=LAYERS))
    moved, row = plus(state(m, "t-1", "V"), name(a.data[0])), name(b.data[0], "V")
    joined = call("max", moved, row)
    if how == "log":
        joined = call("log", plus(call("exp", moved), call("exp", row)))
    zero = Term("number", (), ("0",), (), 0, 0, True)
    data = (((m, ("V",), zero),), ("H",), None)
    s.body.append(
        Block("recurrence", f"recurrence {m}[V] over H", (Let((m,), joined, (), "state"),), data)
    )
    s.rules.append("law(Token, Merge, Apply)")
    s.varying.add(m)
    s.known.append(Term("name", (), (m,), ("H", "V"), -9, 9))
    return s.known[-1]


def around(layers: list[Decl]) -> list[Decl]:
    """Layers, and one that is given one of them: what it makes of a value is added to that."""
    plain = [d for d in layers if len(d.inputs) == 1 and len(d.inputs[0].dims) == 1]
    if not plain:
        return layers
    decl, inner = plain[-1], "inside"
    x, (dim,) = decl.inputs[0].name, decl.inputs[0].dims
    value = Term("name", (), (x,), (dim,), -4, 4)
    made = Term("tied", (call("tanh", value),), (inner, decl.name), (dim,), -4, 4)
    body = (Let(("y",), elementwise("add", value, made), (dim,), "output"),)
    sizes = ((dim, ""), (inner, ""))
    return [*layers, Around("block", "Around", sizes, decl.inputs, (), body, argument=decl.name)]

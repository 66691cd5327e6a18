"""Whole programs: arguments, inputs, functions, layers, stacks, routes and outputs."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.programs import attends, memories, structures
from tests.programs.bounds import elementwise, number
from tests.programs.drawing import Draft
from tests.programs.terms import (
    Block,
    Decl,
    Declared,
    Let,
    Line,
    Program,
    Statement,
    Term,
    mentions,
)

KNOWN: frozenset[str] = frozenset()
"""What is not drawn, as it is known to be wrong."""

HEADER = ("d", "H", "G", "K", "V", "D", "n", "W", "vocab", "length", "e", "Z", "J", "L", "M", "Q")


def lengths(rng: random.Random) -> dict[str, int]:
    """The sizes of an instance, mostly different from one another."""
    H, K, V = rng.choice((2, 4)), rng.choice((2, 4, 6)), rng.choice((1, 3, 5))
    J = rng.randrange(1, K)
    return {
        "d": rng.choice((3, 5, 6)), "H": H, "G": rng.choice((1, 2)), "K": K, "V": V,
        "J": J, "L": K - J, "M": H * K, "Q": H * K + V,
        "D": rng.choice((2, 3, 4)), "n": rng.choice((2, 3)), "W": rng.choice((1, 2, 3)),
        "vocab": 7, "length": 128, "e": 4, "Z": rng.choice((2, 3)),
    }  # fmt: skip


def draw(seed: int, without: frozenset[str] = KNOWN) -> Program:
    """The program of a seed."""
    rng = random.Random(f"program {seed}")
    sizes = lengths(rng)
    functions = [function(rng, sizes, f"F{i}", without) for i in range(rng.choice((0, 0, 1, 2)))]
    layers: list[Decl] = []
    for i in range(rng.choice((0, 0, 1, 1, 2))):
        layers.append(layer(rng, f"Part{i}", functions, layers, without))
    if rng.random() < 0.3 and "arguments" not in without:
        layers = structures.around(layers)
    main, options, more = whole(rng, sizes, functions, layers, without)
    decls = [*functions, *more.decls, *layers, main]
    used = [d for d in decls if any(mentions(o.text(), d.name) for o in decls if o is not d)]
    kept = [d for d in decls if d is main or d in more.decls or d in used]
    given = {n: sizes[n] for n, default in main.sizes if n in sizes}
    return Program(tuple(kept), sizes, {**given, **options}, more.causal, seed)


def function(rng: random.Random, sizes: dict[str, int], name: str, without: frozenset[str]) -> Decl:
    """A function of the spec's own."""
    axes = rng.choice(((), ("A",), ("A",), ("A", "C")))
    s = Draft(rng, {**sizes, "A": 1, "C": 1}, "f", without=without | {"projections"})
    args = [Declared(text, axes) for text in rng.choice((("u",), ("u",), ("u", "v")))]
    s.known = [Term("name", (), (each.name,), axes, -5.0, 5.0) for each in args]
    s.used = set(axes)
    extra = (("cap", rng.choice(("2", "0.5"))),) if rng.random() < 0.4 else ()
    if rng.random() < 0.4:
        s.let(s.draw(axes, 2), None, "z")
    result = s.draw(axes, 2)
    if extra:
        result = elementwise("mul", result, Term("name", (), ("cap",), (), 0.5, 2.0))
    return Decl("function", name, extra, tuple(args), (), tuple(s.body), axes, result)


def layer(
    rng: random.Random,
    name: str,
    functions: list[Decl],
    layers: list[Decl],
    without: frozenset[str],
) -> Decl:
    """A layer that keeps the shape of its input."""
    sizes = {"p": 3, "P": 2, "R": 2, "W": 2}
    dims = rng.choice((("p",), ("p",), ("P", "p")))
    s = Draft(
        rng, sizes, name[-1] + "_", functions=functions, without=without | {"tables", "positions"}
    )
    inputs = tuple(Declared(text, dims) for text in rng.choice((("x",), ("x",), ("x", "z"))))
    s.known = [Term("name", (), (each.name,), dims, -3.0, 3.0) for each in inputs]
    s.varying = {each.name for each in inputs}
    s.used = set(dims)
    s.taken = {each.name for each in layers}
    if rng.random() < 0.4:
        s.let(s.draw(dims, 2), dims)
    result = s.draw(dims, 3)
    if not s.varies(result):
        result = elementwise("add", s.known[0], result)
    s.body.append(Let(("y",), result, dims, "output"))
    kind = rng.choice(("layer", "layer", "block"))
    body = "\n".join(line for each in s.body for line in each.lines())
    written = body + "".join(map(str, [*inputs, *s.params]))
    known = tuple((dim, "") for dim in sizes if mentions(written, dim))
    known = tuple((dim, "" if dim in dims else "2") for dim, _ in known)
    return Decl(kind, name, known, inputs, tuple(s.params), tuple(s.body))


def whole(
    rng: random.Random, sizes: dict[str, int], functions: list[Decl], layers: list[Decl],
    without: frozenset[str],
) -> tuple[Decl, dict[str, object], Draft]:  # fmt: skip
    """The layer that a spec stands for, the options of an instance, and what it was drawn with."""
    s = Draft(rng, sizes, "", functions=functions, layers=layers, without=without)
    s.used = {"d", *rng.sample(("H", "K", "V", "D"), 2)}
    if rng.random() < 0.3:
        s.used |= {"H", "G"}
    inputs = given(s)
    s.known = [
        Term("name", (), (i.name,), i.dims if not i.whole else (), i.low, i.high, i.whole)
        for i in inputs
    ]
    s.varying = {each.name for each in inputs}
    s.batched = set(s.varying)
    s.options = options(s)
    statements(s)
    outputs(s)
    inputs = (*inputs, *left_out(s))
    if "@c" in s.used:
        inputs = (*inputs, Declared("c", ("e",), " along m", -1, 1, along="m"))
    head = Decl("layer", "Whole", (), inputs, tuple(s.params), ())
    rules = chunk_rules(s)
    body = (*requirements(s), *rules, *s.body)
    decl = replace(head, kind=s.one("layer", "layer", "block", "model"), body=body)
    decl = replace(decl, sizes=arguments(s, decl))
    known = {name for name, _ in decl.sizes}
    return decl, {n: v for n, _, v in s.options if n in known}, s


def given(s: Draft) -> tuple[Declared, ...]:
    """The inputs."""
    found = [Declared("x", ("d",), "", -2, 2)]
    if s.maybe(0.2):
        dims = s.order(set(s.rng.sample(sorted(s.used), s.rng.choice((1, 2)))))
        found.append(Declared("z", dims, "", -1, 1))
    if s.maybe(0.2):
        s.used.add("vocab")
        found.append(Declared("tokens", (), " in vocab", 0, 6, True))
    return tuple(found)


def left_out(s: Draft) -> tuple[Declared, ...]:
    """An input that may be left out, with the output that needs it."""
    if "optional inputs" in s.without or s.maybe(0.8):
        return ()
    if s.maybe(0.4):
        s.used |= {"d", "vocab"}
        target = Term("name", (), ("targets",), (), 0, 6, True)
        logits = Term("matmul", (s.known[0], s.param("d", "vocab", low=-1, high=1)), ("d",),
                      ("vocab",), -9, 9)  # fmt: skip
        s.body.append(Let(("more",), Term("nll", (logits, target), ("vocab",), ()), (), "output"))
        return (Declared("targets", (), " in vocab optional", 0, 6, True, optional=True),)
    r = Term("name", (), ("extra",), ("d",), -1, 1)
    made = elementwise(s.one("add", "mul"), elementwise(s.one("tanh", "sin"), r), s.draw(("d",), 1))
    s.body.append(Let(("more",), made, ("d",), "output"))
    return (Declared("extra", ("d",), " optional", -1, 1, optional=True),)


def options(s: Draft) -> list[tuple[str, str, object]]:
    """Options, each with its default as written and the value of the instance."""
    if "options" in s.without or s.maybe(0.6):
        return []
    every: list[tuple[str, str, object]] = [
        ("flag", "true", True), ("mode", '"a"', "a"), ("mode", '"a"', "b"), ("few", "none", None),
        ("count", "3", 3), ("count", "3", 4), ("flag", "false", False), ("flag", "false", True),
        ("full", "[0, 2]", (0, 2)), ("full", "[0, 2]", (1,)),
    ]  # fmt: skip
    return [s.rng.choice(every)]


def statements(s: Draft) -> None:
    """What the layer computes."""
    for _ in range(s.rng.choice((0, 1, 1, 2))):
        small(s)
    for _ in range(s.rng.choice((0, 1, 1, 1, 2))):
        ways = [(4, "recurrences", memories.recurrence), (3, "attends", attends.attend),
                (1, "routes", route), (1, "stacks", stack), (0.7, "tied", structures.tied),
                (0.5, "nested", structures.nested), (0.7, "sent", structures.sent),
                (0.4, "laws", structures.lawful), (0.5, "solved", attends.solved)]  # fmt: skip
        ways = [way for way in ways if way[1] not in s.without]
        s.rng.choices(ways, [way[0] for way in ways])[0][2](s)
        if s.maybe(0.4):
            small(s)


def small(s: Draft) -> None:
    """A named value, an integer, or the parts of one."""
    way = s.one("value", "value", "value", "whole", "split", "dead", "parts")
    dims = s.order(set(s.rng.sample(sorted(s.used & set("dHKVDG")), s.rng.choice((1, 1, 2)))))
    if {"H", "G"} <= set(dims):
        dims = ("H",)
    if way == "parts":
        parts(s)
    elif way == "whole":
        s.let(s.whole(frozenset(dims[:1]), 2), None, "i")
    elif way == "split":
        count, x = s.one("2", "3"), s.rng.choice([k for k in s.known if len(k.dims) == 1])
        dims = tuple(dim for dim in dims if dim != x.dims[0])
        w = s.param(*x.dims, *dims, count, low=-0.7, high=0.7)
        term = Term("matmul", (x, w), x.dims, (*dims, count), -5.0, 5.0)
        if s.maybe():
            term = elementwise(s.one("sigmoid", "tanh"), term)
        whole = s.let(term, None)
        s.known.remove(whole)
        names = tuple(s.fresh("u") for _ in range(int(count)))
        s.body.append(Let(names, whole))
        for each in names:
            s.known.append(Term("name", (), (each,), dims, term.low, term.high))
            for known in (s.varying, s.batched):
                if whole.data[0] in known:
                    known.add(each)
    else:
        made = s.let(s.draw(dims, 3), dims if s.maybe(0.7) else None)
        if way == "dead" and "dead values" not in s.without:
            s.known.remove(made)


def parts(s: Draft) -> None:
    """The entries of a dim in parts, each under a name and counted by dims of its own."""
    whole, dims = s.rng.choice((("K", (("J",), ("L",))), ("Q", (("H", "K"), ("V",)))))
    rest = () if whole == "Q" else s.order(set(s.rng.sample(sorted(s.used & set("dHVD")), 1)))
    s.used |= {whole, *(dim for part in dims for dim in part)}
    made = s.project(frozenset({*rest, whole})) or s.draw((*rest, whole), 1)
    value = s.let(made, (*rest, whole), "z")
    s.known.remove(value)
    names = tuple(s.fresh("u") for _ in dims)
    s.body.append(Let(names, value, None, "let", dims))
    for each, part in zip(names, dims, strict=True):
        s.known.append(Term("name", (), (each,), (*rest, *part), value.low, value.high))
        for known in (s.varying, s.batched):
            if value.data[0] in known:
                known.add(each)


def route(s: Draft) -> Term:
    """What the chosen of D experts make of a token."""
    s.used.add("D")
    x = s.known[0] if not s.known[0].whole else s.known[1]
    p = s.named("D", stem="p")
    if p.data[0] not in s.varying or s.maybe():
        p = s.let(
            Term("norm", (s.project(frozenset("D")) or p,), ("softmax", "D"), ("D",), 0, 1),
            ("D",),
            "p",
        )
    w = s.param("D", *x.dims, "V", low=-0.6, high=0.6)
    s.used.add("V")
    expert, text = s.fresh("e"), s.fresh("o")
    own = Term("expert", (Term("name", (), w.data, w.dims),), (expert,), w.dims[1:])
    body = Term("matmul", (x, own), x.dims, ("V",), -6, 6)
    if s.maybe():
        body = elementwise(s.one("tanh", "silu", "relu"), body)
    count = s.one("1", "2")
    terms: tuple[Term, ...] = (p,)
    head = f"route {expert} in top({count}, {{0}})"
    way = s.one("none", "normalised", "own")
    if way == "normalised" and p.low >= 0:
        terms, head = (p, Term("normalised", (p,), ("D",), ("D",), 0, 1)), head + " weight {1}"
    elif way == "own":
        terms, head = (p, elementwise("mul", p, number("2"))), head + " weight {1}"
    s.body.append(Block("route", head, (Let((text,), body),), ("D", count), terms))
    s.varying.add(text)
    s.known.append(Term("name", (), (text,), ("V",), -4, 4))
    return s.known[-1]


def stack(s: Draft) -> Term:
    """A value carried through passes, each with its own parameters or none."""
    dims = ("d",) if s.maybe(0.7) else s.order({"H", "K"})
    s.used |= set(dims)
    h = s.let(s.draw(dims, 1), dims, "h")
    if h.data[0] not in s.varying:
        token = s.reduce_to(s.known[0], s.known[0].dims) if not s.known[0].whole else s.known[0]
        h = s.let(elementwise("add", h, s.tame(token)), dims, "h")
    text, index = h.data[0], s.fresh("l")
    inner = replace(s, known=[k for k in s.known if k.data[0] != text], params=[], body=[])
    inner.count = s.count + 50
    carried = Term("name", (), (text,), dims, -4, 4)
    inner.known = [carried, *inner.known[:2]]
    layered = s.maybe(0.8)
    term = inner.draw(dims, 2)
    if layered and not inner.params:
        term = elementwise("mul", term, inner.param(dims[-1]))
    if not layered:
        term = elementwise("tanh", carried)
        inner.params, inner.body = [], []
    made = elementwise("add", carried, s.tame(term))
    if s.maybe(0.3):
        place = Term("name", (), (index,), (), 0, 2, True)
        made = elementwise("div", made, elementwise("add", place, number("1")))
        made = Term("div", made.args, (), carried.dims, -TOP, TOP)
    inner.params = [replace(p, inside=True) for p in inner.params]
    said = "\n".join(line for each in inner.body for line in each.lines()) + f" {made}"
    inner.params = [each for each in inner.params if mentions(said, each.name)]
    written = [Line(f"param {p}{p.after}") for p in inner.params]
    inner.body.append(Let((text,), made))
    count = s.one("1", "2", "3")
    s.count = inner.count + 1
    if not layered and "repeats in place" in s.without:
        return h
    s.params.extend(inner.params)
    data = (index, count, True, (text,))
    s.body.append(Block("repeat", f"repeat {count} as {index}", (*written, *inner.body), data))
    s.varying.add(text)
    return h


TOP = 40.0


def outputs(s: Draft) -> None:
    """What the layer gives."""
    last = [k for k in s.known[-4:] if not k.whole]
    dims = s.rng.choice((("d",), ("d",), last[-1].dims if last else ("d",)))
    term = s.draw(dims, 2)
    for value in last[-2:]:
        mixed = s.reduce_to(value, [dim for dim in value.dims if dim not in dims])
        term = elementwise("add", term, s.tame(mixed))
    x = s.known[0]
    if not s.depends(term):
        term = elementwise("add", term, s.reduce_to(x, [dim for dim in x.dims if dim not in dims]))
    s.body.append(Let(("y",), term, dims, "output"))
    more = [k for k in s.known if k.data[0] in s.batched and k.data[0] not in ("x", "z", "tokens")]
    if more and s.maybe(0.25):
        value = s.rng.choice(more)
        if not (value.whole and "whole outputs" in s.without):
            own = Term("name", (), value.data[:1], value.dims)
            s.body.append(Let((value.data[0],), own, value.dims, "output"))
    if "losses" not in s.without and s.maybe(0.08):
        y = Term("name", (), ("y",), dims)
        inner = s.reduction("mean", y, dims) if dims else y
        s.causal = False  # it is made from all tokens
        s.body.append(
            Let(("loss",), Term("reduce", (inner,), ("mean", "batch, t"), ()), (), "output")
        )


def chunk_rules(s: Draft) -> tuple[Statement, ...]:
    """How recurrences are computed, and promises that hold."""
    way, rules = s.one("none", "none", "size", "size", "sequential"), list(s.rules)
    if way == "size":
        rules.append(f"size {s.one('2', '3', '4', '5', '7', '16')}")
    if way == "sequential" and not rules and s.maybe(0.3):
        rules.append("sequential")
    gates = [k.data[0] for k in s.known if k.data[0][0] == "g" and k.low >= 0 and k.high <= 1]
    promises = ["x <= 2", "x >= -2", *(f"{g} <= 1" for g in gates), *(f"{g} >= 0" for g in gates)]
    if s.maybe(0.15) and "promises" not in s.without:
        rules += [f"bound {s.rng.choice(promises)}"]
    return (Line(f"chunk: {', '.join(rules)}"),) if rules else ()


def requirements(s: Draft) -> tuple[Statement, ...]:
    """Conditions that hold."""
    more = "require H * K > d // 2 or V > 0"
    texts = ("require K % 2 == 0", "require d >= 2", more, "require H % G == 0")
    every = [Line(text) for text in texts]
    found = [line for line in every if {w for w in line.text.split() if w in s.sizes} <= s.used]
    return (s.rng.choice(found),) if found and s.maybe(0.15) else ()


def arguments(s: Draft, decl: Decl) -> tuple[tuple[str, str], ...]:
    """The sizes that a layer mentions, some with defaults, and its options."""
    text = decl.text()
    found = []
    for name in HEADER:
        if mentions(text, name):
            default = str(s.sizes[name]) if s.maybe(0.25) or name in ("Z", "n", "length") else ""
            found.append((name, default))
    required = [each for each in found if not each[1]]
    optional = [each for each in found if each[1]]
    return (*required, *optional, *((n, d) for n, d, _ in s.options if mentions(text, n)))

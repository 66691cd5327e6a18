"""Expressions and statements of drawn programs, and how a spec writes them.

A `Term` knows what its op means to `meaning.py` and how a spec spells it: brackets stand where the
grammar needs them and nowhere else, so that precedence is tried too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Term:
    """An expression: an op of `PATTERNS`, its operands, names and numbers that the op needs, the
    dims of its value, and bounds on it that hold where inputs and parameters keep theirs."""

    op: str
    args: tuple[Term, ...] = ()
    data: tuple = ()
    dims: tuple[str, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def __str__(self) -> str:
        return render(self)[0]

    def walk(self) -> Iterator[Term]:
        """This term and all in it."""
        yield self
        for arg in self.args:
            yield from arg.walk()

    def live(self) -> Iterator[Term]:
        """The terms in it whose values it is made from: of a choice one, of a position none."""
        yield self
        args = (
            self.args if self.op != "choice" else self.args[:1] if self.data[1] else self.args[1:]
        )
        for arg in args if self.op != "position" else ():
            yield from arg.live()


UNARY = (
    *("exp", "exp2", "log", "sqrt", "rsqrt", "abs", "sign", "floor", "sin", "cos", "erf"),
    *("sigmoid", "logsigmoid", "softplus", "tanh", "relu", "detach"),
)
LIBRARY = ("silu", "gelu", "gelu_tanh", "elu", "squared_relu")
NORMS = ("l2norm", "rmsnorm", "layernorm", "softmax")

PATTERNS: dict[str, tuple[int, str]] = {
    "name": (10, "{d[0]}"),
    "number": (10, "{d[0]}"),
    "size": (10, "{d[0]}"),
    "sizeof": (10, "size({d[0]})"),
    "rounded": (10, "round_up({d[0]}, {d[1]})"),
    "choice": (0, "{0:1} if {d[0]} else {1:0}"),
    "or": (1, "{0:1} or {1:2}"),
    "and": (2, "{0:2} and {1:3}"),
    "not": (3, "not {0:3}"),
    **{
        name: (4, "{0:5} " + sign + " {1:5}")
        for name, sign in zip(
            ("lt", "le", "gt", "ge", "eq", "ne"), ("<", "<=", ">", ">=", "==", "!="), strict=True
        )
    },
    "between": (4, "{0:5} <= {1:5} < {2:5}"),
    "add": (5, "{0:5} + {1:6}"),
    "sub": (5, "{0:5} - {1:6}"),
    "mul": (6, "{0:6} * {1:7}"),
    "div": (6, "{0:6} / {1:7}"),
    "mod": (6, "{0:6} % {1:7}"),
    "floordiv": (6, "{0:6} // {1:7}"),
    "neg": (7, "-{0:7}"),
    "pow": (8, "{0:9} ** {1:7}"),
    **{name: (10, name + "({0:0})") for name in (*UNARY, *LIBRARY)},
    "max": (10, "max({0:0}, {1:0})"),
    "min": (10, "min({0:0}, {1:0})"),
    "where": (10, "where({0:0}, {1:0}, {2:0})"),
    "softcap": (10, "softcap({0:0}, {d[0]})"),
    "dropout": (10, "dropout({0:0}, {d[0]})"),
    "reduce": (10, "{d[0]}[{d[1]}]({0:0})"),
    "group": (10, "{d[0]}[{d[1]} in {d[2]}]({0:0})"),
    "norm": (10, "{d[0]}[{d[1]}]({0:0})"),
    "rope": (10, "{d[0]}[{d[1]}]({0:0}, {d[2]})"),
    "sinkhorn": (10, "sinkhorn({0:0}, {d[0]})"),
    "mixed": (6, "{0:6} @ {1:7}"),
    "nll": (10, "cross_entropy[{d[0]}]({0:0}, {1:0})"),
    "join": (10, "join[{d[0]}, {d[1]} as {d[2]}]({0:0}, {1:0})"),
    "split": (10, "split[{d[0]} as {d[1]}, {d[2]}]({0:0})"),
    "merge": (10, "merge[{d[0]}, {d[1]} as {d[2]}]({0:0})"),
    "index": (10, "index[{d[0]}]"),
    "position": (10, "position({0:0})"),
    "take": (10, "take[{d[0]}]({0:0}, {1:0})"),
    "window": (10, "window[{d[0]}]({0:0})"),
    "shortconv": (10, "shortconv({0:0}, {1:0})"),
    "shift": (10, "{0:10}[t-{d[0]}]"),
    "row": (10, "{0:10}[t]"),
    "lookup": (10, "{0:10}[{1:0}]"),
    "expert": (10, "{0:10}[{d[0]}]"),
    "matmul": (6, "{0:6} @ {1:7}"),
    "turned": (10, "{0:9}.T"),
    "function": (10, "{d[0]}"),
    "layer": (10, "{d[0]}"),
    "tied": (10, "{d[0]}"),
    # in the memory scope
    "state": (10, "{d[0]}[{d[1]}]"),
    "outer": (6, "{0:6} @ {1:9}.T"),
    "inner": (6, "{0:9}.T @ {1:7}"),
    "far": (10, "sum[{d[0]}](({0:5} - {1:6}) ** 2)"),
    "total": (10, "logsumexp({0:0})"),
    "mv": (6, "{0:6} @ {1:7}"),
    "tmv": (6, "{0:9}.T @ {1:7}"),
    "mm": (6, "{0:6} @ {1:7}"),
    "one_minus": (5, "I - {0:6}"),
    "one_plus": (5, "{d[0]} * I + {0:6}"),
    "diag": (10, "diag({0:0})"),
    "solve": (10, "solve({0:0}, {1:0}{d[0]})"),
    # in an attend
    "at": (10, "{0:10}[{d[0]}]"),
    "place": (10, "{d[0]}"),
    "softmax": (10, "softmax({0:0})"),
    "softmax_sink": (10, "softmax({0:0}, {1:0})"),
    "weigh": (6, "{0:6} @ {1:7}"),
    "along": (0, "{d[0]} r in (s, t]: {0:5}"),
    "of_reader": (10, "{0:10}[r]"),
    "solved": (5, "{0:5} - {1:7} * {2:7} @ {d[0]}[s]"),
    "through": (6, "{0:9}.T @ {1:9} @ {2:7}"),
    "chosen": (10, "top({d[0]}, {0:0})"),
    "chosen_blocks": (10, "top({d[0]}, {0:0}{d[2]})"),
    "normalised": (10, "normalised({0:0})"),
}
"""How tightly each op binds (10: not at all), and its text; `{0:7}`: the first operand, in
brackets if it binds less than 7."""


class _Operand:
    """An operand inside a pattern."""

    def __init__(self, term: Term):
        self.text, self.level = render(term)

    def __format__(self, wanted: str) -> str:
        return self.text if self.level >= int(wanted) else f"({self.text})"


def render(term: Term) -> tuple[str, int]:
    """The text of a term, and how tightly it binds."""
    level, pattern = PATTERNS[term.op]
    operands = [_Operand(arg) for arg in term.args]
    if term.op in ("function", "layer", "tied"):
        inner = ", ".join([*(format(each, "0") for each in operands), *term.data[2:]])
        return f"{term.data[0]}({inner})", 10
    text = pattern.format(*operands, d=term.data)
    return text, level


# --- statements ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Let:
    """`name[dims] = term`; dims may be left unwritten. Several names are a split `by` their
    number, or by `parts`, the dims of each. `kind` is "let", "output" or "state" (an update)."""

    names: tuple[str, ...]
    term: Term
    dims: tuple[str, ...] | None = None
    kind: str = "let"
    parts: tuple[tuple[str, ...], ...] = ()

    def lines(self) -> list[str]:
        if self.kind == "state":
            return [f"{self.names[0]}[t] = {self.term}"]
        shape = "" if self.dims is None else f"[{', '.join(self.dims)}]"
        by = f" by {self.shares()}" if len(self.names) > 1 else ""
        word = "output " if self.kind == "output" else ""
        if self.kind == "output" and (self.term.op, self.term.data) == ("name", self.names):
            return [f"output {self.names[0]}{shape if len(self.dims or ()) > 1 else ''}"]
        return [f"{word}{', '.join(name + shape for name in self.names)} = {self.term}{by}"]

    def shares(self) -> str:
        """What follows `by`."""
        if not self.parts:
            return str(len(self.names))
        lone = all(len(dims) == 1 for dims in self.parts)
        return ", ".join(", ".join(dims) if lone else f"[{', '.join(dims)}]" for dims in self.parts)


@dataclass(frozen=True)
class Block:
    """A compound statement: `head` as written, what `meaning.py` needs to know, and a body."""

    kind: str
    head: str
    body: tuple[Statement, ...]
    data: tuple = ()
    terms: tuple[Term, ...] = ()

    def lines(self) -> list[str]:
        head = self.head.format(*map(str, self.terms)) if self.terms else self.head
        return [f"{head}:", *indented(line for each in self.body for line in each.lines())]


@dataclass(frozen=True)
class Line:
    """A line without a meaning of its own: `require`, `chunk`, a comment."""

    text: str

    def lines(self) -> list[str]:
        return [self.text]


Statement = Let | Block | Line


@dataclass(frozen=True)
class Declared:
    """A parameter or input: its dims, what is written after it, and between what its values are."""

    name: str
    dims: tuple[str, ...]
    after: str = ""
    low: float = -1.0
    high: float = 1.0
    whole: bool = False
    along: str = "t"
    inside: bool = False  # of a `repeat`, which declares it
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(self.dims)}]" if self.dims else f"{self.name}[]"


@dataclass(frozen=True)
class Decl:
    """A layer or function: arguments with their defaults, inputs, parameters and statements."""

    kind: str
    name: str
    sizes: tuple[tuple[str, str], ...] = ()
    inputs: tuple[Declared, ...] = ()
    params: tuple[Declared, ...] = ()
    body: tuple[Statement, ...] = ()
    axes: tuple[str, ...] = ()
    result: Term | None = None

    @property
    def declares(self) -> tuple[str, ...]:
        """The names that a file has of it."""
        return (self.name,)

    def text(self) -> str:
        if self.kind == "function":
            args = [each.name for each in self.inputs] + [f"{n} = {d}" for n, d in self.sizes]
            axes = f"[{', '.join(self.axes)}]" if self.axes else ""
            body = [line for each in self.body for line in each.lines()]
            lines = [*body, f"return {self.result}"]
            return "\n".join(
                [f"function {self.name}{axes}({', '.join(args)}):", *indented(lines), ""]
            )
        body = [line for each in self.body for line in each.lines()]
        args = [f"{n} = {d}" if d else n for n, d in self.sizes]
        written = "\n".join(body)
        lines = [self._input(each) for each in self.inputs]
        lines += [
            f"param {each}{each.after}"
            for each in self.params
            if not each.inside and mentions(written, each.name)
        ]
        return "\n".join(
            [f"{self.kind} {self.name}({', '.join(args)}):", *indented([*lines, *body]), ""]
        )

    def _input(self, each: Declared) -> str:
        if each.whole:
            return f"input {each.name}{each.after}"
        return f"input {each}{each.after}"


@dataclass(frozen=True)
class Program:
    """A spec, the sizes of the instance that it is run with, and what may be asked of it."""

    decls: tuple[Decl, ...]
    sizes: dict[str, int]
    given: dict[str, object] = field(default_factory=dict)
    causal: bool = True
    seed: int = 0

    @property
    def main(self) -> Decl:
        return self.decls[-1]

    def text(self) -> str:
        return "\n".join(decl.text() for decl in self.decls)

    def decl(self, name: str) -> Decl:
        return next(decl for decl in self.decls if decl.name == name)

    def with_decl(self, place: int, decl: Decl) -> Program:
        """The program with one declaration replaced."""
        return replace(self, decls=(*self.decls[:place], decl, *self.decls[place + 1 :]))


def indented(lines: Iterator[str] | list[str]) -> list[str]:
    return ["    " + line for line in lines]


def _ends(char: str) -> bool:
    return not (char.isalnum() or char in "_'")


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name as a word of its own."""
    at = text.find(name)
    while at >= 0:
        before = text[at - 1] if at else " "
        after = text[at + len(name)] if at + len(name) < len(text) else " "
        if _ends(before) and _ends(after):
            return True
        at = text.find(name, at + 1)
    return False

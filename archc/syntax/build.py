"""Parse tree -> tree nodes: one small method for each rule of `grammar.lark`.

Children arrive built, together with every token, so that spans are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeVar

from lark import Token

from archc.diagnostics import Report
from archc.source import Source, Span
from archc.syntax import tree
from archc.syntax.habits import of_name
from archc.syntax.names import WORDS, canonical, operator, reserved

BATCH = "batch"
"""The implicit axis: reserved, but `mean[batch, t](loss)` may name it."""

MAX_DEPTH = 100
"""Deepest nesting of an expression; also bounds the length of `a + b + c + ...`."""

MAX_BLOCKS = 12
"""Deepest nesting of declarations, blocks, statements and what they declare."""

MAX_NAME = 60
"""Longest name, in characters."""

RANGES = ("all", "ending", "chain", "all ending", "all chain")
"""How the tokens that an `attend` reads are written."""

N = TypeVar("N", bound=tree.Node)
Kids = Sequence[Any]


class Builder:
    """Builds nodes of one source; token positions are relative to `base`."""

    def __init__(self, source: Source, base: int, report: Report):
        self.source, self.base, self.report = source, base, report
        self.depths: dict[int, int] = {}
        self.built: list[tree.Node] = []

    def build(self, rule: str, kids: Kids) -> Any:
        """The node of `rule`."""
        method: Callable[[Span, Kids], Any] = getattr(self, rule)
        node = method(self.span(kids), kids)
        if isinstance(node, tree.Node):
            self.measure(node, kids)
        return node

    def measure(self, node: tree.Node, kids: Kids) -> None:
        """Refuse what is nested too deeply for the recursion of later stages."""
        inside = isinstance(node, tree.Expr | tree.Argument)
        most, what = (MAX_DEPTH, "an expression is") if inside else (MAX_BLOCKS, "blocks are")
        nested = (kid for kid in kids if isinstance(kid, tree.Expr | tree.Argument) == inside)
        depth = 1 + max((self.depths.get(id(kid), 0) for kid in nested), default=0)
        if depth > most or (isinstance(node, tree.Compare) and len(kids) > most):
            raise self.report.error(
                "E0007",
                f"{what} nested deeper than {most}",
                node.span,
                helps=["give parts of it names of their own"] if inside else [],
            )
        self.depths[id(node)] = depth
        self.built.append(node)  # its id is its own only as long as it is there

    def span(self, kids: Kids) -> Span:
        """From the first to the last child that is text."""
        spans = [s for kid in kids if (s := self.place(kid))]
        if not spans:
            return Span(self.source, self.base, self.base)
        return Span(self.source, spans[0].start, max(s.end for s in spans))

    def place(self, kid: Any) -> Span | None:
        """The span of a child, if it has one."""
        if isinstance(kid, Token):
            if kid.type.startswith("_"):
                return None
            return Span(
                self.source, self.base + (kid.start_pos or 0), self.base + (kid.end_pos or 0)
            )
        if isinstance(kid, tuple) and kid and isinstance(kid[0], Span):
            return kid[0]
        return kid.span if isinstance(kid, tree.Node) else None

    # --- what children are ---

    def names(self, kids: Kids) -> tuple[str, ...]:
        """The names among the children, in ASCII, checked against reserved words."""
        return tuple(
            self.name_of(kid) for kid in kids if isinstance(kid, Token) and kid.type == "NAME"
        )

    def name_of(self, token: Token) -> str:
        """The ASCII spelling of a name; reserved ones are refused."""
        name = canonical(str(token))
        if len(name) > MAX_NAME:
            raise self.report.error(
                "E0016", f"a name of more than {MAX_NAME} characters", self.place(token)
            )
        if reserved(name):
            helps = ["`lam` is the usual spelling"] if name == "lambda" else of_name(name)
            if name[0] in "√∑∏":
                helps = [f"write `{WORDS[name[0]]}({name[1:]})`"]
            raise self.report.error(
                "E0015",
                f"`{name}` is a reserved name",
                self.place(token),
                "" if helps else "choose another",
                helps=helps,
            )
        return name

    @staticmethod
    def nodes(kids: Kids) -> tuple[Any, ...]:
        """The nodes among the children, of the kinds that the grammar allows there."""
        return tuple(kid for kid in kids if isinstance(kid, tree.Node))

    @staticmethod
    def each(kids: Kids, kind: type[N]) -> tuple[N, ...]:
        """The nodes of one kind among the children."""
        return tuple(kid for kid in kids if isinstance(kid, kind))

    @staticmethod
    def has(kids: Kids, word: str) -> bool:
        """Whether a token with this text is among the children."""
        return any(isinstance(kid, Token) and str(kid) == word for kid in kids)

    @classmethod
    def after(cls, kids: Kids, *words: str) -> Any:
        """The child right after the token with one of these texts, or None."""
        for token, kid in pairwise(kids):
            if isinstance(token, Token) and str(token) in words:
                return kid
        return None

    @classmethod
    def behind(cls, kids: Kids, word: str) -> tuple[Any, ...]:
        """The nodes behind a word; none where it does not stand."""
        words = [isinstance(kid, Token) and str(kid) == word for kid in kids]
        return cls.nodes(kids[words.index(True) :]) if True in words else ()

    def bracketed(self, kids: Kids) -> tuple[tree.Expr, ...] | None:
        """The expressions between `[` and `]`; None if there are no brackets."""
        if not self.has(kids, "["):
            return None
        texts = [str(kid) if isinstance(kid, Token) else "" for kid in kids]
        open, close = texts.index("["), texts.index("]")
        return self.nodes(kids[open:close])

    # --- declarations ---

    def start(self, span: Span, kids: Kids) -> list[tree.Node]:
        return list(self.nodes(kids))

    def import_stmt(self, span: Span, kids: Kids) -> tree.Import:
        path = next(str(k)[1:-1] for k in kids if isinstance(k, Token) and k.type == "STRING")
        return tree.Import(span, self.names(kids), path)

    def kind(self, span: Span, kids: Kids) -> str:
        return str(kids[0])

    def axis_args(self, span: Span, kids: Kids) -> tuple[Span, tuple[str, ...]]:
        return span, self.names(kids)

    def parameter(self, span: Span, kids: Kids) -> tree.Parameter:
        return tree.Parameter(
            span, self.names(kids[:1])[0], self.after(kids, "="), self.bracketed(kids)
        )

    def decl(self, span: Span, kids: Kids) -> tree.Decl:
        token = next(k for k in kids if isinstance(k, Token) and k.type == "NAME")
        axes = next((k[1] for k in kids if isinstance(k, tuple)), ())
        doc = next((str(k)[3:-3] for k in kids if isinstance(k, Token) and k.type == "DOC"), "")
        header = self.place(token)
        assert header is not None
        body = tuple(k for k in self.nodes(kids) if not isinstance(k, tree.Parameter))
        params = self.each(kids, tree.Parameter)
        return tree.Decl(span, kids[0], self.name_of(token), axes, params, doc, body, header)

    # --- statements ---

    def declared(self, span: Span, kids: Kids) -> tree.Declared:
        return tree.Declared(span, self.names(kids[:1])[0], self.bracketed(kids))

    def input(self, span: Span, kids: Kids) -> tree.Input:
        along = self.after(kids, "along")
        within = self.after(kids, "in", "∈")
        name = self.name_of(along) if along is not None else None
        names, optional = self.each(kids, tree.Declared), self.has(kids, "optional")
        return tree.Input(span, names, name, within, optional)

    def param_group(self, span: Span, kids: Kids) -> tree.ParamGroup:
        return tree.ParamGroup(span, self.each(kids, tree.Declared), self.after(kids, "="))

    def param(self, span: Span, kids: Kids) -> tree.Param:
        return tree.Param(span, self.each(kids, tree.ParamGroup))

    def target(self, span: Span, kids: Kids) -> tree.Target:
        return tree.Target(span, self.names(kids[:1])[0], self.bracketed(kids))

    def assign(self, span: Span, kids: Kids) -> tree.Assign:
        targets = self.each(kids, tree.Target)
        return tree.Assign(span, targets, self.after(kids, "="), self.behind(kids, "by"))

    def output(self, span: Span, kids: Kids) -> tree.Output:
        return tree.Output(span, self.each(kids, tree.Target)[0], self.after(kids, "="))

    def require(self, span: Span, kids: Kids) -> tree.Require:
        return tree.Require(span, kids[1])

    def return_stmt(self, span: Span, kids: Kids) -> tree.Return:
        return tree.Return(span, kids[1])

    def chunk_rule(self, span: Span, kids: Kids) -> tree.Rule:
        return tree.Rule(span, self.names(kids[:1])[0], self.nodes(kids))

    def chunk(self, span: Span, kids: Kids) -> tree.Chunk:
        return tree.Chunk(span, self.each(kids, tree.Rule))

    def state(self, span: Span, kids: Kids) -> tree.StateDecl:
        axes = self.bracketed(kids) or ()
        return tree.StateDecl(span, self.names(kids[:1])[0], axes, self.after(kids, "="))

    def over(self, span: Span, kids: Kids) -> tuple[Span, str, tuple[str, ...]]:
        return span, "over", self.names(kids)

    def grouped(self, span: Span, kids: Kids) -> tuple[Span, str, tuple[str, ...]]:
        return span, "grouped", self.names(kids)

    def chosen(self, span: Span, kids: Kids) -> tuple[Span, str, tree.Expr]:
        return span, "chosen", kids[1]

    @staticmethod
    def option(kids: Kids, word: str) -> Any:
        """The part of a header introduced by a word, or None."""
        return next((k[2] for k in kids if isinstance(k, tuple) and k[1] == word), None)

    def heads(self, kids: Kids) -> dict[str, Any]:
        """`over` and `grouped` of a block's header."""
        group = self.option(kids, "grouped")
        return {"over": self.option(kids, "over") or (), "grouped": group[0] if group else None}

    def recurrence(self, span: Span, kids: Kids) -> tree.Recurrence:
        states = self.each(kids, tree.StateDecl)
        body = tuple(k for k in self.nodes(kids) if k not in states)
        return tree.Recurrence(span, states, body=body, **self.heads(kids))

    def all_range(self, span: Span, kids: Kids) -> tuple[Span, str, tree.Expr]:
        token = kids[1]
        place = self.place(token)
        assert place is not None
        return span, "all", tree.Name(place, self.name_of(token))

    def both_ways(self, span: Span, kids: Kids) -> tuple[Span, str, tree.Expr]:
        _, kind, range = next(k for k in kids if isinstance(k, tuple))
        return span, f"all {kind}", range

    def ending_range(self, span: Span, kids: Kids) -> tuple[Span, str, tree.Expr]:
        place = self.place(kids[0])
        assert place is not None
        first = tree.Name(place, self.name_of(kids[0]))
        return span, "ending", tree.Compare(span, (first, kids[3]), (operator(str(kids[2])),))

    def chain_range(self, span: Span, kids: Kids) -> tuple[Span, str, tree.Expr]:
        return span, "chain", self.compare(span, kids)

    def attend(self, span: Span, kids: Kids) -> tree.Attend:
        range = next(k for k in kids if isinstance(k, tuple) and k[1] in RANGES)
        words = range[1].split()
        body = self.nodes(kids)
        return tree.Attend(
            span,
            str(kids[0]),
            range[2],
            words == ["all"],
            "ending" in words,
            "all" in words,
            self.option(kids, "chosen"),
            body=body,
            **self.heads(kids),
        )

    def blocks(self, span: Span, kids: Kids) -> tree.Blocks:
        size, stride, *body = self.nodes(kids)
        return tree.Blocks(span, self.names(kids)[0], size, stride, tuple(body))

    def route(self, span: Span, kids: Kids) -> tree.Route:
        chosen, *body = self.nodes(kids)
        weight = self.after(kids, "weight")
        rest = body[1:] if weight is not None else body
        return tree.Route(span, self.names(kids)[0], chosen, weight, tuple(rest))

    def repeat(self, span: Span, kids: Kids) -> tree.Repeat:
        count, *body = self.nodes(kids)
        return tree.Repeat(span, count, self.names(kids)[0], tuple(body))

    # --- expressions ---

    def name(self, span: Span, kids: Kids) -> tree.Name:
        if str(kids[0]) == BATCH:
            return tree.Name(span, BATCH)
        return tree.Name(span, self.name_of(kids[0]))

    def number(self, span: Span, kids: Kids) -> tree.Number:
        text = str(kids[0])
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > 40 or len(exponent.lstrip("+-")) > 3:
            raise self.report.error("E0016", "a number with too many digits", span)
        return tree.Number(span, text)

    def text(self, span: Span, kids: Kids) -> tree.Text:
        return tree.Text(span, str(kids[0])[1:-1])

    def list(self, span: Span, kids: Kids) -> tree.ListOf:
        return tree.ListOf(span, self.nodes(kids))

    def paren(self, span: Span, kids: Kids) -> tree.Expr:
        return replace(kids[1], span=span)

    def call(self, span: Span, kids: Kids) -> tree.Call:
        return tree.Call(span, kids[0], self.each(kids, tree.Argument))

    def argument(self, span: Span, kids: Kids) -> tree.Argument:
        named = self.has(kids[:2], "=")
        return tree.Argument(span, self.name_of(kids[0]) if named else None, kids[-1])

    def index(self, span: Span, kids: Kids) -> tree.Index:
        into = self.behind(kids, "as")
        items = self.nodes(kids[1:])
        return tree.Index(span, kids[0], items[: len(items) - len(into)], into)

    def transpose(self, span: Span, kids: Kids) -> tree.Transpose:
        return tree.Transpose(span, kids[0])

    def neg(self, span: Span, kids: Kids) -> tree.Unary:
        return tree.Unary(span, "-", kids[1])

    def not_(self, span: Span, kids: Kids) -> tree.Unary:
        return tree.Unary(span, "not", kids[1])

    def binary(self, span: Span, kids: Kids) -> tree.Binary:
        return tree.Binary(span, operator(str(kids[1])), kids[0], kids[2])

    or_ = and_ = add = mul = pow = binary

    def compare(self, span: Span, kids: Kids) -> tree.Compare:
        ops = tuple(operator(str(k)) for k in kids if isinstance(k, Token))
        return tree.Compare(span, self.nodes(kids), ops)

    def choice(self, span: Span, kids: Kids) -> tree.Choice:
        return tree.Choice(span, kids[0], kids[2], kids[4])

    def along(self, span: Span, kids: Kids) -> tree.Along:
        kind, index = self.names(kids[:2])
        low, high, body = self.nodes(kids)
        if kind not in ("sum", "product"):
            raise self.report.error(
                "E0017", f"`{kind} {index} in ...` is not known", span, "`sum` or `product` is"
            )
        return tree.Along(span, kind, index, low, high, body)

    def first_last(self, span: Span, kids: Kids) -> tuple[Span, str, Any]:
        return span, "first", self.after(kids, "last")

    def last_only(self, span: Span, kids: Kids) -> tuple[Span, str, Any]:
        return span, "last", self.after(kids, "last")

    def on_blocks(self, span: Span, kids: Kids) -> tree.OnBlocks:
        value, size = self.nodes(kids)
        always = next((k for k in kids if isinstance(k, tuple)), None)
        first = always is not None and always[1] == "first"
        return tree.OnBlocks(span, value, size, first, always[2] if always else None)

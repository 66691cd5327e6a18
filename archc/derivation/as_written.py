"""Statements of a spec as formulas: what is written there, set as a paper would print it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from archc.derivation.formula import FUNCTIONS, RELATIONS
from archc.derivation.known_names import Names, of_attend, of_layer, of_recurrence, statements
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    NEGATIVE,
    PLUS,
    TIMES,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Power,
    Root,
    Sign,
    Sum,
    Words,
    function,
    listed,
    named,
    row,
    transposed,
)
from archc.derivation.page import Formula
from archc.functions.definitions import FUNCTIONS as ELEMENTWISE
from archc.ir.graph import Graph, Node
from archc.source import Span
from archc.syntax import tree
from archc.syntax.parse import parse
from archc.verify.study import Study

BECOMES = Sign("←")
WRITTEN = {**{ELEMENTWISE[fn].symbol: sign for fn, sign in RELATIONS.items()}, "in": "∈"}
"""Signs by how comparisons are written in a spec."""
OVER_TOKENS = ("softmax", "logsumexp")
"""Functions over the tokens read, whose index is written behind their names."""
BIG = {"sum": "∑", "product": "∏", "prod": "∏", "max": "max", "min": "min"}
SAID = {**FUNCTIONS, "diag": "Diag"}
LOOSE, SUM, PRODUCT, TIGHT = range(4)
"""How strongly the parts of a formula hold together: what is looser than its place has brackets."""


def formulas(study: Study) -> Iterator[Formula]:
    """The statements of a recurrence, a formula each; updates of states are called so."""
    written = _block(study.node, tree.Recurrence)
    if written is not None:
        yield from Typeset(of_recurrence(study, written)).statements(written.body)


def attended(graph: Graph, node: Node) -> Iterator[Formula]:
    """The statements of an attend of a layer as it was elaborated, a formula each."""
    written = _block(node, tree.Attend)
    if written is not None:
        names = of_attend(graph, node, written)
        yield from Typeset(names, written).statements(written.body)


def declared(header: Span, graph: Graph) -> Iterator[Formula]:
    """The statements of a layer that is algebra alone, and is computed in a graph."""
    found = (each for each in parse(header.source).decls if each.header.start == header.start)
    for decl in found:
        yield from Typeset(of_layer(decl, graph)).statements(decl.body)


Block = TypeVar("Block", tree.Recurrence, tree.Attend)


def _block(node: Node, kind: type[Block]) -> Block | None:
    """The statement of the spec that a node comes from."""
    if node.span is None:
        return None
    bodies = (stmt for decl in parse(node.span.source).decls for stmt in statements(decl.body))
    found = (each for each in bodies if isinstance(each, kind))
    return next((each for each in found if each.span.start == node.span.start), None)


class Typeset:
    """Formulas of one block. A letter of a token has the token as a subscript; a product with a
    number stands side by side, as a product of matrices does, and that of elements has a sign. Of
    an attend, a product with weights is a sum over what `range` says is read."""

    def __init__(self, names: Names, attend: tree.Attend | None = None) -> None:
        self.names, self.attend = names, attend

    # --- statements ---

    def statements(self, body: Iterable[tree.Stmt], note: str = "") -> Iterator[Formula]:
        """A formula for every assignment; those of a `repeat` say what they are repeated for."""
        for stmt in body:
            if isinstance(stmt, tree.Assign):
                names = {target.name for target in stmt.targets}
                again = names - self.names.states if note else set[str]()
                targets = listed(self._target(target) for target in stmt.targets)
                relation = BECOMES if again else EQUALS
                math = row(targets, relation, self.formula(stmt.value))
                yield Formula(math, note or (self._made() if names & self.names.states else ""))
            elif isinstance(stmt, tree.Output) and stmt.value is not None:
                yield Formula(row(named(stmt.target.name), EQUALS, self.formula(stmt.value)))
            elif isinstance(stmt, tree.Repeat):
                count = " ".join(stmt.count.span.text.split())
                each = f"for each {stmt.index} of {count}"
                yield from self.statements(stmt.body, f"{note}, {each}" if note else each)

    def _made(self) -> str:
        """How a value is made from itself."""
        return "update" if self.attend is None else "from its own earlier tokens"

    # --- names ---

    def _target(self, target: tree.Target) -> Math:
        """The left side of an assignment: a token in brackets is written, dims only say shapes."""
        items = target.items or ()
        return self._indexed(target.name, [i for i in items if _position(i) in self.names.tokens])

    def _indexed(self, name: str, items: Iterable[tree.Expr]) -> Math:
        """A name with its tokens, unless an index says others, and its other indices."""
        own, more = list(self.names.at.get(name, ())), list[str]()
        for item in items:
            text, token = "".join(item.span.text.split()), _position(item)
            if own and token in self.names.tokens:
                own[0 if token == self.names.tokens[0] else -1] = text
            else:
                more.append(text)
        return named(name, *own, *more)

    # --- expressions ---

    def formula(self, expr: tree.Expr, place: int = LOOSE) -> Math:
        """An expression, in brackets where it is looser than its place."""
        match expr:
            case tree.Binary():
                return self._binary(expr, place)
            case tree.Unary(_, op, arg):
                sign = NEGATIVE if op == "-" else Words(f"{op} ")
                return _closed(row(sign, self.formula(arg, PRODUCT)), place > SUM)
            case tree.Call(_, func, args):
                return self._call(func, args, place)
            case tree.Transpose(_, arg):
                return transposed(self.formula(arg, TIGHT))
            case tree.Compare(_, terms, ops):
                return _closed(self._compared(terms, ops), place > LOOSE)
            case tree.Choice(_, then, condition, orelse):
                parts = (self.formula(each) for each in (then, condition, orelse))
                first, when, other = parts
                math = row(first, Words(" if "), when, Words(" else "), other)
                return _closed(math, place > LOOSE)
            case tree.Along(_, kind, index, low, high, body):
                within = Fence(listed(map(self.formula, (low, high))), "(", "]")
                big = Sum(BIG.get(kind, kind), row(named(index), Sign("∈"), within))
                return _closed(row(big, self.formula(body, PRODUCT)), place > SUM)
            case _:
                return self._atom(expr)

    def _atom(self, expr: tree.Expr) -> Math:
        match expr:
            case tree.Name(_, "inf"):
                return Name("∞")
            case tree.Name(_, name):
                return self._indexed(name, ())
            case tree.Number(_, text):
                return _number(text)
            case tree.Index(_, tree.Name(_, name), items) if not expr.into:
                return self._indexed(name, items)
            case tree.Index(_, base):
                inside = expr.span.text[base.span.end - expr.span.start :].strip()
                return row(self.formula(base, TIGHT), Words(" ".join(inside.split())))
            case tree.ListOf(_, items):
                return Fence(listed(map(self.formula, items)), "[", "]")
            case _:
                return Words(" ".join(expr.span.text.split()))

    def _binary(self, expr: tree.Binary, place: int) -> Math:
        op, left, right = expr.op, expr.left, expr.right
        if op == "/":
            return Fraction(self.formula(left), self.formula(right))
        if op == "**":
            return Power(self.formula(left, TIGHT), self.formula(right))
        if op in "+-":
            parts = self.formula(left, SUM), self.formula(right, SUM if op == "+" else PRODUCT)
            math = row(parts[0], PLUS if op == "+" else MINUS, parts[1])
            return _closed(math, place > SUM)
        if op not in "*@":
            math = row(self.formula(left, TIGHT), Words(f" {op} "), self.formula(right, TIGHT))
            return _closed(math, place > LOOSE)
        if op == "@" and self._sums_tokens(expr):
            big = Sum(BIG["sum"], self._read())
            return _closed(row(big, self._product(op, left, right)), place > SUM)
        return _closed(self._product(op, left, right), place > PRODUCT)

    def _product(self, op: str, left: tree.Expr, right: tree.Expr) -> Math:
        """Factors; a product of elements in a product of matrices, and the other way round, has
        brackets, as one is not the other."""
        signed = self._signed(op, left, right)
        parts: list[Math] = []
        for number, part in enumerate((left, right)):
            math = self.formula(part, PRODUCT)
            if isinstance(part, tree.Binary) and part.op in ("*", "@"):
                other = self._signed(part.op, part.left, part.right) != signed
                math = _closed(math, number == 1 or (other and not self.is_number(part)))
            parts.append(math)
        return row(parts[0], TIMES if signed else None, parts[1])

    def _signed(self, op: str, left: tree.Expr, right: tree.Expr) -> bool:
        """Whether a product is one of elements, none of which is a single number."""
        return op == "*" and not self.is_number(left) and not self.is_number(right)

    # --- over the tokens read ---

    def _sums_tokens(self, expr: tree.Binary) -> bool:
        """Whether a product is one with weights, which leaves no token read."""
        found = self.names.types.get((expr.span.start, expr.span.end))
        both = self._of_pair(expr.left) and self._of_pair(expr.right)
        right = expr.right.base.span.text if isinstance(expr.right, tree.Index) else ""
        if found is None or right in self.names.states:
            return both and self.is_number(expr.left)
        return both and self.names.read not in found.names

    def _of_pair(self, expr: tree.Expr) -> bool:
        """Whether an expression depends on the token read."""
        match expr:
            case tree.Name(_, name):
                return self.names.read in self.names.at.get(name, ())
            case tree.Index(_, tree.Name(), items) if any(map(_position, items)):
                return self.names.read in map(_position, items)
        found = self.names.types.get((expr.span.start, expr.span.end))
        if found is not None:
            return self.names.read in found.names
        match expr:
            case tree.Transpose(_, arg) | tree.Unary(_, _, arg):
                return self._of_pair(arg)
            case tree.Binary(_, _, left, right):
                return self._of_pair(left) or self._of_pair(right)
            case tree.Call(_, _, args):
                return any(self._of_pair(arg.value) for arg in args)
            case _:
                return False

    def _read(self) -> Math:
        """The tokens that are read: `s <= t`, and those of a choice."""
        attend = self.attend
        assert attend is not None, "an attend reads tokens"
        range = row(Words("end of ") if attend.ending else None, self.formula(attend.range))
        if attend.chosen is None:
            return range
        return listed([range, row(named(self.names.read), Sign("∈"), self.formula(attend.chosen))])

    # --- functions ---

    def _reduced(self, func: tree.Index, arg: tree.Expr, place: int) -> Math:
        """`sum[K](x)`, `sum[s](p)`."""
        over = [" ".join(item.span.text.split()) for item in func.items]
        below = self._read() if over == [self.names.read] else Words(", ".join(over))
        big = Sum(BIG[func.base.span.text], below)
        return _closed(row(big, self.formula(arg, PRODUCT)), place > SUM)

    def _call(self, func: tree.Expr, args: tuple[tree.Argument, ...], place: int) -> Math:
        if isinstance(func, tree.Index) and func.base.span.text in BIG and len(args) == 1:
            return self._reduced(func, args[0].value, place)
        inner = [self.formula(arg.value) for arg in args]
        if isinstance(func, tree.Name) and len(inner) == 1:
            if func.id == "sqrt":
                return Root(inner[0])
            if func.id == "abs":
                return Fence(inner[0], "|", "|")
        given = [
            math if arg.name is None else row(Words(arg.name), EQUALS, math)
            for arg, math in zip(args, inner, strict=True)
        ]
        if isinstance(func, tree.Name) and func.id in OVER_TOKENS and self.names.read:
            math = row(Name(func.id, (self.names.read,)), Fence(listed(given)))
            return _closed(math, place == TIGHT)
        if isinstance(func, tree.Name):
            return _closed(function(SAID.get(func.id, func.id), *given), place == TIGHT)
        words = Words(" ".join(func.span.text.split()))
        return row(words, Fence(listed(given)))

    def _compared(self, terms: tuple[tree.Expr, ...], ops: tuple[str, ...]) -> Math:
        parts = [self.formula(terms[0], SUM)]
        for op, term in zip(ops, terms[1:], strict=True):
            parts += [Sign(WRITTEN[op]), self.formula(term, SUM)]
        return row(*parts)

    # --- what is a number ---

    def is_number(self, expr: tree.Expr) -> bool:
        """Whether an expression is one number for each token and head."""
        match expr:
            case tree.Number():
                return True
            case tree.Name(_, name):
                return name != "I" and not self.names.dims.get(name)
            case tree.Index(_, tree.Name(_, name), items):
                other = sum(_position(item) not in self.names.tokens for item in items)
                return self.names.dims.get(name, 0) == other
            case tree.Unary(_, _, arg) | tree.Transpose(_, arg):
                return self.is_number(arg)
            case tree.Binary(_, op, left, right) if op != "@":
                return self.is_number(left) and self.is_number(right)
            case tree.Call(span, _, args) if (span.start, span.end) not in self.names.types:
                return all(self.is_number(arg.value) for arg in args)
            case _:
                return self.names.number(expr.span)


def _position(item: tree.Expr) -> str | None:
    """The name that an index starts from: `t` of `t - 1`."""
    while isinstance(item, tree.Binary):
        item = item.left
    return item.id if isinstance(item, tree.Name) else None


def _closed(math: Math, closed: bool) -> Math:
    return Fence(math) if closed else math


def _number(text: str) -> Math:
    """`1e-6` as a power of ten."""
    digits, e, exponent = text.lower().partition("e")
    if not e:
        return Number(text)
    sign = NEGATIVE if exponent.startswith("-") else None
    ten = Power(Number("10"), row(sign, Number(exponent.lstrip("+-").lstrip("0") or "0")))
    return ten if float(digits) == 1 else row(Number(digits), Sign("·"), ten)

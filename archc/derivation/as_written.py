"""Statements of a spec as formulas: what is written there, set as a paper would print it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from archc.derivation.formula import FUNCTIONS
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
    named,
    row,
    transposed,
)
from archc.derivation.page import Formula
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.syntax import tree
from archc.syntax.parse import parse
from archc.verify.study import Study

COMMA, BECOMES = Sign(",", tight=True), Sign("←")
RELATIONS = {
    "<=": "≤", ">=": "≥", "!=": "≠", "==": "=", "in": "∈", "<": "<", ">": ">", "∈": "∈",
}  # fmt: skip
BIG = {"sum": "∑", "product": "∏", "max": "max", "min": "min"}
SAID = {**FUNCTIONS, "diag": "Diag"}
LOOSE, SUM, PRODUCT, TIGHT = range(4)
"""How strongly the parts of a formula hold together: what is looser than its place has brackets."""


def formulas(study: Study) -> Iterator[Formula]:
    """The statements of a recurrence, a formula each; updates of states are called so."""
    written = _recurrence(study)
    if written is not None:
        yield from Typeset(study, written).statements(written.body)


def _recurrence(study: Study) -> tree.Recurrence | None:
    """The statement of the spec that a recurrence comes from."""
    span = study.node.span
    if span is None:
        return None
    bodies = (stmt for decl in parse(span.source).decls for stmt in _all(decl.body))
    found = (each for each in bodies if isinstance(each, tree.Recurrence))
    return next((each for each in found if each.span.start == span.start), None)


def _all(body: Iterable[tree.Stmt]) -> Iterator[tree.Stmt]:
    """Statements, and those inside them."""
    for stmt in body:
        yield stmt
        if isinstance(stmt, tree.Recurrence | tree.Attend | tree.Blocks | tree.Route | tree.Repeat):
            yield from _all(stmt.body)


class Typeset:
    """Formulas of one recurrence. A letter of a token has the token as a subscript; a product with
    a number stands side by side, as a product of matrices does, and that of elements has a sign."""

    def __init__(self, study: Study, written: tree.Recurrence) -> None:
        self.study, self.token = study, study.recurrence.stream.name
        self.states = {state.name for state in written.states}
        assigned = (each for each in _all(written.body) if isinstance(each, tree.Assign))
        self.local = {target.name for each in assigned for target in each.targets}
        body = study.recurrence.body
        self.types = {node.name: node.type for node in body if node.name is not None}
        self.types |= {name: study.graph[id].type for name, id in study.captured.items()}
        self.spans = {(n.span.start, n.span.end): n.type for n in body if n.span is not None}

    # --- statements ---

    def statements(self, body: Iterable[tree.Stmt], note: str = "") -> Iterator[Formula]:
        """A formula for every assignment; those of a `repeat` say what they are repeated for."""
        for stmt in body:
            if isinstance(stmt, tree.Assign):
                names = {target.name for target in stmt.targets}
                again = names - self.states if note else set[str]()
                targets = _listed(self._target(target) for target in stmt.targets)
                relation = BECOMES if again else EQUALS
                math = row(targets, relation, self.formula(stmt.value))
                yield Formula(math, note or ("update" if names & self.states else ""))
            elif isinstance(stmt, tree.Repeat):
                count = " ".join(stmt.count.span.text.split())
                each = f"for each {stmt.index} of {count}"
                yield from self.statements(stmt.body, f"{note}, {each}" if note else each)

    def _target(self, target: tree.Target) -> Math:
        return self._indexed(target.name, target.items or ())

    # --- names ---

    def _indexed(self, name: str, items: Iterable[tree.Expr]) -> Math:
        """A name with its token, unless an index says another, and its other indices."""
        subs = ["".join(item.span.text.split()) for item in items]
        own = any(_position(item) == self.token for item in items)
        return named(name, *([self.token] if not own and self._of_tokens(name) else []), *subs)

    def _of_tokens(self, name: str) -> bool:
        """Whether every token has a value of its own under a name."""
        if name in self.local or name in self.states:
            return True
        stream = self.study.recurrence.stream.name
        if name in self.study.captured:
            return stream in self._outside(name)
        body = self.study.recurrence.body
        todo = [node.id for node in body if node.name == name]
        while todo:
            node = body[todo.pop()]
            if isinstance(node.op, ir.Input) and stream in self._outside(node.op.name):
                return True
            todo += node.operands
        return False

    def _outside(self, name: str) -> tuple[str, ...]:
        """The axes of a captured value where it is made."""
        id = self.study.captured.get(name)
        return self.study.graph[id].type.names if id is not None else ()

    # --- expressions ---

    def formula(self, expr: tree.Expr, place: int = LOOSE) -> Math:
        """An expression, in brackets where it is looser than its place."""
        match expr:
            case tree.Binary(_, op, left, right):
                return self._binary(op, left, right, place)
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
                within = Fence(_listed(map(self.formula, (low, high))), "(", "]")
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
                return Fence(_listed(map(self.formula, items)), "[", "]")
            case _:
                return Words(" ".join(expr.span.text.split()))

    def _binary(self, op: str, left: tree.Expr, right: tree.Expr, place: int) -> Math:
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

    def _call(self, func: tree.Expr, args: tuple[tree.Argument, ...], place: int) -> Math:
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
        if isinstance(func, tree.Name):
            return _closed(function(SAID.get(func.id, func.id), *given), place == TIGHT)
        words = Words(" ".join(func.span.text.split()))
        return row(words, Fence(_listed(given)))

    def _compared(self, terms: tuple[tree.Expr, ...], ops: tuple[str, ...]) -> Math:
        parts = [self.formula(terms[0], SUM)]
        for op, term in zip(ops, terms[1:], strict=True):
            parts += [Sign(RELATIONS.get(op, op)), self.formula(term, SUM)]
        return row(*parts)

    # --- what is a number ---

    def is_number(self, expr: tree.Expr) -> bool:
        """Whether an expression is one number for each token and head."""
        match expr:
            case tree.Number():
                return True
            case tree.Name(_, name):
                return name != "I" and self._axes(self.types.get(name)) == 0
            case tree.Index(_, tree.Name(_, name), items):
                other = sum(_position(item) != self.token for item in items)
                return self._axes(self._state(name)) == other
            case tree.Unary(_, _, arg) | tree.Transpose(_, arg):
                return self.is_number(arg)
            case tree.Binary(_, op, left, right) if op != "@":
                return self.is_number(left) and self.is_number(right)
            case _:
                found = self.spans.get((expr.span.start, expr.span.end))
                if found is None and isinstance(expr, tree.Call):
                    return all(self.is_number(arg.value) for arg in expr.args)
                return found is not None and self._axes(found) == 0

    def _state(self, name: str) -> Type | tuple[str, ...] | None:
        states = {state.name: state.axes for state in self.study.recurrence.states}
        if name in states:
            return tuple(axis.name for axis in states[name] if axis.kind == "dim")
        return self.types.get(name)

    def _axes(self, type: Type | tuple[str, ...] | None) -> int:
        """How many axes a value has in a token and a head; a name of no value is a size."""
        if type is None:
            return 0
        if isinstance(type, Type):
            type = tuple(axis.name for axis in type.axes if axis.kind == "dim")
        return len(set(type) - set(self.study.recurrence.heads))


def _position(item: tree.Expr) -> str | None:
    """The name that an index starts from: `t` of `t - 1`."""
    while isinstance(item, tree.Binary):
        item = item.left
    return item.id if isinstance(item, tree.Name) else None


def _closed(math: Math, closed: bool) -> Math:
    return Fence(math) if closed else math


def _listed(parts: Iterable[Math]) -> Math:
    """Parts with commas between them."""
    listed: list[Math] = []
    for part in parts:
        listed += [COMMA, Words(" "), part] if listed else [part]
    return row(*listed)


def _number(text: str) -> Math:
    """`1e-6` as a power of ten."""
    digits, e, exponent = text.lower().partition("e")
    if not e:
        return Number(text)
    sign = NEGATIVE if exponent.startswith("-") else None
    ten = Power(Number("10"), row(sign, Number(exponent.lstrip("+-").lstrip("0") or "0")))
    return ten if float(digits) == 1 else row(Number(digits), Sign("·"), ten)

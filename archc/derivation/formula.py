"""Normal forms as formulas with the spec's own names: matrices and vectors, not named axes."""

from __future__ import annotations

from collections.abc import Sequence

import sympy

from archc.derivation.letters import Letters
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
    Row,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
    transposed,
)
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.value_names import gate_of, state_of
from archc.recurrence.affine import form as nf
from archc.recurrence.affine.atoms import Atom, Table
from archc.verify.study import Study

RELATIONS = {"eq": "=", "ne": "≠", "lt": "<", "le": "≤", "gt": ">", "ge": "≥"}
FUNCTIONS = {"sigmoid": "σ", "logsigmoid": "log σ"}


class Formulas:
    """Formulas of one normal form. `at` is the subscript of values: a token t, or a row i."""

    def __init__(self, study: Study, form: nf.NormalForm, at: str = "t") -> None:
        self.study, self.form, self.table, self.at = study, form, Table(form.atoms), at
        sides = form.forms if form.links is None else (form.links,)
        self.vector = {axis.name for each in sides for axis in (*each.key, *each.value)}
        self.letter = Letters(study).of("r")
        stream = study.recurrence.stream.name
        self.steady = {
            name for name, id in study.captured.items()
            if stream not in study.graph[id].type.names
        }  # fmt: skip

    def moved(self, at: str) -> Formulas:
        """The same for another subscript."""
        return Formulas(self.study, self.form, at)

    # --- values ---

    def value(self, expr: sympy.Expr) -> Math:
        """A polynomial over values."""
        parts: list[Math] = []
        for term in self._ordered(sympy.Add.make_args(expr)):
            negative = self.table.is_negative(term)
            if parts or negative:
                parts.append((MINUS if parts else NEGATIVE) if negative else PLUS)
            parts.append(self._product(-term if negative else term))
        return row(*parts)

    def factor(self, expr: sympy.Expr) -> Math | None:
        """A value before another; None for 1."""
        if expr == 1:
            return None
        found = self.value(expr)
        return Fence(found) if isinstance(expr, sympy.Add) else found

    def _ordered(self, terms: Sequence[sympy.Expr]) -> list[sympy.Expr]:
        return sorted(terms, key=lambda term: (self.table.is_negative(term), self.table.text(term)))

    def is_vector(self, symbol: sympy.Symbol) -> bool:
        """Whether a value has an axis of the state's matrix."""
        return bool(set(self.table.atoms[symbol].names) & self.vector)

    def _product(self, term: sympy.Expr) -> Math:
        number, factors = self.table.split(term)
        order = sorted(factors, key=lambda s: (self.is_vector(s), s.name))
        above: list[Math] = [] if number == 1 and order else [self._number(number)]
        wide = False
        for symbol in (s for s in order if factors[s] > 0):
            if wide and self.is_vector(symbol):
                above.append(TIMES)
            wide = wide or self.is_vector(symbol)
            above.append(self._powered(symbol, factors[symbol]))
        below = [self._powered(s, -factors[s]) for s in order if factors[s] < 0]
        top = row(*above) if above else Number("1")
        return Fraction(top, row(*below)) if below else top

    @staticmethod
    def _number(number: sympy.Expr) -> Math:
        if isinstance(number, sympy.Rational) and number.q != 1:
            return Fraction(Number(str(number.p)), Number(str(number.q)))
        return Number(str(number))

    def _powered(self, symbol: sympy.Symbol, power: int) -> Math:
        found = self.atom(self.table.atoms[symbol])
        return found if power == 1 else Power(found, Number(str(power)))

    def atom(self, atom: Atom) -> Math:
        """A value by its name, or what it is computed as."""
        if atom.kind in ("value", "state"):
            return self.called(atom)
        if atom.kind == "delta":
            return Name("I")
        if atom.kind == "choice":
            return Fence(self.value(atom.args[0]), "[", "]")
        if atom.kind == "sum":
            return self._summed(atom)
        if atom.fn == "exp" and self._log_of(atom) is not None:
            return named(self._log_of(atom) or "", self.at)
        args = [self.value(arg) for arg in atom.args]
        if atom.fn in RELATIONS:
            return row(args[0], Sign(RELATIONS[atom.fn]), args[1])
        return function(FUNCTIONS.get(atom.fn, atom.fn), *args)

    def called(self, atom: Atom) -> Math:
        """A value of the spec at the token, or a state before or after it."""
        name = atom.head
        if name.startswith("%") and isinstance(
            self.study.recurrence.body[int(name[1:])].op, ir.Solve
        ):
            return Name(Letters(self.study).of("z"), (self.at,))
        state = state_of(name)
        if state is not None:
            return named(state, before(self.at))
        return named(name, *(() if name in self.steady else (self.at,)))

    def _log_of(self, atom: Atom) -> str | None:
        """The name of a gate whose logarithm enters."""
        (arg,) = atom.args
        inner = self.table.atoms.get(arg) if isinstance(arg, sympy.Symbol) else None
        return gate_of(inner.head) if inner is not None and inner.kind == "value" else None

    def _summed(self, atom: Atom) -> Math:
        _, factors = self.table.split(atom.args[0])
        listed = [symbol for symbol, power in factors.items() for _ in range(power)]
        if len(listed) == 2:
            a, b = (self.atom(self.table.atoms[symbol]) for symbol in listed)
            return Fence(row(transposed(a), b))
        return function("sum", self.value(atom.args[0]))

    # --- the update ---

    def decayed(self, step: nf.Step, state: Math) -> Math:
        """A state after its decay."""
        if self.form.kind == nf.DIAGONAL:
            return state if step.decay == 1 else row(self.factor(step.decay), TIMES, state)
        left, right = self.diagonal(step.key), self.diagonal(step.value)
        return row(left, state, right)

    def diagonal(self, decay: sympy.Expr) -> Math | None:
        """A decay in front of a matrix: a number, or the diagonal of one; None for 1."""
        if decay == 1:
            return None
        wide = any(self.is_vector(symbol) for symbol in self.table.symbols(decay))
        return function("Diag", self.value(decay)) if wide else self.factor(decay)

    def update(self, form: nf.StateForm) -> list[Math]:
        """The update of a state, a line for each equation."""
        if self.form.blocks:
            return [self._coupled(form)]
        lines: list[Math] = []
        last = len(form.steps) - 1
        for number, step in enumerate(form.steps):
            old = self.version(form.state, number, last, nf.BEFORE)
            new = self.version(form.state, number, last, nf.WRITTEN)
            lines += self._step(form, step, old, new)
        return lines

    def version(self, state: str, number: int, last: int, when: str) -> Math:
        """A state before, within and after micro-step `number` of 0 .. `last`."""
        if when == nf.BEFORE and number == 0:
            return named(state, before(self.at))
        if when == nf.AFTER:
            return named(state, self.at, prime=True)
        done = number if when == nf.BEFORE else number + 1
        return named(state, self.at, *([] if done == last + 1 else [f"({done})"]))

    def _step(self, form: nf.StateForm, step: nf.Step, old: Math, new: Math) -> list[Math]:
        if self.form.kind == nf.TROPICAL:
            shifted = row(self.factor(step.decay), PLUS, old) if step.decay != 0 else old
            floors = [self.value(term.c) for term in step.terms]
            return [row(new, EQUALS, function(self.form.sums, shifted, *floors))]
        if self.form.kind == nf.DENSE:
            parts = [row(self.value(step.matrix), old)]
            parts += [self.decayed(step, old)] if step.decay != 0 else []
            return [
                row(new, EQUALS, *_plus(parts + [self.write(form, t, old) for t in step.terms]))
            ]
        moved = named(form.state, self.at, prime=True) if step.decay != 1 else old
        value = self.diagonal(step.value)
        early = old if value is None else Fence(row(old, value))
        writes = [self.over_rank(step.rank, t.x, self.write(form, t, moved if t.after else early))
                  for t in step.terms]  # fmt: skip
        if step.decay == 1:
            return [row(new, EQUALS, *_plus([old, *writes]))]
        head = row(moved, EQUALS, self.decayed(step, old))
        return [head, row(new, EQUALS, *_plus([moved, *writes]))]

    def over_rank(self, rank: Axis | None, x: sympy.Expr, written: Math) -> Math:
        """What a term writes along x, summed over the rows that it has."""
        if rank is None or rank.name not in self.table.names(x):
            return written
        return row(Sum("∑", Words(rank.name)), written)

    def write(self, form: nf.StateForm, term: nf.Term, state: Math) -> Math:
        """x (c + w^T S)^T, with factors in front that c and w share."""
        if term.w == 0 or self.form.kind in (nf.DIAGONAL, nf.DENSE):
            return self._plain_write(form, term)
        common, c, w = self.shared(term)
        parts: list[Math] = [self.value(c)] if c != 0 else []
        negative = self.table.is_negative(w)
        read = self.read_by(form, -w if negative else w, state)
        x = self.vector_of(term.x)
        if not parts:
            body = transposed(Fence(read)) if form.value else Fence(read)
            return row(NEGATIVE if negative else None, x, body)
        body = Fence(row(*parts, MINUS if negative else PLUS, read))
        return row(self.factor(common), x, transposed(body) if form.value else body)

    def vector_of(self, expr: sympy.Expr) -> Math | None:
        """A vector as one factor: in brackets where it is an elementwise product."""
        found = self.factor(expr)
        wide = isinstance(found, Row) and TIMES in found.parts
        return Fence(found) if wide and found is not None else found

    def _plain_write(self, form: nf.StateForm, term: nf.Term) -> Math:
        if self.form.kind in (nf.DIAGONAL, nf.DENSE) or not form.value:
            return self.value(sympy.expand(term.x * term.c))
        scale, c = self.split(term.c)
        body = self.factor(c) or Number("1")
        return row(self.factor(scale), self.vector_of(term.x), transposed(body))

    def read_by(self, form: nf.StateForm, covector: sympy.Expr, state: Math) -> Math:
        """S^T w; w^T z for a state that is a vector."""
        if self.form.kind == nf.DIAGONAL:
            return row(self.factor(covector), state)
        scale, vector = self.split(covector)
        body = self.vector_of(vector)
        if body is None:
            return row(self.factor(scale), state)
        read = row(transposed(state), body) if form.value else row(transposed(body), state)
        return row(self.factor(scale), read)

    def split(self, expr: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr]:
        """Factors that are numbers at each token, and the rest."""
        if isinstance(expr, sympy.Add):
            return sympy.Integer(1), expr
        number, factors = self.table.split(expr)
        scalars = [s**p for s, p in factors.items() if not self.is_vector(s)]
        scale = sympy.Mul(number, *scalars)
        return scale, sympy.cancel(expr / scale)

    def shared(self, term: nf.Term) -> tuple[sympy.Expr, sympy.Expr, sympy.Expr]:
        """Numbers at each token that c and w have in common, and c and w without them."""
        monomials = [m for e in (term.c, term.w) if e != 0 for m in sympy.Add.make_args(e)]
        factors = [self.table.split(monomial)[1] for monomial in monomials]
        common = sympy.Integer(1)
        for symbol in sorted(factors[0], key=str):
            if not self.is_vector(symbol) and all(f.get(symbol, 0) > 0 for f in factors):
                common *= symbol
        if term.c == 0 or common == 1:
            return sympy.Integer(1), term.c, term.w
        return common, sympy.expand(term.c / common), sympy.expand(term.w / common)

    def _coupled(self, form: nf.StateForm) -> Math:
        place = self.form.states.index(form.state)
        parts = [
            row(self.factor(scale), TIMES if self._wide(scale) else None, named(n, before(self.at)))
            for scale, n in zip(self.form.blocks[place], self.form.states, strict=True)
            if scale != 0
        ]
        parts += [self.value(term.c) for term in form.steps[0].terms]
        return row(named(form.state, self.at), EQUALS, *_plus(parts))

    def _wide(self, expr: sympy.Expr) -> bool:
        return any(self.is_vector(symbol) for symbol in self.table.symbols(expr))

    # --- reads ---

    def read(self, form: nf.StateForm, read: nf.Read, number: int) -> Math:
        """The formula of one value that is read of the state."""
        parts = [self.part(form, part) for part in read.parts]
        parts += [self.value(read.free)] if read.free != 0 else []
        return row(self.result(read, number), EQUALS, *_plus(parts))

    def result(self, read: nf.Read, number: int) -> Math:
        """The name of what a read gives: of the spec if it has one there."""
        name = self.study.recurrence.body[read.node].name
        name = name if name in self.study.recurrence.body.outputs else None
        return (
            named(name, self.at)
            if name
            else Name(self.letter, (self.at, *([str(number + 1)] if number else [])))
        )

    def part(self, form: nf.StateForm, part: nf.Part) -> Math:
        """One state, read by one covector."""
        state = self.version(form.state, part.step, len(form.steps) - 1, part.when)
        if part.when == nf.AFTER and form.steps[part.step].decay == 1:
            state = self.version(form.state, part.step, len(form.steps) - 1, nf.BEFORE)
        total = Sum("∑", Words(", ".join(part.axes))) if self.form.kind == nf.DIAGONAL else None
        return row(self.factor(part.scale), total, self.read_by(form, part.covector, state))


def before(at: str) -> str:
    """The subscript of the token before."""
    return f"{at}-1"


def _plus(parts: Sequence[Math]) -> list[Math]:
    """A sum."""
    found: list[Math] = []
    for part in parts:
        leading = part.parts[0] if isinstance(part, Row) else None
        found += [PLUS] if found and leading != NEGATIVE else []
        found.append(part)
    return found

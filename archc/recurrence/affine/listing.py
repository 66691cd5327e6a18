"""A normal form in a few readable lines, and its expressions with the spec's names."""

from __future__ import annotations

import sympy

from archc.dims import Axis
from archc.recurrence.affine import form as nf
from archc.recurrence.affine.atoms import Atom, Table, replaced

SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def as_text(form: nf.NormalForm) -> str:
    """The update and the reads of every state of a form, one line each.

        S' = alpha S
        S = S' + k (beta v - (beta k . S'))
        %13 = (q . S)

    Axes have names, so that nothing is transposed; `(a . S)` sums over the key axes.
    """
    if form.refusal is not None:
        at = f" (node {form.refusal.node})" if form.refusal.node is not None else ""
        return f"{', '.join(form.states)}: sequential, {form.refusal.reason}{at}"
    writer = _Writer(form)
    if form.links is not None:
        return "\n".join(writer.linked(form.links))
    return "\n".join(line for each in form.forms for line in writer.state(each))


def readable(form: nf.NormalForm, expr: sympy.Expr) -> sympy.Expr:
    """An expression with the spec's names for symbols and sympy functions for the others: a sum of
    products is `dot(product)`, the choice of c is `choice(c)`; for printing, with no axes."""
    table = Table(form.atoms)

    def plain(symbol: sympy.Symbol) -> sympy.Expr:
        atom = table.atoms[symbol]
        if atom.kind in ("value", "state", "delta"):
            return sympy.Symbol("I" if atom.kind == "delta" else atom.head)
        name = {"sum": "dot", "choice": "choice"}.get(atom.kind, atom.fn)
        return sympy.Function(name)(*(readable(form, arg) for arg in atom.args))

    return replaced(expr, {symbol: plain(symbol) for symbol in table.symbols(expr)})


class _Writer:
    """Text of a form's expressions."""

    def __init__(self, form: nf.NormalForm) -> None:
        self.form, self.table = form, Table(form.atoms)

    def state(self, form: nf.StateForm) -> list[str]:
        """Head, micro-steps and reads of one state."""
        roles = (("key", form.key), ("value", form.value), ("shared", form.shared))
        axes = "; ".join(f"{r} {', '.join(map(str, own))}" for r, own in roles if own)
        lines = [f"{form.state}: {self.form.kind}, {axes}"]
        if self.form.blocks:
            return [*lines, f"  {self._coupled(form)}"]
        for number, step in enumerate(form.steps):
            before = f"{form.state}[t-1]" if number == 0 else form.state
            lines += [f"  {line}" for line in self._step(form.state, before, step)]
        return lines + [f"  {self._read(form, read)}" for read in form.reads]

    def linked(self, links: nf.Links) -> list[str]:
        """States that scale one another: their axes, what is written to them, updates and reads."""
        names = self.form.states
        axes = f"key {', '.join(map(str, links.key))}; value {', '.join(map(str, links.value))}"
        lines = [f"{', '.join(names)}: linked, {axes}"]
        writes: list[list[str]] = [[] for _ in names]
        for number, term in enumerate(links.terms):
            lines.append(f"  Y{number} = {self._linked_row(term)}")
            for place, scale in enumerate(term.writes):
                if scale != 0:
                    written = f"{self._factor(scale)}{self._factor(term.x)}Y{number}"
                    writes[place].append(self._over(links.rank, term.x, written))
        for name, row, own in zip(names, self.form.blocks, writes, strict=True):
            pairs = zip(row, names, strict=True)
            parts = [f"{self._factor(scale)}{old}[t-1]" for scale, old in pairs if scale != 0]
            lines.append(f"  {name} = {_sum([*parts, *own])}")
        return [*lines, *(f"  {self._linked_read(read)}" for read in links.reads)]

    def _linked_row(self, term: nf.LinkedTerm) -> str:
        parts = [self.expr(term.c)] if term.c != 0 else []
        for name, read in zip(self.form.states, term.reads, strict=True):
            if read != 0:
                negative = self.table.is_negative(read)
                text = f"({self.expr(-read if negative else read)} . {name}[t-1])"
                parts.append(f"-{text}" if negative else text)
        return _sum(parts)

    def _linked_read(self, read: nf.LinkedRead) -> str:
        parts = []
        for part in read.parts:
            name = self.form.states[part.state] + ("" if part.written else "[t-1]")
            parts.append(f"{self._factor(part.scale)}({self.expr(part.covector)} . {name})")
        parts += [self.expr(read.free)] if read.free != 0 else []
        return f"%{read.node} = {_sum(parts)}"

    def _coupled(self, form: nf.StateForm) -> str:
        row = self.form.blocks[self.form.states.index(form.state)]
        pairs = zip(row, self.form.states, strict=True)
        parts = [f"{self._factor(scale)}{name}[t-1]" for scale, name in pairs if scale != 0]
        return (
            f"{form.state} = {' + '.join([*parts, *(self.expr(t.c) for t in form.steps[0].terms)])}"
        )

    def _step(self, name: str, before: str, step: nf.Step) -> list[str]:
        if self.form.kind == nf.TROPICAL:
            parts = [f"{self.expr(step.decay)} + {before}", *(self.expr(t.c) for t in step.terms)]
            return [f"{name} = {self.form.sums}({', '.join(parts)})"]
        lines, decayed = [], before
        if self.form.kind == nf.DENSE:
            parts = [f"({self.expr(step.matrix)} . {before})"]
            parts += [f"{self._factor(step.decay)}{before}"] if step.decay != 0 else []
            lines, decayed = [f"{name}' = {' + '.join(parts)}"], f"{name}'"
        elif step.decay != 1:
            sides = (part for part in (step.key, step.value) if part != 1)
            scale = "".join(self._factor(part) for part in sides)
            lines, decayed = [f"{name}' = {scale}{before}"], f"{name}'"
        early = before if step.value == 1 else f"({self._factor(step.value)}{before})"
        terms = [
            self._over(step.rank, t.x, self._term(t, decayed if t.after else early))
            for t in step.terms
        ]
        return [*lines, f"{name} = {_sum([decayed, *terms])}"]

    def _over(self, rank: Axis | None, x: sympy.Expr, text: str) -> str:
        """What a term writes along x, summed over its rows."""
        if rank is None or rank.name not in self.table.names(x):
            return text
        return f"-sum[{rank}]({text[1:]})" if text[0] == "-" else f"sum[{rank}]({text})"

    def _term(self, term: nf.Term, state: str) -> str:
        if term.w == 0:
            return self._scaled(term.x, term.c)
        negative = self.table.is_negative(term.w)
        read = f"({self.expr(-term.w if negative else term.w)} . {state})"
        if term.c == 0:
            return f"{'-' if negative else ''}{self._factor(term.x)}{read}"
        row = f"{self.expr(term.c)} {'-' if negative else '+'} {read}"
        return f"{self._factor(term.x)}({row})"

    def _scaled(self, x: sympy.Expr, c: sympy.Expr) -> str:
        """x times c, the sign in front."""
        if self.table.is_negative(c):
            return f"-{self._scaled(x, -c)}"
        return f"{self._factor(x)}{self._factor(c)}".strip() or "1"

    def _read(self, form: nf.StateForm, read: nf.Read) -> str:
        parts = [self._part(form, part) for part in read.parts]
        parts += [self.expr(read.free)] if read.free != 0 else []
        return f"%{read.node} = {_sum(parts)}"

    def _part(self, form: nf.StateForm, part: nf.Part) -> str:
        last = len(form.steps) - 1
        name = f"{form.state}[t-1]" if part.when != nf.WRITTEN else form.state
        name = f"{form.state}'" if part.when == nf.AFTER else name
        step = (
            f" of step {part.step + 1}"
            if (part.step, part.when) != (last, nf.WRITTEN) and last
            else ""
        )
        return f"{self._factor(part.scale)}({self.expr(part.covector)} . {name}{step})"

    def expr(self, expr: sympy.Expr) -> str:
        """An expression as one reads it: `beta v - k`."""
        text = ""
        for term in sorted(sympy.Add.make_args(expr), key=self._order):
            negative = self.table.split(term)[0].could_extract_minus_sign()
            joint = (" - " if text else "-") if negative else (" + " if text else "")
            text += joint + self._product(-term if negative else term)
        return text

    def _order(self, term: sympy.Expr) -> tuple[bool, str]:
        return self.table.split(term)[0].could_extract_minus_sign(), self.table.text(term)

    def _factor(self, expr: sympy.Expr) -> str:
        """An expression in front of another; nothing for 1."""
        if expr == 1:
            return ""
        return f"({self.expr(expr)}) " if isinstance(expr, sympy.Add) else f"{self.expr(expr)} "

    def _product(self, term: sympy.Expr) -> str:
        number, factors = self.table.split(term)
        ordered = sorted(factors, key=lambda s: (len(self.table.atoms[s].axes), s.name))
        above = [self._power(s, factors[s]) for s in ordered if factors[s] > 0]
        below = [self._power(s, -factors[s]) for s in ordered if factors[s] < 0]
        shown = [str(number)] if number != 1 or not above else []
        return " / ".join([" ".join([*shown, *above]), *below])

    def _power(self, symbol: sympy.Symbol, power: int) -> str:
        text = self._atom(self.table.atoms[symbol])
        return text if power == 1 else f"{text}^{power}"

    def _atom(self, atom: Atom) -> str:
        if atom.kind in ("value", "state"):
            return atom.head
        if atom.kind == "delta":
            return "I"
        if atom.kind == "sum":
            _, factors = self.table.split(atom.args[0])
            parts = [self._power(s, power) for s, power in factors.items()]
            if list(factors.values()) == [2]:
                parts = [self._power(next(iter(factors)), 1)] * 2
            return f"({' . '.join(parts)})" if len(parts) == 2 else f"sum({' '.join(parts)})"
        args = [self.expr(arg) for arg in atom.args]
        if atom.fn in SIGNS:
            return f"{args[0]} {SIGNS[atom.fn]} {args[1]}"
        return f"[{args[0]}]" if atom.kind == "choice" else f"{atom.fn}({', '.join(args)})"


def _sum(parts: list[str]) -> str:
    """Texts added, those with a minus subtracted."""
    return " + ".join(parts).replace(" + -", " - ")

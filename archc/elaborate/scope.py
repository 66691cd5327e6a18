"""Names: what is visible where, and the session that an elaboration shares.

A `Scope` maps names to definitions; scopes nest as blocks do. `Session` holds what all layers of a
run share, `Context` what one layer collects: its arguments, decisions and requirements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

import sympy

from archc.diagnostics import (
    ArchError,
    Diagnostic,
    Label,
    Refused,
    Report,
    did_you_mean,
    labels,
)
from archc.dims import MAX_SIZE, TIME, Axis, Undefined, at, exact
from archc.elaborate.values import Frame, FunctionRef, LayerRef, Lazy, Option, Tensor, Value
from archc.ir import layer as ir
from archc.ir.chunk_section import NO_RULES, ChunkRules
from archc.ir.free_names import numbered
from archc.source import Source, Span
from archc.syntax import habits, tree

MAX_NESTING = 60
"""Deepest chain of names that need one another, of calls and of expressions, counted together."""

MAX_STEPS = 8_000
"""Most expressions to elaborate, those of functions and layers once for each use in place."""

MOST_PLACES = 3
"""Most further places at which a name is shown that is not there."""

ROUNDS = 3
"""A call that is entered so often inside of itself goes round in a circle."""

OF_VALUES = ("E03", "E04", "E05", "E0207")
"""Codes of what is wrong with the values that a body is given, rather than with the body."""

MAX_RANK = 20
"""Most axes of a value."""


@dataclass(frozen=True)
class Along:
    """An index variable: what `[t]`, `[s]`, `[r]`, `[e]`, `[b]` mean in a scope."""

    role: str
    axis: Axis
    source: str = "t"


@dataclass(frozen=True)
class BlockStream:
    """A stream of blocks: which stream it divides, how long a block is and where each starts;
    whether they lie side by side and hold every token, those of a block that is not full too."""

    source: str
    size: sympy.Expr
    stride: sympy.Expr
    covers: bool = False


@dataclass(eq=False)
class AttendScope:
    """The part of a scope that an attend adds: the axis of the tokens read and the allowed pairs;
    its heads, the names of its statements, and values that are made from themselves."""

    read: Axis
    source: str
    softmaxed: set[int] = field(default_factory=set)
    path: Axis | None = None
    allowed: Tensor | None = None
    heads: tuple[Axis, ...] = ()
    targets: dict[str, tree.Target] = field(default_factory=dict)
    unknowns: dict[str, Tensor] = field(default_factory=dict)

    @property
    def mask(self) -> Tensor:
        """The allowed pairs, as a bool in the attend's frame."""
        assert self.allowed is not None
        return self.allowed


@dataclass(eq=False)
class Module:
    """The declarations a file can see: its own, imported ones and the library."""

    source: Source
    decls: dict[str, tree.Decl]
    homes: dict[str, Module] = field(default_factory=dict)


@dataclass(eq=False)
class Session:
    """The state of one run: findings, how each kind of expression is evaluated and what each kind
    of statement defines, and the layers elaborated so far; those of two parts (`left_out.py`)."""

    report: Report
    rules: Mapping[type, Callable[[Scope, Any], Value]]
    definitions: Mapping[type, Callable[[Scope, Any, set[str]], Scope | None]]
    library: Mapping[str, tree.Decl]
    layers: list[tuple[tree.Decl, tuple, tuple[ir.Requirement, ...], ir.Layer]] = field(
        default_factory=list
    )
    lifted: dict[int, Any] = field(default_factory=dict)
    parted: dict[tuple[int, frozenset[int]], Any] = field(default_factory=dict)
    depth: int = 0
    steps: int = 0
    stacked: int = 0
    calls: list[tuple[tree.Decl, Span]] = field(default_factory=list)
    missing: dict[tuple, int] = field(default_factory=dict)

    @contextmanager
    def calling(self, decl: tree.Decl, span: Span) -> Iterator[None]:
        """While the body of a function or layer is looked at, which is called at a place."""
        self.calls.append((decl, span))
        try:
            yield
        finally:
            self.calls.pop()

    def circle(self) -> list[tuple[tree.Decl, Span]]:
        """The calls that go round in a circle, if some do: the innermost round of them."""
        last = self.calls[-1:]
        again = [n for n, (decl, span) in enumerate(self.calls) if last and span is last[0][1]]
        return self.calls[again[-2] + 1 :][::1] if len(again) >= ROUNDS else []


@dataclass(eq=False)
class Context:
    """The facts that one layer collects while its body is elaborated."""

    name: str
    frame: Frame
    args: list[ir.Arg] = field(default_factory=list)
    values: dict[str, sympy.Expr] = field(default_factory=dict)
    requirements: list[ir.Requirement] = field(default_factory=list)
    streams: dict[str, tuple[Axis, BlockStream | None]] = field(
        default_factory=lambda: {"t": (TIME, None)}
    )
    widths: dict[str, Axis] = field(default_factory=dict)
    params: dict[str, Span] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)
    chunk: ChunkRules = NO_RULES
    laws: list[Any] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)

    def path(self, name: str) -> str:
        """A name for a sub-layer, unique in this layer: `swiglu`, `swiglu_2`."""
        made = numbered(name, self.paths)
        self.paths.add(made)
        return made


@dataclass(frozen=True, eq=False)
class Scope:
    """Names in force at one place of a spec."""

    session: Session
    context: Context
    module: Module
    frame: Frame
    names: dict[str, Lazy | Value] = field(default_factory=dict)
    indices: dict[str, Along] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    dims: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    memory: bool = False
    rows: bool = False
    attend: AttendScope | None = None
    extra: tuple[Axis, ...] = ()
    gate: Tensor | None = None
    routed: tuple[Tensor, Axis] | None = None
    grouped: tuple[Axis, Axis] | None = None
    carried: frozenset[str] = frozenset()
    several: frozenset[str] = frozenset()
    prefix: str = ""
    site: Span | None = None
    parent: Scope | None = None

    def child(self, **changes: Any) -> Scope:
        """A scope inside this one."""
        fresh = {"names": {}, "indices": {}, "states": {}, "dims": {}, "parent": self}
        fresh["carried"] = frozenset()
        return replace(self, **{**fresh, **changes})

    # --- findings ---

    def error(self, code: str, message: str, span: Span, label: str = "", **more: Any) -> Refused:
        """Report an error; use as `raise scope.error(...)`.

        What is found in the body of a function, or of a layer in place, is shown at its call too.
        """
        found = Diagnostic(
            code, message, Label(span, label), tuple(labels(more.pop("others", ()))), **more
        )
        if self.site is not None and not self.site.holds(span):
            library = any(decl.span.source is span.source for decl in self.session.library.values())
            by_call = library or code.startswith(OF_VALUES)
            found = (found.at_call if by_call else found.called_from)(self.site)
        return self.session.report.add(found)

    def missing(
        self, code: str, name: str, message: str, span: Span, label: str, helps: Sequence[str],
        others: Sequence[tuple[Span | None, str]] = (),
    ) -> Refused:  # fmt: skip
        """The error for a name that is not there, or not of use: one for all places."""
        session = self.session
        key = (code, name, self.context, self.site)
        place = session.missing.get(key)
        if place is None:
            message = f"`{name}` {message}"
            refused = self.error(code, message, span, label, others=others, helps=helps)
            session.missing[key] = len(session.report.diagnostics) - 1
            return refused
        found = session.report.diagnostics[place]
        if len(found.others) < MOST_PLACES:
            session.report.diagnostics[place] = found.also(span)
        return Refused(found.message)

    def endless(self, message: str, span: Span) -> ArchError:
        """The error that ends a run: whatever else is looked at would run into it again."""
        circle = self.session.circle()
        if circle:
            message = f"`{circle[0][0].name}` calls itself, and never ends"
            if len(circle) > 1:
                ways = ", which calls ".join(f"`{decl.name}`" for decl, _ in circle)
                message = f"{ways}, which calls `{circle[0][0].name}`, and never ends"
            span = circle[0][1]
        helps = ["use `repeat` for a stack of layers"]
        self.session.report.error("E0208", message, span, helps=helps)
        return ArchError(self.session.report.diagnostics)

    # --- names ---

    def around(self) -> Iterator[Scope]:
        """This scope and those that enclose it, the nearest first."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find(self, name: str) -> Lazy | Value | None:
        """The value of a name, of this scope or an enclosing one; not yet computed."""
        return next((scope.names[name] for scope in self.around() if name in scope.names), None)

    def index(self, name: str) -> Along | None:
        """The index variable of that name, unless a nearer scope binds the name to a value."""
        for scope in self.around():
            if name in scope.indices:
                return scope.indices[name]
            if name in scope.names:
                return None
        return None

    def state(self, name: str) -> Any:
        """The state of that name of the recurrence around this place, or None."""
        return self.states_here().get(name)

    def states_here(self) -> dict[str, Any]:
        """The states of the recurrence around this place, by name."""
        inside = takewhile(lambda scope: scope.frame is self.frame, self.around())
        return {name: state for scope in inside for name, state in scope.states.items()}

    def state_dims(self) -> set[str]:
        """The dims of those states."""
        axes = (axis for state in self.states_here().values() for axis in state.axes)
        return {axis.base for axis in axes if axis.kind == "dim"}

    def known(self) -> set[str]:
        """Every visible name, for did-you-mean."""
        own = {name for scope in self.around() for name in scope.names}
        return own | set(self.module.decls) | set(self.session.library)

    def lookup(self, name: str, span: Span) -> Value:
        """The value of a name; an undeclared one is an error, never a new parameter."""
        found = self.find(name)
        if found is None:
            declared = self.declared(name)
            if declared is not None:
                return declared
            known = self.known()
            helps = [*(habits.of_value(name, known) or did_you_mean(name, known))]
            remark = habits.in_text(span.source, span.start)
            if remark is not None and remark.span.text.startswith("//"):
                helps = [remark.help]
            if self.axis_named(name) is not None:
                helps = [f"`{name}` is a dim here; its positions are `index[{name}]`"]
            elif self._required(name):
                helps = [self.as_argument(name)]
            elif not helps:
                helps = [f"declare it: `param {name}[...]`, `input {name}[...]` or `{name} = ...`"]
            raise self.missing("E0201", name, "is not declared", span, "not found", helps)
        return found.get(lambda lazy: self.cycle(lazy, span)) if isinstance(found, Lazy) else found

    def declared(self, name: str) -> Value | None:
        """A layer or function of the file, its imports or the library."""
        decl = self.module.decls.get(name) or self.session.library.get(name)
        if decl is None:
            return None
        if decl.kind == "function":
            return FunctionRef(decl)
        return LayerRef(decl, self.module.homes.get(name, self.module))

    def cycle(self, lazy: Lazy, span: Span) -> Refused:
        """A name that needs its own value at the same token."""
        name = next((each for each in self.states_here() if each == lazy.name), None)
        name = name or next(iter(self.states_here()), None)
        help = f"a value of the token before is written `{lazy.name}[t-1]`, in a `recurrence`"
        if name is not None:
            help = f"the state before this token is `{name}[t-1]`: `{name}` alone is its new value"
        return self.error(
            "E0203",
            f"`{lazy.name}` depends on itself at the same token",
            span,
            "needed here",
            others=[(lazy.span, "while it is being defined")],
            helps=[help],
        )

    def evaluate(self, node: tree.Expr) -> Value:
        """The value of an expression."""
        session = self.session
        if session.depth >= MAX_NESTING:
            raise self.endless("this is nested too deeply to elaborate", node.span)
        if session.steps >= MAX_STEPS:
            raise self.endless(f"this comes to more than {MAX_STEPS} expressions", node.span)
        session.depth += 1
        session.steps += 1
        try:
            return session.rules[type(node)](self, node)
        except Undefined as error:
            raise self.error("E0404", str(error), node.span) from None
        finally:
            session.depth -= 1

    # --- axes ---

    def axis_named(self, name: str) -> tuple[Axis, ...] | None:
        """The axes a dim name stands for (a function's axis argument may stand for several)."""
        base = name.rstrip("'")
        primes = name[len(base) :]
        for scope in self.around():
            if base in scope.dims:
                return tuple(axis.renamed(axis.name + primes) for axis in scope.dims[base])
        return None

    def axes(self, items: tuple[tree.Expr, ...]) -> tuple[Axis, ...]:
        """The axes written between brackets; each must be a dim of the layer or a number."""
        found: list[Axis] = []
        for item in items:
            if len(found) >= MAX_RANK:
                raise self.error("E0205", f"a shape of more than {MAX_RANK} axes", item.span)
            axes = self.axis(item)
            for axis in axes:
                if axis.name in self.context.streams:
                    raise self.error(
                        "E0210", f"`{axis.name}` is the name of a sequence already", item.span
                    )
                if axis.name in {a.name for a in found}:
                    raise self.error(
                        "E0206",
                        f"axis `{axis.name}` stands twice in one shape",
                        item.span,
                        helps=[f"a second axis of that size is written `{axis.name}'`"],
                    )
                found.append(axis)
        return tuple(found)

    def axis(self, item: tree.Expr) -> tuple[Axis, ...]:
        """One entry of a shape: a dim's name, or a number."""
        if isinstance(item, tree.Number):
            size = exact(item.text)
            if not size.is_integer or not 1 <= size <= MAX_SIZE:
                raise self.error(
                    "E0205", f"`{item.text}` is not a size", item.span, "a whole number >= 1"
                )
            return (Axis(str(size), size),)
        if isinstance(item, tree.Name):
            axes = self.axis_named(item.id)
            if axes is not None:
                return axes
            argument = self.as_argument(item.id)
            helps = [*(habits.of_dim(item.id) or did_you_mean(item.id, self.dim_names()))]
            if habits.of_dim(item.id) and len(item.id) == 1:
                helps.append(argument)  # T and N are names of sizes like any others
            if self.index(item.id) is not None:
                helps = [f"leave `[{item.id}]` out: it is an index, and no dim"]
                if (blocks := self.context.streams.get(item.id, (None, None))[1]) is not None:
                    own = f"`x[{item.id}]` has the tokens of its block along `{blocks.size}`"
                    helps = [f"{own}: `mean[{blocks.size}](x[{item.id}])`"]
            elif item.id in self.context.streams:
                helps = [f"it is a sequence: read it token by token in `attend all {item.id}:`"]
            message, helps = "is not a dim of this layer", helps or [argument]
            raise self.missing("E0202", item.id, message, item.span, "unknown size", helps)
        raise self.error(
            "E0205",
            "a shape holds names of dims and whole numbers",
            item.span,
            helps=habits.of_name("dim")
            if isinstance(item, tree.Unary)
            else [f"give the size a name: `layer Name(..., n = {item.span.text}):`, and write `n`"],
        )

    def as_argument(self, name: str) -> str:
        """The help for a size that no argument says, or that a statement of the layer does."""
        found, argument = self.find(name), f"layer Name({name}, ...)"
        if required := self._required(name):
            argument = f"layer {self.context.name}(..., {name} = {required})"
        if isinstance(found, Lazy) and found.state != "active":
            with suppress(Refused):
                if isinstance(self.lookup(name, found.span), sympy.Expr):
                    stated = " ".join(found.span.text.split())
                    argument = f"layer {self.context.name}(..., {stated})"
        return f"sizes are the layer's arguments: `{argument}`"

    def _required(self, name: str) -> str:
        """What a size is by a `require F == 4 * d` of the layer; empty where there is none."""
        decl = self.module.decls.get(self.context.name)
        conditions = (
            [each.condition for each in decl.body if isinstance(each, tree.Require)] if decl else []
        )
        for each in conditions:
            if isinstance(each, tree.Compare) and each.ops == ("==",):
                for one, other in (each.terms, each.terms[::-1]):
                    if isinstance(one, tree.Name) and one.id == name:
                        return other.span.text
        return ""

    def dim_names(self) -> set[str]:
        """Dims that are visible here."""
        return {name for scope in self.around() for name in scope.dims}

    def visible(self, tensor: Tensor) -> tuple[Axis, ...]:
        """The axes that `@`, `.T` and shapes see: dims, without heads and the like."""
        return tuple(a for a in tensor.axes if a.kind == "dim" and a.name not in self.hidden)

    # --- decisions on sizes ---

    def settled(self, value: Any) -> Any:
        """A size expression or condition with the values put in that sizes have."""
        for _ in range(8):
            symbols = [s for s in value.free_symbols if s.name in self.context.values]
            if not symbols:
                break
            value = at(value, self.context.values)
        return value

    def number(self, value: sympy.Expr) -> sympy.Expr | None:
        """A size expression as a number, if it has one and every size in it has a value."""
        try:
            value = self.settled(value)
        except Undefined:
            return None
        return value if value.is_number else None

    def decide(self, condition: Any, span: Span) -> bool:
        """Take a branch on a condition on sizes, and record it as settled."""
        if condition in (True, False, sympy.true, sympy.false):
            return bool(condition)
        outcome = self.settled(condition)
        if outcome not in (sympy.true, sympy.false):
            left = sorted(s.name for s in outcome.free_symbols)  # what sizes are made of, too
            why = ", ".join(f"`{n}` has no value" for n in left) or f"`{outcome}` is not known"
            raise self.error(
                "E0402",
                f"this condition cannot be decided: {why}",
                span,
                helps=[f"give a value, e.g. `--set {n}=64`, or a default" for n in left[:1]],
            )
        holds = outcome is sympy.true
        kept = condition if holds else sympy.Not(condition)
        self.require(kept, span.text, span, settled=True)
        return holds

    def require(self, condition: Any, text: str, span: Span, settled: bool = False) -> None:
        """Record a condition on sizes, checked when they are known; `settled`, if code is written
        for the sizes with which it holds: layers of a stack share what is made under the same."""
        if settled:
            self.context.choices.append(str(condition))
        self.context.requirements.append(ir.Requirement(condition, text, span, settled=settled))

    def hold(self, condition: Any, text: str, span: Span, label: str) -> None:
        """Refuse a condition on sizes that is false, and record one that depends on them."""
        if condition is sympy.false:
            raise self.error("E0401", f"`{text}` does not hold", span, label)
        if condition is not sympy.true:
            self.require(condition, text, span)


def option(value: Any) -> Value:
    """A Python value as an option or an exact number."""
    if isinstance(value, bool) or value is None or isinstance(value, (str, list, tuple)):
        return Option(tuple(value) if isinstance(value, list) else value)
    return sympy.Rational(str(value)) if isinstance(value, float) else sympy.Integer(value)

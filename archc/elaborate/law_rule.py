"""`chunk: law(Token, Merge, Apply)`: the rule that names a composition law as three layers.

`Token` takes values of the recurrence by name and gives the summary of one token, as its outputs.
`Merge` takes the parts of two summaries, the earlier first, and gives those of both in one.
`Apply` takes the parts of a summary and then states, by name, and gives the states after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from archc.diagnostics import Refused
from archc.elaborate.callee import inputs_of
from archc.elaborate.mentions import walk
from archc.elaborate.scope import Scope
from archc.elaborate.values import LayerRef
from archc.syntax import tree

ROLES = ("token", "merge", "apply")

BEYOND = (tree.Param, tree.Repeat, tree.Recurrence, tree.Attend, tree.Blocks, tree.Route)
"""Statements that a layer of a law may not have."""


@dataclass(eq=False)
class LawRule:
    """A law as the spec names it: its layers, and where each is named; `used` once a recurrence has
    taken it."""

    rule: tree.Rule
    refs: Mapping[str, LayerRef]
    at: Mapping[str, tree.Expr]
    used: bool = False

    @property
    def count(self) -> int:
        """How many parts a summary has."""
        return len(outputs_of(self.refs["token"]))

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it is about."""
        declared = inputs_of(self.refs["apply"].decl)
        return tuple(each.name for each in declared[self.count :])


def law(scope: Scope, rule: tree.Rule) -> None:
    """Note a law for the recurrence that declares its states."""
    made = _read(scope, rule)
    _check(scope, made)
    for other in scope.context.laws:
        twice = [name for name in made.states if name in other.states]
        if twice:
            message = f"`{twice[0]}` has two composition laws"
            raise wrong(scope, rule, message, "leave one of them", other.rule)
    scope.context.laws.append(made)
    text = " ".join(rule.span.text.split())
    rules = scope.context.chunk
    scope.context.chunk = replace(rules, laws=(*rules.laws, text))


def check_laws(scope: Scope) -> None:
    """Refuse a law that no recurrence has taken, or one beside a loop that is meant."""
    if scope.site is not None:
        return
    for each in scope.context.laws:
        if scope.context.chunk.sequential:
            what = "a composition law, and `sequential`"
            wrong(scope, each.rule, what, "leave one of them")
        elif not each.used and not scope.session.report.diagnostics:
            names = ", ".join(f"`{name}`" for name in each.states)
            what = f"no recurrence here has the states {names}"
            inputs = inputs_of(each.refs["apply"].decl)[each.count :]
            wrong(scope, each.rule, what, f"`{inputs[0].span.text}` is to be a state", inputs[0])


def wrong(
    scope: Scope, node: tree.Node, message: str, help: str = "", other: tree.Node | None = None
) -> Refused:
    """The refusal of a law; `other` is a further place that has to do with it."""
    others = [(other.span, "see here")] if other is not None else []
    return scope.error("E0224", message, node.span, others=others, helps=[help] if help else [])


def _read(scope: Scope, rule: tree.Rule) -> LawRule:
    """The three layers, by place or by name."""
    at: dict[str, tree.Expr] = {}
    for place, each in enumerate(rule.args):
        value = each.value if isinstance(each, tree.Argument) else each
        named = each.name if isinstance(each, tree.Argument) else None
        role = named or (ROLES[place] if place < len(ROLES) else "")
        if role not in ROLES or role in at:
            raise wrong(scope, each, "`law` takes three layers", _USAGE)
        at[role] = value
    if len(at) < len(ROLES):
        raise wrong(scope, rule, "`law` takes three layers", _USAGE)
    refs: dict[str, LayerRef] = {}
    for role in ROLES:
        found = scope.evaluate(at[role])
        if not isinstance(found, LayerRef):
            raise wrong(scope, at[role], f"`{at[role].span.text}` is no layer", _USAGE)
        refs[role] = found
    return LawRule(rule, refs, at)


_USAGE = "`law(Token, Merge, Apply)`: the summary of a token, of two summaries, and their effect"


def outputs_of(ref: LayerRef) -> list[tree.Output]:
    return [stmt for stmt in ref.decl.body if isinstance(stmt, tree.Output)]


def _check(scope: Scope, made: LawRule) -> None:
    """The layers are algebra alone, and have the inputs and outputs of a law."""
    for role in ROLES:
        decl = made.refs[role].decl
        for part in walk(decl.body):
            if isinstance(part, BEYOND):
                what = f"`{decl.name}` of a composition law has more than inputs and formulas"
                raise wrong(scope, made.at[role], what, "write it without this", part)
    token, merge, apply = (made.refs[role] for role in ROLES)
    if not made.states:
        message = f"`{apply.decl.name}` takes no state"
        raise wrong(scope, made.at["apply"], message, HELP["apply"])
    counts = (
        ("merge", len(inputs_of(merge.decl)), 2 * made.count, "inputs", token),
        ("merge", len(outputs_of(merge)), made.count, "outputs", token),
        ("apply", len(outputs_of(apply)), len(made.states), "outputs", apply),
    )
    for role, found, wanted, what, other in counts:
        if found != wanted:
            name = made.refs[role].decl.name
            has = f"{found} {what.removesuffix('s') if found == 1 else what}"
            message = f"`{name}` has {has}, and needs {wanted}"
            raise wrong(scope, made.at[role], message, HELP[role], other.decl.body[0])


HELP = {
    "merge": "it takes the parts of two summaries, the earlier first, and gives those of one",
    "apply": "it takes the parts of a summary, then states by name, and gives each of these states",
}

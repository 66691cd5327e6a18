"""`chunk: law(Token, Merge, Apply)`: a composition law as three layers, made part of a recurrence.

`Token` takes values of the recurrence by name and gives the summary of one token, as its outputs.
`Merge` takes the parts of two summaries, the earlier first, and gives those of both in one.
`Apply` takes the parts of a summary and then states, by name, and gives the states after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from archc.diagnostics import Refused, did_you_mean
from archc.dims import BATCH, Axis
from archc.elaborate import in_place, layers, ops
from archc.elaborate.mentions import walk
from archc.elaborate.scope import Scope
from archc.elaborate.values import Frame, LayerRef, Tensor
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.syntax import tree

ROLES = ("token", "merge", "apply")

BEYOND = (tree.Param, tree.Repeat, tree.Recurrence, tree.Attend, tree.Blocks, tree.Route)
"""What no layer of a law has."""

ALGEBRA = (
    ir.Input, ir.Constant, ir.Position, ir.Delta, ir.Elementwise, ir.Reduce, ir.Contract,
    ir.Gather, ir.Scatter, ir.Top, ir.Solve,
)  # fmt: skip
"""What may become of summaries and states: each value by itself, whatever token it is of."""


@dataclass(eq=False)
class Rule:
    """A law as the spec names it: its layers, and where each is named; `used` once a recurrence has
    taken it."""

    rule: tree.Rule
    refs: Mapping[str, LayerRef]
    at: Mapping[str, tree.Expr]
    used: bool = False

    @property
    def count(self) -> int:
        """How many parts a summary has."""
        return len(_outputs(self.refs["token"]))

    @property
    def states(self) -> tuple[str, ...]:
        """The states that it is about."""
        declared = layers.inputs_of(self.refs["apply"].decl)
        return tuple(each.name for each in declared[self.count :])


def law(scope: Scope, rule: tree.Rule) -> None:
    """Note a law for the recurrence that declares its states."""
    made = _read(scope, rule)
    _check(scope, made)
    for other in scope.context.laws:
        twice = [name for name in made.states if name in other.states]
        if twice:
            message = f"`{twice[0]}` has two composition laws"
            raise _wrong(scope, rule, message, "leave one of them", other.rule)
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
            _wrong(scope, each.rule, what, "leave one of them")
        elif not each.used and not scope.session.report.diagnostics:
            names = ", ".join(f"`{name}`" for name in each.states)
            what = f"no recurrence here has the states {names}"
            inputs = layers.inputs_of(each.refs["apply"].decl)[each.count :]
            _wrong(scope, each.rule, what, f"`{inputs[0].span.text}` is to be a state", inputs[0])


def _wrong(
    scope: Scope, node: tree.Node, message: str, help: str = "", other: tree.Node | None = None
) -> Refused:
    """What is wrong with a law; `other` is a further place that has to do with it."""
    others = [(other.span, "see here")] if other is not None else []
    return scope.error("E0224", message, node.span, others=others, helps=[help] if help else [])


# --- what the rule names --------------------------------------------------------------------------


def _read(scope: Scope, rule: tree.Rule) -> Rule:
    """The three layers, by place or by name."""
    at: dict[str, tree.Expr] = {}
    for place, each in enumerate(rule.args):
        value = each.value if isinstance(each, tree.Argument) else each
        named = each.name if isinstance(each, tree.Argument) else None
        role = named or (ROLES[place] if place < len(ROLES) else "")
        if role not in ROLES or role in at:
            raise _wrong(scope, each, "`law` takes three layers", _USAGE)
        at[role] = value
    if len(at) < len(ROLES):
        raise _wrong(scope, rule, "`law` takes three layers", _USAGE)
    refs: dict[str, LayerRef] = {}
    for role in ROLES:
        found = scope.evaluate(at[role])
        if not isinstance(found, LayerRef):
            raise _wrong(scope, at[role], f"`{at[role].span.text}` is no layer", _USAGE)
        refs[role] = found
    return Rule(rule, refs, at)


_USAGE = "`law(Token, Merge, Apply)`: the summary of a token, of two summaries, and their effect"


def _outputs(ref: LayerRef) -> list[tree.Output]:
    return [stmt for stmt in ref.decl.body if isinstance(stmt, tree.Output)]


def _check(scope: Scope, made: Rule) -> None:
    """The layers are algebra alone, and have the inputs and outputs of a law."""
    for role in ROLES:
        decl = made.refs[role].decl
        for part in walk(decl.body):
            if isinstance(part, BEYOND):
                what = f"`{decl.name}` of a composition law has more than inputs and formulas"
                raise _wrong(scope, made.at[role], what, "write it without this", part)
    token, merge, apply = (made.refs[role] for role in ROLES)
    if not made.states:
        message = f"`{apply.decl.name}` takes no state"
        raise _wrong(scope, made.at["apply"], message, HELP["apply"])
    counts = (
        ("merge", len(layers.inputs_of(merge.decl)), 2 * made.count, "inputs", token),
        ("merge", len(_outputs(merge)), made.count, "outputs", token),
        ("apply", len(_outputs(apply)), len(made.states), "outputs", apply),
    )
    for role, found, wanted, what, other in counts:
        if found != wanted:
            name = made.refs[role].decl.name
            has = f"{found} {what.removesuffix('s') if found == 1 else what}"
            message = f"`{name}` has {has}, and needs {wanted}"
            raise _wrong(scope, made.at[role], message, HELP[role], other.decl.body[0])


HELP = {
    "merge": "it takes the parts of two summaries, the earlier first, and gives those of one",
    "apply": "it takes the parts of a summary, then states by name, and gives each of these states",
}


# --- in a recurrence ------------------------------------------------------------------------------


def laws_of(
    inner: Scope, states: Mapping[str, tuple[Axis, ...]], heads: Sequence[Axis]
) -> tuple[GivenLaw, ...]:
    """The laws of a recurrence's states, given their axes. The body puts out the summaries."""
    shared, found = (BATCH, *inner.extra, *heads), list[GivenLaw]()
    for each in inner.context.laws:
        if set(each.states) & set(states) and not each.used:
            taken = {part for law in found for part in law.parts}
            found.append(_law(inner, each, states, shared, taken))
    return tuple(found)


def _law(
    inner: Scope,
    made: Rule,
    states: Mapping[str, tuple[Axis, ...]],
    shared: tuple[Axis, ...],
    taken: Collection[str],
) -> GivenLaw:
    """One law; `shared` are the axes that every part of a summary has, `taken` names of parts."""
    made.used = True
    stranger = next((name for name in made.states if name not in states), None)
    if stranger is not None:
        inputs = {each.name: each for each in layers.inputs_of(made.refs["apply"].decl)}
        message = f"`{stranger}` is no state of this recurrence"
        raise _wrong(inner, made.at["apply"], message, HELP["apply"], inputs[stranger])
    types: dict[str, Type] = {}
    for output, part in _token(inner, made).items():
        name = f"{output}_{made.states[0]}" if output in taken else output
        types[name] = Type((*shared, *inner.visible(part)))
        inner.frame.graph.outputs[f"{name}@{made.states[0]}"] = part.node
    own = {name: Type(states[name]) for name in made.states}
    merge = {f"{name}.{which}": type for which in (1, 2) for name, type in types.items()}
    apply = {**types, **{ck.start(name): type for name, type in own.items()}}
    text = " ".join(made.rule.span.text.split())
    named = tuple((made.refs[role].decl.name, made.at[role].span) for role in ROLES)
    return GivenLaw(
        made.states, tuple(types), _graph(inner, made, "merge", merge, types),
        _graph(inner, made, "apply", apply, {ck.final(n): t for n, t in own.items()}),
        text, made.rule.span, named,
    )  # fmt: skip


def _token(inner: Scope, made: Rule) -> dict[str, Tensor]:
    """The summary of a token, from values of the recurrence; it depends on no state of the law."""
    ref, at = made.refs["token"], made.at["token"]
    values = []
    for item in layers.inputs_of(ref.decl):
        if inner.find(item.name) is None:
            near = did_you_mean(item.name, _values(inner))
            message = f"`{item.name}` is no value of the recurrence"
            help = near[0] if near else "inputs of the first layer are values of the recurrence"
            raise _wrong(inner, at, message, help, item)
        value = ops.tensor(inner, inner.lookup(item.name, at.span), item.span)
        before = {f"{name}[t-1]" for name in made.states}
        graph = inner.frame.graph
        reads = (graph[id].op for id in (value.node, *sorted(graph.ancestors(value.node))))
        if any(isinstance(op, ir.Input) and op.name in before for op in reads):
            message = f"`{item.name}` depends on the state, and the summary of a token may not"
            raise _wrong(inner, at, message, "take what enters the recurrence", item)
        values.append(value)
    graph = inner.frame.graph
    fresh = graph.fresh
    found = in_place.outputs(replace(inner, rows=True), ref, values, at)
    if any(node.id >= fresh and isinstance(node.op, ir.Noise) for node in graph):
        message = f"`{ref.decl.name}` draws random numbers, which are not those of the recurrence"
        raise _wrong(inner, at, message, "name the value outside, and take it")
    return {name: _real(inner, value, at) for name, value in found.items()}


def _values(scope: Scope) -> Iterator[str]:
    """Names of values that are visible."""
    here: Scope | None = scope
    while here is not None:
        yield from (name for name in here.names if not isinstance(here.names[name], LayerRef))
        here = here.parent


def _real(scope: Scope, value: Tensor, at: tree.Expr) -> Tensor:
    """A value as real numbers: summaries hold nothing else."""
    if value.type.dtype == "real":
        return value
    return ops.node(scope, ir.Elementwise("real"), value, span=at.span)


def _graph(
    inner: Scope,
    made: Rule,
    role: str,
    inputs: Mapping[str, Type],
    outputs: Mapping[str, Type],
) -> Graph:
    """`Merge` or `Apply` as a graph of its own, its inputs and outputs in order."""
    ref, at = made.refs[role], made.at[role]
    frame = Frame(layer_graph(), region=True)
    scope = replace(inner, frame=frame, gate=None, rows=True)
    inputs_of = layers.inputs_of(ref.decl)
    given = [
        Tensor(frame, frame.graph.add(ir.Input(name, type), span=item.span), origin=item.span)
        for (name, type), item in zip(inputs.items(), inputs_of, strict=True)
    ]
    own = [_own_axes(scope, item, value) for item, value in zip(inputs_of, given, strict=True)]
    found = in_place.outputs(scope, ref, own, at)
    for (name, type), stmt, value in zip(
        outputs.items(), _outputs(ref), found.values(), strict=True
    ):
        made_of = _real(scope, value, at)
        frame.graph.outputs[name] = _given_axes(scope, made, role, stmt, made_of, type).node
    frame.graph.prune([value.node for value in given])
    for node in frame.graph:
        if not isinstance(node.op, ALGEBRA):
            message = f"`{ref.decl.name}` is to be made of formulas of its inputs alone"
            raise _wrong(inner, at, message, HELP[role], ref.decl.body[0])
    return frame.graph


def _own_axes(scope: Scope, item: tree.Declared, value: Tensor) -> Tensor:
    """An input with its axes as the layer names them: `N[L, K]` and `M[K, J]` have one in common,
    though both are a summary's `[K, K']`."""
    axes = scope.visible(value)
    if len(axes) != len(item.axes or ()):
        return value  # refused where the layer is entered
    pairs = []
    for axis, written in zip(axes, item.axes or (), strict=True):
        name = written.id if isinstance(written, tree.Name) else axis.name
        base = name.rstrip("'")
        own = f"{base}_" if base in scope.hidden else base
        pairs.append((axis, axis.renamed(own + name[len(base) :])))
    if all(axis.name == new.name for axis, new in pairs):
        return value
    return ops.relabel(scope, value, pairs, item.span)


def _given_axes(
    scope: Scope, made: Rule, role: str, stmt: tree.Output, value: Tensor, type: Type
) -> Tensor:
    """An output with the axes that are wanted, which it has by another name or by the same."""
    got = scope.visible(value)
    wanted = [axis for axis in type.axes if axis.kind == "dim" and axis.name not in scope.hidden]
    names, others = [a.name for a in got], [a.name for a in wanted]
    turned = names != others and sorted(names) == sorted(others)
    if turned or [a.size for a in got] != [a.size for a in wanted]:
        name = made.refs[role].decl.name
        message = f"`{stmt.target.name}` of `{name}` is {ops.shape(scope, value)}"
        raise _wrong(
            scope, made.at[role], f"{message}, not [{', '.join(others)}]", HELP[role], stmt
        )
    if names == others:
        return value
    return ops.relabel(scope, value, list(zip(got, wanted, strict=True)), stmt.span)

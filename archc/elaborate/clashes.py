"""A name is a value or an index of tokens, experts, blocks or layers, never both in one layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archc.diagnostics import Refused
from archc.elaborate.mentions import names_defined, walk
from archc.elaborate.scope import Scope
from archc.source import Span
from archc.syntax import tree

MEANINGS: dict[type[tree.Node], str] = {
    tree.Input: "the index of another sequence",
    tree.Along: "the index of a sum or product along the sequence",
    tree.Blocks: "the index of blocks",
    tree.Route: "the index of a route",
    tree.Repeat: "the index of a `repeat`",
}


def check_names(scope: Scope, decl: tree.Decl) -> None:
    """Refuse a value, size or further index that has the name of an index, and a parameter of a
    loop's layers that has the name of a size."""
    own = {name: (what, span) for name, what, span in _indices(decl)}
    indices: dict[str, tuple[str, Span | None]] = {**own}
    if decl.kind != "function" or _has_blocks(decl):
        if "t" in own:
            what, span = own["t"]
            raise scope.error("E0210", f"`t` is the token at hand, and {what}", span, "again here")
        indices["t"] = ("the token at hand", None)
    for name, span in _values(decl):
        if name in indices:
            what, first = indices[name]
            raise scope.error(
                "E0210",
                f"`{name}` is {what} already",
                span,
                "again here",
                others=[(first, "an index here")] if first else [],
                helps=["give the value another name"],
            )
    for name, span, first in _twice(decl):
        raise declared_twice(scope, name, span, first)
    sizes = {parameter.name: parameter.span for parameter in decl.params}
    for part in walk(decl.body):
        if isinstance(part, tree.Declared) and part.name in sizes:
            raise declared_twice(scope, part.name, part.span, sizes[part.name])


def declared_twice(scope: Scope, name: str, span: Span, first: Span | None) -> Refused:
    """The refusal of a name that is declared again."""
    return scope.error(
        "E0210",
        f"`{name}` is declared twice",
        span,
        "again here",
        others=[(first, "first here")],
        helps=["each name has one meaning; give this one another name"],
    )


def index_of(scope: Scope, node: tree.Attend, names: list[str]) -> None:
    """Refuse an `attend` that has no index, as all names in its range are values."""
    used = {
        part.items[0].id
        for part in walk(node.body)
        if isinstance(part, tree.Index) and isinstance(part.items[0], tree.Name)
    }
    taken = [name for name in names if name in used] or names
    if taken:
        raise scope.error(
            "E0210",
            f"`{taken[-1]}` is a value or size already, so it is no index of tokens",
            node.range.span,
            "choose another index",
        )


def check_index(scope: Scope, node: tree.Attend, name: str) -> None:
    """Refuse a value in the body of an `attend` that has the name of its index."""
    if name in names_defined(node.body):
        raise scope.error(
            "E0210", f"`{name}` is the index of this `{node.keyword}` already", node.span
        )


def _has_blocks(decl: tree.Decl) -> bool:
    return any(isinstance(part, tree.Recurrence | tree.Attend) for part in walk(decl.body))


def _indices(decl: tree.Decl) -> Iterator[tuple[str, str, Span]]:
    """Names of indices, what they are and where; those of an `attend` are known later."""
    for part in walk(decl.body):
        what = MEANINGS.get(type(part))
        name = _index(part)
        if what and name:
            yield name, what, part.span


def _twice(decl: tree.Decl) -> Iterator[tuple[str, Span, Span]]:
    """Indices of blocks inside a block of the same index, where they are and where that is."""
    for part in walk(decl.body):
        if isinstance(part, tree.Route | tree.Repeat | tree.Along):
            for inner in walk(part):
                if inner is not part and type(inner) in MEANINGS and part.index == _index(inner):
                    yield part.index, inner.span, part.span


def _index(part: tree.Node) -> str | None:
    """The name of an index that a part of the text brings."""
    return part.along if isinstance(part, tree.Input) else getattr(part, "index", None)


def _values(decl: tree.Decl) -> Iterator[tuple[str, Span]]:
    """Names of sizes, options, inputs, parameters, states and values, where they are declared."""
    for part in walk((decl.params, decl.body)):
        if isinstance(part, tree.Parameter | tree.Declared | tree.StateDecl | tree.Target):
            yield part.name, part.span


def _check_dims(scope: Scope, names: Sequence[tree.Declared]) -> None:
    """Refuse names without dims before one that has some."""
    bare: list[tree.Declared] = []
    for item in names:
        if item.axes is None:
            bare.append(item)
        elif bare:
            text = item.span.text
            dims = text[text.index("[") :]
            first = bare[0]
            same = ", ".join(f"{each.name}{dims}" for each in bare)
            scope.error(
                "E0228",
                f"`{first.name}` has no dims, and `{text}` behind it has",
                first.span,
                helps=[f"write `{same}`; one number a token is `{first.name}[]`"],
            )
            bare = []


def check_inputs(scope: Scope, decl: tree.Decl) -> None:
    """Refuse several inputs in one statement where what stands behind them may be meant of the
    last alone, `x[d], c[e] along m` of a layer without other tokens, `x[d], tokens in vocab`; or of
    all, as it would be of parameters: `q, k[H, K]`."""
    inputs = [stmt for stmt in decl.body if isinstance(stmt, tree.Input)]
    own = any(stmt.along is None for stmt in inputs)
    for stmt in inputs:
        kinds = {item.axes is None for item in stmt.names}
        _check_dims(scope, stmt.names)
        mixed = stmt.within is not None and len(kinds) > 1
        if len(stmt.names) > 1 and (mixed or not own):
            *others, last = (item.span.text for item in stmt.names)
            said = stmt.span.text[stmt.names[-1].span.end - stmt.span.start :].strip()
            scope.error(
                "E0228",
                f"`{said}` behind several inputs is said of all of them",
                stmt.span,
                helps=[
                    f"if it is of `{last}` alone, give that a line of its own: "
                    f"`input {', '.join(others)}`, then `input {last} {said}`",
                ],
            )

"""A spec with a slot for a name in every role that a name has, and whether two files of it are the
same but for the names."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

SPEC = """block {Block}({size_a}, {option_a} = 2.0):
    input {input_a}[{size_a}]
    param {param_a}[{size_a}]
    output {output_a}[{size_a}] = {input_a} * {param_a} * {option_a}

layer {Layer}({size_b}, {size_c}, {size_d}, {size_e}, {option_b} = 0.5):
    input {input_b}[{size_b}], {input_c}[{size_c}]
    param {param_b}, {param_c}[{size_b}, {size_c}, {size_d}]
    param {param_d}[{size_b}, {size_c}, {size_e}]; {param_e}[{size_c}, {size_e}, {size_b}]
    {value_a} = {input_b} @ {param_b}
    {value_b} = {input_b} @ {param_c} * {option_b}
    {value_c} = {input_b} @ {param_d}
    {value_d} = sigmoid({input_c})
    recurrence {state_a}[{size_d}, {size_e}], {state_b}[{size_d}] over {size_c}:
        {state_a}[t] = {value_d} * {state_a}[t-1] + {value_b} @ {value_c}.T
        {state_b}[t] = {value_d} * {state_b}[t-1] + {value_b}
        {value_e} = {state_a}[t].T @ {value_a} / (1 + {state_b}[t].T @ {state_b}[t])
    attend {index_a} <= t over {size_c}:
        {value_f} = softmax({value_a}[t].T @ {value_b}[{index_a}]) @ {value_c}[{index_a}]
    {value_g} = ({value_e} + {value_f}) @ {param_e}
    {sub_a} = {Block}({size_b})
    repeat 2 as {index_b}:
        {value_g} = {value_g} + {sub_a}({value_g}) * {index_b}
    output {output_b} = {value_g}
    output {output_c} = {value_d} * {value_d}
"""


SLOTS = (
    *("Block", "Layer", "sub_a", "size_a", "size_b", "size_c", "size_d", "size_e"),
    *("option_a", "option_b", "input_a", "input_b", "input_c"),
    *("param_a", "param_b", "param_c", "param_d", "param_e"),
    *("value_a", "value_b", "value_c", "value_d", "value_e", "value_f", "value_g"),
    *("state_a", "state_b", "index_a", "index_b", "output_a", "output_b", "output_c"),
)
NEUTRAL = {slot: f"{slot[0]}z{slot[1:].replace('_', 'z')}" for slot in SLOTS}
"""Names that nothing else has, and that sort as the slots do."""


def spec(names: Mapping[str, str]) -> str:
    """The spec with some of its names, and neutral ones in the other slots."""
    return SPEC.format(**{**NEUTRAL, **names})


# --- files that are the same but for their names ------------------------------------------------


class Different(AssertionError):
    """Two files differ in more than names, and where."""


@dataclass
class Renaming:
    """A one-to-one relation of names, as far as it is known."""

    forth: dict[str, str] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)

    def pair(self, first: str, second: str, where: str) -> None:
        """Note that one name stands where the other does."""
        known = self.forth.setdefault(first, second), self.back.setdefault(second, first)
        if known != (second, first):
            raise Different(f"{where}: `{first}` and `{second}`, but also {known}")


def compare(first: str, second: str) -> int:
    """How many functions and classes of two files are built alike; raise Different where one of
    these is not the same but for its names: what one binds the other binds in the same place, and
    what neither binds is the same word. Where names decide how long a line is, or what comes first,
    nothing can be said of a function."""
    trees = [ast.parse(text) for text in (first, second)]
    if len(trees[0].body) != len(trees[1].body):
        raise Different(f"{len(trees[0].body)} and {len(trees[1].body)} definitions")
    alike = 0
    scopes = (Scope(trees),)
    for nodes in zip(trees[0].body, trees[1].body, strict=True):
        if shape(nodes[0]) == shape(nodes[1]):
            Comparison().nodes(*nodes, scopes)
            alike += 1
    return alike


def shape(node: ast.AST) -> str:
    """A tree without its names and texts."""
    return re.sub(r"'[^']*'|\"[^\"]*\"", "", ast.dump(node))


class Scope:
    """The names of one function, class body or file, each with that of the other file."""

    def __init__(self, nodes: Sequence[ast.AST]):
        self.bound = tuple(frozenset(_bound(node)) for node in nodes)
        self.of_class = isinstance(nodes[0], ast.ClassDef)
        self.names = Renaming()


class Comparison:
    """Walks two trees side by side."""

    def __init__(self) -> None:
        self.own, self.attributes, self.keywords = Renaming(), Renaming(), Renaming()

    def nodes(self, first: ast.AST, second: ast.AST, scopes: tuple[Scope, ...]) -> None:
        """Compare two nodes and everything in them."""
        if type(first) is not type(second):
            raise Different(f"line {_line(first)} and {_line(second)}: other statements")
        where = f"lines {_line(first)} and {_line(second)}"
        match first, second:
            case ast.Name(), ast.Name():
                self.name(first.id, second.id, scopes, where)
            case ast.arg(), ast.arg():
                self.name(first.arg, second.arg, scopes, where)
            case ast.Attribute(), ast.Attribute():
                own = isinstance(first.value, ast.Name) and first.value.id in ("self", "layer")
                if own or first.attr != second.attr:  # a tensor's attribute may be a name, too
                    (self.own if own else self.attributes).pair(first.attr, second.attr, where)
            case ast.keyword(arg=str()), ast.keyword(arg=str()):
                if first.arg != second.arg:  # a function of torch may take what is a name, too
                    self.keywords.pair(str(first.arg), str(second.arg), where)
            case ast.Constant(), ast.Constant():
                if isinstance(first.value, str) != isinstance(second.value, str) or (
                    first.value != second.value and not isinstance(first.value, str)
                ):
                    raise Different(f"{where}: {first.value} and {second.value}")
        if isinstance(first, ast.FunctionDef | ast.ClassDef):
            assert isinstance(second, ast.FunctionDef | ast.ClassDef)
            self.name(first.name, second.name, scopes, where)
        if isinstance(first, SCOPES):
            scopes = (*(s for s in scopes if not s.of_class), Scope((first, second)))
        inner = tuple(list(ast.iter_child_nodes(node)) for node in (first, second))
        if len(inner[0]) != len(inner[1]):
            raise Different(f"{where}: {len(inner[0])} and {len(inner[1])} parts")
        for a, b in zip(*inner, strict=True):
            self.nodes(a, b, scopes)

    def name(self, first: str, second: str, scopes: tuple[Scope, ...], where: str) -> None:
        """Compare two uses of a name."""
        homes = [
            next((s for s in scopes[::-1] if name in s.bound[side]), None)
            for side, name in enumerate((first, second))
        ]
        if homes[0] is not homes[1]:
            raise Different(f"{where}: `{first}` and `{second}` are not bound in the same scope")
        if homes[0] is not None:
            homes[0].names.pair(first, second, where)
        elif first != second:
            raise Different(f"{where}: `{first}` and `{second}` are bound nowhere")
        elif not hasattr(builtins, first):
            raise Different(f"{where}: `{first}` is not defined")


SCOPES = (ast.Module, ast.FunctionDef, ast.ClassDef, ast.Lambda)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _bound(scope: ast.AST) -> Iterator[str]:
    """Names that a scope binds itself, those of its comprehensions too."""
    if isinstance(scope, ast.FunctionDef | ast.Lambda):
        arguments = scope.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        every += [arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        yield from (arg.arg for arg in every)
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
            continue
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name).split(".")[0] for alias in node.names)
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        waiting += list(ast.iter_child_nodes(node))

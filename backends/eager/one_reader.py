"""A reader that comes alone reads keys that matrices of the tokens between have moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.region import by_kernels_or
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import NUMBER, Value
from archc.backends.expression import Text
from archc.backends.writer import in_tuple, quoted

from archc.attention.moved_keys import Moved, moved_keys
from archc.ir import layer as ir
from archc.ir.graph import Node

if TYPE_CHECKING:
    from archc.backends.eager.attend import AttendFunction


class Factors(GraphFunction):
    """The function that makes the vectors of a token's matrix."""

    last: tuple[str, ...] = ()


class Alone:
    """How an attend is done for one reader of many tokens, whose keys are kept as they were moved.
    `make` is the function that makes that of an attend."""

    def __init__(
        self, scope: Scope, node: Node, values: Mapping[str, Value], moved: Moved,
        first: AttendFunction, make: Callable[..., AttendFunction],
    ):  # fmt: skip
        self.scope, self.values, self.moved, self.title = scope, values, moved, first.name
        operands = dict(zip((name for name, _ in node.op.captures), node.operands, strict=True))
        assert scope.memory is not None
        self.read = [n.op.name for n in moved.factors if isinstance(n.op, ir.Input)]
        fields = [scope.memory.field("seen", operands[n]) for n in (moved.key, *self.read)]
        self.past = [f"state.{field.name}" for field in fields if field is not None]
        left = tuple(operands[name] for name, _ in moved.op.captures)
        own = {name: values[name] for name, _ in moved.op.captures}
        self.keys = scope.names.fresh(f"{values[moved.key].text}_moved")
        own[moved.key] = replace(values[moved.key], text=Text(self.keys))
        self.node = replace(node, op=moved.op, operands=left)
        self.function = make(scope, self.node, own, "_moved")
        self.function.unpacked, self.own = True, own

    @property
    def laid_out(self) -> bool:
        """Whether keys, and what matrices are made of, begin with sequences and tokens."""
        layouts = [self.values[name].layout for name in (self.moved.key, *self.read)]
        along = ("batch", self.moved.op.source)
        return len(self.past) == len(layouts) and all(own[:2] == along for own in layouts)

    @property
    def test(self) -> str:
        """Whether there is one reader, of more tokens than itself, and nothing that learns."""
        scope, values = self.scope, self.values
        tensors = [v.text.text for v in values.values() if v.kind != NUMBER]
        readers = scope.ask(scope.lengths[self.moved.op.reader.name])
        alone = [f"{scope.cu_seqlens} is None"] if scope.cu_seqlens else []
        more = f"{values[self.moved.key].text}.shape[1] > 1"
        return " and ".join([*alone, f"{readers} == 1", more, f"moves_keys({', '.join(tensors)})"])

    def write(self, targets: dict[str, str]) -> None:
        """Write the lines that move the keys, and read them."""
        scope, by_folds, title = self.scope, self.scope.file.by_folds, self.function.name
        move = "move_by_torch" if by_folds is None else "move_by_kernel"
        move = move if self.moved.signs else "move_by_gates"
        seen = [self.values[name].text.text for name in (self.moved.key, *self.read)]
        signs = [str(sign) for sign in self.moved.signs]
        rest = [in_tuple(self.past), in_tuple(seen), self._factors(), in_tuple(signs)]
        scope.writer.call(f"{self.keys} = moved_keys(", [move, quoted(self.title), *rest], ")")
        self.function.write()
        folded = by_folds and by_folds(scope, self.node, self.own, title, many=False, alone=True)
        by_kernels_or(scope, folded, targets, lambda: self.function.call(targets))

    def _factors(self) -> str:
        """The function that makes vectors of a token's matrix, of what is `read`."""
        scope, graph, op, read = self.scope, self.moved.factors, self.moved.op, self.read
        assert op.path is not None
        name = scope.file.names.fresh(f"{self.title}_factors")
        along = {op.source: op.path.name}
        given = {each: self.values[each] for each in read}
        given = {n: replace(v, layout=tuple(along.get(a, a) for a in v.layout))
                 for n, v in given.items()}  # fmt: skip
        function = Factors(scope, graph, name, given, read, op.path)
        batch, _, *heads, _ = self.values[self.moved.key].layout
        layouts = {}
        for output, id in graph.outputs.items():
            (dim,) = {*graph[id].type.names} - {batch, op.path.name, *heads}
            layouts[output] = (batch, op.path.name, *heads, dim)
        doc = "The vectors u and w of each product u w' in the matrix of a token, in turn."
        doc = doc if self.moved.signs else "The logarithms of the gates of a token."
        extra = function.write(layouts, doc)
        if not extra:
            return name
        return f"lambda {', '.join(read)}: {name}({', '.join([*read, *extra.values()])})"


def of_one_reader(
    scope: Scope, node: Node, values: Mapping[str, Value], first: AttendFunction,
    make: Callable[..., AttendFunction],
) -> Alone | None:  # fmt: skip
    """How an attend is done for a reader that comes alone, if keys can be moved for it."""
    moved = moved_keys(node.op) if scope.memory is not None and not scope.file.slots else None
    if moved is None or any(value.kind == NUMBER for value in values.values()):
        return None
    made = Alone(scope, node, values, moved, first, make)
    return made if made.laid_out else None

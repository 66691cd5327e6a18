"""The docstring of a kernel: what it stores, each value with its formula and dims, and where in the
spec these come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from archc.functions.definitions import FUNCTIONS
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernel
from archc.ir.text import op_text
from archc.source import lines_of

SAME = (ck.Chunks, ck.Tokens)
"""Ops that lay values out by chunks or by tokens."""

LONGEST = 360
"""Characters of a formula; of a longer one only what it is made of is said."""


def about(kernel: Kernel, why: str = "") -> str:
    """The lines of the docstring of a kernel, the first of them a sentence; `why` it is one, where
    the kernel does not say so."""
    stored = ", ".join(f"`{name}`" for name in (*kernel.stores, *kernel.ends.values()))
    lines = [f"{stored}, {why or kernel.why[0]}."]
    own = {id: name for name, id in kernel.stores.items()}
    for name, id in kernel.stores.items():
        known = {**kernel.loads, **{other: own[other] for other in own if other != id}}
        lines.append(_line(kernel.graph, id, name, known))
    if kernel.walk is not None:
        recurrence = kernel.graph[kernel.walk]
        captured = dict(zip(recurrence.op.captures, recurrence.operands, strict=False))
        names = {n: formula(kernel.graph, id, kernel.loads) for n, id in captured.items()}
        inputs = ((n.id, n.op.name) for n in recurrence.op.body if isinstance(n.op, ir.Input))
        known = {id: names[name] for id, name in inputs if name in names}
        lines += [
            _line(recurrence.op.body, id, n, known) for n, id in recurrence.op.body.outputs.items()
        ]
    return "\n".join([*lines, *_places(_sources(kernel))])


def about_tokens(graph: Graph) -> str:
    """The same of a kernel that makes the outputs of a graph for a block of tokens a program."""
    made = ", ".join(f"`{name}`" for name in graph.outputs)
    lines = [_line(graph, id, name, {}) for name, id in graph.outputs.items()]
    return "\n".join([f"{made}: a block of tokens a program.", *lines, *_places(graph)])


def _places(nodes: Iterable[Node]) -> list[str]:
    """The lines of a spec that nodes come from, in order."""
    return lines_of(node.span for node in nodes if node.span is not None)


def _sources(kernel: Kernel) -> list[Node]:
    """The nodes of a kernel's graph that it makes, those of its recurrence included."""
    graph, waiting, seen = kernel.graph, [*kernel.stores.values()], dict[int, Node]()
    waiting += [kernel.walk] if kernel.walk is not None else []
    while waiting:
        node = graph[waiting.pop()]
        if node.id not in seen:
            seen[node.id] = node
            loaded = node.id in kernel.loads and node.id not in kernel.stores.values()
            waiting += [] if loaded else node.operands
    inner = [] if kernel.walk is None else [*graph[kernel.walk].op.body]
    return [*seen.values(), *inner]


def _line(graph: Graph, id: int, name: str, known: Mapping[int, str]) -> str:
    """`beta_k = beta * k  [batch t H K]`."""
    node, others = graph[id], {other: each for other, each in known.items() if other != id}
    text = formula(graph, id, others)
    if len(text) > LONGEST:
        text = f"a formula of {', '.join(_leaves(graph, id, others))}"
    return f"{name} = {text}  [{' '.join(node.type.names)}]"


def formula(graph: Graph, id: int, known: Mapping[int, str]) -> str:
    """A value as an expression of inputs and of what is known by a name."""
    texts = dict(known)
    for node in _operands_first(graph, id, known):
        if node.id not in texts:
            given = tuple(texts[each] for each in node.operands)
            long = sum(map(len, given)) > LONGEST  # what is longer is not shown
            texts[node.id] = " " * (LONGEST + 1) if long else _text(node, given, node.id == id)
    return texts[id]


def _operands_first(graph: Graph, id: int, known: Mapping[int, str]) -> list[Node]:
    """The nodes that a value is made of, down to what is known."""
    needed, waiting = set[int](), [id]
    while waiting:
        each = waiting.pop()
        if each not in needed:
            needed.add(each)
            waiting += [] if each in known else graph[each].operands
    return [node for node in graph if node.id in needed]


def _text(node: Node, given: tuple[str, ...], outer: bool) -> str:
    """One op of operands, in brackets where it is an operand itself."""
    if isinstance(node.op, ir.Input | ir.Result):
        return node.op.name
    symbol = FUNCTIONS[node.op.fn].symbol if isinstance(node.op, ir.Elementwise) else ""
    if symbol and len(given) == 2:
        text = f" {symbol} ".join(given)
        return text if outer else f"({text})"
    if symbol:
        return f"{symbol}{given[0]}"
    if isinstance(node.op, SAME):
        return given[0]
    if isinstance(node.op, ir.Contract):
        return _contracted(node.op, given)
    return op_text(node.op, given)


def _contracted(op: ir.Contract, given: tuple[str, ...]) -> str:
    """A sum of products, over the labels that no result has; of another name for an axis nothing is
    said."""
    if any(len({*labels}) < len(labels) for labels in op.ins):  # a diagonal
        return op_text(op, given)
    kept = {label for label, _ in op.out}
    summed = dict.fromkeys(label for labels in op.ins for label in labels if label not in kept)
    product = " * ".join(given)
    if summed:
        return f"sum[{', '.join(summed)}]({product})"
    return f"({product})" if len(given) > 1 else product


def _leaves(graph: Graph, id: int, known: Mapping[int, str]) -> list[str]:
    """The names that the formula of a value ends in."""
    found = _operands_first(graph, id, known)
    names = (known.get(n.id) or (n.op.name if isinstance(n.op, ir.Input) else "") for n in found)
    return [*dict.fromkeys(name for name in names if name)]

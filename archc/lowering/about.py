"""The docstring of a kernel: what it stores, each value with its formula and dims, and where in the
spec these come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from archc.functions.definitions import FUNCTIONS
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Kernel
from archc.ir.roles import held
from archc.ir.text import op_text
from archc.source import lines_of

SAME = (ck.Chunks, ck.Tokens)
"""Ops that lay values out by chunks or by tokens."""

LONGEST, STEP, TWICE, MOST = 200, 110, 24, 2000
"""Characters of a formula: a longer one is said in steps, each so long at least, or so long if it
is read more than once; and how long texts are written at all."""


def about(kernel: Kernel, why: str = "") -> str:
    """The lines of the docstring of a kernel, the first of them a sentence; `why` it is one, where
    the kernel does not say so."""
    stored = ", ".join(f"`{name}`" for name in (*kernel.stores, *kernel.ends.values()))
    same = {n for n, id in kernel.stores.items() if _is_called(kernel.graph[id], n)}
    stores = {name: id for name, id in kernel.stores.items() if name not in same}
    lines = [
        f"{stored}, {why or kernel.why[0]}.", *_formulas(kernel.graph, stores, kernel.loads),
        *(() if kernel.walk is None else _of_walk(kernel, kernel.graph[kernel.walk])),
    ]  # fmt: skip
    return "\n".join([*lines, *places(kernel)])


def places(kernel: Kernel) -> list[str]:
    """The lines of a spec that what a kernel makes comes from, in order."""
    return _places(_sources(kernel))


def _is_called(node: Node, name: str) -> bool:
    """Whether a value is what a walk calls so."""
    return isinstance(node.op, ir.Result) and node.op.name == name


def _of_walk(kernel: Kernel, recurrence: Node) -> list[str]:
    """The lines of what a walk makes at every chunk."""
    loads, left_out = kernel.loads, [f"`{name}`" for name in sorted(kernel.optional)]
    captured = ir.captured(recurrence)
    texts = {name: formula(kernel.graph, id, loads) for name, id in captured.items()}
    long = {name: id for name, id in captured.items() if len(texts[name]) > LONGEST}
    texts |= {name: name for name in long}
    body = recurrence.op.body
    inputs = ((node.id, node.op.name) for node in body if isinstance(node.op, ir.Input))
    known = {id: texts[name] for id, name in inputs if name in texts}
    zero = [f"Without {', '.join(left_out)}: a segment, from a state of 0."] if left_out else []
    if kernel.alone is not None and kernel.split is not None:
        split, row = kernel.split.name, kernel.alone.row.name
        zero.append(f"ALONE = 1: what becomes of a state alone, from 1 along {row} and {split}.")
    return [*_formulas(kernel.graph, long, loads), *_formulas(body, body.outputs, known), *zero]


def about_tokens(graph: Graph) -> str:
    """The same of a kernel that makes the outputs of a graph for a block of tokens a program."""
    made = ", ".join(f"`{name}`" for name in graph.outputs)
    lines = [f"{made}: a block of tokens a program.", *_formulas(graph, graph.outputs, {})]
    return "\n".join([*lines, *_places(graph)])


def _formulas(graph: Graph, values: Mapping[str, int], known: Mapping[int, str]) -> list[str]:
    """The lines of several values, each in terms of the others where it is made of them."""
    steps, lines = dict[int, str](), list[str]()
    own = {id: n for n, id in values.items() if not isinstance(graph[id].op, ir.Input)}
    made = {node.id: node for id in own for node in _operands_first(graph, id, known)}
    reads = Counter(o for id, node in made.items() if id not in known for o in node.operands)
    for name, id in values.items():
        others = {other: each for other, each in own.items() if other != id}
        lines += _lines(graph, id, name, {**known, **others}, steps, reads)
    return lines


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


def _lines(
    graph: Graph, id: int, name: str, known: Mapping[int, str], steps: dict[int, str],
    reads: Mapping[int, int],
) -> list[str]:  # fmt: skip
    """`beta_k = beta * k  [batch t H K]`, after the lines of its steps where it is long. `steps`
    are those that have lines already: further ones are added. `reads`: how often a kernel reads
    each value."""
    others = {**steps, **{other: each for other, each in known.items() if other != id}}
    lines = []
    if len(formula(graph, id, others)) > LONGEST:
        taken = {name, *known.values(), *steps.values()}
        for step in _steps(graph, id, others, reads):
            steps[step] = numbered(held(graph, step), taken)
            taken.add(steps[step])
            lines.append(_line(graph, step, steps[step], others))
            others[step] = steps[step]
    return [*lines, _line(graph, id, name, others)]


def _line(graph: Graph, id: int, name: str, known: Mapping[int, str]) -> str:
    """`beta_k = beta * k  [batch t H K]`."""
    others = {other: each for other, each in known.items() if other != id}
    return f"{name} = {formula(graph, id, others)}  [{' '.join(graph[id].type.names)}]"


def _steps(graph: Graph, id: int, known: Mapping[int, str], reads: Mapping[int, int]) -> list[int]:
    """The values that a long formula is said by, operands first."""
    needed, texts, found = _operands_first(graph, id, known), dict(known), list[int]()
    for node in needed:
        if node.id in texts:
            continue
        texts[node.id] = _text(node, tuple(texts[each] for each in node.operands), False)
        long = TWICE if reads[node.id] > 1 else STEP
        if node.id != id and len(texts[node.id]) > long and not isinstance(node.op, SAME):
            found.append(node.id)
            texts[node.id] = "step"
    return found


def formula(graph: Graph, id: int, known: Mapping[int, str]) -> str:
    """A value as an expression of inputs and of what is known by a name."""
    texts = dict(known)
    for node in _operands_first(graph, id, known):
        if node.id not in texts:
            given = tuple(texts[each] for each in node.operands)
            long = sum(map(len, given)) > MOST  # what is longer is said in steps
            texts[node.id] = " " * (MOST + 1) if long else _text(node, given, node.id == id)
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
    """A sum of products, over the labels that no result has; nothing is said of renamed axes."""
    if any(len({*labels}) < len(labels) for labels in op.ins):  # a diagonal
        return op_text(op, given)
    kept = {label for label, _ in op.out}
    summed = dict.fromkeys(label for labels in op.ins for label in labels if label not in kept)
    product = " * ".join(given)
    if summed:
        return f"sum[{', '.join(summed)}]({product})"
    return f"({product})" if len(given) > 1 else product

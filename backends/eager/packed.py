"""The lines of a forward, or of a function, that run it on packed sequences.

A layer takes them in one run where everything in it is done token by token, or respects the borders
between them: recurrences, shifts and windows of tokens, and attentions to the layer's own tokens.
Where anything else looks along tokens (a sum over all of them), where values are one a sequence, or
where another sequence enters, it runs once for each sequence. So do sequences that go on from a
state, where each keeps as much as it has seen.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from archc.backends.eager.lists import makes_lists, reads_lists
from archc.backends.eager.memory import Memory, memory_of
from archc.backends.writer import INDENT, Writer, quoted

from archc.dims import T_SEEN, TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.losses import for_losses, for_tokens, is_read, sums_all_tokens

if TYPE_CHECKING:
    from archc.backends.eager.forward import Forward

ARGUMENT = "cu_seqlens: Tensor | None = None"
MASK = "attention_mask: Tensor | None = None"

DOC = (
    "`cu_seqlens` [N + 1]: where each of N sequences begins and ends that stand one after the "
    "other in a batch of 1. Each is done as if by itself; the state is then one of N sequences."
)

PADDED = (
    "`attention_mask` [B, T]: 0 where a token is padding, left or right. Each sequence is done as "
    "if by itself; outputs are 0 at padding."
)

CONTINUED = "With a state they run one after the other: each keeps as much as it has seen."

ONE_BY_ONE = "They run one after the other: something in here looks along all tokens."

TOKENWISE = (
    ir.Input, ir.Param, ir.Constant, ir.Position, ir.Delta, ir.Noise, ir.Elementwise, ir.Reduce,
    ir.Contract, ir.Gather, ir.Join, ir.Reshape, ir.Top, ir.Solve, ir.Softmax, ir.Shift, ir.Window,
    ir.Recurrence, ir.Result, ir.Call, ir.Attend,
)  # fmt: skip
"""Ops that may be done to all packed tokens at once, unless they cross them."""

BORDERED = (ir.Shift, ir.Window, ir.Recurrence, ir.Call, ir.Attend)
"""Ops that are told where sequences begin: what they take along the tokens has a batch."""


@lru_cache(maxsize=256)
def in_one_run(layer: ir.Layer) -> bool:
    """Whether packed sequences go through a layer in one run."""
    memory, graph = memory_of(layer), layer.graph
    alone = for_losses(graph)
    along = all({"batch", "t"} <= {*op.type.names} for id, op in layer.inputs if id not in alone)
    kept = any(field.node in memory.optional for field in memory.fields)
    if not layer.inputs or not along or kept:
        return False
    read = for_tokens(graph)
    if any(is_read(graph, node, read) for node in graph):
        return False
    return all(
        (node.id in alone and sums_all_tokens(graph, node)) or _respects_borders(graph, node)
        for node in graph
    )


@lru_cache(maxsize=256)
def new_alone(layer: ir.Layer) -> bool:
    """Whether packed sequences go through a layer in one run only if none of them has a state. The
    states that they leave are cut out of what all have kept."""
    return in_one_run(layer) and not joinable(memory_of(layer))


def _respects_borders(graph: Graph, node: Node) -> bool:
    """Whether an op gives each packed token what it has when its sequence is alone."""
    op, names = node.op, {*node.type.names}
    streams = {axis.name for axis in node.type.axes if axis.kind == "stream"}
    region = isinstance(op, ir.Recurrence | ir.Call | ir.Attend)
    if makes_lists(graph, node) or reads_lists(graph, node) or _is_list(graph, node):
        return True
    if not isinstance(op, TOKENWISE) or not streams <= {"t"}:
        return False
    if not region and "batch" in names and "t" not in names:
        return False
    if not _of_each_token(graph, node):
        return False
    if isinstance(op, ir.Attend):
        return _reads_own_tokens(graph, node)
    if isinstance(op, ir.Recurrence):
        values = [graph[operand].type.names for operand in node.operands]
        return op.stream.name == "t" and any("t" in each for each in values)
    if isinstance(op, ir.Call):
        return _calls_tokenwise(op)
    if isinstance(op, ir.Contract):
        return all(_keeps(op, graph[operand], place) for place, operand in enumerate(node.operands))
    if isinstance(op, ir.Window):
        return op.stride is None
    return "t" not in _crossed(op)


def _is_list(graph: Graph, node: Node) -> bool:
    """Whether a value is a list of what tokens choose."""
    return isinstance(node.op, ir.Result) and makes_lists(graph, graph[node.operands[0]])


def _of_each_token(graph: Graph, node: Node) -> bool:
    """Whether what an op makes of positions and lengths is a number of a token's own sequence."""
    if isinstance(node.op, ir.Constant):
        return not _told_length(node)
    values = [graph[operand].type.names for operand in node.operands]
    if isinstance(node.op, BORDERED):
        return all("batch" in names for names in values if "t" in names)
    positions = "t" in node.type.names and "batch" not in node.type.names
    return not positions or all("batch" not in names for names in values)


def _told_length(node: Node) -> bool:
    """Whether a number depends on how many tokens there are."""
    return bool(node.op.value.free_symbols & {TIME.size, T_SEEN})


def _reads_own_tokens(graph: Graph, node: Node) -> bool:
    """Whether an attention is from the layer's own tokens to these, of which it reads both."""
    op = node.op
    if op.source != "t" or op.reader != TIME:
        return False
    values = [graph[operand].type for operand in node.operands]
    if any(a.kind == "stream" and a.name != "t" for type in values for a in type.axes):
        return False
    along = {role for (_, role), type in zip(op.captures, values, strict=True) if "t" in type.names}
    constants = (each for each in op.body if isinstance(each.op, ir.Constant))
    return {"reader", "read"} <= along and not any(map(_told_length, constants))


def _calls_tokenwise(op: ir.Call) -> bool:
    """Whether a called layer goes along the same tokens, and can take them packed."""
    renamed = dict(op.axes).get("t")
    same = op.callee.kind != "argument" and (renamed is None or renamed.name == "t")
    return same and in_one_run(op.callee)


def _keeps(op: ir.Contract, operand: Node, place: int) -> bool:
    """Whether a product is done at each token of an operand."""
    kept = {label: axis.name for label, axis in op.out}
    pairs = zip(op.ins[place], operand.type.names, strict=True)
    return all(kept.get(label) == name for label, name in pairs if name in ("batch", "t"))


def _crossed(op: ir.Op) -> tuple[str, ...]:
    """The axes along which an op looks."""
    if isinstance(op, ir.Reduce):
        return op.axes
    if isinstance(op, ir.Gather | ir.Top):
        return (op.axis,)
    if isinstance(op, ir.Solve):
        return (op.row, op.col)
    return (op.over,) if isinstance(op, ir.Softmax) else ()


def write_packed(writer: Writer, forward: Forward, run: str, kept: bool) -> None:
    """`if cu_seqlens is not None: ...`, for what runs once for each sequence; `kept`: the states
    are returned without being asked for, and there is no mask."""
    title, continued = quoted(forward.parts.name), not forward.memory.refusal
    whens = ["cu_seqlens is not None", *["attention_mask is not None"] * (not kept)]
    ragged = "isinstance(state, RaggedState)"
    test = " or ".join([*whens, *[ragged] * (continued and bool(forward.memory.fields))])
    if forward.scope.cu_seqlens:  # new ones are done in one run
        writer.line(f"if {ragged} or state is not None and (")
        writer.line(f"{INDENT}{' or '.join(whens)}")
        test = ""
    with writer.block(f"if {test}:" if test else "):"):
        if not continued:
            run = f"lambda state, **given: ({run}(**given), None)"
        mask = "None" if kept else "attention_mask"
        arguments = [title, run, "cu_seqlens", mask, *_inputs(forward), "state"]
        arguments += _without_tokens(forward)
        if not kept and _never_looks_ahead(forward):
            arguments.append("further=not return_state")
        writer.call("made, state = run_packed(", arguments, ")")
        if not continued:
            writer.line("return made" + (", None" if kept else ""))
        else:
            writer.line("return " + ("made, state" if kept else RETURNED))


def _never_looks_ahead(forward: Forward) -> bool:
    """Whether no token depends on later ones, or on how many there are, or is of a sequence that
    stands beside these."""
    layer = forward.layer
    along = all("t" in op.type.names for _, op in layer.inputs)
    return along and not (forward.memory.refusal or _without_tokens(forward) or _counts(layer))


def _counts(layer: ir.Layer) -> bool:
    """Whether a number of a layer, or of one that it calls, depends on the count of tokens."""
    nodes = [*layer.graph]
    bodies = (n.op.body for n in nodes if isinstance(n.op, ir.Attend | ir.Recurrence))
    nodes += [node for body in bodies for node in body]
    told = any(isinstance(node.op, ir.Constant) and _told_length(node) for node in nodes)
    return told or any(_counts(call.callee) for _, call in layer.calls)


RETURNED = "(made, state) if return_state else made"
"""The result of a forward."""


def write_padded(writer: Writer, forward: Forward) -> None:
    """`if attention_mask is not None: ...`, for what takes packed sequences in one run."""
    with writer.block("if attention_mask is not None:"):
        tokens, _ = _inputs(forward)
        arguments = [quoted(forward.parts.name), "self.forward", "cu_seqlens", "attention_mask"]
        places = [str(place) for place, _, axes in _outputs(forward) if "t" not in axes]
        rows = [f"rows=({', '.join(places)},)"] * bool(places)
        arguments += [tokens, "state", "return_state", *rows]
        writer.call("return run_padded(", arguments, ")")


def _inputs(forward: Forward) -> list[str]:
    """Inputs along the tokens, and those with a row for each sequence, by their names."""
    inputs = [(forward.names[id], op.type.names) for id, op in forward.layer.inputs]
    tokens = [name for name, axes in inputs if "t" in axes]
    others = [name for name, axes in inputs if "t" not in axes and "batch" in axes]
    return [
        "{" + ", ".join(f"{quoted(name)}: {name}" for name in part) + "}"
        for part in (tokens, others)
    ]


def _outputs(forward: Forward) -> list[tuple[int, str, tuple[str, ...]]]:
    """The outputs in the order of what is returned: place, name and axes."""
    graph, optional = forward.layer.graph, forward.memory.optional
    outputs = sorted(graph.outputs.items(), key=lambda output: output[1] in optional)
    return [(place, name, graph[id].type.names) for place, (name, id) in enumerate(outputs)]


def _without_tokens(forward: Forward) -> list[str]:
    """The places of outputs that have a row for each sequence and not one for each token, and those
    of outputs that have neither, with their names."""
    outputs = [each for each in _outputs(forward) if "t" not in each[2]]
    found = {
        "rows": [str(place) for place, _, axes in outputs if "batch" in axes],
        "whole": [f"({place}, {quoted(n)})" for place, n, axes in outputs if "batch" not in axes],
    }
    return [f"{word}=({', '.join(each)},)" for word, each in found.items() if each]


def joinable(memory: Memory) -> bool:
    """Whether what is kept of sequences of any length has one shape."""
    return all(f.kind == "state" or _fixed(memory, f.node, f.kind) for f in memory.fields)


def _fixed(memory: Memory, node: int, kind: str) -> bool:
    """Whether the tokens that are kept are always as many."""
    if kind in ("layer", "layers"):
        calls = memory.chains[node].calls if kind == "layers" else (node,)
        return all(joinable(memory_of(memory.graph[call].op.callee)) for call in calls)
    if kind != "past":
        return False
    op = memory.graph[node].op
    return not isinstance(op, ir.Window) or op.stride is None

"""The state that a layer keeps between calls, found from its graph: a field for each thing kept.

A recurrence keeps its states, a window or shift the last tokens, an attention the values that it
reads, a called layer its own state; what was made from another sequence is kept whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import sympy
from archc.backends.eager.naming import nearest_name
from archc.backends.eager.stacks import chains
from archc.backends.writer import Names, identifier

from archc.dims import T_SEEN, TIME, Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.losses import for_losses, for_tokens, is_read, sums_all_tokens
from archc.ir.own_positions import begun_by_inputs
from archc.ir.running_sums import running_sums


@dataclass(frozen=True)
class Field:
    """One field of a layer's state.

    kind: "state" (the `place`-th of a recurrence), "past" (the last `count` tokens of a value),
    "seen" (all of them, or the last `count`), "other" (a value along another sequence), "layer"
    or "layers" (what called layers remember), "pos" (the number of tokens seen). `node` is the
    recurrence, window or call; for values, the value itself. A state that is `begun` by what the
    layer is given is None before its first token. What is `wide` is in float32 at least.
    """

    name: str
    kind: str
    node: int = -1
    axes: tuple[Axis, ...] = ()
    count: sympy.Expr | None = None
    dtype: str = "real"
    place: int = 0
    begun: bool = False
    wide: bool = False


METHODS = (
    "count", "index", "to", "detach", "clone", "select", "replace", "reserve", "save", "load",
)  # fmt: skip
"""Names that every state has for what it can do: a field of it has another."""


class Memory:
    """The fields of a layer's state, and why it cannot be continued if it cannot.

    `flow` are the streams that grow from call to call: the layer's own and the blocks made from it.
    """

    def __init__(self, layer: ir.Layer):
        self.layer, self.graph = layer, layer.graph
        self.names = Names(METHODS)
        self.fields: list[Field] = []
        self.flow = {"t", *_growing(self.graph)}
        self.chains = chains(self.graph)
        self.other = _made_from_others(self.graph, self.flow)
        self.sums = running_sums(self.graph)
        self.optional = _made_from_optional(self.graph)
        self.whole = self._whole()
        self.refusal = self._refusal()
        self.others = self._kept_from_others()
        for node in self.graph:
            self._keep(node)
        if self._counts():
            self.fields.append(Field("pos", "pos"))

    def field(self, kind: str, node: int) -> Field | None:
        """The field that keeps something for a node (for "seen": of a value), if there is one."""
        return next((f for f in self.fields if f.kind == kind and f.node == node), None)

    def states(self, node: int) -> list[Field]:
        """The fields of a recurrence's states, in its order."""
        return [f for f in self.fields if f.kind == "state" and f.node == node]

    # --- finding the fields ---

    def _add(
        self, hint: str, kind: str, node: int, axes: tuple[Axis, ...] = (), **more: object
    ) -> None:
        name = self.names.fresh(identifier(hint.lstrip("_") or kind))
        self.fields.append(Field(name, kind, node, axes, **more))  # type: ignore[arg-type]

    def _keep(self, node: Node) -> None:
        """The fields that one node needs."""
        if node.id in self.others:
            self._add(nearest_name(self.graph, node.id), "other", node.id, node.type.axes)
        if node.id in self.other or node.id in self.whole:
            return
        if isinstance(node.op, ir.Recurrence) and node.op.stream.name in self.flow:
            begun = begun_by_inputs(self.graph, node)
            for place, state in enumerate(node.op.states):
                more = {"place": place, "begun": state.name in begun, "wide": True}
                self._add(state.name, "state", node.id, state.axes, **more)
        elif isinstance(node.op, ir.Window | ir.Shift) and node.op.stream in self.flow:
            value = self.graph[node.operands[0]]
            name = f"{nearest_name(self.graph, node.id)}_past"
            more = {"dtype": value.type.dtype, "wide": value.id in self.sums}
            self._add(name, "past", node.id, value.type.axes, count=_past(node.op), **more)
        elif isinstance(node.op, ir.Attend) and self.reads_flow(node) and node.op.causal:
            self._keep_read(node)
        elif isinstance(node.op, ir.Call):
            self._keep_callee(node)
        elif isinstance(node.op, ir.Substitute):
            self._add(nearest_name(self.graph, node.id), "seen", node.id, node.type.axes)

    def _whole(self) -> set[int]:
        """Values that inputs which may be left out are needed for, and that look along the tokens:
        nothing is kept of them, as a call without these inputs would leave a gap there."""
        own = [node for node in self.graph if node.id in self.optional - self.other]
        others = [
            n for n in self.graph if n.id not in self.optional and isinstance(n.op, ir.Attend)
        ]
        kept = {read for node in others for read in _read(node)}
        return {node.id for node in own if self._looks_along(node, kept)}

    def _looks_along(self, node: Node, kept: Collection[int]) -> bool:
        """Whether a value is made from earlier tokens, other than those that are `kept` anyway."""
        op = node.op
        if isinstance(op, ir.Attend):
            return self.reads_flow(node) and not {*_read(node)} <= {*kept}
        if isinstance(op, ir.Call):
            return self.carried(node) and remembers(op.callee)
        if isinstance(op, ir.Recurrence):
            return op.stream.name in self.flow
        if isinstance(op, ir.Window | ir.Shift):
            return op.stream in self.flow
        return isinstance(op, ir.Substitute)

    def _keep_read(self, node: Node) -> None:
        """The values that an attention reads, the last ones only if its window says that it may."""
        count = crop(node)
        for (name, role), operand in zip(node.op.captures, node.operands, strict=True):
            value = self.graph[operand]
            if role == "reader" or node.op.source not in value.type.names:
                continue
            known = self.field("seen", operand)
            if known is None:
                more = {"dtype": value.type.dtype, "wide": operand in self.sums}
                self._add(name, "seen", operand, value.type.axes, count=count, **more)
            elif known.count != count:
                self.fields[self.fields.index(known)] = replace(known, count=None)

    def _keep_callee(self, node: Node) -> None:
        """The state of a called layer; those of a stack stand in one tuple."""
        if not self.carried(node):
            return
        chain = self.chains.get(node.id)
        if chain is None:
            if remembers(node.op.callee):
                self._add(node.op.path, "layer", node.id)
        elif node.id == chain.calls[0] and any(
            remembers(self.graph[c].op.callee) for c in chain.calls
        ):
            self._add(chain.path, "layers", node.id)

    def carried(self, node: Node) -> bool:
        """Whether a called layer's own sequence is one that grows from call to call."""
        streams = dict(node.op.axes)
        return (
            streams.get("t", Axis("t", sympy.Integer(0))).name in self.flow
            and node.id not in self.other
        )

    def reads_flow(self, node: Node) -> bool:
        """Whether an attention reads tokens that the layer itself has seen."""
        return node.op.source in self.flow

    def _counts(self) -> bool:
        """Whether the number of tokens seen matters: for positions, attention and blocks."""
        for node in self.graph:
            op = node.op
            if isinstance(op, ir.Position) and op.axis.kind == "stream" and _grows(op.axis):
                return True
            if isinstance(op, ir.Attend) and op.reader.name in self.flow and _places(op):
                return True
            if isinstance(op, ir.Window) and op.stride is not None and op.stream in self.flow:
                return True
        return False

    # --- what cannot be continued ---

    def _refusal(self) -> str | None:
        """Why the layer needs the whole sequence at once, if it does."""
        alone, read = for_losses(self.graph), for_tokens(self.graph)
        for node in self.graph:
            if node.id in self.optional or (node.id in alone and sums_all_tokens(self.graph, node)):
                continue
            name = nearest_name(self.graph, node.id)
            if is_read(self.graph, node, read):
                told = "is made from all tokens, and read by what is no loss by its name"
                return f"`{name}` {told}, `..._loss`"
            if isinstance(node.op, ir.Attend) and self.reads_flow(node) and not node.op.causal:
                return f"`{name}` reads tokens that come later"
            if isinstance(node.op, ir.Gather) and node.op.axis in self.flow:
                return f"`{name}` has the tokens in another order"
            if (
                isinstance(node.op, ir.Call)
                and memory_of(node.op.callee).refusal
                and self.carried(node)
            ):
                inner = memory_of(node.op.callee).refusal
                return f"`{node.op.callee.name}` needs the whole sequence at once: {inner}"
            if isinstance(node.op, ir.Call) and self._hands_over(node.op):
                return f"`{node.op.callee.name}` reads all tokens along another sequence"
            lost = any("t" in self.graph[o].type.names for o in node.operands)
            region = isinstance(
                node.op, ir.Recurrence | ir.Attend | ir.Call | ir.Result | ir.Window
            )
            if lost and not region and "t" not in node.type.names:
                of_all = "batch" not in node.type.names
                told = "is" if not node.type.axes else "read by what is"
                loss = f", and {told} no loss by its name, `..._loss`" * of_all
                return f"`{name}` is made from all tokens{loss}"
        return None

    def _hands_over(self, op: ir.Call) -> bool:
        """Whether a layer that goes along another sequence reads the own tokens, all of them."""
        streams = dict(op.axes)
        return any(
            axis.name in self.flow and name != "t" and name not in self.flow
            for name, axis in streams.items()
        )

    def _kept_from_others(self) -> set[int]:
        """Values made from other sequences that the layer's own tokens need again later."""
        kept: set[int] = set()
        for id in self.other:
            for user in self.graph.users(id):
                if user not in self.other and not isinstance(self.graph[user].op, ir.Call):
                    kept.add(id)
            if id in self.graph.outputs.values():
                kept.add(id)
        return {
            id
            for id in kept
            if not isinstance(self.graph[id].op, ir.Recurrence | ir.Attend | ir.Call)
        }


def blocks_made(graph: Graph, stream: str) -> ir.Window | None:
    """What makes the blocks of tokens of a stream; None of tokens themselves."""
    windows = (node.op for node in graph if isinstance(node.op, ir.Window))
    return next((op for op in windows if op.blocks and op.blocks.name == stream), None)


def in_pages(field: Field) -> bool:
    """Whether a field of slots may be in pages: all tokens are kept in it."""
    return field.kind == "seen" and field.count is None


@lru_cache(maxsize=256)
def memory_of(layer: ir.Layer) -> Memory:
    """The memory of a layer, found once."""
    return Memory(layer)


def remembers(layer: ir.Layer) -> bool:
    """Whether a layer has a state that can be handed on."""
    memory = memory_of(layer)
    return bool(memory.fields) and memory.refusal is None


def _places(op: ir.Attend) -> bool:
    """Whether an attention looks at the positions of readers, or of tokens read along with them."""
    along = {op.reader.name, op.read.name if op.source == op.reader.name else op.reader.name}
    return any(isinstance(n.op, ir.Position) and n.op.axis.name in along for n in op.body)


def stream_of(axes: Sequence[Axis]) -> Axis | None:
    """The sequence that a value runs along, if it does."""
    return next((axis for axis in axes if axis.kind == "stream"), None)


def _grows(axis: Axis) -> bool:
    """Whether an axis gets longer with the layer's own tokens: these, blocks, tokens read."""
    return axis.name == "t" or axis.size.has(TIME.size, T_SEEN)


def _growing(graph: Graph) -> set[str]:
    """Names of the sequences of blocks that are made from the layer's own tokens."""
    found = {n.op.blocks.name for n in graph if isinstance(n.op, ir.Window) and n.op.blocks}
    inputs = [stream_of(n.type.axes) for n in graph if isinstance(n.op, ir.Input)]
    return found | {axis.name for axis in inputs if axis is not None and _grows(axis)}


def _made_from_others(graph: Graph, flow: set[str]) -> set[int]:
    """Nodes that depend on other sequences, on positions along them too, and not on the layer's
    own."""
    made: set[int] = set()
    own: set[int] = set()
    for node in graph:
        if isinstance(node.op, ir.Input):
            stream = stream_of(node.type.axes)
            if stream is not None:
                (own if stream.name in flow else made).add(node.id)
        elif _along(node, flow) or any(operand in own for operand in node.operands):
            own.add(node.id)
        elif _positions(node) or any(operand in made for operand in node.operands):
            made.add(node.id)
    return made


def _positions(node: Node) -> bool:
    """Whether a node counts the tokens of a sequence that does not get longer with these."""
    stream = isinstance(node.op, ir.Position) and node.op.axis.kind == "stream"
    return stream and not _grows(node.op.axis)


def _along(node: Node, flow: set[str]) -> bool:
    """Whether a node is about the layer's own tokens by itself, as a position or an attend is."""
    if isinstance(node.op, ir.Position):
        return node.op.axis.name in flow
    return isinstance(node.op, ir.Attend) and node.op.reader.name in flow


def _made_from_optional(graph: Graph) -> set[int]:
    """Inputs that may be left out, what depends on them, and attends that nothing else needs."""
    made: set[int] = set()
    for node in graph:
        left_out = isinstance(node.op, ir.Input) and node.op.optional
        if left_out or any(operand in made for operand in node.operands):
            made.add(node.id)
    return made | _attends_for(graph, made) if made else made


def _attends_for(graph: Graph, made: set[int]) -> set[int]:
    """Attends, and their results, that only these values need, and that keep no tokens which
    others do not keep as well."""
    alone, outputs = {*made}, {*graph.outputs.values()}
    for node in reversed([*graph]):
        if isinstance(node.op, ir.Attend | ir.Result) and graph.users(node.id):
            inside = node.id not in outputs and alone.issuperset(graph.users(node.id))
            alone |= {node.id} if inside else set()
    attends = [node for node in graph if isinstance(node.op, ir.Attend)]
    kept = {read for node in attends if node.id not in alone for read in _read(node)}
    found = {node.id for node in attends if node.id in alone and kept.issuperset(_read(node))}
    return found | {n.id for n in graph if isinstance(n.op, ir.Result) and n.operands[0] in found}


def _read(attend: Node) -> list[int]:
    """The values that an attend reads of other tokens."""
    given = zip(attend.op.captures, attend.operands, strict=True)
    return [operand for (_, role), operand in given if role != "reader"]


def crop(node: Node) -> sympy.Expr | None:
    """The number of latest tokens that an attention has to keep; None for all of them.

    A window bounds them, unless something outside refers to the tokens read by their place.
    """
    op = node.op
    if op.window is None:
        return None
    places = [op.body[id].type.names for id in op.body.outputs.values()]
    places += [
        n.type.names
        for n in op.body
        if isinstance(n.op, ir.Input) and _role(op, n.op.name) == "reader"
    ]
    return None if any(op.read.name in names for names in places) else op.window - 1


def _role(op: ir.Attend, name: str) -> str:
    return dict(op.captures)[name]


def _past(op: ir.Window | ir.Shift) -> sympy.Expr:
    """How many tokens from before the first one a window or shift needs; for blocks, none yet."""
    if isinstance(op, ir.Shift):
        return sympy.Integer(op.steps)
    return sympy.Integer(0) if op.stride is not None else op.width.size - 1

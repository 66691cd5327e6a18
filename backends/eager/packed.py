"""The lines of a forward, or of a function, that run it on packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.backends.writer import Writer, quoted

from archc.ir import layer as ir

if TYPE_CHECKING:
    from archc.backends.eager.forward import Forward
    from archc.backends.eager.memory import Memory

ARGUMENT = "cu_seqlens: Tensor | None = None"

DOC = (
    "`cu_seqlens` [N + 1]: where each of N sequences begins and ends that stand one after the "
    "other in a batch of 1. Each is done as if by itself; the state is then one of N sequences."
)


def write_packed(writer: Writer, forward: Forward, run: str, kept: bool) -> None:
    """`if cu_seqlens is not None: ...`; `kept`: the states are returned without being asked for."""
    forward.parts.file.pieces.add("run_packed")
    title = quoted(forward.parts.name)
    inputs = [(forward.names[id], op.type.names) for id, op in forward.layer.inputs]
    tokens = [name for name, axes in inputs if "t" in axes]
    others = [name for name, axes in inputs if "t" not in axes and "batch" in axes]
    shown = [
        "{" + ", ".join(f"{quoted(name)}: {name}" for name in part) + "}"
        for part in (tokens, others)
    ]
    with writer.block("if cu_seqlens is not None:"):
        if forward.memory.refusal:
            run = f"lambda state, **given: ({run}(**given), None)"
        arguments = [title, run, "cu_seqlens", *shown, "state"]
        writer.call("made, states = run_packed(", arguments, ")")
        if forward.memory.refusal:
            writer.line("return made" + (", None" if kept else ""))
        elif kept and not joinable(forward.memory):
            writer.line("return made, None  # what is kept of each has a length of its own")
        else:
            forward.parts.file.pieces.add("joined_states")
            state = f"joined_states({title}, states)"
            both = f"return made, {state}"
            writer.line(both if kept else f"return (made, {state}) if return_state else made")


def joinable(memory: Memory) -> bool:
    """Whether what is kept of sequences of any length has one shape."""
    return all(f.kind == "state" or _fixed(memory, f.node, f.kind) for f in memory.fields)


def _fixed(memory: Memory, node: int, kind: str) -> bool:
    """Whether the tokens that are kept are always as many."""
    if kind != "past":
        return False
    op = memory.graph[node].op
    return not isinstance(op, ir.Window) or op.stride is None

"""From a spec to what is timed: files of the memory alone, what comes before it, and the oracle."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from archc.algebra import cut
from archc.backends.eager.emit import class_name, emit
from archc.backends.eager.memory import memory_of
from archc.backends.writer import snake
from archc.bench.job import BACKWARD, DECODE, FORWARD, Entering, Input, Job, Work
from archc.compile import elaborated, function_of, text_of, with_chunks
from archc.diagnostics import InternalError
from archc.dims import TIME
from archc.file_check import rewritten
from archc.ir import layer as ir
from archc.ir.count import cost
from archc.ir.graph import Type
from archc.ir.sizes import Number, evaluate, resolve_sizes
from archc.ir.value_names import gate_of
from archc.specfile import read, split

LIMIT = 1e-9
"""How far the layer whose memory is cut out may be from the spec."""

PARTS = "parts.pkl"
"""The file of a spec's parts, written last."""

WIDTHS = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of a number."""


@dataclass(frozen=True)
class Request:
    """The user's request, beside the specs: see `archc bench --help`."""

    what: tuple[str, ...]
    against: tuple[str, ...]
    batches: tuple[int, ...]
    peers: str | None
    device: str
    dtype: str
    seconds: float
    given: Mapping[str, Any]
    fused: bool = False
    packed: int = 0


@dataclass(frozen=True)
class Parts:
    """A layer with chunks, its memory alone, and what comes before that."""

    title: str
    layer: ir.Layer
    memory: ir.Layer
    before: ir.Layer

    @property
    def function(self) -> str:
        """The name of the function of the memory."""
        return f"{snake(self.layer.name)}_memory_alone"


def subject(
    spec: str, shape: tuple[int, int, int, int], asked: Request, folder: Path,
    texts: Path | None = None,
) -> Job:  # fmt: skip
    """Write what a process needs to measure a spec at a shape into `folder`, and the job. `texts`
    is a folder of files that jobs of a spec at other shapes share: made once, and copied.

    Raises ArchError for a spec or sizes that are wrong, NoMemory (a ValueError) for a layer without
    a memory of its own, ValueError for one whose inputs are no real numbers, InternalError where
    the memory that the oracle is given is not that of the spec as written.
    """
    texts = texts or folder
    if not (texts / PARTS).exists():
        _write_texts(spec, asked, texts)
    if texts != folder:
        shutil.copytree(texts, folder, dirs_exist_ok=True)
    parts: Parts = pickle.loads((folder / PARTS).read_bytes())
    memory, before = parts.memory, parts.before
    sizes = sizes_at(parts.layer, shape, asked.given)
    states = tuple(field.name for field in memory_of(memory).fields if field.kind == "state")
    return Job(
        spec, parts.title, class_name(before), parts.function, str(folder), shape, sizes,
        tuple(inputs_of(before, sizes)), _enters(memory, asked.fused), tuple(memory.graph.outputs),
        states, asked.what, asked.batches, asked.against, asked.peers, asked.device, asked.dtype,
        asked.seconds, _work(memory, sizes, shape, asked), label_of(parts.title, asked),
        asked.packed,
    )  # fmt: skip


def _write_texts(spec: str, asked: Request, folder: Path) -> None:
    """The files of a spec, whichever its shape."""
    title, written = title_and_layer(spec, asked)
    layer = with_chunks(written)
    off = rewritten(written, layer, emit)
    if not off <= LIMIT:
        raise InternalError(f"`{layer.name}`, the graph after algebra: an error of {off:.1e}")
    memory = (cut.fused_op if asked.fused else cut.op)(layer)
    parts = Parts(title, layer, memory, cut.entering(layer, asked.fused))
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("ours", function_of(memory, parts.function, "triton", asked.fused)),
        ("eager", function_of(memory, parts.function)),
        ("before", text_of(parts.before)),
    ):
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (folder / "oracle.pkl").write_bytes(pickle.dumps(memory))
    (folder / "parts.part").write_bytes(pickle.dumps(parts))
    (folder / "parts.part").rename(folder / PARTS)


def label_of(title: str, asked: Request) -> str:
    """A spec in reports, with what it is given beside a shape."""
    given = "".join(f" {name}={value}" for name, value in asked.given.items())
    return f"{title}{given}" + (f" packed {asked.packed}" if asked.packed else "")


def title_and_layer(spec: str, asked: Request) -> tuple[str, ir.Layer]:
    """The name of a spec, by which peers know it, and its layer as elaborated."""
    where, inside = split(spec)
    title = f"{Path(where).stem}:{inside}" if inside else Path(where).stem
    title += " fused" if asked.fused else ""
    return title, elaborated(read(where), inside, asked.given)


def sizes_at(
    layer: ir.Layer, shape: tuple[int, int, int, int], given: Mapping[str, Any]
) -> dict[str, Number]:
    """The sizes of a layer with that many heads of that dim; what is given by name goes before. `D`
    is the dim of a head, or all channels of a layer without heads."""
    _, _, heads, dim = shape
    names = {arg.name: arg for arg in layer.args if arg.symbol is not None}
    wished = {"d": heads * dim, "H": heads, "G": heads, "K": dim, "V": dim}
    wished["D"] = dim if "H" in names else heads * dim
    wished |= {name: value for name, value in given.items() if not isinstance(value, str | bool)}
    left = {name: dim for name, arg in names.items() if arg.default is None}
    return dict(resolve_sizes(layer, left | {n: v for n, v in wished.items() if n in names}))


def inputs_of(before: ir.Layer, sizes: Mapping[str, Number]) -> Sequence[Input]:
    """The inputs of a layer with their axes. Raises ValueError for one without real numbers."""
    found = []
    for _, op in before.inputs:
        if op.type.dtype != "real":
            raise ValueError(f"`{op.name}` of {before.name} holds no real numbers: give its block")
        axes = [
            {"batch": "B", "stream": "T"}.get(axis.kind) or int(evaluate(axis.size, sizes))
            for axis in op.type.axes
        ]
        found.append(Input(op.name, tuple(axes)))
    return found


def _enters(memory: ir.Layer, fused: bool) -> tuple[Entering, ...]:
    """The inputs of the memory. A gate is a decay, or one number a head; what a fused memory makes
    its gates of is no wider than the rest, and parameters are parts of gates."""
    found = []
    for _, op in memory.inputs:
        dims = [axis for axis in op.type.axes if axis.kind == "dim"]
        gate = gate_of(op.name) is not None or len(dims) < 2
        along = "t" in op.type.names
        wide = stays_wide(op) and not (fused and along)
        found.append(Entering(op.name, wide, gate or (fused and not along)))
    return tuple(found)


def _only_states(memory: ir.Layer) -> bool:
    """Whether a token costs the same however many came before it."""
    return all(field.kind == "state" for field in memory_of(memory).fields)


def _work(
    memory: ir.Layer, sizes: Mapping[str, Number], shape: tuple[int, ...], asked: Request
) -> dict[str, Work]:
    """The least work of everything that is timed."""
    width, known = WIDTHS[asked.dtype], {arg.name for arg in memory.args}
    sizes = {name: value for name, value in sizes.items() if name in known}
    found = compulsory(memory, sizes, shape[0], shape[1], width)
    work = {what: found[what] for what in asked.what if what in found and what != DECODE}
    if DECODE in asked.what and _only_states(memory):
        for batch in asked.batches:
            work[f"{DECODE}@{batch}"] = compulsory(memory, sizes, batch, 1, width)[DECODE]
    return work


WIDE = 4
"""Bytes of a number of a state, and of a gate that is given as its logarithm."""


def compulsory(
    memory: ir.Layer, sizes: Mapping[str, Number], batch: int, tokens: int, width: int
) -> dict[str, Work]:
    """The least work of a forward, of a forward with its gradients, and of one token (`tokens` 1),
    of a memory whose numbers have `width` bytes.

    Bytes: every input is read once and every output written once; of a whole sequence the last
    state is written, for one token a state is read and written. A gradient reads the inputs and the
    outputs' gradients and writes those of the inputs. Operations: those of the recurrence itself,
    token by token, twice as many for its gradient.
    """
    found = cost(memory)
    known: dict[str, Number] = {**sizes, "batch": batch, str(TIME.size): tokens}
    for symbol in found.flops.free_symbols:
        known.setdefault(str(symbol), tokens)  # the length of another sequence
    widths = [max(width, WIDE) if stays_wide(op) else width for _, op in memory.inputs]
    entering = zip(memory.inputs, widths, strict=True)
    read = sum(_bytes(op.type, known, each) for (_, op), each in entering)
    graph = memory.graph
    made = sum(_bytes(graph[id].type, known, width) for id in graph.outputs.values())
    flops = batch * float(evaluate(found.flops, known))
    state = WIDE * batch * float(evaluate(found.state, known))
    forward = read + made + state
    return {
        FORWARD: Work(forward, flops),
        BACKWARD: Work(forward + read + made + read, 3 * flops),
        DECODE: Work(forward + state, flops),
    }


def stays_wide(entering: ir.Input) -> bool:
    """Whether an input is float32 beside narrower ones: a decay's logarithm, a weight."""
    return gate_of(entering.name) is not None or "t" not in entering.type.names


def _bytes(type: Type, known: Mapping[str, Number], width: int) -> float:
    count = 1.0
    for axis in type.axes:
        count *= float(evaluate(axis.size, known))
    return count * width

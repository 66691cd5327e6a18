"""The composition law of a layer's memory, as functions of torch tensors.

    law  = spec.law                                   # spec: `archc.load("my.arch")`
    part = law.summary(q, k, v, log_alpha, beta)      # of a run of tokens: arguments of `Spec.op`
    both = law.merge(part, next_part)                 # associative
    end  = law.apply(both, state)                     # the state after the run

A run of tokens does to a linear state S what one matrix and one addition do: S_end = P S + Q,
whatever S was. Parts of one long sequence are summarised apart, on as many devices as there are;
their summaries, merged from the left, say where each part starts from. `split` does that.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import sympy

from archc.algebra import cut
from archc.backends.eager.graph_file import emit_graphs
from archc.backends.eager.memory import memory_of
from archc.backends.expression import number
from archc.backends.load import load as load_text
from archc.backends.writer import Names, snake
from archc.compile import entered
from archc.dims import at
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.plan import default_of
from archc.ir.sizes import evaluate
from archc.numerics.stated import stated
from archc.recurrence.law.composition import Law, WithoutLaw, law_of_layer

if TYPE_CHECKING:
    from torch import Tensor

CHUNK = 64
"""Tokens in a chunk, unless the caller says so."""

SEGMENTS, CHUNKS_EACH = 64, 4
"""Most segments that a run is summarised in at once, and the fewest chunks of each."""


class NoLaw(ValueError):
    """A memory without a composition law; the message says which states, and why."""


def of(layer: ir.Layer) -> CompositionLaw:
    """The law of a layer's memory. Raises NoLaw where a state has none, and `cut.NoMemory` for a
    layer without a memory: both are ValueErrors."""
    ready = entered(layer)
    memory = cut.op(ready, stated(ready))
    found = law_of_layer(memory)
    if isinstance(found, WithoutLaw):
        states = ", ".join(f"`{name}`" for name in found.states)
        about = f" ({states})" if states else ""
        more = f"; {found.help}" if found.help else ""
        raise NoLaw(f"{memory.name}{about} has no composition law: {found.reason}{more}")
    return CompositionLaw(memory, found)


class CompositionLaw:
    """Summaries of runs of tokens, their merge, and what they do to a state.

    `arguments` are those of `Spec.op`, `states` the states by name, and `Summary` is a named tuple
    of the parts: `P_S` and `Q_S` of a state S; `log_P_S` where the state is rescaled by a running
    maximum. States that share P are named together. Where the spec gives the law, the parts are the
    outputs of its layer for a token.
    """

    def __init__(self, memory: ir.Layer, law: Law):
        self.law, self.name, self.memory = law, memory.name, memory
        args = [arg for arg in memory.args if arg.symbol is not None and arg.default is not None]
        defaults = {arg.name: default_of(arg) for arg in args}
        self._defaults = {n: evaluate(x, {}) for n, x in defaults.items() if not x.free_symbols}
        self.arguments = tuple(op.name for _, op in memory.inputs)
        self.streams = tuple(
            op.type.names.index("t") if "t" in op.type.names else None for _, op in memory.inputs
        )
        self.states = tuple(state for each in law.rounds for state in each.states)
        self.parts = tuple(part for each in law.rounds for part in each.parts)
        self.fields = _fields(memory)
        fields = Names(("count", "index"))  # what every tuple has
        self.Summary: Any = namedtuple(
            f"{self.name}Summary", [fields.fresh(part.lstrip("_")) for part in self.parts]
        )
        graphs, titles = {}, {}
        for r, each in enumerate(law.rounds):
            for kind in ("summary", "merge", "apply"):
                graphs[f"{kind}_{r}"] = getattr(each, kind)
                titles[f"{kind}_{r}"] = TITLES[kind]
        order = [*self.arguments, *self.parts]
        self.source, self._taken = emit_graphs(memory, graphs, order, titles)
        self._module = load_text(self.source, f"{snake(self.name)}_law")

    def summary(
        self, *inputs: Tensor, state: Any = None, chunk: int = CHUNK, **options: Any
    ) -> Any:
        """The summary of a run of tokens.

        Where states read other states at every token (`rounds` is more than 1), it holds for runs
        that start from `state`, which must then be given.
        """
        if len(inputs) != len(self.arguments):
            raise ValueError(f"{self.name} takes {', '.join(self.arguments)}, not {len(inputs)}")
        if state is None and self.rounds > 1:
            later = ", ".join(f"`{name}`" for name in self.law.rounds[1].states)
            raise ValueError(f"{later} read other states at every token: give the `state` before")
        if not torch_compiles():
            self._check(inputs)
        known = self._known(inputs, state)
        if any(each.identity is None for each in self.law.rounds) and not self._length(inputs):
            raise ValueError(f"the law that {self.name} gives has no summary of no tokens")
        return self._summary(
            self._run("summary", r, known, chunk, options) for r in range(self.rounds)
        )

    def _check(self, inputs: Sequence[Tensor]) -> None:
        """Refuse shapes that do not fit together, and sizes that the spec does not allow."""
        sizes: dict[str, sympy.Integer] = {}
        types = [op.type for _, op in self.memory.inputs]
        lengths = []
        for name, type, x in zip(self.arguments, types, inputs, strict=True):
            wanted = f"{self.name}: `{name}` must be [{', '.join(type.names)}]"
            got = f"got a tensor of shape {list(x.shape)}"
            if x.dim() != len(type.axes):
                raise ValueError(f"{wanted}, {got}")
            for axis, length in zip(type.axes, x.shape, strict=True):
                lengths.append((wanted, got, axis, length))
                if axis.size.is_Symbol:
                    sizes.setdefault(str(axis.size), sympy.Integer(length))
        for wanted, got, axis, length in lengths:
            size = at(axis.size, sizes)
            if size.is_number and size != length:
                raise ValueError(f"{wanted} with {axis.name} = {size}, {got}")
        for need in self.memory.requirements:
            if at(need.condition, sizes) == sympy.false:
                names = {symbol.name: symbol.name for symbol in need.condition.free_symbols}
                values = ", ".join(f"{name} = {sizes[name]}" for name in sorted(names))
                text = f"requires {need.text}"
                if need.settled:
                    text = f"was made for {number(need.condition, names)}"
                raise ValueError(f"the law of {self.name} {text}, got {values}")

    def merge(self, first: Any, second: Any) -> Any:
        """The summary of two runs, one after the other."""
        known = {f"{name}.1": x for name, x in zip(self.parts, first, strict=True)}
        known |= {f"{name}.2": x for name, x in zip(self.parts, second, strict=True)}
        return self._summary(self._run("merge", r, known) for r in range(self.rounds))

    def apply(self, summary: Any, state: Any) -> Any:
        """The state after a run, from that before it: a named tuple, as `Spec.op` has it."""
        known = {**dict(zip(self.parts, summary, strict=True)), **self._starts(state)}
        found = [self._run("apply", r, known) for r in range(self.rounds)]
        ends = {name: x for part in found for name, x in part.items()}
        return state._replace(**{self.fields[n]: ends[ck.final(n)] for n in self.states})

    @property
    def rounds(self) -> int:
        """How often one must go over the tokens: once, unless states read other states."""
        return len(self.law.rounds)

    def pieces(self, inputs: Sequence[Tensor], parts: int) -> list[list[Tensor]]:
        """The inputs cut along the tokens into about equal parts, none of them empty."""
        length = self._length(inputs)
        count = max(1, min(parts, length))
        cuts = [length * i // count for i in range(count + 1)]
        return [
            [x if along is None else x.narrow(along, low, high - low)
             for x, along in zip(inputs, self.streams, strict=True)]
            for low, high in pairwise(cuts)
        ]  # fmt: skip

    def starts(
        self,
        pieces: Sequence[Sequence[Tensor]],
        state: Any,
        chunk: int = CHUNK,
        **options: Any,
    ) -> list[Any]:
        """The state before each of the pieces and after the last, from that before the first. The
        summaries of a round do not depend on one another."""
        states = [state] * (len(pieces) + 1)
        for r in range(self.rounds):
            parts = [
                self.part(r, piece, start, chunk, **options)
                for piece, start in zip(pieces, states, strict=False)
            ]
            for i, part in enumerate(parts):
                states[i + 1] = self.after(r, part, states[i], states[i + 1])
        return states

    def part(
        self,
        number: int,
        inputs: Sequence[Tensor],
        state: Any,
        chunk: int = CHUNK,
        **options: Any,
    ) -> dict[str, Tensor]:
        """The parts of one round's summary by name: of a run that starts from `state`, of which
        the states of earlier rounds are read."""
        known = self._known(inputs, state)
        segments = self._segments(number, self._length(inputs), chunk)
        if segments == 1:
            return self._run("summary", number, known, chunk, options)
        return self._in_segments(number, known, segments, chunk, options)

    def _segments(self, number: int, length: int, chunk: int) -> int:
        """How many segments of a run are summarised beside one another: a power of 2."""
        if not isinstance(length, int):  # torch.compile's own symbol
            return 1
        types = dict(zip(self.arguments, (op.type for _, op in self.memory.inputs), strict=True))
        for name in self._taken[f"summary_{number}"].inputs:
            if name not in types or ("t" in types[name].names and types[name].names[0] != "batch"):
                return 1
        return min(SEGMENTS, 1 << max(0, (length // (CHUNKS_EACH * chunk)).bit_length() - 1))

    def _in_segments(
        self, number: int, known: dict[str, Tensor], count: int, chunk: int, options: dict[str, Any]
    ) -> dict[str, Tensor]:
        """The parts of a summary: those of segments of one length, which are sequences of a batch,
        merged in pairs; then what is left of the run."""
        length = self._length([known[name] for name in self.arguments])
        each = length // (count * chunk) * chunk
        inner, rest = dict(known), dict(known)
        for (_, op), along in zip(self.memory.inputs, self.streams, strict=True):
            x = known[op.name]
            if along is not None:
                cut = x.narrow(along, 0, count * each).unflatten(along, (count, each))
                inner[op.name] = cut.movedim(along, 1).flatten(0, 1)
                rest[op.name] = x.narrow(along, count * each, length - count * each)
            elif op.type.names[:1] == ("batch",):
                inner[op.name] = x.repeat_interleave(count, 0)
        made = self._run("summary", number, inner, chunk, options)
        graph = self.law.rounds[number].summary
        batched = {name for name, id in graph.outputs.items() if "batch" in graph[id].type.names}
        while count > 1:
            pairs = {n: x.unflatten(0, (-1, count)) if n in batched else x for n, x in made.items()}
            first, second = (
                {n: x[:, at::2].flatten(0, 1) if n in batched else x for n, x in pairs.items()}
                for at in (0, 1)
            )
            made, count = self._merged(number, first, second), count // 2
        if not self._length([rest[name] for name in self.arguments]):
            return made
        return self._merged(number, made, self._run("summary", number, rest, chunk, options))

    def _merged(
        self, number: int, first: dict[str, Tensor], second: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """The parts of two runs, one after the other."""
        known = {f"{name}.1": x for name, x in first.items()}
        return self._run("merge", number, known | {f"{name}.2": x for name, x in second.items()})

    def after(self, number: int, part: dict[str, Tensor], before: Any, known: Any) -> Any:
        """The state after a run, whose states of earlier rounds are in `known`: that of a round is
        found from the run's summary and the state before it."""
        found = self._run("apply", number, {**part, **self._starts(before)})
        names = self.law.rounds[number].states
        return known._replace(**{self.fields[name]: found[ck.final(name)] for name in names})

    def _starts(self, state: Any) -> dict[str, Tensor]:
        """The fields of a state as inputs of the graphs."""
        if state is None:
            return {}
        return {ck.start(name): getattr(state, field) for name, field in self.fields.items()}

    def _length(self, inputs: Sequence[Tensor]) -> int:
        """How many tokens there are."""
        pairs = zip(inputs, self.streams, strict=True)
        return next(x.shape[along] for x, along in pairs if along is not None)

    def _summary(self, found: Iterable[dict[str, Tensor]]) -> Any:
        """The parts of every round, in order."""
        parts = {name: x for each in found for name, x in each.items()}
        return self.Summary(*(parts[name] for name in self.parts))

    def _known(self, inputs: Sequence[Tensor], state: Any) -> dict[str, Tensor]:
        """Inputs of the graphs; summaries are as wide as states, in float32 at least."""
        wide = [x.float() if x.is_floating_point() and x.itemsize < 4 else x for x in inputs]
        return {**dict(zip(self.arguments, wide, strict=True)), **self._starts(state)}

    def _run(
        self,
        kind: str,
        number: int,
        known: dict[str, Tensor],
        chunk: int = CHUNK,
        options: dict[str, Any] | None = None,
    ) -> dict[str, Tensor]:
        """One of the functions, on values by name."""
        name = f"{kind}_{number}"
        run: Callable[..., tuple[Tensor, ...]] = getattr(self._module, name)
        graph = getattr(self.law.rounds[number], kind)
        taken, given = self._taken[name], {**self._defaults, **(options or {})}
        missing = [option for option in taken.options if option not in given]
        if missing:
            raise ValueError(f"{self.name} needs {', '.join(missing)}, which no shape tells")
        more = [given[option] for option in taken.options]
        made = run(*(known[each] for each in taken.inputs), *more, chunk)
        return dict(zip(graph.outputs, made, strict=True))


TITLES = {
    "summary": "What a run of tokens does to the states.",
    "merge": "The summary of two runs, one after the other.",
    "apply": "The states after a run, from its summary and the states before it.",
}


def _fields(memory: ir.Layer) -> dict[str, str]:
    """The field of a memory's state, by the name that the spec has for it."""
    found = {}
    for field in memory_of(memory).fields:
        if field.kind == "state":
            found[memory.graph[field.node].op.states[field.place].name] = field.name
    return found


def torch_compiles() -> bool:
    """Whether torch.compile looks at what is done: sizes may be symbols of its own then."""
    import torch

    return torch.compiler.is_compiling()


def split(
    op: Callable[..., Any],
    law: CompositionLaw,
    inputs: Sequence[Tensor],
    parts: int = 4,
    state: Any = None,
    chunk: int = CHUNK,
    **options: Any,
) -> tuple[Any, ...]:
    """The result of `op(*inputs, state=state)`, computed in parts that do not wait for one another:
    their summaries, then the state that each starts from, then each by itself. `options` are those
    of `op`."""
    import torch  # takes a second: only where tensors are there already

    if state is None:
        nothing = [
            x if along is None else x.narrow(along, 0, 0)
            for x, along in zip(inputs, law.streams, strict=True)
        ]
        *_, state = op(*nothing, **options)
    more = set(state._fields) - {law.fields[name] for name in law.states}
    if more:
        raise ValueError(f"the state holds more than the law tells: {', '.join(sorted(more))}")
    pieces = law.pieces(inputs, parts)
    starts = law.starts(pieces, state, chunk, **options)
    made = [
        op(*piece, state=start, **options)[0] for piece, start in zip(pieces, starts, strict=False)
    ]
    if isinstance(made[0], torch.Tensor):
        return torch.cat(made, 1), starts[-1]
    return tuple(torch.cat(each, 1) for each in zip(*made, strict=True)), starts[-1]

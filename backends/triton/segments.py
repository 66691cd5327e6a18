"""The lines that launch a walk in segments, where there are too few programs for whole sequences.

    segment = chunks_of_segment(...)      how many chunks each has; 0: sequences go whole
    if segment:
        walk_rows, join_rows = segment_tables(...)
        segment_scan[...](...)            what each segment makes of a state of nothing: a kernel of
                                          its own, or the walk without a start and its results
        segment_transition[...](...)      what becomes of a state in it, where that is a matrix: a
                                          kernel of its own, or the walk of the state alone
        segment_carry[...](...)           the state that each starts from
    walk[...](...)                        sequences, or segments from there

The walk reads where its chunks are from a table, as that of packed sequences does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archc.backends.triton.alike import likeness
from archc.backends.triton.kernel_program import KernelProgram, memory_of
from archc.backends.triton.naming import pointer

from archc.dims import Axis
from archc.ir.kernel import Kernel, Segments
from archc.lowering.kernels import Lowered, lower

if TYPE_CHECKING:
    from archc.backends.triton.function import KernelFunction

MATRIX, WIDEST = 4, 128
"""How many chunks a walk does while segments are joined by one matrix, and the longest dim for
which there is room for one, as the schedule has it."""


@dataclass(frozen=True)
class Launch:
    """The arguments of a kernel's launch: tensors by the names it has for them, the table of its
    sequences, how many these are, if they are not the batch, and how many bytes it loads at every
    chunk, if that is not for the kernel to say. `segments` says how many these are, for arguments
    with a row for each."""

    arguments: Mapping[str, str]
    rows: str
    batch: str = ""
    loaded: Sequence[str] | None = None
    segments: str = ""


@dataclass(frozen=True)
class StandIn:
    """A kernel that is launched in the place of one of segments, with nothing for some of its
    tensors: by their names their places among those of the other, or None."""

    made: KernelProgram
    title: str
    places: Mapping[str, int | None]


def from_zero(
    function: KernelFunction, made: KernelProgram, found: Segments | str
) -> KernelProgram:
    """A walk that may be launched without its first states and its results, if that is what the
    first kernel of its segments does: where what is loaded for results alone would be missing, it
    stays as it is."""
    if isinstance(found, str) or not found.from_zero:
        return made
    part = _program(function, found, found.ends[0])
    optional = {*made.kernel.stores, *found.starts}
    if {*made.arguments} - {*optional, *found.lasts, *part.arguments}:
        return made
    kernel = replace(made.kernel, optional=frozenset(optional), alone=found.from_one)
    return _program(function, found, kernel)


def _alone(made: KernelProgram) -> KernelProgram:
    """A walk that makes what becomes of its state alone, with as many columns as that has rows."""
    kernel, lowered = made.kernel, made.lowered
    assert kernel.split is not None and kernel.alone is not None, "it may be launched so"
    size = kernel.alone.row.size
    sizes = {n: size if s == kernel.split.size else s for n, s in lowered.sizes.items()}
    split = replace(kernel.split, size=size)
    return KernelProgram(replace(kernel, split=split), replace(lowered, sizes=sizes), alone=True)


def _program(function: KernelFunction, found: Segments, kernel: Kernel) -> KernelProgram:
    """A kernel of a walk in segments, with its program."""
    lowered = lower(kernel, function.stream.name, memory_of(function.plan, found.buffers))
    assert isinstance(lowered, Lowered), f"the scan of whole sequences has a program: {lowered}"
    return KernelProgram(kernel, lowered)


def launch_walk(
    function: KernelFunction, made: KernelProgram, title: str, found: Segments | str, rows: str
) -> None:
    """The lines that launch a walk: whole, or in segments, if it can, where that is faster."""
    if isinstance(found, str):
        function.launch(made, title, Launch(function.arguments_of(made), rows))
        return
    later = () if found.again is not None else made.kernel.stores
    whole = Launch(function.arguments_of(made, later), rows)
    _Segments(function, made, title, found, whole).write()


class _Segments:
    """The lines of one walk."""

    def __init__(
        self, function: KernelFunction, made: KernelProgram, title: str, found: Segments,
        whole: Launch,
    ) -> None:  # fmt: skip
        self.function, self.made, self.title = function, made, title
        self.found, self.whole = found, whole
        self.body, self.writer = function.body, function.body.writer
        self.fresh = self.body.names.fresh
        self.names = {each.name: self.fresh(pointer(each.name)) for each in found.buffers}
        self.rows, self.walks = self.fresh("walk_rows"), self.fresh("walks")
        self.joined, self.segment = self.fresh("join_rows"), self.fresh("segment")
        self.redirected = {**found.starts, **found.lasts}
        self.chosen: dict[str, str] = {}
        self.parts = [self._made(kernel) for kernel in found.ends]
        target, given = self._standing_in(self.parts[0])
        self.loaded = function.loaded(target.made, Launch(given, ""))  # the others load no more

    def write(self) -> None:
        """All lines."""
        function, writer, whole = self.function, self.writer, self.whole
        sequences = function.length(self._batch(), False)
        self._decide(sequences)
        function.name_settings(self._standing_in(self.parts[0])[0].made, self.loaded)
        if self.found.again is not None:
            with writer.block(f"if {self.segment}:"):
                self._join(sequences)
                self._again(self.found.again)
            with writer.block("else:"):
                function.launch(self.made, self.title, whole)
            return
        for name, buffer in self.redirected.items():
            writer.line(f"{self.names[buffer]} = {whole.arguments[name]}")
        writer.line(f"{self.rows}, {self.walks} = {whole.rows}, {sequences}")
        with writer.block(f"if {self.segment}:"):
            self._join(sequences)
        function.mark()
        arguments = {**function.arguments_of(self.made), **self._redirected()}
        function.launch(self.made, self.title, Launch(arguments, self.rows, self.walks))

    def _batch(self) -> Axis:
        return next(axis for axis in self.made.kernel.grid if axis.kind == "batch")

    def _redirected(self) -> dict[str, str]:
        """The arguments of a segment's walk in the place of states of sequences."""
        return {name: self.names[buffer] for name, buffer in self.redirected.items()}

    def _decide(self, sequences: str) -> None:
        """The line that says how long segments are."""
        function, chunks = self.function, self.function.chunks()
        every = f"{function.length(self._batch())} * {chunks} // max({sequences}, 1)"
        count = every if function.packed else chunks
        given, end = [function.programs(self.made), count, self.body.device], ")"
        if self.found.applied is not None:
            given += [str(len(self.found.ends) + 1), str(MATRIX)]
            end = f") if {function.size(self.found.applied.size)} <= {WIDEST} else 0"
        self.writer.call(f"{self.segment} = chunks_of_segment(", given, end)

    def _join(self, sequences: str) -> None:
        """The lines that find the state that each segment starts from."""
        function, writer, whole = self.function, self.writer, self.whole
        chunks, tokens = function.chunks(), function.stream_length()
        given = [whole.rows, sequences, tokens, chunks, self.segment, self.body.device]
        writer.call(f"{self.rows}, {self.joined} = segment_tables(", given, ")")
        writer.line(f"{self.walks} = len({self.rows})")
        for buffer in self.found.buffers:
            dims = (axis for axis in buffer.type.axes if axis.kind != "batch")
            shape = ", ".join([self.walks, *(function.length(axis, False) for axis in dims)])
            kind = f"device={self.body.device}, dtype=torch.float32"
            writer.line(f"{self.names[buffer.name]} = torch.empty({shape}, {kind})")
        self._choose_rows()
        for made in self.parts:
            other, given = self._standing_in(made)
            title = other.title or function.add_kernel(other.made)
            given = {name: self.chosen.get(name, text) for name, text in given.items()}
            function.launch(other.made, title, Launch(given, self.rows, self.walks, self.loaded))
        made = self._made(self.found.join)
        launch = Launch(self._given(made), self.joined, sequences, (), self.walks)
        function.launch(made, function.add_kernel(made), launch)

    def _standing_in(self, made: KernelProgram) -> tuple[StandIn, dict[str, str]]:
        """What is launched for a kernel of segments, itself or a walk, and its arguments."""
        known, given = self.function.scope.file.stand_ins, self._given(made)
        key = likeness(made.lowered.program)
        if made is self.parts[0] and self.made.kernel.optional:
            known.setdefault(key, self._stand_in(made))
        if made is self.parts[-1] and self.found.from_one is not None:
            walk, places = self._standing_in(self.parts[0])
            if walk.made.kernel.alone is not None:
                (kept,), (end,) = (self._written(each) for each in (made, self.parts[0]))
                given = {name: kept if text == end else text for name, text in places.items()}
                return replace(walk, made=_alone(walk.made)), given
        other = known.get(key)
        if other is None:
            return StandIn(made, "", {}), given
        texts = [given[name] for name in made.arguments]
        places = other.places.items()
        return other, {n: "None" if at is None else texts[at] for n, at in places}

    def _written(self, made: KernelProgram) -> list[str]:
        """The tensors that a kernel of segments writes."""
        return [self.names[name] for name in made.kernel.ends.values()]

    def _stand_in(self, part: KernelProgram) -> StandIn:
        """The walk itself, in the place of a kernel that starts from 0 and stores states alone."""
        names, places = [*part.arguments], dict[str, int | None]()
        for name in self.made.arguments:
            own = self.found.lasts.get(name, name)
            left_out = name in self.made.kernel.optional
            places[name] = None if left_out else names.index(own)
        return StandIn(self.made, self.title, places)

    def _again(self, kernel: Kernel) -> None:
        """The lines that launch the walk of segments, where it is not that of sequences."""
        made = self._made(kernel)
        arguments = {**self.whole.arguments, **self.chosen, **self._redirected()}
        launch = Launch(arguments, self.rows, self.walks, self.loaded)
        self.function.launch(made, self.function.add_kernel(made), launch)

    def _choose_rows(self) -> None:
        """The lines that give each segment the row of its sequence."""
        if not self.found.rows:
            return
        owner = self.fresh("owner")
        self.writer.line(f"{owner} = sequence_of_segment({self.rows}, {self.joined})")
        for name in sorted(self.found.rows):
            tensor = self.whole.arguments[name]
            place = self.function.layout_of(self.made.arguments[name].id).index("batch")
            each = self.fresh(f"{tensor}_each")
            self.writer.line(f"{each} = {tensor}.index_select({place}, {owner})")
            self.chosen[name] = each

    def _made(self, kernel: Kernel) -> KernelProgram:
        """A kernel of segments, with its program."""
        return _program(self.function, self.found, kernel)

    def _given(self, made: KernelProgram) -> dict[str, str]:
        """The arguments of a kernel of segments: they stand one after the other, in no batch."""
        own = {name: self.names[name] for name in made.arguments if name in self.names}
        return {**self.whole.arguments, **own}

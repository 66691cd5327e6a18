"""The lines that launch a walk in segments, where there are too few programs for whole sequences.

    segment = chunks_of_segment(...)      how many chunks each has; 0: sequences go whole
    if segment:
        walk_rows, join_rows = segment_tables(...)
        walk_ends[...](...)               what each segment makes of a state of nothing
        walk_turn[...](...)               what becomes of a state in it, where that is a matrix
        walk_join[...](...)               the state that each starts from
    walk[...](...)                        sequences, or segments from there

The walk reads where its chunks are from a table, as that of packed sequences does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archc.backends.triton.kernel import KernelWriter, source
from archc.backends.triton.naming import pointer
from archc.backends.triton.ops import OPS
from archc.backends.triton.text import kernel_text

from archc.dims import Axis
from archc.ir.kernel import Segments

if TYPE_CHECKING:
    from archc.backends.triton.function import KernelFunction

MATRIX, WIDEST = 4, 128
"""How many chunks a walk does while segments are joined by one matrix, and the longest dim for
which there is room for one, as the schedule has it."""

PIECES = ("chunks_of_segment", "processors_of", "segment_tables")


@dataclass(frozen=True)
class Launch:
    """What a kernel is launched with: tensors with their strides, by the names it has for them, the
    table of its sequences, how many these are, if they are not the batch, and how many bytes it
    loads at every chunk, if that is not for the kernel to say."""

    arguments: Mapping[str, str]
    rows: str
    batch: str = ""
    loaded: Sequence[str] | None = None

    def tensor(self, name: str) -> str:
        """A tensor without its strides."""
        return self.arguments[name].partition(",")[0]


def in_segments(
    function: KernelFunction, made: KernelWriter, found: Segments | str, whole: Launch
) -> Launch:
    """The lines before a walk; what it is then launched with: as it was, where it goes whole."""
    return whole if isinstance(found, str) else _Segments(function, made, found, whole).launch()


class _Segments:
    """The lines of one walk."""

    def __init__(
        self, function: KernelFunction, made: KernelWriter, found: Segments, whole: Launch
    ) -> None:
        self.function, self.made, self.found, self.whole = function, made, found, whole
        self.body = function.body
        self.fresh = self.body.names.fresh
        self.names = {each.name: self.fresh(pointer(each.name)) for each in found.buffers}
        self.rows, self.walks = self.fresh("walk_rows"), self.fresh("walks")

    def launch(self) -> Launch:
        """All lines."""
        function, writer, whole = self.function, self.body.writer, self.whole
        function.scope.file.pieces |= {*PIECES}
        sequences = function.length(self._batch(), False)
        segment = self.fresh("segment")
        chunks = function.chunks()
        each = f"{function.length(self._batch())} * {chunks} // max({sequences}, 1)"
        count = each if function.packed else chunks
        given, end = [function.programs(self.made), count, self.body.device], ")"
        if self.found.applied is not None:
            given += [str(len(self.found.ends) + 1), str(MATRIX)]
            end = f") if {function.size(self.found.applied.size)} <= {WIDEST} else 0"
        writer.call(f"{segment} = chunks_of_segment(", given, end)
        redirected = {**self.found.starts, **self.found.lasts}
        for name, buffer in redirected.items():
            writer.line(f"{self.names[buffer]} = {whole.tensor(name)}")
        writer.line(f"{self.rows}, {self.walks} = {whole.rows}, {sequences}")
        with writer.block(f"if {segment}:"):
            self._join(segment, sequences)
        arguments = {
            name: self._argument(redirected[name]) if name in redirected else text
            for name, text in whole.arguments.items()
        }
        return Launch(arguments, self.rows, self.walks)

    def _batch(self) -> Axis:
        return next(axis for axis in self.made.kernel.grid if axis.kind == "batch")

    def _argument(self, buffer: str) -> str:
        """A tensor of the segments."""
        return f"{self.names[buffer]}, *{self.names[buffer]}.stride()"

    def _join(self, segment: str, sequences: str) -> None:
        """The lines that find the state that each segment starts from."""
        function, writer, whole = self.function, self.body.writer, self.whole
        joined = self.fresh("join_rows")
        chunks, tokens = function.chunks(), function.stream_length()
        given = [whole.rows, sequences, tokens, chunks, segment, self.body.device]
        writer.call(f"{self.rows}, {joined} = segment_tables(", given, ")")
        writer.line(f"{self.walks} = len({self.rows})")
        for buffer in self.found.buffers:
            dims = (axis for axis in buffer.type.axes if axis.kind != "batch")
            shape = ", ".join([self.walks, *(function.length(axis, False) for axis in dims)])
            kind = f"device={self.body.device}, dtype=torch.float32"
            writer.line(f"{self.names[buffer.name]} = torch.empty({shape}, {kind})")
        loaded = function.loaded(self.made, whole)  # more than parts of it: so there is room
        for kernel in self.found.ends:
            made = source(kernel, OPS, function.stream.name)
            launch = Launch(self._given(made), self.rows, self.walks, loaded)
            function.launch(made, self._title(made), launch)
        made = source(self.found.join, OPS, function.stream.name)
        function.launch(made, self._title(made), Launch(self._given(made), joined, sequences, ()))

    def _title(self, made: KernelWriter) -> str:
        """The name of a kernel of segments, which walks with other results may have in common."""
        file, text = self.function.scope.file, kernel_text(made, "")
        if text not in file.titles:
            file.titles[text] = self.function.add_kernel(made)
        return file.titles[text]

    def _given(self, made: KernelWriter) -> dict[str, str]:
        """What a kernel of segments is given: they stand one after the other, in no batch."""
        given = dict(self.whole.arguments)
        for name, node in made.arguments.items():
            if name in self.names:
                text = self.names[name]
                along = any(axis.kind == "stream" for axis in node.type.axes)
                given[name] = f"{text}, {'0, ' * along}*{text}.stride()"
        return given

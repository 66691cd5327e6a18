"""One sum over the tokens read whose score goes through matrices of the tokens between, as an op of
torch: kernels of the spans of a tree, and the op that calls them level by level."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from archc.backends.eager.file import File
from archc.backends.triton.fold_op import FoldOp, Make
from archc.backends.triton.program_launch import ProgramLaunch, write_program
from archc.backends.writer import Writer

from archc.attention.between import Between, rows_of_token
from archc.attention.between_lines import Equations
from archc.attention.weighted_sum import Source, WeightedSum
from archc.lowering.attention import numbers_of
from archc.lowering.attention_spans import (
    another_span,
    first_span,
    near_spans,
    span_readers,
    span_tokens,
)  # fmt: skip
from archc.lowering.gate_levels import climb as climb_gates
from archc.lowering.gate_levels import descend as descend_gates
from archc.lowering.span_borders import borders, of_borders
from archc.lowering.span_gates import PARTS, gates, of_gates, sums_of_gates
from archc.lowering.span_levels import climb, descend, join
from archc.tile.language import Program

GIVEN = ("d_o", "o", "lse", "delta")
"""The arguments of the gradient's kernels besides those of the forward."""


class SpanOp(FoldOp):
    """The functions that launch the kernels of one fold of the tree, that of `first` spans or that
    of those before; results are given. Numbers enter in the order of `whole`."""

    held_for = ("spans=True",)

    def __init__(self, file: File, fold: WeightedSum, whole: WeightedSum, title: str, first: bool):
        super().__init__(file, fold, title, few=False)
        self.first, known = first, numbers_of(fold)
        self.given = [self.numbers[known[number].name] for number in numbers_of(whole)]

    def _sizes(self) -> dict[str, str]:
        """The sizes of every program, as Python."""
        found = {"T": "part.readers", "S": "part.read", "POS": "part.pos", "START": "0"}
        found |= {"N_SPANS": "part.spans", "PITCH": "part.pitch", "TOKENS": "lse.shape[-1]"}
        found |= {"FIRST_T": "part.first_reader", "FIRST_S": "part.first_read"}
        found |= {"DONE": "part.done"}
        return super()._sizes() | found

    def write_functions(self, learned: list[str]) -> None:
        """The function of the values, and those of the gradient, which are given room for what is
        `learned`, where there is any."""
        make = first_span if self.first else another_span
        self._function(make, "forward", "launch", ["o", "sums", "lse"])
        if learned:
            given = [*GIVEN, *(f"d_{self.arguments[name]}" for name in learned)]
            self._function(partial(span_readers, first=self.first), "readers", "readers", given)
            self._function(partial(span_tokens, first=self.first), "tokens", "tokens", given)

    def _function(self, make: Make, kind: str, suffix: str, made: list[str]) -> None:
        """A function that launches one program."""
        program = self._program(make, f"_{suffix}")
        arguments = [*self.arguments.values(), *made, "part", *self.given]
        where = "the spans themselves" if self.first else "spans before"
        doc = f"Launch the kernel of {kind if kind != 'forward' else 'values'}, of {where}."
        writer = Writer().define(f"{self.title}_{suffix}", arguments, [doc])
        self._prepare(writer)
        sizes = self._write_sizes(writer, self._lengths())
        special = "" if self.first else self._special(writer, program, kind)
        self._blocks(writer, kind, special)
        with writer.block(f"if not {special}:") if special else nullcontext():
            writer.line("rows, columns = min(rows, block_of(part.readers)), min(columns, 64)")
        self._launch(writer, program, sizes, special=special)
        self.file.sections.append(writer.text())


class NearOp(SpanOp):
    """The function that launches the kernel of the first levels of the tree at once."""

    def _sizes(self) -> dict[str, str]:
        """The same; what moves has all levels in place of sequences."""
        moved = next(name for name in self.arguments if name in self.fold.moved)
        levels = f"{self.arguments[moved]}.shape[0] // lse.shape[0]"
        return super()._sizes() | {"B": "lse.shape[0]", "LEVELS": levels}

    def write_function(self) -> None:
        """The function of the values."""
        program = self._program(near_spans, "")
        arguments = [*self.arguments.values(), "o", "sums", "lse", "part", *self.given]
        doc = "Launch the kernel of values, of spans before of the first levels."
        writer = Writer().define(self.title, arguments, [doc])
        self._prepare(writer)
        sizes = self._write_sizes(writer, self._lengths())
        writer.line("rows = columns = part.pitch")
        writer.line('options = {"num_warps": span_warps(data), "num_stages": 2}')
        self._launch(writer, program, sizes)
        self.file.sections.append(writer.text())


def _turning(between: Between) -> list[Source]:
    """What the matrices of tokens are made of, in order."""
    own = [each for rank in between.ranks for each in (rank.u, rank.w)]
    return own if between.gate is None else [*own, between.gate]


class BetweenOp(FoldOp):
    """The ops of a sum through matrices between. What their ranks are made of enters behind the
    other sources."""

    def __init__(self, file: File, between: Between, title: str):
        self.between, self.equations = between, Equations(between)
        paths = {source.name: source for source in _turning(between)}
        self.paths = [*paths.values()]
        whole = between.whole
        super().__init__(file, replace(whole, sources=(*whole.sources, *self.paths)), title, False)
        self.vectors = [each for each in self.vectors if each != between.gate]
        self.inside = SpanOp(file, between.inside, whole, f"{title}_inside", True)
        self.across = SpanOp(file, between.across, whole, f"{title}_across", False)
        self.near = NearOp(file, between.across, whole, f"{title}_near", False)

    @property
    def spans(self) -> tuple[SpanOp, SpanOp]:
        """The kernels of both kinds of folds."""
        return self.inside, self.across

    def _borders(self, suffix: str, gradient: bool) -> None:
        """The function that launches a kernel of what is at the borders of spans, or of its
        `gradient`."""
        ranks, name = self.between.ranks, f"{self.title}_{suffix}"
        doc = "Launch the kernel of what is at the borders of the smallest spans."
        doc = "Launch the kernel of its gradient." if gradient else doc
        sizes = {"B": "q.shape[0]", "N_H": "q.shape[2]", "N_K": "q.shape[3]"}
        constants, warps = {"IO": "q.dtype"}, "" if gradient else "span_warps(q.dtype)"
        if self.between.gate is not None:
            program, warps = (of_gates if gradient else gates)(name), ""
            constants["GATE"] = "gate.dtype"
            if gradient:
                self._sums_of_gates()
        else:
            make = of_borders if gradient else borders
            program = make(rows_of_token(len(ranks)), ranks[0].u.dim is None, name)
            constants |= {"SOLVE": "solve_of(q.dtype)"}
        lines = self.equations.of_borders() if gradient else self.equations.borders()
        self._launching(program, lines, doc, [], sizes, constants, warps)

    def _sums_of_gates(self) -> None:
        """The function that launches the kernel of sums over the tokens of spans."""
        sizes = {"B": "d_gate.shape[0]", "N_H": "d_gate.shape[2]", "N_K": "d_gate.shape[3]"}
        doc = "Launch the kernel of gradients of gates, from those of tokens."
        program, lines = sums_of_gates(f"{self.title}_sums"), self.equations.sums()
        self._launching(program, lines, doc, [], sizes, {}, "")

    def _level(self, program: Program, lines: list[str], doc: str, few: bool = False) -> None:
        """The function that launches a kernel of a level, of `few` warps where that is enough."""
        sizes = {"B": "matrices.shape[0]", "N_H": "matrices.shape[1]", "N_K": "matrices.shape[-1]"}
        rows = next((b.name for b in program.buffers if b.dtype == "IO"), "matrices")
        constants = {"IO": f"{rows}.dtype", "BLOCK_T": f"level_rows(size, {rows}.dtype)"}
        warps = f"span_warps({rows}.dtype)" if few else ""
        sizes["SIZE"] = "size"
        self._launching(program, lines, doc, ["size"], sizes, constants, warps)

    def _launching(
        self, program: Program, lines: list[str], doc: str, more: list[str],
        sizes: dict[str, str], constants: dict[str, str], warps: str,
    ) -> None:  # fmt: skip
        """The function of a program's name that launches its kernel, whose docstring has these
        lines; it is given its buffers, and how many `tokens` there are."""
        title, doc_of_kernel = program.name, "\n".join([program.doc, *lines])
        program = replace(program, name=f"{title}_kernel", doc=doc_of_kernel)
        names = [buffer.name for buffer in program.buffers]
        writer = Writer().define(title, [*names, "tokens", *more], [doc])
        sizes["T"] = "tokens"
        constants |= {"PRECISION": '"tf32x3"'} if "PRECISION" in program.constants else {}
        constants.setdefault("BLOCK_K", f"block_of({sizes['N_K']})")
        launch = ProgramLaunch({name: name for name in names}, sizes, constants, warps=warps)
        write_program(self.file, writer, program, launch)
        self.file.sections.append(writer.text())

    def _levels(self, learned: bool) -> None:
        """The functions of the kernels of a level: with gradients, if anything is `learned`."""
        gated, of = self.between.gate is not None, self.equations
        rows, back = (climb_gates, descend_gates) if gated else (climb, descend)
        doc = "Launch the kernel of q and k at the borders of spans of twice the length."
        self._level(rows(f"{self.title}_climb"), of.climb(), doc, True)
        if not gated:
            more = "Launch the kernel of their matrices."
            self._level(join(f"{self.title}_join"), of.join(), more)
        doc = f"{doc[:-1]}, which keeps what changes."
        keeping = rows(f"{self.title}_climb_keeping", keeps=True)
        self._level(keeping, of.climb(), doc, True)
        if learned:
            doc = "Launch the kernel of the gradients of a level, from those of the next."
            self._level(back(f"{self.title}_descend"), of.descend(), doc)

    def _moves(self, *names: str) -> str:
        """Functions of kernels, by their short names; some of gates are in the runtime."""
        found = {name: f"{self.title}_{name}" for name in names}
        if self.between.gate is not None:
            kernels = f"{found.get('of_borders')}, {self.title}_sums"
            own = {"join": "join_gates", "of_borders": f"back_of_gates({kernels}, {PARTS})"}
            found |= {name: text for name, text in own.items() if name in found}
        return f"({', '.join(found.values())})"

    def _slots(self) -> dict[str, str]:
        """The gradient of each source that has one, and of what ranks are made of."""
        learned = [*self.fold.learned, *(source.name for source in self.paths)]
        return {name: f"d_{self.arguments[name]}" for name in learned}

    def _ranks(self) -> list[Source]:
        """u and w of each rank, in order, or the logarithms of gates."""
        return _turning(self.between)

    def _given(self, writer: Writer) -> None:
        """The line that gathers what enters."""
        whole, dot = self.between.whole, self.between.dot
        names = [source.name for source in whole.sources]
        ends = {dot.reader: whole.source(dot.reader), dot.read: whole.source(dot.read)}
        given = [self._of_each_head(ends[n]) if n in ends else self.arguments[n] for n in names]
        ranks = [
            f"({self._of_each_head(rank.u)}, {self._of_each_head(rank.w)})"
            for rank in self.between.ranks
        ]
        roles = str(tuple(source.role for source in whole.sources)).replace("'", '"')
        vectors = str(tuple(source.dim is not None for source in whole.sources))
        signs = str(tuple(rank.sign for rank in self.between.ranks))
        writer.call("given = Given(", [
            f"[{', '.join(given)}]",
            roles, vectors,
            f"({names.index(dot.reader)}, {names.index(dot.read)})",
            str(names.index(whole.values or "")), f"[{', '.join(ranks)}]",
            signs, f"[{', '.join(self.numbers.values())}]",
            *([] if self.between.gate is None else [self._of_each_head(self.between.gate)]),
        ], ")")  # fmt: skip

    def _of_each_head(self, source: Source) -> str:
        """A vector that heads may share, or a rate as one, as one of each."""
        name = self.arguments[source.name]
        if source.dim is None:
            name += "[..., None]"
        if all(share == 1 for _, _, share in source.shares):
            return name
        return f"each_head({name}, {self.arguments[self.between.dot.reader]}.shape[2:-1])"

    def _forward(self) -> None:
        learned = [] if self.fold.slopes is None else [*self.fold.learned]
        self._borders("borders", False)
        if learned:
            self._borders("of_borders", True)
        self._levels(bool(learned))
        for op in self.spans:
            beside = [self.between.left.name, self.between.right.name] if op.first else []
            op.write_functions([*learned, *beside] if learned else [])
        self.near.write_function()
        doc = f"`{self.title}` by spans: within each, then what each reads of the one before."
        writer = Writer().define(f"{self.title}_launch", self.parameters, [doc], wrapper="as_op")
        self._prepare(writer)
        self._given(writer)
        kernels = [self._moves("borders", "climb", "join", "climb_keeping")]
        kernels += [f"{self.inside.title}_launch", self.near.title, f"{self.across.title}_launch"]
        writer.call("o, lse = between_forward(", [*kernels, "given"], ")")
        writer.line("return o, lse")
        self.file.sections.append(writer.text())

    def _backward(self) -> None:
        learned = [self.fold.source(name) for name in self._slots()]
        writer = self._of_gradient("down the levels of its spans", learned)
        self._write_sizes(writer, [n for n in self._lengths() if n not in ("B", "S")])
        self._given(writer)
        writer.line("d_o = d_o.to(data)")
        names = [source.name for source in self.between.whole.sources]
        places = ", ".join(str(names.index(name)) for name in self.fold.learned)
        kernels = [self._moves("borders", "climb", "join", "climb_keeping")]
        kernels += [self._moves("of_borders", "descend")]
        kernels += [f"({op.title}_readers, {op.title}_tokens)" for op in self.spans]
        given = [*kernels, f"[{places}]", "given", "d_o", "o", "lse"]
        writer.call("made = between_backward(", given, ")")
        own = [f"d_{self.arguments[name]}" for name in self.fold.learned]
        writer.line(f"{', '.join(own)}, *ranks = made")
        ranks = self._ranks()
        for source in self.paths:
            found = [f"ranks[{i}]" for i, each in enumerate(ranks) if each == source]
            writer.line(f"d_{self.arguments[source.name]} = {' + '.join(found)}")
        writer.gives([self._own_or_path(source) for source in learned])
        self.file.sections.append(writer.text())

    def _dtype(self, source: Source) -> str:
        """The dtype of a vector in kernels: that of gates is their own."""
        own = source == self.between.gate
        return f"{self.arguments[source.name]}.dtype" if own else super()._dtype(source)

    def _laid_out(self, source: Source) -> list[str]:
        found = super()._laid_out(source)
        if source not in self.paths or source.dim is not None:
            return found
        batch, *heads, tokens = found
        return [batch, tokens, *heads]

    def _own_or_path(self, source: Source) -> str:
        """A gradient as that of a value that enters."""
        if source in self.paths:
            name = self.arguments[source.name]
            text = self._shared_by_heads(source, f"d_{name}{'' if source.dim else '[..., 0]'}")
            return f"{text}.to({name}_dtype).contiguous()"
        text = self._own(source)
        return text if source.summed else f"{text}.contiguous()"

    def _program(self, make: Make, suffix: str) -> Program:
        """A program of all that enters but ranks, which tells what results are like."""
        return make(self.between.whole, f"{self.title}{suffix}_kernel")

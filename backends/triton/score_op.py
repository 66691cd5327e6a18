"""Scores of pairs that choices are made of: an op of torch, and the function that calls it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from archc.backends.eager.attend import AttendFunction
from archc.backends.eager.file import File
from archc.backends.eager.fused import Fused
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import NUMBER, Value
from archc.backends.expression import ADD, ATOM, Text, call
from archc.backends.index import permuted
from archc.backends.triton.fold_op import WIDE, FoldOp, Make
from archc.backends.triton.program_launch import ProgramLaunch, write_program
from archc.backends.writer import Writer, quoted

from archc.attention import listing
from archc.attention.reach import reaches
from archc.attention.scores import Scores, scores_of
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import WeightedSum
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.lowering.attention import numbers_of
from archc.lowering.attention_scores import log_sums, of_pairs
from archc.lowering.places import candidates, places, short_places
from archc.tile.language import Program

WIDEST = 256
"""The longest vector that kernels of scores hold."""


class ScoreOp(FoldOp):
    """The op of scores: values alone, as choices have no gradient."""

    def __init__(self, file: File, scores: Scores, title: str):
        super().__init__(file, scores.fold, title, few=False)
        self.scores = scores

    @property
    def how(self) -> str:
        """How the values are made, for a reader."""
        return "by one kernel: blocks of pairs, all heads in turn"

    @property
    def kernel(self) -> Make:
        """The function that makes the program of the scores."""

        def make(fold: WeightedSum, name: str) -> Program:
            return of_pairs(self.scores, name)

        return make

    @property
    def results(self) -> list[str]:
        """The result of the op."""
        return ["o"]

    def _launches(self, writer: Writer, sizes: dict[str, str]) -> None:
        program = self._program(self.kernel, "")
        before = [self._program(log_sums, "_log_sums")] if self.fold.softmax else []
        for each in before:
            self._allocate(writer, each)
            self._blocks(writer, "forward")
            self._launch(writer, each, sizes)
        self._allocate(writer, program, [made.name for each in before for made in each.buffers])
        self._blocks(writer, "scores")
        self._launch(writer, program, sizes)


def write_places(file: File, title: str, lines: Sequence[str]) -> str:
    """The op that lists the places of the largest numbers of rows, as `lines` of the spec choose
    them; its name."""
    name = file.names.fresh(title)
    _write_launch(file, name, title, lines)
    doc = "What the places are like, without their values."
    writer = Writer().define(f"{name}_fake", ["score", "most"], [doc])
    writer.line("return score.new_empty((*score.shape[:-1], most), dtype=torch.int32)")
    file.sections.append(writer.text())
    writer = Writer()
    schema = quoted(f"{name}(Tensor score, SymInt most) -> Tensor")
    writer.call(f"{name} = new_op(", ["SPACE", schema, f"{name}_launch", f"{name}_fake",
                "no_gradient"], ")")  # fmt: skip
    file.sections.append(writer.text())
    return name


def _write_launch(file: File, name: str, title: str, lines: Sequence[str]) -> None:
    """The function that launches its kernels, and these."""
    doc = "The places of the `most` largest of each row, in order, among those that may be."
    writer = Writer().define(f"{name}_launch", ["score", "most"], [doc], wrapper="as_op")
    writer.line("rows = score.reshape(-1, score.shape[-1]).contiguous()")
    writer.line("listed = rows.new_full((rows.shape[0], most), -1, dtype=torch.int32)")
    sizes = {"ROWS": "rows.shape[0]", "S": "rows.shape[1]", "MOST": "most"}
    kind: dict[str, str] = {"IO": "rows.dtype"}
    bits = {"BITS": "bits_of(rows.dtype)"}
    writer.line("whole = block_of(rows.shape[1])")
    with writer.block("if whole <= SHORT_ROW:"):
        program = short_places(f"{title}_short_kernel", lines)
        buffers: dict[str, str] = {"score": "rows", "listed": "listed"}
        options = "place_options(whole)"
        launch = ProgramLaunch(buffers, sizes, kind | bits | {"BLOCK_S": "whole"}, options=options)
        write_program(file, writer, program, launch)
        writer.line("return listed.view(*score.shape[:-1], most)")
    writer.line("parts, room, block = place_blocks(rows.shape[1], most)")
    for made, dtype in (("kept", WIDE), ("place", "torch.int32")):
        writer.line(f"{made} = rows.new_empty((rows.shape[0], room), dtype={dtype})")
    writer.line("found = rows.new_empty(rows.shape[0], dtype=torch.int32)")
    sizes |= {"ROOM": "room"}
    both = {
        "parts": candidates(f"{title}_candidates_kernel", lines),
        "block": places(f"{title}_kernel", lines),
    }
    for block, program in both.items():
        buffers = {b.name: "rows" if b.name == "score" else b.name for b in program.buffers}
        options = f"place_options({block})"
        own = (kind if "score" in buffers else {}) | bits
        launch = ProgramLaunch(buffers, sizes, own | {"BLOCK_S": block}, options=options)
        write_program(file, writer, program, launch)
    writer.line("return listed.view(*score.shape[:-1], most)")
    file.sections.append(writer.text())


class ScoreFunction(AttendFunction):
    """The function of an attend that makes choices, whose scores are by a kernel; `made` is the
    node of the scores, `places` the op that lists the places of the largest."""

    def __init__(
        self, scope: Scope, node: Node, values: dict[str, Value], scores: Scores, title: str
    ):
        super().__init__(scope, node, values, "_fold")
        self.made = scores.fold.node
        op = ScoreOp(scope.file, scores, f"{title}_scores")
        op.write()
        lines = listing.places(scores.fold)
        self.places = write_places(scope.file, f"{title}_places", lines)
        operands = tuple(dict.fromkeys(source.node for source in scores.fold.sources))
        self.body.fused[self.made] = Fused(operands, partial(_scored, op=op), "scores")
        self.body.uses = self.body._count_uses()
        tensors = [v.text.text for v in values.values() if v.kind != NUMBER]
        vectors = [s.dim for s in scores.fold.sources if s.dim is not None]
        lengths = dict.fromkeys(str(scope.size(axis.size)) for axis in vectors)
        fits = [f"{length} <= {WIDEST}" for length in lengths]
        fits += rows_suffice(scope, self.op)
        self.test = " and ".join([f"by_folds({', '.join(tensors)})", *fits])


def rows_suffice(scope: Scope, op: ir.Attend) -> Iterator[str]:
    """Whether the tables that pairs read have rows for every index that there may be, where it is
    not known that there is one beside them: kernels do not look."""
    for _, reach in reaches(op):
        if reach is not None and not reach.inside and not reach.met:
            least, most, rows = map(scope.size, (reach.least, reach.most, reach.rows))
            if not reach.least.is_nonnegative:
                yield f"{least.at(ADD)} >= 0"
            yield f"{most.at(ADD)} < {rows.at(ADD)}"


def by_scores(
    scope: Scope, node: Node, values: dict[str, Value], title: str
) -> ScoreFunction | None:
    """The function that makes choices of scores by a kernel; None where these are made in
    PyTorch."""
    node = replace(node, op=as_folds(node.op))
    scores = scores_of(node.op)
    how = "lists of what each reader chooses, of some readers at a time, their scores by"
    if scores is None:
        scope.file.attends.append(f"    {title}: {how} PyTorch")
        return None
    sums = f" that sums over `{scores.over}`" if scores.over else ""
    scope.file.attends.append(f"    {title}: {how} a kernel{sums}")
    made = ScoreFunction(scope, node, values, scores, title)
    made.write()
    return made


def _scored(scope: Scope, node: Node, op: ScoreOp) -> Value:
    """`I = memory_scores(qi, ki, wi, T, pos, ...)`."""
    fold = op.fold
    values = ((source, scope.value(source.node)) for source in fold.sources)
    given = [permuted(value.text, value.layout, source.type.names) for source, value in values]
    tokens = scope.ask(scope.lengths[fold.reader.name])
    starts = [scope.ask(scope.starts.get(axis.name, "0")) for axis in (fold.reader, fold.read)]
    known = {symbol.name: (number, symbol) for number, symbol in numbers_of(fold).items()}
    numbers: list[str | Text] = [
        str(scope.size(number)) if symbol.is_integer else f"float({scope.number(number)})"
        for number, symbol in known.values()
    ]
    text = call(op.title, *given, tokens, *starts, *numbers)
    others = [head.name for head in fold.heads if head.name != op.scores.over]
    others += [op.scores.groups] if op.scores.groups is not None else []
    have = ["batch", fold.reader.name, *others, fold.read.name]
    if op.scores.summed:
        text = call(f"{text.at(ATOM)}.to", scope.dtype)
    return scope.settled(node, text, have)

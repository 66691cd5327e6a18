"""THE pipeline: the text of a spec -> the text of a Python file, in one straight line.

    Source -> tree -> layer IR -> the same for less work -> keeping less -> plan -> source text

The layer IR is verified after elaboration and after every pass; `dump` sees every stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import metadata
from typing import Any

from archc.algebra.absorb import absorb
from archc.algebra.scales import scaled_queries
from archc.algebra.separate import separate
from archc.algebra.simplify import simplify
from archc.attention.recognise import Found, folds
from archc.attention.recurrent import recurrent
from archc.attention.weighted_sum import PAIRS
from archc.autodiff.gradient_builder import NoGradient
from archc.autodiff.reverse import gradient
from archc.backends.eager import emit as eager
from archc.backends.renamed import check_spelling
from archc.backends.triton import emit as triton
from archc.backends.triton.fold import tells_totals
from archc.backends.triton.schedule import Schedule
from archc.elaborate.elaborate import Importer, elaborate
from archc.file_check import checked
from archc.ir import layer as ir
from archc.ir.before_loops import made_before, products_before
from archc.ir.chunk import ChunkForm
from archc.ir.graph import Graph
from archc.ir.layer_budget import check_budget
from archc.ir.own_positions import with_own_positions
from archc.ir.plan import Plan
from archc.ir.rewrite import rewrite
from archc.ir.token_region import Left, TokenRegion
from archc.ir.value_names import cotangent
from archc.ir.verify import verify
from archc.limits import deep_calls
from archc.lowering.token import RegionKernels, lower
from archc.numerics.factors import parts_in_loops
from archc.numerics.gates import gates_in_logs
from archc.recurrence.affine.normalize import decays
from archc.recurrence.affine.vectors import vectors_as_rows
from archc.recurrence.chunk.chunked import chunked
from archc.recurrence.law.numbers import with_laws
from archc.regions.cut import regions
from archc.regions.gradient import gradient_of
from archc.regions.packed import with_tails
from archc.schedule.budget import within_budget
from archc.schedule.choosing import choices_within
from archc.schedule.delayed_solve import inverses_last
from archc.schedule.epilogue import epilogues
from archc.schedule.fitting import fitting
from archc.schedule.forms import Differentiated
from archc.schedule.gate_sums import with_sums
from archc.schedule.inner import inner_sums
from archc.schedule.joint_pairs import with_joint_pairs
from archc.schedule.known_totals import known_totals
from archc.schedule.late_pairs import of_pairs, with_late_pairs
from archc.schedule.near_rows import with_common_decays, with_near_rows
from archc.schedule.outer import with_sums_of_rows, without_outer_sums
from archc.schedule.part_scales import with_scales_of_parts
from archc.schedule.partition import partition
from archc.schedule.plain_factors import with_plain_factors
from archc.schedule.prologue import prologues
from archc.schedule.quotients import quotients_again
from archc.schedule.rises import without_rises
from archc.schedule.row_scales import with_plain_rows
from archc.schedule.segments import segments
from archc.schedule.state_products import with_state_products
from archc.schedule.token_walks import is_checkpointed, steps, tokenwise
from archc.schedule.wide_scans import wide_scans_again, with_sums_of_blocks
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse
from archc.tile.language import Program

KEPT = 96
"""Of how many layers what was made of them is kept: twice as many as are bundled."""

Dump = Callable[[str, object], None]
"""Is shown every stage: its name, and the tree, layer or text."""


def unseen(stage: str, value: object) -> None:
    """Shows no stage to anyone."""


def in_logs(layer: ir.Layer) -> ir.Layer:
    """Decays of recurrences enter as logarithms."""
    return gates_in_logs(layer, decays)


def in_chunks(layer: ir.Layer) -> ir.Layer:
    """Recurrences get their chunked forms, and those their gradients."""
    return chunked(layer, differentiate)


def for_kernels(layer: ir.Layer) -> ir.Layer:
    """Chunked forms as kernels do best, with what enters and leaves them as it is."""
    return _through(FOR_KERNELS, layer)


def _again(
    graph: Graph, wanted: Sequence[str], given: Sequence[str], never: Collection[int] = ()
) -> Differentiated:
    """A gradient anew: products of matrices take kernels less than memory does."""
    return differentiate(graph, wanted, given, (ir.Contract,), never)


def placed(layer: ir.Layer) -> ir.Layer:
    """Choices where they are scored, by totals that are known."""
    return rewrite(rewrite(layer, [choices_within]), known_totals(partial(tells_totals, folded)))


def differentiate(
    graph: Graph,
    wanted: Sequence[str],
    given: Sequence[str],
    again: tuple[type, ...] = (),
    never: Collection[int] = (),
) -> Differentiated:
    """The gradient of a graph; `again`: ops that are computed again for it whatever they cost,
    `never`: values that are not saved."""
    found = gradient(graph, wanted, given, again=again, never=never)
    return found.forward, found.backward, tuple(saved.name for saved in found.saved)


def slopes_of(graph: Graph, wanted: Sequence[str]) -> Graph | str:
    """The derivative of the score of pairs by some of its inputs, or why there is none."""
    try:
        found = gradient(graph, wanted, [n for n in PAIRS if n in graph.outputs], save=False)
    except NoGradient as reason:
        return str(reason)
    slopes = found.backward.copy()
    for name in found.unreached:
        del slopes.outputs[cotangent(name)]
    slopes.prune()
    return slopes


def folded(attend: ir.Attend) -> tuple[Found, ...]:
    """Each sum over the tokens read of an attend, recognised, with its derivative."""
    return folds(attend, slopes_of)


def with_chunks(layer: ir.Layer) -> ir.Layer:
    """The layer with its recurrences in both forms, and everything else where the spec has it: what
    is proved of gates holds for the whole layer, and stays when its memory is taken out."""
    return in_chunks(entered(layer))


def entered(layer: ir.Layer) -> ir.Layer:
    """The layer, its recurrences with gates as logarithms, turns as angles and outer products as
    factors, and all else that enters them where the spec has it: what a memory taken out has as
    arguments."""
    return in_logs(vectors_as_rows(parts_in_loops(simplify(layer))))


PASSES: tuple[tuple[str, Callable[[ir.Layer], ir.Layer]], ...] = (
    ("simplify", simplify),
    ("recurrent", recurrent),
    ("before_loops", made_before),
    ("separate", separate),
    ("scales", scaled_queries),
    ("absorb", absorb),
    ("factors", parts_in_loops),
    ("vectors", vectors_as_rows),
    ("gates", in_logs),
    ("chunk", in_chunks),
)
"""Layer IR -> layer IR, in order."""

DERIVING = [name for name, _ in PASSES].index("chunk")
"""The place in the order where chunked forms are derived."""


with_prologues = partial(prologues, differentiate=differentiate)
with_epilogues = partial(epilogues, differentiate=differentiate)

FOR_KERNELS: tuple[tuple[str, Callable[[ir.Layer], ir.Layer]], ...] = (
    ("budget", within_budget),
    ("wide_scans", partial(wide_scans_again, differentiate=differentiate)),
    ("inverses", partial(inverses_last, differentiate=_again)),
    ("quotients", partial(quotients_again, differentiate=_again)),
    ("inner_sums", inner_sums),
    ("places", placed),
)
"""Layer IR -> layer IR for kernels alone, in order: what enters and leaves recurrences stays."""

KERNEL_PASSES = (("epilogues", with_epilogues), ("prologues", with_prologues), *FOR_KERNELS)
"""The same with what leaves recurrences and what enters them."""


def with_gradient(graph: Graph) -> ChunkForm | None:
    """A recurrence by itself with its gradient, for kernels that walk its tokens; None where an op
    has no derivative."""
    real = {n.op.name: n for n in graph if isinstance(n.op, ir.Input) and n.type.dtype == "real"}
    outputs = [name for name, id in graph.outputs.items() if graph[id].type.dtype == "real"]
    try:
        found = gradient(graph, [*real], outputs)
    except NoGradient:
        return None
    saved = tuple(each.name for each in found.saved)
    heads = {name for node in graph if isinstance(node.op, ir.Recurrence) for name in node.op.heads}
    backward = without_outer_sums(products_before(found.backward), heads)
    return ChunkForm(products_before(found.forward), backward, saved)


def prepared(graph: Graph, heads: Collection[str]) -> Graph:
    """A chunked form as kernels do it best."""
    graph = with_sums_of_rows(without_outer_sums(without_rises(graph), heads), heads)
    graph = with_joint_pairs(with_sums(with_sums_of_blocks(graph, heads), heads))
    graph = with_plain_factors(graph, heads, of_pairs(graph, heads))
    graph = with_common_decays(with_plain_rows(with_near_rows(graph), heads))
    graph = with_late_pairs(graph, heads)
    return with_state_products(with_scales_of_parts(graph, heads))


def token_regions(layer: ir.Layer, away: Collection[int] = ()) -> list[RegionKernels | Left]:
    """The programs of each token region, or the reason why it is in PyTorch. `away`: nodes that
    stay where they are."""
    found: list[RegionKernels | Left] = []
    for region in regions(layer.graph, never=away):
        if isinstance(region, Left):
            found.append(region)
            continue
        made = region_kernels(region)
        done = isinstance(made, RegionKernels)
        found.append(made if done else Left(region.name, region.members, made))
    return found


def region_kernels(region: TokenRegion) -> RegionKernels | str:
    """The programs of a region, or why there are none."""
    try:
        made = lower(region, gradient_of(region, gradient))
    except NoGradient as problem:
        return str(problem)
    return made if isinstance(made, RegionKernels) else made.reason


def packed_kernels(region: TokenRegion, packed: bool) -> RegionKernels | str:
    """The same with what is kept for the next call; `packed`: for packed sequences too."""
    return region_kernels(with_tails(region, packed))


def with_kernels(layer: ir.Layer, away: Collection[int]) -> list[RegionKernels]:
    """The token regions that have kernels."""
    return [each for each in token_regions(layer, away) if isinstance(each, RegionKernels)]


SCHEDULE = Schedule(
    prepared,
    partition,
    tokenwise,
    steps,
    with_gradient,
    fitting,
    segments,
    is_checkpointed,
    folded,
    with_kernels,
    packed_kernels,
)
"""How recurrences become kernels."""


@dataclass(frozen=True)
class Kernels:
    """The kernels of a layer's code, in words: functions that launch kernels, a line each, and
    recurrences that PyTorch does, with the reason."""

    launched: tuple[str, ...]
    refused: tuple[str, ...]

    def __str__(self) -> str:
        if self.launched:
            return "\n".join(["on a GPU, by kernels:", *self.launched, *self._others()])
        return "\n".join(
            self._others() or ["in PyTorch on every device: nothing in it is worth a kernel"]
        )

    def _others(self) -> list[str]:
        return ["in PyTorch on every device:", *self.refused] if self.refused else []


def kernels_of(layer: ir.Layer) -> Kernels:
    """The kernels of an elaborated layer."""
    return Kernels(*triton.kernels_in(_code(layer, "triton", False).file))


def programs_of(layer: ir.Layer) -> dict[str, Program]:
    """The kernels of an elaborated layer, by name."""
    return _code(layer, "triton", False).file.programs


def ready_for_kernels(layer: ir.Layer) -> ir.Layer:
    """A part of a layer, with chunked forms as kernels do best."""
    return whole_for_kernels(with_chunked_forms(layer))


def in_kernels(plan: Plan) -> eager.Code:
    """The code whose chunked recurrences launch kernels on a GPU."""
    return triton.code_of(replace(plan, layer=for_kernels(plan.layer)), SCHEDULE, ready_for_kernels)


@lru_cache(KEPT)
def whole_for_kernels(layer: ir.Layer) -> ir.Layer:
    """Chunked forms as kernels do best, with what enters and what leaves them."""
    return _through(KERNEL_PASSES, layer)


def whole_in_kernels(plan: Plan) -> eager.Code:
    """The code whose chunked recurrences, and what enters and leaves them, are kernels on a GPU."""
    ready = whole_for_kernels(plan.layer)
    return triton.code_of(replace(plan, layer=ready), SCHEDULE, ready_for_kernels)


def in_pytorch(plan: Plan) -> eager.Code:
    """The code that runs everywhere."""
    return eager.code_of(plan, ready=with_chunked_forms)


BACKENDS: Mapping[str, Callable[[Plan], eager.Code]] = {
    "auto": in_pytorch, "eager": in_pytorch, "triton": whole_in_kernels,
}  # fmt: skip
"""Plan -> code, by name; `auto` is what runs everywhere."""


@dataclass(frozen=True)
class Style:
    """How a file is written: whether it embeds what it calls of the runtime or imports it
    (`RUNTIMES`), and whether it has its self-check in it, which it has passed either way."""

    runtime: str = "embed"
    check: bool = True


RUNTIMES, EMBEDDED = ("embed", "import"), Style()


def compile_source(
    source: Source,
    name: str | None = None,
    given: Mapping[str, Any] | None = None,
    backend: str = "eager",
    command: str = "",
    dump: Dump = unseen,
    style: Style = EMBEDDED,
) -> str:
    """The Python file of a spec's layer (None: its last), checked against the layer's meaning.

    `given` are sizes and options by name, `command` what makes the file again. Raises ArchError
    for a spec that is wrong, InternalError if the file computes anything else than the spec says.
    """
    layer = elaborated(source, name, given, dump)
    return file_of(layer, backend, command, dump, style)


@deep_calls()
def elaborated(
    source: Source,
    name: str | None = None,
    given: Mapping[str, Any] | None = None,
    dump: Dump = unseen,
    importer: Importer = import_source,
) -> ir.Layer:
    """The layer IR that a spec stands for, as it is written there; `importer` finds the texts of
    its imports."""
    file = parse(source)
    dump("tree", file)
    layer = elaborate(file, name, given or {}, importer)
    verify(layer)
    check_budget(layer)
    check_spelling(layer)
    layer = with_laws(layer)
    dump("layer", layer)
    return layer


@deep_calls()
def lowered(layer: ir.Layer, dump: Dump = unseen) -> ir.Layer:
    """The layer IR that backends are given: every pass, each verified."""
    return with_chunked_forms(layer) if dump is unseen else _through(PASSES, layer, dump)


@lru_cache(KEPT)
@deep_calls()
def before_chunks(layer: ir.Layer) -> ir.Layer:
    """The layer IR that chunked forms are derived from: every pass before that."""
    return _through(PASSES[:DERIVING], layer)


@lru_cache(KEPT)
@deep_calls()
def with_chunked_forms(layer: ir.Layer) -> ir.Layer:
    """The layer IR that backends are given, of an elaborated layer: every pass."""
    return _through(PASSES[DERIVING:], before_chunks(layer))


def _through(
    passes: Sequence[tuple[str, Callable[[ir.Layer], ir.Layer]]],
    layer: ir.Layer,
    dump: Dump = unseen,
) -> ir.Layer:
    """A layer after some passes."""
    for stage, run in passes:
        layer = run(layer)
        verify(layer)
        dump(stage, layer)
    return layer


@deep_calls()
def file_of(
    layer: ir.Layer,
    backend: str = "eager",
    command: str = "",
    dump: Dump = unseen,
    style: Style = EMBEDDED,
) -> str:
    """The file of an elaborated layer, with its self-check."""
    version = metadata.version("archc")
    plan = Plan(lowered(layer, dump), version, command, runtime=style.runtime)
    if dump is not unseen and BACKENDS[backend] is whole_in_kernels:
        _through(KERNEL_PASSES, plan.layer, dump)
    text = checked(plan, layer, BACKENDS[backend](plan).text, style.check)
    dump("source", text)
    return text


@lru_cache(KEPT)
@deep_calls()
def text_of(layer: ir.Layer, backend: str = "eager", linear: bool = False) -> str:
    """The source of an elaborated layer alone, as it is loaded into this process: its runtime is
    imported. `linear`: products with parameters are calls of `nn.Linear`."""
    return _code(layer, backend, linear).text(_loaded(layer, linear))


def _loaded(layer: ir.Layer, linear: bool) -> Plan:
    """The plan of code that is loaded into this process."""
    return Plan(with_chunked_forms(layer), runtime="import", linear=linear)


@lru_cache(KEPT)
@deep_calls()
def _code(layer: ir.Layer, backend: str, linear: bool) -> eager.Code:
    """The code of that plan, of which the text is written and its kernels are told."""
    return BACKENDS[backend](_loaded(layer, linear))


@lru_cache(KEPT)
@deep_calls()
def slots_text_of(layer: ir.Layer, backend: str = "eager", linear: bool = False) -> str:
    """The source of an elaborated layer that reads one token of each of several sequences of
    different lengths; the layer must not be `unready` for that."""
    ready = with_chunked_forms(layer)
    if backend == "triton":
        ready = placed(ready)
    ready = with_own_positions(ready)
    plan = Plan(ready, runtime="import", linear=linear, slots=True)
    return BACKENDS[backend](plan).text(plan)


@deep_calls()
def function_of(layer: ir.Layer, name: str, backend: str = "eager", whole: bool = False) -> str:
    """The source of a function `name` that computes a layer without parameters; `whole`: what
    stands around a memory has kernels, too."""
    if backend == "triton":
        ready = whole_for_kernels(layer) if whole else for_kernels(layer)
        return triton.emit_function(ready, name, SCHEDULE, ready_for_kernels, whole)
    return eager.emit_function(layer, name, ready=with_chunked_forms)

"""A layer computed on several processes: its pieces one after the other, and the exchanges."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from archc.backends.eager.memory import memory_of
from archc.backends.load import load
from archc.backends.renamed import at_path
from archc.backends.writer import attribute, identifier, snake
from archc.compile import before_chunks, function_of, with_chunked_forms
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.optional_inputs import with_inputs
from archc.ir.sizes import Number, evaluate
from archc.law import CompositionLaw
from archc.origin import backend_here, origin_of
from archc.parallel import early, overlapped
from archc.parallel.early import Sums
from archc.parallel.exchange import (
    check_same_length,
    one_loss,
    own_part,
    shared,
    summed,
    whole,
)
from archc.parallel.heads import HeadParts, check_heads, head_parts, heads_of
from archc.parallel.mesh import Ranks
from archc.parallel.own_tokens import tokens_of
from archc.parallel.pieces import ATTEND, BETWEEN, CALL, RECURRENCE, Piece, pieces_of
from archc.parallel.placement import Crossing, Mark, Pending, Split, place_of
from archc.parallel.segmented import (
    by_segments,
    goes_in_segments,
    joining,
    masks_rows,
    usable,
)
from archc.parallel.sequence import (
    Part,
    earlier_tokens,
    goes_in_halves,
    in_halves,
    started,
    with_earlier,
    with_position,
)
from archc.parallel.widened import by_columns
from archc.recurrence.analysis.columns import Columns, columns_of
from archc.recurrence.law.composition import WithoutLaw, law_of_layer


class Unsupported(ValueError):
    """A layer that cannot be split as a mesh says; the message has the place in the spec."""


def refused(layer: ir.Layer, dim: str, reason: str, node: Node | None) -> Unsupported:
    """The error for a layer that cannot be split along a mesh dim."""
    return Unsupported(f"{layer.name} cannot be split along `{dim}`: {reason}{place_of(node)}")


class PieceFunction:
    """The function of a piece, of tensors in the order of what it reads."""

    def __init__(self, piece: Piece, sizes: Mapping[str, Number], backend: str):
        self.piece = piece
        layer = piece.layer
        recurrences = any(isinstance(node.op, ir.Recurrence) for node in layer.graph)
        ready = with_chunked_forms(layer) if recurrences else layer
        name = f"{snake(layer.name)}_{piece.kind}"
        self.module = load(function_of(ready, name, backend), name)
        self.call: Callable[..., Any] = getattr(self.module, name)
        options = inspect.signature(self.call).parameters.values()
        self.wanted = [each.name for each in options if each.kind is inspect.Parameter.KEYWORD_ONLY]
        self.trains, self.draws = "training" in self.wanted, any(noises(layer.graph))
        self._resize(sizes)
        self.streamed = ["t" in op.type.names for _, op in layer.inputs]
        self.halo = int(evaluate(piece.halo, sizes))
        memory = memory_of(ready)
        self.continues = memory.refusal is None
        self.counts = any(each.kind == "pos" for each in memory.fields)
        self.blank = all(self.streamed) or all(f.kind in ("past", "seen") for f in memory.fields)
        drawn = self.draws or self.counts or not self.continues
        kernels = backend == "triton" and piece.kind == RECURRENCE and not drawn
        self.in_segments = kernels and goes_in_segments(ready, sizes)
        self.masked = self.in_segments and masks_rows(ready)

    def _resize(self, sizes: Mapping[str, Number]) -> None:
        self.sizes, self.firsts = sizes, dict[Any, Any]()
        self.options = {each: sizes[each] for each in self.wanted if each in sizes}

    def of_sizes(self, sizes: Mapping[str, Number]) -> PieceFunction:
        """The same function for other sizes."""
        found = copy.copy(self)
        found._resize(sizes)
        return found

    def __call__(
        self, values: Sequence[Tensor], state: Any, training: bool
    ) -> tuple[tuple[Tensor, ...], Any]:
        """The outputs of the piece, and the state after the last token."""
        more = {"training": training} if self.trains else {}
        made, end = self.call(*values, state=state, **self.options, **more)
        return made if isinstance(made, tuple) else (made,), end

    def first_state(self, values: Sequence[Tensor]) -> Any:
        """The state before the first token, of what has no tokens: it may be learned. One that no
        number of these can change is made once."""
        pairs = [*zip(values, self.streamed, strict=True)]
        shapes = [(*x.shape[:1], *x.shape[1 + along :]) for x, along in pairs]
        kinds = tuple((shape, x.dtype, x.device) for shape, x in zip(shapes, values, strict=True))
        modes = torch.is_autocast_enabled(values[0].device.type), torch.is_inference_mode_enabled()
        key = (kinds, modes)
        if self.blank and key in self.firsts:
            return self.firsts[key]
        nothing = [x.new_empty(x.shape[0], 0, *x.shape[2:]) if t else x for x, t in pairs]
        with nullcontext() if not self.blank else torch.no_grad():
            _, state = self.call(*nothing, **self.options)
        if self.blank:
            self.firsts = {key: state}
        return state


def law_in(piece: Piece) -> CompositionLaw | WithoutLaw:
    """The composition law of a recurrence."""
    ready = before_chunks(piece.layer)
    found = law_of_layer(ready)
    return found if isinstance(found, WithoutLaw) else CompositionLaw(ready, found)


def columns_in(piece: Piece) -> Columns | None:
    """The columns of a piece that is a recurrence along the tokens."""
    node = piece.node
    if node is None or piece.kind != RECURRENCE or node.op.stream.name != "t":
        return None
    return columns_of(piece.layer)


class Program:
    """How a layer of some sizes is computed on `tp` times `cp` processes.

    `given` are those of its optional inputs that are there; outputs that need others are left out.
    """

    def __init__(
        self, layer: ir.Layer, sizes: Mapping[str, Number], backend: str, tp: int, cp: int,
        given: frozenset[str],
    ):  # fmt: skip
        self.layer = before_chunks(with_inputs(layer, given))
        self.sizes, self.backend = sizes, backend
        self.heads = heads_of(self.layer, sizes) if tp > 1 else None
        self.places, self.local = None, dict(sizes)
        if self.heads is not None:
            check_heads(self.layer, self.heads, sizes, tp)
            self.places = self.heads.places if self.heads.axes else None
            split = {str(symbol) for symbol in self.heads.places.sizes}
            self.local |= {name: int(sizes[name]) // tp for name in split}
        self.tokens = self._tokens() if cp > 1 else {}
        self.pieces = self._pieces()
        self.columns = [columns_in(piece) if cp > 1 else None for piece in self.pieces]
        pairs = zip(self.pieces, self.columns, strict=True)
        self.laws = [self._law(p) if cp > 1 and alone is None else None for p, alone in pairs]
        self.drops = [self._drops(piece) for piece in self.pieces]
        self.early = self._early() if cp > 1 else frozenset[int]()

    @cached_property
    def functions(self) -> list[PieceFunction | None]:
        """The function of each piece that is no other layer."""
        return [
            None if piece.kind == CALL
            else PieceFunction(piece, self.local if piece.heads else self.sizes, self.backend)
            for piece in self.pieces
        ]  # fmt: skip

    @cached_property
    def by_heads(self) -> dict[int, tuple[HeadParts, PieceFunction]]:
        """The attends to all earlier tokens that can be computed some heads at a time, by their
        places, with the function for one part."""
        found = {}
        for place, function in enumerate(self.functions):
            if function is None or function.piece.kind != ATTEND or function.draws:
                continue
            parts = head_parts(function.piece.layer, function.sizes, overlapped.PARTS)
            if parts is not None:
                found[place] = parts, function.of_sizes(parts.sizes)
        return found

    def _tokens(self) -> Mapping[int, Mark]:
        try:
            return tokens_of(self.layer)
        except Crossing as needed:
            raise refused(self.layer, "cp", needed.reason, needed.node) from None

    def _pieces(self) -> list[Piece]:
        try:
            return pieces_of(self.layer, self.places, self.tokens)
        except Crossing as needed:
            dim = "cp" if self.tokens else "tp"
            raise refused(self.layer, dim, needed.reason, needed.node) from None

    def _early(self) -> frozenset[int]:
        """The parameters that only pieces along the tokens read, which all processes compute alike
        and in the same order."""
        graph, found = self.layer.graph, {id for id, _ in self.layer.params}
        for piece in self.pieces:
            along = any("t" in graph[id].type.names for id in piece.makes)
            if piece.kind != BETWEEN or not along:
                found -= {*piece.reads}
        return frozenset(found & {id for piece in self.pieces for id in piece.reads})

    def _drops(self, piece: Piece) -> bool:
        """Whether each part of the sequence has a dropout of its own in a piece."""
        own = along_tokens(piece.layer.graph) if piece.kind != CALL else False
        if own is None and self.tokens:
            reason = "dropout of values of each token stands beside that of others"
            raise refused(self.layer, "cp", reason, piece.node)
        return bool(own)

    def _law(self, piece: Piece) -> CompositionLaw | None:
        """The law of a piece that is a recurrence along the tokens."""
        node = piece.node
        if node is None or piece.kind != RECURRENCE or node.op.stream.name != "t":
            return None
        found = law_in(piece)
        if isinstance(found, WithoutLaw):
            states = ", ".join(f"`{name}`" for name in found.states)
            reason = f"the recurrence of {states} has no composition law: {found.reason}"
            raise refused(self.layer, "cp", reason, node)
        return found


class ParallelForward:
    """The forward of a module that archc made, on the processes of a mesh; `root`: of the module
    that is called from outside."""

    def __init__(self, module: nn.Module, tp: Ranks | None, cp: Ranks | None, root: bool):
        self.module, self.tp, self.cp, self.root = module, tp, cp, root
        self.layer = origin_of(module).layer
        self.optional = frozenset(op.name for _, op in self.layer.inputs if op.optional)
        self.full = self.program(self.optional)

    def program(self, given: frozenset[str]) -> Program:
        """The program for these optional inputs."""
        tp, cp = (1 if ranks is None else ranks.count for ranks in (self.tp, self.cp))
        return program_for(self.module, tp, cp, given)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        bound = by_name(self.layer, inputs, named)
        program = self.program(self.optional & {*bound})
        run = Run(self, program, {id: bound[op.name] for id, op in program.layer.inputs})
        run.compute(range(len(program.pieces)))
        made = [run.output(id) for id in program.layer.graph.outputs.values()]
        return made[0] if len(made) == 1 else tuple(made)


def program_for(module: nn.Module, tp: int, cp: int, given: frozenset[str]) -> Program:
    """The program of a module that archc made."""
    origin = origin_of(module)
    backend, sizes = backend_here(origin.recipe.backend), tuple(origin.sizes.items())
    return _program(origin.layer, sizes, backend, tp, cp, given)


@lru_cache(maxsize=256)
def _program(
    layer: ir.Layer, sizes: tuple[tuple[str, Number], ...], backend: str, tp: int, cp: int,
    given: frozenset[str],
) -> Program:  # fmt: skip
    """The program of a layer, made once for all modules of it."""
    return Program(layer, dict(sizes), backend, tp, cp, given)


def by_name(layer: ir.Layer, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Tensor]:
    """The inputs by name. Raises TypeError for what a forward on several processes does not take,
    and for an input that is missing."""
    names = [op.name for _, op in layer.inputs]
    spelled = {identifier(name): name for name in names}
    given = dict(zip(names, inputs, strict=False))
    for name, value in named.items():
        if name in spelled:
            given[spelled[name]] = value
        elif value is not None and value is not False:
            known = ", ".join(names)
            raise TypeError(f"{layer.name} on several processes takes {known} alone, not `{name}`")
    found = {name: given[name] for name in names if given.get(name) is not None}
    missing = [op.name for _, op in layer.inputs if not op.optional and op.name not in found]
    if missing or len(inputs) > len(names):
        got = f"{len(inputs)} by place and {', '.join(named) or 'none'} by name"
        raise TypeError(f"{layer.name} takes {', '.join(names)}, got {got}")
    return found


class Run:
    """One forward: the values so far, by their nodes. `given` are inputs of the layer, or what
    earlier pieces have made."""

    def __init__(self, forward: ParallelForward, program: Program, given: Mapping[int, Tensor]):
        self.module, self.root, self.program = forward.module, forward.root, program
        self.tp, self.cp = forward.tp, forward.cp
        self.values: dict[int, Any] = dict(given)
        self.length, self.seed = 0, -1
        graph = program.layer.graph
        for id, value in given.items():
            names = graph[id].type.names
            if "t" in names:
                self.length = value.shape[names.index("t")]
            elif self.root and self.cp is not None and isinstance(graph[id].op, ir.Input):
                title = f"the input `{graph[id].op.name}`"
                (self.values[id],) = shared(self.cp, title, [value])
        if self.root and self.cp is not None and self.length:
            like = next(iter(given.values()))
            check_same_length(self.cp, program.layer.name, self.length, like.device)
        self.early: dict[int, tuple[Sums, int]] = {}
        self._parameters()

    def _parameters(self) -> None:
        """The parameters as this process has them; what is learned of each is summed over the
        parts of the sequence."""
        params = {id: attribute(param.name) for id, param in self.program.layer.params}
        here = {id: name for id, name in params.items() if hasattr(self.module, name)}
        found = {id: at_path(self.module, name) for id, name in here.items()}
        for id, value in found.items():
            found[id] = value.to_local() if isinstance(value, DTensor) else value
        if self.cp is not None and found:
            title = f"the parameters of {self.program.layer.name}"
            apart = [id for id, value in found.items() if self._alone(id, value)]
            rest = [id for id in found if id not in apart]
            pairs = zip(rest, shared(self.cp, title, [found[id] for id in rest]), strict=True)
            found |= dict(pairs)
            sums = Sums(self.cp, title)
            self.early = {id: (sums, place) for place, id in enumerate(apart)}
            found |= dict(zip(apart, sums.waited_for([found[id] for id in apart]), strict=True))
        self.values |= found

    def _alone(self, id: int, value: Tensor) -> bool:
        """Whether the gradient of a parameter is summed alone, while others are computed."""
        learns = value.requires_grad and torch.is_grad_enabled()
        return learns and value.numel() >= early.LARGE and id in self.program.early

    def compute(self, places: Sequence[int]) -> None:
        """Some of the pieces, in order."""
        program = self.program
        for i in places:
            function = program.functions[i]
            if function is None:
                self._call(program.pieces[i])
            else:
                self._compute(i, function)

    def output(self, id: int) -> Tensor:
        """An output of the layer."""
        value, program = self.values[id], self.program
        mark = None if program.places is None else program.places.marks[id]
        if self.tp is not None and isinstance(mark, Split):
            dim = program.layer.graph[id].type.names.index(mark.axis)
            value = whole(self.tp, f"an output of {program.layer.name}", value, dim)
        if self.cp is not None and self.root and program.tokens[id] != Split("t"):
            value = one_loss(self.cp, value)
        return value

    def _call(self, piece: Piece) -> None:
        """Another layer."""
        node = piece.node
        assert node is not None
        callee = node.op.callee
        made = at_path(self.module, node.op.path)(*(self.values[id] for id in piece.reads))
        named = dict(
            zip(callee.graph.outputs, made if isinstance(made, tuple) else [made], strict=True)
        )
        graph = self.program.layer.graph
        for id in piece.makes:
            if isinstance(graph[id].op, ir.Result):
                self.values[id] = named[graph[id].op.name]

    def _compute(self, place: int, function: PieceFunction) -> None:
        """Compute a piece: its outputs, and the sums that are taken of them."""
        piece, columns = self.program.pieces[place], self.program.columns[place]
        values = self._read(piece)
        state, cut = None, 0
        segments = self.cp is not None and function.in_segments
        segments = segments and usable(function.module, values, self.length, function.masked)
        halves = self.cp is not None and piece.kind == ATTEND and function.continues
        halves = halves and goes_in_halves(piece.layer, self.length)
        if self.cp is not None and columns is None and not segments and not halves:
            values, state, cut = self._before(piece, function, self.program.laws[place], values)
        with self._dropout(place, function, values):
            if self.cp is not None and segments:
                first, joined = function.first_state(values), joining(function.module)
                made = by_segments(self.cp, joined, piece.layer.name, function, values, first)
            elif self.cp is not None and columns is not None:
                first = function.first_state(values)
                made = by_columns(self.cp, columns, piece.layer, function, values, first)
            elif self.cp is not None and halves:
                parts, along = self._parts(place, function, values)
                made = in_halves(self.cp, piece.layer, parts, function.streamed, along)
            else:
                made, _ = function(values, state, self.module.training)
        for id, value in zip(piece.makes, made, strict=True):
            along = "t" in self.program.layer.graph[id].type.names
            self.values[id] = self._taken(id, value[:, cut:] if cut and along else value)

    def _parts(
        self, place: int, function: PieceFunction, values: Sequence[Tensor]
    ) -> tuple[list[Part], Sequence[int]]:
        """An attend in parts of its heads, if they are so large that it pays, and the dims of its
        outputs that have the heads."""
        streams = zip(values, function.streamed, strict=True)
        many = sum(x.numel() for x, stream in streams if stream)
        heads, one = self.program.by_heads.get(place, (None, function))
        every, along = [[*values]], ()
        if heads is not None and many >= heads.count * overlapped.LARGE:
            pairs, n, along = zip(values, heads.inputs, strict=True), heads.count, heads.outputs
            chunks = [[x] * n if at is None else x.chunk(n, at) for x, at in pairs]
            every = [[*part] for part in zip(*chunks, strict=True)]
        else:
            one = function
        training = self.module.training
        return [
            Part(lambda x, state: one(x, state, training)[0], own, one.first_state(own))
            for own in every
        ], along

    def _dropout(
        self, place: int, function: PieceFunction, values: Sequence[Tensor]
    ) -> AbstractContextManager[None]:
        """The seeds that a piece draws by: one that all processes know, of its own for each part of
        the heads and of the tokens that the piece is computed on."""
        if not (function.draws and self.module.training):
            return nullcontext()
        piece, own = self.program.pieces[place], self.program.drops[place]
        ranks = [each for each in (self.tp, self.cp) if each is not None]
        if self.seed < 0:
            self.seed = agreed_seed(ranks, values[0].device)
        seed = self.seed + place
        for each, apart in ((self.tp, piece.heads), (self.cp, own)):
            if each is not None:
                seed = seed * each.count + (each.rank if apart else 0)
        return drawing(seed, values[0])

    def _read(self, piece: Piece) -> list[Tensor]:
        """The inputs of a piece, which may take parts of the heads."""
        for id in piece.reads:
            if id in self.early:
                sums, at = self.early.pop(id)
                self.values[id] = sums.early(at, self.values[id])
        values, places = [self.values[id] for id in piece.reads], self.program.places
        values = [x.long() if x.dtype == torch.bool else x for x in values]
        if self.tp is None or not piece.heads or places is None:
            return values
        all_of = [i for i, id in enumerate(piece.reads) if places.read(id) is None]
        title = f"what {self.program.layer.name} reads"
        given = shared(self.tp, title, [values[i] for i in all_of])
        for i, value in zip(all_of, given, strict=True):
            axis = piece.slices.get(i)
            dims = self.program.layer.graph[piece.reads[i]].type.names
            values[i] = value if axis is None else own_part(self.tp, value, dims.index(axis))
        return values

    def _before(
        self,
        piece: Piece,
        function: PieceFunction,
        law: CompositionLaw | None,
        values: list[Tensor],
    ) -> tuple[list[Tensor], Any, int]:
        """The values with what earlier processes know of the tokens before them, the state to
        start from, and how many tokens stand in front."""
        assert self.cp is not None
        if not any(function.streamed):
            return values, None, 0
        if function.counts and not function.continues:
            reason = "a sum over all tokens is made beside positions of tokens"
            raise refused(piece.layer, "cp", reason, piece.node)
        title = self.program.layer.name
        first = function.first_state(values) if function.continues else None
        if law is not None:
            values, state = started(self.cp, law, values, first, dict(function.sizes))
            return values, state, 0
        if piece.kind == ATTEND:
            values, state = with_earlier(
                self.cp, piece.layer, function.sizes, values, first, self.length
            )
            return values, state, 0
        if first is not None:
            first = with_position(first, self.cp.rank * self.length)
        if not function.halo:
            return values, first, 0
        streamed, halo = function.streamed, function.halo
        values, before = earlier_tokens(self.cp, title, values, streamed, halo)
        if before is None:
            return values, first, 0
        if first is not None:  # what they leave is all that is known of them
            first = with_position(first, self.cp.rank * self.length - halo)
            return values, function(before, first, self.module.training)[1], 0
        triples = zip(before, values, streamed, strict=True)
        return [torch.cat([b, x], 1) if along else x for b, x, along in triples], None, halo

    def _taken(self, id: int, value: Tensor) -> Tensor:
        """A value after the sums over processes that it stands for."""
        places = self.program.places
        title = f"a sum of {self.program.layer.name}"
        pairs: list[tuple[Ranks | None, Mark, bool]] = [
            (self.tp, None if places is None else places.marks[id], True),
            (self.cp, self.program.tokens.get(id), False),
        ]
        for ranks, mark, alike in pairs:
            if ranks is not None and isinstance(mark, Pending):
                value = summed(ranks, title, value, alike)
                value = value / ranks.count if mark.fn == "mean" else value
        return value


MOST = 2**31
"""Seeds that are drawn are below this."""


def noises(graph: Graph) -> Iterator[Node]:
    """The ops of dropout in a graph, and in the bodies of its recurrences and attends."""
    for node in graph:
        if isinstance(node.op, ir.Noise):
            yield node
        elif isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from noises(node.op.body)


def along_tokens(graph: Graph) -> bool | None:
    """Whether dropout is of values of each token: None where some of it is, and other not."""
    kinds = {any(axis.kind == "stream" for axis in node.type.axes) for node in noises(graph)}
    inner = any(isinstance(node.op, ir.Recurrence) and any(noises(node.op.body)) for node in graph)
    kinds |= {True} if inner else set()
    return None if len(kinds) == 2 else True in kinds


def agreed_seed(ranks: Sequence[Ranks], device: torch.device) -> int:
    """A number that the first process draws from its generator, on all of them."""
    seed = torch.randint(MOST, (1,)).to(device)
    for each in ranks:
        every = seed.new_empty(each.count)
        each.ask(
            "the seed of dropout",
            lambda every=every, each=each, seed=seed: dist.all_gather_into_tensor(
                every, seed, group=each.group
            ),
        )
        seed = every[:1].clone()
    return int(seed)


@contextmanager
def drawing(seed: int, like: Tensor) -> Iterator[None]:
    """Draw from a seed inside; the generators go on from where they were."""
    places = [like.device] if like.is_cuda else []
    with torch.random.fork_rng(devices=places):
        torch.manual_seed(seed)
        yield

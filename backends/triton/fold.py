"""An attend whose sums are folds over the tokens read: the function that launches their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import sympy
from archc.backends.eager.attend import AttendFunction, why_alone
from archc.backends.eager.attention import attention
from archc.backends.eager.fused import Fused
from archc.backends.eager.fusion import fuse
from archc.backends.eager.lists import in_pieces
from archc.backends.eager.packed import in_one_run
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, NUMBER, PLACES, TOTAL, Value
from archc.backends.expression import ATOM, Text, call
from archc.backends.index import permuted
from archc.backends.triton.between_op import BetweenOp
from archc.backends.triton.choice_op import ChoiceOp
from archc.backends.triton.fold_op import FEW, FoldOp, has_special
from archc.backends.triton.score_op import ScoreFunction, by_scores, rows_suffice
from archc.backends.triton.slot_op import SlotOp, by_slots

from archc.attention.between import SPAN, Between, rows_of_token
from archc.attention.convolved import convolved
from archc.attention.reach import reaches
from archc.attention.recognise import Found, sums
from archc.attention.row_heads import all_by_rows, rows_of
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.ir.value_names import cotangent
from archc.lowering.attention import numbers_of
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_readers, by_tokens
from archc.lowering.attention_spans import another_span, span_readers, span_tokens
from archc.tile.language import Program

WIDEST, WIDEST_OF_FEW, WIDEST_BETWEEN = 256, 512, 128
"""The longest vector that kernels hold, those of few readers, or of one, alone, and those between
which matrices stand."""

KINDS: dict[str, tuple[str, Callable[[WeightedSum], Program], Callable[[WeightedSum], Program]]] = {
    "forward": ("values", forward, another_span),
    "readers": ("gradients of readers", by_readers, span_readers),
    "tokens": ("gradients of tokens read", by_tokens, span_tokens),
}
"""What kernels make, and what makes their programs: of a sum, and of spans before."""

Folds = Callable[[ir.Attend], tuple[Found, ...]]


class FoldFunction(AttendFunction):
    """The function of an attend whose `folds` are ops."""

    def __init__(
        self, scope: Scope, node: Node, values: dict[str, Value],
        folds: Sequence[WeightedSum | Between], title: str, many: bool, suffix: str = "_fold",
    ):  # fmt: skip
        super().__init__(scope, node, values, suffix)
        self.many = many
        by_torch = {id: each.operands for id, each in self.body.fused.items()}
        self.take_borders({**by_torch, **taking_borders(folds)} if many else {})
        self.unpacked = self.unpacked or not many
        plain = [fold.whole if isinstance(fold, Between) else fold for fold in folds]
        self.folds = [replace(fold, packed=self.packed) for fold in plain]
        self.trees = [fold for fold in folds if isinstance(fold, Between)]
        self.table = self.body.names.fresh("table") if self._reads_pages() else ""
        for each in folds:
            op = self._op(each, f"{title}_sum")
            op.write()
            operands = tuple(dict.fromkeys(source.node for source in _entering(op.fold)))
            most = most_of_choice(scope, node, op.fold)
            emit = partial(_summed, op=op, most=most, table=self.table)
            for made in op.fold.nodes:
                self.body.fused[made] = Fused(operands, emit, "summed")
        self.body.uses = self.body._count_uses()
        self.test = self._test()

    def _reads_pages(self) -> bool:
        """Whether kernels read all that may be in pages, and nothing else does. A page has fewer
        blocks of tokens than a kernel reads at a time."""
        body = self.op.body
        if self.op.source != self.op.reader.name:
            return False
        caches = {n.id for n in body if isinstance(n.op, ir.Input) and n.op.name in self.paged()}
        read = {s.node for fold in self.folds for s in fold.sources if s.role == "read"}
        if not caches or read != caches:
            return False
        folds = {made: {s.node for s in fold.sources} for fold in self.folds for made in fold.nodes}
        waiting, seen = [*body.outputs.values()], set[int]()
        while waiting:
            id = waiting.pop()
            if id in seen:
                continue
            seen.add(id)
            by_torch = self.body.fused.get(id)
            made_of = by_torch.operands if by_torch is not None else body[id].operands
            if id not in folds and caches & {id, *made_of}:
                return False
            waiting += {*folds.get(id, {*made_of})} - caches
        return True

    def _in_order(self) -> None:
        """The line that finds the pages for kernels, where these read all that is in them."""
        if not self.table:
            super()._in_order()
            return
        caches = ", ".join(self.paged().values())
        self.body.head.insert(0, f"{caches}, {self.table} = with_table({caches})")

    def _op(self, fold: WeightedSum | Between, title: str) -> FoldOp:
        """The ops of a fold."""
        file = self.scope.file
        if isinstance(fold, Between):
            return BetweenOp(file, fold, title)
        fold = replace(fold, packed=self.packed)
        if file.slots:
            return SlotOp(file, replace(fold, paged=bool(self.table), dropout=None), title)
        if fold.choice is not None:
            return ChoiceOp(file, fold, title)
        fold = replace(fold, copied=True) if self.many else replace(fold, dropout=None)
        return FoldOp(file, fold, title, self.op.decode is None, self.many)

    def _test(self) -> str:
        """Whether kernels can do it, as the caller asks."""
        scope = self.scope
        kept = self.paged()
        tensors = [
            f"memory_of({v.text.text})" if name in kept else v.text.text
            for name, v in self.values.items() if v.kind != NUMBER
        ]  # fmt: skip
        readers = scope.ask(scope.lengths[self.op.reader.name])
        entering = ", ".join(tensors)
        vectors = [s.dim for fold in self.folds for s in fold.sources if s.dim is not None]
        lengths = dict.fromkeys(str(scope.size(axis.size)) for axis in vectors)
        single = all(fold.choice is not None and fold.choice.single for fold in self.folds)
        most = WIDEST if self.many and not single else WIDEST_OF_FEW
        most = WIDEST_BETWEEN if self.trees else most
        fits = [f"{length} <= {most}" for length in lengths if not length.isdigit()]
        fits += rows_suffice(scope, self.op)
        if not self.many:
            alone = [f"{scope.cu_seqlens} is None"] if scope.cu_seqlens else []
            dropped = any(fold.dropout is not None for fold in self.folds)
            alone += [f"not {scope.ask(scope.training)}"] if dropped else []
            return " and ".join([*alone, *fits, f"by_few_folds({readers}, {entering})"])
        tests, learns = [f"by_folds({entering})", *fits], f"needs_gradient({entering})"
        if scope.file.slots:
            return " and ".join([*tests, f"not {learns}"])
        if self.op.decode is not None:
            tests.append(f"{readers} >= {FEW}")
        if self.trees:
            tests += [f"{readers} >= {FEW}", f"has_span_room({tensors[0]})"]
        if any(fold.slopes is None for fold in self.folds):
            tests.append(f"not {learns}")
        elif self.op.decode is None and not self.trees:
            tests.append(f"({readers} >= {FEW} or not {learns})")
        return " and ".join(tests)

    def _returned(self, id: int) -> str:
        """A result in the dtype in which PyTorch alone returns it: that of the data, but for logs
        of totals and what is made from these. A sum of weights is exact until then."""
        value = self.body.value(id)
        if value.kind == TOTAL and not self._of_log_totals(id):
            value = self.body.as_data(value)
            self.body.values[id] = value
        return super()._returned(id)

    def _of_log_totals(self, id: int) -> bool:
        """Whether logs of totals, or running sums that the body is given, reach a value by
        functions of numbers."""
        graph, folds = self.op.body, {n: fold for fold in self.folds for n in fold.nodes}
        waiting, seen = [id], set[int]()
        while waiting:
            id = waiting.pop()
            if id in seen or isinstance(graph[id].op, ir.Contract):
                continue
            seen.add(id)
            fold = folds.get(id)
            if fold is not None and fold.softmax and (fold.alone or id != fold.node):
                return True
            waiting += graph[id].operands
        return any(
            isinstance(graph[id].op, ir.Input) and self.body.value(id).kind == TOTAL for id in seen
        )


def taking_borders(folds: Sequence[WeightedSum | Between]) -> dict[int, tuple[int, ...]]:
    """The sums whose kernels take packed sequences, and the values that each is made of."""
    return {
        made: tuple(dict.fromkeys(source.node for source in fold.sources))
        for fold in folds if isinstance(fold, WeightedSum) and fold.choice is None
        for made in fold.nodes
    }  # fmt: skip


def _entering(fold: WeightedSum) -> list[Source]:
    """The arguments of the ops of a fold."""
    return [*fold.sources, *([fold.choice.source] if fold.choice is not None else [])]


def most_of_choice(scope: Scope, node: Node, fold: WeightedSum) -> sympy.Expr | None:
    """How many blocks a reader has chosen at most, as the layer has it."""
    if fold.choice is None:
        return None
    entering = dict(zip((name for name, _ in node.op.captures), node.operands, strict=True))
    op = node.op.body[fold.choice.source.node].op
    made = scope.graph[entering[op.name]].op if isinstance(op, ir.Input) else None
    if isinstance(made, ir.Top) and made.axis == fold.choice.blocks.name:
        return made.count
    return None


def by_folds(
    folds: Folds,
    scope: Scope,
    node: Node,
    values: dict[str, Value],
    name: str,
    many: bool = True,
    scores: bool = False,
    alone: bool = False,
) -> FoldFunction | ScoreFunction | None:
    """The function that launches kernels; None where no sum is a fold. What becomes of each sum is
    noted. Not `many`: the form for few readers, whose sums are done by kernels of rows that are
    heads also where torch could do them, which would copy what is read to lay it side by side."""
    if scores:
        return by_scores(scope, node, values, name)
    if not many:
        return _of_few(folds, scope, node, values, name, alone)
    node = replace(node, op=for_kernels(folds, node.op))
    found: list[WeightedSum | Between] = []
    body = node.op.body
    for each, fold in zip(sums(node.op), folds(node.op), strict=True):
        line = f"    {name}: {told(node.op, each, fold)}"
        by_torch = is_library(body, each, fold)
        known = by_torch or not isinstance(fold, Refusal)
        into = scope.file.attends if known else scope.file.refused
        if line not in into:
            into.append(line)
        wanted = not by_torch if not scope.file.slots else _in_slots(scope, node, fold)
        seen = {made for other in found if isinstance(other, WeightedSum) for made in other.nodes}
        if isinstance(fold, WeightedSum) and wanted and each.id not in seen:
            found.append(_of_what_is_learned(scope, node, fold))
        elif isinstance(fold, Between) and wanted:
            found.append(fold)
    if not found:
        return None
    made = FoldFunction(scope, node, values, found, name, many)
    made.in_parts = any(isinstance(fold, Refusal) for fold in folds(node.op))
    made.write()
    return made


def for_kernels(folds: Folds, op: ir.Attend) -> ir.Attend:
    """An attend as kernels have it: with as many sums that are folds as there are, and the form for
    few readers in place of the other where that has kernels for tokens chosen one by one: there
    all heads read the same vectors."""
    op = as_folds(op)
    if op.decode is None:
        return op
    found = [folds(replace(op, body=body, decode=None)) for body in (op.body, op.decode)]
    single = [all(_is_shared(fold) for fold in each) and bool(each) for each in found]
    return replace(op, body=op.decode, decode=None) if single == [False, True] else op


def _is_shared(fold: Found) -> bool:
    """Whether there are kernels for tokens that each reader has chosen one by one, in which heads
    share what they read."""
    if not isinstance(fold, WeightedSum) or fold.choice is None or not fold.choice.single:
        return False
    rows = rows_of(fold)
    return rows.head is not None and rows.groups != rows.head.name


def _of_few(
    folds: Folds, scope: Scope, node: Node, values: dict[str, Value], name: str, alone: bool
) -> FoldFunction | None:
    """The function that launches kernels for few readers; None where a sum is no fold, or has no
    heads that share what they read, if it is not for one reader `alone`."""
    node = replace(node, op=as_folds(node.op))
    made = folds(node.op)
    found = all_by_rows(made)
    if alone:
        found = [fold for fold in made if isinstance(fold, WeightedSum) and fold.choice is None]
        found = found if len(found) == len(made) else []
    if not found or (scope.file.slots and not all(_in_slots(scope, node, f) for f in found)):
        return None
    kept = [replace(fold, slopes=None) for fold in found]
    suffix = "_moved_fold" if alone else "_fold"
    function = FoldFunction(scope, node, values, kept, name, many=False, suffix=suffix)
    function.write()
    return function


def _in_slots(scope: Scope, node: Node, fold: Found) -> bool:
    """Whether sequences of different lengths have a kernel of a fold: that of torch for plain
    softmax would be given a mask, and read what is behind their ends. Where only the latest tokens
    are kept, in turn, blocks of them, or there is a form for few readers, PyTorch does it."""
    if not isinstance(fold, WeightedSum) or node.op.decode is not None:
        return False
    memory = scope.memory
    fields = [memory.field("seen", operand) for operand in node.operands] if memory else []
    ring = any(field is not None and field.count is not None for field in fields)
    sure = all(reach is None or reach.inside or reach.met for _, reach in reaches(node.op))
    return not ring and sure and by_slots(fold)


CONSTANT = (ir.Constant, ir.Position, ir.Delta, ir.Elementwise)
"""Ops of values that have no gradient, if they are made of such values alone."""


def _of_what_is_learned(scope: Scope, node: Node, fold: WeightedSum) -> WeightedSum:
    """The fold without the gradients of what is made of numbers and positions, as slopes may be."""
    if fold.slopes is None:
        return fold
    body, slopes = node.op.body, fold.slopes.copy()
    entering = dict(zip((name for name, _ in node.op.captures), node.operands, strict=True))
    for source in fold.sources:
        inner = [body[each] for each in (source.node, *body.ancestors(source.node))]
        outer = [entering[each.op.name] for each in inner if isinstance(each.op, ir.Input)]
        made = {id for each in outer for id in (each, *scope.graph.ancestors(each))}
        if all(isinstance(scope.graph[id].op, CONSTANT) for id in made):
            slopes.outputs.pop(cotangent(source.name), None)
    slopes.prune()
    return replace(fold, slopes=slopes)


def is_library(body: Graph, node: Node, fold: Found) -> bool:
    """Whether torch has a function for a sum: it gives no log of the sum of weights."""
    beside = isinstance(fold, WeightedSum) and fold.total is not None
    return not beside and attention(body, node) is not None


def tells_totals(folds: Folds, attend: ir.Attend) -> bool:
    """Whether all sums of an attend are by kernels that can tell the totals of their softmaxes."""
    op = for_kernels(folds, attend)
    found = [*zip(sums(op), folds(op), strict=True)]
    plain = (
        isinstance(fold, WeightedSum)
        and fold.softmax
        and fold.sink is None and fold.choice is None and fold.dropout is None
        and not is_library(op.body, node, fold)
        for node, fold in found
    )  # fmt: skip
    return bool(found) and all(plain)


def told(attend: ir.Attend, node: Node, fold: Found) -> str:
    """A sentence on how a kernel computes a sum over the tokens that are read."""
    if is_library(attend.body, node, fold):
        return "scaled_dot_product_attention of torch"
    if isinstance(fold, Refusal):
        if convolved(attend) is not attend:
            return "a convolution along the tokens, by Fourier transforms"
        pieces = "pairs of some readers at a time" if in_pieces(attend) else "all pairs at once"
        return f"{pieces}: {fold.reason}"
    if isinstance(fold, Between):
        shortest = SPAN // rows_of_token(len(fold.ranks))
        between = "gates by channel" if fold.gate is not None else "matrices"
        return (
            f"a fold over spans of `{attend.read.name}` in a tree, softmax of a score through "
            f"{between} of the tokens between, joined from {shortest} tokens on"
            f"{_unlearned(fold.whole)}"
        )
    what = "softmax of a score" if fold.softmax else "weights as they are"
    what += ", times a factor of the pair" * fold.multiplied
    if fold.total is not None:
        what = "log of the sum of weights" if fold.alone else f"{what}, with the log of their sum"
    learned = _unlearned(fold)
    over = f"blocks of `{attend.read.name}`"
    if fold.choice is not None:
        over = f"each `{attend.read.name}`" if fold.choice.single else over
        over += " that each reader has chosen"
    return f"a fold over {over}, {what}{learned}"


def _unlearned(fold: WeightedSum) -> str:
    """A phrase on why a fold has no gradient; empty where it has."""
    return f", without a gradient ({fold.unlearned})" if fold.slopes is None else ""


def how_packed(layer: ir.Layer, attend: ir.Attend, found: Sequence[Found]) -> str:
    """A phrase on how packed sequences go through the kernels of an attend."""
    if not in_one_run(layer):
        return "one length after the other, as through all of the layer"
    if all(isinstance(fold, WeightedSum) and fold.choice is not None for fold in found):
        return "one launch of each kernel, as no token chooses one of another sequence"
    done = {id: each.operands for id, each in fuse(attend.body).items()}
    done |= taking_borders([fold for fold in found if isinstance(fold, WeightedSum)])
    why = why_alone(attend, done)
    return f"one length after the other: {why}" if why else "one launch of each kernel"


def launched_on_hopper(found: WeightedSum | Between) -> str:
    """A phrase on the launches of these kernels."""
    spans = isinstance(found, Between)
    vectors = "128 numbers in bfloat16" if spans else "128 or 64 numbers in 16 bits"
    return f"of vectors of {vectors}, not packed, of 262,144 readers in all or more"


def how_on_hopper(found: WeightedSum | Between) -> str:
    """A phrase on the kernels of a fold whose warps have work of their own; empty where it has
    none."""
    tree = isinstance(found, Between)
    fold, special = found.across if tree else found, list[str]()
    for kind, (what, whole, spans) in KINDS.items():
        make = spans if tree else whole
        if (kind == "forward" or fold.slopes) and has_special(fold, make(fold), kind):
            special.append(what)
    if not special:
        return ""
    return f"{', '.join(special)}: a warp loads while two groups of others multiply"


def _summed(scope: Scope, node: Node, op: FoldOp, most: sympy.Expr | None, table: str) -> Value:
    """`o = memory_sum(q, k, v, T, pos, ...)`; of two results, the first that is asked for is
    behind the line that makes both."""
    fold = op.fold
    if node.id in op.made:
        return _laid_out(scope, node, op, Text(op.made[node.id]))
    reader, read = fold.reader.name, fold.read.name
    given = [_given(scope, fold, source, op.running) for source in _entering(fold)]
    tokens = scope.ask(scope.lengths[reader])
    starts = [scope.ask(scope.starts.get(name, "0")) for name in (reader, read)]
    starts = [starts[0], "0"] if fold.ragged else starts
    known = {symbol.name: (number, symbol) for number, symbol in numbers_of(fold).items()}
    numbers = [
        str(scope.size(number)) if symbol.is_integer else f"float({scope.number(number)})"
        for number, symbol in known.values()
    ]
    borders = [scope.cu_seqlens] * fold.packed + [table] * fold.paged
    if fold.dropout is not None:
        drawn = scope.ask(scope.training), scope.number(fold.dropout), given[0]
        borders.append(call("dropout_seed", *drawn))
    if fold.choice is not None:
        place = fold.choice.source.type.names.index(fold.choice.blocks.name)
        if scope.value(fold.choice.source.node).kind != PLACES:
            there = f"{given[-1].at(ATOM)}.shape[{place}]"
            there = there if most is None else f"min({scope.size(most)}, {there})"
            given[-1] = call("listed_along", given[-1], there, str(place))
        numbers.append(f"{given[-1].at(ATOM)}.shape[{place}]")
    text = call(op.title, *given, *borders, tokens, *starts, *numbers)
    if len(fold.nodes) == 2:
        names = [scope.names.fresh(name) for name in ("weighted", "log_total")]
        scope.writer.line(f"{', '.join(names)} = {text.text}")
        op.made = dict(zip(fold.nodes, names, strict=True))
        text = Text(op.made[node.id])
    elif fold.softmax and not fold.alone:
        text = Text(f"{text.at(ATOM)}[0]")
    return _laid_out(scope, node, op, text)


def _laid_out(scope: Scope, node: Node, op: FoldOp, text: Text) -> Value:
    """A result of a fold, with its dims in the order in which the body has them; one that is a
    number for each reader, which kernels leave in float32, is exact until a product."""
    fold = op.fold
    heads, reader = [head.name for head in fold.heads], fold.reader.name
    if op.values is not None and op.values.dim is not None and node.id == fold.node:
        have = ["batch", reader, *heads, op.values.dim.name]
        return scope.settled(node, text, have, DATA)
    return scope.settled(node, text, ["batch", *heads, reader], TOTAL)


def _given(scope: Scope, fold: WeightedSum, source: Source, running: dict[int, str]) -> Text:
    """A source as the op takes it, its dims in the order of its type."""
    value = scope.value(source.node)
    if value.kind == NUMBER:
        return call("torch.tensor", value.text, f"device={scope.device}")
    names = source.type.names
    if not source.summed:
        return permuted(value.text, value.layout, names)
    if source.node not in running:
        running[source.node] = scope.names.fresh("running_" + scope.hint(scope.graph[source.node]))
        borders = [scope.cu_seqlens] * fold.packed
        text = call("running_sums", permuted(value.text, value.layout, names), *borders)
        scope.writer.line(f"{running[source.node]} = {text}")
    name = Text(running[source.node])
    if source.role == "read":
        return name
    return call("last_tokens", name, scope.ask(scope.lengths[fold.reader.name]))


def written(folds: Folds) -> Callable[..., FoldFunction | ScoreFunction | None]:
    """Who writes the functions of attends, for a file."""
    return partial(by_folds, folds)

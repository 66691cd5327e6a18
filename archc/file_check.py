"""The self-check of a file that is written: a small instance, the numbers that the layer's meaning
gives for it, and how near every form of the file comes.

The meaning is that of the layer as it was elaborated, before any pass: a pass that changes what a
layer computes is found out here, with all outputs and all gradients, before anything is written.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

from archc.backends.load import load
from archc.backends.renamed import Weights, arguments, declared
from archc.diagnostics import InternalError, fail
from archc.ir import layer as ir
from archc.ir.choices import Seen
from archc.ir.graph import Node
from archc.ir.plan import Check, Expected, Plan, examples
from archc.ir.sizes import Number
from archc.source import Span

if TYPE_CHECKING:
    from torch import Tensor

SMALL, LARGER = 4, 16
"""About how long the dims of the instances are that a file is checked with, and timed with."""

LENGTHS = (9, 24, 80)
"""How many tokens an instance may have: the first of these that every choice leaves some of."""

TRIES = 20
"""Instances that are looked at for each length."""

ELEMENTS = 8
"""How many numbers of each output a file carries."""

BATCH = 2
SHARES = (1.0, 0.5, 0.25, 0.125)
"""How far parameters are drawn from the middle of their range: nearer, where a layer is so deep
that rounding alone would change what it computes."""

LIMIT = 1e-9
"""The largest relative error of outputs and gradients in float64 that is right: as small as that,
options show that hardly change a value (`eps`, `cap`)."""

NUDGE, MOVED = 1e-13, 1e-7
"""A layer is shaky if a relative change like the first in all that enters changes results by more
than the second: rounding, some 1e-16, then grows to more than a tenth of `LIMIT`."""

ALL = "all outputs and gradients, against the meaning"


@dataclass(frozen=True, eq=False)
class Instance:
    """A small instance of a layer that a file makes: the sizes, its inputs and parameters that
    learn (`values`), and its outputs by the oracle. `unseen`: choices that are none in it."""

    code: ModuleType
    sizes: Mapping[str, Number]
    tokens: int
    module: Any
    inputs: Mapping[str, Tensor]
    values: Sequence[Tensor]
    outputs: Mapping[str, Tensor]
    unseen: Sequence[Span | None]

    @cached_property
    def gradients(self) -> list[Tensor]:
        """The gradients of a fixed sum of the outputs, by the oracle."""
        return _check().gradients_of(tuple(self.outputs.values()), self.values)

    @cached_property
    def made(self) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """The outputs of the module, and the gradients of the same sum."""
        return _with_gradients(self.module(**self.inputs), self.values)


def _check() -> ModuleType:
    """The functions that files check themselves with. They import torch, which takes a second: only
    where numbers are needed."""
    return importlib.import_module("archc.runtime.selfcheck")


def checked(plan: Plan, layer: ir.Layer, emit: Callable[[Plan], str], carried: bool = True) -> str:
    """The file of an elaborated layer, with a small instance and the numbers that the layer's
    meaning gives for it; every form of it is held against them. Where no instance fits, the file
    without a check; so too unless the check is to be `carried`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the instance is small: more would only wait for one another
    try:
        return _checked(plan, layer, emit, carried)
    finally:
        torch.set_num_threads(threads)


def _checked(plan: Plan, layer: ir.Layer, emit: Callable[[Plan], str], carried: bool) -> str:
    larger = next(examples(plan.layer, LARGER), None)
    for share in SHARES:
        found = _drawn(plan, layer, emit, larger, share)
        if found is None:
            return emit(plan)
        hold_numbers(layer, found.module, found.inputs, found.sizes, found.outputs)
        if not _shaky(found):
            break
    else:
        raise fail(
            "E0507",
            f"rounding alone changes what small instances of `{layer.name}` compute",
            layer.span,
            notes=["so no code can be held against it"],
            helps=["a layer in which a small change grows so much cannot be trained either"],
        )
    check = Check(
        found.sizes, larger or found.sizes, _expected(found), _slopes(found), found.tokens, share,
    )  # fmt: skip
    forms = (*((form, limit) for form, _, limit in found.code.FORMS), (ALL, _limit(found)))
    bare = replace(plan, verified=forms, unseen=_lines(found.unseen))
    text = emit(replace(bare, check=check))
    measured = list(_measured(plan, layer, load(text, layer.name), found, check))
    wrong = [row for row in measured if not row[1] <= row[2]]
    for form, error, limit in wrong:
        raise InternalError(f"`{layer.name}`, {form}: an error of {error:.1e}, above {limit:.0e}")
    return text if carried else emit(bare)


def _drawn(
    plan: Plan, layer: ir.Layer, emit: Callable[[Plan], str],
    larger: Mapping[str, Number] | None, share: float,
) -> Instance | None:  # fmt: skip
    """The best instance of a layer."""
    drafts: list[ModuleType] = []

    def drawn(sizes: Mapping[str, Number], tokens: int) -> Instance:
        if not drafts:
            text = emit(replace(plan, check=Check(sizes, larger or sizes, share=share)))
            drafts.append(load(text, layer.name))
        return instance(layer, drafts[0], sizes, tokens)

    return best(plan.layer, LENGTHS, drawn)


def _measured(
    plan: Plan, layer: ir.Layer, code: ModuleType, found: Instance, check: Check
) -> Iterator[tuple[str, float, float]]:
    """Every form, its error and the largest that is right: the file's own checks, then all numbers;
    those of more tokens than a chunk has too, where a file of chunks cannot hold them against
    tokens."""
    given = {name: (tuple(at), tuple(at.values())) for name, at in check.expected.items()}
    example = _built_once(code.CASE.example)
    case = code.CASE._replace(expected=given, slopes=check.slopes, example=example)
    yield from ((name, function(case, "cpu"), limit) for name, function, limit in code.FORMS)
    yield ALL, apart(found), _limit(found)
    chunk = vars(code).get("CHUNK")  # none where kernels go token by token
    if chunk is not None and "check_chunks" not in vars(code):
        longer = instance(layer, code, found.sizes, chunk + 5, batch=1)
        yield f"{ALL}, of {longer.tokens} tokens", apart(longer), _limit(longer)


def _built_once(example: Callable[..., Any]) -> Callable[..., Any]:
    """The instances of a file, of which each is built for several checks once. They change no
    number of it; inputs are new tensors, as checks say which of them have gradients."""
    built: dict[tuple, Any] = {}

    def given(sizes: Mapping[str, Number], *where: Any) -> tuple[Any, dict[str, Tensor], Any]:
        key = (*sizes.items(), *where)
        if key not in built:
            built[key] = example(sizes, *where)
        module, inputs, own = built[key]
        return module, {name: x.detach().clone() for name, x in inputs.items()}, own

    return given


def _limit(found: Instance) -> float:
    """The largest error that is right: larger by chunks, which take sums in another order."""
    few = found.tokens < vars(found.code).get("STEPS", math.inf)
    return LIMIT if few else 10 * LIMIT


def _shaky(found: Instance) -> bool:
    """Whether changes as small as those of rounding change much of what the layer computes. Its
    module is asked, before and after such a change: that this machine rounds as the meaning of the
    layer does would say nothing of another one."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def near(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        noise = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return (x.detach() * (1 + NUDGE * noise)).requires_grad_()

    inputs = {name: near(x) for name, x in found.inputs.items()}
    parameters = {name: near(x) for name, x in found.module.named_parameters()}
    made = torch.func.functional_call(found.module, parameters, (), inputs)
    values = [x for x in (*inputs.values(), *parameters.values()) if x.requires_grad]
    moved, slopes = _with_gradients(made, values)
    outputs, gradients = found.made
    return max(distance(moved, outputs), distance(slopes, gradients)) > MOVED


def _with_gradients(
    made: Tensor | tuple[Tensor, ...], values: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """The outputs of a module, and the gradients of a fixed sum of them."""
    outputs = made if isinstance(made, tuple) else (made,)
    return outputs, _check().gradients_of(outputs, values)


# --- the instance -------------------------------------------------------------------------------


def best(
    layer: ir.Layer,
    lengths: Sequence[int],
    drawn: Callable[[Mapping[str, Number], int], Instance],
) -> Instance | None:
    """The first instance that shows both sides of every choice, or else the one that shows most;
    None if the layer takes none that was tried. `drawn` makes one, or refuses: ArchError for sizes,
    IndexError where an index that the spec computes is out of range for them."""
    found: Instance | None = None
    for sizes, tokens, choosing in _candidates(layer, lengths):
        if found is not None and not choosing:
            break
        try:
            made = drawn(sizes, tokens)
        except IndexError:
            continue
        if found is None or len(made.unseen) < len(found.unseen):
            found = made
        if not found.unseen:
            break
    return found


def _candidates(
    layer: ir.Layer, lengths: Sequence[int]
) -> Iterator[tuple[Mapping[str, Number], int, bool]]:
    """Sizes and lengths to try, and whether each choice of the layer has to leave something out
    there. Such sizes come first, as they try what is chosen; then any small ones."""
    for tokens in lengths:
        for sizes in islice(examples(layer, SMALL, tokens), TRIES):
            yield sizes, tokens, True
    for sizes in islice(examples(layer, SMALL), TRIES):
        yield sizes, lengths[0], False


def instance(
    layer: ir.Layer, code: ModuleType, sizes: Mapping[str, Number], tokens: int, batch: int = BATCH
) -> Instance:
    """The instance that a file makes, with what the meaning of the layer gives for it."""
    import torch

    module, inputs, _ = code.example(arguments(sizes), batch, tokens, "cpu", torch.float64)
    values = [x for x in (*inputs.values(), *module.parameters()) if x.is_floating_point()]
    for value in values:
        value.requires_grad_()
    seen = Seen()
    found = _meaning(layer, module, inputs, sizes, seen)
    hold_promises(layer, found.values)
    unseen = seen.one_sided()
    return Instance(code, sizes, tokens, module, inputs, values, found.outputs, unseen)


def _meaning(
    layer: ir.Layer, module: Any, inputs: Mapping[str, Tensor], sizes: Mapping[str, Number],
    watch: Callable[..., None] | None = None,
) -> Any:  # fmt: skip
    from archc.ir.meaning import evaluate

    params = Weights({**dict(module.named_parameters()), **dict(module.named_buffers())})
    return evaluate(layer, declared(layer, inputs), params, sizes, watch=watch)


def hold_promises(layer: ir.Layer, values: Mapping[str, Any], path: str = "") -> None:
    """Refuse a promise of `chunk: bound`, of the layer or of one that it calls, that the values of
    the instance break. Inputs of the layer are drawn to keep it."""
    for _, call in layer.calls:
        hold_promises(call.callee, values, f"{path}{call.path}.")
    for bound in layer.chunk.bounds:
        value = values.get(path + bound.name)
        if value is None or not value.numel():
            continue
        low, high = value.min().item(), value.max().item()
        if low < bound.low or high > bound.high:
            worst = low if low < bound.low else high
            raise fail(
                "E0223",
                f"`{bound.text}` does not hold: `{bound.name}` is {worst:.6g} in a small instance",
                bound.span,
                helps=["change the expression, or leave the promise out"],
            )


def hold_numbers(
    layer: ir.Layer, module: Any, inputs: Mapping[str, Tensor], sizes: Mapping[str, Number],
    outputs: Mapping[str, Tensor],
) -> None:  # fmt: skip
    """Refuse a layer whose own meaning is no finite number where an instance draws its inputs and
    parameters: nothing could be held against it."""
    bad = [name for name, y in outputs.items() if not bool(y.isfinite().all())]
    if not bad:
        return
    finder = _Broken()
    _meaning(layer, module, inputs, sizes, finder)
    span = finder.first.span if finder.first is not None else None
    raise fail(
        "E0507",
        f"`{bad[0]}` of `{layer.name}` is {finder.shown} in a small instance",
        span or layer.span,
        f"the first value that is {finder.shown}",
        notes=["so no code can be held against it"],
        helps=[
            "keep its argument where it is defined, as in `sqrt(relu(x) + eps)`",
            "or say where an input lies: `chunk: bound x >= 0`; an instance then draws it there",
        ],
    )


class _Broken:
    """Finds the first value that is not finite though what it is made of is."""

    def __init__(self) -> None:
        self.first: Node | None = None
        self.shown = "no finite number"

    def __call__(self, node: Node, prefix: str, operands: Sequence[Any], value: Any) -> None:
        """Look at one value: NaN is worse than an infinity, which a mask may well have."""
        data = getattr(value, "data", None)
        if data is None or not data.is_floating_point() or self.shown == "nan":
            return
        before = [each.data for each in operands if hasattr(each, "names")]
        fresh = not any(bool(each.isnan().any()) for each in before)
        if bool(data.isnan().any()) and fresh:
            self.first, self.shown = node, "nan"
        elif self.first is None and not isinstance(node.op, ir.Constant | ir.Param):
            finite = not any(bool(each.isinf().any()) for each in before)
            if bool(data.isinf().any()) and finite:
                self.first, self.shown = node, "inf"


# --- what is held against it --------------------------------------------------------------------


def _expected(found: Instance) -> Expected:
    """Some elements of each output."""
    expected = {}
    for name, value in found.outputs.items():
        flat = value.detach().flatten().tolist()
        places = range(0, len(flat), max(1, len(flat) // ELEMENTS))
        expected[name] = {place: flat[place] for place in islice(places, ELEMENTS)}
    return expected


def _slopes(found: Instance) -> tuple[float, ...]:
    """How steep the outputs are along the directions of the file; what is far below the steepest
    is 0, as its digits are rounding."""
    slopes = _check().slopes(found.gradients)
    least = 1e-10 * max((abs(slope) for slope in slopes), default=0.0)
    return tuple(slope if abs(slope) > least else 0.0 for slope in slopes)


def _lines(spans: Sequence[Span | None]) -> tuple[str, ...]:
    """Choices as a reader finds them: the place, and the words of the spec."""
    found = [f"{s.where}: {' '.join(s.text.split())}" for s in spans if s is not None]
    return tuple(dict.fromkeys(found))


def apart(found: Instance) -> float:
    """The error of the module's outputs and gradients, the worst of all."""
    made, gradients = found.made
    outputs = distance(made, tuple(found.outputs.values()))
    return max(outputs, distance(gradients, found.gradients))


def rewritten(layer: ir.Layer, after: ir.Layer, emit: Callable[[Plan], str]) -> float:
    """The error of a layer after passes, both by the oracle; 0 where no instance fits."""
    import torch

    def drawn(sizes: Mapping[str, Number], tokens: int) -> Instance:
        code = load(emit(Plan(after, check=Check(sizes, sizes))), layer.name)
        return instance(layer, code, sizes, tokens)

    found = best(after, LENGTHS, drawn)
    if found is None:
        return 0.0
    with torch.no_grad():
        made = _meaning(after, found.module, found.inputs, found.sizes)
    return distance(tuple(made.outputs.values()), tuple(found.outputs.values()))


def distance(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """The largest difference of a tensor against its largest value, or a thousandth of the largest
    of all. Where what is wanted is not finite (a slope at a corner), nothing is; where anything is
    not, those alone are compared that are finite in both: forms that take tokens together have more
    such slopes than the meaning, which takes them one by one."""
    if len(found) != len(wanted):
        return math.inf
    wanted = [y.detach().double() for y in wanted]
    finite = [y.isfinite() for y in wanted]
    if not all(bool(f.all()) for f in finite):
        pairs = zip(found, finite, strict=True)
        finite = [f & x.isfinite() if x.shape == f.shape else f for x, f in pairs]
    sizes = [
        float(y[f].abs().max()) if bool(f.any()) else 0.0
        for y, f in zip(wanted, finite, strict=True)
    ]
    least = max(1e-3 * max(sizes, default=0.0), 1e-30)
    errors = [0.0]
    for x, y, f, size in zip(found, wanted, finite, sizes, strict=True):
        if x.shape != y.shape:
            return math.inf
        if bool(f.any()):
            error = float((x.detach().double()[f] - y[f]).abs().max()) / max(size, least)
            errors.append(error if math.isfinite(error) else math.inf)
    return max(errors)

"""The forms of a layer, each measured against the layer's meaning. Imports torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, islice, pairwise
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from archc.backends.eager.emit import emit
from archc.backends.eager.memory import Memory
from archc.backends.load import load
from archc.backends.renamed import Weights, arguments, declared, weights
from archc.compile import before_chunks, lowered, with_chunked_forms
from archc.diagnostics import ArchError, Diagnostic, fail
from archc.elaborate.ones import ones
from archc.file_check import SMALL, distance, hold_numbers
from archc.ir.choices import Seen
from archc.ir.layer import Layer, Recurrence
from archc.ir.meaning import evaluate
from archc.ir.plan import Check, Plan, examples
from archc.ir.sizes import Number, resolve_sizes
from archc.recurrence.chunk.loops import loops
from archc.verify.checks import checks
from archc.verify.study import studies_of
from archc.verify.trial import Trial

LIMIT = 1e-9
"""The largest relative error of a form in float64."""

BATCH = 2
TRIES = 20  # instances that are looked at
Measure = tuple[str, Callable[[], float], float]
"""A form's name, what computes its error, and the limit of that."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A layer with sizes, fixed parameters and fixed inputs, as a module and as its meaning.

    `own` names the inputs that run along the layer's own tokens; others are given whole. `seen`
    are the choices in it.
    """

    layer: Layer
    sizes: Mapping[str, Number]
    module: nn.Module
    inputs: Mapping[str, Tensor]
    own: Sequence[str]
    tokens: int
    plan: Plan
    seen: Seen = field(default_factory=Seen)

    def meaning(self, inputs: Mapping[str, Tensor], params: Mapping[str, Tensor]) -> list[Tensor]:
        """The outputs, by the oracle."""
        given = declared(self.layer, inputs)
        return list(evaluate(self.layer, given, params, self.sizes).outputs.values())

    @cached_property
    def expected(self) -> list[Tensor]:
        """The outputs of the whole sequence, by the oracle."""
        params = weights(self.module)
        with torch.no_grad():
            given = declared(self.layer, self.inputs)
            found = evaluate(self.layer, given, params, self.sizes, watch=self.seen)
        hold_numbers(self.layer, self.module, self.inputs, self.sizes, found.outputs)
        return list(found.outputs.values())


def instance_of(layer: Layer, given: Mapping[str, Any], tokens: int) -> Instance:
    """An instance with the given sizes, and small ones for the rest: where there is one, one in
    which every choice leaves something out.

    Raises ArchError if the given sizes are wrong, or no others go with them (E0506).
    """
    plan = Plan(lowered(layer))
    reason = f"`{layer.name}` does not accept any that were tried"
    found: Instance | None = None
    loaded: list[ModuleType] = []
    for sizes, choosing in _candidates(plan.layer, given, tokens):
        if found is not None and not choosing:
            break
        if not loaded:
            checked = replace(plan, check=Check(sizes, sizes))
            loaded.append(load(emit(checked, with_chunked_forms), layer.name))
        (code,) = loaded
        module, inputs, own = code.example(arguments(sizes), BATCH, tokens, "cpu", torch.float64)
        instance = Instance(layer, sizes, module, inputs, own, tokens, plan)
        try:
            _ = instance.expected
        except IndexError as error:  # the spec computes an index, and these sizes let it run out
            reason = str(error)
            continue
        if found is None or len(instance.seen.one_sided()) < len(found.seen.one_sided()):
            found = instance
        if not found.seen.one_sided():
            break
    if found is not None:
        return found
    names = " ".join(f"--set {arg.name}=..." for arg in layer.args if arg.symbol is not None)
    raise fail(
        "E0506",
        f"no small sizes go with what `{layer.name}` requires",
        notes=(reason,),
        helps=(f"give them: {names}",),
    )


def _candidates(
    layer: Layer, given: Mapping[str, Any], tokens: int
) -> Iterator[tuple[Mapping[str, Number], bool]]:
    """Sizes to try, and whether every choice leaves something out there: small ones beside those
    that are given, then the defaults."""
    names = {arg.name for arg in layer.args if arg.symbol is not None}
    known = {name: value for name, value in given.items() if name in names}
    refused: ArchError | None = None
    for length in (tokens, None):
        for small in islice(examples(layer, SMALL, length), TRIES):
            try:
                yield resolve_sizes(layer, {**small, **known}), length is not None
            except ArchError as error:
                refused = error
    try:
        yield resolve_sizes(layer, known), False
    except ArchError as error:
        refused = refused or error
    if known and refused and refused.diagnostics[0].code != "E0502":  # not just one that is missing
        raise refused


def measures(instance: Instance) -> Iterator[Measure]:
    """Every form of the layer's code."""
    tokens = instance.tokens
    third = max(1, tokens // 3)
    # nothing at all may come in between, but for outputs that are a mean over tokens
    pause = [0] if all(y.dim() > 1 for y in instance.expected) else []
    yield "whole sequence", lambda: whole(instance), LIMIT
    yield "the graph after algebra", lambda: rewritten(instance), LIMIT
    if instance.own and Memory(instance.layer).refusal is None:
        pieces = [tokens - third, *pause, third]
        yield "prompt, then the rest", lambda: continued(instance, pieces), LIMIT
        yield "one token at a time", lambda: continued(instance, [1] * tokens), LIMIT
    if _packs(instance):
        lengths = [third, 0, tokens - third, 0]
        yield "packed sequences", lambda: packed(instance, lengths), LIMIT
    yield "gradients", lambda: gradients(instance), LIMIT
    for chunk in _chunk_sizes(instance):
        yield f"whole sequence, chunks of {chunk}", lambda c=chunk: in_chunks(instance, c), LIMIT
    yield from derived(instance)


def _chunk_sizes(instance: Instance) -> list[int]:
    """Lengths of chunks to run the code with, if any of its own recurrences has chunks."""
    recurrences = [node.op for node in instance.plan.layer.graph if isinstance(node.op, Recurrence)]
    tokens = instance.tokens
    some = any(recurrence.chunked is not None for recurrence in recurrences)
    return list(dict.fromkeys((1, max(2, tokens // 3), tokens))) if some else []


def in_chunks(instance: Instance, chunk: int) -> float:
    """Error of the code for another length of a chunk."""
    rules = replace(instance.plan.layer.chunk, size=chunk)
    layer = replace(instance.plan.layer, chunk=rules)
    check = Check(instance.sizes, instance.sizes)
    plan = replace(instance.plan, layer=layer, check=check)
    code = load(emit(plan, with_chunked_forms), layer.name)
    given = arguments(instance.sizes)
    module, _, _ = code.example(given, BATCH, instance.tokens, "cpu", torch.float64)
    module.load_state_dict(instance.module.state_dict())
    with torch.no_grad():
        return distance(outputs_of(module(**instance.inputs)), instance.expected)


def derived(instance: Instance) -> Iterator[Measure]:
    """The errors of each recurrence's derived forms, as graphs, before any code is made of them."""
    for study in studies_of(instance.layer):
        own = study.layer.name == instance.layer.name
        trial = Trial(study, instance.tokens, _whole(instance.sizes) if own else {})
        names = ", ".join(state.name for state in study.recurrence.states)
        for check in checks(trial):
            yield f"{names}: {check.what}", check.error, check.limit


def warned(layer: Layer) -> Sequence[Diagnostic]:
    """Ones where the identity may be meant, and recurrences that stay a loop unasked."""
    return (*ones(layer), *loops(before_chunks(layer)))


def _whole(sizes: Mapping[str, Number]) -> dict[str, int]:
    """The sizes alone, without options that are no integers."""
    return {name: int(size) for name, size in sizes.items() if float(size).is_integer()}


def whole(instance: Instance) -> float:
    """Error of the layer applied to the whole sequence."""
    with torch.no_grad():
        found = outputs_of(instance.module(**instance.inputs))
    return distance(found, instance.expected)


def rewritten(instance: Instance) -> float:
    """Error of the graph that all is derived from, by the oracle: what is derived of a recurrence
    is held against that of this graph."""
    after, params = before_chunks(instance.layer), weights(instance.module)
    with torch.no_grad():
        given = declared(after, instance.inputs)
        found = evaluate(after, given, params, instance.sizes).outputs
    return distance(list(found.values()), instance.expected)


def continued(instance: Instance, counts: Sequence[int]) -> float:
    """Error of the layer applied to pieces of the sequence, with the state carried along."""
    pieces: list[tuple[Tensor, ...]] = []
    state = None
    with torch.no_grad():
        for start, end in pairwise(accumulate(counts, initial=0)):
            now = {name: instance.inputs[name][:, start:end] for name in instance.own}
            if state is None:
                now = {**instance.inputs, **now}
            made, state = instance.module(**now, state=state, return_state=True)
            pieces.append(outputs_of(made))
    joined = zip(*pieces, strict=True)
    pairs = [(part, y) for part, y in zip(joined, instance.expected, strict=True) if y.dim() > 1]
    return distance([torch.cat(part, 1) for part, _ in pairs], [y for _, y in pairs])


def _packs(instance: Instance) -> bool:
    """Whether the module takes sequences that stand one after the other, and nothing else."""
    takes = inspect.signature(instance.module.forward).parameters
    along = all(name in instance.own for name in instance.inputs)
    return "cu_seqlens" in takes and along and all(y.dim() > 1 for y in instance.expected)


def packed(instance: Instance, lengths: Sequence[int]) -> float:
    """Error of the layer applied to sequences that stand one after the other, some of them empty,
    against each by itself."""
    inputs = {name: x[:1] for name, x in instance.inputs.items()}
    bounds = [0, *accumulate(lengths)]
    params = weights(instance.module)
    with torch.no_grad():
        found = instance.module(**inputs, cu_seqlens=torch.tensor(bounds))
        parts = [
            instance.meaning({name: x[:, low:high] for name, x in inputs.items()}, params)
            for low, high in pairwise(bounds)
        ]
    outputs = outputs_of(found)[: len(instance.expected)]
    return distance(outputs, [torch.cat(ys, 1) for ys in zip(*parts, strict=True)])


def gradients(instance: Instance) -> float:
    """Error of the gradients with respect to every real input and parameter."""
    inputs = {name: x.clone() for name, x in instance.inputs.items()}
    params = dict(instance.module.named_parameters())
    buffers = dict(instance.module.named_buffers())
    values = [x for x in (*inputs.values(), *params.values()) if x.is_floating_point()]
    for value in values:
        value.requires_grad_()
    found = outputs_of(instance.module(**inputs))
    wanted = instance.meaning(inputs, Weights(params | buffers))
    factors = [torch.randn(y.shape, generator=_generator(), dtype=y.dtype) for y in wanted]

    def slopes(outputs: Sequence[Tensor]) -> list[Tensor]:
        loss = torch.stack([(y * w).sum() for y, w in zip(outputs, factors, strict=True)]).sum()
        made = torch.autograd.grad(loss, values, allow_unused=True)
        return [torch.zeros_like(v) if g is None else g for g, v in zip(made, values, strict=True)]

    return distance(slopes(found), slopes(wanted))


def outputs_of(made: Any) -> tuple[Tensor, ...]:
    """The outputs of a forward as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)

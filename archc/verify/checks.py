"""A recurrence's forms, each measured against the recurrence itself, op by op in float64.

A form is a graph, and so is the recurrence: a Recurrence, one node. Both are evaluated by the
oracle on the same random numbers. Imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import sympy
import torch
from torch import Tensor

from archc.backends.eager.graph_file import emit_graphs
from archc.backends.load import load
from archc.ir import chunk as ck
from archc.ir.value_names import cotangent
from archc.recurrence.affine.atoms import Atom
from archc.recurrence.affine.form import MATRIX, SEQUENTIAL, NormalForm
from archc.recurrence.affine.rebuilt import rebuilt
from archc.recurrence.law.composition import Law, LawRound
from archc.verify.study import Study
from archc.verify.trial import Trial, Values, cotangent_of, cut, furthest, step_graph

LIMIT, GRADIENT_LIMIT = 1e-10, 1e-8
"""The largest relative error of a form, and of a gradient."""

GATES = (0.0, -1e-3, -1.0, -20.0, -1000.0, -math.inf)
SAFE_LIMIT, SAFE_TOKENS, SAFE_CHUNK = 1e-4, 100, 64
"""In float32: log gates to try, the largest relative error, and how many tokens."""


@dataclass(frozen=True)
class Check:
    """A form that can be measured: what it is, and the function that gives its relative error."""

    what: str
    error: Callable[[], float]
    limit: float = LIMIT
    sizes: str = ""


def checks(trial: Trial) -> Iterator[Check]:
    """Every form of the recurrence."""
    for some in (normal_checks, chunk_checks, gradient_checks, safe_checks, law_checks):
        yield from some(trial)


def normal_checks(trial: Trial) -> Iterator[Check]:
    """The normal form, where a state has one."""
    if any(form.kind != SEQUENTIAL for form in trial.study.derived.forms):
        yield Check("normal form", lambda: normal(trial))


def chunk_checks(trial: Trial) -> Iterator[Check]:
    """The chunked form, for chunks of one token, of a third, of all and of more than there are."""
    if trial.study.derived.graph is not None:
        for chunk in dict.fromkeys((1, max(1, trial.tokens // 3), trial.tokens, trial.tokens + 3)):
            yield Check(f"chunks of {chunk}", lambda chunk=chunk: chunked(trial, chunk))


def gradient_checks(trial: Trial) -> Iterator[Check]:
    """The gradient of the chunked form."""
    if trial.study.derived.graph is not None:
        chunk = max(2, trial.tokens // 3)
        yield Check(f"gradient, chunks of {chunk}", lambda: gradients(trial, chunk), GRADIENT_LIMIT)


def law_checks(trial: Trial) -> Iterator[Check]:
    """The composition law, if there is one."""
    law = trial.study.law
    if isinstance(law, Law) and trial.tokens > 2:
        yield Check("three parts composed", lambda: composed(trial, law))
        yield Check("merged from either side", lambda: associative(trial, law))


def decode_checks(trial: Trial) -> Iterator[Check]:
    """One token at a time."""
    yield Check("one token at a time", lambda: decoded(trial))


def safe_checks(trial: Trial) -> Iterator[Check]:
    """The code of the chunked form in float32, for gates that leave nothing of a state."""
    study = trial.study
    if study.derived.graph is None or not _gates(study):
        return
    long = Trial(study, SAFE_TOKENS, trial.sizes)
    chosen = ", ".join("−∞" if gate == -math.inf else f"{gate:g}" for gate in GATES)
    yield Check(
        "float32, chunks of 64, beside the float64 loop", lambda: safe(long), SAFE_LIMIT,
        f"{long.sizes_text()}; log gates drawn from {chosen.replace('-', '−')}",
    )  # fmt: skip


def _gates(study: Study) -> list[str]:
    """The captures that are log gates: never positive, and part of a decay's exponent."""
    forms = [form for form in study.derived.forms if form.kind == MATRIX]
    heads = {
        atom.head
        for form in forms
        for own in form.forms
        for step in own.steps
        for atom in _atoms(form, step.decay)
    }
    return [n for n, id in study.captured.items() if study.known[id].nonpositive and n in heads]


def _atoms(form: NormalForm, expr: sympy.Expr) -> Iterator[Atom]:
    """The values in an expression, and those within them."""
    for symbol in sorted(expr.free_symbols, key=str):
        atom = form.atoms.get(symbol) if isinstance(symbol, sympy.Symbol) else None
        if atom is not None:
            yield atom
            for arg in atom.args:
                yield from _atoms(form, arg)


def safe(trial: Trial) -> float:
    """The chunked form as the code that is written of it, in float32, with gates from `GATES`."""
    graph = trial.study.derived.graph
    assert graph is not None, "there is a form"
    generator = torch.Generator().manual_seed(2)
    inputs = {n: x.float() if x.is_floating_point() else x for n, x in trial.inputs.items()}
    for name in _gates(trial.study):
        which = torch.randint(len(GATES), inputs[name].shape, generator=generator)
        inputs[name] = torch.tensor(GATES)[which]
    text, taken = emit_graphs(trial.study.layer, {"forward": graph}, [], {"forward": "Form."})
    takes = taken["forward"]
    run: Callable[..., tuple[Tensor, ...]] = load(text, "form").forward
    defaults = {arg.name: arg.default for arg in trial.study.layer.args}
    options = [trial.shapes.get(option, defaults.get(option)) for option in takes.options]
    made = run(*(inputs[name] for name in takes.inputs), *options, SAFE_CHUNK)
    found = dict(zip(graph.outputs, made, strict=True))
    wide = {n: x.double() if x.is_floating_point() else x for n, x in inputs.items()}
    return furthest({n: x.double() for n, x in found.items()}, trial.run(trial.step, wide))


def normal(trial: Trial) -> float:
    """The recurrence with its body made anew from the normal forms."""
    recurrence = trial.study.recurrence
    graph = step_graph(trial.study, replace(recurrence, body=rebuilt(recurrence), chunked=None))
    return furthest(trial.run(graph, trial.inputs), trial.expected)


def chunked(trial: Trial, chunk: int) -> float:
    """The chunked form with so many tokens in a chunk."""
    form = trial.study.derived.graph
    assert form is not None, "there is a form"
    return furthest(trial.run(form, trial.inputs, chunk), trial.expected)


def gradients(trial: Trial, chunk: int) -> float:
    """The gradient of the chunked form, against autograd through the loop over the tokens."""
    found = trial.study.gradient
    assert found is not None, "there is a form"
    finite = {n: x for n, x in trial.inputs.items() if x.is_floating_point() and x.isfinite().all()}
    leaves = {name: x.clone().requires_grad_() for name, x in finite.items()}
    outputs = trial.run(trial.step, {**trial.inputs, **leaves})
    slopes = {name: cotangent_of(x) for name, x in outputs.items() if x.requires_grad}
    total = torch.stack([(outputs[n] * slopes[n]).sum() for n in slopes]).sum()
    wanted = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    forward = trial.run(found.forward, trial.inputs, chunk)
    given = {cotangent(name): slopes.get(name, x * 0) for name, x in forward.items()}
    made = trial.run(found.backward, {**trial.inputs, **forward, **given}, chunk)
    pairs = {
        name: torch.zeros_like(leaf) if grad is None else grad
        for (name, leaf), grad in zip(leaves.items(), wanted, strict=True)
    }
    return furthest({name: made[cotangent(name)] for name in pairs}, pairs, together=True)


def decoded(trial: Trial) -> float:
    """Token after token, the state handed on, against all of them at once."""
    stream, states = trial.study.recurrence.stream.name, trial.study.recurrence.states
    starts = {ck.start(s.name): trial.inputs[ck.start(s.name)] for s in states}
    along: dict[str, list[Tensor]] = {}
    for t in range(trial.tokens):
        now = cut(trial.step, trial.inputs, stream, t, t + 1)
        found = trial.run(trial.step, {**now, **starts}, tokens=1)
        starts = {ck.start(s.name): found[ck.final(s.name)] for s in states}
        for name, x in found.items():
            along.setdefault(name, []).append(x)
    ends = {ck.final(s.name) for s in states}
    joined = {}
    for name, parts in along.items():
        axis = trial.step[trial.step.outputs[name]].type.names
        joined[name] = parts[-1] if name in ends else torch.cat(parts, axis.index(stream))
    return furthest(joined, trial.expected)


# --- the composition law --------------------------------------------------------------------------


def composed(trial: Trial, law: Law) -> float:
    """The state in the end from the summaries of three parts, merged."""
    found: Values = {}
    for each, (one, two, three) in zip(law.rounds, _summaries(trial, law), strict=True):
        whole = _merged(trial, each, _merged(trial, each, one, two), three)
        found |= trial.run(each.apply, {**whole, **trial.starts})
    return furthest(found, {name: trial.expected[name] for name in found})


def associative(trial: Trial, law: Law) -> float:
    """The first two parts merged first, against the last two."""
    errors = [0.0]
    for each, (one, two, three) in zip(law.rounds, _summaries(trial, law), strict=True):
        left = _merged(trial, each, _merged(trial, each, one, two), three)
        right = _merged(trial, each, one, _merged(trial, each, two, three))
        errors.append(furthest(left, right))
    return max(errors)


def _summaries(trial: Trial, law: Law) -> list[list[Values]]:
    """For each round the summaries of three parts; each starts from the state that the recurrence
    has there, which later rounds read."""
    stream, states = trial.study.recurrence.stream.name, trial.study.recurrence.states
    cuts = [0, trial.tokens // 3, 2 * trial.tokens // 3, trial.tokens]
    parts, begun = [], trial.starts
    for low, high in pairwise(cuts):
        parts.append(({**cut(trial.step, trial.inputs, stream, low, high), **begun}, high - low))
        ends = trial.run(trial.step, *parts[-1][:1], tokens=high - low)
        begun = {ck.start(s.name): ends[ck.final(s.name)] for s in states}
    return [[trial.run(r.summary, x, 2, count) for x, count in parts] for r in law.rounds]


def _merged(trial: Trial, law: LawRound, one: Values, two: Values) -> Values:
    pair = {f"{name}.1": x for name, x in one.items()} | {f"{name}.2": x for name, x in two.items()}
    return trial.run(law.merge, pair)

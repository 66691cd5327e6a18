"""One token through a whole layer, as a pool steps it: each sequence has a state, which is written
over. Peers keep theirs as their layer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archc import slots
from archc.algebra.cut import NoMemory
from archc.backends.measured import take
from archc.backends.renamed import entering
from archc.bench.clock import Call, Clock, captured, ceilings, paired
from archc.bench.contenders import Unavailable, refusals, told
from archc.bench.drawn import DTYPES, load_file
from archc.bench.errors import LIMITS, error
from archc.bench.job import EAGER, OURS, TOKEN, Job, Work
from archc.bench.subject import WIDE, WIDTHS, Request, title_and_layer
from archc.bench.whole import contender, drawn, module_of, run_of, whole
from archc.compile import slots_text_of
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.count import cost, weight_products
from archc.ir.own_positions import unready
from archc.ir.sizes import evaluate
from archc.side_by_side import SideBySide

Note = Callable[[dict[str, Any]], None]
Step = Callable[[Mapping[str, Tensor]], Tensor]
"""A token of each input -> the layer's first output."""

CONTEXT = 64
"""The tokens before the one that is timed."""

FIRST = 8
"""The tokens whose last one is held against float64."""


def one_token(
    spec: str, shape: tuple[int, int, int, int], asked: Request, folder: Path
) -> Job:  # fmt: skip
    """Write what a process needs to measure a token of a layer into `folder`, and the job. Raises
    as `whole` does, and NoMemory for a layer that keeps every token, or whose sequences are
    continued one by one."""
    _, layer = title_and_layer(spec, asked)
    reason = unready(layer)
    if reason is None and cost(layer).cache != 0:
        reason = "it keeps every token, and what is read depends on how many"
    if reason is not None:
        raise NoMemory(f"no token of {layer.name} is timed: {reason}")
    made = whole(spec, shape, asked, folder)
    for name, backend in ((OURS, "triton"), (EAGER, "eager")):
        text = slots_text_of(layer, backend)
        (folder / f"{name}_token.py").write_text(text, encoding="utf-8")
    work = work_of_token(layer, made.sizes, asked)
    return replace(made, what=(TOKEN,), batches=asked.batches, work=work)


def work_of_token(layer: ir.Layer, sizes: Mapping[str, Any], asked: Request) -> dict[str, Work]:
    """The least work of a token, by what is timed: weights are read, states read and written."""
    flops, state = weight_products(layer), cost(layer).state
    known = {**dict.fromkeys(map(str, flops.free_symbols), 1), **sizes, str(TIME.size): 1}
    once, kept = float(evaluate(flops, known)), float(evaluate(state, known))
    weights = WIDTHS[asked.dtype] * once / 2  # a multiply and an add each
    return {
        f"{TOKEN}@{batch}": Work(weights + 2 * WIDE * batch * kept, batch * once)
        for batch in asked.batches
    }


def ours(job: Job, name: str) -> nn.Module:
    """Our layer as it reads one token of each sequence, with kernels or without, with the weights
    that the spec draws."""
    loaded = load_file(Path(job.folder) / f"{name}_token.py", f"archc_bench_{name}_token")
    take(loaded)
    torch.manual_seed(0)
    return getattr(loaded, job.layer)(
        **job.sizes, device=job.device, dtype=DTYPES[job.dtype]
    ).eval()  # fmt: skip


def step_of(module: Any, batch: int) -> Step:
    """A token of each sequence through our layer, whose state takes the place of that before."""
    like, copies = next(module.parameters()), SideBySide(module)
    state = module.initial_state(batch, 1, like.device, like.dtype)
    live = torch.ones(batch, device=like.device, dtype=torch.bool)

    def step(inputs: Mapping[str, Tensor]) -> Tensor:
        with torch.no_grad(), copies.used():
            made, after = module(**entering(inputs), state=state, return_state=True)
            slots.advance(state, after, live)
        return made[0] if isinstance(made, tuple) else made

    return step


def call_of(job: Job, name: str, batch: int) -> Call:
    """A token of a contender, after others. Raises Unavailable for a peer without such a form, and
    errors of the peers' file."""
    tokens = drawn(job, batch, CONTEXT + 1, DTYPES[job.dtype])
    last = {each: x[:, -1:].contiguous() for each, x in tokens.items()}
    if name in (OURS, EAGER):
        step = step_of(ours(job, name), batch)
        return lambda: step(last)
    table = getattr(load_file(Path(job.peers or ""), "archc_bench_peers"), "TOKENS", {})
    if name not in table:
        raise Unavailable("has no form for one token of a layer")
    (before, *_), (one, *_) = ([x[:, :-1] for x in tokens.values()], [*last.values()])
    with torch.no_grad():
        call = table[name](contender(name, job).eval(), before)

    def run() -> object:
        with torch.no_grad():
            return call(one)

    return run


def error_of_ours(job: Job) -> float:
    """How far the last of a few tokens, given one by one, is from float64 in PyTorch."""
    exact = module_of(job, EAGER, torch.float64)
    own = ours(job, OURS)
    exact.load_state_dict({name: x.double() for name, x in own.state_dict().items()})
    tokens = drawn(job, 2, FIRST, DTYPES[job.dtype])
    step = step_of(own, 2)
    found = [step({n: x[:, at : at + 1] for n, x in tokens.items()}) for at in range(FIRST)]
    with torch.no_grad():
        right = run_of(exact, True)({name: x.double() for name, x in tokens.items()})
    return error(found[-1], right[:, -1:])


def everything(job: Job, name: str) -> Iterator[Call]:
    """All that a contender will be called for."""
    for batch in job.batches:
        yield call_of(job, name, batch)
    if name == OURS:
        yield lambda: error_of_ours(job)


def measure_tokens(job: Job, note: Note, machine: dict[str, str]) -> None:
    """The rows of a token, for each batch: as it is called, and where there are graphs, as one."""
    clock = Clock(job.device)
    note({"ceilings": asdict(ceilings(clock, DTYPES[job.dtype])), "machine": machine})
    for batch in job.batches:
        what = f"{TOKEN}@{batch}"
        make = {
            name: lambda name=name, batch=batch: call_of(job, name, batch)
            for name in (OURS, *job.against)
        }
        calls = _timed(what, make, job, clock, note)
        if clock.gpu:
            graphs = {n: (lambda call=call: captured(call)) for n, call in calls.items()}
            _timed(f"{what}, graph", graphs, job, clock, note)
        note({
            "errors": {"y": error_of_ours(job)}, "limits": {"y": 2 * LIMITS[job.dtype][0]},
            "what": what, "contender": OURS,
        })  # fmt: skip


def _timed(
    what: str, make: Mapping[str, Callable[[], Call]], job: Job, clock: Clock, note: Note
) -> dict[str, Call]:
    """The calls that can be timed; rows of their peaks and times, and of refusals, go to `note`."""
    calls: dict[str, Call] = {}
    for name, made in make.items():
        try:
            call = made()
            call()
            clock.wait()
            note({"peak_mib": clock.peak(call), "what": what, "contender": name})
            calls[name] = call
        except refusals() as reason:
            note({"refused": name, "what": what, "reason": told(reason)})
    if calls:
        note({"what": what, "seconds": paired(calls, clock, job.seconds)})
    return calls

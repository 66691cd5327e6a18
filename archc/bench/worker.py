"""A process that measures: `python -m archc.bench.worker first|fill|measure JOB ...`.

    first NAME         the first calls of a contender in this process: seconds, as JSON
    fill NAME I N      compile share I of N of what a contender launches
    measure OUT        wait for a line on standard input; then rows of times, errors and refusals, a
                       line of JSON each, as they are found

It is a process of its own so that a first call is a first one, and so that a peer that takes its
process down leaves the others standing.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from archc.bench.clock import Call, Clock, captured, ceilings, paired
from archc.bench.contenders import Peer, Unavailable, contender, refusals, told
from archc.bench.drawn import DTYPES, draw, load_file
from archc.bench.errors import Oracle, error, few, limit
from archc.bench.fill import compile_a_share, search_briefly
from archc.bench.job import BACKWARD, COMPILED, DECODE, EAGER, FORWARD, LOADING, OURS, TOKEN, Job
from archc.bench.layer_token import call_of, everything, measure_tokens
from archc.bench.whole import Calls, errors_of_ours, measure_whole, whole_calls

CONTEXT = 64
"""Tokens before the one that is decoded: the state is what they leave."""

FILL = 2048
"""Tokens of the sequences with which candidates are compiled."""

PATIENCE, PAUSE = 6, 5.0
"""How often a process that compiles waits for memory, and for how many seconds."""


def calls_of(peer: Peer, inputs: dict[str, Tensor], what: str) -> Call:
    """The calls on a whole sequence that are timed."""
    if peer.sequence is None:
        raise Unavailable("has no form for a whole sequence")
    sequence = peer.sequence
    if what == FORWARD:

        def forward() -> object:
            with torch.no_grad():
                return sequence(inputs, False)

        return forward
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    given = [*leaves.values()]
    with torch.no_grad():
        first = sequence(inputs, False)[0][0]
    slope = slope_of(first, given[0].dtype)

    def both() -> object:
        outputs, _ = sequence(leaves, False)
        return torch.autograd.grad(outputs[0], given, slope, allow_unused=True)

    return both


def slope_of(output: Tensor, narrow: torch.dtype) -> Tensor:
    """The direction that the gradient of an output is taken along: the same numbers for all
    contenders, whichever dtype and strides their outputs have."""
    generator = torch.Generator(output.device).manual_seed(1)
    drawn = torch.randn(output.shape, generator=generator, device=output.device)
    return drawn.to(narrow).to(output.dtype)


class Measuring:
    """The rows of one job."""

    def __init__(self, job: Job, note: Callable[[dict[str, Any]], None]):
        self.job, self.note = job, note
        self.clock = Clock(job.device)
        self.peers: dict[str, Peer] = {}
        for name in (OURS, *job.against):
            try:
                self.peers[name] = contender(name, job)
            except refusals() as reason:
                self.note({"remark": f"{name} {told(reason)}"})

    def _refused(self, what: str, name: str, reason: BaseException) -> None:
        self.note({"refused": name, "what": what, "reason": told(reason)})

    def run(self) -> None:
        """Everything: what peers search for, at the shape that is timed, times, then errors."""
        dtype = DTYPES[self.job.dtype]
        self.note({"ceilings": asdict(ceilings(self.clock, dtype)), "machine": machine(self.job)})
        oracle = Oracle(self.job)
        sequences = [what for what in (FORWARD, BACKWARD) if what in self.job.what]
        if sequences:
            inputs = draw(self.job, *self.job.shape[:2])
            self._search(sequences, inputs)
            for what in sequences:
                make = {
                    name: (lambda peer=peer, what=what: calls_of(peer, inputs, what))
                    for name, peer in self.peers.items()
                }
                self._times(what, make)
            del inputs
            oracle.sequence()
            self._errors(oracle, sequences)
        if DECODE in self.job.what:
            for batch in self.job.batches:
                self._decode(oracle, batch)

    def _search(self, sequences: list[str], inputs: dict[str, Tensor]) -> None:
        """Call peers once; what they refuse is told where it is timed."""
        others = {n: each for n, each in self.peers.items() if n not in (OURS, EAGER, COMPILED)}
        for peer in others.values():
            for what in sequences:
                with suppress(*refusals()):
                    calls_of(peer, inputs, what)()
                    self.clock.wait()

    def _errors(self, oracle: Oracle, sequences: list[str]) -> None:
        for what in sequences:
            for name, peer in self.peers.items():
                if not peer.same or peer.sequence is None:
                    continue
                try:
                    self._error_rows(oracle, what, name, oracle.errors(peer, what))
                except refusals() as reason:
                    self._refused(what, name, reason)

    def _error_rows(self, oracle: Oracle, what: str, name: str, found: dict[str, float]) -> None:
        limits = {value: oracle.limit(value) for value in found}
        self.note({"errors": found, "limits": limits, "what": what, "contender": name})

    def _times(self, what: str, make: dict[str, Callable[[], Call]]) -> None:
        """Paired times and peaks of all that can be called, and how far peers are from ours."""
        calls: dict[str, Call] = {}
        ours: tuple[Any, ...] | None = None
        for name, made in make.items():
            try:
                call = made()
                values = _values(call())
                self.clock.wait()
                if name == OURS:
                    ours = values
                elif ours and values and self.peers[name].same:
                    self._differences(what, name, values, ours)
                del values
                peak = self.clock.peak(call)
            except refusals() as reason:
                self._refused(what, name, reason)
                continue
            calls[name] = call
            self.note({"peak_mib": peak, "what": what, "contender": name})
        if calls:
            times = paired(calls, self.clock, self.job.seconds)
            self.note({"what": what, "seconds": times})

    def _differences(self, what: str, name: str, found: Sequence[Any], ours: Sequence[Any]) -> None:
        """How far outputs or gradients of a peer and ours are apart at the full shape."""
        entering = [f"d {each.name}" for each in self.job.enters]
        names = entering if what == BACKWARD else self.job.outputs
        apart = {
            value: error(x, y.double())
            for value, x, y in zip(names, found, ours, strict=True)
            if y is not None
        }
        limits = {value: 2 * limit(self.job, value) for value in apart}  # each may be off by one
        self.note({"apart": apart, "limits": limits, "what": what, "contender": name})

    def _decode(self, oracle: Oracle, batch: int) -> None:
        """One token after some others: as it is called, and where there are graphs, as one."""
        what = f"{DECODE}@{batch}"
        if not self.job.states:
            self.note({"remark": "keeps every token, not a state: decode is not timed"})
            return
        inputs, states = self._after_context(batch)
        make: dict[str, Callable[[], Call]] = {}
        for name, peer in self.peers.items():
            if peer.step is None:
                self.note({"remark": f"{name} has no form for one token after a state"})
                continue
            try:
                found = oracle.step_errors(peer, inputs, [x.clone() for x in states])
            except refusals() as reason:
                self._refused(what, name, reason)
                continue
            self._error_rows(oracle, what, name, found)
            make[name] = lambda peer=peer: _step(peer, inputs, [x.clone() for x in states])
        self._times(what, make)
        if self.clock.gpu:
            graphs = {name: (lambda made=made: captured(made())) for name, made in make.items()}
            self._times(f"{what}, graph", graphs)

    def _after_context(self, batch: int) -> tuple[dict[str, Tensor], list[Tensor]]:
        """The inputs of one token, and the states that those before it leave."""
        context = contender(EAGER, replace(self.job, against=()))
        assert context.sequence is not None
        inputs = draw(self.job, batch, CONTEXT + 1)
        along = {name: x.shape[:2] == (batch, CONTEXT + 1) for name, x in inputs.items()}
        before = {name: x[:, :-1] if along[name] else x for name, x in inputs.items()}
        last = {name: x[:, -1:].contiguous() if along[name] else x for name, x in inputs.items()}
        with torch.no_grad():
            _, states = context.sequence(before, True)
        return last, [x.contiguous() for x in states]


def _values(made: object) -> tuple[Any, ...] | None:
    """The outputs or gradients that a call returned; None for a graph, which returns nothing."""
    if not isinstance(made, tuple):
        return None
    return made[0] if isinstance(made[0], tuple) else made


def _step(peer: Peer, inputs: dict[str, Tensor], states: list[Tensor]) -> Call:
    def call() -> object:
        assert peer.step is not None
        with torch.no_grad():
            return peer.step(inputs, states)

    return call


def machine(job: Job) -> dict[str, str]:
    """The machine on which the numbers were taken."""
    found = {"python": sys.version.split()[0], "torch": torch.__version__}
    if job.device.startswith("cuda"):
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    else:
        found["device"] = f"CPU, {torch.get_num_threads()} threads"
    try:
        import triton
    except ImportError:
        return found
    return found | {"triton": triton.__version__}


def first(job: Job, name: str) -> dict[str, float]:
    """Seconds in a fresh process: of loading the file (and Triton with it), of the first call, and
    of the first with gradients. What any program pays for torch and the device is not in them."""
    make = _calls(job, job.shape[1])
    clock = Clock(job.device)
    (torch.ones(64, 64, device=job.device) @ torch.ones(64, 64, device=job.device)).sum().item()
    start = time.perf_counter()
    calls = make(name)
    found = {LOADING: time.perf_counter() - start}
    start = time.perf_counter()
    for what, call in calls.items():
        call()
        clock.wait()
        found[what] = time.perf_counter() - start
        start = time.perf_counter()
    return found


def _calls(job: Job, tokens: int) -> Calls:
    """By contender, what is timed with so many tokens, or of one of a layer."""
    if TOKEN in job.what:
        return lambda name: {TOKEN: call_of(job, name, job.batches[0])}
    return whole_calls(job, tokens) if job.whole else memory_calls(job, tokens)


def memory_calls(job: Job, tokens: int) -> Calls:
    """By contender, what is timed of a memory with so many tokens."""
    inputs = draw(job, job.shape[0], tokens)

    def make(name: str) -> dict[str, Call]:
        peer = contender(name, job)
        whats = [what for what in (FORWARD, BACKWARD) if what in job.what]
        return {what: lambda what=what: calls_of(peer, inputs, what)() for what in whats}

    return make


def fill(job: Job, name: str, share: int, shares: int) -> None:
    """Go once through all that will be measured of a contender, a peer with fewer tokens; what it
    refuses is found out later. Our file is loaded first, as where it is measured: it chooses an
    assembler for its process, and Triton keeps what each assembler made apart."""
    compile_a_share(share, shares)
    clock = Clock(job.device)
    calls: list[Call] = []
    try:
        calls = [*_everything(job, name)]
    except refusals() as reason:
        print(f"{name}: {told(reason)}", file=sys.stderr)
    for call in calls:
        try:
            _with_patience(call)
            clock.wait()
        except refusals() as reason:
            print(f"{name}: {told(reason)}", file=sys.stderr)


def _with_patience(call: Call) -> None:
    """A call that waits where others beside it have taken the device's memory."""
    for _ in range(PATIENCE):
        try:
            call()
            return
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            time.sleep(PAUSE)
    call()


def _everything(job: Job, name: str) -> Iterator[Call]:
    """All that a contender will be called for: with all tokens, if it is ours, as its kernels
    depend on how many there are, and with the few that errors are taken of."""
    if TOKEN in job.what:
        yield from everything(job, name)
        return
    own = name in (OURS, COMPILED)
    for tokens in (job.shape[1] if own else enough(job.shape[1]), few(job.shape[1])):
        make = _calls(job, tokens)
        make(OURS)
        yield from make(name).values()
        if job.whole:
            break
    if job.whole and name == OURS:
        yield lambda: errors_of_ours(job)
    if DECODE in job.what and (peer := contender(name, job)).step is not None:
        for batch in job.batches:
            yield lambda batch=batch: _step(peer, *_empty(job, batch))()


def enough(tokens: int) -> int:
    """So many tokens that a peer's kernels are compiled as for all of them: no search depends on
    how many there are, and Triton on whether 16 divides them."""
    return min(tokens, FILL if tokens % 16 == 0 else FILL - 8)


def _empty(job: Job, batch: int) -> tuple[dict[str, Tensor], list[Tensor]]:
    """The inputs of one token and states of zeros, of the shapes that the generated file gives."""
    inputs, context = draw(job, batch, 1), contender(EAGER, job)
    assert context.sequence is not None
    with torch.no_grad():
        _, states = context.sequence(inputs, True)
    return inputs, [torch.zeros_like(x) for x in states]


def load_ahead(job: Job) -> None:
    """Import what a job needs; what is missing is told where it is measured."""
    with suppress(*refusals()):
        load_file(Path(job.folder) / f"{OURS}.py", "archc_bench_ahead")
        needed = getattr(load_file(Path(job.peers or ""), "archc_bench_peers"), "MODULES", {})
        for name in job.against:
            for module in needed.get(name, ()):
                import_module(module)


def main(arguments: list[str]) -> None:
    """Do what the arguments say."""
    mode, path, *rest = arguments
    job = Job.read(path)
    if mode == "first":
        print(json.dumps(first(job, rest[0])))
    elif mode == "fill":
        fill(job, rest[0], int(rest[1]), int(rest[2]))
        _end()
    else:
        load_ahead(job)
        if not sys.stdin.readline():
            return  # nobody waits for it any more
        if job.device.startswith("cuda"):
            search_briefly()
        with Path(rest[0]).open("w", encoding="utf-8") as out:

            def note(row: dict[str, Any]) -> None:
                out.write(json.dumps(row) + "\n")
                out.flush()

            if TOKEN in job.what:
                measure_tokens(job, note, machine(job))
            elif job.whole:
                measure_whole(job, note, machine(job))
            else:
                Measuring(job, note).run()
        _end()


def _end() -> None:
    """All is done: threads of PyTorch that are left may abort a process as it ends."""
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])

"""How far a contender is from the oracle: the meaning of the spec in float64, token by token."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from archc.bench.contenders import Made, Peer, borders
from archc.bench.drawn import draw
from archc.bench.job import BACKWARD, Job
from archc.ir.meaning import evaluate

TOKENS = 144
"""As many as two chunks of 64 and a part of one."""


def few(tokens: int) -> int:
    """So many of all tokens that errors are taken of; one less where 16 does not divide all, so
    that Triton takes what it compiled for them."""
    return min(tokens, TOKENS if tokens % 16 == 0 else TOKENS - 1)


LIMITS = {
    "float64": (1e-9, 1e-8, 1e-8), "float32": (1e-4, 1e-3, 1e-3),
    "bfloat16": (0.005, 0.008, 0.02), "float16": (0.005, 0.008, 0.02),
}  # fmt: skip
"""The largest error of outputs and states, of gradients, and of those of gates, by dtype."""


class Oracle:
    """The right outputs, states and gradients for the job's batch and few tokens.

    Gradients are those of the sum of the first output times fixed numbers of its own dtype.
    """

    def __init__(self, job: Job):
        self.job = job
        self.memory = pickle.loads((Path(job.folder) / "oracle.pkl").read_bytes())
        names = {arg.name for arg in self.memory.args}
        self.sizes = {name: size for name, size in job.sizes.items() if name in names}

    def sequence(self) -> None:
        """Compute them for a whole sequence."""
        tokens = few(self.job.shape[1])
        self.inputs = draw(self.job, self.job.shape[0], tokens)
        exact = {name: x.double().requires_grad_() for name, x in self.inputs.items()}
        found = [evaluate(self.memory, each, {}, self.sizes) for each in self._sequences(exact)]
        self.outputs = [torch.cat([each.outputs[n] for each in found], 1) for n in self.job.outputs]
        self.states = [torch.cat([each.states[n] for each in found]) for n in self.job.states]
        self.states = [x.detach() for x in self.states]
        first = self.outputs[0]
        narrow = next(iter(self.inputs.values())).dtype
        self.weights = torch.randn(first.shape, device=first.device).to(narrow)
        loss = (first * self.weights).sum()
        self.gradients = torch.autograd.grad(loss, [*exact.values()], allow_unused=True)
        self.outputs = [x.detach() for x in self.outputs]

    def _sequences(self, exact: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """The inputs of each packed sequence, or all of them."""
        if not self.job.packed:
            yield exact
            return
        tokens = few(self.job.shape[1])
        along = {name for name, x in self.inputs.items() if x.shape[:2] == (1, tokens)}
        for first, end in pairwise(borders(self.job, tokens).tolist()):
            yield {name: x[:, first:end] if name in along else x for name, x in exact.items()}

    def errors(self, peer: Peer, what: str) -> dict[str, float]:
        """The error of every output and state, or of every gradient, by name."""
        assert peer.sequence is not None
        if what != BACKWARD:
            with torch.no_grad():
                return self._values(peer.sequence(self.inputs, True), self.outputs, self.states)
        leaves = {name: x.clone().requires_grad_() for name, x in self.inputs.items()}
        outputs, _ = peer.sequence(leaves, False)
        out = outputs[0]
        found = torch.autograd.grad(
            out, [*leaves.values()], self.weights.to(out.dtype), allow_unused=True
        )
        return {
            f"d {name}": error(x, wanted)
            for name, x, wanted in zip(leaves, found, self.gradients, strict=True)
            if wanted is not None
        }

    def step_errors(
        self, peer: Peer, inputs: dict[str, Tensor], states: Sequence[Tensor]
    ) -> dict[str, float]:
        """The same for one token after these states."""
        assert peer.step is not None
        given = {name: x.double() for name, x in zip(self.job.states, states, strict=True)}
        exact = {name: x.double() for name, x in inputs.items()}
        with torch.no_grad():
            found = evaluate(self.memory, exact, {}, self.sizes, states=given)
            outputs = [found.outputs[name] for name in self.job.outputs]
            after = [found.states[name] for name in self.job.states]
            return self._values(peer.step(inputs, states), outputs, after)

    def _values(
        self, made: Made, outputs: Sequence[Tensor], states: Sequence[Tensor]
    ) -> dict[str, float]:
        names = [*self.job.outputs, *self.job.states]
        found = [*made[0], *made[1]]
        pairs = zip(names, found, [*outputs, *states], strict=False)
        return {name: error(x, wanted) for name, x, wanted in pairs}

    def limit(self, name: str) -> float:
        """The largest error that an output, a state or a gradient may have."""
        return limit(self.job, name)


def limit(job: Job, name: str) -> float:
    """The largest error that an output, a state or a gradient (`d q`) of a job may have."""
    values, gradients, gates = LIMITS[job.dtype]
    if not name.startswith("d "):
        return values
    gate = {each.name: each.gate for each in job.enters}[name.removeprefix("d ")]
    return gates if gate else gradients


def error(found: Tensor | None, wanted: Tensor) -> float:
    """The root mean square of the difference against that of what is wanted; infinite for what is
    missing, of another shape, or no number."""
    if found is None or found.numel() != wanted.numel():
        return math.inf
    off = (found.double().reshape(wanted.shape) - wanted).square().mean().sqrt()
    made = float(off / (wanted.square().mean().sqrt() + 1e-8))
    return made if math.isfinite(made) else math.inf

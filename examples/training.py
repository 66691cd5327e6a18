"""What both training examples share: a model of archc layers, the loop, checkpoints, the curve.

A run writes into its folder: `checkpoint.pt` (model, optimizer, random numbers, losses, flags;
replaced whole, so that a run that dies leaves the last good one), `losses.json` and `loss.png`.
Started again with the same folder it goes on where it was, and ends with the same numbers as a run
without a stop; with other flags, or from a damaged file, it says so and touches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import archc

MIXERS: dict[str, str] = {
    "kda": "K V r",
    "gated_delta": "K V",
    "linear_attention_simple": "K V",
    "gla": "K V",
    "attention": "K",
}
"""Layers that were tried here, with the sizes that `--width` gives. Any spec with `d` and `H` may
be named."""

NEAR = archc.parse("""
layer Near(d, width = 4):
    input x[d]
    param c[d, width]
    output y[d] = x + shortconv(x, c)
""")
"""Each token with the three before it, for a mixer that has no such convolution inside. It is a
spec as well."""

LOGITS_AT_ONCE = 1 << 22
"""How many logits stand in memory at a time: 16 MiB in float32."""
ANYWHERE = ("steps", "folder", "device", "compile", "graph", "save_every", "compare")
"""Flags that may differ when a run goes on."""


class Block(nn.Module):
    """A mixer of tokens, then a mixer of channels, each on a normalised input and added to it."""

    def __init__(self, mixer: nn.Module, near: nn.Module | None, d: int, hidden: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(d), nn.RMSNorm(d)])
        self.near, self.mixer = near, mixer
        self.channels = nn.Sequential(nn.Linear(d, hidden), nn.GELU(), nn.Linear(hidden, d))

    def forward(self, x: Tensor, states: Any = (None, None)) -> tuple[Tensor, Any, Any]:
        """[batch, time, d] of the same shape after `states`, what is remembered of it, and what the
        mixer adds to the loss, if its spec has outputs for that."""
        read, last = self.norms[0](x), None
        if self.near is not None:
            read, last = self.near(read, state=states[0], return_state=True)
        mixed, state = self.mixer(read, state=states[1], return_state=True)
        added = archc.auxiliary_loss(self.mixer, mixed)
        x = x + (mixed[0] if isinstance(mixed, tuple) else mixed)
        return x + self.channels(self.norms[1](x)), (last, state), added


class Model(nn.Module):
    """An embedding, blocks of a named mixer, a norm; the embedding is the head as well."""

    def __init__(self, given: argparse.Namespace, vocabulary: int):
        super().__init__()
        spec, d = archc.load(given.mixer), given.d
        sizes = dict.fromkeys(MIXERS.get(given.mixer, "").split(), given.width)
        near = given.mixer in given.near.split(",")
        self.embedding = nn.Embedding(vocabulary, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        self.blocks = nn.ModuleList(
            Block(
                spec.module(d=d, H=given.heads, **sizes),
                NEAR.module(d=d) if near else None,
                d,
                2 * d,
            )
            for _ in range(given.layers)
        )
        self.norm = nn.RMSNorm(d)

    def forward(self, tokens: Tensor, states: list[Any] | None = None) -> tuple[Tensor, list[Any]]:
        """The vectors [batch, time, d] that the next tokens are told from, and what each block
        remembers: given back with the tokens that follow, it stands for those before."""
        return self.features(tokens, states)[:2]

    def features(self, tokens: Tensor, states: list[Any] | None = None) -> tuple[Any, ...]:
        """The same, and what the blocks add to the loss."""
        x, kept, added = self.embedding(tokens), [], []
        before = states or [(None, None)] * len(self.blocks)
        for block, state in zip(self.blocks, before, strict=True):
            x, after, more = block(x, state)
            kept.append(after)
            added += [] if more is None else [more]
        return self.norm(x), kept, added

    def logits(self, x: Tensor) -> Tensor:
        """Scores [..., vocabulary] of the next token."""
        return x @ self.embedding.weight.to(x.dtype).T

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross entropy of the targets; those of -100 do not count. In training with what the
        blocks add to it."""
        x, _, added = self.features(tokens)
        told = cross_entropy(x, self.embedding.weight, targets)
        return told + torch.stack(added).sum() if added and self.training else told


def cross_entropy(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of `x @ head.T`, whose logits never stand in memory whole; targets of -100
    do not count.

    Parts of the tokens go one after the other, and are computed again for the gradient. Sums are in
    float32 whatever dtype the products are in: torch's own `linear_cross_entropy` (2.13) gives a
    bfloat16 sum for bfloat16, and keeps all logits unless its options say otherwise.
    """

    def part(x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy((x @ head.to(x.dtype).T).float(), targets, reduction="sum")

    x, targets = x.flatten(0, -2), targets.flatten()
    rows = max(1, LOGITS_AT_ONCE // len(head))
    parts = zip(x.split(rows), targets.split(rows), strict=True)
    ways = {"use_reentrant": False, "preserve_rng_state": False}
    again = partial(torch.utils.checkpoint.checkpoint, **ways)
    total = torch.stack([again(part, a, head, b) for a, b in parts]).sum()
    return total / (targets >= 0).sum()


@dataclass
class Run:
    """A training run: what `flags` give, and the folder it lives in."""

    model: Model
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    folder: Path
    losses: list[float]
    flags: dict[str, str]

    def save(self) -> None:
        """Replace the checkpoint; the old one stays until the new one is whole."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "everywhere": [torch.get_rng_state(), *torch.cuda.get_rng_state_all()],
            "losses": self.losses,
            "flags": self.flags,
        }
        new = self.folder / "checkpoint.pt.new"
        with new.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / "checkpoint.pt")

    def resume(self) -> None:
        """Go on from the checkpoint of the folder, if any; it must be whole and of this run."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        try:
            with zipfile.ZipFile(path) as whole:
                torn = whole.testzip()  # torch does not look at the check sums
            state = None if torn else torch.load(path, map_location="cpu", weights_only=True)
        except (zipfile.BadZipFile, RuntimeError, pickle.UnpicklingError) as error:
            torn = str(error).splitlines()[0]
        if torn:
            sys.exit(f"{path} is torn or no checkpoint: {torn}\nmove it away to start anew")
        self._is_of(path, state)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        torch.set_rng_state(state["everywhere"][0])
        if len(state["everywhere"]) == 1 + torch.cuda.device_count():
            torch.cuda.set_rng_state_all(state["everywhere"][1:])
        self.losses = state["losses"]
        print(f"going on from step {len(self.losses)} of {path}", file=sys.stderr)

    def _is_of(self, path: Path, state: Any) -> None:
        """Refuse a file of something else, and a run of other flags."""
        if not isinstance(state, dict) or not {"flags", "everywhere"} <= state.keys():
            sys.exit(f"{path} is no checkpoint of this example\nmove it away to start anew")
        old = state["flags"]
        names = [name for name in (*old, *self.flags) if old.get(name) != self.flags.get(name)]
        if names:
            was = ", ".join(f"--{n.replace('_', '-')} {old.get(n)}" for n in dict.fromkeys(names))
            sys.exit(f"{path} is of another run: {was}\ngive the same flags, or another --folder")

    def finish(self) -> None:
        """The losses as JSON, and their curve."""
        (self.folder / "losses.json").write_text(json.dumps(self.losses), encoding="utf-8")
        draw({self.folder.name: self.losses}, self.folder / "loss.png")


def flags(doc: str, **defaults: Any) -> argparse.ArgumentParser:
    """The flags that both examples have, with these defaults."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    given = {"mixer": "kda", "d": 128, "heads": 4, "width": 32, "layers": 2, "batch": 32,
             "steps": 1000, "lr": 2e-3, "seed": 0,
             "near": "attention"} | defaults  # fmt: skip
    for name, value in given.items():
        about = "mixers that get a short convolution before them" if name == "near" else None
        parser.add_argument(f"--{name}", type=type(value), default=value, help=about)
    parser.add_argument("--folder", type=Path, default=Path("out/run"), help="where it all goes")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device)
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast; states are float32")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--graph", action="store_true", help="a step as a CUDA graph")
    parser.add_argument("--save-every", type=int, default=200, help="steps from save to save")
    return parser


def prepared(given: argparse.Namespace, vocabulary: int) -> Run:
    """The model, its optimizer and what the folder has of an earlier run."""
    if given.graph and torch.device(given.device).type != "cuda":
        sys.exit(f"--graph needs an NVIDIA GPU, not --device {given.device}")
    torch.manual_seed(given.seed)
    try:
        model = Model(given, vocabulary).to(given.device)
    except archc.ArchError as error:
        sys.exit(str(error))
    given.folder.mkdir(parents=True, exist_ok=True)
    groups = archc.parameter_groups(model, weight_decay=0.1)
    optimizer = torch.optim.AdamW(groups, lr=given.lr, betas=(0.9, 0.95))
    archc.balance(model, optimizer)  # biases that experts are chosen by, if there are any
    said = {name: str(value) for name, value in vars(given).items() if name not in ANYWHERE}
    draws = torch.Generator().manual_seed(given.seed)
    run = Run(model, optimizer, draws, given.folder, [], said)
    run.resume()
    return run


def rate(step: int, steps: int) -> float:
    """The learning rate as a part of its peak: a tenth of the steps up, then down in a line."""
    warm = max(steps // 10, 1)
    return min((step + 1) / warm, max(1 - (step - warm) / max(steps - warm, 1), 0.02))


Step = Callable[[Tensor, Tensor], Tensor]
"""From tokens and targets to their loss; gradients are those of the parameters afterwards."""


def step_of(run: Run, given: argparse.Namespace) -> Step:
    """The step, launch by launch."""
    loss_of = torch.compile(run.model.loss) if given.compile else run.model.loss
    kind = torch.device(given.device).type

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        run.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(kind, torch.bfloat16) if given.bf16 else nullcontext():
            loss = loss_of(tokens, targets)
        loss.backward()
        return loss.detach()

    return step


class Graphed:
    """A step as CUDA graphs, one for each shape of its batches: the host gives out a single launch,
    where a small model has hundreds that take it longer than they take the GPU."""

    def __init__(self, step: Step, model: nn.Module):
        self.step, self.weights = step, [*model.parameters()]
        self.known: dict[torch.Size, tuple[torch.cuda.CUDAGraph, list[Any]]] = {}

    def __call__(self, tokens: Tensor, targets: Tensor) -> Tensor:
        if tokens.shape not in self.known:
            self.known[tokens.shape] = self.recorded(tokens, targets)
        graph, (*given, loss, gradients) = self.known[tokens.shape]
        for own, new in zip(given, (tokens, targets), strict=True):
            own.copy_(new)
        graph.replay()
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        return loss

    def recorded(self, *like: Tensor) -> tuple[torch.cuda.CUDAGraph, list[Any]]:
        """A graph, its tokens and targets, the loss and the gradients of weights: where it reads
        and writes. Kernels are compiled before, on a stream apart, as torch asks for."""
        given, graph, apart = [x.clone() for x in like], torch.cuda.CUDAGraph(), torch.cuda.Stream()
        apart.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(apart), torch.random.fork_rng([torch.cuda.current_device()]):
            for _ in range(2):
                self.step(*given)
        torch.cuda.current_stream().wait_stream(apart)
        with torch.cuda.graph(graph):
            loss = self.step(*given)
        return graph, [*given, loss, [weight.grad for weight in self.weights]]


def train(
    run: Run, given: argparse.Namespace, batches: Callable[[torch.Generator], tuple[Tensor, Tensor]]
) -> None:
    """Steps until there are as many as asked for; `batches` draws tokens and targets."""
    step_once = step_of(run, given)
    step_once = Graphed(step_once, run.model) if given.graph else step_once
    run.model.train()
    for step in shown(run.losses, given.steps):
        tokens, targets = (x.to(given.device) for x in batches(run.generator))
        for group in run.optimizer.param_groups:
            group["lr"] = given.lr * rate(step, given.steps)
        loss = step_once(tokens, targets)
        nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.losses.append(loss.item())
        if not loss.isfinite():
            sys.exit(f"the loss is {loss.item()} at step {step}; the last checkpoint is kept")
        if (step + 1) % given.save_every == 0 or step + 1 == given.steps:
            run.save()
    run.finish()


def shown(losses: list[float], steps: int) -> Iterator[int]:
    """The steps that are left, under a progress bar with the loss and the steps a second."""
    columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(),
               TextColumn("{task.fields[said]}"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=steps, completed=len(losses), said="")
        start, first = time.perf_counter(), len(losses)
        for step in range(first, steps):
            yield step
            speed = (step + 1 - first) / (time.perf_counter() - start)
            progress.update(task, advance=1, said=f"loss {losses[-1]:.3f}, {speed:.1f} steps/s")


def draw(curves: dict[str, list[float]], path: Path, label: str = "loss") -> None:
    """Curves over steps as a picture; needs matplotlib (`pip install archc[plot]`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print(f"no {path}: matplotlib is not there", file=sys.stderr)
        return
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        axes.plot(values, label=name, linewidth=1)
    axes.set(xlabel="step", ylabel=label)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)

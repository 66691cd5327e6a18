"""A Transformer, then an mLSTM model that is made from it in stages, after MOHAWK (2408.10189).

    python examples/distill.py                      # minutes on a CPU
    python examples/distill.py --align 0            # without a stage, to see what it is worth

Both are bundled specs, `lm` and `xlstm`, of the same sizes, on the bytes of Python's own manual.
What the stages do, and what comes out, is in docs/guides/distill.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from train_lm import texts, windows

import archc

Batches = Callable[[int, int], tuple[Tensor, Tensor]]
"""So many windows of so many bytes, and the bytes that follow."""


def models(given: argparse.Namespace) -> tuple[nn.Module, nn.Module, nn.Module]:
    """The teacher, the student, and a second student that is to learn alone."""
    sizes = {"vocab": 256, "d": given.d, "H": given.heads, "L": given.layers, "f": 2 * given.d}
    teacher = archc.load("lm").module(**sizes)
    student = archc.load("xlstm").module(**sizes, keys=1)
    return teacher, student, deepcopy(student)


def hidden(model: nn.Module, tokens: Tensor) -> list[Tensor]:
    """What enters each block of a model, and what leaves the last."""
    found = [F.embedding(tokens, model.E)]
    for block in model.layers:
        found.append(block(found[-1]))
    return found


def inside(block: nn.Module, name: str) -> tuple[nn.Module, Tensor]:
    """The layer of a block that has a parameter of this name, and the gain before it."""
    parts = [part for part in block.modules() if name in dict(part.named_parameters(recurse=False))]
    (gain,) = [p for path, p in block.named_parameters() if path.rpartition(".")[2] == "n1"]
    return parts[0], gain


def learn(parameters: Iterable[nn.Parameter], loss: Callable[[], Tensor], steps: int,
          lr: float) -> None:  # fmt: skip
    """Steps of Adam down a loss, with a rate that falls to 0 in a line."""
    optimizer = torch.optim.Adam(parameters, lr=lr)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / steps)
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        optimizer.step()


# --- the stages ---------------------------------------------------------------------------------


def transfer(teacher: nn.Module, student: nn.Module) -> tuple[int, int]:
    """Copy what has the same name and shape in the same block; how many numbers, and of how many.

    Input gates start open, as those of an attention are: at xLSTM's start of -10 they are closed.
    """
    have = {_place(path): p for path, p in teacher.named_parameters()}
    copied = 0
    with torch.no_grad():
        for path, p in student.named_parameters():
            other = have.get(_place(path))
            if other is not None and other.shape == p.shape:
                p.copy_(other)
                copied += p.numel()
            elif path.endswith(".b_i"):
                p.zero_()
    return copied, sum(p.numel() for p in student.parameters())


def _place(path: str) -> tuple[str, str]:
    """The block that a parameter is in, or none, and its own name."""
    parts = path.split(".")
    return (parts[1] if parts[0] == "layers" else "", parts[-1])


def orientation(teacher: nn.Module, student: nn.Module, tokens: Tensor, grad: bool) -> Tensor:
    """Stage 1: the squared Frobenius distance of what the student's memory mixes from what the
    teacher's attention does, as a part of the latter's square: a mean over heads and blocks."""
    with torch.no_grad():
        entering = hidden(teacher, tokens)
    found = []
    for x, ours, theirs in zip(entering, student.layers, teacher.layers, strict=False):
        attention, gain = inside(theirs, "W_q")
        memory, _ = inside(ours, "W_q")
        read = F.rms_norm(x, x.shape[-1:], gain.detach(), 1e-6)
        want = archc.mixer_matrix(attention, read).data
        made = archc.mixer_matrix(memory, read, with_grad=grad).data
        found.append(((made - want).square().sum((-1, -2)) / want.square().sum((-1, -2))).mean())
    return torch.stack(found).mean()


def alignment(teacher: nn.Module, student: nn.Module, tokens: Tensor) -> Tensor:
    """Stage 2: how far each block's output is from the teacher's, both reading what the teacher's
    block reads, as a part of what that block adds: a mean of squares over blocks."""
    with torch.no_grad():
        states = hidden(teacher, tokens)
    found = []
    for x, after, block in zip(states, states[1:], student.layers, strict=False):
        found.append((block(x) - after).square().mean() / (after - x).square().mean())
    return torch.stack(found).mean()


def divergence(teacher: nn.Module, student: nn.Module, tokens: Tensor) -> Tensor:
    """Stage 3: the Kullback-Leibler divergence of the student's next byte from the teacher's."""
    with torch.no_grad():
        want = F.log_softmax(teacher(tokens), -1).flatten(0, 1)
    made = F.log_softmax(student(tokens), -1).flatten(0, 1)
    return F.kl_div(made, want, reduction="batchmean", log_target=True)


def language(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The mean cross entropy of the bytes that follow."""
    tokens, targets = batch
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


# --- a run --------------------------------------------------------------------------------------


def distilled(given: argparse.Namespace, batches: Batches, unseen: Batches) -> dict[str, object]:
    """All stages one after the other, and what each did: its loss before and after, on one batch
    that was not learned from, and the student's own loss of the language after it."""
    teacher, student, alone = models(given)
    many = (given.batch, given.length)
    short = (2, min(16, given.length))
    test, test_short = unseen(32, given.length), unseen(*short)[0]
    learn(teacher.parameters(), lambda: language(teacher, batches(*many)), given.steps, 3e-3)
    teacher.requires_grad_(False)

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        return round(float(language(model, test)), 4)

    report: dict[str, object] = {"teacher": loss(teacher), "untrained": loss(student)}
    copied, of = transfer(teacher, student)
    report["transfer"] = {"copied": copied, "of": of, "language": loss(student)}
    mixers = [p for block in student.layers for p in inside(block, "W_q")[0].parameters()]
    blocks = list(student.layers.parameters())
    stages = {
        "orientation": (mixers, given.orient, 1e-2, partial(orientation, grad=True), short,
                        lambda: orientation(teacher, student, test_short, False)),
        "alignment": (blocks, given.align, 3e-3, alignment, many,
                      lambda: alignment(teacher, student, test[0])),
        "logits": (list(student.parameters()), given.logits, 2e-3, divergence, many,
                   lambda: divergence(teacher, student, test[0])),
    }  # fmt: skip
    for name, (parameters, steps, lr, stage, size, measure) in stages.items():
        start, before = time.perf_counter(), _number(measure)
        step = partial(_on_a_batch, stage, teacher, student, batches, size)
        learn(parameters, step, steps, lr)
        found = {"steps": steps, "before": before, "after": _number(measure)}
        report[name] = found | {"language": loss(student)}
        print(f"{name}: {report[name]}, {time.perf_counter() - start:.0f} s", flush=True)
    steps = given.orient + given.align + given.logits
    learn(alone.parameters(), lambda: language(alone, batches(*many)), steps, 2e-3)
    report["from scratch"] = {"steps": steps, "language": loss(alone)}
    return report


def _on_a_batch(
    stage: Callable[[nn.Module, nn.Module, Tensor], Tensor],
    teacher: nn.Module,
    student: nn.Module,
    batches: Batches,
    size: tuple[int, int],
) -> Tensor:
    """The loss of a stage on a fresh batch."""
    return stage(teacher, student, batches(*size)[0])


@torch.no_grad()
def _number(measure: Callable[[], Tensor]) -> float:
    return round(float(measure()), 4)


def main() -> None:
    """Train, distil, report; the report is a file as well."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    sizes = {"d": 32, "heads": 2, "layers": 2, "batch": 8, "length": 64, "seed": 0}
    steps = {"steps": 200, "orient": 12, "align": 60, "logits": 80}
    for name, value in (sizes | steps).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--folder", type=Path, default=Path("out/distill"))
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    generator = torch.Generator().manual_seed(given.seed)
    learned, held_out = texts()
    report = distilled(
        given,
        lambda batch, length: windows(generator, learned, batch, length),
        lambda batch, length: windows(generator, held_out, batch, length),
    )
    given.folder.mkdir(parents=True, exist_ok=True)
    (given.folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

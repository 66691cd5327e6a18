"""Multi-query associative recall: which memories can look up what they were told?

A sequence lists pairs of a key and a value, then asks for keys in another order; at each question
the model is to give the value (Zoology, arXiv 2312.04927, section 3). A state of fixed size holds
only so many pairs unless it corrects what it wrote: delta rules and softmax attention reach every
pair, plain linear attention does not.

    python examples/train_recall.py --mixer kda                      # 16 pairs: minutes on a CPU
    python examples/train_recall.py --mixer kda --pairs 128 --bf16   # on a GPU
    python examples/train_recall.py --compare kda,gated_delta,attention,linear_attention_simple
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from training import Run, draw, flags, prepared, train

UNASKED = -100
"""A target that does not count."""


def recall(generator: torch.Generator, batch: int, pairs: int, words: int) -> tuple[Tensor, Tensor]:
    """Tokens [batch, 4 pairs] and targets of the same shape.

    Keys are 1 to `words`, values words + 1 to 2 words, 0 is nothing. The first half of a sequence
    is key, value, key, value, ...; the second half key, nothing, ...: the target of an asked key is
    its value.
    """
    order = torch.rand(batch, words, generator=generator).argsort(1)[:, :pairs]
    keys = 1 + order
    values = 1 + words + torch.randint(words, (batch, pairs), generator=generator)
    told = torch.stack([keys, values], 2).flatten(1)
    turn = torch.rand(batch, pairs, generator=generator).argsort(1)
    asked, answers = keys.gather(1, turn), values.gather(1, turn)
    nothing = torch.zeros_like(asked)
    tokens = torch.cat([told, torch.stack([asked, nothing], 2).flatten(1)], 1)
    targets = torch.full_like(tokens, UNASKED)
    targets[:, 2 * pairs :: 2] = answers
    return tokens, targets


def mixed(generator: torch.Generator, batch: int, pairs: int, words: int) -> tuple[Tensor, Tensor]:
    """The same with so many pairs, or half as many, a quarter, down to two: short sequences show
    early what is asked for."""
    halvings = min(pairs.bit_length() - 1, 5)
    fewer = int(torch.randint(halvings, (), generator=generator)) if halvings > 1 else 0
    return recall(generator, batch, pairs >> fewer, words)


@torch.no_grad()
def accuracy(run: Run, given: argparse.Namespace) -> float:
    """The part of 1,000 unseen questions or more that is answered right."""
    generator, right, asked = torch.Generator().manual_seed(given.seed + 1), 0, 0
    run.model.eval()
    while asked < 1000:
        tokens, targets = recall(generator, given.batch, given.pairs, given.words)
        x, _ = run.model(tokens.to(given.device))
        guess, counts = run.model.logits(x).argmax(-1).cpu(), targets != UNASKED
        right, asked = right + int((guess == targets)[counts].sum()), asked + int(counts.sum())
    return right / asked


def trained(given: argparse.Namespace) -> tuple[float, list[float]]:
    """The accuracy of one mixer after its training, and its losses."""
    run = prepared(given, vocabulary=2 * given.words + 1)
    draws = partial(mixed, batch=given.batch, pairs=given.pairs, words=given.words)
    train(run, given, draws)
    found = accuracy(run, given)
    (given.folder / "accuracy.json").write_text(json.dumps({given.mixer: found}), encoding="utf-8")
    print(f"{given.mixer}: {found:.1%} of {given.pairs} pairs recalled after {given.steps} steps")
    return found, run.losses


def main() -> None:
    """One mixer, or several one after the other with a picture of all."""
    parser = flags(__doc__ or "", d=64, heads=2, batch=64, steps=1500, lr=2e-3)
    parser.add_argument("--pairs", type=int, default=16, help="pairs of key and value a sequence")
    parser.add_argument("--words", type=int, default=64, help="how many keys and values there are")
    parser.add_argument("--compare", default="", help="mixers, with commas between them")
    given = parser.parse_args()
    if given.pairs > given.words:
        sys.exit(f"--pairs {given.pairs} needs as many --words; there are {given.words}")
    if not given.compare:
        trained(given)
        return
    folder, curves = Path(given.folder), {}
    for mixer in given.compare.split(","):
        each = argparse.Namespace(**{**vars(given), "mixer": mixer, "folder": folder / mixer})
        found, losses = trained(each)
        curves[f"{mixer}, {found:.0%}"] = losses
    draw(curves, folder / "recall.png", "loss of the answers")


if __name__ == "__main__":
    main()

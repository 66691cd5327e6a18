"""A byte-level language model on text that comes with Python, then a few words from it.

    python examples/train_lm.py                                     # minutes on a CPU
    python examples/train_lm.py --bf16 --graph --d 512 --heads 8 --width 64 --layers 8   # on a GPU

The text is the reference manual that `help()` shows (pydoc_data), 700 kB of English and code; the
last tenth is held out.
"""

from __future__ import annotations

import argparse
import math
from pydoc_data.topics import topics

import torch
from torch import Tensor
from training import Run, flags, prepared, train


def texts() -> tuple[Tensor, Tensor]:
    """The bytes to learn from, and those held out."""
    text = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    return data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]


def windows(
    generator: torch.Generator, data: Tensor, batch: int, length: int
) -> tuple[Tensor, Tensor]:
    """Bytes [batch, length] from anywhere, and the bytes that follow."""
    starts = torch.randint(len(data) - length - 1, (batch, 1), generator=generator)
    at = starts + torch.arange(length)
    return data[at], data[at + 1]


@torch.no_grad()
def bits_a_byte(run: Run, data: Tensor, given: argparse.Namespace) -> float:
    """The mean cross entropy of 64 held-out windows, in bits."""
    run.model.eval()
    generator = torch.Generator().manual_seed(0)
    tokens, targets = windows(generator, data, 64, given.length)
    found = [
        run.model.loss(a.to(given.device), b.to(given.device))
        for a, b in zip(tokens.split(given.batch), targets.split(given.batch), strict=True)
    ]
    return float(torch.stack(found).mean()) / math.log(2)


@torch.no_grad()
def continued(run: Run, prompt: bytes, count: int, given: argparse.Namespace) -> str:
    """The prompt and `count` more bytes, drawn one after the other."""
    generator = torch.Generator().manual_seed(given.seed)
    text, new, states = list(prompt), list(prompt), None
    for _ in range(count):
        x, states = run.model(torch.tensor([new], device=given.device), states)
        chances = torch.softmax(run.model.logits(x[0, -1]).float().cpu() / 0.8, 0)
        new = [int(torch.multinomial(chances, 1, generator=generator))]
        text += new
    return bytes(text).decode("utf-8", "replace")


def main() -> None:
    """Train, measure, and show some text."""
    parser = flags(__doc__ or "", batch=16, steps=600)
    parser.add_argument("--length", type=int, default=256, help="bytes of a window")
    given = parser.parse_args()
    learned, held_out = texts()
    run = prepared(given, vocabulary=256)
    train(run, given, lambda generator: windows(generator, learned, given.batch, given.length))
    print(f"{bits_a_byte(run, held_out, given):.3f} bits a byte on text it has not seen")
    print(continued(run, b"The statement ", 200, given))


if __name__ == "__main__":
    main()

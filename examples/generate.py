"""Text from a model, token by token, with what it remembers in place of a cache of your own.

Without a checkpoint the weights are random, and so are the bytes that come out: it shows how a
prompt is read once, several texts go on from its state, and a loop prints them as they are drawn.

    python examples/generate.py
    python examples/generate.py --spec lm --checkpoint TinyLlama-1.1B --prompt "Once upon a time"
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import Tensor, nn

import archc

SIZES: dict[str, dict[str, int]] = {
    "gpt": {"d": 64, "H": 4, "L": 2, "length": 512},
    "lm": {"d": 64, "H": 4, "L": 2, "f": 128},
}
"""Sizes of a model with random weights; `gpt` has a table of positions, and `lm` none."""


class Bytes:
    """The words of a model with random weights: bytes."""

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return [*text.encode()]

    def decode(self, tokens: list[int]) -> str:
        """Their text; what is no letter stands as it would in Python."""
        return bytes(tokens).decode("latin-1").encode("unicode_escape").decode()


def prepared(given: argparse.Namespace) -> tuple[nn.Module, Any]:
    """The model and its words: of a checkpoint, or random and bytes."""
    spec = archc.load(given.spec)
    if given.checkpoint:
        from transformers import AutoTokenizer  # words of a checkpoint: the extra `hf`

        model = spec.from_pretrained(given.checkpoint, device=given.device)
        return model, AutoTokenizer.from_pretrained(given.checkpoint)
    torch.manual_seed(given.seed)
    model = spec.module(vocab=256, device=given.device, **SIZES.get(given.spec, {}))
    return model.eval(), Bytes()


def several(model: nn.Module, prompt: Tensor, given: argparse.Namespace) -> Tensor:
    """Texts that go on from one prompt, which is read once: its state stands for it."""
    with torch.no_grad():
        _, state = model(prompt[:, :-1], return_state=True)
    copies = state.select(torch.zeros(given.texts, dtype=torch.int64, device=prompt.device))
    last = prompt[:, -1:].expand(given.texts, 1)
    draws = torch.Generator(prompt.device).manual_seed(given.seed)
    return archc.generate(
        model, last, given.count, state=copies, temperature=given.temperature, top_p=0.95,
        generator=draws,
    )[:, 1:]  # fmt: skip


def main() -> None:
    """One text as it is drawn, then several at once from one reading of the prompt."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--spec", default="gpt", help="a bundled model, or a file")
    parser.add_argument("--checkpoint", default="", help="a folder as Hugging Face keeps them")
    parser.add_argument("--prompt", default="A memory is a matrix ")
    parser.add_argument("--count", type=int, default=40, help="how many tokens to draw")
    parser.add_argument("--texts", type=int, default=3, help="how many texts at once")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--seed", type=int, default=0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device)
    given = parser.parse_args()
    model, words = prepared(given)
    prompt = torch.tensor([words.encode(given.prompt)], device=given.device)
    start, drawn = time.perf_counter(), []
    draws = torch.Generator(prompt.device).manual_seed(given.seed)
    for token in archc.stream(
        model, prompt, given.count, temperature=given.temperature, top_p=0.95, generator=draws
    ):
        drawn.append(int(token))
        print(words.decode([drawn[-1]]), end="", flush=True)
    print(f"\n{len(drawn) / (time.perf_counter() - start):.0f} tokens/s")
    for number, text in enumerate(several(model, prompt, given).tolist(), start=1):
        print(f"{number}: {words.decode(text)}")


if __name__ == "__main__":
    main()

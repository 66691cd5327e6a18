"""Requests that arrive while others are answered: a pool of slots, with a byte-level model.

    python examples/serve.py --slots 3 --requests 8

The model is drawn at random: what it says means nothing, when it says it does.
"""

from __future__ import annotations

import argparse
import random

import torch

import archc


def main() -> None:
    """Let requests arrive at random steps, and print each as it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=3, help="sequences at once")
    parser.add_argument("--requests", type=int, default=8, help="prompts in all")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = archc.load("lfm2").module(vocab=256, d=64, H=4, G=2, L=3, f=128, attention=[1])
    pool, chance = archc.serving.Pool(model, slots=given.slots, capacity=64), random.Random(0)
    waiting, steps = [f"request {at}: " for at in range(given.requests)], 0
    while waiting or pool.live:
        while waiting and pool.free and chance.random() < 0.7:
            prompt = torch.tensor(list(waiting.pop(0).encode()))
            pool.add(prompt, chance.randint(4, 12), temperature=0.7, seed=len(waiting))
        live, steps = pool.live, steps + 1
        pool.step()
        for number in {*live} - {*pool.live}:
            text = bytes(pool.remove(number).tolist()).decode(errors="replace")
            print(f"step {steps:3}  {len(pool.live)} live  {text!r}")


if __name__ == "__main__":
    main()

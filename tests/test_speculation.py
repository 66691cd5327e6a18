"""Speculative decoding: the model's own tokens, and exactly its own distribution."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor, nn

import archc

SIZES = {
    "lm": {"d": 8, "H": 2, "L": 1, "f": 8},
    "gpt": {"d": 8, "H": 2, "L": 1, "length": 12, "p": 0.1},
    "xlstm": {"d": 8, "H": 2, "L": 1, "f": 8},
}


@cache
def model(spec: str, vocab: int = 9) -> nn.Module:
    torch.manual_seed(0)
    made = archc.load(spec).module(vocab=vocab, dtype=torch.float64, **SIZES[spec])
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_(torch.randn_like(weight) * 0.7)
    return made


PROMPT = torch.tensor([[1, 0, 1]])


@pytest.mark.parametrize("ahead", [1, 3, 20])
@pytest.mark.parametrize("pair", [("lm", "xlstm"), ("xlstm", "gpt"), ("xlstm", "xlstm")])
def test_greedy_tokens_are_the_models_own(pair: tuple[str, str], ahead: int) -> None:
    main, draft = map(model, pair)
    wanted = archc.generate(main, PROMPT, 9, temperature=0)
    found = archc.speculative(main, draft, PROMPT, 9, ahead=ahead, temperature=0, chunk=2)
    assert torch.equal(found, wanted)
    eos = int(wanted[0, 6])
    ended = archc.speculative(main, draft, PROMPT, 9, ahead=ahead, temperature=0, eos=eos)
    assert torch.equal(ended, archc.generate(main, PROMPT, 9, temperature=0, eos=eos))


class Every:
    """Dice that fall in every way, one after the other: `chance` is that of how they fell."""

    def __init__(self) -> None:
        self.path: list[int] = []
        self.again()

    def again(self) -> None:
        self.place, self.chance, self.ways = 0, 1.0, list[int]()

    def choose(self, chances: list[float]) -> int:
        if self.place == len(self.path):
            self.path.append(0)
        at = self.path[self.place]
        self.place += 1
        self.ways.append(len(chances))
        self.chance *= chances[at]
        return at

    def draw(self, weights: Tensor) -> int:
        return self.choose(weights.tolist())

    def happens(self, chance: float) -> bool:
        return self.choose([chance, 1 - chance]) == 0 if chance < 1 else True

    def turn(self) -> bool:
        """The next way; False behind the last."""
        del self.path[self.place :]
        while self.path and self.path[-1] + 1 == self.ways[len(self.path) - 1]:
            self.path.pop()
        if self.path:
            self.path[-1] += 1
        return bool(self.path)


def test_every_text_is_as_likely_as_from_the_model_alone() -> None:
    """All ways that chance can go, with their probabilities, against the product of the model's own
    conditional ones: blocks of two proposals, refused and accepted, and one token behind them."""
    main, draft, count = model("lm", 2), model("xlstm", 2), 3
    dice, found = Every(), defaultdict[tuple[int, ...], float](float)
    how = {"ahead": 2, "temperature": 0.8}
    while True:
        made = archc.speculative(main, draft, PROMPT, count, dice=dice, **how)
        found[tuple(made[0, 3:].tolist())] += dice.chance
        if not dice.turn():
            break
        dice.again()
    main.eval()
    for text in product(range(2), repeat=count):
        whole = torch.cat([PROMPT, torch.tensor([text])], 1)
        likely = (main(whole)[0, 2:-1].detach() / 0.8).float().softmax(-1).double()
        wanted = torch.stack([row[token] for row, token in zip(likely, text, strict=True)]).prod()
        assert abs(found[text] - float(wanted)) < 1e-6
    assert abs(sum(found.values()) - 1) < 1e-6


def test_a_seed_gives_one_text() -> None:
    texts = [
        archc.speculative(model("lm"), model("xlstm"), PROMPT, 7, top=4,
                          generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    ]  # fmt: skip
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ahead": 0}, "`ahead` must be at least 1"),
        ({"tokens": PROMPT[:, :0]}, "T >= 1"),
        ({"tokens": PROMPT.repeat(2, 1)}, "continues one sequence, got 2"),
        ({"draft": 5}, "one vocabulary, got 9 and 5 tokens"),
        ({"count": 11}, "GPT has positions for 12 tokens, and reads 13"),
        ({"temperature": -1.0}, "temperature"),
    ],
)
def test_what_is_refused(given: dict, says: str) -> None:
    named = {"tokens": PROMPT, "count": 3, **given}
    vocab = named.pop("draft", 9)
    with pytest.raises(ValueError, match=says):
        archc.speculative(model("gpt"), model("xlstm", vocab), **named)


def test_nan_is_refused() -> None:
    torch.manual_seed(0)
    broken = archc.load("lm").module(vocab=9, dtype=torch.float64, **SIZES["lm"])
    with torch.no_grad():
        broken.E[0] = torch.nan
    with pytest.raises(ValueError, match="LM: logits are NaN"):
        archc.speculative(broken, model("xlstm"), PROMPT, 3)

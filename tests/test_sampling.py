"""Generation: the same tokens as reading everything anew at every step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import archc

SIZES = {
    "gpt": {"vocab": 17, "d": 16, "H": 2, "L": 2, "length": 8, "p": 0.1},
    "lm": {"vocab": 17, "d": 16, "H": 2, "L": 2},
}


def model(spec: str) -> nn.Module:
    torch.manual_seed(0)
    return archc.load(spec).module(dtype=torch.float64, **SIZES[spec])


def anew(layer: nn.Module, tokens: Tensor, count: int, limit: int) -> Tensor:
    """Greedy generation without any memory: the latest `limit` tokens are read at every step."""
    for _ in range(count):
        logits = layer(tokens[:, -limit:])
        tokens = torch.cat([tokens, logits[:, -1].argmax(-1, keepdim=True)], 1)
    return tokens


@pytest.mark.parametrize(("spec", "limit"), [("gpt", 8), ("lm", 100)])
def test_is_what_reading_anew_gives(spec: str, limit: int) -> None:
    """The learned table of 8 positions is outgrown on the way: only the latest tokens are read."""
    layer = model(spec).eval()
    prompt = torch.randint(0, 17, (2, 3), generator=torch.Generator().manual_seed(1))
    found = archc.generate(layer, prompt, 12, temperature=0)
    assert torch.equal(found, anew(layer, prompt, 12, limit))
    assert found.shape == (2, 15)


def test_dropout_is_off_and_the_mode_is_kept() -> None:
    layer = model("gpt").train()
    prompt = torch.zeros(1, 2, dtype=torch.int64)
    first = archc.generate(layer, prompt, 5, temperature=0)
    assert torch.equal(first, archc.generate(layer, prompt, 5, temperature=0))
    assert layer.training


def test_draws_among_the_likeliest() -> None:
    """With `top` 1 chance has no part; with more, one seed gives one text."""
    layer = model("lm")
    prompt = torch.zeros(3, 2, dtype=torch.int64)
    greedy = archc.generate(layer, prompt, 6, temperature=0)
    assert torch.equal(archc.generate(layer, prompt, 6, top=1), greedy)
    texts = [
        archc.generate(layer, prompt, 6, top=5, generator=torch.Generator().manual_seed(s))
        for s in (0, 0, 1)
    ]
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


REFUSED = [
    ({"tokens": torch.zeros(3, dtype=torch.int64)}, "must be"),
    ({"tokens": torch.zeros(1, 0, dtype=torch.int64)}, "T >= 1"),
    ({"count": -1}, "count"),
    ({"temperature": -1.0}, "temperature"),
    ({"top": 0}, "top"),
]


@pytest.mark.parametrize(("changed", "says"), REFUSED)
def test_what_cannot_be_continued(changed: dict, says: str) -> None:
    given = {"tokens": torch.zeros(1, 2, dtype=torch.int64), "count": 1, **changed}
    with pytest.raises(ValueError, match=says):
        archc.generate(model("lm"), **given)

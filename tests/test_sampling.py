"""Generation: the same tokens as reading everything anew at every step, each sequence alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import archc
from archc.sampling import Choice

SIZES = {
    "gpt": {"vocab": 17, "d": 16, "H": 2, "L": 2, "length": 8, "p": 0.1},
    "lm": {"vocab": 17, "d": 16, "H": 2, "L": 2, "f": 24},
    "lfm2": {"vocab": 17, "d": 16, "H": 2, "G": 1, "L": 2, "f": 24, "attention": [1]},
    "xlstm": {"vocab": 17, "d": 16, "H": 2, "L": 1, "f": 24},
}
WINDOWED = {
    "gemma3": {
        "vocab": 17, "d": 16, "H": 2, "G": 1, "K": 8, "L": 3, "f": 24, "full": [2], "window": 3,
    },
}  # fmt: skip


def model(spec: str) -> nn.Module:
    torch.manual_seed(0)
    return archc.load(spec).module(dtype=torch.float64, **{**SIZES, **WINDOWED}[spec])


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


def test_the_mode_of_each_module_is_kept() -> None:
    """A part that is frozen in a model that learns stays so."""
    layer = archc.load("gpt").module(vocab=11, d=8, H=2, L=2, length=16).train()
    layer.layers[0].eval()
    modes = [each.training for each in layer.modules()]
    archc.generate(layer, torch.tensor([[1, 2]]), 2)
    assert [each.training for each in layer.modules()] == modes


def test_draws_as_torch_does() -> None:
    weights = torch.randn(4, 9).softmax(-1)
    for seed in range(20):
        one, other = (torch.Generator().manual_seed(seed) for _ in range(2))
        wanted = torch.multinomial(weights, 1, generator=one)
        assert torch.equal(Choice(generator=other).draw(weights.log()), wanted)


def test_a_seed_draws_each_token_as_often_as_it_is_likely() -> None:
    """And never one that has no weight. 4,000 rows: 4 standard deviations, or 0.03."""
    weights = torch.tensor([0.5, 0.0, 0.2, 0.3, 0.0])
    logits = weights.log().expand(4000, 5)
    for step in range(2):
        found = Choice(seed=7).draw(logits, step)[:, 0]
        share = torch.bincount(found, minlength=5) / 4000
        assert (share - weights).abs().max() < 0.032 and not share[[1, 4]].any()
    assert torch.equal(Choice(seed=7).draw(logits, 1)[:, 0], found)
    other = Choice(seed=8).draw(logits, 1)[:, 0]
    assert 0.33 < float((other == found).double().mean()) < 0.43  # by chance: 0.38


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
    seeded = [archc.generate(layer, prompt, 6, top=5, seed=s) for s in (0, 0, 1)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])
    assert not torch.equal(seeded[0][0], seeded[0][1])  # rows draw apart
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


def drawn(size: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randint(0, 17, size, generator=torch.Generator().manual_seed(seed))


LENGTHS = [5, 2, 7]


def alone(layer: nn.Module, prompts: Tensor, count: int) -> list[Tensor]:
    """What greedy generation adds to each prompt by itself."""
    rows = [row[:n][None] for row, n in zip(prompts, LENGTHS, strict=True)]
    return [archc.generate(layer, row, count, temperature=0)[0, row.shape[1] :] for row in rows]


@pytest.mark.default("None-left", "3-right-lm")
@pytest.mark.parametrize("spec", SIZES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("chunk", [None, 3])
def test_padded_prompts_are_continued_as_if_alone(spec: str, side: str, chunk: int | None) -> None:
    """Padding may fill a whole chunk of a prompt; a table of 8 positions is outgrown on the way."""
    layer, prompts = model(spec), drawn((3, 7))
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    tokens = torch.where(mask, prompts, 3)
    if side == "left":
        moved = [row.roll(7 - n) for row, n in zip(tokens, LENGTHS, strict=True)]
        tokens, mask = torch.stack(moved), mask.flip(1)
    found = archc.generate(layer, tokens, 4, attention_mask=mask, temperature=0, chunk=chunk)
    assert torch.equal(found[:, :7], tokens)
    assert torch.equal(found[:, 7:], torch.stack(alone(layer, prompts, 4)))


@pytest.mark.parametrize("spec", ["lm", "lfm2", "xlstm"])
def test_goes_on_from_a_state(spec: str) -> None:
    layer, prompt = model(spec), drawn((2, 6))
    whole = archc.generate(layer, prompt, 7, temperature=0)
    some, state = archc.generate(layer, prompt, 3, temperature=0, return_state=True)
    rest = archc.generate(layer, some[:, -1:], 4, temperature=0, state=state)
    assert torch.equal(torch.cat([some[:, :-1], rest], 1), whole)


@pytest.mark.default("lfm2")
@pytest.mark.parametrize("spec", ["lfm2", "gemma3"])
def test_goes_on_from_a_state_of_each(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of three lengths, whose states come back, and are gone on from; there is more room
    on the way."""
    monkeypatch.setattr("archc.sampling.MORE_ROOM", -9)
    layer, prompts = model(spec), drawn((3, 7))
    mask = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    some, state = archc.generate(
        layer, prompts, 4, attention_mask=mask, temperature=0, return_state=True
    )
    rest = archc.generate(layer, some[:, -1:], 5, temperature=0, state=state)
    found = torch.cat([some[:, 7:-1], rest], 1)
    assert torch.equal(found, torch.stack(alone(layer, prompts, 9)))
    _, whole = layer(torch.cat([prompts[1:2, :2], some[1:2, 7:-1]], 1), return_state=True)
    own = state.rows[1].layers[1]
    assert [x.shape for x in tree_leaves(own) if isinstance(x, Tensor)] == [
        x.shape for x in tree_leaves(whole.layers[1]) if isinstance(x, Tensor)
    ]


def test_ends_behind_the_last_sequence_that_ends() -> None:
    layer, prompt = model("lm"), drawn((2, 5))
    free = archc.generate(layer, prompt, 9, temperature=0)[:, 5:]
    eos = int(free[0, 2])
    found = archc.generate(layer, prompt, 9, temperature=0, eos=eos)[:, 5:]
    for row, wanted in zip(found.tolist(), free.tolist(), strict=True):
        end = wanted.index(eos) + 1 if eos in wanted else 9
        assert row == (wanted[:end] + [eos] * 9)[: len(row)]
    first = archc.generate(layer, prompt[:1], 9, temperature=0, eos=eos)
    assert first.shape[1] == 5 + free[0].tolist().index(eos) + 1


def test_streams_what_it_generates_and_refuses_at_once() -> None:
    layer, prompt = model("lm").train(), drawn((2, 5))
    wanted = archc.generate(layer, prompt, 4, generator=torch.Generator().manual_seed(3))
    steps = archc.stream(layer, prompt, 4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(next(steps), wanted[:, 5])
    assert layer.training
    assert torch.equal(torch.stack([*steps], 1), wanted[:, 6:])
    with pytest.raises(ValueError, match="T >= 1"):
        archc.stream(layer, prompt[:, :0], 4)


def test_top_p_is_the_fewest_that_are_so_likely() -> None:
    """Against the definition, token by token."""
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(2))
    for share in (0.3, 0.8, 1.0):
        found = Choice(temperature=0.7, top_p=share).weights(logits)
        for row, chances in zip(found, (logits / 0.7).softmax(-1), strict=True):
            order, total, kept = chances.argsort(descending=True), 0.0, set()
            for at in order.tolist():
                if total < share:
                    kept.add(at)
                total += float(chances[at])
            assert set(row.nonzero()[:, 0].tolist()) == kept


def test_logits_that_are_no_numbers() -> None:
    layer = model("lm")
    with torch.no_grad():
        layer.E[5, 0] = torch.nan
    prompt = torch.tensor([[1, 2, 3], [1, 5, 3]])
    with pytest.raises(ValueError, match="logits are NaN at token 2 of row 1"):
        archc.generate(layer, prompt, 3)


def test_states_of_others_are_refused() -> None:
    layer, prompt = model("lm"), drawn((2, 4))
    _, state = layer(prompt, return_state=True)
    with pytest.raises(ValueError, match="is of a batch of 2, the input of 3"):
        archc.generate(layer, drawn((3, 1)), 2, state=state)
    with pytest.raises(TypeError, match="float64"):
        archc.generate(layer, drawn((2, 1)), 2, state=state.to(torch.float32))
    _, other = model("gpt")(prompt, return_state=True)
    with pytest.raises(TypeError, match="must be an instance of LMState, got GPTState"):
        archc.generate(layer, drawn((2, 1)), 2, state=other)


def test_a_layer_that_reads_no_tokens() -> None:
    layer = archc.load("swiglu").module(d=4, f=4)
    with pytest.raises(ValueError, match="a model of text takes tokens"):
        archc.generate(layer, drawn((1, 2)), 1)


LONG = torch.zeros(1, 9, dtype=torch.int64)
REFUSED = [
    ({"tokens": torch.zeros(3, dtype=torch.int64)}, "must be"),
    ({"tokens": torch.zeros(1, 0, dtype=torch.int64)}, "T >= 1"),
    ({"tokens": torch.zeros(0, 2, dtype=torch.int64)}, "B >= 1"),
    ({"tokens": torch.tensor([[0, 99]])}, "GPT has [0-9]+ tokens, from 0 on, and is given 99"),
    ({"tokens": torch.tensor([[0, -1]])}, "and is given -1"),
    ({"count": -1}, "count"),
    ({"count": 1.5}, "`count` must be a whole number, not negative, got 1.5"),
    ({"eos": 17}, "`eos` = 17 is no token of GPT, which has 17"),
    ({"eos": [1, 2]}, r"`eos` = \[1, 2\] is no token"),
    ({"temperature": -1.0}, "temperature"),
    ({"top": 0}, "top"),
    ({"top_p": 0.0}, "top_p"),
    ({"seed": 1.5}, "`seed` must be a whole number"),
    ({"seed": 1, "generator": torch.Generator()}, "`seed` or `generator`"),
    ({"chunk": 0}, "chunk"),
    ({"attention_mask": torch.ones(1, 3)}, "attention_mask"),
    ({"attention_mask": torch.tensor([[1, 2]])}, "must be 0 where a token is padding and 1 else"),
    ({"attention_mask": torch.tensor([[0.0, -1e9]])}, "must be 0 where a token is padding and 1"),
    ({"attention_mask": torch.zeros(1, 2)}, "row 0 of `tokens` is padding alone"),
    ({"tokens": LONG}, "GPT has positions for 8 tokens, and a prompt has 9"),
]


@pytest.mark.parametrize(("changed", "says"), REFUSED)
def test_what_cannot_be_continued(changed: dict, says: str) -> None:
    given = {"tokens": torch.zeros(1, 2, dtype=torch.int64), "count": 1, **changed}
    with pytest.raises(ValueError, match=says):
        archc.generate(model("gpt"), **given)


def test_lists_are_no_prompts() -> None:
    with pytest.raises(TypeError, match=r"`tokens` must be a tensor \[B, T\], got list"):
        archc.generate(model("gpt"), [[0, 1]], 1)  # type: ignore[arg-type]

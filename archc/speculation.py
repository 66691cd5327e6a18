"""Speculative decoding: a small model proposes tokens, a large one reads several at once.

Proposals d_1 ... d_n are drawn from the draft's distributions q_i; the model reads them in one call
and says p_i. d_i is accepted with probability min(1, p_i(d_i) / q_i(d_i)); the first that is not is
drawn anew from what p_i has more than q_i, and where all are accepted, one more from p_{n+1}. What
comes out is distributed as the model's own tokens are (Leviathan et al., arXiv 2211.17192,
theorem 1); with temperature 0 it is its own tokens.

States are values: that of the draft is kept after every proposal, so that going back costs
nothing; that of the model from before the block, from which the accepted tokens are read
again, in one call, where a proposal was refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from archc.sampling import Choice, TextModel, reading, to_continue


class Dice(Protocol):
    """The decisions of chance."""

    def draw(self, weights: Tensor) -> int:
        """A token, by weights [vocab]."""
        ...

    def happens(self, chance: float) -> bool:
        """Whether something so likely happens."""
        ...


@dataclass
class Chance:
    """The dice of a generator."""

    generator: torch.Generator | None

    def draw(self, weights: Tensor) -> int:
        return int(torch.multinomial(weights, 1, generator=self.generator))

    def happens(self, chance: float) -> bool:
        place = None if self.generator is None else self.generator.device
        return bool(torch.rand((), generator=self.generator, device=place) < chance)


@dataclass
class Reader:
    """A model with what it has read: its state, and the tokens behind it that are not read yet."""

    model: nn.Module
    kind: TextModel
    choice: Choice
    state: Any
    unread: list[int]

    def read(self, tokens: list[int], state: Any) -> tuple[Tensor, Any]:
        """How likely each token is behind each of some tokens, [T, vocab], and the state then."""
        given = torch.tensor([tokens], device=next(self.model.parameters()).device)
        made, state = self.model(given, state=state, return_state=True)
        logits = self.kind.logits(made)[0]
        if bool(logits.isnan().any()):
            look = "archc.first_nan(model, tokens) says where it comes from"
            raise ValueError(f"{self.kind.name}: logits are NaN: {look}")
        return weights(self.choice, logits), state


def weights(choice: Choice, logits: Tensor) -> Tensor:
    """How likely each token is, in float64; at temperature 0 the likeliest is certain."""
    if choice.temperature == 0:
        best = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter(-1, best, 1.0)
    made = choice.weights(logits.double())
    return made.double() / made.double().sum(-1, keepdim=True)


def speculative(
    model: nn.Module,
    draft: nn.Module,
    tokens: Tensor,
    count: int,
    *,
    ahead: int = 4,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    chunk: int | None = None,
    generator: torch.Generator | None = None,
    dice: Dice | None = None,
) -> Tensor:
    """The tokens [1, T] and `count` more (fewer where `eos` ends them), distributed as those of
    `archc.generate(model, ...)`: `draft`, a model of the same vocabulary, proposes `ahead` tokens
    at a time, and `model` reads them in one call.

    A block costs `ahead` calls of the draft and one of the model, two where a proposal is refused.
    `dice` decides in place of the generator. Raises ValueError as `archc.generate` does, and for
    several sequences, other vocabularies, and more tokens than a table of positions has.
    """
    if ahead < 1:
        raise ValueError(f"`ahead` must be at least 1, got {ahead}")
    choice = Choice(temperature, top, top_p, generator)
    main, small = (_reader(each, tokens, count, choice, chunk, eos) for each in (model, draft))
    if main.kind.vocab != small.kind.vocab:
        have = f"got {main.kind.vocab} and {small.kind.vocab} tokens"
        raise ValueError(f"model and draft must have one vocabulary, {have}")
    new: list[int] = []
    with reading(model), reading(draft):
        _prefill(main, chunk)
        _prefill(small, chunk)
        while len(new) < count:
            new += _block(main, small, min(ahead, count - len(new) - 1), dice or Chance(generator))
            if eos in new:
                new = new[: new.index(eos) + 1]
                break
    return torch.cat([tokens, tokens.new_tensor([new])], 1)


def _reader(
    model: nn.Module, tokens: Tensor, count: int, choice: Choice, chunk: int | None,
    eos: int | None,
) -> Reader:  # fmt: skip
    """A model that has read nothing of a prompt yet; ValueError for what it cannot continue."""
    kind = to_continue(model, tokens, count, chunk=chunk, eos=eos).kind
    if len(tokens) != 1:
        raise ValueError(f"speculative decoding continues one sequence, got {len(tokens)}")
    read = tokens.shape[1] + count - 1
    if kind.limit is not None and read > kind.limit:
        raise ValueError(f"{kind.name} has positions for {kind.limit} tokens, and reads {read}")
    return Reader(model, kind, choice, None, tokens[0].tolist())


def _prefill(reader: Reader, chunk: int | None) -> None:
    """Read all but the last token of the prompt, `chunk` at a time."""
    rest, reader.unread = reader.unread[:-1], reader.unread[-1:]
    step = chunk or max(1, len(rest))
    for low in range(0, len(rest), step):
        _, reader.state = reader.read(rest[low : low + step], reader.state)


def _block(main: Reader, small: Reader, ahead: int, dice: Dice) -> list[int]:
    """The tokens of one block: those accepted of `ahead` proposals, and one more."""
    proposed, likely, states = _proposals(small, ahead, dice)
    last = main.unread
    p, after = main.read(last + proposed, main.state)
    p = p[len(last) - 1 :]
    for place, token in enumerate(proposed):
        q = likely[place]
        if dice.happens(min(1.0, float(p[place, token]) / float(q[token]))):
            continue
        accepted = proposed[:place]
        more = (p[place] - q).clamp(min=0)
        more = more if float(more.sum()) > 0 else p[place]  # they differ by rounding alone
        new = dice.draw(more / more.sum())
        _, main.state = main.read(last + accepted, main.state)
        main.unread, small.unread, small.state = [new], [new], states[place]
        return [*accepted, new]
    new = dice.draw(p[-1])
    main.state, main.unread = after, [new]
    small.unread = [*(proposed[-1:] if proposed else small.unread), new]
    small.state = states[-1] if states else small.state
    return [*proposed, new]


def _proposals(small: Reader, ahead: int, dice: Dice) -> tuple[list[int], list[Tensor], list[Any]]:
    """Tokens drawn from the draft, how likely each token was there, and the draft's state before
    it read each of them."""
    proposed, likely, states = list[int](), list[Tensor](), list[Any]()
    unread, state = small.unread, small.state
    for _ in range(ahead):
        q, state = small.read(unread, state)
        likely.append(q[-1])
        states.append(state)
        proposed.append(dice.draw(q[-1]))
        unread = proposed[-1:]
    return proposed, likely, states

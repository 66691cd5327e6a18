"""Text from a model: token after token, with what it remembers of the tokens before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from archc.attention.reach import counted, most_tokens
from archc.backends.writer import identifier
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.losses import outputs_of_call
from archc.ir.sizes import Number, callee_sizes, evaluate
from archc.origin import Origin, origin_of
from archc.runtime.kept_states import RaggedState, joined_states
from archc.side_by_side import SideBySide
from archc.slots import Slots, alone, taken, tokens_seen


@dataclass(frozen=True)
class TextModel:
    """A model that reads tokens: which of its outputs are the logits, of how many tokens; and how
    many tokens its shortest table of positions has room for. `beside`: the other sequences that it
    reads, with the number of words that each is of, if it is known; `needed`: those of them that
    cannot be left out. `tokens` is what a call names the tokens by."""

    name: str
    tokens: str
    place: int
    vocab: int
    limit: int | None
    beside: Mapping[str, int | None] = field(default_factory=dict)
    needed: tuple[str, ...] = ()

    def logits(self, outputs: Any) -> Tensor:
        """Logits [B, T, vocab] among the outputs of a call."""
        return outputs[self.place] if isinstance(outputs, tuple) else outputs

    def call(
        self,
        model: nn.Module,
        tokens: Tensor,
        state: Any,
        beside: Mapping[str, Tensor],
        **more: Any,
    ) -> Any:
        """Outputs of the model and its state after some tokens [B, T]. Other sequences that are not
        given are those of the state."""
        if not self.beside:
            return model(tokens, state=state, return_state=True, **more)
        given = {self.tokens: tokens, **dict.fromkeys(self.beside), **beside}
        return model(**given, state=state, return_state=True, **more)


def text_model(module: nn.Module, beside: bool = False) -> TextModel:
    """The inputs and outputs of a module; ValueError if it makes no logits from tokens alone, or
    from tokens and other sequences where these may stand `beside` them."""
    origin = origin_of(module)
    graph, name = origin.layer.graph, origin.layer.name
    others = [(id, op) for id, op in origin.layer.inputs if _beside(op.type)]
    needed = [op for _, op in origin.layer.inputs if not op.optional]
    own = [op for op in needed if not (beside and _beside(op.type))]
    kinds = [[axis.kind for axis in op.type.axes] for op in own]
    if kinds != [["batch", "stream"]] or _beside(own[0].type) or own[0].type.dtype != "int":
        have = ", ".join(f"`{op.name}`" for op in needed) or "nothing"
        raise ValueError(f"{name} takes {have}: a model of text takes tokens, `input tokens in N`")
    names = outputs_of_call(graph) or [*graph.outputs]
    place = names.index("logits") if "logits" in names else 0
    made = graph[graph.outputs[names[place]]].type
    if made.dtype != "real" or [axis.kind for axis in made.axes][:-1] != ["batch", "stream"]:
        raise ValueError(f"{name} gives `{names[place]}`, which are no logits of each token")
    vocab = int(evaluate(made.axes[-1].size, origin.sizes))
    limit = min(positions(origin.layer, origin.sizes), default=None)
    words = {identifier(op.name): _words(origin, node) for node, op in others} if beside else {}
    given = tuple(identifier(op.name) for _, op in others if beside and not op.optional)
    return TextModel(name, identifier(own[0].name), place, vocab, limit, words, given)


def _beside(given: Type) -> bool:
    """Whether an input is another sequence than the own tokens."""
    return any(axis.kind == "stream" and axis != TIME for axis in given.axes)


def _words(origin: Origin, id: int) -> int | None:
    """How many words the tokens of another sequence are of, where a table is read at them."""
    graph = origin.layer.graph
    tables = [
        graph[node.operands[0]].type.axis(node.op.axis)
        for node in graph
        if isinstance(node.op, ir.Gather) and node.operands[1:] == (id,)
    ]
    return min((int(evaluate(axis.size, origin.sizes)) for axis in tables), default=None)


@dataclass(frozen=True)
class Choice:
    """How a token is drawn from logits: see `generate`."""

    temperature: float = 1.0
    top: int | None = None
    top_p: float | None = None
    generator: torch.Generator | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ValueError(f"`temperature` must not be negative, got {self.temperature}")
        if self.top is not None and self.top < 1:
            raise ValueError(f"`top` must be at least 1, got {self.top}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and self.generator is not None:
            raise ValueError("give `seed` or `generator`, not both")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int | None):
            raise ValueError(f"`seed` must be a whole number, got {self.seed!r}")

    def draw(self, logits: Tensor, step: int = 0) -> Tensor:
        """One token for each row of logits [B, vocab], [B, 1]: the `step`-th that is drawn."""
        if self.temperature == 0:
            return logits.argmax(-1, keepdim=True)
        weights = self.weights(logits)
        if self.seed is not None:
            return at_shares(weights, [share(self.seed, row, step) for row in range(len(logits))])
        return first(weights, torch.empty_like(weights).exponential_(generator=self.generator))

    def weights(self, logits: Tensor) -> Tensor:
        """How likely each token is, [B, vocab]: those that are not among the chosen have 0."""
        if self.top is not None:
            least = logits.topk(min(self.top, logits.shape[-1]), -1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        weights = (logits.float() / self.temperature).softmax(-1)
        if self.top_p is None:
            return weights
        ordered, at = weights.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered  # a token stays if those before it are not enough
        return torch.zeros_like(weights).scatter(-1, at, ordered.where(before < self.top_p, 0))


def first(weights: Tensor, waits: Tensor) -> Tensor:
    """The token of each row that comes first, [B, 1], where each waits for its share of `waits`,
    which are exponential: it is token i with a probability as its weight. That is how
    `torch.multinomial` draws."""
    return (weights / waits).argmax(-1, keepdim=True)


def share(seed: int, row: int, step: int) -> float:
    """A number from 0 to below 1, as if drawn: the same for a seed, a row of its batch and a step,
    whatever else is drawn."""
    digest = hashlib.blake2b(f"{seed} {row} {step}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 12) / 2**52


def at_shares(weights: Tensor, shares: Sequence[float]) -> Tensor:
    """The token of each row [B, 1] with which the sum of weights [B, vocab] passes its share."""
    sums = weights.double().cumsum(-1)
    passed = torch.tensor(shares, dtype=sums.dtype).to(sums.device)[:, None] * sums[:, -1:]
    return torch.searchsorted(sums, passed, right=True)


MORE_ROOM = 64
"""Tokens that there is room for at first, beside twice as many as a sequence has."""


@dataclass
class Text:
    """Sequences as they grow: the tokens so far [B, T] and which of them are no padding, the state
    that the model is in, and what it has not read yet. `rest`: the tokens that a state which was
    given has read are not known; `beside`: other sequences, by name, which are read once."""

    model: nn.Module
    kind: TextModel
    tokens: Tensor
    kept: Tensor
    state: Any = None
    chunk: int | None = None
    rest: bool = False
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    begun: bool = field(init=False, default=False)
    unread: int = field(init=False)
    slots: Slots | None = field(init=False, default=None)
    copies: SideBySide = field(init=False)

    def __post_init__(self) -> None:
        self.unread, self.copies = self.tokens.shape[1], SideBySide(self.model)

    def last_state(self) -> Any:
        """The state after all tokens that were read, as the model has it."""
        if self.slots is None:
            return self.state
        model, kept, rows = self.slots.model, self.slots.state, self.state.rows
        return joined_states([taken(model, kept, slot, row) for slot, row in enumerate(rows)])

    def next_logits(self) -> Tensor:
        """Logits [B, vocab] behind the last token of each sequence, all of them read."""
        self._within_limit()
        if self.unread == 1 and (self.slots is not None or self._goes_together()):
            return self._next_of_each()
        start, end = self.tokens.shape[1] - self.unread, self.tokens.shape[1]
        step, found = self.chunk or self.unread, None
        for low in range(start, end, step):
            tokens, kept = self.tokens[:, low : low + step], self.kept[:, low : low + step]
            whole = bool(kept.all())
            others = {} if self.begun else self.beside
            mask = None if whole else kept
            given = (self.model, tokens, self.state, others)
            made, self.state = self.kind.call(*given, attention_mask=mask)
            self.begun = True
            logits = self.kind.logits(made)
            last = logits[:, -1] if whole else _last(logits, kept)
            seen = kept.any(1, keepdim=True)
            found = last if found is None else torch.where(seen, last, found)
        self.unread = 0
        assert found is not None
        return found

    def _goes_together(self) -> bool:
        """Put sequences of different lengths into slots, if they can be read together there."""
        if not isinstance(self.state, RaggedState) or alone(self.model) is not None:
            return False
        rows = self.state.rows
        self.slots = Slots(self.model, len(rows), 2 * max(map(tokens_seen, rows)) + MORE_ROOM)
        for slot, row in enumerate(rows):
            self.slots.put(slot, row)
        self.copies.follow(self.slots.model)
        return True

    def _next_of_each(self) -> Tensor:
        """Logits [B, vocab] behind one token more of each sequence, in its slot."""
        slots, self.unread = self.slots, 0
        assert slots is not None
        slots.lengths = [length + 1 for length in slots.lengths]
        slots.make_room()
        live = torch.ones(slots.count, dtype=torch.bool, device=self.tokens.device)
        return self.kind.logits(slots.run(self.tokens[:, -1:], live))[:, -1]

    def add(self, tokens: Tensor) -> None:
        """One more token of each sequence, [B, 1]."""
        self.tokens = torch.cat([self.tokens, tokens], 1)
        self.kept = torch.cat([self.kept, torch.ones_like(tokens, dtype=torch.bool)], 1)
        self.unread += 1

    def _within_limit(self) -> None:
        """Begin anew with the latest tokens that fit, where a table of positions is used up."""
        limit = self.kind.limit
        if limit is None or int(self.kept.sum(1).max()) <= limit:
            return
        if self.rest:
            raise ValueError(
                f"{self.kind.name} has positions for {limit} tokens, which are used up"
            )
        later = self.kept.flip(1).cumsum(1).flip(1)  # from each token to the last
        self.state, self.slots, self.begun = None, None, False
        self.kept = self.kept & (later <= limit)
        first = int(self.kept.any(0).int().argmax())
        self.unread = self.tokens.shape[1] - first


def _last(logits: Tensor, kept: Tensor) -> Tensor:
    """Logits [B, vocab] of the last token that is no padding, of any that has one."""
    at = kept.shape[1] - 1 - kept.flip(1).int().argmax(1)
    return logits[torch.arange(len(at), device=at.device), at]


def generate(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    *,
    beside: Mapping[str, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    state: Any = None,
    chunk: int | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
    return_state: bool = False,
) -> Any:
    """The tokens [B, T] and `count` more, each drawn from the model's logits for the one before.

    temperature 0 takes the likeliest token; `top` draws among so many of the likeliest, `top_p`
    among the fewest that are so likely together. With a `seed` each row's tokens depend on it, the
    row and how many were drawn, and on nothing else that is random. Prompts of different lengths
    are padded, left or right, and `attention_mask` is 0 there; each is continued as if it were
    alone, behind column T. Behind a token `eos` a sequence has `eos` alone, and generation ends
    with the last sequence.

    `beside` has other sequences that a model reads, by name, [B, M] and so on: an encoder's source.
    The model keeps what it remembers from step to step; `state` is where it goes on from: one of
    its own, which has read everything before `tokens`, and all `beside` them. With `return_state`
    the state after all but the last of the tokens comes with them. Prompts are read `chunk` tokens
    at a time, or at once. A model with a table of positions is given the latest tokens that fit
    once it is used up: positions then shift, so all of them are read anew. Dropout is off, and the
    mode is what it was afterwards. Raises ValueError for an empty prompt, one longer than a table,
    another shape, logits that are NaN, and options out of range.
    """
    choice = Choice(temperature, top, top_p, generator, seed)
    text = to_continue(model, tokens, count, attention_mask, state, chunk, eos, beside or {})
    for _ in _steps(text, count, choice, eos):
        pass
    return (text.tokens, text.last_state()) if return_state else text.tokens


def stream(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    *,
    beside: Mapping[str, Tensor] | None = None,
    attention_mask: Tensor | None = None,
    temperature: float = 1.0,
    top: int | None = None,
    top_p: float | None = None,
    eos: int | None = None,
    state: Any = None,
    chunk: int | None = None,
    generator: torch.Generator | None = None,
    seed: int | None = None,
) -> Iterator[Tensor]:
    """The tokens that `generate` would add, as each is drawn: a tensor [B] at a time. What is wrong
    with the arguments is told at once."""
    choice = Choice(temperature, top, top_p, generator, seed)
    text = to_continue(model, tokens, count, attention_mask, state, chunk, eos, beside or {})
    return _steps(text, count, choice, eos)


@contextmanager
def reading(model: nn.Module) -> Iterator[None]:
    """A model that only reads: dropout is off, and nothing is kept for gradients; afterwards the
    mode of each of its modules is what it was."""
    learning = [each for each in model.modules() if each.training]
    for each in learning:
        each.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for each in learning:
            each.training = True


@torch.no_grad()
def _steps(text: Text, count: int, choice: Choice, eos: int | None) -> Iterator[Tensor]:
    """The loop of `generate`: each step's tokens, [B]."""
    ended = torch.zeros(len(text.tokens), 1, dtype=torch.bool, device=text.tokens.device)
    for step in range(count):
        with reading(text.model), text.copies.used():
            logits = text.next_logits()
        refuse_nan(text.kind, logits, text.tokens)
        new = choice.draw(logits, step)
        if eos is not None:
            new = new.masked_fill(ended, eos)
            ended = ended | (new == eos)
        text.add(new)
        yield new[:, 0]
        if eos is not None and bool(ended.all()):
            return


def refuse_nan(kind: TextModel, logits: Tensor, tokens: Tensor) -> None:
    """Refuse NaN logits [B, vocab] behind tokens [B, T]: of any of them none is the likeliest."""
    wrong = logits.isnan().any(1)
    if wrong.any():
        row, at = int(wrong.nonzero()[0]), tokens.shape[1] - 1
        look = "archc.first_nan(model, tokens) says where it comes from"
        raise ValueError(f"{kind.name}: logits are NaN at token {at} of row {row}: {look}")


def positions(layer: ir.Layer, sizes: Mapping[str, Number]) -> Iterator[int]:
    """How many tokens each table of positions has room for, in a layer and those it calls."""
    for node in layer.graph:
        if isinstance(node.op, ir.Gather):
            table, at = (layer.graph[operand] for operand in node.operands)
            if isinstance(table.op, ir.Param) and at.op == ir.Position(TIME):
                yield int(evaluate(table.type.axis(node.op.axis).size, sizes))
    for _, reach in counted(layer.graph):
        yield most_tokens(reach, sizes)
    for _, call in layer.calls:
        yield from positions(call.callee, callee_sizes(call, sizes))


def to_continue(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    mask: Tensor | None = None,
    state: Any = None,
    chunk: int | None = None,
    eos: int | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> Text:
    """The sequences to continue, and the memory of them; ValueError if arguments are wrong.
    `beside` has other sequences by name; None: there may be none."""
    kind = text_model(model, beside is not None)
    if not isinstance(tokens, Tensor):
        raise TypeError(f"`tokens` must be a tensor [B, T], got {type(tokens).__name__}")
    if tokens.dim() != 2 or 0 in tokens.shape:
        raise ValueError(f"`tokens` must be [B, T] with B >= 1, T >= 1, got {list(tokens.shape)}")
    if not is_whole(count) or count < 0:
        raise ValueError(f"`count` must be a whole number, not negative, got {count!r}")
    check_end(kind, eos)
    if chunk is not None and chunk < 1:
        raise ValueError(f"`chunk` must be at least 1, got {chunk}")
    kept = torch.ones_like(tokens, dtype=torch.bool) if mask is None else zero_or_one(mask)
    if kept.shape != tokens.shape:
        wanted, got = list(tokens.shape), list(kept.shape)
        raise ValueError(f"`attention_mask` must be {wanted}, as the tokens are, got {got}")
    lengths = kept.sum(1)
    if bool((lengths == 0).any()):
        row = int((lengths == 0).int().argmax())
        raise ValueError(f"row {row} of `tokens` is padding alone: there is nothing to continue")
    longest = int(lengths.max())
    if kind.limit is not None and longest > kind.limit:
        has = f"{kind.name} has positions for {kind.limit} tokens"
        raise ValueError(
            f"{has}, and a prompt has {longest}: give its latest `tokens[:, -{kind.limit}:]`"
        )
    check_vocabulary(kind, tokens.masked_fill(~kept, 0))
    others = _checked(kind, beside or {}, len(tokens), state)
    return Text(model, kind, tokens, kept, state, chunk, state is not None, others)


def _checked(
    kind: TextModel, beside: Mapping[str, Any], rows: int, state: Any
) -> dict[str, Tensor]:
    """The other sequences of so many rows; ValueError where they are not those of the model, or
    lacking, and a state has not read them."""
    for name, given in beside.items():
        if name not in kind.beside:
            have = ", ".join(f"`{each}`" for each in kind.beside) or "none"
            raise ValueError(f"{kind.name} reads no sequence `{name}` beside tokens: it has {have}")
        if not isinstance(given, Tensor):
            raise TypeError(f"`{name}` must be a tensor, got {type(given).__name__}")
        if given.shape[:1] != (rows,):
            raise ValueError(
                f"`{name}` must have {rows} rows, as `tokens`, got {list(given.shape)}"
            )
        words = kind.beside[name]
        if words is not None and not given.is_floating_point():
            check_words(f"`{name}` of {kind.name}", words, given)
    missing = [f"`{name}`" for name in kind.needed if name not in beside]
    if missing and _lacks(state):
        raise ValueError(f"{kind.name} reads {', '.join(missing)} too: beside={{name: tensor}}")
    return dict(beside)


def _lacks(state: Any) -> bool:
    """Whether a state has nothing yet of another sequence."""
    return state is None or (isinstance(state, tuple) and any(map(_lacks, state)))


def is_whole(number: Any) -> bool:
    """Whether something is a whole number."""
    return isinstance(number, int) and not isinstance(number, bool)


def check_end(kind: TextModel, eos: Any) -> None:
    """Refuse an end that no sequence would come to: one that is no token of the model."""
    if eos is not None and not (is_whole(eos) and 0 <= eos < kind.vocab):
        raise ValueError(f"`eos` = {eos!r} is no token of {kind.name}, which has {kind.vocab}")


def zero_or_one(mask: Tensor) -> Tensor:
    """A mask as bools. Raises ValueError for numbers that mean something else: what is added to
    scores, or the numbers of sequences."""
    if bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError("`attention_mask` must be 0 where a token is padding and 1 elsewhere")
    return mask != 0


def check_vocabulary(kind: TextModel, tokens: Tensor) -> None:
    """Refuse tokens that the model does not know: on a GPU a look at the embedding of one would
    end the process. Raises ValueError, and TypeError for what are no whole numbers."""
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(f"tokens must be whole numbers (torch.int64), got {tokens.dtype}")
    check_words(kind.name, kind.vocab, tokens)


def check_words(name: str, count: int, tokens: Tensor) -> None:
    """Refuse numbers that are none of so many words."""
    unknown = tokens[(tokens < 0) | (tokens >= count)]
    if len(unknown):
        raise ValueError(f"{name} has {count} tokens, from 0 on, and is given {int(unknown[0])}")

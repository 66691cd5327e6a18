"""Text from a model: token after token, with what it remembers of the tokens before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.sizes import Number, callee_sizes, evaluate
from archc.origin import origin_of


@torch.no_grad()
def generate(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    *,
    temperature: float = 1.0,
    top: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The tokens [B, T] and `count` more, each drawn from the model's logits for the one before.

    temperature 0 takes the likeliest token; `top` draws among so many of the likeliest. The model
    keeps what it remembers from step to step. One with a table of positions is given the latest
    tokens that fit once the table is used up: positions then shift, so all of them are read anew.
    Dropout is off, and the model's mode is what it was afterwards. Raises ValueError for tokens of
    another shape, an empty prompt, or a count, temperature or `top` out of range.
    """
    _check(tokens, count, temperature, top)
    origin = origin_of(model)
    limit = min(positions(origin.layer, origin.sizes), default=None)
    training = model.training
    model.eval()
    try:
        return _extended(model, tokens, count, limit, temperature, top, generator)
    finally:
        model.train(training)


def _extended(
    model: nn.Module,
    tokens: Tensor,
    count: int,
    limit: int | None,
    temperature: float,
    top: int | None,
    generator: torch.Generator | None,
) -> Tensor:
    """The loop of `generate`."""
    state, new = None, tokens
    for _ in range(count):
        if limit is not None and tokens.shape[1] > limit:
            state, new = None, tokens[:, -limit:]
        outputs, state = model(new, state=state, return_state=True)
        logits = outputs[0] if isinstance(outputs, tuple) else outputs
        new = draw(logits[:, -1], temperature, top, generator)
        tokens = torch.cat([tokens, new], 1)
    return tokens


def draw(
    logits: Tensor, temperature: float, top: int | None, generator: torch.Generator | None
) -> Tensor:
    """One token for each row of logits [B, vocab]: [B, 1]."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top is not None:
        least = logits.topk(min(top, logits.shape[-1]), -1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    weights = (logits.float() / temperature).softmax(-1)
    return torch.multinomial(weights, 1, generator=generator)


def positions(layer: ir.Layer, sizes: Mapping[str, Number]) -> Iterator[int]:
    """How many tokens each table of positions has room for, in a layer and those it calls."""
    for node in layer.graph:
        if isinstance(node.op, ir.Gather):
            table, at = (layer.graph[operand] for operand in node.operands)
            if isinstance(table.op, ir.Param) and at.op == ir.Position(TIME):
                yield int(evaluate(table.type.axis(node.op.axis).size, sizes))
    for _, call in layer.calls:
        yield from positions(call.callee, callee_sizes(call, sizes))


def _check(tokens: Tensor, count: int, temperature: float, top: int | None) -> None:
    """Refuse what cannot be continued."""
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise ValueError(f"`tokens` must be [B, T] with T >= 1, got {list(tokens.shape)}")
    if count < 0:
        raise ValueError(f"`count` must not be negative, got {count}")
    if not temperature >= 0:
        raise ValueError(f"`temperature` must not be negative, got {temperature}")
    if top is not None and top < 1:
        raise ValueError(f"`top` must be at least 1, got {top}")

"""Sequences of different lengths in one batch: outputs are those of each sequence alone, whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.compile import slots_text_of
from archc.origin import origin_of
from archc.runtime.kept_states import each_tensor, state_rows
from archc.slots import Slots, advance, alone, clear, in_slots, parts, put, taken
from tests.few import but
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise

ALONE = {
    "cross_attention": "another sequence enters",
    "linear_attention_full": "other tokens are read",
    "path": "matrices are multiplied between two tokens",
    "path_fox": "matrices are multiplied between two tokens",
}
QUICK = ("attention", "window_attention", "alibi")
LENGTHS, MORE = [5, 1, 8], 7


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    spec = archc.load(name, **SMALL[name])
    layer = randomise(spec.module(dtype=torch.float64), seed=0).eval()
    values = inputs(spec.layer, SMALL[name], B=3, T=max(LENGTHS) + MORE, seed=2)
    return layer, {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}


def first(made: Any) -> Tensor:
    return made[0] if isinstance(made, tuple) else made


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in SMALL],
)
@torch.no_grad()
def test_each_is_as_if_alone(name: str) -> None:
    """Prompts of three lengths, then tokens of all of them together; a window goes round twice. A
    slot that is used again has nothing of what was there, NaN neither."""
    layer, values = built(name)
    reason = alone(layer)
    if reason is not None:
        assert ALONE[name] in reason
        with pytest.raises(ValueError, match="one by one"):
            in_slots(layer)
        return
    assert name not in ALONE
    whole = first(layer(**values))
    together = in_slots(layer)
    state = together.initial_state(3, max(LENGTHS) + MORE)
    ready = together.initial_state(1, max(LENGTHS) + MORE)
    for slot, length in enumerate(LENGTHS):
        prompt = {key: x[slot : slot + 1, :length] for key, x in values.items()}
        _, own = layer(**prompt, return_state=True)
        put(state, each_tensor(own, lambda x, wide, shared: x * torch.nan), slot)
        clear(state, ready, slot)
        put(state, own, slot)
    for more in range(MORE):
        at = torch.tensor(LENGTHS) + more
        given = {key: x[torch.arange(3), at][:, None] for key, x in values.items()}
        made, state = together(**given, state=state, return_state=True)
        wanted = whole[torch.arange(3), at]
        assert (first(made)[:, 0] - wanted).abs().max() < 1e-9 * wanted.abs().max(), more


def walked(layer: nn.Module, x: Tensor, pages: int) -> Iterator[tuple[Slots, Tensor]]:
    """Sequences of different lengths in slots, a token of each at a time, each output held against
    that of the whole sequence; after each, the slots and the places of the tokens."""
    whole, slots = layer(x), Slots(layer, 3, max(LENGTHS) + MORE, pages=pages)
    for slot, length in enumerate(LENGTHS):
        slots.put(slot, layer(x[slot : slot + 1, :length], return_state=True)[1])
    for more in range(MORE):
        slots.lengths = [length + more + 1 for length in LENGTHS]
        slots.make_room()
        at = torch.tensor(LENGTHS) + more
        for kept in (part for _, how, part in parts(slots.state) if how == "paged"):
            kept.memory[0] = torch.nan  # of nobody
        made = slots.run(x[torch.arange(3), at][:, None], torch.ones(3, dtype=torch.bool))
        wanted = whole[torch.arange(3), at]
        assert (made[:, 0] - wanted).abs().max() < 1e-9 * wanted.abs().max(), more
        yield slots, at


TWO_WINDOWS = """
layer L(H, K):
    input k[H, K], v[H, K]
    attend t - {} < s <= t over H:
        a = softmax(k[t].T @ k[s]) @ v[s]
    attend s <= t over H:
        b = softmax(v[t].T @ k[s]) @ {}[s]
    output y[H, K] = a + b
"""


def test_what_is_kept_in_two_ways_is_read_one_by_one() -> None:
    """Keys are read by an attention to all tokens too, and are kept whole; values may not be."""
    reason = alone(archc.parse(TWO_WINDOWS.format(4, "k")).module(H=2, K=3))
    assert reason is not None and "some is kept for a window" in reason
    both = archc.parse(TWO_WINDOWS.format(4, "v")).module(H=2, K=3)
    assert alone(both) is None and in_slots(both).initial_state(2, 5) is not None


BLOCKS = """
layer Blocks(d, H, K, size, stride, n = 2):
    input x[d]
    param W_q[d, H, K]; W_k[d, H, K]; W_v[d, H, K]; W_o[H, K, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    blocks b of size every stride:
        k_c = mean[size](k[b] * v[b])
    attend b ending <= t over H:
        g = q[t].T @ k_c[b]
        c = softmax(g) @ k_c[b]
    chosen = top(n, g{})
    attend s <= t in chosen over H:
        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]
    output y[d] = (o + c) @ W_o
"""
"""Every head chooses blocks for itself, which compressed ones are made of, or others."""


@pytest.mark.default("2-3", "3-3")
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("pages", [0, 12])
@pytest.mark.parametrize(
    ("size", "stride", "score"),
    but(
        [(4, 4, ""), (3, 3, " on blocks of 2 always last 1"), (2, 3, ""), (5, 2, " on blocks of 4"),
         (1, 1, ""), (6, 1, " on blocks of 5")],
        [(4, 4, ""), (1, 1, ""), (6, 1, " on blocks of 5")],
    ),
)  # fmt: skip
@torch.no_grad()
def test_what_chooses_among_blocks_is_as_if_alone(
    size: int, stride: int, score: str, pages: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files with kernels too, which PyTorch does on a CPU."""
    for module in ("archc.runtime.paged", "archc.slots"):
        monkeypatch.setattr(f"{module}.PAGE", 4)
    spec = archc.parse(BLOCKS.format(score))
    assert ("taken_in_slots" in slots_text_of(spec.layer)) == bool(score)
    sizes: dict[str, Any] = {"d": 6, "H": 2, "K": 3, "size": size, "stride": stride}
    layer = spec.module(**sizes, dtype=torch.float64, backend=backend)
    layer = randomise(layer, seed=0).eval()
    x = torch.randn(3, max(LENGTHS) + MORE, 6, dtype=torch.float64)
    whole, like = layer(x), layer(x[:1, :1], return_state=True)[1]
    for slots, at in walked(layer, x, pages):
        for slot, pos in enumerate(at.tolist()):
            own = taken(slots.model, slots.state, slot, like)
            after = layer(x[slot : slot + 1, pos + 1 :], own) if pos + 1 < x.shape[1] else None
            wanted = whole[slot, pos + 1 :]
            assert after is None or (after[0] - wanted).abs().max() < 1e-9 * wanted.abs().max()


TOKENS = """
layer Tokens(d, H, K, n = 3):
    input x[d]
    param W_q[d, H, K]; W_k[d, K]; W_v[d, K]; W_o[H, K, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    index s <= t:
        I = sum[H](relu(q[t] @ k[s]))
    chosen = top(n, I)
    attend s <= t in chosen over H:
        o = {}
    output y[d] = o @ W_o
"""


@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("pages", [0, 12])
@pytest.mark.parametrize(
    ("read", "taken_alone"),
    [
        ("softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]", True),
        ("sum[s](relu(q[t].T @ k[s]) * v[s])", True),
        ("softmax(q[t].T @ k[s] - (t - s) / 9) @ v[s]", False),
        ("softmax(q[t].T @ k[s], 0.5) @ v[s] + v[t]", True),
    ],
)
@torch.no_grad()
def test_chosen_tokens_are_taken_out_of_caches(
    read: str, taken_alone: bool, pages: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where places of tokens matter, all of them are read, and those that are not chosen masked."""
    for module in ("archc.runtime.paged", "archc.slots"):
        monkeypatch.setattr(f"{module}.PAGE", 4)
    spec = archc.parse(TOKENS.format(read))
    layer = spec.module(d=6, H=2, K=4, dtype=torch.float64, backend=backend)
    layer = randomise(layer, seed=0).eval()
    assert ("taken_in_slots" in slots_text_of(spec.layer)) == taken_alone
    for _ in walked(layer, torch.randn(3, max(LENGTHS) + MORE, 6, dtype=torch.float64), pages):
        pass


MIXED = """
layer Mixed(d, size = 2):
    input x[d]
    blocks b of size every size:
        c = mean[size](x[b])
    {}
    attend b ending <= t:
        o = softmax(x[t].T @ e[b]) @ c[b]
    output y[d] = o
    {}
"""


@pytest.mark.parametrize(
    ("more", "output", "reason"),
    [
        ("e = 2 * c", "", ""),
        ("e = c * position(c)", "", "more than made one by one"),
        ("e = 2 * c", "output e", "more than made one by one"),
        ("attend t - 5 < s <= t:\n        p = softmax(x[t].T @ x[s])\n        w = p @ x[s]\n"
         "    chosen = top(1, p on blocks of 2)\n    attend s <= t in chosen:\n"
         "        z = softmax(x[t].T @ x[s]) @ x[s]\n    e = c", "output z", "told of tokens"),
    ],
)  # fmt: skip
def test_values_of_blocks_are_made_one_by_one(more: str, output: str, reason: str) -> None:
    """Of each sequence the next block is made: those before it are not there beside it."""
    found = alone(archc.parse(MIXED.format(more, output)).module(d=3))
    assert (reason in found) if found is not None else not reason


PAGED = ("attention", "alibi", "window_attention", "mla", "fox", "lm", "lfm2", "nsa", "dsa")


@pytest.mark.default("attention", "window_attention", "nsa", "lfm2")
@pytest.mark.parametrize("name", PAGED)
@torch.no_grad()
def test_each_in_pages_is_as_if_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of 4 tokens, so that sequences grow into more of them, and hold those of others that
    are gone, whose numbers were none."""
    for module in ("archc.runtime.paged", "archc.slots"):
        monkeypatch.setattr(f"{module}.PAGE", 4)
    layer, values = built(name)
    try:
        slots = Slots(layer, 3, max(LENGTHS) + MORE, pages=12)
    except ValueError as error:
        assert name == "window_attention" and "nothing" in str(error)
        return
    assert name != "window_attention"
    whole = first(layer(**values))
    for slot, length in enumerate(LENGTHS):
        prompt = {key: x[slot : slot + 1, :length] for key, x in values.items()}
        _, own = layer(**prompt, return_state=True)
        slots.put(slot, each_tensor(own, lambda x, wide, shared: x * torch.nan))
        slots.clear(slot)
        slots.put(slot, own)
    for more in range(MORE):
        slots.lengths = [length + more + 1 for length in LENGTHS]
        slots.make_room()
        at = torch.tensor(LENGTHS) + more
        given = {key: x[torch.arange(3), at][:, None] for key, x in values.items()}
        made, state = slots.model(**given, state=slots.state, return_state=True)
        advance(slots.state, state, torch.ones(3, dtype=torch.bool))
        wanted = whole[torch.arange(3), at]
        assert (first(made)[:, 0] - wanted).abs().max() < 1e-9 * wanted.abs().max(), more
    assert slots.table is not None and len(slots.table.free) == 12 - 3 - 2 - 4
    _, like = layer(**{key: x[:1, :3] for key, x in values.items()}, return_state=True)
    again = taken(slots.model, slots.state, 2, like)
    _, own = layer(**{key: x[2:, :15] for key, x in values.items()}, return_state=True)
    for (path, _, x), (_, _, y) in zip(parts(again), parts(own), strict=True):
        assert x.shape == y.shape and (x - y).abs().max() < 1e-9, path


WHOLE = ("cross_attention", "linear_attention_full")
"""Another sequence of each enters, or tokens that come later are read: there is no state."""

TOGETHER = ("lm", "gemma3", "kimi_linear", "window_attention")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in TOGETHER else [pytest.mark.slow])
     for n in SMALL if n not in WHOLE],
)  # fmt: skip
@torch.no_grad()
def test_packed_sequences_leave_the_state_of_each(name: str) -> None:
    """Outputs, states and what comes next are those of each sequence alone."""
    spec, lengths = archc.load(name, **SMALL[name]), [5, 1, 8, 5]
    layer = randomise(spec.module(dtype=torch.float64), seed=0).eval()
    asked = {op.name: op for _, op in spec.layer.inputs if not op.optional}
    drawn = [inputs(spec.layer, SMALL[name], 1, n, seed) for seed, n in enumerate(lengths)]
    given = [{key: each[key] for key in asked} for each in drawn]
    packed = {
        key: torch.cat([each[key] for each in given], int("t" in op.type.names))
        for key, op in asked.items()
    }
    borders = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    made, state = layer(**packed, cu_seqlens=torch.tensor(borders), return_state=True)
    for row, each in enumerate(given):
        wanted, own = layer(**each, return_state=True)
        found = state_rows(name, state, [row], len(lengths))
        pairs = [(first(made)[:, borders[row] : borders[row + 1]], first(wanted))]
        for (path, _, x), (_, _, y) in zip(parts(found), parts(own), strict=True):
            assert x.shape == y.shape, path
            pairs.append((x, y))
        more = {key: x[:, :1] if "t" in asked[key].type.names else x for key, x in each.items()}
        pairs.append((first(layer(**more, state=found)), first(layer(**more, state=own))))
        assert max(float((x - y).abs().max()) for x, y in pairs if x.numel()) < 1e-10


LEARNED = """
model Learned(vocab, d, H, K = 4, V = 4):
    input tokens in vocab
    param E[vocab, d]; W_q[d, H, K]; W_v[d, H, V]; W_o[H, V, d]
    param S_0[H, K, V] = normal(0, 1)
    q = E[tokens] @ W_q
    v = E[tokens] @ W_v
    recurrence S[K, V] = S_0 over H:
        S[t] = 0.5 * S[t-1] + q @ v.T
        o    = S[t].T @ q
    output logits[vocab] = o @ W_o @ E.T
"""


def test_kernels_write_over_states_in_slots() -> None:
    """A step has no new memory for them, and so a first state is nobody's parameter."""
    model = archc.parse(LEARNED).module(vocab=8, d=6, H=2)
    step = "learned_memory_decode(q, v, S"
    text = slots_text_of(origin_of(model).layer, "triton")
    assert f"return {step})" in text and f"return {step}, into=" not in text
    first = in_slots(model).initial_state(1, 8).S
    assert torch.equal(first[0], model.S_0) and first.data_ptr() != model.S_0.data_ptr()


def test_models_that_need_no_room_have_the_form_too() -> None:
    """Nothing of their tokens is kept; their states are written in place as others' are."""
    model = archc.load("xlstm").module(vocab=11, d=16, H=2, L=1, f=16)
    found = Slots(model, 3, 8, steady=True)
    assert found.own and type(found.model).__module__ != type(model).__module__
    assert not found.make_room()

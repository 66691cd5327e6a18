"""States as objects: moved, copied, reordered, kept in files, made from tensors; tuples still."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import archc
from archc.runtime.growing import most_of, one_after_other
from archc.runtime.kept_states import RaggedState, one_batch

GLA = {"d": 4, "H": 2, "K": 3, "V": 2, "r": 2}
GPT = {"vocab": 7, "d": 4, "H": 2, "L": 2, "length": 9}


@cache
def remembered() -> tuple[nn.Module, Any]:
    """A layer, and what it remembers of two sequences."""
    layer = archc.load("gla").module(**GLA, dtype=torch.float64)
    _, state = layer(torch.randn(2, 5, 4, dtype=torch.float64), return_state=True)
    return layer, state


@cache
def model() -> tuple[nn.Module, Any]:
    """A model, and what it remembers of sequences of which each is as long as it is."""
    made = archc.load("gpt", L=2).module(**GPT, dtype=torch.float64).eval()
    mask = torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 0]])
    tokens = torch.randint(7, (3, 3))
    _, state = made(tokens, attention_mask=mask, return_state=True)
    return made, state


def tensors(state: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(state) if isinstance(x, Tensor)]


def test_a_state_is_a_tuple_still() -> None:
    _, state = remembered()
    (S,) = state
    assert S is state.S and type(state).__bases__ == (tuple,)
    leaves, shape = pytree.tree_flatten(state)
    again = pytree.tree_unflatten(leaves, shape)
    assert type(again) is type(state) and again.S is S


def test_to_keeps_recurrences_wide_and_numbers_whole() -> None:
    _, state = remembered()
    assert state.to(torch.bfloat16).S.dtype == torch.float32
    assert state.to("meta").S.device.type == "meta"
    _, ragged = model()
    halves = ragged.to(torch.bfloat16)
    assert {x.dtype for x in tensors(halves)} == {torch.bfloat16}
    assert halves.pos.tolist() == ragged.pos.tolist() == [3, 2, 2]
    assert tensors(ragged.to("cpu", torch.float32))[0].dtype == torch.float32


def test_detach_and_clone() -> None:
    _, state = remembered()
    assert state.S.requires_grad and not state.detach().S.requires_grad
    copy = state.detach().clone()
    copy.S.zero_()
    assert state.S.abs().max() > 0


@pytest.mark.parametrize("index", [[1, 0, 1], torch.tensor([1, 0, 1]), [False, True]], ids=str)
def test_the_survivors_of_a_beam(index: Any) -> None:
    layer, state = remembered()
    chosen = [1, 0, 1] if len(index) == 3 else [1]
    picked = state.select(index)
    torch.testing.assert_close(picked.S, state.S[chosen], rtol=0, atol=0)
    x = torch.randn(2, 2, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x[chosen], state=picked), layer(x, state=state)[chosen])


def test_ragged_sequences_that_are_chosen() -> None:
    """Where those that are left are equally long, they are one batch again."""
    made, state = model()
    assert isinstance(state, RaggedState)
    assert state.select([0, 2]).pos.tolist() == [3, 2]
    even = state.select([2, 1])
    assert not isinstance(even, RaggedState) and even.pos == 2
    tokens = torch.randint(7, (3, 2))
    wanted = made(tokens, state=state)
    torch.testing.assert_close(made(tokens[[2, 1]], state=even), wanted[[2, 1]])
    with pytest.raises(ValueError, match=r"GPT: there are 2 sequences.* of 2, got 3"):
        made(tokens[:2], state=state)


@pytest.mark.parametrize("make", [remembered, model])
def test_states_are_kept_in_files(make: Any, tmp_path: Path) -> None:
    layer, state = make()
    state.save(tmp_path / "state.pt")
    again = layer.initial_state(1).load(tmp_path / "state.pt")
    assert type(again) is type(state)
    torch.testing.assert_close(tensors(again), tensors(state.detach()), rtol=0, atol=0)
    assert pytree.tree_structure(again) == pytree.tree_structure(state)


def test_the_state_of_another_layer_is_not_loaded(tmp_path: Path) -> None:
    _, state = remembered()
    other = archc.load("delta").module(d=4, H=2, K=3, V=2)
    state.save(tmp_path / "state.pt")
    with pytest.raises(ValueError, match="holds GLAState, not DeltaState"):
        other.initial_state(1).load(tmp_path / "state.pt")


def test_tensors_in_place_of_a_state_s_own() -> None:
    layer, state = remembered()
    S = torch.ones_like(state.S)
    assert layer.initial_state(2).replace(S=S).S is S
    with pytest.raises(ValueError, match=r"GLAState has no `h`: it has `S`"):
        state.replace(h=S)
    with pytest.raises(ValueError, match=r"`S` must be \[2, 2, 3, 2\], got .*\[2, 2, 2, 3\]"):
        state.replace(S=S.mT)
    with pytest.raises(TypeError, match="`S` must be an instance of Tensor, got int"):
        state.replace(S=1)
    kept = archc.load("attention").module(d=4, H=2, G=1, dtype=torch.float64).initial_state(2)
    k = torch.zeros(2, 3, 1, 2, dtype=torch.float64)
    assert kept.replace(k=k, v=k, pos=3).pos == 3  # before, nothing was kept


@pytest.mark.slow  # torch.compile takes seconds to be loaded
def test_a_state_in_a_graph_of_torch() -> None:
    layer, state = remembered()
    run = torch.compile(
        lambda x, state: layer(x, state=state.detach(), return_state=True), backend="eager"
    )
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    y, after = run(x, state)
    torch.testing.assert_close(y, layer(x, state=state))
    assert type(after) is type(state)


def test_fields_have_other_names_than_methods() -> None:
    """A state of a recurrence may be called like what a state can do."""
    text = """layer L(d):
        input x[d]
        recurrence clone[d]:
            clone[t] = 0.5 * clone[t-1] + x
            y = clone[t]
        output y
    """
    layer = archc.parse(text).module(d=2)
    _, state = layer(torch.ones(1, 3, 2), return_state=True)
    assert len(state) == 1 and torch.equal(state.clone()[0], state[0])


MASKS: list[tuple[Any, type[Exception], str]] = [
    (torch.ones(2, 4), TypeError, "bools or integers, 0 for padding, got torch.float32"),
    ([[1, 1]], TypeError, "got list"),
    (torch.ones(2, 5).bool(), ValueError, r"must be \[2, 4\], as the tokens.*\[2, 5\]"),
    (torch.ones(2, 4, device="meta").bool(), ValueError, "is on meta, not on cpu"),
]


@pytest.mark.parametrize(("mask", "kind", "text"), MASKS, ids=str)
@pytest.mark.parametrize("name", ["gla", "attention"])
def test_masks_that_say_nothing(name: str, mask: Any, kind: type[Exception], text: str) -> None:
    sizes = GLA if name == "gla" else {"d": 4, "H": 2, "G": 1}
    layer = archc.load(name).module(**sizes)
    with pytest.raises(kind, match=f"`attention_mask` .*{text}"):
        layer(torch.ones(2, 4, 4), attention_mask=mask)
    with pytest.raises(ValueError, match="`cu_seqlens` or `attention_mask`, not both"):
        borders, mask = torch.tensor([0, 1, 4]), torch.ones(1, 4).bool()
        layer(torch.ones(1, 4, 4), cu_seqlens=borders, attention_mask=mask)


def test_a_memory_s_state_from_tensors() -> None:
    spec = archc.load("gla")
    q = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    v, S = torch.randn(2, 5, 2, 4).double(), torch.randn(2, 2, 3, 4).double()
    whole, _ = spec.op(q, q, v, -q.abs())
    first, state = spec.op(*(x[:, :3] for x in (q, q, v, -q.abs())))
    second, _ = spec.op(*(x[:, 3:] for x in (q, q, v, -q.abs())), state=spec.state(S=state.S))
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    with pytest.raises(ValueError, match="keeps no `h`: it keeps `S`"):
        spec.state(h=S)
    with pytest.raises(ValueError, match="also keeps `S`"):
        spec.state()
    with pytest.raises(ValueError, match=r"`S` must be \[B, H, K, V\], got .*\[2, 3, 4\]"):
        spec.state(S=S[0])
    with pytest.raises(TypeError, match="`S` must hold real numbers"):
        spec.state(S=S.long())


def test_an_attention_s_state_from_tensors() -> None:
    """Its tokens, as many as there are."""
    spec = archc.load("attention")
    q, k, v = torch.randn(3, 2, 5, 2, 4).double().unbind(0)
    whole, _ = spec.op(q, k, v)
    state = spec.state(k=k[:, :3], v=v[:, :3], pos=3)
    last, _ = spec.op(q[:, 3:], k[:, 3:], v[:, 3:], state=state)
    torch.testing.assert_close(last, whole[:, 3:])
    with pytest.raises(TypeError, match="`pos` must be the number of tokens seen, got -1"):
        spec.state(k=k, v=v, pos=-1)
    with pytest.raises(ValueError, match=r"`v` must be .* with tokens_of_k = 3"):
        spec.state(k=k[:, :3], v=v[:, :4], pos=4)
    with pytest.raises(ValueError, match="`k` has 4 tokens, and `pos` = 3 tokens were seen"):
        spec.state(k=k[:, :4], v=v[:, :4], pos=3)


FOX = {"d": 4, "H": 2}


@cache
def attention() -> nn.Module:
    return archc.load("fox").module(**FOX, dtype=torch.float64)


def said(state: Any, x: Tensor, layer: nn.Module | None = None) -> tuple[Tensor, Any]:
    with torch.no_grad():
        return (layer or attention())(x, state=state, return_state=True)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_a_token_is_written_behind_the_others_in_place() -> None:
    """One memory for many tokens: no copy of what is there, in none of the values kept."""
    x, state = numbers(2, 60, 4), None
    places: list[set[int]] = [set(), set(), set()]
    made = []
    for t in range(60):
        y, state = said(state, x[:, t : t + 1])
        made.append(y)
        for place, value in zip(places, tensors(state), strict=True):
            place.add(value.data_ptr())
    assert all(len(place) <= 4 for place in places)
    torch.testing.assert_close(torch.cat(made, 1), attention()(x), rtol=0, atol=1e-12)


def test_a_state_that_is_continued_twice_is_what_it_was() -> None:
    x = numbers(1, 9, 4)
    _, state = said(None, x[:, :5])
    _, state = said(state, x[:, 5:6])
    kept = [value.clone() for value in tensors(state)]
    first, _ = said(state, x[:, 6:7])
    said(state, x[:, 7:9])
    again, _ = said(state, x[:, 6:7])
    assert torch.equal(first, again)
    assert all(map(torch.equal, tensors(state), kept))


@pytest.mark.parametrize("change", ["clone", "detach", "select", "to", "keep"])
def test_a_reserved_cache_is_taken_once_and_gets_full(change: str) -> None:
    x = numbers(2, 9, 4)
    state = attention().initial_state(2).reserve(8)
    _, state = said(state, x[:, :3])
    more = {"select": ([1, 0],), "to": ("cpu",)}.get(change, ())
    state = state if change == "keep" else getattr(state, change)(*more)
    _, state = said(state, x[:, 3:4])
    before = [value.data_ptr() for value in tensors(state)]
    for t in range(4, 8):
        _, state = said(state, x[:, t : t + 1])
    assert [value.data_ptr() for value in tensors(state)] == before
    with pytest.raises(ValueError, match="full: it has room for 8 tokens, and would have 9"):
        said(state, x[:, 8:])
    with pytest.raises(ValueError, match="full"):  # with gradients, too
        attention()(x[:, 8:], state=state)
    with pytest.raises(ValueError, match="has 8 tokens: room for 5 is too little"):
        state.reserve(5)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        state.reserve(0)
    assert said(state.reserve(9), x[:, 8:])[1].k.shape[1] == 9


def test_a_window_is_written_in_place_too() -> None:
    layer = archc.load("window_attention").module(d=4, H=2, w=6, dtype=torch.float64)
    x, state, made, copies = numbers(1, 90, 4), None, [], 0
    for t in range(90):
        before = {value.untyped_storage().data_ptr() for value in tensors(state or ())}
        y, state = said(state, x[:, t : t + 1], layer)
        made.append(y)
        copies += before != {value.untyped_storage().data_ptr() for value in tensors(state)}
    assert copies < 20 and state.k.shape[1] == 5
    torch.testing.assert_close(torch.cat(made, 1), layer(x), rtol=0, atol=1e-12)


def test_what_is_reserved_stays_so_in_one_batch() -> None:
    first = attention().initial_state(1).reserve(9)
    states = [said(first, numbers(1, 7, 4))[1] for _ in range(2)]
    both = one_batch(states)
    assert most_of(both.k) == 9 and [x.shape[:2] for x in tensors(both)] == [(2, 7)] * 3
    with pytest.raises(ValueError, match="full: it has room for 9 tokens, and would have 10"):
        said(both, numbers(2, 3, 4))


def test_a_file_has_no_room_in_it(tmp_path: Path) -> None:
    state = attention().initial_state(1).reserve(100_000)
    _, state = said(state, numbers(1, 2, 4))
    state.save(tmp_path / "state.pt")
    assert (tmp_path / "state.pt").stat().st_size < 20_000
    again = type(state).load(tmp_path / "state.pt")
    assert all(map(torch.equal, tensors(state), tensors(again)))


def test_what_was_kept_in_inference_mode_goes_on_outside_it() -> None:
    x = numbers(1, 4, 4)
    with torch.inference_mode():
        _, state = attention()(x[:, :2], return_state=True)
        _, state = attention()(x[:, 2:3], state=state, return_state=True)
    y, _ = said(state, x[:, 3:])
    torch.testing.assert_close(y, attention()(x)[:, 3:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 2])
def test_parts_that_lie_one_after_the_other_are_not_copied(rows: int) -> None:
    """In their order; gradients are those of `torch.cat`."""
    whole = torch.arange(12.0).reshape(rows, -1, 2).requires_grad_()
    parts = [x * 1 for x in (whole * 1).split([2, 1, whole.shape[1] - 3], 1)]
    together = (whole * 1).split([2, 1, whole.shape[1] - 3], 1)
    cases = ((together, True), (together[1:], True), (together[::-1], False), (parts, False))
    for given, lies in cases:
        made, wanted = one_after_other([*given]), torch.cat([*given], 1)
        assert torch.equal(made, wanted)
        assert (made.data_ptr() == given[0].data_ptr()) is lies
        slope = torch.randn_like(wanted)
        found = [torch.autograd.grad(y, whole, slope, retain_graph=True) for y in (made, wanted)]
        assert torch.equal(*(d for (d,) in found))


def test_a_state_with_gradients_is_no_memory_in_place() -> None:
    """What a gradient needs is never written over."""
    x = numbers(1, 4, 4)
    _, state = said(None, x[:, :2])
    _, state = said(state, x[:, 2:3])
    made, _ = attention()(x[:, 3:], state=state, return_state=True)
    said(state, x[:, 3:])
    made.sum().backward()


def test_sequences_of_other_lengths_are_written_in_place_too() -> None:
    """Each in memory of its own, as long as it is."""
    x, mask = numbers(3, 5, 4), torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]])
    with torch.no_grad():
        _, state = attention()(x[:, :3], attention_mask=mask, return_state=True)
    _, state = said(state, x[:, 3:4])
    before = [value.data_ptr() for value in tensors(state)]
    made, state = said(state, x[:, 4:])
    assert [value.data_ptr() for value in tensors(state)] == before
    for row, length in enumerate((3, 2, 1)):
        whole = attention()(torch.cat([x[row : row + 1, :length], x[row : row + 1, 3:]], 1))
        torch.testing.assert_close(made[row, 0], whole[0, -1], rtol=0, atol=1e-12)


def test_a_torn_file_of_a_state(tmp_path: Path) -> None:
    """Cut off, empty, or with a bit that another one was: refused; saving replaces a whole file."""
    layer = archc.load("attention").module(d=8, H=2)
    _, state = layer(torch.randn(1, 40, 8), return_state=True)
    path = tmp_path / "state.pt"
    state.save(path)
    whole = path.read_bytes()
    at = whole.index(state.k.detach().numpy().tobytes()) + 5
    flipped = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    for torn in (whole[: len(whole) // 2], b"", flipped):
        path.write_bytes(torn)
        with pytest.raises(ValueError, match=r"state.pt is torn, or no state that was saved"):
            type(state).load(path)
    state.save(path)
    assert torch.equal(type(state).load(path).k, state.k)
    assert [each.name for each in tmp_path.iterdir()] == ["state.pt"]

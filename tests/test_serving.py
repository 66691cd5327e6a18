"""A pool of slots: each sequence is what generation makes of it alone, whoever comes and goes."""

from __future__ import annotations

import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc import prefill
from archc.serving import Pool, Together

SIZES = {
    "gpt": {"vocab": 17, "d": 8, "H": 2, "L": 2, "length": 16, "p": 0.1},
    "lfm2": {"vocab": 17, "d": 8, "H": 2, "G": 1, "L": 2, "f": 8, "attention": [1]},
    "gemma3": {
        "vocab": 17, "d": 8, "H": 2, "G": 1, "K": 4, "L": 2, "f": 8, "full": [1], "window": 3,
    },
    "xlstm": {"vocab": 17, "d": 8, "H": 2, "L": 1, "f": 8},
}  # fmt: skip


@cache
def model(spec: str) -> nn.Module:
    torch.manual_seed(0)
    return archc.load(spec).module(dtype=torch.float64, **SIZES[spec])


def prompt(length: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 17, (length,), generator=torch.Generator().manual_seed(seed))


def alone(layer: nn.Module, tokens: Tensor, count: int, seed: int | None) -> Tensor:
    """What generation makes of a prompt by itself: greedily, or with a seed."""
    if seed is None:
        return archc.generate(layer, tokens[None], count, temperature=0)[0]
    return archc.generate(layer, tokens[None], count, temperature=0.9, top=5, seed=seed)[0]


@pytest.mark.default("gpt", "lfm2")
@pytest.mark.parametrize(
    ("spec", "capacity"), [("gpt", None), ("lfm2", 14), ("gemma3", None), ("xlstm", 14)]
)
def test_sequences_that_come_and_go_are_as_if_alone(
    spec: str, capacity: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two slots, five sequences of other lengths: greedy ones, and some with a seed of their own;
    each takes the place of one that has ended, or was removed. Where nobody says how much room
    there is to be, it is used up on the way, and there is more."""
    monkeypatch.setattr("archc.serving.LEAST_ROOM", 4)
    layer = model(spec).train()
    pool = Pool(layer, slots=2, capacity=capacity)
    wanted = [(3, 4, None), (7, 8, 5), (1, 5, None), (4, 3, 6), (2, 6, 7)]
    waiting, numbers = [*enumerate(wanted)], dict[int, int]()
    while waiting or pool.live:
        while waiting and pool.free:
            at, (length, count, seed) = waiting.pop(0)
            how = {"temperature": 0} if seed is None else {"temperature": 0.9, "top": 5}
            chunk = 2 if at % 2 else None
            numbers[at] = pool.add(prompt(length, at), count, seed=seed, chunk=chunk, **how)
        told = pool.live
        drawn = pool.step()
        assert tuple(drawn) == told
    for at, (length, count, seed) in enumerate(wanted):
        found = pool.remove(numbers[at])
        assert torch.equal(found, alone(layer, prompt(length, at), count, seed))
    assert layer.training and sorted(pool.free) == [0, 1]


@pytest.mark.parametrize("spec", ["lfm2", "xlstm"])
def test_a_step_changes_no_address(spec: str) -> None:
    """What a CUDA graph records is tensors at their places."""
    pool = Pool(model(spec), slots=3, capacity=20)
    lanes = pool.lanes
    assert isinstance(lanes, Together)
    parts = [x for x in pytree.tree_leaves(lanes.slots.state) if isinstance(x, Tensor)]
    parts += [lanes.logits, lanes.tokens]
    places = [(x.data_ptr(), x.shape, x.stride()) for x in parts]
    for at in range(3):
        pool.add(prompt(2 + at, at), temperature=0)
        pool.step()
        state = [x for x in pytree.tree_leaves(lanes.slots.state) if isinstance(x, Tensor)]
        now = [*state, lanes.logits, lanes.tokens]
        assert [(x.data_ptr(), x.shape, x.stride()) for x in now] == places
    before = [x.clone() for x in parts]
    pool.step()
    assert not all(map(torch.equal, before, parts))


class Ops(TorchDispatchMode):
    """How many ops of torch are called."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("seed", [None, 3])
def test_steps_take_as_many_ops_for_any_number_of_sequences(seed: int | None) -> None:
    """One look at the logits of all, also where each has a seed."""
    counts = []
    for slots in (2, 3):
        pool = Pool(model("lfm2"), slots)
        for at in range(slots):
            how = {"temperature": 0.0} if seed is None else {"seed": seed + at, "top_p": 0.9}
            pool.add(prompt(2, at), **how)
        with Ops() as ops:
            pool.step()
        counts.append(ops.count)
    assert counts[0] == counts[1]


IN_BLOCKS = """
import NSA from "nsa.arch"

model InBlocks(vocab, d):
    input tokens in vocab
    param E[vocab, d]; W[d, vocab]
    x = E[tokens]
    output logits[vocab] = (x + NSA(d, 4, 2, 5, 4, 4, 2, 4, 3, 3)(x)) @ W
"""


@pytest.mark.parametrize("pages", [None, 2])
def test_what_chooses_among_blocks_has_slots(pages: int | None) -> None:
    torch.manual_seed(0)
    layer = archc.parse(IN_BLOCKS).module(vocab=17, d=8, dtype=torch.float64)
    pool = Pool(layer, slots=2, capacity=20, pages=pages)
    assert pool.alone is None
    numbers = [pool.add(prompt(length), 6, temperature=0) for length in (9, 4)]
    while pool.live:
        pool.step()
    for number, length in zip(numbers, (9, 4), strict=True):
        assert torch.equal(pool.remove(number), alone(layer, prompt(length), 6, None))


IN_PRODUCTS = """
import PaTH from "path.arch"

model InProducts(vocab, d):
    input tokens in vocab
    param E[vocab, d]; W[d, vocab]
    x = E[tokens]
    output logits[vocab] = (x + PaTH(d, 2)(x)) @ W
"""


def test_what_has_no_slots_is_read_one_after_the_other() -> None:
    torch.manual_seed(0)
    layer = archc.parse(IN_PRODUCTS).module(vocab=17, d=8, dtype=torch.float64)
    pool = Pool(layer, slots=2, capacity=20)
    assert pool.alone is not None and pool.alone.startswith("matrices are multiplied between")
    numbers = [pool.add(prompt(length), 6, temperature=0) for length in (9, 4)]
    while pool.live:
        pool.step()
    for number, length in zip(numbers, (9, 4), strict=True):
        assert torch.equal(pool.remove(number), alone(layer, prompt(length), 6, None))


def test_ends_behind_eos_and_gives_its_slot_back() -> None:
    free = alone(model("lfm2"), prompt(3), 9, None).tolist()[3:]
    pool = Pool(model("lfm2"), slots=1)
    number = pool.add(prompt(3), temperature=0, eos=free[2])
    while pool.live:
        pool.step()
    assert pool.tokens(number).tolist()[3:] == free[: free.index(free[2]) + 1]
    assert pool.free == [0] and pool.step() == {}


def test_what_has_no_place_is_refused() -> None:
    pool = Pool(model("gpt"), slots=1, capacity=6)
    for given, says in [
        ({"prompt": prompt(0)}, "T >= 1"),
        ({"prompt": prompt(4)[None]}, "T >= 1"),
        ({"prompt": prompt(4) + 17}, "GPT has 17 tokens, from 0 on, and is given"),
        ({"prompt": prompt(7)}, "a slot has room for 6 tokens, too few for a prompt of 7"),
        ({"prompt": prompt(4), "count": 4}, "too few for a prompt of 4 and 4 more"),
        ({"prompt": prompt(4), "count": 0}, "at least 1"),
        ({"prompt": prompt(4), "count": 1.5}, "whole number, at least 1, got 1.5"),
        ({"prompt": prompt(4), "eos": 17}, "`eos` = 17 is no token of GPT, which has 17"),
        ({"prompt": prompt(4), "chunk": 0}, "`chunk` must be at least 1"),
        ({"prompt": prompt(4), "temperature": -1}, "temperature"),
    ]:
        with pytest.raises(ValueError, match=says):
            pool.add(**given)
        assert pool.free == [0]
    with pytest.raises(TypeError, match=r"`prompt` must be a tensor \[T\], got list"):
        pool.add([1, 2])
    with pytest.raises(TypeError, match=r"must be whole numbers .*, got torch.float32"):
        pool.add(prompt(4).float())
    number = pool.add(prompt(4))
    with pytest.raises(ValueError, match="full: all of its 1 slots"):
        pool.add(prompt(1))
    assert len(pool.remove(number)) == 4
    for asked in (pool.tokens, pool.remove):
        with pytest.raises(ValueError, match=f"sequence {number} was removed in this pool|removed"):
            asked(number)
        with pytest.raises(ValueError, match="sequence 99 is not in this pool"):
            asked(99)
    with pytest.raises(ValueError, match="GPT has positions for 16 tokens, too few"):
        Pool(model("gpt"), slots=1).add(prompt(17))
    with pytest.raises(ValueError, match="`slots` must be a whole number, at least 1, got 0"):
        Pool(model("gpt"), slots=0)
    with pytest.raises(ValueError, match="a model of text takes tokens"):
        Pool(archc.load("swiglu").module(d=4, f=4), slots=1)


def test_nan_stops_one_sequence_and_not_the_others() -> None:
    torch.manual_seed(0)
    layer = archc.load("xlstm").module(dtype=torch.float64, **SIZES["xlstm"])
    with torch.no_grad():
        layer.E[5] = torch.nan
    pool = Pool(layer, slots=2)
    good = pool.add(torch.tensor([1, 2]), temperature=0)
    bad = pool.add(torch.tensor([1, 5]), temperature=0)
    with pytest.raises(ValueError, match=f"logits of sequence {bad} are NaN"):
        pool.step()
    assert len(pool.tokens(good)) == 2
    pool.remove(bad)
    assert [*pool.step()] == [good]
    again = pool.add(torch.tensor([2, 3]), temperature=0)  # nothing of the NaN is left in its slot
    assert {*pool.step()} == {good, again}


def test_the_example_answers_every_request(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = Path(__file__).parent.parent / "examples" / "serve.py"
    monkeypatch.setattr("sys.argv", [str(example), "--slots", "2", "--requests", "3"])
    runpy.run_path(str(example), run_name="__main__")
    said = capsys.readouterr().out
    assert all(f"request {at}: " in said for at in range(3)) and said.count("\n") == 3


DELAYS = """
model Delays(vocab, d):
    input tokens in vocab
    param E[vocab, d]; W[d, vocab]
    x = E[tokens]
    recurrence {first}[d], {second}[d], r[d]:
        p[t] = x
        q[t] = p[t-1]
        r[t] = q[t-1]
        y    = r[t]
    chunk: sequential
    output logits[vocab] = (x + y) @ W
"""


@pytest.mark.parametrize(("first", "second"), ["pq", "qp"])
def test_a_state_that_becomes_another_one(first: str, second: str) -> None:
    """It is read before its place is written, in whichever order the two stand."""
    torch.manual_seed(0)
    spec = archc.parse(DELAYS.format(first=first, second=second))
    layer = spec.module(vocab=11, d=4, dtype=torch.float64)
    prompt = torch.tensor([3, 1, 4])
    pool = Pool(layer, slots=2)
    number = pool.add(prompt, 12, temperature=0.9, top=5, seed=5)
    while pool.live:
        pool.step()
    assert torch.equal(pool.remove(number), alone(layer, prompt, 12, 5))


@pytest.mark.parametrize("spec", ["gpt", "lfm2", "gemma3"])
def test_sequences_in_pages_are_as_if_alone(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slots, and pages for one long sequence: the youngest waits until there is room, and
    prompts that come then wait behind it."""
    for module in ("archc.runtime.paged", "archc.slots", "archc.serving"):
        monkeypatch.setattr(f"{module}.PAGE", 4)
    layer = model(spec)
    pool = Pool(layer, slots=3, capacity=16, pages=5)
    wanted = [(3, 11, None), (7, 8, 5), (1, 5, None), (4, 9, 6), (2, 6, 7), (9, 3, None)]
    coming, numbers, refused, waited = [*enumerate(wanted)], dict[int, int](), 0, set[int]()
    while coming or pool.live:
        while coming and pool.free:
            at, (length, count, seed) = coming[0]
            try:
                own = {"temperature": 0} if seed is None else {"temperature": 0.9, "top": 5}
                numbers[at] = pool.add(prompt(length, at), count, seed=seed, chunk=3, **own)
            except ValueError as error:
                assert ("wait for pages before it" in str(error)) == bool(pool.waiting)
                refused += 1
                break
            coming.pop(0)
        going = {*pool.live} - {*pool.waiting}
        drawn = pool.step()
        assert drawn and (not pool.waiting or min(pool.waiting) > min(going))
        waited |= {*pool.waiting}
    assert refused and waited
    for at, (length, count, seed) in enumerate(wanted):
        found = pool.remove(numbers[at])
        assert torch.equal(found, alone(layer, prompt(length, at), count, seed)), at
    table = pool.lanes.slots.table
    assert sorted(table.free) == [*range(1, 6)] and not table.table.any()


def test_pages_are_refused_where_there_is_nothing_to_be_in_them() -> None:
    with pytest.raises(ValueError, match="nothing to be in `pages`: XLSTM keeps nothing of every"):
        Pool(model("xlstm"), slots=2, pages=4)
    with pytest.raises(ValueError, match="`pages` must be a whole number, at least 1, got 0"):
        Pool(model("gpt"), slots=2, pages=0)
    pool = Pool(model("lfm2"), slots=2, pages=1)
    with pytest.raises(ValueError, match="has room for 64 tokens, too few for a prompt of 65"):
        pool.add(prompt(65))
    pool.add(prompt(3))
    with pytest.raises(ValueError, match="no room for a prompt of 2: 1 page is needed, of 64 tok"):
        pool.add(prompt(2))


@pytest.mark.parametrize("chunk", [None, 8])
@pytest.mark.parametrize("spec", SIZES)
def test_prompts_that_are_read_together_are_as_if_alone(
    spec: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed, as many as have `chunk` tokens; longer ones side by side, a piece of each at once."""
    monkeypatch.setattr(prefill, "SHORTEST", 4)
    layer = model(spec)
    lengths = [3, 11, 1, 9, 4, 4, 2, 13]
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    calls = list[tuple[int, ...]]()
    handle = layer.register_forward_pre_hook(lambda _, given: calls.append(tuple(given[0].shape)))
    pool = Pool(layer, slots=9, pages=None if spec == "xlstm" else 8)
    calls.clear()
    numbers = pool.add_all(prompts, 4, temperature=0, chunk=chunk)
    handle.remove()
    pieces = [(2, 4), (2, 4), (2, 1), (1, 2), (1, 8), (1, 5)]
    assert calls == ([(1, 47)] if chunk is None else [(1, 8), (1, 6), *pieces])
    with pytest.raises(ValueError, match="2 prompts need a slot each: 8 of 9 hold a sequence"):
        pool.add_all(prompts[:2])
    with pytest.raises(ValueError, match=r"`prompt` must be \[T\] with T >= 1, got \[0\]"):
        pool.add_all([prompts[0][:0]])
    assert len(pool.free) == 1 and pool.add_all([]) == []
    while pool.live:
        pool.step()
    for number, given in zip(numbers, prompts, strict=True):
        assert torch.equal(pool.remove(number), alone(layer, given, 4, None))


def test_prompts_that_cannot_be_read_leave_nothing() -> None:
    """The second group fails: slots, pages and numbers are as before."""
    layer, given = model("lfm2"), [prompt(4, seed) for seed in range(3)]
    pool = Pool(layer, slots=3, pages=3)
    before, calls = list(pool.free), list[int]()

    def fails(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")

    handle = layer.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        pool.add_all(given, 3, temperature=0, chunk=4)
    handle.remove()
    assert pool.free == before and pool.live == ()
    numbers = pool.add_all(given, 3, temperature=0, chunk=4)
    while pool.live:
        pool.step()
    for number, tokens in zip(numbers, given, strict=True):
        assert torch.equal(pool.remove(number), alone(layer, tokens, 3, None))

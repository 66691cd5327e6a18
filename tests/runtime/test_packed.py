"""What generated files do along packed sequences, against a loop over the sequences: lengths of
every kind, empty ones first, last and next to each other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import archc
from archc.runtime import packed as runtime
from archc.runtime.layers import told_by

CHUNK = 4
LENGTHS = ([0, 0, 5, 9, 0, 4, 0], [1], [0, 0, 3], [8, 1, 0], [4, 4, 4])

Whole = Callable[[Tensor], Tensor]
"""What becomes of the tokens [T, 2] of one sequence."""


def values(tokens: int) -> Tensor:
    """Real numbers [1, T, 2] below zero, so that zeros from elsewhere are noticed."""
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(1, tokens, 2, generator=generator, dtype=torch.float64) - 5


def borders(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(lengths)])


def sequences(x: Tensor, lengths: list[int]) -> list[Tensor]:
    """The tokens [T, 2] of each."""
    return [x[0, a:b] for a, b in pairwise(borders(lengths).tolist())]


def rows_of(lengths: list[int]) -> Tensor:
    return runtime.packed_tables(borders(lengths), sum(lengths), CHUNK)[1]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_last_of_each(lengths: list[int], reverse: bool) -> None:
    """Of one that is empty, what stands for it."""
    x, empty = values(sum(lengths)), 100 + values(len(lengths))[0]
    found = runtime.last_of_each(x, empty, rows_of(lengths), reverse)
    place = 0 if reverse else -1
    each = zip(sequences(x, lengths), empty, strict=True)
    wanted = [tokens[place] if len(tokens) else instead for tokens, instead in each]
    assert torch.equal(found, torch.stack(wanted))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_the_last_of_a_batch(tokens: int, reverse: bool) -> None:
    x, empty = values(2 * tokens).reshape(2, tokens, 2), 100 + values(2)[0]
    found = runtime.last_of_each(x, empty, None, reverse)
    assert torch.equal(found, x[:, 0 if reverse else -1] if tokens else empty)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_at_the_last_of_each(lengths: list[int], reverse: bool) -> None:
    """Zero at every other token; of an empty one nothing is left."""
    state = values(len(lengths))[0]
    found = runtime.at_last_of_each(state, sum(lengths), rows_of(lengths), reverse)
    wanted = torch.zeros_like(found[0])
    for (first, end), one in zip(pairwise(borders(lengths).tolist()), state, strict=True):
        if end > first:
            wanted[first if reverse else end - 1] = one
    assert found.shape == (1, sum(lengths), 2) and torch.equal(found[0], wanted)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_tokens_before(lengths: list[int], reverse: bool) -> None:
    found = runtime.tokens_before(values(sum(lengths)), rows_of(lengths), reverse)
    wanted = [n for length in lengths for n in (range(length)[::-1] if reverse else range(length))]
    assert found.shape == (sum(lengths), 1) and found.flatten().tolist() == wanted


def along(x: Tensor, of_prefix: Whole, reverse: bool = False) -> Tensor:
    """What becomes of the tokens up to each (with `reverse` from each on) of one sequence."""
    parts = [x[t:] if reverse else x[: t + 1] for t in range(len(x))]
    return torch.stack([of_prefix(part) for part in parts]) if parts else x


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_sums_of_each(lengths: list[int], reverse: bool, exclusive: bool) -> None:
    """And of a batch, which is one sequence."""
    x = values(sum(lengths))
    for parts, rows in ((sequences(x, lengths), rows_of(lengths)), ([x[0]], None)):
        found = runtime.sums_of_each(x, rows, reverse, exclusive)
        wanted = [along(part, lambda p: p.sum(0), reverse) - exclusive * part for part in parts]
        torch.testing.assert_close(found[0], torch.cat(wanted), rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_largest_since_the_start(lengths: list[int]) -> None:
    x = values(sum(lengths))
    found = runtime.since_start(x, torch.maximum, rows_of(lengths))
    wanted = [along(part, lambda p: p.amax(0)) for part in sequences(x, lengths)]
    assert torch.equal(found[0], torch.cat(wanted))


NOTHING = {"sum": 0.0, "max": -torch.inf, "min": torch.inf}


@pytest.mark.parametrize("kind", NOTHING)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_the_whole_of_each(lengths: list[int], kind: str) -> None:
    """Of nothing, what changes nothing; of a batch, the same."""
    x = values(sum(lengths))
    function = {"sum": torch.sum, "max": torch.amax, "min": torch.amin}[kind]
    nothing = torch.full((2,), NOTHING[kind], dtype=x.dtype)
    wanted = [function(part, 0) if len(part) else nothing for part in sequences(x, lengths)]
    found = runtime.whole_of_each(x, kind, rows_of(lengths))
    torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=1e-12)
    found = runtime.whole_of_each(x, kind, None)
    torch.testing.assert_close(found[0], function(x[0], 0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_chunks_of_each(lengths: list[int], steps: int) -> None:
    """No chunk has rows of two sequences, also where a token has several; the last is filled up."""
    rows = CHUNK * steps
    x = values(sum(lengths) * steps)
    table, _ = runtime.packed_tables(borders(lengths), sum(lengths), CHUNK)
    parts = sequences(x, [length * steps for length in lengths])
    cut = [chunk for part in parts for chunk in part.split(rows) if len(chunk)]
    wanted = [torch.cat([c, c.new_full((rows - len(c), 2), 7.0)]) for c in cut]
    found = runtime.chunks_of_each(x, rows, table, fill=7.0, steps=steps)[0]
    assert torch.equal(found[table[:, 0] >= 0], torch.stack(wanted))


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_tables(lengths: list[int]) -> None:
    """Chunks of each sequence, in its order, and no other tokens in them."""
    table, rows = runtime.packed_tables(borders(lengths), sum(lengths), CHUNK)
    counts = [-(-length // CHUNK) for length in lengths]
    high = [*accumulate(counts)]
    own = [i for i, count in enumerate(counts) for _ in range(count)]
    assert table[: len(own), 0].tolist() == own and (table[len(own) :, 0] == -1).all()
    starts, ends = borders(lengths)[:-1], borders(lengths)[1:]
    wanted = torch.stack([torch.arange(len(lengths)), starts, ends], 1)
    assert torch.equal(rows[:, [0, 2, 3]], wanted) and not rows[:, 6].any()
    assert rows[:, 4].tolist() == [0, *high[:-1]] and rows[:, 5].tolist() == high
    assert torch.equal(table[: len(own)], rows[own])
    first = [row[1] + CHUNK * n for n, row in enumerate(table[: len(own)].tolist())]
    assert first == [s for length, s in zip(lengths, starts.tolist(), strict=True)
                     for s in range(s, s + length, CHUNK)]  # fmt: skip
    assert torch.equal(runtime.by_chunks(rows)[:, 2:], rows[:, 4:6])


class OnDevice(Tensor):
    """Borders as they are on a GPU: nothing tells of a change but what torch knows."""

    device = torch.device("cuda", 0)


def test_borders_that_change_unseen() -> None:
    given = torch.Tensor._make_subclass(OnDevice, borders([3, 4]))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        first = told_by(given)
        assert told_by(given) == first
        given[1] = 2
        assert told_by(given) != first
        given.data[1] = 5
        with pytest.raises(ValueError, match=r"is \[0, 5, 7\], and was \[0, 2, 7\]"):
            told_by(given)
    told_by(given)  # the switch is off


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_segments_of_sequences_have_all_of_their_chunks(lengths: list[int], length: int) -> None:
    """Each chunk once, in order, and no segment more than its length; others have none."""
    chunks, rows = runtime.packed_tables(borders(lengths), sum(lengths), CHUNK)
    given = rows, len(lengths), sum(lengths), len(chunks), length, rows.device
    parts, joined = runtime.segment_tables(*given)
    owners = runtime.sequence_of_segment(parts, joined).tolist()
    used = set[int]()
    for number, (sequence, segments) in enumerate(zip(rows.tolist(), joined.tolist(), strict=True)):
        mine = range(segments[4], segments[5])
        found = [list(range(*parts[each, 4:6].tolist())) for each in mine]
        there = [chunk for each in found for chunk in each]
        assert segments[0] == number and there == [*range(sequence[4], sequence[5])]
        assert all(0 < len(each) <= length for each in found)
        assert all(parts[each, 1:4].tolist() == sequence[1:4] for each in mine)
        assert [owners[each] for each in mine] == [number] * len(mine)
        used |= {*mine}
    others = [row.tolist() for each, row in enumerate(parts) if each not in used]
    assert all(row[4] >= row[5] for row in others)


def test_tables_of_segments_are_made_once() -> None:
    """Of the same numbers, or of the same packed sequences; those of fake tensors are not kept."""
    device = torch.device("cpu")
    with FakeTensorMode():
        runtime.segment_tables(None, 2, 640, 10, 3, device)
    first = runtime.segment_tables(None, 2, 640, 10, 3, device)
    assert [x.__class__ for x in first] == [torch.Tensor] * 2
    assert runtime.segment_tables(None, 2, 640, 10, 3, device) is first
    assert runtime.segment_tables(None, 2, 640, 10, 4, device) is not first
    with torch.inference_mode():
        runtime.segment_tables(None, 1, 64, 4, 2, device)
    assert not runtime.segment_tables(None, 1, 64, 4, 2, device)[0].is_inference()
    chunks, rows = runtime.packed_tables(borders([640, 640]), 1280, 64)
    packed = runtime.segment_tables(rows, 2, 1280, len(chunks), 3, device)
    assert runtime.segment_tables(rows, 2, 1280, len(chunks), 3, device) is packed
    assert packed[0][:, 4:6].tolist()[:8] == first[0][:, 4:6].tolist()[:4] + [
        [low + 10, high + 10] for low, high in first[0][:4, 4:6].tolist()
    ]


def test_another_sequence_has_a_row_for_each_of_packed_ones() -> None:
    layer = archc.load("cross_attention").module(d=8, H=2, e=6)
    x, c, borders = torch.randn(1, 9, 8), torch.randn(2, 5, 6), torch.tensor([0, 4, 9])
    found = layer(x, c, cu_seqlens=borders)
    alone = [layer(x[:, :4], c[:1]), layer(x[:, 4:], c[1:])]
    torch.testing.assert_close(found, torch.cat(alone, 1))
    with pytest.raises(ValueError, match=r"`c` must be .* with rows = 2, got .*\[1, 5, 6\]"):
        layer(x, c[:1], cu_seqlens=borders)


def test_sequences_of_near_lengths_run_as_one_batch() -> None:
    lengths = [9, 17, 30, 31, 1, 16, 8, 0, 40, 0, 40, 20]
    groups = runtime.near_sequences(borders(lengths).tolist())
    assert [[lengths[i] for i in each] for each in groups] == [
        [40, 40, 31, 30], [20, 17, 16], [9, 8], [1], [0, 0]
    ]  # fmt: skip
    long = [2000, 3000, 2900, 1600, 1510]  # of 4 * 3000 tokens more than 2,048 would be repeated
    assert runtime.near_sequences(borders(long).tolist()) == [[1, 2], [0, 3, 4]]


CHOOSING = {
    "dsa": {"d": 16, "H": 3, "K": 8, "R": 4, "V": 6, "C": 10, "Q": 12, "HI": 2, "KI": 8, "n": 5},
    "nsa": {"d": 16, "H": 4, "G": 2, "K": 8, "V": 8, "size": 4, "stride": 2, "pick": 8, "n": 3,
            "w": 7},
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSING)
def test_what_looks_along_all_tokens_before_runs_few_times(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients are those of each sequence; a state is asked for of each by itself."""
    module, lengths = archc.load(name).module(**CHOOSING[name], dtype=torch.float64), [9, 17, 0, 30]
    x = torch.randn(1, sum(lengths), 16, dtype=torch.float64).requires_grad_()
    runs, near = [], runtime.near_sequences
    monkeypatch.setitem(
        near.__globals__, "near_sequences", lambda given: runs.append(near(given)) or runs[-1]
    )
    found = module(x, cu_seqlens=borders(lengths))
    pieces = [x[:, a:b] for a, b in pairwise(borders(lengths).tolist()) if b > a]
    wanted = torch.cat([module(piece) for piece in pieces], 1)
    weight, learned = torch.randn_like(found), [x, *module.parameters()]
    slopes = [
        torch.autograd.grad((made * weight).sum(), learned, allow_unused=True)
        for made in (found, wanted)
    ]
    for have, want in zip([found, *slopes[0]], [wanted, *slopes[1]], strict=True):
        assert (have is None) == (want is None)
        if have is not None:
            torch.testing.assert_close(have, want, rtol=1e-11, atol=1e-11)
    assert [len(each) for each in runs] == [3]
    made, state = module(x, cu_seqlens=borders(lengths), return_state=True)
    torch.testing.assert_close(made, wanted, rtol=1e-11, atol=1e-11)
    assert len(runs) == 1 and state is not None

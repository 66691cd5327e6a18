"""Tokens that each reader has chosen one by one: programs against the reference and autograd."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

import archc
from archc.api import parse as parsed
from archc.attention.recognise import folds
from archc.attention.row_heads import heads_beside
from archc.attention.scores import scores_of
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import WeightedSum
from archc.compile import lowered, placed, slopes_of
from archc.ir import layer as ir
from archc.lowering.attention_chosen import by_choice
from archc.lowering.attention_scores import log_sums, of_pairs
from archc.lowering.attention_singly import entries_name, of_singly, totals
from archc.lowering.places import candidates, places, short_places
from archc.runtime.layers import top_of
from archc.runtime.listings import (
    at_places,
    bits_of,
    chosen_by_readers,
    entries_of,
    filled,
    largest_places,
    place_blocks,
    places_of,
)
from archc.tile.interpreter import run
from archc.tile.language import Program, statements
from archc.tile.verifier import verify, verify_launch
from archc.verify.fold_trial import FoldTrial, distance, drawn
from tests.schedule.test_choosing import choosing, moved

T, B = 40, 2
SIZES = {"H": 5, "G": 1, "K": 6, "V": 10, "n": 20}
LAYER = """
layer Picked(H, G, K, V, n):
    input q[H, K], k[{keys}K], v[{keys}V], u[{own}K], w[{own}K]
    {params}
    index s <= t:
        I = {index}
    chosen = top(n, I)
    attend {range} in chosen over H{grouped}:
        o = softmax({score}{sink}) @ v[s]
    output o
"""
INDEX = """
layer Index(H, K, n):
    input q[H, K], k[K], u[H, K], w[H], v[K]
    index s <= t:
        I = {index}
    chosen = top(n, I)
    attend s <= t in chosen over H:
        o = softmax(q[t].T @ k[s]) @ v[s]
    output o
"""
SHARED = {"keys": "", "own": "", "index": "sum[K](u[t] * w[s])", "grouped": ""}
GROUPED = {"keys": "G, ", "own": "G, ", "index": "sum[K](u[t] * w[s])", "grouped": " grouped G"}
ALONE = SHARED | {"keys": "H, ", "own": "H, "}
ONE_FOR_ALL = GROUPED | {"own": ""}
PLAIN = {"params": "", "range": "s <= t", "score": "q[t].T @ k[s] / sqrt(K)", "sink": ""}
OTHER = PLAIN | {
    "params": "param rate[H], sink[H]", "range": "t - 9 < s <= t", "sink": ", sink",
    "score": "softcap(q[t].T @ k[s], 3) - rate * (t - s)",
}  # fmt: skip


@cache
def attend_of(text: str) -> ir.Attend:
    """The attend of a layer that reads what is chosen."""
    graph = lowered(archc.parse(text).layer).graph
    attends = [node.op for node in graph if isinstance(node.op, ir.Attend)]
    return next(a for a in attends if any(name == "chosen" for name, _ in a.captures))


class Picked(FoldTrial):
    """A launch of the programs of what is chosen; the list enters with the rest."""

    more: dict[str, float]

    @property
    def sizes(self) -> dict[str, float]:
        return {**super().sizes, **self.more}

    @property
    def constants(self) -> dict[str, int | str]:
        return {**super().constants, "ENTRY": "f64" if self.dtype == torch.float64 else "f32"}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        known = {n: given[n] for n in (b.name for b in program.buffers) if n in given}
        return super().interpreted(program, known)

    def lists(self) -> tuple[Tensor, Tensor]:
        """The tokens of each reader, and how many they are."""
        assert self.fold.choice is not None
        (chosen,) = self.values(self.fold.choice.source.node)
        names = [*self.fold.choice.source.type.names]
        heads = [n for n in names if n not in ("batch", "t", "s")]
        chosen = chosen.permute([names.index(n) for n in ("batch", "t", *heads, "s")])
        return filled(places_of(chosen.bool(), int(self.more["MOST"])))


def launched(text: str, **sizes: int) -> Picked:
    """A launch on normal numbers, of which some readers choose fewer than they may."""
    attend = attend_of(text)
    (fold,) = folds(attend, slopes_of)
    assert isinstance(fold, WeightedSum), fold
    known = {"T#": T, "T_seen#": T, "batch": B, **SIZES, **sizes}
    inputs = {n: x for n, x in drawn(attend, known, torch.float64).items() if n != "chosen"}
    (chosen,) = (n for n in attend.body if isinstance(n.op, ir.Input) and n.op.name == "chosen")
    lengths = {"batch": B, "t": T, "s": T, **known}
    shape = [int(lengths[axis.name]) for axis in chosen.type.axes]
    score = torch.randn(shape, generator=torch.Generator().manual_seed(0)).double()
    inputs["chosen"] = top_of(score, int(known["n"]), chosen.type.names.index("s"))
    case = Picked(fold, attend, known, inputs, block=16)
    most = min(int(known["n"]), T)
    case.more = {"MOST": most, "READERS": T, "FIRST": 0, "ENTRIES": T * most}
    return case


CASES = [
    (SHARED | PLAIN, {}), (SHARED | PLAIN, {"n": 50, "H": 18}), (SHARED | OTHER, {"n": 7}),
    (ALONE | PLAIN, {"H": 3}), (ALONE | OTHER, {"H": 2}),
    (GROUPED | PLAIN, {"G": 3, "H": 6}), (ONE_FOR_ALL | OTHER, {"G": 2, "H": 12, "n": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("parts", "sizes"), CASES)
def test_values_and_gradients(parts: dict[str, str], sizes: dict[str, int]):
    case = launched(LAYER.format(**parts), **sizes)
    (wanted,) = case.values(case.fold.node)
    listed, count = case.lists()
    known = {**case.sources(), "listed": listed, "count": count}
    known |= case.interpreted(by_choice(case.fold), known)
    groups = case.fold.choice is not None and "n_group" in axes_of(by_choice(case.fold), "o")
    assert distance(_flat(known["o"], groups, 2), wanted.detach()) < 1e-12
    d_o = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double()
    known["d_o"] = d_o.view(known["o"].shape)
    found = gradients(case, known)
    for name in case.fold.learned:
        if case.fold.source(name).role != "read":
            found[name] = _flat(known[f"d_{name}"], groups, 2 if name == "q" else 1)
    inputs = {n: x for n, x in case.inputs.items() if x.requires_grad}
    slopes = torch.autograd.grad(wanted, [*inputs.values()], d_o)
    for name, slope in zip(inputs, slopes, strict=True):
        d = found[name].sum((0, 2)) if name in ("rate", "sink") else found[name]
        assert distance(d, slope) < 1e-11, name


def axes_of(program: Program, name: str) -> list[str]:
    """The axes of a buffer."""
    return [axis for b in program.buffers if b.name == name for axis, _ in b.axes]


def _flat(x: Tensor, groups: bool, place: int) -> Tensor:
    """Heads of all groups as one axis."""
    return x.flatten(place, place + 1) if groups else x


def gradients(case: Picked, known: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of what is of the token read, of a few readers at a time; `known` gets those of
    readers."""
    step, program, made = 17, of_singly(case.fold), {}
    beside = math.prod(int(case.sizes[f"N_{n}"]) for n in heads_beside(case.fold))
    for first in range(0, T, step):
        readers = min(step, T - first)
        case.more |= {"FIRST": first, "READERS": readers}
        each = case.interpreted(program, known)
        lists = [known[n][:, first : first + readers] for n in ("listed", "count")]
        order, begins = entries_of(lists[0], lists[1], T, beside)
        for source in map(case.fold.source, case.fold.learned):
            if source.role == "read":
                entries = each.pop(entries_name(source))
                parts = entries.shape[-2]
                entries = entries.reshape(B, readers * entries.shape[2], beside, parts, -1)
                shape = (B, T, beside, entries.shape[-1])
                total = made.setdefault(source.name, torch.zeros(shape).double())
                case.more |= {"B": B, "S": T, "X": beside, "D": shape[-1], "PARTS": parts}
                case.more["ENTRIES"] = entries.shape[1]
                add(case, {"entries": entries, "total": total, "order": order, "begins": begins})
        known |= each
    return {n: x.view(case.inputs[n].shape) for n, x in made.items()}


def add(case: Picked, given: dict[str, Tensor]) -> None:
    """Add entries to totals."""
    constants = {"BLOCK_T": 16, "BLOCK_D": 16, "ENTRY": "f64"}
    run(totals(), given, case.more, constants, exact=True)


def test_places_and_back():
    score = torch.randn(2, 5, 3, 11, generator=torch.Generator().manual_seed(0))
    chosen = top_of(score.where(score > -1, -torch.inf), 4, -1)
    listed = places_of(chosen, 4)
    assert torch.equal(at_places(listed, 11, -1), chosen)
    for own, found in zip(chosen.view(-1, 11), listed.view(-1, 4), strict=True):
        assert found[found >= 0].tolist() == own.nonzero()[:, 0].tolist()
    assert torch.equal(at_places(listed.movedim(-1, 1), 11, 1), chosen.movedim(-1, 1))


@pytest.mark.parametrize("past", [0, 6])
def test_readers_choose_a_few_at_a_time(past: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("archc.runtime.listings.PAIRS", 30)
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 9, 4, generator=generator), torch.randn(2, 9 + past, 4)

    def choose(q: Tensor, k: Tensor, pos: int) -> Tensor:
        t, s = pos + torch.arange(q.shape[1]), torch.arange(k.shape[1])
        assert k.shape[1] == pos + q.shape[1]
        score = torch.einsum("btk,bsk->bts", q, k).where(s <= t[:, None], -torch.inf)
        return score

    listed = chosen_by_readers(choose, (q,), (k,), past, 8, 3, -1)
    assert torch.equal(at_places(listed, 9 + past, -1), top_of(choose(q, k, past), 3, -1))


@pytest.mark.parametrize("range", ["s <= t", "t - 9 < s <= t"])
@pytest.mark.parametrize(
    "index",
    ["sum[H](w[t] * relu(u[t] @ k[s]))", "sum[H](tanh(q[t] @ v[s]) * (t - s))",
     "sum[H](w[t] * softcap(u[t] @ k[s], 2))"],
)  # fmt: skip
def test_scores_are_sums_over_heads(index: str, range: str):
    """Of a block of pairs, head after head; what heads share is loaded once, and -inf where nothing
    is read."""
    text = INDEX.format(index=index).replace("index s <= t", f"index {range}")
    (attend,) = choosing(moved(parsed(text).layer))
    scores = scores_of(attend)
    assert scores is not None and scores.over == "H"
    known = {"T#": T, "T_seen#": T, "batch": B, "H": 3, "K": 6, "n": 4}
    case = FoldTrial(scores.fold, attend, known, drawn(attend, known, torch.float64))
    (wanted,) = case.values(scores.fold.node)
    found = case.interpreted(of_pairs(scores), case.sources())
    read = wanted > -math.inf
    assert torch.equal(read, found["o"] > -math.inf) and not read.all()
    assert distance(found["o"][read], wanted[read].detach()) < 1e-12


EACH = """
layer Each(H, G, K, n):
    input q[H, K], k[G, K], u[K], w[K], z[G, K]
    index s <= t over {heads}:
        I = {index}
    chosen = top(n, I)
    attend s <= t in chosen over H grouped G:
        o = softmax(q[t].T @ k[s]) @ k[s]
    output o
"""


@pytest.mark.parametrize(
    ("heads", "index"),
    [("H grouped G", "max[H in G](q[t].T @ k[s])"), ("G", "z[t].T @ k[s] - 0.1 * (t - s)"),
     ("G", "-sum[K]((u[t] - w[s]) ** 2)"),
     ("G", "exp(-sum[K]((z[t] - k[s]) ** 2)) - u[t].T @ w[s]")],
)  # fmt: skip
def test_scores_of_each_head(heads: str, index: str):
    """A number of each pair and head, and not of each channel, as a distance might have."""
    (attend,) = choosing(moved(parsed(EACH.format(heads=heads, index=index)).layer))
    attend = as_folds(attend)
    scores = scores_of(attend)
    assert scores is not None and not scores.over
    known = {"T#": T, "T_seen#": T, "batch": B, "H": 4, "G": 2, "K": 6, "n": 4}
    case = FoldTrial(scores.fold, attend, known, drawn(attend, known, torch.float64))
    (wanted,) = case.values(scores.fold.node)
    found = case.interpreted(of_pairs(scores), case.sources())["o"]
    have = ["batch", "t", *(head.name for head in scores.fold.heads), "s"]
    found = found.permute([have.index(n) for n in attend.body[scores.fold.node].type.names])
    read = wanted > -math.inf
    assert torch.equal(read, found > -math.inf)
    assert distance(found[read], wanted[read].detach()) < 1e-12


@pytest.mark.parametrize("sizes", [{"H": 6, "G": 3}, {"H": 4, "G": 1}, {"H": 20, "G": 2}])
def test_weights_of_a_softmax_are_summed_over_the_heads_of_a_group(sizes: dict[str, int]):
    """By the log of their sum, which another program finds before; blocks that end later are 0."""
    (attend,) = choosing(moved(lowered(archc.load("nsa").layer)))
    scores = scores_of(attend)
    assert scores is not None and (scores.over, scores.groups) == ("H", "G")
    blocks = (T - 4) // 2 + 1
    known = {"T#": T, "T_seen#": T, "batch": B, "K": 6, "size": 4, "stride": 2, **sizes}
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (B, T, sizes["H"], 6), "k_c": (B, blocks, sizes["G"], 6)}
    inputs = {n: torch.randn(s, generator=generator).double() for n, s in shapes.items()}
    inputs["given"] = torch.arange(3)
    case = Summed(scores.fold, attend, known | {"pick": 16, "n": 2}, inputs)
    (wanted,) = case.values(scores.fold.node)
    given = case.sources()
    given |= case.interpreted(log_sums(scores.fold), given)
    found = case.interpreted(of_pairs(scores), given)["o"]
    assert distance(found.transpose(2, 3), wanted) < 1e-12


def test_weights_whose_log_of_a_total_is_known_are_summed_where_a_block_has_pairs():
    """In the dtype of the data, as products of them are; a block of pairs that places rule out has
    no turn."""
    (attend,) = choosing(placed(lowered(archc.load("nsa").layer)))
    scores = scores_of(attend)
    assert scores is not None and scores.summed and not scores.masked
    blocks, heads = (T - 4) // 2 + 1, {"H": 4, "G": 2, "K": 6}
    known = {"T#": T, "T_seen#": T, "batch": B, "size": 4, "stride": 2, "pick": 16, "n": 2, **heads}
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (B, T, 4, 6), "k_c": (B, blocks, 2, 6), "log_total": (B, T, 4)}
    inputs = {n: torch.randn(s, generator=generator).double() for n, s in shapes.items()}
    inputs["given"] = torch.arange(3)
    case = Summed(scores.fold, attend, known, inputs)
    (wanted,) = case.values(scores.fold.node)
    program = of_pairs(scores)
    found = case.interpreted(program, case.sources())["o"]
    assert distance(found.transpose(2, 3), wanted) < 1e-12
    assert {b.name: b.dtype for b in program.buffers}["o"] == "IO"
    assert "some" in {value.name for each in statements(program.body) for value in each.results}


class Summed(FoldTrial):
    """A launch that reads blocks, which are fewer than tokens."""

    @property
    def sizes(self) -> dict[str, float]:
        return {**super().sizes, "S": self.inputs["k_c"].shape[1]}


def best(score: Tensor, most: int) -> Tensor:
    """The places of the largest of each row by torch's sort, in order, and -1 behind them."""
    made = torch.full((len(score), most), -1, dtype=torch.int32)
    for own, row in zip(made, score, strict=True):
        ranked = row.sort(descending=True, stable=True).indices[:most]
        chosen = ranked[row[ranked] != -math.inf].sort().values
        own[: len(chosen)] = chosen
    return made


def drawn_scores(seed: int, length: int) -> Tensor:
    """Rows of numbers, of which many are equal, infinite, or none."""
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(5, length, generator=generator)
    score = score if seed % 2 else (2 * score).round()
    drawn = torch.rand(5, length, generator=generator)
    score[drawn < 0.2] = -math.inf
    score[(drawn > 0.2) & (drawn < 0.3)] = -0.0
    score[drawn > 0.97] = math.inf
    score[(drawn > 0.92) & (drawn < 0.97)] = math.nan if seed % 4 < 2 else 3.0
    return score


@pytest.mark.default("16-7", "64-0", "64-5")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("room", [16, 64])
def test_programs_list_the_places_of_the_largest(seed: int, room: int):
    """Equals, zeros of both signs, infinities and what is no number, which is the largest; rows
    shorter than the list, and candidates for which there is no room."""
    length, most = (7, 16, 40, 150)[seed % 4], (1, 9, 33)[seed % 3]
    score = drawn_scores(seed, length)
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    kind = [*kinds][seed // 3 % 3]
    score = score.to(kinds[kind])
    known = {
        "score": score, "kept": torch.zeros(5, room),
        "place": torch.zeros(5, room, dtype=torch.int32),
        "found": torch.zeros(5, dtype=torch.int32),
        "listed": torch.full((5, most), -1, dtype=torch.int32),
    }  # fmt: skip
    sizes = {"ROWS": 5, "S": length, "MOST": most, "ROOM": room}
    bits = bits_of(score.dtype)
    constants: dict[str, int | str] = {"IO": kind, "BITS": bits, "BLOCK_S": 16}
    for program in (candidates(), places()):
        assert not verify(program) and not verify_launch(program, {**sizes, **constants})
        given = {buffer.name: known[buffer.name] for buffer in program.buffers}
        run(program, given, sizes, constants)
    assert torch.equal(known["listed"], best(score, most))
    listed = torch.full((5, most), -1, dtype=torch.int32)
    given, constants = {"score": score, "listed": listed}, {**constants, "BLOCK_S": 256}
    assert not verify_launch(short_places(), {**sizes, **constants})
    run(short_places(), given, {n: x for n, x in sizes.items() if n != "ROOM"}, constants)
    assert torch.equal(listed, best(score, most))
    assert torch.equal(largest_places(score, most), best(score, most))
    assert torch.equal(top_of(score.double().T, most, 0), at_places(best(score, most), length, 1).T)


def test_candidates_are_few():
    """Of a row of many numbers few more are kept than are listed; of equals no more than that."""
    drawn = torch.randn(3, 4096, generator=torch.Generator().manual_seed(0))
    score = torch.cat([drawn, torch.zeros(1, 4096), drawn[:1].sort().values])
    block, room, _ = place_blocks(4096, 512)
    given = {"score": score, "kept": torch.zeros(5, room), "found": torch.zeros(5).int()}
    given["place"] = given["kept"].int()
    sizes = {"ROWS": 5, "S": 4096, "MOST": 512, "ROOM": room}
    run(candidates(), given, sizes, {"IO": "f32", "BITS": 31, "BLOCK_S": block})
    assert all(512 <= found <= 1.5 * 512 for found in given["found"].tolist())


def test_latent_is_gathered_once_for_all_heads():
    """Queries go through the weights of keys, so that all heads read the one vector of a token."""
    text = (archc.api.Path("specs") / "dsa.arch").read_text(encoding="utf-8")
    graph = lowered(archc.parse(text).layer).graph
    attends = [node.op for node in graph if isinstance(node.op, ir.Attend)]
    attend = next(a for a in attends if a.decode is not None)
    (fold,) = folds(replace(attend, body=attend.decode, decode=None), slopes_of)
    assert isinstance(fold, WeightedSum)
    assert all(not s.shares for s in fold.sources if s.role == "read")

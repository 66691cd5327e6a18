"""Attends to the tokens of chosen blocks, against loops that choose as the spec says."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.elaborate.forms import agree
from tests.elaborate.specs import codes

T, D = 11, 3
HEAD = "layer L(d, n, size, stride, pick):\n    input x[d], v[d]\n"
BODY = """    blocks b of size every stride:
        k = mean[size](x[b])
    attend b ending <= t:
        g = x[t].T @ k[b]
        p = softmax(g)
    chosen = top(n, {score})
    attend s <= t in chosen:
        o = softmax(x[t].T @ x[s]) @ v[s]
    output o
"""
INSIDE = BODY.replace("    chosen =", "        chosen =")
"""The choice as a line of the block, which sees what may not be read as well."""


def values(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, T, D, generator=generator, dtype=torch.float64)


def scores_of_blocks(x: Tensor, t: int, size: int, stride: int, weigh: bool) -> Tensor:
    """The score of each block that is complete at t."""
    starts = range(0, t - size + 2, stride)
    scores = torch.tensor([float(x[t] @ x[a : a + size].mean(0)) for a in starts])
    return scores.double().softmax(0) if weigh and len(scores) else scores.double()


def read(x: Tensor, v: Tensor, t: int, tokens: list[int]) -> Tensor:
    """Softmax attention of token t to these tokens; zeros if there is none."""
    if not tokens:
        return torch.zeros(D, dtype=torch.float64)
    return (x[tokens] @ x[t]).softmax(0) @ v[tokens]


def in_small_blocks(x: Tensor, v: Tensor, n: int, size: int, stride: int, weigh: bool) -> Tensor:
    """Each token reads the tokens of the n best complete blocks."""
    rows = []
    for t in range(T):
        scores = scores_of_blocks(x, t, size, stride, weigh)
        best = scores.argsort(descending=True, stable=True)[:n].tolist()
        tokens = {s for b in best for s in range(b * stride, b * stride + size)}
        rows.append(read(x, v, t, sorted(tokens)))
    return torch.stack(rows)


def in_large_blocks(
    x: Tensor, v: Tensor, n: int, size: int, stride: int, pick: int, weigh: bool
) -> Tensor:
    """Each token reads the tokens of the n best large blocks: scores are summed over the small ones
    by the strides that both share."""
    rows = []
    for t in range(T):
        scores = scores_of_blocks(x, t, size, stride, weigh)
        large: dict[int, float] = {}
        for c in range(t // pick + 1):
            shared = [
                max(0, min(b * stride + size, (c + 1) * pick) - max(b * stride, c * pick)) / stride
                for b in range(len(scores))
            ]
            if weigh or any(shared):
                large[c] = sum(s * float(score) for s, score in zip(shared, scores, strict=True))
        best = sorted(large, key=lambda c: (-large[c], c))[:n]
        tokens = {s for c in best for s in range(c * pick, (c + 1) * pick) if s <= t}
        rows.append(read(x, v, t, sorted(tokens)))
    return torch.stack(rows)


@pytest.mark.default("2-g-body0", "4-p-body3")
@pytest.mark.parametrize(
    ("stride", "score", "body"),
    [(2, "g", BODY), (2, "g", INSIDE), (4, "p", BODY), (4, "p", INSIDE), (4, "g", BODY)],
)
def test_of_blocks_that_overlap_and_that_do_not(score: str, stride: int, body: str) -> None:
    x, v = values(0), values(1)
    wanted = [in_small_blocks(*pair, 2, 4, stride, score == "p") for pair in zip(x, v, strict=True)]
    sizes = {"d": D, "n": 2, "size": 4, "stride": stride, "pick": 4}
    agree(HEAD + body.format(score=score), {"x": x, "v": v}, torch.stack(wanted), **sizes)


@pytest.mark.default("1-g-body1", "2-p-body3")
@pytest.mark.parametrize(
    ("stride", "score", "body"),
    [(1, "g", BODY), (1, "g", INSIDE), (2, "p", BODY), (2, "p", INSIDE), (2, "2 * g", BODY)],
)
def test_of_larger_blocks_by_scores_and_by_weights(score: str, stride: int, body: str) -> None:
    """A score of a block that is not complete is -inf: it adds nothing, and is no reason to leave
    a large block out."""
    x, v = values(0), values(1)
    wanted = [
        in_large_blocks(*pair, 2, 2, stride, 4, score == "p") for pair in zip(x, v, strict=True)
    ]
    sizes = {"d": D, "n": 2, "size": 2, "stride": stride, "pick": 4}
    text = HEAD + body.format(score=f"{score} on blocks of pick")
    agree(text, {"x": x, "v": v}, torch.stack(wanted), **sizes)


@pytest.mark.parametrize("window", [T, 4])
def test_of_tokens_inside_the_block_that_scores_or_reads_them(window: int) -> None:
    """Of the tokens that may be read alone: a later one is never among the best."""
    x, v = values(0), values(1)
    places = torch.arange(T)
    ahead = places > places[:, None]
    scores = (x @ x.mT).masked_fill(ahead | (places <= places[:, None] - window), -torch.inf)
    kept = torch.zeros_like(scores).scatter(-1, scores.topk(2).indices, 1) == 1
    wanted = scores.masked_fill(~kept, -torch.inf).softmax(-1) @ v
    reads, score = "t - w < s <= t:", "        z = x[t].T @ x[s]\n"
    indexed = f"    index {reads}\n{score}        chosen = top(n, z)\n"
    chosen = f"    attend {reads[:-1]} in chosen:\n        o = softmax(x[t].T @ x[s]) @ v[s]\n"
    at_once = f"    attend {reads}\n{score}        o = softmax(where(top(n, z), z, -inf)) @ v[s]\n"
    head = "layer L(d, n, w):\n    input x[d], v[d]\n"
    for body in (indexed + chosen, at_once):
        agree(head + body + "    output o\n", {"x": x, "v": v}, wanted, d=D, n=2, w=window)


@pytest.mark.parametrize("condition", ["chosen or near", "near or chosen", "not (far and other)"])
def test_of_blocks_in_a_condition_on_tokens(condition: str) -> None:
    """A choice of blocks is one of their tokens wherever it stands: the own block is read too."""
    x, v = values(0), values(1)
    rows = []
    for one, own in zip(x, v, strict=True):
        for t in range(T):
            scores = scores_of_blocks(one, t, 4, 4, weigh=False)
            best = scores.argsort(descending=True, stable=True)[:2].tolist()
            tokens = [s for s in range(t + 1) if s // 4 in best or s // 4 == t // 4]
            rows.append(read(one, own, t, tokens))
    body = f"""        near = s // size == t // size
        far = s // size != t // size
        other = not chosen
        o = softmax(where({condition}, x[t].T @ x[s], -inf)) @ v[s]
"""
    text = HEAD + BODY.format(score="g").replace(" in chosen", "")
    text = "\n".join(line for line in text.splitlines() if "o = softmax" not in line)
    text = text.replace("    output o", body + "    output o").replace(", stride, pick", ", stride")
    sizes = {"d": D, "n": 2, "size": 4, "stride": 4}
    agree(text + "\n", {"x": x, "v": v}, torch.stack(rows).view(2, T, D), **sizes)


def test_numbers_of_blocks_are_not_those_of_tokens() -> None:
    text = HEAD + BODY.format(score="g").replace("softmax(x", "softmax(g + x")
    assert codes(text) == ["E0306"]

"""How many arguments kernels have, and how what they read lies in memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from archc.backends.triton.printer import to_triton

import archc
from archc.compile import programs_of
from archc.runtime.steps import check_dense, dense_rows
from archc.runtime.tokens import in_rows
from archc.tile.given import given_names
from tests.few import few

MOST = 48
SPECS = sorted(path.stem for path in (Path(__file__).parents[3] / "specs").glob("*.arch"))
LONG = re.compile(r"(?<![#\w.])\d+\.\d{5,}(?:e\S\d+)?|(?<![#\w.])\d{5,}")
LARGEST = ("fox", "mom", "nsa", "slstm")


@pytest.mark.parametrize("spec", few(SPECS, LARGEST))
def test_a_kernel_is_one_that_a_reader_takes_in(spec: str) -> None:
    """It has few arguments, and a word where a number that says nothing stands first."""
    for name, program in programs_of(archc.load(spec).layer).items():
        strides = sum(len(buffer.steps) for buffer in program.buffers)
        count = len(program.buffers) + strides + len(given_names(program))
        assert count <= MOST, name
        _, doc, body = to_triton(program).split('"""')
        lines = body.split("\n")
        near = ["".join(lines[max(0, at - 5) : at + 5]) for at in range(len(lines))]
        first = {n: at for at in reversed(range(len(lines))) for n in LONG.findall(lines[at])}
        bare = {n for n, at in first.items() if n not in doc and "#" not in near[at]}
        assert not bare, name


WIDE = torch.randn(2, 5, 40)
VIEWS = {
    "whole": WIDE,
    "a part of a wider tensor": WIDE[..., 8:20].unflatten(-1, (3, 4)),
    "every other token": WIDE[:1, ::2],
    "one number for all tokens": torch.ones(2, 1, 1, 3).expand(2, 5, 1, 3)[:, :, 0],
    "heads first": torch.randn(2, 3, 5, 4).transpose(1, 2),
    "heads that share": torch.randn(2, 5, 1, 4).expand(2, 5, 3, 4),
    "tokens after the first": WIDE[:, 1:],
    "one token of each": WIDE[:, 2:3],
    "one token of any stride": torch.randn(2, 12).as_strided((2, 1, 12), (12, 1, 1)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_tokens_are_read_where_they_are(view: str) -> None:
    """An address is that of a token, by one stride, and a place in it."""
    x = VIEWS[view]
    (y,) = in_rows(x)
    (batch, tokens), inner = y.shape[:2], y.shape[2:]
    rows = torch.as_strided(
        y, (batch * tokens, inner.numel()), (y.stride(1), 1), y.storage_offset()
    )
    assert torch.equal(rows.reshape(y.shape), x)


def test_what_is_read_as_it_is_has_no_copy() -> None:
    for name in ("whole", "a part of a wider tensor", "every other token"):
        assert in_rows(VIEWS[name])[0] is VIEWS[name], name


def test_a_pool_is_written_in_whole_rows() -> None:
    pool = torch.zeros(6, 2, 3, 4)
    apart = pool[::2]
    assert dense_rows(apart) is apart
    check_dense("decode", "into[0]", pool[1:])
    turned = pool.transpose(1, 2)
    assert dense_rows(turned).is_contiguous()
    with pytest.raises(ValueError, match=r"each row of `into\[0\]`, a pool, must be contiguous"):
        check_dense("decode", "into[0]", turned)
    with pytest.raises(ValueError, match=r"rows of `into\[0\]`, a pool, must not share memory"):
        check_dense("decode", "into[0]", pool[:1].expand(6, 2, 3, 4))

"""Few readers of many tokens: heads as rows, parts of what is read, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
import torch
from archc.backends.triton.fold_op import FEW
from torch import Tensor

from archc.attention.row_heads import rows_of
from archc.lowering.attention_heads import by_parts, joined, turned
from archc.runtime import folds
from archc.tile.language import Program
from archc.verify.fold_trial import distance
from tests.attention.cases import Launch, launch, spec
from tests.attention.test_folds import SCORES, SIZES

LOOSE = spec().replace("k[H, K], v[H, V]", "k[K], v[V]")
"""Heads that all read the same keys and values."""


@dataclass
class Few:
    """The last few readers of a launch, in parts."""

    case: Launch
    readers: int
    parts: int

    def sources(self) -> dict[str, Tensor]:
        """What the programs read: of readers the last ones."""
        given = self.case.sources()
        for source in self.case.fold.sources:
            if source.role == "reader":
                given[source.name] = given[source.name][:, -self.readers :]
        return given

    def run(self, make: Callable[..., Program] = by_parts) -> dict[str, Tensor]:
        """o and the log of the sum of weights, by programs of parts."""
        case = self.case
        tokens = case.known["T#"]
        known = {**case.known, "T#": self.readers}
        few = _Few(case.fold, case.attend, known, case.inputs, case.dtype, case.block)
        few.more = {"POS": tokens - self.readers, "PARTS": self.parts}
        given = self.sources()
        made = few.interpreted(make(case.fold), given)
        return few.interpreted(joined(case.fold), made)


class _Few(Launch):
    """A launch with numbers of its own."""

    more: dict[str, float]

    @property
    def sizes(self) -> dict[str, float]:
        return {**super().sizes, **self.more}

    @property
    def constants(self) -> dict[str, int | str]:
        return {**super().constants, "BLOCK_PARTS": 16}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        known = {n: given[n] for n in (b.name for b in program.buffers) if n in given}
        return super().interpreted(program, known)


QUICK = ("capped", "window, sink", "forgetting", "unnormalised")


def few(name: str, readers: int, parts: int) -> None:
    """Hold what the last readers find against the reference."""
    text, sizes = SCORES[name]
    case = launch(text, 40, B=1, **SIZES, **sizes)
    (wanted,) = case.values(case.fold.node)
    found = Few(case, readers, parts).run()
    assert distance(found["o"], wanted.detach()[:, -readers:]) < 1e-12


@pytest.mark.parametrize("name", QUICK)
def test_the_last_readers(name: str):
    few(name, 3, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCORES if name not in QUICK])
def test_the_last_reader_of_other_scores(name: str):
    few(name, 1, 3)


def test_heads_that_share_what_they_read_are_rows():
    assert rows_of(launch(spec(), 4, **SIZES).fold).head is None
    grouped = rows_of(launch(SCORES["capped"][0], 4, **SIZES, G=2, cap=1.0).fold)
    assert grouped.head is not None and (grouped.head.name, grouped.groups) == ("H", "G")
    case = launch(LOOSE, 20, B=1, **SIZES)
    assert rows_of(case.fold).head is not None and rows_of(case.fold).groups is None
    (wanted,) = case.values(case.fold.node)
    found = Few(case, 5, 2).run()
    assert distance(found["o"], wanted.detach()[:, -5:]) < 1e-12
    assert distance(found["lse"], case.forward()["lse"][..., -5:]) < 1e-12


def test_a_latent_that_is_key_and_value_for_all_heads():
    """What multi-head latent attention is where few tokens read many, once its matrices are taken
    to the reader's side: two products, and the latent read once for both."""
    text = spec("(q[t].T @ k[s] + p[t].T @ m[s]) / 4", inputs="p[H, R], m[R]", sizes="R")
    text = text.replace("k[H, K], v[H, V]", "k[K]").replace("v[s]", "k[s]")
    case = launch(text, 40, B=2, **SIZES, R=5)
    (wanted,) = case.values(case.fold.node)
    assert len(case.fold.dots) == 2 and len(case.fold.sources) == 4
    for make in (by_parts, turned):
        found = Few(case, 2, 3).run(make)
        assert distance(found["o"], wanted.detach()[:, -2:]) < 1e-12
        assert distance(found["lse"], case.forward()["lse"][..., -2:]) < 1e-12


def test_parts_in_which_nothing_is_read_count_for_nothing():
    text, sizes = SCORES["window, sink"]
    case = launch(text, 40, B=1, **SIZES, **sizes)
    (wanted,) = case.values(case.fold.node)
    assert distance(Few(case, 2, 9).run()["o"], wanted.detach()[:, -2:]) < 1e-12
    empty = launch(text, 18, B=1, **SIZES, w=0)
    assert (Few(empty, 2, 3).run()["o"] == 0).all()


@pytest.mark.parametrize("name", ["capped", "sloped"])
def test_sequences_of_different_lengths(name: str):
    """Behind a reader's own token a cache holds others, which would reach the result."""
    text, sizes = SCORES[name]
    case = launch(text, 40, **SIZES, **sizes)
    (wanted,) = case.values(case.fold.node)
    at = torch.tensor([17, 39])
    given = case.sources() | {"own_pos": at.int()}
    for source in case.fold.sources:
        if source.role == "reader":
            given[source.name] = given[source.name][torch.arange(2), at][:, None]
    few = _Few(replace(case.fold, ragged=True), case.attend, {**case.known, "T#": 1}, case.inputs)
    few.more = {"POS": 0, "PARTS": 2}
    made = few.interpreted(by_parts(few.fold), given)
    found = few.interpreted(joined(few.fold), made)["o"][:, 0]
    assert distance(found, wanted.detach()[torch.arange(2), at]) < 1e-12


PAGE = 16
"""Tokens of a page, which a block of the launches here divides."""


@pytest.mark.parametrize("name", ["capped", "sloped"])
def test_sequences_in_pages(name: str):
    """What is read lies in pages in any order, of which others hold numbers that are none."""
    text, sizes = SCORES[name]
    case = launch(text, 40, **SIZES, **sizes)
    (wanted,) = case.values(case.fold.node)
    at = torch.tensor([17, 39])
    table = torch.tensor([[5, 2, 0], [1, 7, 4]], dtype=torch.int32)  # 0 is nobody's
    given = case.sources() | {"own_pos": at.int(), "pages": table}
    fold = replace(case.fold, ragged=True, paged=True)
    for source in fold.sources:
        x = given[source.name]
        if source.role == "reader":
            given[source.name] = x[torch.arange(2), at][:, None]
        elif source.role == "read":
            given[source.name] = in_pages(x, table)
    few = _Few(fold, case.attend, {**case.known, "T#": 1, "S": 48}, case.inputs)
    few.more = {"POS": 0, "PARTS": 2, "S": 48, "ROOM": 8 * PAGE, "PAGES": 3, "BLOCK_PAGE": PAGE}
    made = few.interpreted(by_parts(fold), given)
    found = few.interpreted(joined(fold), made)["o"][:, 0]
    assert distance(found, wanted.detach()[torch.arange(2), at]) < 1e-12


def in_pages(x: Tensor, table: Tensor) -> Tensor:
    """Values of tokens [B, S, ...] in pages as a table [B, N] names them: [1, tokens, ...]."""
    padded = torch.nn.functional.pad(x, [0, 0] * (x.dim() - 2) + [0, 48 - x.shape[1]])
    memory = x.new_full((8, PAGE, *x.shape[2:]), torch.nan)
    for own, pages in zip(padded, table.tolist(), strict=True):
        for place, page in enumerate(pages):
            memory[page] = own[place * PAGE : (place + 1) * PAGE] if page else torch.nan
    return memory.flatten(0, 1)[None]


def test_files_call_few_readers_what_their_writer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folds, "by_folds", lambda *tensors: True)
    assert folds.by_few_folds(FEW - 1) and not folds.by_few_folds(FEW)
    with pytest.raises(RuntimeError, match=f"fewer than {FEW} tokens"):
        folds.no_second_gradient_of_fold(None)

"""What a token launches in generation: its products are those that a module makes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc import side_by_side
from archc.show.token_listing import as_text
from archc.side_by_side import SideBySide
from tests.few import but

KDA = """KDA: a token of each sequence in generation, 10 launches on a GPU
  before   7  q; k; v; W_f_up; log_alpha; W_q W_k W_v W_f_down W_beta W_g_down side by side; W_g_up
  memory   1  the step of S
  after    2  y_in; W_o
  4 are products with parameters, each of another value, or for several
  sequences of another width; a kernel stands between two of them"""


def test_kda() -> None:
    assert as_text(archc.load("kda").layer) == KDA


def test_nothing_is_kept() -> None:
    assert not as_text(archc.load("swiglu").layer)


SIZES: dict[str, dict[str, Any]] = {
    "kda": {"d": 8, "H": 2, "K": 4, "V": 4, "r": 4},
    "gated_delta": {"d": 8, "H": 2, "K": 4, "V": 4},
    "attention": {"d": 8, "H": 2, "G": 1},
}


@pytest.mark.default("attention")
@pytest.mark.parametrize("name", but(SIZES, ["kda"]))
def test_products_are_as_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "pays", lambda model: True)
    count = 0

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal count
            name = func.overloadpacket.__name__
            if name in ("mm", "bmm"):
                count += any(x.untyped_storage().data_ptr() in learned for x in args)
            return func(*args, **(kwargs or {}))

    model = archc.load(name).module(backend="triton", **SIZES[name])
    copies = SideBySide(model)
    with torch.no_grad(), copies.used():
        model(torch.randn(1, 1, 8))
        matrices = [*model.parameters(), *(each.matrix for each in copies.known.values())]
        learned = {x.untyped_storage().data_ptr() for x in matrices}
        with Products():
            model(torch.randn(1, 1, 8))
    found = re.search(r"(\d+) are products", as_text(archc.load(name).layer))
    assert found is not None and count == int(found[1])

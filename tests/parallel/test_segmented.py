"""Which recurrences have walks whose segments are joined over processes, and how long these are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sympy
import torch

from archc.compile import with_chunked_forms
from archc.parallel import segmented
from archc.parallel.execute import PieceFunction
from archc.parallel.mesh import Ranks
from archc.parallel.pieces import RECURRENCE, Piece
from archc.parallel.segmented import PROGRAMS, Joining, goes_in_segments, usable
from tests.parallel.test_columns import memory_of


@pytest.mark.parametrize(
    ("name", "K", "goes"),
    [("gated_delta", 128, True), ("gated_delta", 256, False), ("gla", 256, True),
     ("mesa", 64, False), ("mlstm", 64, False)],
)  # fmt: skip
def test_what_goes_in_segments(name: str, K: int, goes: bool) -> None:
    """A matrix of 256 has no room in a kernel that joins; MesaNet's first state is made of what is
    given, which each process would learn; mLSTM's stabiliser is summed up over all tokens."""
    ready = with_chunked_forms(memory_of(name))
    assert goes_in_segments(ready, {"H": 2, "K": K, "V": K}) is goes


@pytest.mark.parametrize(("n", "tokens"), [(2, 32), (3, 20)])
def test_chunks_of_any_length_go_in_segments(
    n: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 20 tokens with 3 rows each have kernels, which ask for how long tiles are."""
    memory = memory_of("gated_delta_product", n=n)
    piece = Piece(RECURRENCE, memory, (), (), False, sympy.Integer(0), {})
    call = PieceFunction(piece, {"H": 2, "K": 128, "V": 128, "n": n}, "triton")
    asked = list[int]()
    monkeypatch.setattr(segmented, "by_kernels", lambda chunk, *given: asked.append(chunk) is None)
    assert call.in_segments
    assert tokens == call.module.CHUNK
    assert usable(call.module, [torch.zeros(1)], 512, call.masked) and asked == [32]


def plain(*given: Any) -> int:
    """The rule of a file for itself."""
    return 0


def test_segments_of_a_part() -> None:
    """Two at least, and not more than programs have room for; alone a file has its own rule."""
    module = SimpleNamespace(launch_kernel=plain, chunks_of_segment=plain)
    joined, ranks = Joining(module), Ranks("cp", None, 0, 2)  # type: ignore[arg-type]  # not asked
    device = torch.device("cpu")
    assert joined.length(64, 512, device, 3, 4) == 0
    with (
        pytest.raises(RuntimeError, match="KDA joined 0 walks, not one"),
        joined.all_of(ranks, "KDA"),
    ):
        assert joined.length(64, 512, device, 3, 4) == 512 // (PROGRAMS // 64)
        assert joined.length(4096, 2, device) == 1 and joined.count == 2
        assert joined.length(4096, 3, device) == 2 and joined.count == 2
    assert joined.ranks is None

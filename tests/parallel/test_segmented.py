"""Which recurrences have walks whose segments are joined over processes, and how long these are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from archc.compile import with_chunked_forms
from archc.parallel.mesh import Ranks
from archc.parallel.segmented import PROGRAMS, Joining, goes_in_segments
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

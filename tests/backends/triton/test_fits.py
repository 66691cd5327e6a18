"""Generated files choose chunks that kernels have room for, before anything is launched."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

pytest.importorskip("triton")

from tests.backends.triton.compiled import launches_of, usual
from tests.backends.triton.launches import distinct, machine_code
from tests.backends.triton.test_compiled import SHARED
from tests.backends.triton.test_op import Recorder, home

T = 128


def called(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, K: int, V: int, chunk: int = 64,
    device: str = "cuda", learns: bool = True,
) -> tuple[int, list[Tensor]]:  # fmt: skip
    """The chunk that the op is given, and its results; of tensors without values, so that they may
    be on a GPU that is not there."""
    module = home("kda")[0]
    recorder = Recorder(module.SPACE.ns)
    with FakeTensorMode(), recorder, monkeypatch.context() as patch:
        like = {"dtype": dtype, "device": device}
        q, k, g = (torch.empty(1, T, 2, K, **like) for _ in range(3))
        v, beta = torch.empty(1, T, 2, V, **like), torch.empty(1, T, 2, **like)
        S = torch.empty(1, 2, K, V, device=device)
        patch.setattr(module, "needs_gradient", lambda *given: learns)
        module.kda_memory(q, k, v, g, beta, S, chunk)
        ((op, given),) = recorder.calls
        return given[-1], op(*given)


@pytest.mark.default("dtype1", "dtype2")
@pytest.mark.parametrize(
    ("dtype", "K", "V", "rows"),
    [
        (torch.float32, 60, 60, 64), (torch.float32, 200, 256, 16), (torch.float32, 256, 60, 32),
        (torch.bfloat16, 256, 256, 64), (torch.float16, 60, 60, 64),
    ],
)  # fmt: skip
def test_chunks_are_as_long_as_there_is_room_for(
    dtype: torch.dtype, K: int, V: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for the gradient has these chunks too; without a gradient they are the same."""
    chunk, made = called(monkeypatch, dtype, K, V)
    assert chunk == rows
    assert [x.numel() for x in made[2:4]] == [T * 2 * rows] * 2
    assert called(monkeypatch, dtype, K, V, learns=False)[0] == rows


def test_a_given_chunk_is_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, torch.float32, 256, 256, chunk=16)[0] == 16


def test_without_a_gpu_nothing_is_shorter(monkeypatch: pytest.MonkeyPatch) -> None:
    assert called(monkeypatch, torch.float32, 256, 256, device="cpu")[0] == 64


def test_no_plan_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    words = r"no tile plan fits K = 300, V = 64 in torch.float32 \(E0701\).* bytes .*chunk=None"
    with pytest.raises(ValueError, match=words):
        called(monkeypatch, torch.float32, 300, 64)


@pytest.mark.slow
@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("spec", ["kda", "delta"])
def test_what_the_table_promises(spec: str, dim: int) -> None:
    """Every kernel in float32 has room on sm_90, in the chunks that the file chose."""
    made = [machine_code(each) for each in distinct(launches_of(usual(spec, dim, "float32")))]
    assert len(made) > 5
    assert not [(each.name, each.shared) for each in made if each.shared > SHARED]

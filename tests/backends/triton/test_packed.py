"""Packed sequences by generated kernels, with states to start from, against each alone in float64:
under Triton's interpreter, with buffers that hold no numbers before they are written."""

from __future__ import annotations

import copy

import pytest
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from tests.backends.triton.processes import printed
from tests.backends.triton.texts import layer_text
from tests.few import few

pytest.importorskip("triton")

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "gla_block", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mesa", "mlstm", "mom", "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip
LIMIT = 1e-4


def wrong(*checks: str) -> dict[str, float]:
    """What is off, or no number; of some checks in one process."""
    found = printed("interpreted_packed", ";".join(checks))
    lines = [line for line in found if not line.startswith("== ")]
    assert len(lines) >= 7 * len(checks), lines
    errors = dict(line.rsplit(": ", 1) for line in lines)
    return {name: float(error) for name, error in errors.items() if not float(error) < LIMIT}


def test_sequences_of_every_length() -> None:
    """No token, one, a few, one less and one more than a chunk has."""
    assert not wrong("gated_delta 4 0,1,15,65,0")


@pytest.mark.slow
def test_sequences_with_decays_of_dims_and_with_several_steps_a_token() -> None:
    assert not wrong("kda 4 15,0,1,48", "gated_delta_product 4 3,0,18")


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    """Lengths around that of a chunk, several and one, dims of about 4 and 20."""
    checks = [f"{spec} 4 0,1,63,64,65,0,5", f"{spec} 4 70", f"{spec} 20 3,0,66"]
    assert not wrong(*checks)


@pytest.mark.slow
def test_memories_of_the_tokens_that_chose_them() -> None:
    """As many tokens as make them packed sequences, of which each place has some of each."""
    assert not wrong("mom 4 150,128")


@pytest.mark.parametrize("spec", few(["kda", "mlstm"], ["mlstm"]))
def test_packed_sequences_need_one_run(spec: str) -> None:
    """Kernels know all borders, and so do the lines of PyTorch between them."""
    text = layer_text(lowered(archc.load(spec).layer), in_kernels)
    assert "packed sequences: each alone" not in text
    assert "tables_of_chunks(cu_seqlens, B, T" in text


def test_tables_of_chunks() -> None:
    """No chunk has tokens of two sequences; those that nobody needs are of none."""
    import torch

    module = load(layer_text(lowered(archc.load("gla").layer), in_kernels), "gla_tables")
    borders = torch.tensor([0, 0, 1, 64, 129, 129], dtype=torch.int32)
    chunks, sequences = module.packed_tables(borders, 129, 64)
    assert chunks[:, 0].tolist() == [1, 2, 3, 3, -1, -1]
    first = [row[1] + 64 * n for n, row in enumerate(chunks[:4].tolist())]
    assert first == [0, 1, 64, 128] and chunks[:4, 3].tolist() == [1, 64, 129, 129]
    assert sequences[:, 4].tolist() == [0, 0, 1, 2, 4]
    assert sequences[:, 5].tolist() == [0, 1, 2, 4, 4]
    found = module.tables_of_chunks(borders, 1, 129, 64)
    assert found[:2] == (5, 6) and found[2] is chunks and found[3] is sequences
    assert module.tables_of_chunks(None, 3, 129, 64) == (3, 3, None, None)


def test_tables_are_made_once_for_borders_that_stay() -> None:
    """Not for others, nor after a change in place, nor of what torch keeps no account of."""
    import torch

    module = load(layer_text(lowered(archc.load("gla").layer), in_kernels), "gla_tables")
    borders = torch.tensor([0, 3, 9])
    first = module.packed_tables(borders, 9, 4)
    assert module.packed_tables(borders, 9, 4) is first
    assert module.packed_tables(borders, 9, 8) is not first
    assert module.packed_tables(borders.clone(), 9, 4) is not first
    assert module.packed_tables(copy.deepcopy(borders), 9, 4) is not first
    borders[1:2].fill_(5)
    changed = module.packed_tables(borders, 9, 4)
    assert changed[1][:, 3].tolist() == [5, 9] and first[1][:, 3].tolist() == [3, 9]
    with torch.inference_mode():
        borders = torch.tensor([0, 3, 9])
        assert module.packed_tables(borders, 9, 4) is not module.packed_tables(borders, 9, 4)


def test_a_nan_stays_in_its_sequence() -> None:
    """What a kernel masks it does not multiply by: outputs, states and gradients of others stay."""
    assert printed("interpreted_nan", "gla") == ["packed: True, 0", "rows: True, 0"]


@pytest.mark.default("128-borders2-0", "70")
@pytest.mark.parametrize(
    ("tokens", "borders", "even"), [(128, None, 1), (70, None, 0), (128, [0, 60, 128], 0)]
)
def test_tokens_are_masked_unless_they_fill_every_chunk(
    tokens: int, borders: list[int] | None, even: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tests.backends.triton.launches import recorded

    module = load(layer_text(lowered(archc.load("linear_attention_simple").layer), in_kernels), "e")
    monkeypatch.setattr(module, "by_kernels", lambda *given: True)
    packed = None if borders is None else torch.tensor(borders)
    q, k, v = (torch.randn(1, tokens, 2, 16, requires_grad=True) for _ in range(3))
    S = torch.zeros(1 if borders is None else len(borders) - 1, 2, 16, 16)
    with recorded() as launches:
        o, _, *_ = module.simple_linear_attention_memory(q, k, v, S, cu_seqlens=packed)
        o.sum().backward()
    assert len(launches) > 3 and {each.given.get("EVEN", even) for each in launches} == {even}

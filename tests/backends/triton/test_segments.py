"""Walks in segments, forward and backward, against the eager form in float64: under Triton's
interpreter, with buffers that hold no numbers before they are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from archc.schedule.segments import chunks_of_segment

pytest.importorskip("triton")

from tests.backends.triton.launches import SHARED, distinct, machine_code, recorded
from tests.backends.triton.processes import printed
from tests.backends.triton.texts import layer_text
from tests.gpu.cases import CHANNELS, Case
from tests.gpu.measure import run
from tests.gpu.memories import always, deciding, memories
from tests.gpu.values import values_for

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mesa", "mlstm", "rwkv7", "ssm_selective",
)  # fmt: skip
"""Bundled specs with a walk that goes in segments."""

OWN = Path(__file__).parent / "recurrences"
LIMIT = 1e-4
SEGMENT = 2


def wrong(*checks: str) -> dict[str, float]:
    """What is off, or no number; of some checks in one process."""
    found = printed("interpreted_segments", ";".join(checks))
    lines = [line for line in found if not line.startswith("== ")]
    assert len(lines) >= 5 * len(checks), lines
    errors = dict(line.rsplit(": ", 1) for line in lines)
    return {name: float(error) for name, error in errors.items() if not float(error) < LIMIT}


@pytest.mark.slow
def test_gates_that_forget_everything() -> None:
    """States to start from, tokens that fill no chunk, chunks that fill no segment."""
    assert not wrong("gates gla 16")


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    checks = [f"layer {spec} 70 4", f"packed {spec} 4 40,0,1,33,70"]
    assert not wrong(*checks, *([f"layer {spec} 49 20"] if spec not in CHANNELS else []))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "before_and_after",
        "by_element",
        "dense_mix",
        "largest",
        "shared_keys",
        "two_deltas",
        "two_sided",
        "weighted_mean",
    ],
)
def test_recurrences_unlike_the_bundled_ones(name: str) -> None:
    assert not wrong(f"layer {OWN / name}.arch 70 4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "dim", "dtype"),
    [
        ("gla", 128, "bfloat16"), ("kda", 128, "float32"), ("kda", 100, "float16"),
        ("mesa", 64, "float32"), ("mlstm", 64, "bfloat16"),
    ],
)  # fmt: skip
def test_their_kernels_compile_for_a_hopper_gpu(spec: str, dim: int, dtype: str) -> None:
    """And need no more shared memory than a program may have. Kernels of both ways that are equal
    to the byte, as kda's, are one."""
    (memory,) = memories(spec)
    case, own = Case(spec, dtype, K=dim, V=dim, T=300, B=1), memory.module.chunks_of_segment
    memory.module.chunks_of_segment = lambda *given: SEGMENT
    with recorded() as launches, deciding(memory, always):
        run(memory, values_for(memory, case, "cpu"), case.chunk)
    memory.module.chunks_of_segment = own
    made = [machine_code(each) for each in distinct(launches) if "_segment_" in each.name]
    assert len(made) >= 2 and all(code.shared <= SHARED for code in made)


def test_tables_and_the_rule_of_a_file() -> None:
    """Every chunk is in one segment, of its own sequence; the plan knows the rule of the file. It
    is asked for the chunks of a sequence, and not where what joins segments is too large."""
    text = layer_text(lowered(archc.load("delta").layer), in_kernels)
    assert "B * n // max(sequences, 1), q.device, 3, 4) if K <= 128 else 0)\n" in text
    given = "the walk does it, given no start and no room for results"
    assert "delta_memory_kernels_segment_scan" not in text, given
    module = load(text, "delta_segments")
    cpu = torch.device("cpu")
    rows, joined = module.segment_tables(None, 2, 300, 5, 2, cpu)
    assert rows[:, 4:6].tolist()[:6] == [[0, 2], [2, 4], [4, 5]] * 2
    assert rows[:6, 6].tolist() == [0, 0, 0, 1, 1, 1] and rows[:, 0].tolist() == [*range(len(rows))]
    assert joined[:, 4:6].tolist() == [[0, 3], [3, 6]] and joined[:, 0].tolist() == [0, 1]
    borders = torch.tensor([0, 0, 100, 129, 129])
    chunks, packed = module.packed_tables(borders, 129, 16)
    rows, joined = module.segment_tables(packed, 4, 129, len(chunks), 3, cpu)
    used = [row for row in rows.tolist() if row[5] > row[4]]
    assert [row[4:6] for row in used] == [[0, 3], [3, 6], [6, 7], [7, 9]]
    assert [row[2:4] for row in used] == [[0, 100]] * 3 + [[100, 129]]
    assert joined[:, 4:6].tolist() == [[0, 0], [0, 3], [3, 4], [4, 4]]
    module.processors_of = lambda device: 132
    for programs in (0, 1, 8, 30, 66, 67):
        for count in (0, 1, 64, 100, 1024, 16384):
            for way in ((), (3, 4)):
                told = module.chunks_of_segment(programs, count, cpu, *way)
                assert told == chunks_of_segment(programs, count, 132, *way)

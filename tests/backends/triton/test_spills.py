"""What a thread spills of each kernel in float32 and with heads of 256, and how long a processor
compiles it: machine code for sm_90, without a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.backends.triton.compiled import launches_of, usual
from tests.backends.triton.launches import distinct, machine_code

LITTLE = 1_024
"""Bytes of a thread on the stack, but for those below."""

LONGEST, LONGER = 20.0, 40.0
"""Seconds of a processor, of two that do other work too; and of those that spill most."""

MORE: dict[tuple[str, int, str], dict[str, int]] = {
    ("gated_delta", 128, "float32"): {
        "gradient_kernels_inter_chunk_scan": 1_536, "gradient_kernels_chunk_output": 6_144,
    },
    ("delta", 128, "float32"): {
        "gradient_kernels_inter_chunk_scan": 1_152, "gradient_kernels_chunk_output": 4_096,
    },
    ("kda", 128, "float32"): {
        "intra_chunk_scores": 2_048, "gradient_kernels_chunk_output": 2_048,
    },
}  # fmt: skip
"""Kernels that spill more, by how their names end: what one has of 64 rows by 128 dims is 64
registers of a thread, in two parts where it enters a product."""


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "dim", "dtype"), MORE)
def test_kernels_spill_no_more_and_compile_no_longer(spec: str, dim: int, dtype: str) -> None:
    """Chunks are of 64 tokens with heads of 128, and of 16 in float32 with heads of 256."""
    chunk = 16 if dtype == "float32" and dim > 128 else 64
    made = [machine_code(each) for each in distinct(launches_of(usual(spec, dim, dtype, chunk)))]
    more = MORE[spec, dim, dtype]
    for each in made:
        most = next((n for end, n in more.items() if each.name.endswith(end)), LITTLE)
        assert each.stack <= most, each
        assert each.seconds < (LONGER if most > 3 * LITTLE else LONGEST), each

"""Every chunk op by kernels, in graphs of a few nodes: the numbers of the oracle."""

from __future__ import annotations

import pytest

from tests.backends.triton.processes import printed

pytest.importorskip("triton")

IN_PYTORCH = {
    "two steps a token, PyTorch does Stack",
    "products, PyTorch does Contract",
}
"""Where several rows of a token meet, and a sum over the rows of products of other rows."""


def test_every_chunk_op_has_the_numbers_of_the_oracle() -> None:
    """Rows of a chunk that is not full, dims that are no powers of 2, both ways and every switch;
    no kernel reads what nobody has written, or writes what another writes."""
    found = dict(line.rsplit(": ", 1) for line in printed("interpreted_ops", "every"))
    assert len(found) > 80 and {name for name in found if "PyTorch does" in name} == IN_PYTORCH
    assert not {name: error for name, error in found.items() if not float(error) < 1e-6}

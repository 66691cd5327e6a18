"""Tensors that are alive at once in a layer by kernels."""

from __future__ import annotations

from tests.backends.triton.peaks import peaks


def test_the_gradient_of_a_region_has_its_inputs_theirs_and_one_more() -> None:
    """SwiGLU: both products, what arrives (where the value is made again), two gradients and that
    of W_out; a forward three of them. An H200 had 1,806 MiB so at this shape."""
    f = 11_008 * 2 * 8192 * 2
    alone, forward, both = peaks("swiglu")
    x = 4096 * 2 * 8192 * 2
    assert (alone, forward, both) == (3 * f, 3 * f + x, 5 * f + 11_008 * 4096 * 2)

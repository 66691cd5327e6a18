"""What a spec calls a value changes no kernel."""

import re

import pytest

import archc
from archc.compile import elaborated, programs_of, text_of
from archc.source import Source

SPEC = """
layer Memory(K, V):
    input q[K], k[K], v[V]
    recurrence S[K, V]:
        S[t] = S[t-1] + k @ v.T
        NAME = S[t].T @ q
    output NAME
"""


def test_an_output_may_begin_like_what_is_saved() -> None:
    """`savedup` once was taken for a value that is saved for the gradient, and stored as one."""
    one, other = (
        text_of(elaborated(Source("m.arch", SPEC.replace("NAME", name))), "triton")
        for name in ("savedup", "results")
    )
    digest = re.compile(r"(?<=sha256 )[0-9a-f]+|(?<=memory_)[0-9a-f]{12}")
    assert digest.sub("", one).replace("savedup", "results") == digest.sub("", other)


@pytest.mark.parametrize("spec", ["gla", "kda"])
def test_buffers_are_called_by_what_they_hold(spec: str) -> None:
    """Not by the op that made them: gradients of scores, and their diagonal."""
    programs = programs_of(archc.load(spec).layer)
    names = {buffer.name for program in programs.values() for buffer in program.buffers}
    ops = re.compile(r"(sum|plus|minus|product|scan)(_\d+)?(_moved)?")
    assert not [name for name in names if ops.fullmatch(name)]
    assert {"d_scores", "d_scores_sum"} <= names

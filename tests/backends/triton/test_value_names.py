"""What a spec calls a value changes no kernel."""

import re

from archc.compile import elaborated, text_of
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

"""Gradients from spans of tokens beside those of all tokens at once, under the interpreter.

TRITON_INTERPRET=1 python -m tests.backends.triton.spans packed
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from archc.runtime.steps import checkpointed
from tests.gpu.cases import Case
from tests.gpu.measure import launched, measure
from tests.gpu.memories import Memory, memories
from tests.gpu.values import values_for

CASE = Case("momentum", "float32", H=2, K=5, V=3, B=2, T=23)
SPAN = 7


def shortened(memory: Memory) -> list[int]:
    """Let spans be short; the tokens of each run, as they come."""
    seen: list[int] = []

    def counted(run: Any, span: int, tokens: list, states: list, *rest: Any) -> tuple:
        def counting(*given: Any) -> tuple:
            seen.append(given[0].shape[1])
            return run(*given)

        return checkpointed(counting, span, tokens, states, *rest)

    own = {"tokens_between": lambda tokens, numbers: min(tokens, SPAN), "checkpointed": counted}
    assert own.keys() <= vars(memory.module).keys()
    vars(memory.module).update(own)
    return seen


def both(case: Case) -> None:
    """The lengths of the spans, and whether the same comes out to the bit."""
    (memory,) = memories(case.spec)
    values = values_for(memory, case, "cpu")
    whole = launched(memory, case, values, "cpu")
    seen = shortened(memory)
    found = launched(memory, case, values, "cpu")
    print("spans:", *seen)
    print("same:", all(torch.equal(found[name], wanted) for name, wanted in whole.items()))


def beside(case: Case) -> None:
    """How many spans there were, and errors beside float64."""
    (memory,) = memories(case.spec)
    seen = shortened(memory)
    for name, (error, most) in measure(case, "cpu").items():
        print(f"{name}: {error < most}")
    print("spans:", *seen)


if __name__ == "__main__":
    if sys.argv[1] == "shared":
        beside(replace(CASE, spec=str(Path(__file__).parent / "cells" / "behind_a_norm.arch")))
    else:
        both(replace(CASE, packed=3, B=1) if sys.argv[1] == "packed" else CASE)

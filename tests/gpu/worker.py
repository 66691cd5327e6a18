"""Runs cases, one a line of JSON from stdin, and prints a line for each: a process of its own, as
one bad access spoils every later launch of a process.

    echo '{"spec": "gla"}' | python -m tests.gpu.worker cuda
"""

from __future__ import annotations

import json
import sys
import time
import traceback

import torch

from tests.gpu.cases import Case
from tests.gpu.measure import measure, repeats
from tests.served import quicken

try:
    from triton import errors as triton_errors
except ImportError:
    triton_errors = None

FAILURES: tuple[type[BaseException], ...] = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError,
    TypeError, ValueError, *([triton_errors.TritonError] if triton_errors else []),
)  # fmt: skip
"""What a case may end with, so that the next one is still run."""


def result(line: str, device: str) -> dict[str, object]:
    """What became of one case; with `"repeat": true`, whether two runs are the same too, and what
    comes out where nothing learns."""
    given = json.loads(line)
    repeat = given.pop("repeat", False)
    case, begun = Case(**given), time.perf_counter()
    try:
        made: dict[str, object] = {"errors": measure(case, device, repeat)}
        if repeat:
            made["repeats"] = repeats(case, device)
        if device == "cuda":  # launches that are still under way fail here
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # other workers need it
    except FAILURES as error:
        lines = traceback.format_exception(error)
        made = {"failed": f"{type(error).__name__}: {error}"[:300], "trace": "".join(lines)[-3000:]}
    return {**made, "seconds": round(time.perf_counter() - begun, 2)}


def main(device: str) -> None:
    """Every case of stdin in turn."""
    torch.set_num_threads(1)
    if device == "cpu" and triton_errors:
        quicken()
    for line in sys.stdin:
        print(json.dumps(result(line, device)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

"""The search's processes under Triton's interpreter, where no launch can be timed.

    TRITON_INTERPRET=1 python -m tests.tune.interpreted linear_attention_simple FOLDER

Prints what `check` and `final` find, of the right kernels and then of wrong ones, as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from archc.bench.contenders import Peer
from archc.bench.job import BACKWARD, FORWARD, Job
from archc.bench.subject import Request, subject
from archc.tune import settings_worker as worker


@contextmanager
def untimed() -> Iterator[tuple[None, None]]:
    """In the place of two events of a GPU."""
    yield None, None


def by_kernels(job: Job, generated=worker.generated) -> tuple[ModuleType, Peer]:
    """The generated file, whose kernels run without a GPU."""
    module, peer = generated(job)
    vars(module)["by_kernels"] = lambda *given: True
    return module, peer


def main() -> None:
    spec, folder = sys.argv[1:]
    asked = Request((FORWARD, BACKWARD), (), (), None, "cpu", "float32", 0.01, {})
    job = subject(spec, (1, 40, 1, 16), asked, Path(folder))
    worker.marked, worker.generated = untimed, by_kernels
    worker.kernel_digest = lambda made: ""
    rows = list(worker.check(job, ["shipped", "8:2"]))
    launches = sorted({kernel for (kernel, _), _, _ in worker.Watched.marks})
    ours = Path(folder) / "ours.py"
    text = ours.read_text()
    changed = text.replace("tl.dot(", "0.99 * tl.dot(", 1)
    assert changed != text
    ours.write_text(changed)
    rows += worker.check(job, ["shipped"])
    print(json.dumps({"rows": rows, "launches": launches}))


if __name__ == "__main__":
    main()

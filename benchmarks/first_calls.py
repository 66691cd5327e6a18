"""First calls of specs at B 2, T 8192, H 32, D 128 in bfloat16 on one GPU: in a fresh process with
an empty cache of machine code, and in another with that cache; and what each kernel took of it.

    python benchmarks/first_calls.py kda gla rwkv7

One spec at a time has all cores. The aims are 20 s and 1 s, forward and with gradients together,
after the file is loaded; the exit status is 3 if one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from archc.bench.job import BACKWARD, FORWARD, LOADING, OURS, Job
from archc.bench.subject import Request, subject
from archc.bench.worker import first

SHAPE = (2, 8192, 32, 128)
SPECS = (
    "kda", "gla", "gated_delta", "linear_attention_simple", "rwkv7", "gated_delta_product", "mesa",
)  # fmt: skip
AIMS = {"cold": 20.0, "warm": 1.0}


def here(path: str) -> None:
    """The first calls of a job in this process, as JSON, with seconds of each kernel by stage."""
    from triton import knobs

    kernels: dict[str, dict[str, float]] = {}

    def note(*, src: Any, times: Any, cache_hit: bool, **others: Any) -> None:
        if not cache_hit:
            stages = [("parsed", times.ir_initialization), *times.lowering_stages]
            kernels[src.name] = {stage: round(taken / 1e6, 2) for stage, taken in stages}

    knobs.compilation.listener = note
    print(json.dumps({"seconds": first(Job.read(Path(path)), OURS), "kernels": kernels}))


def asked(job: Path, seconds: float) -> dict[str, Any]:
    """The same in a process of its own."""
    env = os.environ | {"TRITON_CACHE_DIR": str(job.with_name("cache"))}
    command = [sys.executable, __file__, "--here", str(job)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def lines(spec: str, kind: str, found: dict[str, Any]) -> tuple[bool, list[str]]:
    """Whether the aim is met, and what is printed."""
    taken = {what: seconds for what, seconds in found["seconds"].items() if what != LOADING}
    whole = sum(taken.values())
    parts = ", ".join(f"{what} {seconds:.2f}" for what, seconds in taken.items())
    told = [f"{spec}, {kind}: {whole:.2f} s ({parts}); the aim is {AIMS[kind]:g} s"]
    longest = sorted(found["kernels"].items(), key=lambda each: -sum(each[1].values()))
    for name, stages in longest:
        shares = "  ".join(f"{stage} {seconds:.2f}" for stage, seconds in stages.items())
        told.append(f"    {sum(stages.values()):6.2f} s  {name}: {shares}")
    return whole <= AIMS[kind], told


def main() -> None:
    """Each spec, cold and then warm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("specs", nargs="*", default=SPECS)
    parser.add_argument("--seconds", type=float, default=120, help="that a process may take")
    parser.add_argument("--here", help="the job of one spec, in this process")
    given = parser.parse_args()
    if given.here:
        here(given.here)
        return
    wanted = Request((FORWARD, BACKWARD), (), (1,), None, "cuda", "bfloat16", 1.0, {})
    met = True
    with tempfile.TemporaryDirectory(prefix="first-calls-") as folder:
        for spec in given.specs:
            job = subject(spec, SHAPE, wanted, Path(folder) / spec).write()
            for kind in AIMS:
                enough, told = lines(spec, kind, asked(job, given.seconds))
                print("\n".join(told), flush=True)
                met = met and enough
    sys.exit(0 if met else 3)


if __name__ == "__main__":
    main()

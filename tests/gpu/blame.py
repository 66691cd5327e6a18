"""Which kernel of a case is wrong, and what makes it right: for a line that the sweep prints.

    python -m tests.gpu.blame "spec=mesa dtype=float16 K=8 V=8 T=80" "spec=gla dtype=float32 V=8"

runs each case in processes of its own, all at once: launch by launch, each held against the same
kernel with 4 warps; with 4 warps everywhere; with no tile shorter than 32; with machine code by
the older of Triton's two assemblers, and by it without optimisations; and under compute-sanitizer,
which names the line of a bad access.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from tests.gpu.cases import Case
from tests.gpu.measure import launched, measure
from tests.gpu.memories import memories
from tests.gpu.values import values_for

ROOT = Path(__file__).parents[2]
FAILED = (RuntimeError, ValueError)
Launching = Callable[..., None]
OLDER = str(Path(triton.__file__).parent / "backends/nvidia/bin/ptxas")
WAYS: dict[str, tuple[list[str], dict[str, str]]] = {
    "each launch": (["--each"], {}),
    "4 warps": (["--warps", "4"], {}),
    "tiles of 32": (["--least", "32"], {}),
    "older ptxas": ([], {"TRITON_PTXAS_PATH": OLDER}),
    "older ptxas -O0": ([], {"TRITON_PTXAS_PATH": OLDER, "DISABLE_PTXAS_OPT": "1"}),
    "memcheck": (["--once"], {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
}
"""Arguments, and what is set around the process."""


def case_of(text: str) -> Case:
    """`spec=mesa T=80 state=False`, as a case is printed."""
    found: dict[str, Any] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        kind = type(getattr(Case("x"), name))
        found[name] = value == "True" if kind is bool else kind(value)
    return Case(**found)


def off(x: Tensor, y: Tensor) -> float:
    """The largest difference, over the largest value; inf where one alone is no number."""
    x, y = x.double(), y.double()
    if not torch.equal(x.isnan(), y.isnan()):
        return torch.inf
    difference = torch.where(x == y, 0.0, x - y).nan_to_num().abs().max()
    return float(difference / y.nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1e-30))


def each_launch(launch: Launching) -> Launching:
    """Launches that are waited for, done again with 4 warps, and compared."""

    def run(kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict):
        name = f"{kernel.__name__} of {programs} programs, {options}"
        tensors = [x for x in given if isinstance(x, Tensor) and x.numel()]
        try:
            launch(kernel, programs, given, counts, fixed, options)
            torch.cuda.synchronize()
        except FAILED as error:
            print(f"FAILED  {name}: {str(error).splitlines()[0]}", flush=True)
            raise
        made = [x.clone() for x in tensors]
        launch(kernel, programs, given, counts, fixed, {**options, "num_warps": 4})
        torch.cuda.synchronize()
        worst = max(off(x, y) for x, y in zip(made, tensors, strict=True))
        print(f"{'WRONG ' if worst > 0.01 else 'ok    '}  {worst:.1e} {name}", flush=True)

    return run


def change(case: Case, given: argparse.Namespace) -> None:
    """The modules of a case with other warps, tiles or launches."""
    for memory in memories(case.spec):
        known = vars(memory.module)
        if given.each:
            known["launch_kernel"] = each_launch(known["launch_kernel"])
        if given.warps and "settings_of" in known:
            known["settings_of"] = lambda *of, made=known["settings_of"]: {
                **made(*of), "num_warps": given.warps
            }  # fmt: skip
        if given.warps and "step_warps" in known:
            known["step_warps"] = lambda *of: given.warps
        for name in ("block_of", "step_block"):
            if given.least and name in known:
                known[name] = lambda *of, block=known[name]: max(given.least, block(*of))


def one(case: Case, given: argparse.Namespace) -> None:
    """What is wrong with a case, in this process."""
    change(case, given)
    if given.once:
        for memory in memories(case.spec):
            launched(memory, case, values_for(memory, case, "cuda"), "cuda")
            torch.cuda.synchronize()
        print("ended well")
        return
    found = measure(case, "cuda")
    torch.cuda.synchronize()
    wrong = [f"{name} {error:.1e}" for name, (error, most) in found.items() if not error <= most]
    print(f"WRONG   {'; '.join(wrong)}" if wrong else f"right   {len(found)} values", flush=True)


def asked(text: str, way: str) -> str:
    """What a process says of a case."""
    extra, around = WAYS[way]
    command = [sys.executable, "-m", "tests.gpu.blame", "--here", *extra, text]
    if way == "memcheck":
        program = shutil.which("compute-sanitizer")
        if program is None:
            return "there is no compute-sanitizer"
        command = [program, "--tool", "memcheck", "--print-limit", "3", *command]
    try:
        with tempfile.TemporaryDirectory() as cache:
            around = {**os.environ, "TRITON_CACHE_DIR": cache, **around}
            done = subprocess.run(
                command, cwd=ROOT, env=around, capture_output=True, text=True, timeout=150,
                check=False,
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "took more than 150 s"
    wanted = r"WRONG|FAILED|ok  |right|Invalid|Address|ended|SUMMARY|Misaligned| at .*0x|in kernel"
    lines = [x for x in done.stdout.splitlines() if re.search(wanted, x)][:24]
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    return "\n".join(f"    {x[:170]}" for x in (*lines, *last, f"ended with {done.returncode}"))


def main() -> None:
    """A paragraph for each case and way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--here", action="store_true", help="one case, in this process")
    parser.add_argument("--each", action="store_true", help="wait for every launch, and compare")
    parser.add_argument("--once", action="store_true", help="launches only, nothing is compared")
    parser.add_argument("--warps", type=int, help="of every kernel")
    parser.add_argument("--least", type=int, help="the shortest tile")
    given = parser.parse_args()
    if given.here:
        one(case_of(given.cases[0]), given)
        return
    with ThreadPoolExecutor(16) as pool:
        waiting = [(t, way, pool.submit(asked, t, way)) for t in given.cases for way in WAYS]
        for text, way, each in waiting:
            print(f"== {text}: {way}\n{each.result()}", flush=True)


if __name__ == "__main__":
    main()

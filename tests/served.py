"""Modules run as programs under Triton's interpreter, which is chosen when Triton is imported: each
in a process forked from one that has imported torch, Triton and the compiler, as that takes longer
than most of what they do.

    python -m tests.served     # asked by lines of JSON, which `run` writes
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

IMPORTED = (
    "torch", "torch._dynamo", "torch._subclasses.fake_tensor", "triton", "triton.language",
    "pytest", "archc.compile", "archc.runtime.tiles", "tests.backends.triton.memory",
    "tests.gpu.measure",
)  # fmt: skip


def run(module: str, *arguments: str) -> CompletedProcess[str]:
    """What `python -m module arguments` gives, with TRITON_INTERPRET=1, from the project's root."""
    server = started(os.getpid())
    with tempfile.TemporaryDirectory() as folder:
        asked = {"module": module, "arguments": arguments, "folder": folder,
                 "environment": {"REACH_TEST": os.environ.get("REACH_TEST", "")}}  # fmt: skip
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, f"the process of Triton's interpreter has ended with {server.wait()}"
        out, err = (Path(folder, name).read_text("utf-8") for name in ("out", "err"))
    return CompletedProcess([module, *arguments], int(status), out, err)


@cache
def started(process: int) -> subprocess.Popen[str]:
    """The process that forks; one for each process that asks."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.served"], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    atexit.register(server.communicate)  # no more lines: it ends
    return server


def serve() -> None:
    """One program after another. A fork leaves the loop to run its own, and ends as any process."""
    for name in IMPORTED:
        importlib.import_module(name)
    quicken()
    warm()
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ |= asked["environment"]
        child = os.fork()
        if not child:
            break
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    else:
        return
    for number, name in ((1, "out"), (2, "err")):
        with Path(asked["folder"], name).open("wb") as file:
            os.dup2(file.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[1:] = asked["arguments"]
    runpy.run_module(asked["module"], run_name="__main__", alter_sys=True)


def warm() -> None:
    """What the first spec makes for all is made before a fork (the parser's tables and the rules of
    algebra, most of a second), and what stays is not searched for waste, which would copy it."""
    importlib.import_module("archc").load("gla")
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


def quicken() -> None:
    """Let Triton's interpreter, where it is chosen, do the same in less time."""
    patch_once()
    waste_nothing()


def patch_once() -> None:
    """Let the interpreter change Triton's language for a kernel, and not again for each function
    that it calls, which took a third of the time. What is changed has no builtins any more."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch: Callable[[Any], Any] = interpreter._patch_lang

    @cache
    def seen(fn: Callable[..., Any]) -> list[Any]:
        return [each for each in fn.__globals__.values() if each is tl or each is tl.core]

    def once(fn: Callable[..., Any]) -> Any:
        fresh = any(tl.core.is_builtin(lang.load) for lang in seen(fn))
        return patch(fn) if fresh else interpreter._LangPatchScope()

    interpreter._patch_lang = once


def waste_nothing() -> None:
    """Leave out what the interpreter makes and never looks at, two fifths of its time: a check of
    every integer for overflow whose assertion is off, the types of tuples of sizes, and a table of
    NumPy's types for each that is looked up."""
    import numpy as np
    import triton.language as tl
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    check: Callable[..., None] = TritonSemantic.binary_op_sanitize_overflow_impl
    np_dtype: Callable[[Any], Any] = cache(interpreter._get_np_dtype)
    pointer, types = np.dtype(np.uint64), tl.core._type_for_tuple_values

    def overflow(self: Any, *given: Any) -> None:
        if self.builder.options.debug:
            check(self, *given)

    def quick(kind: Any) -> np.dtype[Any]:
        kind = kind.scalar
        return pointer if isinstance(kind, tl.pointer_type) else np_dtype(kind)

    class Types:
        """The types of a tuple's values, made where one asks."""

        def __get__(self, values: Any, owner: type) -> Any:
            return values.__dict__.get("kinds") or types(values.values)

        def __set__(self, values: Any, kinds: Any) -> None:
            values.__dict__["kinds"] = kinds

    TritonSemantic.binary_op_sanitize_overflow_impl = overflow
    interpreter._get_np_dtype = quick
    tl.core._type_for_tuple_values = lambda values, fields=None: fields and types(values, fields)
    tl.core.tuple.type = Types()


if __name__ == "__main__":
    serve()

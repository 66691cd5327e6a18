"""Checks under Triton's interpreter: in a process of their own."""

from __future__ import annotations

from tests.served import run


def printed(module: str, checks: str) -> list[str]:
    """The lines that a module of this folder prints of some checks."""
    done = run(f"tests.backends.triton.{module}", checks)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()

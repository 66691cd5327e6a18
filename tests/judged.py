"""Mutants of `tests.mutants` that no test can notice, or that none does yet, by id: and why."""

from __future__ import annotations

from collections.abc import Mapping

EQUIVALENT: Mapping[str, str] = {}
"""They mean the same."""

LEFT: Mapping[str, str] = {}
"""They do not, and live."""

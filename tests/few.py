"""Parameters of tests: the default tests try one of each kind, the slow group the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def few(every: Iterable[Any], default: Collection[Any]) -> list[Any]:
    """All parameters, slow but for those in `default`, each of which must be one."""
    found = [*every]
    assert all(each in found for each in default), "not among the parameters"
    return [each if each in default else slow(each) for each in found]


def slow(each: Any) -> Any:
    """A parameter that is slow; a tuple is one for each name."""
    values = each if isinstance(each, tuple) else (each,)
    return pytest.param(*values, marks=pytest.mark.slow)


def but(every: Iterable[Any], left: Collection[Any]) -> list[Any]:
    """All parameters, of which those in `left` are slow, each of which must be one."""
    found = [*every]
    assert all(each in found for each in left), "not among the parameters"
    return few(found, [each for each in found if each not in left])

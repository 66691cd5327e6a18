"""Specs that nobody meant to write are refused with a reason: no other exception, no waiting."""

from __future__ import annotations

import time

import pytest

from archc.diagnostics import ArchError
from archc.elaborate.elaborate import elaborate
from archc.ir.verify import verify
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse
from tests import fuzz

LIMIT = 2.0
"""Seconds of processor time that one spec may take."""


def attempt(seed: int) -> bool:
    """Elaborate a spec; whether it means something. Anything but an ArchError is a failure."""
    text = fuzz.spec(seed)
    start = time.process_time()
    try:
        verify(elaborate(parse(Source("fuzz.arch", text)), None, {}, import_source))
        accepted = True
    except ArchError as error:
        assert error.diagnostics
        for finding in error.diagnostics:
            assert finding.code in finding.render() and finding.as_json()["code"] == finding.code
        accepted = False
    taken = time.process_time() - start
    assert taken < LIMIT, f"seed {seed} took {taken:.1f} s:\n{text}"
    return accepted


def test_some(no_collections: None) -> None:
    accepted = sum(attempt(seed) for seed in range(150))
    assert 3 < accepted < 147, "a mixture of specs that mean something and specs that do not"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(21))
def test_twenty_thousand(part: int, no_collections: None) -> None:
    for seed in range(1000 * part, 1000 * (part + 1)):
        attempt(seed)

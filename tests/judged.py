"""Mutants of `tests.mutants` that no test can notice, or that none does yet, by id: and why."""

from __future__ import annotations

from collections.abc import Mapping

EQUIVALENT: Mapping[str, str] = {
    "27a778896963": "a default that nothing takes: the one place that makes programs gives it",
    "8ce7bfc1f7b7": "a text that is measured, not written, and is as long with another sign",
    "669b1ad30cb1": "a product of two expressions, in another order",
    "e6fbc4c74225": "a power of numbers has the range that its base and exponent give either way, "
    "and nothing else in a normal form but sums and products holds a symbol of it",
    "12dd89d43fcb": "the folder has pages alone",
    "50d4600fefe3": "what an indent belongs to is among the lines: the default is never taken",
    "94358420aee2": "no layer has this rate to the last bit",
    "e9fe79998e3c": "beside dims states have the batch alone, which is no dim of heads",
}
"""They mean the same."""

LEFT: Mapping[str, str] = {
    "8a05d633f878": "two values of a body would have to be put out by one name; no graph here has "
    "such, and without the line the search for a free name would not end",
    "bcaa89b0b2c7": "words of why a value stays, for rules other than `needed` where kernels read "
    "it: pages in the tests have no such layer",
    "8d1671bd884f": "how many launches a sequence in segments takes: the 17 tests that were "
    "asked read no such number",
    "3ce663e055f8": "a barrier over a grid runs on a GPU alone; what compiles it ahead of time was "
    "not asked",
    "3a3ef88b430c": "asked of the two nearest files alone",
    "e3f231988038": "asked of the two nearest files alone",
    "5d9368d4f4c9": "asked of the two nearest files alone",
    "0276136c86bd": "asked up to a test that needs a linter, which was not there",
}
"""They do not, as far as is known, and live."""

"""The settings that are tried for each kernel and class of launches, and the choice among them.

Shipped settings stay unless another is faster by more than what times scatter. What disagrees with
the oracle, or was never held against it, cannot be chosen.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

Launch = tuple[str, str]
"""A kernel, and the class of its launches: dtype, blocks, about how many programs."""

WARPS, STAGES = (2, 4, 8, 16), (1, 2, 3, 4)

GAIN = 0.03
"""How much faster, of the shipped time, settings must be to take the place of the shipped ones."""

TOGETHER = 0.005
"""How much faster all chosen settings must be in one call, or in one with gradients, to be kept;
the other may be as much slower."""


@dataclass(frozen=True)
class Candidate:
    """How every kernel is launched in one trial."""

    warps: int
    stages: int

    @property
    def name(self) -> str:
        """`8:2`."""
        return f"{self.warps}:{self.stages}"

    @property
    def settings(self) -> dict[str, int]:
        """As Triton takes them."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    @staticmethod
    def of(name: str) -> Candidate:
        """The candidate of a name."""
        warps, stages = name.split(":")
        return Candidate(int(warps), int(stages))


SHIPPED = "shipped"
"""The name of the trial with the settings of the file."""


def every(warps: Sequence[int] = WARPS, stages: Sequence[int] = STAGES) -> list[Candidate]:
    """All candidates, in order."""
    return [Candidate(*each) for each in product(warps, stages)]


def chosen(
    times: Mapping[Launch, Mapping[str, Sequence[float]]], right: Collection[str]
) -> dict[Launch, Candidate]:
    """The best candidate of each launch that has one better than what is shipped; of those in
    `right`. Ties go to the first."""
    found: dict[Launch, Candidate] = {}
    for launch, tried in times.items():
        medians = {name: statistics.median(taken) for name, taken in tried.items() if taken}
        shipped = medians.pop(SHIPPED, None)
        allowed = {name: median for name, median in medians.items() if name in right}
        if shipped is None or not allowed:
            continue
        best = min(allowed, key=allowed.__getitem__)
        if allowed[best] < (1 - GAIN) * shipped:
            found[launch] = Candidate.of(best)
    return found


def stand(faster: Collection[float]) -> bool:
    """Whether settings that are so many times as fast as the shipped ones, forward and with
    gradients, are kept: launches that are faster one by one need not be so in their turn, as what
    one leaves in the cache is read by the next."""
    return max(faster) >= 1 + TOGETHER and min(faster) >= 1 - TOGETHER

"""What a pass gives in place of a form or a program that there is not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """Why there is none: the node of the graph that stands in the way, if it is one, and what to
    write instead. `code` is that of a diagnostic that says so. `moved`: kernels would make the
    node's value if it were wanted at all indices of an axis, and in their order."""

    node: int | None
    reason: str
    help: str = ""
    code: str = ""
    moved: bool = False

    def __str__(self) -> str:
        return self.reason

"""The result of the derivation of a Recurrence: its chunked form, and the states that have none."""

from __future__ import annotations

from dataclasses import dataclass

from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph
from archc.recurrence.affine.form import NormalForm, StateForm


@dataclass(frozen=True)
class Kept:
    """States that stay a loop over the tokens: why, what to do, and the node of the body."""

    states: tuple[str, ...]
    reason: str
    help: str = ""
    node: int | None = None
    code: str = "E0607"


@dataclass(frozen=True)
class Derived:
    """The derivation of a Recurrence: its chunked form (None: every state stays a loop), the normal
    forms of its states, those that stay a loop, the laws of the spec that it follows, and the nodes
    of the body that solve systems known to be symmetric and positive definite."""

    graph: Graph | None
    forms: tuple[NormalForm, ...]
    kept: tuple[Kept, ...]
    notes: tuple[str, ...] = ()
    laws: tuple[GivenLaw, ...] = ()
    definite: tuple[int, ...] = ()


class NotChunked(Exception):
    """A group has no chunked form: caught below, where it stays a loop."""

    def __init__(
        self, reason: str, help: str = "", node: int | None = None, code: str = "E0607"
    ) -> None:
        super().__init__(reason)
        self.reason, self.help, self.node, self.code = reason, help, node, code


def user_of(body: Graph, each: StateForm) -> int:
    """The node that uses the whole of a state, and is not the state itself."""
    reads = {read.node for read in each.reads}
    users = (user for id in each.whole for user in body.users(id))
    return next((user for user in users if user not in reads), each.whole[0])

"""Names that graphs give to inputs and outputs beside those of the spec: spelled and read here.

No name of a spec has a bracket or a dot, so that none is taken for one of these.
"""

from __future__ import annotations

_BEFORE = "[t-1]"
_AT_START = "@start"
_LOG = "log_"
_SAVED = "saved."
_GRADIENT = "d."


def state_before(state: str) -> str:
    """The name of a state before the token, an input of the body of a Recurrence."""
    return f"{state}{_BEFORE}"


def state_of(name: str) -> str | None:
    """The state that an input of this name is before the token; None if it is none."""
    return name.removesuffix(_BEFORE) if name.endswith(_BEFORE) else None


def state_at_start(state: str) -> str:
    """The name of a state before a chunk, a result of the loop along the chunks."""
    return f"{state}{_AT_START}"


def state_started(name: str) -> str | None:
    """The state that a value of this name is before a chunk; None if it is none."""
    return name.removesuffix(_AT_START) if name.endswith(_AT_START) else None


def log_name(gate: str) -> str:
    """The name of the logarithm of a gate, which enters a recurrence in place of it."""
    return f"{_LOG}{gate}"


def gate_of(log: str) -> str | None:
    """The gate that a value of this name is the logarithm of; None if the name says of none."""
    return log.removeprefix(_LOG) if log.startswith(_LOG) else None


def saved_name(name: str) -> str:
    """The name of a value that the forward hands to the backward."""
    return f"{_SAVED}{unsaved(name)}"


def is_saved(name: str) -> bool:
    """Whether a value is handed from the forward to the backward."""
    return name.startswith(_SAVED)


def unsaved(name: str) -> str:
    """The name of a value, whether it is handed on or not."""
    return name.removeprefix(_SAVED)


def cotangent(name: str) -> str:
    """The name of the gradient with respect to an input or an output."""
    return f"{_GRADIENT}{name}"


def primal(name: str) -> str | None:
    """The input or output whose gradient has this name; None for what is no gradient."""
    return name.removeprefix(_GRADIENT) if name.startswith(_GRADIENT) else None

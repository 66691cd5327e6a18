"""The parts of the summary of a run of tokens, for each kind of state.

FACTOR      S_end = P * S_start + Q                  P elementwise: a product of decays
RESCALED    the same, divided by exp(m) at every token, m a running maximum: `log P` is a sum
MATRIX      S_end = P @ S_start + Q                  P a matrix between `rows` and `copies`
BLOCKS      S_end[i] = sum over j of P[i, j] * S_start[j] + Q[i]    several states; with more axes
            in `rows` and `copies` than the states', each P[i, j] is a matrix
MAXIMUM     S_end = max(P + S_start, Q)              P a sum of shifts
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.value_names import log_name

FACTOR, RESCALED, MATRIX, BLOCKS, MAXIMUM = "factor", "rescaled", "matrix", "blocks", "maximum"


@dataclass(frozen=True)
class Group:
    """States with one P between them. `gauge` is the running maximum m of rescaled states, which
    are kept multiplied by exp(`sign` * m)."""

    kind: str
    states: tuple[ir.State, ...]
    rows: tuple[Axis, ...] = ()
    copies: tuple[Axis, ...] = ()
    gauge: str = ""
    sign: int = 0

    @property
    def transition(self) -> str:
        """The name of P."""
        name = "P_" + "_".join(state.name for state in self.states)
        return log_name(name) if self.kind == RESCALED else name


def addition(state: str) -> str:
    """The name of Q of a state."""
    return f"Q_{state}"

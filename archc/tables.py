"""Tables about ops and functions: each has an entry for every one, or says so as it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from archc.diagnostics import InternalError

Table = TypeVar("Table", bound=Mapping[Any, Any])


def complete(place: str, table: Table, every: Iterable[Any]) -> Table:
    """A table with exactly these entries, as it is. Raises InternalError otherwise; `place` is its
    name and file."""
    wanted = list(every)
    lacking = [_shown(key) for key in wanted if key not in table]
    unknown = [_shown(key) for key in table if key not in wanted]
    if lacking:
        raise InternalError(f"{place} lacks {', '.join(lacking)}: give each an entry there")
    if unknown:
        raise InternalError(f"{place} has {', '.join(unknown)}, which is not defined anywhere")
    return table


def _shown(key: Any) -> str:
    return key.__name__ if isinstance(key, type) else str(key)

"""Measurements as tables for a README: sequences and layers, a token, and means over shapes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from archc.bench.job import BACKWARD, DECODE, FORWARD, LAYER, LAYER_BACKWARD, OURS, TOKEN
from archc.bench.report import WORDS, Case, Entry, Report, short

GRAPH = ", CUDA graph"
HEAD = ("peer", "ours, ms", "peer", "", "+ backward: ours", "peer", "", "MiB: ours", "peer")


def markdown(found: Report) -> list[str]:
    """All tables that the measurements have rows for, an empty line between two of them."""
    parts = (
        _sequences("memory", found, FORWARD, BACKWARD),
        _tokens("one token", found, DECODE),
        _sequences("layer", found, LAYER, LAYER_BACKWARD),
        _tokens("layer, one token", found, TOKEN),
        _means(found),
    )
    lines: list[str] = []
    for part in parts:
        made = [*part]
        lines += ["", *made] if lines and made else made
    return lines


def _sequences(what: str, found: Report, forward: str, backward: str) -> Iterator[str]:
    """A row for each spec, shape and peer: a forward, one with gradients, and the peak of that."""
    jobs: dict[tuple[str, tuple[int, ...]], dict[str, Case]] = {}
    for case in found.cases:
        if case.what in (WORDS[forward], WORDS[backward]):
            jobs.setdefault((case.spec, case.shape), {})[case.what] = case
    if jobs:
        yield row((what, "B, T, H, D", *HEAD))
        yield row(("---",) * 3 + ("---:",) * (len(HEAD) - 1))
    for (spec, shape), cases in jobs.items():
        one, both = (entries_of(cases.get(WORDS[each])) for each in (forward, backward))
        peers = list(dict.fromkeys(name for each in (one, both) for name in each if name != OURS))
        for peer in peers or [""]:
            yield row((
                spec, ", ".join(map(str, shape)), peer,
                shown_time(one.get(OURS)), shown_time(one.get(peer)), _faster(one.get(peer)),
                shown_time(both.get(OURS)), shown_time(both.get(peer)), _faster(both.get(peer)),
                _peak(both.get(OURS)), _peak(both.get(peer)),
            ))  # fmt: skip


def _tokens(title: str, found: Report, what: str) -> Iterator[str]:
    """A row for each spec, batch and peer: one token as it is called, and in a CUDA graph."""
    jobs: dict[tuple[str, tuple[int, ...]], dict[bool, Case]] = {}
    for case in found.cases:
        if case.what.startswith(WORDS[what]):
            jobs.setdefault((case.spec, case.shape), {})[case.what.endswith(GRAPH)] = case
    if jobs:
        yield row((
            title, "B", "peer", "ours, ms", "peer", "in a CUDA graph: ours", "peer", "",
            "of the bandwidth",
        ))  # fmt: skip
        yield row(("---",) * 3 + ("---:",) * 6)
    for (spec, shape), cases in jobs.items():
        plain, graph = (entries_of(cases.get(each)) for each in (False, True))
        peers = list(dict.fromkeys(name for x in (plain, graph) for name in x if name != OURS))
        for peer in peers or [""]:
            share = graph[OURS].roofline if OURS in graph else None
            yield row((
                spec, str(shape[0]), peer, shown_time(plain.get(OURS)), shown_time(plain.get(peer)),
                shown_time(graph.get(OURS)), shown_time(graph.get(peer)), _faster(graph.get(peer)),
                "" if share is None else f"{share:.0%}",
            ))  # fmt: skip


def _means(found: Report) -> Iterator[str]:
    """How many times as fast ours is, the geometric mean over the shapes of a memory, where there
    are several."""
    several = {who: each for who, each in means(found).items() if each[0] > 1}
    if several:
        yield row(("memory, mean over shapes", "peer", "shapes", "forward", "+ backward"))
        yield row(("---", "---", "---:", "---:", "---:"))
    for who, (shapes, *both) in several.items():
        yield row((*who, str(shapes), *map(shown_mean, both)))


def means(found: Report) -> dict[tuple[str, str], tuple[int, float | None, float | None]]:
    """By memory and peer, how many shapes there are, and how many times as fast ours is forward and
    with gradients, the geometric mean over them."""
    faster: dict[tuple[str, str], dict[str, list[float]]] = {}
    for case in found.cases:
        for entry in case.entries:
            if case.what in (WORDS[FORWARD], WORDS[BACKWARD]) and entry.ours_faster:
                kind = faster.setdefault((_family(case.spec), entry.contender), {})
                kind.setdefault(case.what, []).append(entry.ours_faster)
    made = {}
    for who, kinds in faster.items():
        one, both = (kinds.get(WORDS[what], []) for what in (FORWARD, BACKWARD))
        over = [statistics.geometric_mean(each) if each else None for each in (one, both)]
        made[who] = (max(len(one), len(both)), over[0], over[1])
    return made


def shown_mean(times: float | None) -> str:
    """How many times as fast, as a cell; empty where nobody knows."""
    return "" if times is None else f"{times:.2f}x"


def _family(spec: str) -> str:
    """The name of a row without its sizes, which change with its shape."""
    return re.sub(r" packed \d+| [A-Z]=\d+", "", spec)


def entries_of(case: Case | None) -> dict[str, Entry]:
    """What a case has of each contender, by its name."""
    return {} if case is None else {entry.contender: entry for entry in case.entries}


def row(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"


def shown_time(entry: Entry | None) -> str:
    """Milliseconds, or why there are none; marked where the numbers are wrong."""
    if entry is None:
        return ""
    if entry.milliseconds is None:
        return entry.untimed
    return short(entry.milliseconds) + (" (wrong)" if entry.wrong else "")


def _faster(entry: Entry | None) -> str:
    return shown_mean(None if entry is None else entry.ours_faster)


def _peak(entry: Entry | None) -> str:
    return "" if entry is None or entry.peak_mib is None else f"{entry.peak_mib:,.0f}"

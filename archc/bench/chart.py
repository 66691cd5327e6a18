"""A plot of what was measured, with matplotlib: the extra `bench`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.bench.report import Case, Entry, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#1f5fa8", "#e08a1e", "#7a7a7a", "#4b9b62", "#a6509b", "#b04a3a")


def picture(found: Report) -> Figure:
    """One panel for each thing that is timed, one group of bars for each spec and shape, a bar for
    each contender; a black mark where the least work would end. Raises ImportError where matplotlib
    is missing."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels: dict[str, list[Case]] = {}
    for case in found.cases:
        if any(entry.milliseconds is not None for entry in case.entries):
            panels.setdefault(case.what, []).append(case)
    names = list(dict.fromkeys(e.contender for case in found.cases for e in case.entries))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    rows = [sum(len(case.entries) + 1 for case in cases) for cases in panels.values()] or [1]
    figure = Figure(figsize=(8.5, 1.3 + 0.27 * sum(rows) + 0.6 * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(rows), 1, squeeze=False, height_ratios=rows)
    wide = any(_wide(cases) for cases in panels.values())
    for axes, (what, cases) in zip(grid.flat, panels.items(), strict=False):
        _panel(axes, what, cases, colours, wide)
    handles = {name: grid.flat[0].barh([0], [0], color=colours[name]) for name in names}
    handles["least work"] = grid.flat[0].plot([], [], color="black", lw=2)[0]
    figure.legend(
        handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles),
        frameon=False,
    )  # fmt: skip
    figure.supxlabel(f"milliseconds, medians, on {found.machine.get('device', '')}", fontsize=9)
    return figure


WIDE = 20.0
"""Times of a panel further apart than so many times are drawn on a logarithmic axis, and those of
all other panels beside it, so that all are read alike."""


def _wide(cases: list[Case]) -> bool:
    """Whether times of a panel are that far apart."""
    times = [time for case in cases for e in case.entries if (time := e.milliseconds) is not None]
    return max(times) > WIDE * min(times)


def _panel(axes: Axes, what: str, cases: list[Case], colours: dict[str, str], wide: bool) -> None:
    """Bars from the top down, each with its time written at its end."""
    place, ticks, labels = 0.0, [], []
    for case in cases:
        start = place
        for entry in case.entries:
            _bar(axes, place, case, entry, colours[entry.contender])
            place += 1
        if case.floor_ms is not None:
            axes.plot([case.floor_ms] * 2, [start - 0.5, place - 0.5], color="black", lw=2)
        ticks.append((start + place - 1) / 2)
        labels.append(f"{case.spec}\n{', '.join(map(str, case.shape))}")
        place += 1
    axes.set_yticks(ticks, labels, fontsize=8)
    axes.set_ylim(place - 1.2, -0.8)
    _scale(axes, cases, wide)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_title(what, fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _bar(axes: Axes, place: float, case: Case, entry: Entry, colour: str) -> None:
    """One contender's time and its spread, or why there is none."""
    time, low, high = entry.milliseconds, entry.low or 0.0, entry.high or 0.0
    if time is None:
        beyond = case.floor_ms or 0.0  # the mark is not drawn through words
        axes.text(beyond, place, f"  {entry.contender}: {entry.untimed}", va="center", fontsize=8)
        return
    spread = [[time - low], [high - time]]
    axes.barh(place, time, 0.85, color=colour, xerr=spread, error_kw={"lw": 1, "ecolor": "#333333"})
    number = f"{time:.3g}" if time < 1000 else f"{time:,.0f}"
    wrong = "  WRONG" if entry.wrong else ""
    axes.text(
        high, place, f"  {number}{wrong}", va="center", fontsize=8,
        color="#b00000" if wrong else "black",
    )  # fmt: skip


def _scale(axes: Axes, cases: list[Case], wide: bool) -> None:
    """The axis of times, logarithmic if `wide`, with room for the numbers at the ends of bars."""
    times = [time for case in cases for e in case.entries if (time := e.milliseconds) is not None]
    ends = [e.high or 0.0 for case in cases for e in case.entries if e.milliseconds is not None]
    if not wide:
        axes.set_xlim(0, 1.15 * max(ends))
        return
    least = min([*times, *(case.floor_ms for case in cases if case.floor_ms)])
    axes.set_xscale("log", nonpositive="clip")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlim(least / 1.5, max(ends) * (max(ends) / least) ** 0.15)

"""Measurements as data and as a table."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.table import Table
from rich.text import Text

from archc.bench.job import (
    BACKWARD,
    DECODE,
    FORWARD,
    LAYER,
    LAYER_BACKWARD,
    LOADING,
    OURS,
    TOKEN,
    Job,
    Work,
)  # fmt: skip
from archc.bench.processes import Outcome

WORDS = {FORWARD: "forward", BACKWARD: "forward + backward", DECODE: "decode"}
WORDS |= {LOADING: "loading the file", LAYER: "layer", LAYER_BACKWARD: "layer + backward"}
WORDS |= {TOKEN: "layer, one token"}
LAYERS = [WORDS[LAYER], WORDS[TOKEN], f"{WORDS[TOKEN]}, CUDA graph"]
"""What tokens a second are told of."""


@dataclass(frozen=True)
class Entry:
    """One contender at one thing.

    `milliseconds` is the median, `low` and `high` the quartiles; `ours_faster` the median over
    rounds of its time against ours; `roofline` the share of what the device was seen to do that the
    least work would need. `errors` are those of few tokens against the oracle, `apart` is how far
    from ours it is at the full shape. A `refusal` stands in place of times; `late` are the seconds
    within which a contender was not compiled.
    """

    contender: str
    milliseconds: float | None = None
    low: float | None = None
    high: float | None = None
    rounds: int = 0
    ours_faster: float | None = None
    roofline: float | None = None
    peak_mib: float | None = None
    errors: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    apart: Mapping[str, float] = field(default_factory=dict)
    refusal: str = ""
    late: float = 0.0

    @property
    def untimed(self) -> str:
        """What stands in place of a time, in few words."""
        if self.late:
            return f"not in {self.late:.0f} s"
        return "refused" if self.refusal else "no time"

    @property
    def wrong(self) -> list[str]:
        """Names of what is further off than it may be."""
        return [name for name, off in self.errors.items() if not off <= self.limits[name]]

    def wrongs(self) -> list[str]:
        """The same in words."""
        return [
            f"{name} is off by {self.errors[name]:.1e}, at most {self.limits[name]:.0e}"
            for name in self.wrong
        ]


@dataclass(frozen=True)
class Case:
    """One thing that was timed, of one spec at one shape; `job` is the title of its job."""

    spec: str
    what: str
    shape: tuple[int, int, int, int]
    least: Work
    floor_ms: float | None
    entries: tuple[Entry, ...]
    job: str = ""


@dataclass(frozen=True)
class Report:
    """Everything of a run: the cases, first calls by spec, remarks, processes that failed, and what
    it was taken on."""

    cases: tuple[Case, ...]
    first: Mapping[str, Mapping[str, Mapping[str, float]]]
    remarks: tuple[str, ...]
    broken: tuple[str, ...]
    machine: Mapping[str, str]
    ceilings: Mapping[str, float]

    def failures(self) -> list[str]:
        """The reasons not to rely on the run: numbers of ours that are wrong or missing."""
        found = list(self.broken)
        for case in self.cases:
            for entry in case.entries:
                if entry.contender == OURS:
                    where = f"{case.spec}, {case.what}"
                    found += [f"{where}: {line}" for line in entry.wrongs()]
                    found += [f"{where}: {entry.refusal}"] if entry.refusal else []
        return found

    def plus(self, other: Report) -> Report:
        """Both; the machine is that of the later one."""
        return Report(
            self.cases + other.cases, {**self.first, **other.first},
            tuple(dict.fromkeys(self.remarks + other.remarks)), self.broken + other.broken,
            other.machine or self.machine, other.ceilings or self.ceilings,
        )  # fmt: skip

    def without(self, job: str) -> Report:
        """All but what belongs to a job, by its title."""
        return replace(
            self,
            cases=tuple(case for case in self.cases if case.job != job),
            first={name: each for name, each in self.first.items() if name != job},
            remarks=tuple(line for line in self.remarks if not line.startswith(f"{job}: ")),
            broken=tuple(line for line in self.broken if not line.startswith(f"{job}: ")),
        )

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "machine": dict(self.machine), "ceilings": dict(self.ceilings),
            "first_call_seconds": self.first, "remarks": list(self.remarks),
            "broken": list(self.broken), "cases": [asdict(case) for case in self.cases],
        }  # fmt: skip


def report(outcomes: Sequence[Outcome]) -> Report:
    """The report on the rows of all jobs."""
    cases, remarks, broken, first, machine, ceilings = [], {}, [], {}, {}, {}
    for outcome in outcomes:
        title = title_of(outcome.job)
        if outcome.first:
            first[title] = outcome.first
        for row in outcome.rows:
            if "ceilings" in row:
                ceilings, machine = row["ceilings"], row["machine"]
            elif "broken" in row:
                broken.append(f"{title}: {row['broken']}")
            elif "remark" in row:
                remarks[f"{title}: {row['remark']}"] = None
        cases += [_case(outcome, what, ceilings) for what in _timed(outcome)]
    return Report(tuple(cases), first, tuple(remarks), tuple(broken), machine, ceilings)


def recorded(data: Mapping[str, Any]) -> Report:
    """The report that `Report.data` was made of."""
    cases = []
    for case in data["cases"]:
        entries = tuple(Entry(**entry) for entry in case["entries"])
        read = {"shape": tuple(case["shape"]), "least": Work(**case["least"]), "entries": entries}
        cases.append(Case(**{**case, **read}))
    return Report(
        tuple(cases), data["first_call_seconds"], tuple(data["remarks"]), tuple(data["broken"]),
        data["machine"], data["ceilings"],
    )  # fmt: skip


def title_of(job: Job) -> str:
    """The title of a job in a report: its spec, shape and dtype, and whether it is no sequence of
    the memory."""
    alone = next((name for name in (DECODE, TOKEN) if job.what == (name,)), "")
    kind = f"{alone} " if alone else "layer " if job.whole else ""
    return f"{job.called} {kind}{'x'.join(map(str, job.shape))} {job.dtype}"


def _is_timed(job: Job, what: str) -> bool:
    return what.partition(",")[0] in job.work


def _timed(outcome: Outcome) -> list[str]:
    """The measurements that rows belong to, in order."""
    found = [row["what"] for row in outcome.rows if "what" in row]
    return [what for what in dict.fromkeys(found) if _is_timed(outcome.job, what)]


def _case(outcome: Outcome, what: str, ceilings: Mapping[str, float]) -> Case:
    job, rows = outcome.job, [row for row in outcome.rows if row.get("what") == what]
    plain = what.partition(",")[0]
    least = job.work[plain]
    floor = None
    if ceilings:
        floor = max(least.bytes / ceilings["bytes"], least.flops / ceilings["flops"])
    times = next((row["seconds"] for row in rows if "seconds" in row), {})
    entries = [_entry(name, rows, times, floor) for name in (OURS, *job.against)]
    batch, tokens, heads, dim = job.shape
    if "@" in plain:
        batch, tokens = int(plain.split("@")[1]), 1
    kept = tuple(entry for entry in entries if entry is not None)
    return Case(
        job.called, _words(what), (batch, tokens, heads, dim), least,
        None if floor is None else floor * 1e3, kept, title_of(job),
    )  # fmt: skip


def _words(what: str) -> str:
    plain = re.split("[@,]", what, maxsplit=1)[0]
    return WORDS[plain] + (", CUDA graph" if "graph" in what else "")


def _entry(
    name: str, rows: Sequence[Mapping[str, Any]], times: Mapping[str, list[float]],
    floor: float | None,
) -> Entry | None:  # fmt: skip
    """The entry of one contender, from its rows; None where there are none."""
    made: dict[str, Any] = {}
    limits: dict[str, float] = {}
    for row in rows:
        if row.get("contender") == name:
            made |= {key: row[key] for key in ("errors", "apart", "peak_mib") if key in row}
            limits |= row.get("limits", {})
        if row.get("refused") == name:
            made |= {"refusal": row["reason"], "late": row.get("late", 0.0)}
    own = times.get(name)
    if own:
        low, middle, high = statistics.quantiles(own, n=4, method="inclusive")
        made |= {"milliseconds": middle * 1e3, "low": low * 1e3, "high": high * 1e3}
        made |= {"rounds": len(own), "roofline": None if floor is None else floor / middle}
        if name != OURS and OURS in times:
            ratios = [a / b for a, b in zip(own, times[OURS], strict=True)]
            made["ours_faster"] = statistics.median(ratios)
    return Entry(name, limits=limits, **made) if made else None


# --- tables ----------------------------------------------------------------------------------


def table(found: Report) -> Table:
    """One line a contender and thing; what is wrong is red."""
    made = Table(box=None, header_style="bold", pad_edge=False)
    made.add_column("spec", no_wrap=True)
    made.add_column("B, T, H, D", no_wrap=True)
    made.add_column("what", no_wrap=True)
    made.add_column("who", no_wrap=True)
    for name in ("ms", "quartiles", "ours faster", "roofline", "peak MiB", "error"):
        made.add_column(name, justify="right", no_wrap=True)
    for case in found.cases:
        head = (case.spec, ", ".join(map(str, case.shape)), case.what)
        for entry in case.entries:
            made.add_row(*head, entry.contender, *_cells(entry))
            head = ("", "", "")
    return made


def _cells(entry: Entry) -> list[str | Text]:
    worst = max(entry.errors.values(), default=None)
    shown = Text("" if worst is None else f"{worst:.1e}", style="red" if entry.wrong else "")
    if entry.milliseconds is None:
        return [Text(entry.untimed, style="yellow"), "", "", "", "", shown]
    low, high = entry.low or 0.0, entry.high or 0.0
    return [
        short(entry.milliseconds),
        f"{short(low)}-{short(high)}",
        "" if entry.ours_faster is None else f"{entry.ours_faster:.2f}x",
        "" if entry.roofline is None else f"{entry.roofline:.0%}",
        "" if entry.peak_mib is None else f"{entry.peak_mib:,.0f}",
        shown,
    ]


def short(number: float) -> str:
    """Three digits, without powers of ten."""
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def notes(found: Report) -> list[str]:
    """Lines below the table: first calls, refusals, wrong numbers, ceilings."""
    lines = []
    for spec, kinds in found.first.items():
        told = [
            f"{kind} {', '.join(f'{WORDS[what]} {taken:.1f} s' for what, taken in each.items())}"
            for kind, each in kinds.items()
        ]
        lines.append(f"first call of {spec}: {'; '.join(told)}")
    for case in found.cases:
        for entry in case.entries:
            where = f"{case.spec}, {case.what}, {entry.contender}"
            if entry.refusal:
                lines.append(f"{where}: refused: {entry.refusal}")
            lines += [f"{where}: WRONG: {line}" for line in entry.wrongs()]
            lines += [
                f"{where}: {name} is {off:.1e} apart from ours at the full shape"
                for name, off in entry.apart.items()
                if not off <= 2 * entry.limits[name]
            ]
    lines += [_tokens(case) for case in found.cases if case.what in LAYERS]
    lines += found.remarks
    if found.ceilings:
        copied, product = found.ceilings["bytes"] / 1e12, found.ceilings["flops"] / 1e12
        lines.append(
            f"roofline: {copied:.3g} TB/s copied and {product:.3g} TFLOP/s in a product of matrices"
            " here, against the bytes and operations that no form can do without"
        )
    return lines


def _tokens(case: Case) -> str:
    """Tokens a second of a whole layer."""
    tokens = case.shape[0] * case.shape[1]
    told = [
        f"{entry.contender} {tokens / entry.milliseconds * 1e3:,.0f}"
        for entry in case.entries
        if entry.milliseconds
    ]
    return f"{case.spec}, {case.what}: tokens a second: {', '.join(told)}"

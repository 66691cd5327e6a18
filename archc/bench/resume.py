"""A file of measurements that grows: a run that is begun again goes on where it ended."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archc.bench.job import Job
from archc.bench.processes import Outcome
from archc.bench.report import Report, recorded, report, title_of

SAME = ("commit", "versions")
"""The fields of a record that all numbers of one file must share."""


class OtherRun(ValueError):
    """A file whose numbers are of another commit or other versions, or that is no record."""


def key(job: Job) -> str:
    """The key of a job, equal for the same job of an earlier run: the text timed, and how."""
    text = (Path(job.folder) / "ours.py").read_text(encoding="utf-8")
    how = (job.sizes, job.what, job.batches, job.against, job.device, text)
    digest = hashlib.sha256(json.dumps(how, sort_keys=True).encode()).hexdigest()
    return f"{title_of(job)} {digest[:16]}"


@dataclass
class Progress:
    """The measurements so far, and the keys of the jobs that ended well."""

    found: Report = field(default_factory=lambda: report([]))
    done: list[str] = field(default_factory=list)

    @staticmethod
    def of(path: str, now: Mapping[str, Any]) -> Progress:
        """The progress that a file has recorded, or none where there is no file yet.

        Raises OtherRun if its numbers cannot stand beside those of `now`, the record of this run.
        """
        if not Path(path).is_file():
            return Progress()
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            made = Progress(recorded(data), list(data["done"]))
        except (ValueError, KeyError, TypeError) as error:
            raise OtherRun(f"{path} is no record of `archc bench`") from error
        for name in SAME:
            if data[name] != now[name]:
                raise OtherRun(f"{path} has the {name} {data[name]}, this run {now[name]}")
        return made

    def has(self, job: Job) -> bool:
        """Whether a job need not be run again."""
        return key(job) in self.done

    def add(self, outcome: Outcome) -> None:
        """Take up what was found out about a job, in place of what an earlier run left of it."""
        new = report([outcome])
        self.found = self.found.without(title_of(outcome.job)).plus(new)
        if not new.broken:
            self.done.append(key(outcome.job))

    def note_broken(self, told: str) -> None:
        """Note what could not even be made."""
        self.found = replace(self.found, broken=(*self.found.broken, told))

    def data(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.found.data(), "done": self.done}

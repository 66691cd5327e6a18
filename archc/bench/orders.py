"""From what is asked for to jobs: each is made in a folder of its own, several side by side; one
that the same compiler made before is taken as it is.

    python -m archc.bench.orders make ORDER.json
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import archc.backends
import archc.specs
from archc.bench.folders import alone, own
from archc.bench.job import TOKEN, Job
from archc.bench.layer_token import one_token
from archc.bench.subject import PARTS, Request, subject
from archc.bench.whole import whole
from archc.bench.workers import Workers
from archc.specfile import SUFFIX, bundled, read, split

MAKING = 300.0
"""Seconds for all jobs that are made side by side; those that are left are made one by one."""

STDIN = "-"
"""The spec that is read from standard input."""

OPEN = ("seconds", "against", "peers")
"""The fields of a request that change nothing of what is made."""


@dataclass(frozen=True)
class Order:
    """A spec at a shape, and what is asked of it: of its memory, or of the `whole` layer."""

    spec: str
    shape: tuple[int, int, int, int]
    asked: Request
    whole: bool = False

    def place(self, folder: Path) -> Path:
        """The folder of its job: another one for another compiler, spec, shape or request."""
        asked = {name: each for name, each in asdict(self.asked).items() if name not in OPEN}
        return self._folder(folder, self.shape, self.whole, asked)

    def texts(self, folder: Path) -> Path:
        """The folder of what does not depend on its shape, which other orders share."""
        return self._folder(folder / "texts", self.asked.given, self.asked.fused)

    def _folder(self, folder: Path, *more: object) -> Path:
        where, _ = split(self.spec)
        texts = [] if where == STDIN else [read(where).text, *_beside(where)]
        parts = json.dumps([compiler(), *texts, self.spec, *more], sort_keys=True)
        digest = hashlib.sha256(parts.encode()).hexdigest()
        return folder / f"{Path(where).stem}_{digest[:16]}"

    def job(self, folder: Path) -> Job:
        """Its job, made if it was not. Raises as `subject` does."""
        with alone(self.place(folder) if self.whole else self.texts(folder)):
            return self._made(folder) if self.made(folder) else self._make(folder)

    def _made(self, folder: Path) -> Job:
        place, asked = self.place(folder), self.asked
        return replace(
            Job.read(place / "made.json"), folder=str(place), seconds=asked.seconds,
            against=asked.against, peers=asked.peers,
        )  # fmt: skip

    def _make(self, folder: Path) -> Job:
        place = self.place(folder)
        if self.whole:
            make = one_token if TOKEN in self.asked.what else whole
            made = make(self.spec, self.shape, self.asked, place)
        else:
            texts = None if self.spec == STDIN else self.texts(folder)
            made = subject(self.spec, self.shape, self.asked, place, texts)
        made.write("making.json").rename(place / "made.json")
        return made

    def made(self, folder: Path) -> bool:
        """Whether its job was made before; a spec of standard input is made anew."""
        return self.spec != STDIN and (self.place(folder) / "made.json").is_file()

    def write(self, path: Path) -> None:
        """Its file, which `from_file` reads."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def from_file(path: str) -> Order:
        """The order that `write` wrote."""
        data: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
        asked = data["asked"]
        asked |= {name: tuple(asked[name]) for name in ("what", "against", "batches")}
        return Order(data["spec"], tuple(data["shape"]), Request(**asked), data["whole"])


def _beside(where: str) -> Iterator[str]:
    """The texts of other specs in the folder of one that is no bundled one: it may import them."""
    if where not in bundled():
        for path in sorted(Path(where).resolve().parent.glob(f"*{SUFFIX}")):
            yield path.read_text(encoding="utf-8")


@cache
def compiler() -> str:
    """The digest of the text of the compiler and the bundled specs."""
    made = hashlib.sha256()
    for package in (archc, archc.backends, archc.specs):
        for root in package.__path__:
            for path in sorted(Path(root).rglob("*")):
                if path.suffix in (".py", ".lark", SUFFIX):
                    made.update(path.read_bytes())
    return made.hexdigest()


def make(orders: Iterable[Order], folder: Path, say: Callable[[str], None], cores: int) -> None:
    """Make jobs that were not made yet, side by side, one of those that share their texts; the
    others take little. One that fails is left: `Order.job` tells why."""
    left = [each for each in orders if each.spec != STDIN and not each.made(folder)]
    first = {each.place(folder) if each.whole else each.texts(folder): each for each in left}
    missing = [each for place, each in first.items() if not (place / PARTS).exists()]
    if len(missing) < 2 or cores < 2:
        return
    say(f"compiling {len(missing)} specs")
    with own(folder) as run:
        paths = [run / f"{order.place(folder).name}.order.json" for order in missing]
        for path, order in zip(paths, missing, strict=True):
            order.write(path)
        workers = Workers(run, "archc.bench.orders", folder / "cache")
        workers.side_by_side([("make", path, folder) for path in paths], cores, MAKING)


if __name__ == "__main__":
    Order.from_file(sys.argv[2]).job(Path(sys.argv[3]))

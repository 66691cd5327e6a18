"""The tables of README.md and benchmarks/README.md, written from the records in results/.

    python -m benchmarks.tables              # write them anew, and the plot of memories
    python -m benchmarks.tables --check      # say which are not those of the records

A table stands between `<!-- table: RECORD KIND -->` and `<!-- end -->`: `RECORD.json` of results/,
shown as a KIND of `KINDS`. The line that says where numbers are from is written too.
"""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from archc.bench.job import BACKWARD, FORWARD, LAYER, LAYER_BACKWARD, OURS
from archc.bench.markdown import entries_of, markdown, means, row, shown_mean, shown_time
from archc.bench.report import WORDS, Case, Report, recorded, short

HERE = Path(__file__).resolve().parent
PAGES = (HERE.parent / "README.md", HERE / "README.md")
BOX = re.compile(r"(<!-- table: (\w+) (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
USUAL = (2, 8192, 32, 128)

SCORES = {
    "softmax": ("causal softmax", "torch's attention"),
    "grouped": ("causal softmax, 8 heads of keys", "torch's attention"),
    "cross": ("softmax over 1,024 tokens of another sequence", "torch's attention"),
    "capped": ("soft cap", "FlexAttention"),
    "alibi": ("ALiBi", "FlexAttention"),
    "window": ("window of 512, sink", "FlexAttention, without a sink"),
    "biased": ("a bias learned by distance", "FlexAttention"),
    "fox": ("forget gates", "fla"),
    "path": ("PaTH", "fla"),
    "path_fox": ("PaTH, forget gates", "fla"),
}
"""By the name of a row of `benchmarks.attention`: its score, and its peer."""

CHOSEN = {
    "nsa": "nsa", "nsa_fla": "the same by fla", "dsa_16_65536": "dsa, 64k tokens",
    "mla_16_65536": "mla, the same sizes, dense",
}  # fmt: skip
"""The same of `benchmarks.chosen_layers`."""

MUSTS = {
    ("kda", "fla"): (1.6, 1.6), ("gla", "fla"): (1.6, 1.5), ("delta", "fla"): (2.0, 1.5),
    ("gated_delta", "flash_qla"): (0.8, 0.8), ("linear_attention_simple", "fla"): (1.5, 1.5),
    ("retention", "fla-unguarded"): (1.4, 1.4), ("mamba2", "fla"): (1.4, 1.4),
    ("rwkv7", "fla"): (1.5, 1.3), ("gated_delta_product n=2", "fla"): (1.3, 1.3),
}  # fmt: skip
"""By memory and peer, how many times as fast ours is to be, forward and with gradients."""

Lines = Iterator[str]
Data = Mapping[str, Any]


def origin(data: Data) -> str:
    """Where the numbers of a record are from."""
    machine = data.get("machine", {})
    versions = {**machine, **data["versions"]}
    named = ("torch", "triton", "fla-core", "flash-qla")
    known = {name: versions.get(name, "not installed") for name in named}
    told = [f"{name} {each}" for name, each in known.items() if each != "not installed"]
    device = data.get("device") or machine.get("device")
    return f"One {device}, commit {data['commit']}, {data['date'][:10]}, {', '.join(told)}."


def bench(data: Data) -> Lines:
    """Everything that `archc bench` measured."""
    yield from markdown(recorded(data))


def usual(data: Data) -> Lines:
    """Memories at the usual shape that have peers, each beside the fastest: a row a memory."""
    return beside("memory", _usual(recorded(data)).cases, (FORWARD, BACKWARD))


def shapes(data: Data) -> Lines:
    """How many times as fast memories are, the geometric mean over shapes, beside what must be."""
    yield row(("memory", "peer", "shapes", "forward", "must", "+ backward", "must"))
    yield row(("---", "---", *("---:",) * 5))
    found = means(recorded(data))
    for who in (each for each in MUSTS if each in found):
        many, *both = found[who]
        musts = map(shown_mean, MUSTS[who])
        cells = [cell for pair in zip(map(shown_mean, both), musts, strict=True) for cell in pair]
        yield row((*who, str(many), *cells))


def layers(data: Data) -> Lines:
    """Layers at the usual shape that have peers, each beside the fastest: a row a layer."""
    return beside("layer", _usual(recorded(data)).cases, (LAYER, LAYER_BACKWARD))


def beside(title: str, cases: Sequence[Case], both: tuple[str, str]) -> Lines:
    """What has peers, forward and with gradients, each beside the fastest."""
    found: dict[tuple[str, Any], dict[str, Case]] = {}
    for case in cases:
        found.setdefault((case.spec, case.shape), {})[case.what] = case
    yield row((title, "peer", "forward, ms: ours", "peer", "+ backward: ours", "peer"))
    yield row(("---", "---", *("---:",) * 4))
    for (spec, _), kinds in found.items():
        pair = [kinds.get(WORDS[what]) for what in both]
        times, entries = [_times(case) for case in pair], [entries_of(case) for case in pair]
        peers = {who for each in times for who in each if who != OURS}
        if not peers:
            continue
        best = min(peers, key=lambda who: [each.get(who, inf) for each in times[::-1]])
        cells = [shown_time(each.get(who)) for each in entries for who in (OURS, best)]
        yield row((spec, best, *cells))


def _times(case: Case | None) -> dict[str, float]:
    """Milliseconds by contender."""
    entries = case.entries if case else ()
    return {each.contender: each.milliseconds for each in entries if each.milliseconds}


def _usual(found: Report) -> Report:
    return replace(found, cases=tuple(case for case in found.cases if case.shape == USUAL))


def attention(data: Data) -> Lines:
    """Attentions beside their peers."""
    head = ("score", "T", "peer", "ours, ms", "peer", "", "+ backward: ours", "peer", "")
    yield row((*head, "MiB: ours", "peer"))
    yield row(("---", "---:", "---", *("---:",) * 8))
    for each in data["rows"]:
        ours, peer = each["ours"], each.get("peer", {})
        score, who = SCORES[each["attention"]]
        cells = [score, f"{each['T']:,}", who]
        for name in ("forward_ms", "both_ms"):
            other = peer.get(name)
            cells += [short(ours[name]), short(other) if other else "none"]
            cells += [f"{other / ours[name]:.2f}x" if other else ""]
        yield row((*cells, f"{ours['MiB']:,.0f}", f"{peer['MiB']:,.0f}" if "MiB" in peer else ""))


def chosen(data: Data) -> Lines:
    """Attentions of chosen blocks and tokens."""
    yield row(("", "forward, ms", "+ backward", "MiB"))
    yield row(("---", "---:", "---:", "---:"))
    for each in data["rows"]:
        times = (short(each["forward_ms"]), short(each["both_ms"]), f"{each['MiB']:,.0f}")
        what: str = each["what"]
        yield row((CHOSEN.get(what, what), *times))


def cached(data: Data) -> Lines:
    """A token that reads a cache."""
    yield row(("score", "B", "cache", "G", "ours, us", "of the bandwidth", "torch, plain softmax"))
    yield row(("---", *("---:",) * 6))
    for each in data["rows"]:
        size = (str(each["B"]), f"{each['S']:,}", str(each["G"]))
        times = (f"{each['us']:,.1f}", f"{each['share']:.0%}", f"{each['torch_sdpa_us']:,.1f}")
        yield row((each["attention"], *size, *times))


def latent(data: Data) -> Lines:
    """A token of latent attention."""
    yield row(("sequences", "tokens", "heads", "a token, us", "floor", "of the floor", "torch"))
    yield row(("---:",) * 7)
    for each in data["rows"]:
        size = (str(each["B"]), f"{each['S']:,}", str(each["H"]))
        times = (f"{each['us']:,.0f}", f"{each['floor_us']:,.0f}", f"{each['share']:.0%}")
        yield row((*size, *times, f"{each['torch_us']:,.0f}"))


KINDS: Mapping[str, Callable[[Data], Lines]] = {
    "bench": bench, "usual": usual, "shapes": shapes, "layers": layers, "attention": attention,
    "chosen": chosen, "cached": cached, "latent": latent,
}  # fmt: skip


def written(text: str, results: Path) -> str:
    """A page with its tables written anew."""

    def box(found: re.Match[str]) -> str:
        data = json.loads((results / f"{found[2]}.json").read_text(encoding="utf-8"))
        lines = (origin(data), "", *KINDS[found[3]](data))
        return "\n".join((found[1].rstrip(), *lines, found[4]))

    return BOX.sub(box, text)


def plot(results: Path, to: Path) -> None:
    """The plot of memories at the usual shape, if they are recorded."""
    from archc.bench.chart import picture

    path = results / "bench_memories.json"
    if path.exists():
        found = _usual(recorded(json.loads(path.read_text(encoding="utf-8"))))
        timed = tuple(case for case in found.cases if OURS in _times(case))
        picture(replace(found, cases=timed)).savefig(to, dpi=110)


def main(arguments: Sequence[str]) -> int:
    """Write or check every page."""
    parser = ArgumentParser(description=str(__doc__).split("\n\n", maxsplit=1)[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args(arguments).check
    stale = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = written(text, HERE / "results")
        stale += [page] if made != text else []
        if not check:
            page.write_text(made, encoding="utf-8")
    if not check:
        plot(HERE / "results", HERE / "memories.png")
        return 0
    for page in stale:
        print(f"{page.name}: tables are not those of the records: python -m benchmarks.tables")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`--json`: every verb has it, and answers as `docs/command_line.md` says."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from archc.bench.job import Job
from archc.cli import VERBS, archc
from archc.tune.candidates import Candidate, Launch
from archc.tune.search import Found
from tests.bench.test_report import JOB
from tests.commands.json_page import EXAMPLES, as_promised, verb
from tests.console import BAD, GOOD, run

pytestmark = pytest.mark.usefixtures("empty_folder")

ELSEWHERE = {"convert", "bench", "tune"}
"""Verbs whose example needs a checkpoint, peers or a GPU: tested below, and beside their own."""


def test_every_verb_has_json_and_stands_on_the_page():
    assert {verb(command) for command in EXAMPLES} == {*VERBS}
    for name in VERBS:
        command = archc.get_command(click.Context(archc), name)
        assert command is not None
        assert "--json" in {opt for param in command.params for opt in param.opts}, name


@pytest.mark.parametrize("command", [c for c in EXAMPLES if verb(c) not in ELSEWHERE])
def test_answers_are_as_the_page_says(command: str):
    Path("mine.arch").write_text(GOOD.replace(" = ", "   =  "))
    Path("broken.arch").write_text(BAD)
    done = run(*command.split())
    assert done.exit_code == (1 if "broken" in command else 0), done.stderr
    assert as_promised(command, json.loads(done.stdout)), done.stdout
    told = json.loads(done.stdout)
    if "output" in told:
        assert Path(told["output"]).stat().st_size > 0


@pytest.mark.parametrize(
    "words",
    [("compile", "swiglu", "-o", "-"), ("derive", "lstm", "-o", "-"), ("new", "Mine", "-o", "-"),
     ("compile", "swiglu", "--check", "-o", "f.py"), ("gallery", "swiglu", "-o", "-")],
)  # fmt: skip
def test_two_answers_are_not_asked_for_at_once(words: tuple[str, ...]):
    done = run(*words, "--json")
    assert done.exit_code == 2 and "--json" in done.stderr and not done.stdout


def test_fmt_tells_what_it_wrote_and_what_it_would():
    path = Path("mine.arch")
    path.write_text(GOOD.replace(" = ", "   =  "))
    (told,) = json.loads(run("fmt", "mine.arch", "--diff", "--json").stdout)
    assert told["changed"] and not told["written"] and told["diff"].startswith("--- mine.arch")
    (told,) = json.loads(run("fmt", "mine.arch", "--json").stdout)
    assert told["changed"] and told["written"] and path.read_text() == GOOD
    done = run("fmt", "-", "mine.arch", "--json", stdin=GOOD.replace(" = ", "   =  "))
    piped, still = json.loads(done.stdout)
    assert piped == {"spec": "-", "changed": True, "written": False, "text": GOOD}
    assert still == {"spec": "mine.arch", "changed": False, "written": False}
    Path("torn.arch").write_text("layer (")
    done = run("fmt", "torn.arch", "mine.arch", "--json")
    assert done.exit_code == 1 and "error[" in done.stderr
    assert [each["spec"] for each in json.loads(done.stdout)] == ["mine.arch"]


@pytest.mark.parametrize("better", [False, True])
def test_tune_tells_the_times_and_what_it_chose(better: bool, monkeypatch: pytest.MonkeyPatch):
    """What a search found, in place of one on a GPU."""

    def search(job: Job, *rest: object) -> Found:
        few = ("walk", "few")
        taken = {"shipped": [0.002], "4:1": [0.001 if better else 0.003]}
        machine = {"device": "a GPU", "torch": "2", "triton": "3"}
        chosen: dict[Launch, Candidate] = {few: Candidate(4, 1)} if better else {}
        left = {"8:1": "wrong"}
        return Found(job, chosen, left, {few: taken}, {}, {"walk": "aa"}, machine)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("archc.bench.subject.subject", lambda *asked: JOB)
    monkeypatch.setattr("archc.tune.search.search", search)
    done = run("tune", "kda", "--shapes", "1,64,2,16", "--json", "-o", "found.json")
    told = json.loads(done.stdout)
    assert done.exit_code == 0 and as_promised("tune kda --json", told)
    assert (
        told["output"] == ("found.json" if better else None)
        and better == Path("found.json").exists()
    )
    (shape,) = told["shapes"]
    assert shape["shape"] == list(JOB.shape) and shape["left_out"] == {"8:1": "wrong"}
    (launch,) = shape["launches"]
    assert launch["kernel"] == "walk" and launch["milliseconds"]["shipped"] == 2.0
    chosen = {"num_warps": 4, "num_stages": 1}
    assert launch["chosen"] == (chosen if better else None)

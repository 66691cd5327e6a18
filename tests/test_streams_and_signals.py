"""What a system does to a process: Ctrl-C, full devices, closed streams, links that lead nowhere.
Each verb ends with a status and a reason, never with a traceback."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.console import BAD, GOOD, RUN, run
from tests.few import but, slow

LIGHT = {"check": ["bad.arch"], "explain": ["E0201"]}
HEAVY = {
    "list": [], "show": ["kda"], "fmt": ["-"],
    "compile": ["mine.arch", "-o", "-"], "derive": ["mine.arch", "-o", "-"],
    "verify": ["mine.arch"], "doctor": [], "gallery": ["mine.arch", "-o", "-"],
}  # fmt: skip
VERBS = [
    *(pytest.param(verb, args, id=verb) for verb, args in LIGHT.items()),
    *(pytest.param(v, a, id=v, marks=pytest.mark.slow) for v, a in HEAVY.items()),
]
pytestmark = pytest.mark.usefixtures("empty_folder")


def shell(verb: str, args: list[str], streams: str) -> subprocess.CompletedProcess[str]:
    """A verb of a shell with its streams turned elsewhere."""
    Path("mine.arch").write_text(GOOD)
    Path("bad.arch").write_text(BAD)
    command = shlex.join([*RUN, verb, *args])
    given = GOOD if "<&-" not in streams else None
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} {streams}"], input=given,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.default("explain")
@pytest.mark.parametrize("streams", ["> /dev/full", ">&-"])
@pytest.mark.parametrize(("verb", "args"), VERBS)
def test_no_room_for_what_is_said(verb: str, args: list[str], streams: str) -> None:
    done = shell(verb, args, streams)
    assert done.returncode == 1, done.stderr
    assert "error[E0030]: cannot write to standard output" in done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    reason = "no space left on device" if "full" in streams else "it is closed"
    assert reason in done.stderr


@pytest.mark.default("explain")
@pytest.mark.parametrize(("verb", "args"), VERBS)
def test_a_reader_that_has_enough(verb: str, args: list[str]) -> None:
    done = shell(verb, args, "| head -c 1")
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.default("fmt")
@pytest.mark.parametrize("verb", but(["check", "show", "fmt"], ["show"]))
def test_no_standard_input(verb: str) -> None:
    done = shell(verb, ["-"], "<&-")
    assert done.returncode == 1
    assert "cannot read standard input" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr and "bug" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["show", slow("compile")])
def test_links_that_lead_to_themselves(verb: str) -> None:
    os.symlink("loop.arch", "loop.arch")
    Path("mine.arch").write_text(GOOD)
    there = ["mine.arch", "-o", "loop.arch"]
    for args, code in ((["loop.arch", "-o", "y"], "E0008"), (there, "E0030")):
        done = run(verb, *args)
        assert done.exit_code == 1, done.stderr
        assert f"error[{code}]" in done.stderr and "symbolic link" in done.stderr
        assert "bug" not in done.stderr
    assert os.readlink("loop.arch") == "loop.arch"


def test_products_go_through_no_link_of_others(tmp_path: Path) -> None:
    """The file that a product is written to first has a name that nobody can know, and is new."""
    names: list[str] = []
    program = (
        "import os, sys\nfrom archc.commands import writing\nopened = os.open\n"
        "def noted(path, flags, mode):\n"
        "    assert flags & os.O_EXCL and flags & os.O_CREAT\n    print(path)\n"
        "    return opened(path, flags, mode)\n"
        "writing.os.open = noted\nwriting.write('new.txt', 'text')\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        names.append(done.stdout)
    assert names[0] != names[1] and Path("new.txt").read_text() == "text"
    assert Path("new.txt").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.slow
def test_a_home_that_is_missing_stays_missing(tmp_path: Path) -> None:
    home = tmp_path / "nobody"
    env = {key: value for key, value in os.environ.items() if key != "XDG_CACHE_HOME"}
    done = subprocess.run(
        [*RUN, "check", "kda"], env={**env, "HOME": str(home)}, capture_output=True, text=True,
        check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and not home.exists()


@pytest.mark.default("0.4")
@pytest.mark.parametrize("after", [0.0, 0.4, 1.5])
@pytest.mark.parametrize(
    "args",
    [["check", "kda"], *(pytest.param([verb, "kda"], marks=pytest.mark.slow) for verb in
     ("show", "compile", "verify", "derive", "gallery", "fmt")),
     *(pytest.param([verb], marks=pytest.mark.slow) for verb in ("list", "doctor"))],
    ids=lambda args: args[0],
)  # fmt: skip
def test_ctrl_c(args: list[str], after: float) -> None:
    """At any moment: while things are imported, while work is done, at the end."""
    program = (
        "import archc.__main__ as command\nimport signal\nset_handler = signal.signal\n"
        "def noted(*given):\n    set_handler(*given)\n    signal.signal = set_handler\n"
        "    print('there', flush=True)\nsignal.signal = noted\ncommand.main()"
    )
    start = subprocess.Popen(
        [sys.executable, "-c", program, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert start.stdout is not None and start.stdout.readline() == "there\n"
    time.sleep(after)
    start.send_signal(signal.SIGINT)
    _, said = start.communicate(timeout=300)
    assert start.returncode in (0, 130), said
    assert "Traceback" not in said and "Exception ignored" not in said


def test_ctrl_c_is_a_status_of_its_own() -> None:
    program = (
        "import os, signal\nimport archc.commands.check as check\n"
        "check.layer_of = lambda spec, given: os.kill(os.getpid(), signal.SIGINT)\n"
        "from archc.__main__ import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "kda"], capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")

"""The command line: what goes where, exit status, and how fast it starts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from archc.cli import VERBS
from archc.commands.parameters import read_value
from tests.console import BAD, GOOD, RUN, run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_help_lists_every_verb():
    text = run("--help").stdout
    assert all(f"  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str):
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert VERBS[verb] in " ".join(done.stdout.split())


def test_help_is_quick_and_light(tmp_path: Path):
    """About what click takes to be imported, and without what only a compilation needs."""
    click = used(tmp_path, sys.executable, "-c", "import click, importlib.metadata")
    assert used(tmp_path, *RUN, "--help") < 2 * click
    heavy = modules("--help") & {"torch", "sympy", "networkx", "lark", "rich", "numpy"}
    assert not heavy


@pytest.mark.slow
def test_check_is_quick(tmp_path: Path):
    """About twice what the libraries it stands on take to be imported (1.7 and 2.0 times when this
    was written); the limits leave room for a busy machine, none for another library."""
    libraries = used(tmp_path, sys.executable, "-c", "import sympy, networkx, lark, click")
    assert used(tmp_path, *RUN, "--quiet", "check", "attention") < 2.5 * libraries
    assert used(tmp_path, *RUN, "--quiet", "check", "kda") < 3 * libraries


def used(compiled: Path, *command: str) -> float:
    """Least processor time of a few runs, which other programs on the machine change little; from
    the second run on Python finds modules compiled, as it does on a user's machine."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(compiled)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, capture_output=True, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


@pytest.mark.parametrize("verb", ["check", "show"])
def test_what_is_written_needs_no_torch(verb: str):
    found = modules(verb, "kda")
    assert "sympy" in found and not found & {"torch", "numpy", "rich"}


def test_the_list_needs_no_sympy():
    assert not modules("list") & {"sympy", "networkx", "torch", "numpy"}


def modules(*args: str) -> set[str]:
    """Modules that a run imports."""
    program = (
        "import sys\nfrom archc.cli import archc\n"
        f"try: archc({list(args)!r})\nexcept SystemExit: pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.rsplit("\n", 2)[-2].split())


def test_a_misspelt_verb_is_told_the_nearest():
    done = run("chek", "kda")
    assert done.exit_code == 2
    assert "Did you mean `check`?" in done.stderr


def test_a_bug_leaves_a_crash_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    program = (
        "import archc.commands.check as check\n"
        "check.layer_of = lambda spec, given: {}[0]\n"
        "from archc.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "check", "kda"], capture_output=True, text=True,
        check=False, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stdout == ""
    assert "bug in archc" in done.stderr and "Traceback" not in done.stderr
    (file,) = tmp_path.glob("archc-crash-*.txt")
    assert str(file) in done.stderr
    assert "KeyError: 0" in file.read_text("utf-8")


def test_a_spec_is_a_path_a_name_or_standard_input(tmp_path: Path):
    (tmp_path / "twice.arch").write_text(GOOD)
    assert run("check", "twice.arch", str(tmp_path / "twice.arch"), "kda").exit_code == 0
    assert run("check", "-", stdin=GOOD).exit_code == 0
    assert "<stdin>:3:" in run("check", "-", stdin=BAD).stdout


def test_another_layer_of_the_file(tmp_path: Path):
    (tmp_path / "two.arch").write_text(GOOD + "\n" + GOOD.replace("Twice", "Again"))
    assert run("show", "two.arch").stdout.startswith("layer Again(")
    assert run("show", "two.arch:Twice").stdout.startswith("layer Twice(")
    done = run("show", "two.arch:Twic")
    assert done.exit_code == 1 and "did you mean `Twice`?" in done.stderr


@pytest.mark.parametrize(
    ("spec", "code", "says"),
    [
        ("kdaa", "E0001", "did you mean `kda`?"), ("no/such.arch", "E0001", "no file"),
        ("folder", "E0002", "is a folder"), ("large.arch", "E0005", "larger than 1 MiB"),
        ("binary.arch", "E0004", "not UTF-8"), ("null.arch", "E0004", "NUL"),
    ],
)  # fmt: skip
def test_what_cannot_be_read(tmp_path: Path, spec: str, code: str, says: str):
    (tmp_path / "folder").mkdir()
    (tmp_path / "large.arch").write_bytes(b"#" * (1 << 21))
    (tmp_path / "binary.arch").write_bytes(b"\x7fELF\xff\xfe")
    (tmp_path / "null.arch").write_bytes(b"layer\0")
    for verb in (["show"], ["fmt"]):
        if (verb, spec) == (["fmt"], "folder"):
            continue
        done = run(*verb, spec)
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"error[{code}]" in done.stderr and says in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_no_permission(tmp_path: Path):
    (tmp_path / "mine.arch").write_text(GOOD)
    (tmp_path / "mine.arch").chmod(0)
    assert "E0003" in run("show", "mine.arch").stderr


def test_newlines_and_marks_of_other_systems(tmp_path: Path):
    (tmp_path / "dos.arch").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert run("check", "dos.arch").exit_code == 0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64), ("-1", -1), ("1e-5", 1e-5), ("0.5", 0.5), ("none", None), ("true", True),
        ("false", False), ("exp", "exp"), ('"two words"', "two words"), ("[]", []),
        ("[3, 7]", [3, 7]), ("[a, 1.5, none]", ["a", 1.5, None]),
    ],
)  # fmt: skip
def test_values_of_settings(text: str, value: object):
    assert read_value(text) == value
    assert type(read_value(text)) is type(value)


@pytest.mark.parametrize(
    "setting", ["K", "=3", "K=", "K=[1", "K=[[1]]", "K=1+1", "K=__import__('os')", "1=2", "K=a b"]
)
def test_refused_settings(setting: str):
    done = run("check", "kda", "--set", setting)
    assert done.exit_code == 2
    assert "--set" in done.stderr


def test_a_setting_given_twice_or_unknown():
    assert run("check", "kda", "--set", "K=1", "--set", "K=2").exit_code == 2
    done = run("check", "kda", "--set", "KK=1")
    assert done.exit_code == 1 and "E0405" in done.stdout


def test_a_setting_decides(tmp_path: Path):
    (tmp_path / "gate.arch").write_text(
        'layer Gate(d, kind = "soft"):\n    input x[d]\n'
        '    output y[d] = sigmoid(x) if kind == "soft" else relu(x)\n'
    )
    assert "sigmoid(" in run("show", "gate.arch").stdout
    assert "relu(" in run("show", "gate.arch", "--set", "kind=hard").stdout

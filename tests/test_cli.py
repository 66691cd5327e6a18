"""The command line: what goes where, exit status, and how fast it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from archc.cli import VERBS, archc
from archc.commands import forms
from archc.commands.arguments import read_value
from archc.specfile import bundled

RUN = [sys.executable, "-c", "from archc.cli import main; main()"]
GOOD = "layer Twice(d):\n    input x[d]\n    output y[d] = 2 * x\n"
BAD = "layer Twice(d):\n    input x[d]\n    h = z + x\n    output y[d] = 2 * W\n"


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*args: str, stdin: str = "") -> Result:
    """One run in this process; an exception is not hidden."""
    return CliRunner().invoke(archc, args, input=stdin, catch_exceptions=False)


def process(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    """One run in its own process."""
    return subprocess.run(
        [*RUN, *args], input=stdin, capture_output=True, text=True, check=False,
        env={**os.environ, **env}, timeout=60,
    )  # fmt: skip


# --- the group ---


def test_help_lists_every_verb():
    text = run("--help").stdout
    assert all(f"  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(verb: str):
    done = run(verb, "--help")
    assert done.exit_code == 0
    assert VERBS[verb] in " ".join(done.stdout.split())


def test_help_is_quick_and_light():
    """Under 150 ms, and without what only a compilation needs."""
    best = min(timed("--help") for _ in range(5))
    assert best < 0.15
    heavy = modules("--help") & {"torch", "sympy", "networkx", "lark", "rich", "numpy"}
    assert not heavy


def test_check_needs_no_torch():
    assert "sympy" in modules("check", "kda")
    assert not modules("check", "kda") & {"torch", "numpy", "rich"}


def timed(*args: str) -> float:
    start = time.perf_counter()
    process(*args)
    return time.perf_counter() - start


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


# --- specs on the command line ---


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


# --- settings ---


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


# --- check ---


def test_check_prints_every_finding_and_counts_them():
    done = run("check", "-", "kda", stdin=BAD)
    assert done.exit_code == 1
    assert done.stdout.count("error[E0201]") == 2
    assert "2 specs checked, 2 errors" in done.stderr


def test_check_is_silent_when_asked():
    done = run("--quiet", "check", "kda")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")


def test_concise_findings():
    lines = run("check", "-", "--output-format", "concise", stdin=BAD).stdout.splitlines()
    assert lines[0] == "<stdin>:3:9: error[E0201]: `z` is not declared"
    assert len(lines) == 2


def test_json_findings():
    data = json.loads(run("check", "-", "--output-format", "json", stdin=BAD).stdout)
    assert [(f["code"], f["label"]["line"], f["label"]["column"]) for f in data] == [
        ("E0201", 3, 9), ("E0201", 4, 23),
    ]  # fmt: skip
    assert json.loads(run("check", "kda", "--output-format", "json").stdout) == []


def test_github_findings(tmp_path: Path):
    (tmp_path / "a,b%.arch").write_text(BAD)
    line = run("check", "a,b%.arch", "--output-format", "github").stdout.splitlines()[0]
    assert line.startswith("::error file=a%2Cb%25.arch,line=3,col=9,title=E0201::`z` is not")
    assert "%0A" in line


def test_colour_is_for_terminals():
    assert "\x1b[" not in process("check", "-", stdin=BAD).stdout
    shown = CliRunner().invoke(archc, ["check", "-"], input=BAD, color=True).stdout
    assert "\x1b[31m\x1b[1merror[E0201]\x1b[0m" in shown
    plain = CliRunner(env={"NO_COLOR": "1"}).invoke(archc, ["check", "-"], input=BAD, color=True)
    assert "\x1b[" not in plain.stdout


# --- show ---


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "layer KDA("), ("json", "{"), ("dot", "digraph "), ("mermaid", "flowchart TD"),
        ("svg", "<svg "),
    ],
)  # fmt: skip
def test_show_a_layer(form: str, start: str, tmp_path: Path):
    shown = run("show", "kda", "--as", form)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(start)
    assert run("show", "kda", "--as", form, "-o", "out").stdout == ""
    assert (tmp_path / "out").read_text("utf-8") == shown.stdout


def test_show_a_tree():
    assert run("show", "kda", "--stage", "tree").stdout.startswith("File")
    data = json.loads(run("show", "kda", "--stage", "tree", "--as", "json").stdout)
    assert data["decls"][0]["name"] == "KDA"


def test_show_what_cannot_be_shown():
    done = run("show", "kda", "--stage", "tree", "--as", "svg")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it can as text, json" in done.stderr


def test_nothing_is_half_written(tmp_path: Path):
    """A spec with errors, a folder, a missing folder: the old file stays, and no other appears."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "folder").mkdir()
    assert run("show", "-", "-o", "old", stdin=BAD).exit_code == 1
    for output, says in (("folder", "is a folder"), ("no/such", "no folder"), ("a\0", "null")):
        done = run("show", "kda", "-o", output)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "error[E0030]" in done.stderr and says in done.stderr
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "old"]


def test_a_replaced_file_keeps_its_mode_and_its_links(tmp_path: Path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    run("show", "kda", "-o", "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text().startswith("layer KDA(")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_output_to_a_device():
    assert run("show", "kda", "-o", "/dev/null").exit_code == 0


# --- compile and verify ---


def test_compile_writes_a_file_that_runs(tmp_path: Path):
    done = run("compile", "gla", "--set", "r=8", "-o", "gla kernel.py")
    assert (done.exit_code, done.stdout) == (0, "")
    text = (tmp_path / "gla kernel.py").read_text("utf-8")
    assert "archc compile gla -o 'gla kernel.py' --set r=8" in text
    ran = subprocess.run(
        [sys.executable, "gla kernel.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WRONG" not in ran.stdout and ran.stdout.count("ok") >= 3
    assert run("show", "gla", "--stage", "source").stdout.startswith('"""GLA')


def test_compile_check_tells_a_stale_file(tmp_path: Path):
    args = ("compile", "swiglu", "-o", "swiglu.py")
    assert run(*args, "--check").exit_code == 1
    assert list(tmp_path.iterdir()) == []
    assert run(*args).exit_code == 0
    assert run(*args, "--check").exit_code == 0
    (tmp_path / "swiglu.py").write_text("edited")
    assert run(*args, "--check").exit_code == 1
    assert (tmp_path / "swiglu.py").read_text() == "edited"
    assert run("compile", "swiglu", "-o", "-", "--check").exit_code == 2


def test_compile_can_stop_early():
    assert run("compile", "gla", "-o", "-", "--emit", "tree").stdout.startswith("File")
    layer = run("compile", "gla", "-o", "-", "--emit", "layer").stdout
    assert layer == run("show", "gla").stdout


def test_compile_of_a_wrong_spec_writes_nothing(tmp_path: Path):
    done = run("compile", "-", "-o", "out.py", stdin=BAD)
    assert done.exit_code == 1 and "error[E0201]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_verify_holds_every_form_against_the_meaning():
    done = run("verify", "gla", "--set", "K=3")
    assert done.exit_code == 0
    assert "K = 3" in done.stdout and "WRONG" not in done.stdout
    names = ["whole sequence", "prompt, then the rest", "one token at a time", "gradients"]
    assert all(name in done.stdout for name in names)
    data = json.loads(run("verify", "gla", "--json", "--tokens", "5").stdout)
    assert data["tokens"] == 5
    assert [form["form"] for form in data["forms"]] == names
    assert all(form["right"] and form["error"] < 1e-12 for form in data["forms"])


def test_verify_finds_a_wrong_number(monkeypatch: pytest.MonkeyPatch):
    """The code computes a tanh where the spec has a sigmoid."""
    right = forms.emit
    monkeypatch.setattr(
        forms, "emit", lambda plan: right(plan).replace("torch.sigmoid", "torch.tanh")
    )
    done = run("verify", "gla")
    assert done.exit_code == 3
    assert done.stdout.count("WRONG") == 4


def test_verify_leaves_out_what_a_layer_cannot_do():
    done = run("verify", "linear_attention_full")
    assert done.exit_code == 0
    assert "token" not in done.stdout.split("float64")[1]


# --- fmt ---


def test_fmt_rewrites_files_and_folders(tmp_path: Path):
    loose = GOOD.replace(" = ", "=")
    (tmp_path / "a.arch").write_text(loose)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.arch").write_text(loose)
    (tmp_path / "in" / "c.txt").write_text(loose)
    done = run("fmt", "a.arch", "in")
    assert done.exit_code == 0 and done.stdout == ""
    assert (tmp_path / "a.arch").read_text() == (tmp_path / "in" / "b.arch").read_text() == GOOD
    assert (tmp_path / "in" / "c.txt").read_text() == loose
    assert run("fmt", "--check", "a.arch", "in").exit_code == 0


def test_fmt_check_and_diff_change_nothing(tmp_path: Path):
    loose = GOOD.replace(" = ", "=")
    (tmp_path / "a.arch").write_text(loose)
    assert run("fmt", "--check", "a.arch").exit_code == 1
    assert "+    output y[d] = 2 * x" in run("fmt", "--diff", "a.arch").stdout
    assert (tmp_path / "a.arch").read_text() == loose


def test_fmt_of_streams_and_bundled_specs_prints():
    assert run("fmt", "-", stdin=GOOD.replace(" = ", "=")).stdout == GOOD
    assert run("fmt", "kda").stdout.startswith("layer KDA(")
    assert "α = exp(" in run("fmt", "--unicode", "kda").stdout


def test_fmt_leaves_a_broken_file_and_goes_on(tmp_path: Path):
    (tmp_path / "a.arch").write_text("layer L(d)\n")
    (tmp_path / "b.arch").write_text(GOOD.replace(" = ", "="))
    done = run("fmt", "a.arch", "b.arch")
    assert done.exit_code == 1 and "error[E0012]" in done.stderr
    assert (tmp_path / "a.arch").read_text() == "layer L(d)\n"
    assert (tmp_path / "b.arch").read_text() == GOOD


# --- list, explain, new ---


def test_list_names_every_bundled_spec():
    lines = run("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(bundled())
    data = json.loads(run("list", "--json").stdout)
    assert [entry["name"] for entry in data] == list(bundled())
    assert all(entry["about"] and entry["layer"] for entry in data)


def test_explain():
    assert run("explain", "E0201").stdout.startswith("# E0201: ")
    assert run("explain", "e0201").exit_code == 0
    assert "E0201  a name is not declared" in run("explain").stdout
    done = run("explain", "E021")
    assert done.exit_code == 2 and "Did you mean `E021" in done.stderr


def test_new_copies_under_a_new_name(tmp_path: Path):
    done = run("new", "MyMemory", "--from", "kda")
    assert (done.exit_code, done.stdout) == (0, "")
    text = (tmp_path / "my_memory.arch").read_text("utf-8")
    assert text.startswith("layer MyMemory(d, H,")
    assert run("check", "my_memory.arch").exit_code == 0
    assert run("new", "MyMemory", "--from", "gla").exit_code == 1
    assert (tmp_path / "my_memory.arch").read_text("utf-8") == text
    assert run("new", "MyMemory", "--from", "gla", "--force").exit_code == 0


@pytest.mark.parametrize("name", bundled())
def test_every_bundled_spec_can_be_started_from(name: str, tmp_path: Path):
    assert run("new", "Mine", "--from", name).exit_code == 0
    assert run("check", "mine.arch").exit_code == 0


@pytest.mark.parametrize("name", ["class", "torch", "__x", "a-b", "9x", "Ünder", "../x"])
def test_new_refuses_bad_names(name: str, tmp_path: Path):
    assert run("new", name, "--from", "kda").exit_code == 2
    assert list(tmp_path.iterdir()) == []

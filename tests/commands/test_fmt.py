"""`archc fmt`: files, folders, streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console import GOOD, run

pytestmark = pytest.mark.usefixtures("empty_folder")


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

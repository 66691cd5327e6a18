"""Where a spec's text comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from archc.diagnostics import ArchError
from archc.source import Source
from archc.specfile import LIMIT, BundledSource, bundled, import_source, read, split


def code(error: pytest.ExceptionInfo[ArchError]) -> str:
    return error.value.diagnostics[0].code


def test_bundled_names_are_the_files_of_the_bundle():
    files = (Path(__file__).parents[1] / "specs").glob("*.arch")
    assert list(bundled()) == sorted(path.stem for path in files)


def test_a_bundled_name_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("kda").write_text("mine")
    assert isinstance(read("kda"), BundledSource)
    assert read("kda").name == "kda.arch"
    assert read("./kda").text == "mine"


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("kda", ("kda", None)), ("kda:KDA", ("kda", "KDA")), ("a/b.arch:B", ("a/b.arch", "B")),
        ("-", ("-", None)), ("-:B", ("-", "B")), ("a:b/c.arch", ("a:b/c.arch", None)),
        ("a.arch:9", ("a.arch:9", None)), (":B", (":B", None)),
    ],
)  # fmt: skip
def test_split(spec: str, parts: tuple[str, str | None]):
    assert split(spec) == parts


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
def test_the_limit_is_exact(tmp_path: Path, size: int):
    path = tmp_path / "a.arch"
    path.write_bytes(b"#" * size)
    if size <= LIMIT:
        assert len(read(str(path)).text) == size
        return
    with pytest.raises(ArchError) as error:
        read(str(path))
    assert code(error) == "E0005"


def test_an_endless_file_is_not_read_to_its_end():
    with pytest.raises(ArchError) as error:
        read("/dev/zero")
    assert code(error) == "E0005"


def test_the_place_of_a_byte_that_is_no_text(tmp_path: Path):
    path = tmp_path / "a.arch"
    path.write_bytes(b"one\ntwo \xff\n")
    with pytest.raises(ArchError) as error:
        read(str(path))
    assert error.value.diagnostics[0].notes == ("found byte 0xff in line 2",)


@pytest.mark.parametrize("name", ["a\0b", "a\x1b[31mb", "ab" * 3000])
def test_names_that_could_disturb(name: str):
    with pytest.raises(ArchError) as error:
        read(name)
    assert code(error) in ("E0001", "E0008")
    assert "\x1b" not in str(error.value) and "\0" not in str(error.value)


def test_an_import_lies_beside_the_spec_or_in_the_bundle(tmp_path: Path):
    (tmp_path / "kda.arch").write_text("mine")
    (tmp_path / "own.arch").write_text("own")
    beside = Source(str(tmp_path / "a.arch"), "")
    assert import_source("own.arch", beside).text == "own"
    assert import_source("kda.arch", beside).text == "mine"
    assert import_source("mla.arch", beside).name == "mla.arch"


def test_bundled_specs_and_streams_import_from_the_bundle_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("mla.arch").write_text("mine")
    for source in (read("kimi_linear"), Source("<stdin>", "")):
        assert isinstance(import_source("mla.arch", source), BundledSource)
    with pytest.raises(ArchError) as error:
        import_source("none.arch", Source("<stdin>", ""))
    assert code(error) == "E0021"


@pytest.mark.parametrize(
    "name",
    ["../kda.arch", "/etc/passwd", "kda", "a/b.arch", ".arch", "..arch", "a\\b.arch", "~.arch"],
)
def test_an_import_is_a_plain_file_name(name: str):
    with pytest.raises(ArchError) as error:
        import_source(name, Source("a.arch", ""))
    assert code(error) == "E0020"

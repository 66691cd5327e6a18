"""What all tests share: golden files, a folder of their own, and a quiet clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The checker of types, a process of its own, comes first: at the end one of two workers would
    wait for it."""
    items.sort(key=lambda item: item.path.name != "test_types.py")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports made stays, and what tests make is searched for waste seldom: searches took a
    fifth of the time of a compilation."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """Compare a text with a file, to the byte; `--update-golden` writes the file."""

    def compare(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), (
            f"no golden file {path.name}: run with --update-golden, and look at it"
        )
        assert path.read_text(encoding="utf-8") == text

    return compare


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Time is that of the code alone: what other tests left is not collected meanwhile."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test that runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path

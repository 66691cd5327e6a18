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


SPECS = {path.stem for path in (Path(__file__).parents[1] / "specs").glob("*.arch")}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The checker of types, a process of its own, comes first: at the end one of two workers would
    wait for it. Where there are workers, tests of one bundled spec stand together, so that one of
    them alone compiles it."""
    if hasattr(config, "workerinput"):
        items.sort(key=spec_of)
    items.sort(key=lambda item: item.path.name != "test_types.py")


def spec_of(item: pytest.Item) -> str:
    """The bundled spec that a test is about; none where it does not say."""
    given = getattr(item, "callspec", None)
    values = () if given is None else given.params.values()
    names = (value.stem if isinstance(value, Path) else value for value in values)
    return next((name for name in names if isinstance(name, str) and name in SPECS), "")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What imports made stays, and what tests make is searched for waste seldom: searches took a
    fifth of the time of a compilation."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


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

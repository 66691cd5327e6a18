"""What all tests share: golden files, a folder of their own, and a quiet clock."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FunctionType

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )


SPECS = {path.stem for path in (Path(__file__).parents[1] / "specs").glob("*.arch")}

MODELS = {
    "deepseek_v3", "gemma3", "gpt_oss", "kimi_linear", "mamba2_lm", "qwen3_next", "xlstm",
}  # fmt: skip
"""Bundled models of many layers, most of which have a spec of their own: what is tried of every
spec is tried of them in the slow group, but for kernels and golden files. `gpt`, `lfm2` and `lm`
stand for them."""

EVERY = 25
"""Bundled specs among the parameters of a test that is about all of them."""


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_leave_models(items: list[pytest.Item]) -> None:
    """Mark what is tried of models as of every spec as slow, before the slow ones are left out."""
    of_test: dict[str, dict[pytest.Item, str]] = {}
    for item in items:
        if spec_in_parameters(item) and not {"lowering", "test_golden.py"} & {*item.path.parts}:
            of_test.setdefault(item.nodeid.partition("[")[0], {})[item] = spec_in_parameters(item)
    for found in of_test.values():
        if len({*found.values()}) >= EVERY:
            for item, spec in found.items():
                if spec in MODELS:
                    item.add_marker(pytest.mark.slow)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The checker of types, a process of its own, comes first: at the end one of two workers would
    wait for it. Where there are workers, tests of one bundled spec stand together, so that one of
    them alone compiles it."""
    if hasattr(config, "workerinput"):
        items.sort(key=spec_of)
    items.sort(key=lambda item: item.path.name != "test_types.py")


def spec_of(item: pytest.Item) -> str:
    """The bundled spec that a test is about, by its parameters or the first that its function
    names; none where neither says one."""
    function = getattr(item, "function", None)
    named = function.__code__.co_consts if isinstance(function, FunctionType) else ()
    return spec_in_parameters(item) or first_spec(named)


def spec_in_parameters(item: pytest.Item) -> str:
    """The bundled spec among the parameters of a test; none where there is none."""
    given = getattr(item, "callspec", None)
    values = () if given is None else given.params.values()
    return first_spec(value.stem if isinstance(value, Path) else value for value in values)


def first_spec(values: Iterable[object]) -> str:
    """The first of some values that is the name of a bundled spec."""
    return next((value for value in values if isinstance(value, str) and value in SPECS), "")


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

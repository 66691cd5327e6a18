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

ALIKE = {
    "attention": ("alibi", "capped_attention", "window_attention", "transformer"),
    "dsa": ("mla", "deepseek_v3"),
    "gla": ("gla_block", "mamba2", "mamba2_lm", "retention"),
    "hyper_connected": ("mhc",),
    "kda": ("delta", "gated_delta", "gated_delta_product", "kimi_linear", "qwen3_next"),
    "linear_attention_simple": ("linear_attention",),
    "lm": ("gemma3", "gpt", "gpt_block", "gpt_oss"),
    "mlstm": ("xlstm",),
    "path": ("path_fox",),
    "ssm_selective": ("ssm",),
}  # fmt: skip
"""Bundled specs that go the way of another through the compiler. What is tried of every spec is
tried of these in the slow group, but for kernels and golden files."""

STANDS_FOR = {spec: first for first, others in ALIKE.items() for spec in others}
assert {*STANDS_FOR, *ALIKE} <= SPECS

EVERY = 25
"""Bundled specs among the parameters of a test that is about all of them."""


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_leave_parameters(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow, before the slow ones are left out: of every spec those that another stands for,
    and parameters that the mark `default` of a test does not name."""
    of_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        of_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    whole = not any("::" in argument for argument in config.args)
    for found in of_test.values():
        specs = {item: spec_in_parameters(item) for item in found}
        kept = {"lowering", "test_golden.py"} & {*found[0].path.parts}
        if len({*specs.values()} - {""}) >= EVERY and not kept:
            leave(item for item, spec in specs.items() if spec in STANDS_FOR)
        if (mark := found[0].get_closest_marker("default")) is not None:
            chosen = {name: [item for item in found if is_called(item, name)] for name in mark.args}
            assert all(chosen.values()) or not whole, f"{found[0].nodeid}: not among the parameters"
            leave({*found} - {item for named in chosen.values() for item in named})


def leave(items: Iterable[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.slow)


def is_called(item: pytest.Item, name: str) -> bool:
    """Is a name that of a test's parameters, or of some that follow one another?"""
    return f"-{name}-" in f"-{vars(item)['callspec'].id}-"


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

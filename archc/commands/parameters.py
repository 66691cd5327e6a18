"""Arguments that several verbs take: the spec, `--set`, `-o`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])

_NAME = re.compile(r"[^\W\d]\w*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?")
_WORDS: dict[str, object] = {"none": None, "true": True, "false": False}


class Setting(click.ParamType[tuple[str, Any]]):
    """`K=64`: a name and a number, `none`, `true`, `false`, a text, or a list of these."""

    name = "setting"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """How help shows the value."""
        return "NAME=VALUE"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Any]:
        """Read one setting."""
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not _NAME.fullmatch(name.strip()):
            self.fail(f"`{value}` is not NAME=VALUE, such as K=64", param, ctx)
        try:
            return name.strip(), read_value(text)
        except ValueError as error:
            self.fail(f"`{value}`: {error}", param, ctx)


def read_value(text: str) -> Any:
    """The value that a text stands for: number, `none`, `true`, `false`, text, `[a, b]`.

    Raises ValueError with what is wrong.
    """
    text = text.strip()
    if text.startswith("["):
        return _read_list(text)
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return int(text) if text.lstrip("+-").isdigit() and len(text) < 20 else float(text)
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if _NAME.fullmatch(text):
        return text
    raise ValueError("a value is a number, none, true, false, a text, or a list such as [1, 2]")


def _read_list(text: str) -> list[Any]:
    """The items of `[a, b]`, which are no lists themselves."""
    inner = text[1:-1].strip()
    if not text.endswith("]") or "[" in inner or "]" in inner:
        raise ValueError("a list is written [a, b], without lists in it")
    return [read_value(item) for item in inner.split(",")] if inner else []


class Spec(click.ParamType[str]):
    """A spec; shells complete the names of bundled ones, and the paths of files."""

    name = "spec"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it was given: what is missing or wrong in it has diagnostics of its own."""
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Bundled names that begin so; then the shell's own completion of files."""
        from archc.specfile import bundled

        names = [name for name in bundled() if name.startswith(incomplete)]
        return [*map(CompletionItem, names), CompletionItem(incomplete, type="file")]


def spec_argument(function: F) -> F:
    """The positional SPEC."""
    return click.argument("spec", metavar="SPEC", type=Spec())(function)


def specs_argument(function: F) -> F:
    """One SPEC or several; arrive as the tuple `specs`."""
    return click.argument("specs", metavar="SPEC...", type=Spec(), nargs=-1, required=True)(
        function
    )


def json_option(function: F) -> F:
    """`--json`: data on standard output in place of text; arrives as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print data instead of text.")(
        function
    )


def set_option(function: F) -> F:
    """`--set K=64`, any number of times; arrives as the dict `given`."""
    return click.option(
        "--set",
        "given",
        type=Setting(),
        multiple=True,
        callback=_as_dict,
        help="Give a size or an option of the layer a value, e.g. --set K=64.",
    )(function)


def _as_dict(
    ctx: click.Context, param: click.Parameter, value: tuple[tuple[str, Any], ...]
) -> dict[str, Any]:
    names = [name for name, _ in value]
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"`{name}` is given twice", ctx, param)
    return dict(value)


def output_option(function: F) -> F:
    """`-o FILE`, where `-` is standard output; arrives as `output`."""
    return click.option(
        "-o", "--output", default="-", metavar="FILE", help="Where to write; - is standard output."
    )(function)

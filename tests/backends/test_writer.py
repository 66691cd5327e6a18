"""Text of generated files: names, strings and docstrings from a spec cannot become code."""

from __future__ import annotations

import ast
import keyword

import pytest
import torch
from archc.backends.writer import (
    COLUMNS,
    MODULE,
    Names,
    Writer,
    attribute,
    identifier,
    quoted,
    reserved,
    snake,
    statement,
    wrapped,
)
from hypothesis import given
from hypothesis import strategies as st

from archc.source import Source, Span


@given(st.text(max_size=20))
def test_identifiers_are_identifiers(text: str):
    name = identifier(text)
    assert name.isascii() and name.isidentifier()
    assert not keyword.iskeyword(name) and name not in reserved() and not name.startswith("__")


@given(st.text(max_size=60))
def test_strings_come_back(text: str):
    assert ast.literal_eval(quoted(text)) == text.encode("utf-8", "ignore").decode("utf-8") or any(
        0xD800 <= ord(char) <= 0xDFFF for char in text
    )


@given(st.lists(st.text(max_size=200), min_size=1, max_size=3))
def test_a_docstring_stays_one(paragraphs: list[str]):
    writer = Writer()
    with writer.block("def f():"):
        writer.docstring(paragraphs)
        writer.line("return 1")
    (function,) = ast.parse(writer.text()).body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 2 and isinstance(function.body[1], ast.Return)


@given(st.text(max_size=200))
def test_a_comment_stays_one(text: str):
    writer = Writer()
    writer.comment(text)
    assert ast.parse(writer.text()).body == []
    assert len(writer.text().rstrip("\n")) <= COLUMNS


def test_names_are_handed_out_once():
    names = Names({"q"})
    assert [names.fresh("q"), names.fresh("q"), names.fresh("K'")] == ["q_2", "q_3", "K_prime"]


def test_attributes_do_not_hide_those_of_modules():
    known = {name for name in dir(torch.nn.Module()) if not name.startswith("__")}
    assert known - {"smart_apply"} <= MODULE  # transformers adds that when it makes a model
    assert attribute("half") == "half_" and attribute("W_q") == "W_q"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("KDA", "kda"),
        ("GatedShortConv", "gated_short_conv"),
        ("SwiGLU", "swiglu"),
        ("GPTBlock", "gpt_block"),
    ],
)
def test_snake(name: str, expected: str):
    assert snake(name) == expected


def test_a_statement_is_cited_without_its_comment():
    source = Source("my.arch", "x = 1   # one\ny = 2")
    assert statement(Span(source, 0, 13)) == "x = 1"


def test_long_calls_are_wrapped():
    writer = Writer()
    for count in (4, 8, 12):
        writer.call("function(", [f"argument_{i}" for i in range(count)], ")")
    lines = writer.text().split("\n")
    assert lines[0].endswith("argument_3)") and lines[1].startswith("function(argument_0, ")
    assert lines[2] == " " * len("function(") + "argument_7)" and lines[4].endswith("argument_11)")
    assert max(map(len, lines)) <= COLUMNS
    ast.parse(writer.text())


def test_no_flag_of_a_command_is_cut():
    command = "    archc compile mine -o mine.py --no-check"
    for width in range(24, len(command)):
        lines = wrapped(command, width)
        assert " ".join(map(str.strip, lines)) == command.strip()

"""A tree as text and as plain data."""

from __future__ import annotations

import json

from archc.source import Source
from archc.syntax.parse import parse
from archc.syntax.text import as_json, as_text

SPEC = """layer L(d, H = 2):
    input x[d]
    output y[d] = f(x, 3) + x
"""

TEXT = """File  # 1:1
  decls[0]: Decl kind=layer name=L doc=''  # 1:7
    params[0]: Parameter name=d  # 1:9
    params[1]: Parameter name=H  # 1:12
      default: Number text='2'  # 1:16
    body[0]: Input optional=False  # 2:5
      names[0]: Declared name=x  # 2:11
        axes[0]: Name id=d  # 2:13
    body[1]: Output  # 3:5
      target: Target name=y  # 3:12
        items[0]: Name id=d  # 3:14
      value: Binary op='+'  # 3:19
        left: Call  # 3:19
          func: Name id=f  # 3:19
          args[0]: Argument  # 3:21
            value: Name id=x  # 3:21
          args[1]: Argument  # 3:24
            value: Number text='3'  # 3:24
        right: Name id=x  # 3:29
"""


def test_a_node_is_a_line() -> None:
    assert as_text(parse(Source("mine.arch", SPEC))) == TEXT


def test_plain_data_has_the_same_nodes() -> None:
    """As many, at the same places, and nothing that JSON has not."""
    text = json.dumps(as_json(parse(Source("mine.arch", SPEC))))
    assert text.count('"node"') == TEXT.count("#")
    assert '{"node": "Number", "line": 3, "column": 24, "text": "3"}' in text


def test_the_sequence_and_the_range_of_an_input_stand_in_either_order() -> None:
    one, other = (
        SPEC.replace("x[d]\n", f"x {ends}\n", 1) for ends in ("along m in 9", "in 9 along m")
    )
    found = [as_text(parse(Source("mine.arch", text))) for text in (one, other)]
    assert [text.count("along=m") for text in found] == [1, 1]
    assert found[0].replace("2:24", "2:16") == found[1]

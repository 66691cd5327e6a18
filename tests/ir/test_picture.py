"""Outlines and the pictures made from them."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from itertools import combinations
from xml.etree import ElementTree

import pytest

from archc.elaborate.elaborate import elaborate
from archc.ir.diagram import as_dot, as_mermaid
from archc.ir.layer import Layer
from archc.ir.outline import outline, statement_lines
from archc.ir.picture import as_svg
from archc.ir.typeset import wrapped
from archc.source import Source, Span
from archc.specfile import bundled, import_source, read
from archc.syntax.parse import parse

SVG = "{http://www.w3.org/2000/svg}"


@lru_cache
def spec(name: str) -> Layer:
    return elaborate(parse(read(name)), None, {}, import_source)


def layer(text: str) -> Layer:
    return elaborate(parse(Source("test.arch", text)), None, {}, import_source)


def labels(layer: Layer) -> list[tuple[str, str]]:
    return [(box.kind, " / ".join(box.lines)) for box in outline(layer).boxes]


TWO_STEPS = layer('''\
layer Two(d, e):
    """Quotes " < > & and ]]> <script>alert(1)</script>"""
    input x[d]
    param W[d, e]; V[e, d]; b[e] = 0
    h = relu(x @ W + b)   # not shown
    output y[d] = h @ V
''')


# --- outlines ---


def test_a_statement_is_a_box_with_its_text_and_its_parameters():
    boxes = outline(TWO_STEPS).boxes
    assert labels(TWO_STEPS) == [
        ("input", "x[d]"), ("value", "h = relu(x @ W + b)"), ("output", "output y[d] = h @ V"),
    ]  # fmt: skip
    assert boxes[1].params == ("W[d, e]", "b[e]")
    assert boxes[1].where == "test.arch:5"


def test_a_long_first_sentence_is_there_to_its_end():
    words = " ".join(f"word{number}" for number in range(40))
    text = f'layer A(d):\n    """{words}. More."""\n    input x[d]\n    output y = x + x\n'
    layer = elaborate(parse(Source("a.arch", text)), None, {}, import_source)
    drawn = ElementTree.fromstring(as_svg(layer)).iter("{http://www.w3.org/2000/svg}text")
    lines = [text.text or "" for text in drawn if text.get("class") == "doc"]
    assert " ".join(lines) == f"{words}." and max(map(len, lines)) <= 120


def test_edges_carry_shapes_and_inputs_show_their_own():
    edges = [(edge.tail, edge.head, edge.label) for edge in outline(TWO_STEPS).edges]
    x, h, y = (box.id for box in outline(TWO_STEPS).boxes)
    assert edges == [(x, h, ""), (h, y, "[e]")]


def test_a_recurrence_is_one_box_with_its_formulas():
    made = labels(layer("""\
layer Sum(d):
    input x[d]
    recurrence s[d], n[]:
        s[t] = s[t-1] + x
        n[t] = n[t-1] + 1
        m    = s[t] / n[t]
    output m
"""))  # fmt: skip
    text = (
        "recurrence s[d], n[]: /     s[t] = s[t-1] + x /     n[t] = n[t-1] + 1"
        " /     m = s[t] / n[t]"
    )
    assert made == [("input", "x[d]"), ("memory", text), ("output", "output m")]


def test_names_of_one_statement_share_a_box():
    made = labels(layer("""\
layer Gates(d):
    input x[d]
    param W[d, 2]
    a, b = sigmoid(x @ W) by 2
    output y[d] = a * x + b
"""))  # fmt: skip
    assert [text for _, text in made] == [
        "x[d]", "a, b = sigmoid(x @ W) by 2", "output y[d] = a * x + b",
    ]  # fmt: skip


def test_a_repeat_is_one_box():
    made = [text for kind, text in labels(spec("lm")) if kind == "block"]
    assert len(made) == 1
    assert made[0].startswith("repeat L as l:")


def test_a_route_in_a_route_is_part_of_its_box():
    made = labels(
        layer("""layer N(d, e = 4, f = 3):
    input x[d]
    param W[d, e]; V[d, f]
    route i in top(1, softmax[e](x @ W)):
        param a[d]
        h = relu(x) * a
        route j in top(1, softmax[f](x @ V)):
            param b[d]
            y = sigmoid(h) + b
        z = y + x
    output z
""")
    )
    assert [kind for kind, _ in made] == ["input", "block", "output"]
    assert made[1][1].startswith("route i in top")


@pytest.mark.default("attention", "kda", "lstm", "moe", "nsa")
@pytest.mark.parametrize("name", bundled())
def test_boxes_come_in_dataflow_order_and_edges_join_them(name: str):
    sketch = outline(spec(name))
    rank = {box.id: place for place, box in enumerate(sketch.boxes)}
    assert len(rank) == len(sketch.boxes)
    for edge in sketch.edges:
        assert rank[edge.tail] < rank[edge.head]


@pytest.mark.default("attention", "kda", "lstm", "moe", "nsa")
@pytest.mark.parametrize("name", bundled())
def test_every_parameter_and_input_is_in_the_picture(name: str):
    sketch = outline(spec(name))
    shown = " ".join(" ".join((*box.lines, *box.params)) for box in sketch.boxes)
    for _, op in (*spec(name).params, *spec(name).inputs):
        assert re.search(rf"(?<!\w){re.escape(op.name)}(?!\w)", shown), op.name


def test_statement_lines_drop_comments_and_alignment():
    text = "ab\n    o    = x   # why\n\n        p = y"
    assert statement_lines(Span(Source("a.arch", text), 7, len(text))) == ("o = x", "    p = y")


# --- pictures ---


def boxes_of(svg: str) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of every box; the first rect is the ground."""
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    rects = [rect for group in groups for rect in group.iter(f"{SVG}rect")]
    places = ([float(rect.attrib[k]) for k in ("x", "y", "width", "height")] for rect in rects)
    return [(x, y, x + width, y + height) for x, y, width, height in places]


@pytest.mark.default("attention", "kda", "lstm", "moe", "mhc", "gpt", "nsa")
@pytest.mark.parametrize("name", bundled())
def test_boxes_do_not_overlap_and_stay_inside(name: str):
    svg = as_svg(spec(name))
    root = ElementTree.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = boxes_of(svg)
    assert len(boxes) == len(outline(spec(name)).boxes)
    for left, top, right, bottom in boxes:
        assert left >= 0 and top >= 0 and right <= width and bottom <= height
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@pytest.mark.parametrize("name", ["kda", "nsa", "lstm"])
def test_edges_start_and_end_at_boxes(name: str):
    svg = as_svg(spec(name))
    boxes = boxes_of(svg)
    paths = [p for p in ElementTree.fromstring(svg).iter(f"{SVG}path") if "class" in p.attrib]
    assert len(paths) == len(outline(spec(name)).edges)
    for path in paths:
        numbers = [float(number) for number in re.findall(r"-?\d+\.\d", path.attrib["d"])]
        for x, y in (numbers[:2], numbers[-2:]):
            assert any(
                left - 0.2 <= x <= right + 0.2 and top - 0.2 <= y <= bottom + 0.2
                and min(x - left, right - x, y - top, bottom - y) < 0.2
                for left, top, right, bottom in boxes
            )  # fmt: skip


def test_text_stays_in_its_box():
    """At the widest advance that common monospace fonts have, 0.602 em."""
    svg = as_svg(spec("kda"))
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        rect = next(group.iter(f"{SVG}rect"))
        right = float(rect.attrib["x"]) + float(rect.attrib["width"])
        for line in group.iter(f"{SVG}text"):
            size = 10 if line.attrib.get("class") == "small" else 12
            length = len("".join(line.itertext())) * 0.602 * size
            assert float(line.attrib["x"]) + length < right


def test_a_picture_is_self_contained_and_escaped():
    svg = as_svg(TWO_STEPS)
    assert 'Quotes " &lt; &gt; &amp; and ]]&gt; &lt;script' in svg
    tags = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(svg).iter()}
    assert tags <= {"svg", "style", "defs", "marker", "path", "rect", "g", "title", "text", "tspan"}
    assert set(re.findall(r"url\(([^)]*)\)|href", svg)) <= {"#arrow"}
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]


def test_a_page_holds_the_picture_of_a_layer():
    for name in ("kda", "mla", "transformer"):
        root = ElementTree.fromstring(as_svg(spec(name)))
        assert float(root.attrib["width"]) <= 1000 and float(root.attrib["height"]) <= 1000


def test_long_statements_break_where_brackets_are_shallow():
    text = "alpha = exp(-exp(A_log) * softplus(x @ W_f_down @ W_f_up + dt_bias) + bias)"
    lines = wrapped(text, 46)
    assert [line.strip() for line in lines] == [
        "alpha = exp(-exp(A_log)", "* softplus(x @ W_f_down @ W_f_up", "+ dt_bias) + bias)",
    ]  # fmt: skip
    assert wrapped("short = x", 46) == ["short = x"]
    assert "".join(wrapped("y" * 200, 46)) == "y" * 200


# --- diagrams ---


def test_dot_of_a_small_layer():
    assert as_dot(TWO_STEPS).split("\n")[3:9] == [
        '  n0 [label="x[d]\\l", fillcolor="#eef1f5", color="#b6bfca"];',
        f'  n{outline(TWO_STEPS).boxes[1].id} [label="h = relu(x @ W + b)\\lW[d, e] · b[e]\\l", '
        'fillcolor="#ffffff", color="#c4cbd3"];',
        f'  n{outline(TWO_STEPS).boxes[2].id} [label="output y[d] = h @ V\\lV[e, d]\\l", '
        'fillcolor="#ebf7ef", color="#6db58a"];',
        f"  n0 -> n{outline(TWO_STEPS).boxes[1].id};",
        f'  n{outline(TWO_STEPS).boxes[1].id} -> n{outline(TWO_STEPS).boxes[2].id} [label="[e]"];',
        "}",
    ]


@pytest.mark.default("attention", "kda", "lstm", "moe", "nsa")
@pytest.mark.parametrize("name", bundled())
def test_mermaid_labels_hold_nothing_that_mermaid_reads(name: str):
    for line in as_mermaid(spec(name)).split("\n")[1:]:
        for label in re.findall(r'"(.*)"', line):
            assert '"' not in label
            assert not re.search(r"[<>&;]", re.sub(r"<br/>|#\d+;", "", label))


def test_a_large_layer_is_drawn_in_time():
    """400 statements, each reading the one before and one far back: long edges everywhere."""
    steps = "".join(f"    h{i} = h{i - 1} + h{i // 2}\n" for i in range(1, 400))
    made = layer(f"layer L(d):\n    input x[d]\n    h0 = x\n{steps}    output h399\n")
    start = time.process_time()
    svg = as_svg(made)
    assert time.process_time() - start < 10
    assert len(boxes_of(svg)) == len(outline(made).boxes) >= 400

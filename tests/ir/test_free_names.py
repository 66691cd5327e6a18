"""Names that nothing has yet."""

from __future__ import annotations

from archc.ir.free_names import marked, numbered


def test_a_free_name_stays() -> None:
    assert numbered("q", {"q_2"}) == marked("q", {"q'"}) == "q"


def test_numbers_go_on_where_they_are_taken() -> None:
    assert numbered("q", {"q"}) == "q_2"
    assert numbered("q", ["q", "q_2", "q_4"]) == "q_3"
    assert numbered("saved.q", {"saved.q"}, ".") == "saved.q.2"


def test_marks_are_added_until_no_other_has_them() -> None:
    assert marked("K", {"K", "K'"}) == "K''"
    assert marked("i", {"i": 0}, "_") == "i_"

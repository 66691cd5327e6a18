"""Products of one value are taken in turn, each before what reads it first."""

from __future__ import annotations

from archc.backends.eager.arrivals import taken_in_turn

LINES = """\
# where q is from
a, b, c, d = products_of(x, self.W_a, self.W_b,
                         self.W_c, self.W_d)
q, past = f(a)
# where k is from
k = f(b)
# where g is from
g_in = c @ self.W
g = h(g_in,
      c)
# the memory
o = memory(q, k, g)
y = o * d"""

WANTED = """\
products = in_turn(products_of, x, self.W_c, self.W_a, self.W_b, self.W_d)
# where g is from
c = next(products)
g_in = c @ self.W
g = h(g_in,
      c)
# where q is from
a = next(products)
q, past = f(a)
# where k is from
b = next(products)
k = f(b)
# the memory
o = memory(q, k, g)
d = next(products)
y = o * d"""


def taken(text: str) -> str:
    """The lines of a text with products taken in turn."""
    return "\n".join(taken_in_turn(text.split("\n"), 8))


def test_each_is_taken_before_its_first_reader_and_long_chains_come_first() -> None:
    assert taken(LINES) == WANTED


def test_those_that_one_statement_reads_are_taken_at_once() -> None:
    for text in ("a, b = products_of(x, W, V)\ny = a * b", "a = products_of(x, W)\ny = a",
                 "a, b = f(x, W, V)\ny = a\nz = b", "a, b = products_of(x, W, V)"):  # fmt: skip
        assert taken(text) == text


def test_statements_stay_in_order_beside_one_of_no_product_or_of_a_name_made_again() -> None:
    """Nothing says what such a statement has to stand before."""
    for odd in ("w = other(x)", "b.copy_(w)", "b = b + 1", "if x:\n    w = b"):
        lines = ["q = f(a)", odd, "k = f(b)", "k = f(k)", "o = memory(q, k)"]
        made = taken("\n".join(["a, b = products_of(x, W_a, W_b)", *lines])).split("\n")
        assert [line for line in made if "products" not in line] == "\n".join(lines).split("\n")
        assert made.index("a = next(products)") < made.index("b = next(products)")


def test_products_of_a_product_and_names_that_are_taken() -> None:
    text = (
        "a, b = products_of(x, W, V)\nc, d = products_of(a, W, V)\ny = c\nz = d + products\nu = b"
    )
    assert taken(text).split("\n") == [
        "products_2 = in_turn(products_of, x, W, V)", "a = next(products_2)",
        "products_3 = in_turn(products_of, a, W, V)", "c = next(products_3)", "y = c",
        "d = next(products_3)", "z = d + products", "b = next(products_2)", "u = b",
    ]  # fmt: skip

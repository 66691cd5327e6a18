"""What a spec calls a value changes no kernel."""

import re

import pytest
from archc.backends.embedding import names_read
from archc.backends.triton.made_first import in_order
from archc.backends.triton.numbering import numbered
from archc.backends.triton.printer import to_triton

import archc
from archc.compile import elaborated, programs_of, text_of
from archc.diagnostics import InternalError
from archc.source import Source
from archc.tile.compose import Composer
from archc.tile.language import statements

SPEC = """
layer Memory(K, V):
    input q[K], k[K], v[V]
    recurrence S[K, V]:
        S[t] = S[t-1] + k @ v.T
        NAME = S[t].T @ q
    output NAME
"""


def test_an_output_may_begin_like_what_is_saved() -> None:
    """`savedup` once was taken for a value that is saved for the gradient, and stored as one."""
    one, other = (
        text_of(elaborated(Source("m.arch", SPEC.replace("NAME", name))), "triton")
        for name in ("savedup", "results")
    )
    digest = re.compile(r"(?<=sha256 )[0-9a-f]+|(?<=memory_)[0-9a-f]{12}")
    assert digest.sub("", one).replace("savedup", "results") == digest.sub("", other)


@pytest.mark.default("gla")
@pytest.mark.parametrize("spec", ["gla", "kda"])
def test_buffers_are_called_by_what_they_hold(spec: str) -> None:
    """Not by the op that made them: gradients of scores, and their diagonal."""
    programs = programs_of(archc.load(spec).layer)
    names = {buffer.name for program in programs.values() for buffer in program.buffers}
    ops = re.compile(r"(sum|plus|minus|product|scan)(_\d+)?(_moved)?")
    assert not [name for name in names if ops.fullmatch(name)]
    assert {"d_scores", "d_scores_sum"} <= names


@pytest.mark.parametrize("spec", ["delta", "gla", "kda"])
def test_every_kernel_says_where_the_spec_has_what_it_makes(spec: str) -> None:
    """One whose values are derived, as the scores of a chunk are, says where the recurrence is."""
    for name, program in programs_of(archc.load(spec).layer).items():
        assert f"\n{spec}.arch:" in program.doc, name


NUMBER = re.compile(r"(?<![\w.])\d[\d.]*(?:e[+-]\d+)?(?![\w.])")


@pytest.mark.parametrize("spec", ["gla", "kda"])
def test_numbers_of_the_compiler_s_own_say_what_they_are(spec: str) -> None:
    """A large one, or one with many digits, beside a word on it where a kernel first has it, or
    after one that says the number; that of a norm is in the formula."""
    seen = set[float]()
    for name, program in programs_of(archc.load(spec).layer).items():
        known, said = {1e-6}, set[float]()
        lines = to_triton(program).split('"""')[2].split("\n")
        for place, line in enumerate(lines):
            code, _, words = line.partition("#")
            said |= {*map(float, NUMBER.findall(words))}
            new = {*map(float, NUMBER.findall(code))} - known
            own = {x for x in new if x >= 64 or x * 16 % 1}
            beside = "# " in "".join(lines[max(place - 2, 0) : place + 3])
            assert own <= said or beside, f"{name}: {line}"
            known |= own
        seen |= known
    assert {64.0, 104.0, 1e6, 16384.0} <= seen


def test_an_index_along_a_dim_that_no_spec_names() -> None:
    """Its name is a word of Python, though that of the dim is a number."""
    k = Composer("totals", "y = x 3 times.")
    (N,) = k.lengths("N")
    x, y, c = k.buffer("x", c=N), k.buffer("y", c=N), k.iota("c", N)
    with k.loop(0, 3, k.load(x, c), index="@0") as turn:
        turn.next(turn.carried[0] + turn.index)
    k.store(y, c, value=turn.results[0])
    blocks = [block for each in statements(k.done().body) for block in each.blocks]
    assert all(value.name.isidentifier() for block in blocks for value in block.arguments)


def test_what_another_end_of_a_turn_reads_keeps_its_name() -> None:
    """The end of a turn took the name of the next turn's beginning, and the formula beside it read
    what had none."""
    k = Composer("ends", "rows, each of them the last one's double and the sum of all.")
    (N,) = k.lengths("N")
    x, y, c = k.buffer("x", c=N), k.buffer("y", c=N), k.iota("c", N)
    rows = k.load(x, c)
    with k.loop(0, 3, rows.sum("c").named("h"), rows, index="n") as turn:
        last, kept = turn.carried
        new = (last * 2.0 + kept.sum("c")).named("new")
        turn.next(new, k.where(c.equals(turn.index), new, kept))
    k.store(y, c, value=turn.results[1])
    assert not {name for name in names_read(to_triton(k.done())) if name.startswith("new")}


def test_a_sum_has_one_name_in_both_ways_of_a_branch() -> None:
    """It was called by the zeros that it begins with, until the branch gave it its own."""
    k = Composer("either", "y = x, or 3 x.")
    N, once = k.lengths("N", "ONCE")
    x, y, c = k.buffer("x", c=N), k.buffer("y", c=N), k.iota("c", N)
    row = k.load(x, c)
    with k.branch(k.lift(once, "i32").equals(1)) as one:
        one.give(row * 2.0)
    with k.otherwise(one) as other:
        with k.loop(0, 3, k.full(0.0, c.dims[0]), index="n") as turn:
            turn.next(turn.carried[0] + row)
        other.give(turn.results[0])
    k.store(y, c, value=k.apply("exp", one.results[0]))
    text = to_triton(k.done())
    assert "zeros" not in text and text.count(" y = ") == 3, text


def test_names_that_values_share_are_numbered_as_they_stand() -> None:
    """Not what a buffer or the docstring is called, nor what ends with a number of its own."""
    lines = ["    run_8, i_by_16 = f(run, x_2)", "    # run_8",
             "    for run_6 in g(run_8, h.run_8):",
             "        y_4 = run_6 + run_3 + y"]  # fmt: skip
    made = numbered(lines, {"run", "x", "y"}, {"x_2", "y_4", "run_3"})
    assert made == ["    run_2, i_by_16 = f(run, x_2)", "    # run_8",
                    "    for run_4 in g(run_2, h.run_8):",
                    "        y_4 = run_4 + run_3 + y"]  # fmt: skip


def test_a_place_is_made_before_a_value_that_is_called_alike_reads_it() -> None:
    """`i_t // 2` stood before `i_t, in_t = along(64, T, first)`: i is t by another name, and i the
    one that was read."""
    k = Composer("pairs", "y = x, each next to itself.")
    (T,) = k.lengths("T")
    x, y = k.buffer("x", t=T), k.buffer("y", t=T)
    first = k.program("part", 8) * 64
    t, i = k.iota("t", 64), k.iota("i", 64)
    half = i // 2
    inside = first + t < T
    rows = k.load(x, first + t, where=[inside])
    near = half.along(i="t") * rows.to("i32")
    k.store(y, first + t, value=(near + half.along(i="t")).to("f32"), where=[inside])
    assert "i_t = tl.arange(0, 64)" in to_triton(k.done())


@pytest.mark.parametrize(
    "line", ["y = x + a", "x = x + a", "x += a", "for n in range(x):", "if x > a:"]
)
def test_a_name_that_is_read_before_it_is_made_is_found(line: str) -> None:
    lines = (f"    {line}", *["        y = 1.0"] * line.endswith(":"), "    x = a")
    with pytest.raises(InternalError, match="kernel `f` reads `x` before it is made"):
        in_order("f", lines)
    in_order("f", ("    x = a", *lines))

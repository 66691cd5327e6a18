"""What the messages of elaboration say to write: one finding, its place, and the advice."""

from __future__ import annotations

import pytest

from archc.diagnostics import ArchError, Diagnostic
from archc.elaborate.elaborate import elaborate
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

HEAD = (
    "layer A(d):\n    input x[d]\n    param w[d]\n    output y[d] = x * w\n"
    "layer L(d, H, K, G, n):\n    input x[d], q[H, K], k[H, K], g[G, K]\n"
    "    input i in H\n    input c[K] along m\n    param W[d, n]; U[n, n']\n    xw = x @ W\n"
    "    u = xw @ U\n"
)


def findings(*lines: str) -> tuple[Diagnostic, ...]:
    text = HEAD + "".join(f"    {line}\n" for line in lines)
    with pytest.raises(ArchError) as refused:
        elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    return refused.value.diagnostics


CASES = {
    "call of a value": (["output y = q(i)"], "E0204", "q", "`q[i]`"),
    "inputs before sizes": (["output y = A(x)(d)"], "E0204", "A(x)", "`Layer(d)(x)`"),
    "sizes and inputs": (["output y = A(x, d)"], "E0209", "A(x, d)", "`A(d)(x)`"),
    "inputs by name": (["output y = A(d)(x = x)"], "E0209", "A(d)(x = x)", "`A(d)(x)`"),
    "an argument that is not": (["output y = A(dim = d)(x)"], "E0209", "dim = d", "it has d"),
    "as many parts as a dim may have": (
        ["e, f, l = x by 3", "output y = e + f + l"], "E0214", "e, f, l = x by 3",
        "declare the dim as 3"),
    "several outputs": (["a, b = A(d)(x)", "output x"], "E0214", "A(d)(x)", "each output once"),
    "not applied": (["output y = A(d)"], "E0207", "A(d)", None),
    "a text": (['z = "a"', "output y = z"], "E0207", "z", None),
    "nothing carried": (["repeat 2 as l:", "    z = x", "output z"], "E0217", None, "`x`"),
    "a loss of numbers": (
        ["l = sum[d](x * x)", "output y = mean(l)"], "E0209", "mean", "`mean[batch, t](...)`",
    ),
    "a maximum": (["output y = x / max(x)"], "E0209", "max(x)", "`max[d](x)`"),
    "a norm": (["output y = l2norm(q)"], "E0209", "l2norm(q)", "`l2norm[K](q)`; `q` is [H, K]"),
    "index in round brackets": (["output y = x * index(d)"], "E0204", "index", "`index[K]`"),
    "an entry from the end": (["output y = x[-1]"], "E0310", "-1", "`take[d](..., d - 1)`"),
    "an entry that is not": (["param v[3]", "output y = v[3]"], "E0310", "3", None),
    "a real index": (["output y = q[x]"], "E0310", "x", "`input x in H`"),
    "a real index rounded": (
        ["output y = q[floor(sum[d](x))]"], "E0310", "floor(sum[d](x))", "`sum[n](where(index[n]"),
    "an index of an output": (
        ["recurrence s[d]:", "    s[t] = s[t-1] + x", "output s[t]"], "E0202", "t", "`[t]` out",
    ),
    "a mean over a block's tokens": (
        ["blocks b of n every n:", "    z = mean[b](x)", "output z"], "E0202", "b",
        "`mean[n](x[b])`",
    ),
    "heads that are a sequence": (
        ["attend all s over m:", "    z = softmax(q[s] @ q[t]) @ q[s]", "output z"], "E0202", "m",
        "a layer is applied along it",
    ),
    "a window along a dim of its own": (
        ["param w[n, d]", "output y = shortconv(x, w)"], "E0206", "shortconv(x, w)", "the last one",
    ),
    "a width that is a number": (
        ["output y = shortconv(x, 4)"], "E0301", "shortconv(x, 4)", "`param w[d, 4]`",
    ),
    "a condition on a value": (["require x > 0", "output x"], "E0403", "x > 0", "`chunk: bound"),
    "one number of two": (
        ["param w[d] = normal(0.02)", "output y = x * w"], "E0218", "normal(0.02)",
        "`normal(mean, std)`",
    ),
    "a product that is turned": (["output y = W @ x"], "E0301", "W @ x", "`x @ W`"),
    "a projection of heads in a recurrence": (
        ["param P[H, K, d]", "recurrence S[d]:", "    S[t] = S[t-1] + q @ P", "output S"],
        "E0304", "q @ P", "`q @ P` has its value in front of the block",
    ),
    "an outer product as a score": (
        ["attend s <= t over H:", "    z = softmax(q[t] @ k[s].T) @ k[s]", "output z[H, K]"],
        "E0301", None, "one number, `q[t].T @ k[s]`",
    ),
    "an outer product as a score of rows": (
        ["param V[d, n]", "v = x @ V", "attend s <= t over H:",
         "    z = softmax(k[t] @ k[s].T / sqrt(K)) @ v[s]", "output z"],
        "E0301", None, "`k[t] @ k[s].T` is a matrix [K, K'] for each pair",
    ),
    "a transpose of a token's value": (["output y = x.T"], "E0304", "x.T", "split[d as J](x)"),
    "a state of three dims as a matrix": (
        ["recurrence S[n, H, K]:", "    S[t] = 0.5 * S[t-1] + q", "    o = S[t].T @ x", "output o"],
        "E0304", "S[t].T", "`sum[H](a * b)`",
    ),
    "the size of blocks": (
        ["blocks b of size n every n:", "    m[K] = max(k)", "output x"], "E0012", "n",
        "`blocks b of n every n:`",
    ),
    "a product with no dims": (
        ["l = sum[d](x * x)", "output y = l @ W"], "E0301", "l @ W", "scale with `*`",
    ),
    "a value with no dims, twice": (
        ["l = sum[d](x * x)", "a = l @ W", "output y = a + l @ W"], "E0301", "l @ W",
        "scale with `*`",
    ),
    "a row times a column": (
        ["recurrence S[K, K'] over H:", "    S[t] = S[t-1] + q.T @ xw", "output S"], "E0301",
        "q.T @ xw", "an outer product is `q @ xw.T`",
    ),
    "a transpose too many": (
        ["recurrence S[n, K] over H:", "    S[t] = S[t-1] + xw @ q.T", "    o = S[t].T @ q",
         "output o"], "E0301", "S[t].T @ q", "`S[t] @ q`",
    ),
    "a diagonal of a number": (
        ["recurrence S[K] over H:", "    S[t] = diag(sum[d](x)) @ S[t-1] + q", "output S"],
        "E0304", "diag(sum[d](x))", "`a * S[t-1]`",
    ),
    "a remark behind two strokes": (
        ["output y = x // remark"], "E0201", "remark", "`#` before a comment",
    ),
    "a column on the left": (
        ["recurrence s[n]:", "    s[t] = s[t-1] + x @ W", "output s"], "E0301", "x @ W",
        "`W.T @ x`",
    ),
    "a state without an index": (
        ["recurrence s[n]:", "    s = tanh(xw + U @ s)", "output s"], "E0203", "s", "`s[t-1]`",
    ),
    "a state at 0": (
        ["recurrence s[d]:", "    s[t] = s[t-1] + x", "    o = s[0] * x", "output o"], "E0312",
        "s[0]", "`take[...](s[t], ...)`",
    ),
    "an initial value in the body": (
        ["recurrence s[d]:", "    s[0] = 0", "    s[t] = s[t-1] + x", "output s"], "E0216", "s[0]",
        "`recurrence s[d] = 0 ...:`",
    ),
    "a choice between one": (
        ["output y = where(x > 0, x)"], "E0209", "where(x > 0, x)", "`where(condition, a, b)`",
    ),
    "the best of how many": (
        ["output y = where(top(x), x, 0)"], "E0209", "top(x)", "`top(n, score)`",
    ),
    "a dim of a score": (
        ["attend s <= t over H:", "    o = softmax[K](q[t].T @ k[s]) @ k[s]", "output o"], "E0301",
        None, "`softmax(score)`, or `sum[s](...)`",
    ),
    "a gate of heads that the block is not over": (
        ["recurrence S[K, K']:", "    S[t] = diag(q) @ S[t-1] + x", "output S"], "E0304",
        "diag(q)", "`over H`",
    ),
    "heads that the block is not over": (
        ["recurrence S[K, K']:", "    S[t] = S[t-1] + k @ k.T", "output S"], "E0303",
        "S[t-1] + k @ k.T", "`over H`",
    ),
    "heads that an attend is not over": (
        ["attend s <= t:", "    o = softmax(q[t].T @ k[s]) @ k[s]", "output o"], "E0301",
        "softmax(q[t].T @ k[s]) @ k[s]", "`over H`",
    ),
    "groups": (
        ["attend s <= t over H:", "    o = softmax(q[t].T @ g[s]) @ k[s]", "output o"], "E0301",
        "q[t].T @ g[s]", "`grouped G`",
    ),
    "heads of another name": (
        ["attend s <= t over h:", "    o = softmax(q[t].T @ k[s]) @ k[s]", "output o"], "E0202",
        "h", "`H`",
    ),
    "a logsumexp with the index": (
        ["attend s <= t over H:", "    o = logsumexp[s](q[t].T @ k[s])", "output o"], "E0209",
        "logsumexp[s]", "`logsumexp(score)`",
    ),
    "a softmax with the index": (
        ["attend s <= t over H:", "    o = softmax[s](q[t].T @ k[s]) @ k[s]", "output o"], "E0209",
        "softmax[s]", "`softmax(score)`",
    ),
    "the reader's value in place of the other's": (
        ["attend s <= t over H:", "    o = softmax(q[t].T @ k[s]) @ k[t]", "output o"], "E0301",
        "softmax(q[t].T @ k[s]) @ k[t]", "`[s]`",
    ),
    "weights beside values": (
        ["attend s <= t over H:", "    o = softmax(q[t].T @ k[s]) * k[s]", "output y[H, K] = o"],
        "E0301", "y[H, K]", "`softmax(...) @ v[s]`",
    ),
    "another sequence": (
        ["attend s <= t over H:", "    o = softmax(q[t].T @ c[s]) @ c[s]", "output o"], "E0306",
        "c[s]", "`attend all m:`",
    ),
    "so many tokens back": (["output y = x[t-n]"], "E0308", "t-n", "where(index[W] == 0, window"),
    "a token by its place": (
        ["output y = x[t // 2]"], "E0308", "t // 2", "`sum[s](where(s == t // 2, 1, 0) * x[s])`",
    ),
    "a token ahead": (["output y = x[t+1]"], "E0308", "t+1", "`[t-1]`"),
    "a decision on no value": (
        ["output y = x if n in [1, 2] else 2 * x"], "E0402", "[1, 2]", "`--set n=64`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_finding_with_its_place_and_what_to_write(name: str) -> None:
    lines, code, part, says = CASES[name]
    found = findings(*lines)
    assert [each.code for each in found] == [code], [each.render() for each in found]
    (finding,) = found
    assert finding.label is not None
    assert part is None or finding.label.span.text == part
    if says is not None:
        assert any(says in text for text in finding.helps), finding.render()


def test_matrices_that_share_a_dim_are_added() -> None:
    """Only a sum of two matrices without a common dim is refused: it has four dims."""
    text = (
        "layer L(K, V):\n    input k[K], v[V]\n    recurrence S[K, V]:\n"
        "        S[t] = S[t-1] + k @ v.T + diag(k) @ S[t-1]\n    output S\n"
    )
    elaborate(parse(Source("mine.arch", text)), None, {}, import_source)


def test_a_name_that_is_missing_is_one_finding_for_all_its_places() -> None:
    """`--set` and typing errors hit many lines at once: the first is marked, then three more."""
    uses = [f"z{n} = p + x" for n in range(9)]
    (finding,) = findings(*uses, "output y = x")
    assert finding.code == "E0201" and finding.label is not None
    assert [label.span.text for label in finding.others] == ["p", "p", "p"]
    lines = [label.span.line for label in (finding.label, *finding.others)]
    assert lines == sorted(set(lines)) and len(lines) == 4
    shapes = [f"param v{n}[J]" for n in range(3)]
    (finding,) = findings(*shapes, "output y = x")
    assert finding.code == "E0202" and len(finding.others) == 2


def test_a_size_that_a_condition_says_is_an_argument_with_that_default() -> None:
    size, name = findings("param V[d, F]", "require F == 4 * d", "output y = x @ V")
    help = "sizes are the layer's arguments: `layer L(..., F = 4 * d)`"
    assert [each.code for each in (size, name)] == ["E0202", "E0201"]
    assert size.helps == name.helps == (help,)


def test_two_missing_names_are_two_findings() -> None:
    assert len(findings("z = p + x", "w = r + x", "output y = x")) == 2


@pytest.mark.parametrize("default", ["32.5", "-1"])
def test_a_default_that_is_no_size(default: str) -> None:
    """A dim would have that length; a number that is no dim may be anything."""
    text = f"layer L(d, K = {default}, u = {default}):\n    input x[d]\n    param W[d, K]\n"
    with pytest.raises(ArchError) as refused:
        text += "    output y = u * (x @ W)\n"
        elaborate(parse(Source("mine.arch", text)), None, {}, import_source)
    (finding,) = refused.value.diagnostics
    assert finding.code == "E0503" and finding.label is not None
    assert finding.label.span.text == f"K = {default}"
    assert finding.message.endswith(f"but it is `{default}`")

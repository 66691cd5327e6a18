"""The tree: what a spec says, before anything is known about shapes.

Every node carries the span of its text. Nothing here is evaluated; names are not yet looked up.
Expressions first, then statements, then declarations. Read together with `grammar.lark`.
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.source import Span


@dataclass(frozen=True)
class Node:
    """Anything with a place in the text."""

    span: Span


# --- expressions -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Name(Node):
    """`q`, `K'`, `none`."""

    id: str


@dataclass(frozen=True)
class Number(Node):
    """`128`, `1e-6`, kept as text so that it stays exact."""

    text: str


@dataclass(frozen=True)
class Text(Node):
    """`"exp"`: a quoted option value."""

    value: str


@dataclass(frozen=True)
class ListOf(Node):
    """`[3, 7, 11]`."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Unary(Node):
    """`-x`, `not c`."""

    op: str
    arg: Expr


@dataclass(frozen=True)
class Binary(Node):
    """`a + b`, `a @ b`, `a and b`; `op` is the operator as written in ASCII."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Compare(Node):
    """A chain `t - w < s <= t`, or `l in full`: n + 1 terms and n operators."""

    terms: tuple[Expr, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class Choice(Node):
    """`a if condition else b`; the condition is decided when compiling."""

    then: Expr
    condition: Expr
    orelse: Expr


@dataclass(frozen=True)
class Index(Node):
    """`W[e]`, `S[t-1]`, `l2norm[K]`, `m[]`, `split[d as H, K]`: `into` is what `as` names."""

    base: Expr
    items: tuple[Expr, ...]
    into: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Argument(Node):
    """One argument of a call, `x` or `eps = 1e-6`."""

    name: str | None
    value: Expr


@dataclass(frozen=True)
class Call(Node):
    """`f(x)`, `l2norm[K](x)`, `Attention(d, H)(x)`."""

    func: Expr
    args: tuple[Argument, ...]


@dataclass(frozen=True)
class Transpose(Node):
    """`k.T`."""

    arg: Expr


@dataclass(frozen=True)
class Along(Node):
    """`sum r in (s, t]: log_f[r]`, `product r in (s, t]: M[r]`: over the tokens between two."""

    kind: str
    index: str
    low: Expr
    high: Expr
    body: Expr


@dataclass(frozen=True)
class OnBlocks(Node):
    """`score on blocks of size always first and last 2`: scores of small blocks as of large."""

    value: Expr
    size: Expr
    first: bool
    last: Expr | None


Expr = (
    Name
    | Number
    | Text
    | ListOf
    | Unary
    | Binary
    | Compare
    | Choice
    | Index
    | Call
    | Transpose
    | Along
    | OnBlocks
)


# --- statements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declared(Node):
    """A name with its axes: `W_q[d, H, K]`; `axes` is None where none are written."""

    name: str
    axes: tuple[Expr, ...] | None


@dataclass(frozen=True)
class Input(Node):
    """`input x[d]`, `input c[e] along m`, `input tokens in vocab`, `input y in vocab optional`."""

    names: tuple[Declared, ...]
    along: str | None
    within: Expr | None
    optional: bool = False


@dataclass(frozen=True)
class ParamGroup(Node):
    """`W_k, W_v[d, G, K] = init`: names that share axes and an initial value."""

    names: tuple[Declared, ...]
    init: Expr | None


@dataclass(frozen=True)
class Param(Node):
    """`param A[..]; B[..] = 1`."""

    groups: tuple[ParamGroup, ...]


@dataclass(frozen=True)
class Target(Node):
    """Left of `=`: `q`, `alpha[H, K]`, `S[t]`, `m[t]`."""

    name: str
    items: tuple[Expr, ...] | None


@dataclass(frozen=True)
class Assign(Node):
    """`a = e`, `a, b, c = e by 3`, `a, b = e by N, R`."""

    targets: tuple[Target, ...]
    value: Expr
    by: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class StateDecl(Node):
    """`S[K, V]`, `m[] = -inf`."""

    name: str
    axes: tuple[Expr, ...]
    init: Expr | None


@dataclass(frozen=True)
class Recurrence(Node):
    """`recurrence S[K, V], z[K] over H grouped G:`."""

    states: tuple[StateDecl, ...]
    over: tuple[str, ...]
    grouped: str | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Attend(Node):
    """`attend t - w < s <= t in chosen over H grouped G:`, `attend all m over H:`, `index s <= t:`.

    `range` is a comparison chain; for `all m` the bare name m, for `b ending <= t` see `ending`.
    `both_ways` says that tokens which come later are meant too: `all m`, `all s <= t + 1`.
    """

    keyword: str
    range: Expr
    everything: bool
    ending: bool
    both_ways: bool
    chosen: Expr | None
    over: tuple[str, ...]
    grouped: str | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Blocks(Node):
    """`blocks b of size every stride:`."""

    index: str
    size: Expr
    stride: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Route(Node):
    """`route e in top(n, p) weight normalised(p) * scale:`."""

    index: str
    chosen: Expr
    weight: Expr | None
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Repeat(Node):
    """`repeat L as l:`; a name that is given again in the body is carried from layer to layer."""

    count: Expr
    index: str
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Require(Node):
    """`require H * K == d`: a condition on sizes."""

    condition: Expr


@dataclass(frozen=True)
class Output(Node):
    """`output y[d] = e`, `output h`."""

    target: Target
    value: Expr | None


@dataclass(frozen=True)
class Rule(Node):
    """One rule of `chunk:`: a word and what follows: `size 64`, `law(Token, Merge, Apply)`."""

    word: str
    args: tuple[Expr | Argument, ...]


@dataclass(frozen=True)
class Chunk(Node):
    """`chunk: size 64, state f32, sequential`."""

    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Return(Node):
    """`return e`, the value of a function."""

    value: Expr


Stmt = (
    Input
    | Param
    | Assign
    | Recurrence
    | Attend
    | Blocks
    | Route
    | Repeat
    | Require
    | Output
    | Chunk
    | Return
)


# --- declarations ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameter(Node):
    """A size or option of a layer, or an argument of a function, with its default.

    `axes` of a function's argument name its last axes: `function shortconv(x, w[W])`.
    """

    name: str
    default: Expr | None
    axes: tuple[Expr, ...] | None = None


@dataclass(frozen=True)
class Decl(Node):
    """`layer`, `block`, `model` or `function`; `axes` are those of a function (`rmsnorm[D](x)`)."""

    kind: str
    name: str
    axes: tuple[str, ...]
    params: tuple[Parameter, ...]
    doc: str
    body: tuple[Stmt, ...]
    header: Span


@dataclass(frozen=True)
class Import(Node):
    """`import Memory, Block from "file.arch"`."""

    names: tuple[str, ...]
    path: str


@dataclass(frozen=True)
class File(Node):
    """A whole spec."""

    imports: tuple[Import, ...]
    decls: tuple[Decl, ...]

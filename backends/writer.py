"""Text of a Python file: indented lines, names that cannot clash, comments that cite the spec."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import resources

from archc.backends.lines import broken

from archc.ir.free_names import numbered
from archc.ir.paths import snake as in_snake_case
from archc.source import Span

COLUMNS = 100
INDENT = "    "
PYTHON = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | frozenset(dir(builtins))
"""Words that no generated name may be: they mean something else in Python."""

_MODULE = """
    _archc _linear _without_decay _apply _backward_hooks _backward_pre_hooks _buffers _call_impl
    _compiled_call_impl
    _forward_hooks _forward_hooks_always_called _forward_hooks_with_kwargs _forward_pre_hooks
    _forward_pre_hooks_with_kwargs _get_backward_hooks _get_backward_pre_hooks _get_name
    _is_full_backward_hook _load_from_state_dict _load_state_dict_post_hooks
    _load_state_dict_pre_hooks _maybe_warn_non_full_backward_hook _modules _named_members
    _non_persistent_buffers_set _parameters _register_load_state_dict_pre_hook
    _register_state_dict_hook _replicate_for_data_parallel _save_to_state_dict _slow_forward
    _state_dict_hooks _state_dict_pre_hooks _version _wrapped_call_impl
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda
    double dump_patches eval extra_repr float forward get_buffer get_extra_state get_parameter
    get_submodule half initial_state ipu load_state_dict modules mtia named_buffers
    named_children named_modules named_parameters parameters register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook register_full_backward_hook
    register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter
    register_state_dict_post_hook register_state_dict_pre_hook requires_grad_ reset_parameters
    set_extra_state set_submodule share_memory state_dict to to_empty train training type xpu
    zero_grad
"""
MODULE = frozenset(_MODULE.split())
"""Attributes that every module of a generated file has; a parameter must not hide one."""

_LOCALS = """
    self state return_state sizes factory device dtype made layer past pos wide like real weight
    draw chunk CHUNK STEPS ctx cu_seqlens attention_mask states halves off_diagonal saved given
    training
"""
"""Names that lines of generated functions give to things of their own."""

PACKAGE = "archc.runtime"
CHECKED = "selfcheck"
"""The module of the runtime that stands at the end of files, where no value of a layer is in sight;
its imports are those of others but for a few."""


@cache
def runtime_modules() -> dict[str, tuple[str, ast.Module]]:
    """The text and the tree of each module of the runtime, by its name."""
    files = {e.name.partition(".py")[0]: e for e in resources.files(PACKAGE).iterdir()}
    texts = {n: files[n].read_text("utf-8") for n in sorted(files) if not n.startswith("__")}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


@cache
def reserved() -> frozenset[str]:
    """Names that generated functions use themselves: those taken from the runtime, its imports, and
    their own locals. A value of a spec has another name there."""
    found = {*_LOCALS.split()}
    for module, (_, tree) in runtime_modules().items():
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
                found |= set() if future else {alias.asname or alias.name for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef) and module != CHECKED:
                found.add(node.name)
            elif isinstance(node, ast.Assign) and module != CHECKED:
                names = (name for target in node.targets for name in ast.walk(target))
                found |= {name.id for name in names if isinstance(name, ast.Name)}
    return frozenset(found)


class Names:
    """Gives out identifiers that are valid, unused in this scope, and close to the hint."""

    def __init__(self, taken: Iterable[str] = ()):
        self.taken = set(taken)

    def fresh(self, hint: str) -> str:
        """`q`, or `q_2` where `q` is in use."""
        name = numbered(identifier(hint), self.taken)
        self.taken.add(name)
        return name

    def copy(self) -> Names:
        """A copy of the names in use, for an inner scope."""
        return Names(self.taken)


@lru_cache(maxsize=4096)
def identifier(text: str) -> str:
    """The nearest Python identifier in ASCII: `K'` is `K_prime`, `lambda` is `lambda_`, `S[t-1]` is
    `S_before`, `S[T]` is `S_T`."""
    text = text.replace("'", "_prime").replace("[t-1]", "_before")
    text = re.sub(r"\[(\w+)\]", r"_\1", text)
    text = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in text)
    if not text.strip("_") or text[0].isdigit() or text.startswith("__"):
        text = "n" + text
    return text + "_" if text in PYTHON or text in reserved() else text


def attribute(text: str) -> str:
    """The same for an attribute of a module: `half` is `half_`."""
    name = identifier(text)
    return name + "_" if name in MODULE else name


def snake(name: str) -> str:
    """A class name in snake case: `ShortMemory` is `short_memory`, `ABC` is `abc`."""
    return identifier(in_snake_case(name))


def quoted(text: str) -> str:
    """A Python string literal in double quotes, in ASCII."""
    shown = text.encode("unicode_escape").decode("ascii")
    return '"' + shown.replace('"', '\\"') + '"'


def printable(text: str) -> str:
    """Text of a spec as a comment may hold it: on one line."""
    return "".join(char if char.isprintable() else " " for char in text).strip()


def in_docstring(text: str) -> str:
    """A line as a docstring may hold it, with its indentation: it can neither end it nor escape."""
    lead = text[: len(text) - len(text.lstrip(" "))]
    return lead + printable(text).replace("\\", "\\\\").replace('"""', "'''")


_SHAPE = re.compile(r"\[[^\[\]]{,40}\]")


class Writer:
    """Collects the lines of a file."""

    def __init__(self, margin: int = 0) -> None:
        self.lines: list[str] = []
        self.depth, self.margin = 0, margin
        self._cited = ""

    @property
    def room(self) -> int:
        """Columns that a line has behind its indentation; `margin` is that of an outer block."""
        return COLUMNS - self.margin - len(INDENT) * self.depth

    def line(self, text: str = "", note: str = "") -> None:
        """One line; the note becomes a comment behind it where it fits."""
        if note and len(text) + 4 + len(note) <= self.room:
            text = f"{text}  # {note}"
        self.lines.append(INDENT * self.depth + text if text else "")

    def include(self, lines: Iterable[str]) -> None:
        """Lines that were written elsewhere, one step after the other in here."""
        self.lines += [INDENT * self.depth + line if line else "" for line in lines]

    def comment(self, text: str) -> None:
        """A comment line, cut at the margin."""
        text = f"# {printable(text)}"
        self.line(text if len(text) <= self.room else text[: self.room - 3].rstrip() + "...")

    def cite(self, span: Span | None) -> None:
        """The line of the spec that the next lines come from: `# my.arch:21  S[t] = ...`."""
        text = f"{span.where}  {statement(span)}" if span is not None else ""
        if text and text != self._cited:
            self.comment(text)
            self._cited = text

    def docstring(self, paragraphs: Iterable[str]) -> None:
        """A docstring of paragraphs, wrapped; lines that start with a blank keep it."""
        lines: list[str] = []
        for paragraph in paragraphs:
            lines += [""] if lines else []
            for line in paragraph.split("\n"):
                quotes = 0 if lines else 3
                lines += wrapped(in_docstring(line), self.room, quotes)
        if len(lines) == 1 and len(lines[0]) <= self.room - 6:
            ending = " " if lines[0].endswith('"') else ""
            self.line(f'"""{lines[0]}{ending}"""')
            return
        self.line('"""' + lines[0])
        for line in lines[1:]:
            self.line(line)
        self.line('"""')

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """`header` and everything written inside, one step further in."""
        self.line(header)
        self.depth += 1
        yield
        self.depth -= 1

    def call(self, before: str, items: list[str], after: str, note: str = "") -> None:
        """`before item, item after`."""
        self.line(before + ", ".join(items) + after, note)

    def define(
        self, name: str, arguments: Iterable[str], doc: Iterable[str], wrapper: str = ""
    ) -> Writer:  # fmt: skip
        """`def name(arguments):` with its docstring; what follows is inside. `wrapper`: what it is
        given to."""
        if wrapper:
            self.line(f"@{wrapper}")
        self.call(f"def {name}(", [*arguments], "):")
        self.depth += 1
        self.docstring(doc)
        return self

    def returns(self, items: list[str]) -> None:
        """`return item, item`; one item is a tuple too."""
        self.line(f"return {', '.join(items)}" if len(items) > 1 else f"return ({items[0]},)")

    def gives(self, items: list[str]) -> None:
        """`return item, item`; one item is no tuple."""
        self.line(f"return {', '.join(items)}")

    def text(self) -> str:
        """The file so far, with one newline at its end and no run of more than two blank lines."""
        columns = COLUMNS - self.margin
        lines = (part for line in self.lines for part in broken(line.rstrip(), columns, INDENT))
        joined = "\n".join(lines)
        return re.sub(r"\n{4,}", "\n\n\n", joined).strip("\n") + "\n"


def wrapped(line: str, width: int, taken: int = 0, hang: str = "") -> list[str]:
    """A line in pieces of at most `width`, the first shorter by `taken`; it goes on at `hang`, an
    indented one further in, where no flag of a command is cut, and a shape such as [B, T, H] stays
    together."""
    lead = line[: len(line) - len(line.lstrip())]
    hang = lead + INDENT if lead else hang
    first = lead + " " * taken
    whole = _SHAPE.sub(lambda shape: shape[0].replace(" ", "\0"), line.strip())
    pieces = textwrap.wrap(
        whole, width, initial_indent=first, subsequent_indent=hang, break_on_hyphens=not lead
    )
    pieces = [piece.replace("\0", " ") for piece in pieces]
    return [lead + pieces[0].lstrip(), *pieces[1:]] if pieces else [""]


def in_tuple(items: Collection[str]) -> str:
    """`(a, b)`, or `(a,)` of one."""
    return f"({', '.join(items)}{',' * (len(items) == 1)})"


def statement(span: Span) -> str:
    """The first line of a span, without the comment behind it."""
    return span.text.split("\n")[0].split("#")[0].strip()


def literals(text: str, room: int) -> list[str]:
    """A long text as literals one after the other; there is room for a comma."""
    return [quoted(line) for line in textwrap.wrap(text, room - 3, drop_whitespace=False)]


def rooms_for(states: Iterable[str], in_place: bool) -> list[str]:
    """The argument that gives a function new memory for states; none where it is to write over
    those that it reads."""
    rooms = [f"{state}.new_empty({state}.shape)" for state in states]
    return [] if in_place else [f"into={in_tuple(rooms)}"]

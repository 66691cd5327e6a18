"""`archc gallery`: specs on one page, each with its picture."""

from __future__ import annotations

import re
from html import escape

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import Spec, json_option
from archc.commands.profile import CONDITIONS, Profile, profile, with_unit
from archc.derivation.html import linked
from archc.ir.picture import as_svg
from archc.specfile import bundled, read, split

STYLE = """
:root { color-scheme: light dark; --text: #1f2430; --quiet: #69727f; --line: #dfe3e8;
        --paper: #fff; --panel: #f5f7f9; --link: #2458b3; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
       margin: 0 auto; max-width: 1080px; padding: 24px; }
a { color: var(--link); text-decoration: none; }
a:hover { text-decoration: underline; }
nav { margin: 1em 0 2em; }
nav h2 { font-size: 1rem; margin: 1em 0 .2em; }
nav p { columns: 13em; margin: 0; max-width: none; }
nav a { display: block; }
section { border-top: 1px solid var(--line); padding: 12px 0 28px; }
h2 { margin: 12px 0 0; }
h2 a { color: inherit; }
p { margin: 4px 0 12px; max-width: 50em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0 0 16px; }
dt { color: var(--quiet); }
dd { margin: 0; }
figure { margin: 0; overflow-x: auto; }
svg { max-width: 100%; height: auto; display: block; }
pre { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; background: var(--panel);
      border-radius: 8px; padding: 14px; overflow-x: auto; }
pre i { color: var(--quiet); font-style: normal; }
@media (max-width: 600px) {
  body { padding: 16px; }
  nav p { columns: 10em; font-size: .9rem; }
  nav a { padding: 3px 0; overflow-wrap: anywhere; }
  svg { max-width: none; }
}
@media (prefers-color-scheme: dark) {
  :root { --text: #dfe3ea; --quiet: #97a1b0; --line: #333a45; --paper: #14171c;
          --panel: #1c2027; --link: #8ab0f0; }
  svg { filter: invert(.9) hue-rotate(180deg); }
}
""".strip()
"""A picture is as wide as it is on a phone, and scrolls; in the dark its light is turned around."""

GROUPS = (
    ("Models", lambda found: found.layer.kind == "model"),
    ("Blocks", lambda found: found.layer.kind == "block"),
    ("Attention and a recurrence", lambda found: "attention" in found.memory
        and "recurrence" in found.memory),
    ("Attention", lambda found: "attention" in found.memory),
    ("Recurrences that correct what they hold", lambda found: "correction" in found.memory),
    ("Other linear recurrences", lambda found: "recurrence" in found.memory),
    ("Cells", lambda found: "cell" in found.memory),
    ("Token by token", lambda found: True),
)  # fmt: skip
"""Headings of the index; a spec stands under the first that fits it."""


@click.command()
@click.argument("specs", metavar="[SPEC]...", type=Spec(), nargs=-1)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is stdout.")
@json_option
@click.pass_context
def command(ctx: click.Context, specs: tuple[str, ...], output: str, as_json: bool) -> None:
    """Without a SPEC, all that are bundled. The page is one HTML file that needs no other."""
    writing.check_json(output, as_json)
    names = specs or bundled()
    writing.write(output, page([profile(name) for name in names]))
    if as_json:
        writing.tell(output, specs=list(names))
    elif output != "-":
        ctx.ensure_object(Console).say(f"{output} written, {len(names)} specs")


def page(profiles: list[Profile]) -> str:
    """The page: what the numbers mean, an index, and a section for each spec."""
    groups = grouped(profiles)
    links = "\n".join(f"<h2>{title}</h2>\n<p>{_links(found)}</p>" for title, found in groups)
    sections = "\n".join(section(each) for _, found in groups for each in found)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>archc: gallery</title>\n'
        f"<style>\n{STYLE}\n</style>\n<h1>Gallery</h1>\n<p>{escape(CONDITIONS)}</p>\n"
        f"<nav>\n{links}\n</nav>\n{sections}\n</html>\n"
    )


def grouped(profiles: list[Profile]) -> list[tuple[str, list[Profile]]]:
    """The specs under their headings, those of a heading in the order given."""
    first = [next(title for title, fits in GROUPS if fits(each)) for each in profiles]
    named = [
        (t, [p for p, own in zip(profiles, first, strict=True) if own == t]) for t, _ in GROUPS
    ]
    return [(title, found) for title, found in named if found]


def _links(profiles: list[Profile]) -> str:
    """A link to the section of each."""
    return "\n".join(f'<a href="#{_anchor(each)}">{escape(each.name)}</a>' for each in profiles)


def section(found: Profile) -> str:
    """One spec: a line about it, its class, source and cost, its picture and its text."""
    chosen = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
    kept = [f"{with_unit(found.state, 'B')} a sequence"] if found.state else []
    kept += [f"{with_unit(found.cache, 'B')} for each token"] if found.cache else []
    rows = {
        "class": escape(found.memory),
        "source": linked(escape(found.source, quote=False)),
        "parameters": f"{found.parameters:,}" if found.parameters else "",
        "a token": f"{with_unit(found.flops, 'flops')}" + (f" ({chosen})" if chosen else ""),
        "kept": ", ".join(kept) or "nothing",
    }
    facts = "\n".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in rows.items() if value)
    anchor = _anchor(found)
    return (
        f'<section id="{anchor}">\n<h2><a href="#{anchor}">{escape(found.name)}</a></h2>\n'
        f"<p>{escape(found.about)}</p>\n<dl>\n{facts}\n</dl>\n<figure>\n"
        f"{as_svg(found.layer)}</figure>\n<pre>{_text(found)}</pre>\n</section>"
    )


def _anchor(found: Profile) -> str:
    """The name of a section: that of the spec, as far as it can stand in an address."""
    return re.sub(r"[^\w.-]+", "-", found.name)


def _text(found: Profile) -> str:
    """The text of the spec's file, its comments set back."""
    text = escape(read(split(found.name)[0]).text.strip(), quote=False)
    return re.sub(r"#.*", r"<i>\g<0></i>", text)

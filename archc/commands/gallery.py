"""`archc gallery`: specs on one page, each with its picture."""

from __future__ import annotations

import re
from html import escape

import click

from archc.commands import writing
from archc.commands.console import Console
from archc.commands.parameters import Spec
from archc.commands.profile import CONDITIONS, Profile, in_short, profile
from archc.ir.picture import as_svg
from archc.specfile import bundled, read, split

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2430; background: #fff; margin: 0 auto;
       max-width: 1080px; padding: 24px; }
a { color: #2458b3; text-decoration: none; }
a:hover { text-decoration: underline; }
nav { columns: 13em; margin: 1em 0 2em; }
nav a { display: block; }
section { border-top: 1px solid #dfe3e8; padding: 12px 0 28px; }
h2 { margin: 12px 0 0; }
h2 a { color: inherit; }
p { margin: 4px 0 12px; max-width: 50em; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 16px; margin: 0 0 16px; }
dt { color: #69727f; }
dd { margin: 0; }
svg { max-width: 100%; height: auto; display: block; }
pre { font: 13px/1.45 ui-monospace, Menlo, Consolas, monospace; background: #f5f7f9;
      border-radius: 8px; padding: 14px; overflow-x: auto; }
pre i { color: #69727f; font-style: normal; }
""".strip()


@click.command()
@click.argument("specs", metavar="[SPEC]...", type=Spec(), nargs=-1)
@click.option("-o", "--output", required=True, metavar="FILE", help="Where to write; - is stdout.")
@click.pass_context
def command(ctx: click.Context, specs: tuple[str, ...], output: str) -> None:
    """Without a SPEC, all that are bundled. The page is one HTML file that needs no other."""
    names = specs or bundled()
    writing.write(output, page([profile(name) for name in names]))
    if output != "-":
        ctx.ensure_object(Console).say(f"{output} written, {len(names)} specs")


def page(profiles: list[Profile]) -> str:
    """The page: what the numbers mean, an index, and a section for each spec."""
    links = "\n".join(f'<a href="#{_anchor(each)}">{escape(each.name)}</a>' for each in profiles)
    sections = "\n".join(section(each) for each in profiles)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n<title>archc: gallery</title>\n'
        f"<style>\n{STYLE}\n</style>\n<h1>Gallery</h1>\n<p>{escape(CONDITIONS)}</p>\n"
        f"<nav>\n{links}\n</nav>\n{sections}\n</html>\n"
    )


def section(found: Profile) -> str:
    """One spec: a line about it, its class, source and cost, its picture and its text."""
    chosen = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
    kept = [f"{in_short(found.state, 'B')} a sequence"] if found.state else []
    kept += [f"{in_short(found.cache, 'B')} for each token"] if found.cache else []
    rows = {
        "class": escape(found.memory),
        "source": _linked(escape(found.source, quote=False)),
        "parameters": f"{found.parameters:,}" if found.parameters else "",
        "a token": f"{in_short(found.flops, 'flops')}" + (f" ({chosen})" if chosen else ""),
        "kept": ", ".join(kept) or "nothing",
    }
    facts = "\n".join(f"<dt>{key}</dt><dd>{value}</dd>" for key, value in rows.items() if value)
    anchor = _anchor(found)
    return (
        f'<section id="{anchor}">\n<h2><a href="#{anchor}">{escape(found.name)}</a></h2>\n'
        f"<p>{escape(found.about)}</p>\n<dl>\n{facts}\n</dl>\n{as_svg(found.layer)}"
        f"<pre>{_text(found)}</pre>\n</section>"
    )


def _anchor(found: Profile) -> str:
    """The name of a section: that of the spec, as far as it can stand in an address."""
    return re.sub(r"[^\w.-]+", "-", found.name)


def _linked(source: str) -> str:
    """A source in which the numbers of papers are links."""
    return re.sub(r"\b\d{4}\.\d{4,5}\b", r'<a href="https://arxiv.org/abs/\g<0>">\g<0></a>', source)


def _text(found: Profile) -> str:
    """The text of the spec's file, its comments set back."""
    text = escape(read(split(found.name)[0]).text.strip(), quote=False)
    return re.sub(r"#.*", r"<i>\g<0></i>", text)

"""HTML tables: caption, headings, blocks of rows. Captions and headings are escaped here, rows by their makers."""

from __future__ import annotations

from html import escape

Heading = tuple[str, str, bool]  # name, arrow, whether the paper's number stands beside it
NONE = "\N{EN DASH}"


def plain(caption: str, headings: list[str], lines: list[str]) -> str:
    head = "".join(f"<th scope='col'>{escape(h)}</th>" for h in headings)
    rows = "".join(lines)
    return _scroll(caption, f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>", "plain")


def minus(text: str) -> str:
    return text.replace("-", "\N{MINUS SIGN}")


def blocks(caption: str, headings: list[Heading], more: list[str], body: list[tuple[str, list[str]]]) -> str:
    """Columns of numbers, of which those with the paper's beside them are three wide; a block for each part."""
    deep = " rowspan='2'" if any(paper for *_, paper in headings) else ""
    top = f"<th scope='col'{deep}>method</th>"
    for name, arrow, paper in headings:
        wide = " scope='colgroup' colspan='3'" if paper else f" scope='col'{deep}"
        top += f"<th{wide}>{escape(name)}{arrow and f'&nbsp;{arrow}'}</th>"
    top += "".join(f"<th scope='col'{deep}>{escape(name)}</th>" for name in more)
    names = ("here", "paper", "diff.")
    second = "".join(f"<th scope='col'>{name}</th>" for *_, paper in headings if paper for name in names)
    inner, width = "", 1 + sum(3 if paper else 1 for *_, paper in headings) + len(more)
    for part, lines in body:
        name = f"<tr class='part'><th scope='rowgroup' colspan='{width}'>{escape(part)}</th></tr>" if part else ""
        inner += f"<tbody>{name}{''.join(lines)}</tbody>"
    head = f"<thead><tr>{top}</tr>{f'<tr>{second}</tr>' if second else ''}</thead>"
    return _scroll(caption, head + inner, "results")


def _scroll(caption: str, inner: str, kind: str) -> str:
    """Wider than a phone, it scrolls by itself."""
    table = f"<table class='{kind}'><caption><span>{escape(caption)}</span></caption>{inner}</table>"
    return f"<div class='scroll' tabindex='0' role='region' aria-label='{escape(caption)}'>{table}</div>"

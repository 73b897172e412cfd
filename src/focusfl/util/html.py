"""Small pieces of HTML for notebooks: no script, no style sheet, readable on light and on dark ground.

Text is escaped unless it is `Html`, which only this module and its callers' own markup make. Colours of text and
lines are those of the notebook; bars have colours that stand out on both grounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from focusfl.util.files import visible

# Okabe and Ito: distinct with every kind of colour blindness, without black and yellow, which vanish on one ground
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
BAR_PIXELS = 90
CELL = "padding:.15em .6em;text-align:{};white-space:nowrap;border:0;border-bottom:1px solid rgba(128,128,128,.25)"


class Html(str):
    """Markup that is safe to show as it is."""

    __slots__ = ()


def text(value: object) -> Html:
    """Return a value as HTML: text from outside is escaped, and its control characters are made visible.

    Example:
        >>> text("<script>"), text(Html("<b>bold</b>"))
        ('&lt;script&gt;', '<b>bold</b>')
    """
    return value if isinstance(value, Html) else Html(escape(visible(str(value))))


def join(*parts: object) -> Html:
    """Put pieces together; what is not `Html` is escaped."""
    return Html("".join(map(text, parts)))


def bold(value: object) -> Html:
    """Return a value in bold."""
    return join(Html("<b>"), value, Html("</b>"))


def paragraph(*parts: object) -> Html:
    """Return a paragraph."""
    return join(Html('<p style="margin:.3em 0;max-width:60em">'), *parts, Html("</p>"))


def card(title: object, *parts: object) -> Html:
    """Return a block with a heading."""
    head = join(Html('<div style="font-weight:600;font-size:1.1em;margin:.2em 0">'), title, Html("</div>"))
    start = Html('<div style="font-family:system-ui,sans-serif;line-height:1.4">')
    return join(start, head, *parts, Html("</div>"))


def table(head: Sequence[str], rows: Sequence[Sequence[object]], left: int = 1) -> Html:
    """Return a table.

    Args:
        head: The headings.
        rows: The cells, as many in each row.
        left: How many of the first columns are aligned on the left; the others are numbers.
    """

    def line(tag: str, cells: Sequence[object]) -> Html:
        styles = (CELL.format("left" if i < left else "right") for i in range(len(cells)))
        pairs = zip(cells, styles, strict=True)
        inner = join(*(join(Html(f'<{tag} style="{style}">'), cell, Html(f"</{tag}>")) for cell, style in pairs))
        return join(Html('<tr style="background:none">'), inner, Html("</tr>"))

    body = join(*(line("td", cells) for cells in rows))
    start = Html(
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:.9em;margin:.4em 0">'
    )
    return join(
        start, Html("<thead>"), line("th", head), Html("</thead><tbody>"), body, Html("</tbody></table></div>")
    )


def bar(value: float, largest: float, colour: str = COLOURS[0]) -> Html:
    """Return a horizontal bar whose length is |value| / largest; below 0 it is only outlined."""
    pixels = round(BAR_PIXELS * min(abs(value) / largest, 1.0)) if largest > 0 else 0
    fill = f"background:{colour}" if value >= 0 else f"border:1px solid {colour};box-sizing:border-box"
    inner = f'<span style="display:inline-block;height:.7em;width:{pixels}px;{fill}"></span>'
    return Html(f'<span style="display:inline-block;width:{BAR_PIXELS}px;text-align:left">{inner}</span>')


def columns(values: Sequence[float], largest: float, titles: Sequence[str], colour: str = COLOURS[0]) -> Html:
    """Return one small upright bar per value, with a title that appears under the pointer."""
    bars = []
    for value, title in zip(values, titles, strict=True):
        height = max(value / largest, 0.04) if largest > 0 and value > 0 else 0.0
        style = f"display:inline-block;width:6px;margin-right:1px;height:{height:.2f}em;background:{colour}"
        bars.append(Html(f'<span title="{text(title)}" style="{style}"></span>'))
    return join(Html('<span style="font-size:1.4em;white-space:nowrap">'), *bars, Html("</span>"))


def chip(label: object, colour: str) -> Html:
    """Return a small coloured square and a label."""
    square = (
        f'<span style="display:inline-block;width:.8em;height:.8em;background:{colour};margin-right:.3em"></span>'
    )
    return join(Html(square), label)

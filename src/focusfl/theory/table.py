"""What `check_all` measured, as Markdown."""

from __future__ import annotations

from focusfl.theory.measure import Row


def report(rows: list[Row]) -> str:
    """Of each setting the round in which the printed bound does worst, and in how many rounds each bound holds."""
    parts = []
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        lines = [f"**{_plain(what)}**", "", "| setting | t | measured | printed | holds | corrected | holds |"]
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        settings = dict.fromkeys(row["setting"] for row in same)
        lines += [_line(name, [row for row in same if row["setting"] == name]) for name in settings]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(setting: str, rows: list[Row]) -> str:
    printed, corrected = ([row for row in rows if row["statement"] == s] for s in ("printed", "corrected"))
    worst = min(range(len(printed)), key=lambda i: _margin(printed[i]))
    cells = [_plain(setting), str(printed[worst]["t"]), _number(printed[worst]["measured"])]
    for each in (printed, corrected):
        cells += [f"{each[worst]['side']} {_number(each[worst]['bound'])}", _holds(each)]
    return "| " + " | ".join(cells) + " |"


def _margin(row: Row) -> float:
    gap = float(row["measured"] - row["bound"])
    return gap if row["side"] == ">=" else -gap


def _holds(rows: list[Row]) -> str:
    whys = {row["why"] for row in rows if row["why"]}
    if whys:
        return "; ".join(sorted(whys))
    held = sum(row["holds"] for row in rows)
    if len(rows) == 1:
        return "yes" if held else "**no**"
    return f"{held} of {len(rows)}" if held == len(rows) else f"**{held} of {len(rows)}**"


def _plain(text: str) -> str:
    return text.replace("*", r"\*")


def _number(value: float) -> str:
    return f"{value:.4g}" if abs(value) > 1e-12 else "0"

"""What `check_all` measured, as Markdown."""

from __future__ import annotations

from focusfl.research.theory.measure import Row


def report(rows: list[Row]) -> str:
    """Of each setting the round in which the printed bound does worst, and in how many rounds each bound holds."""
    parts = []
    for what in dict.fromkeys(row["what"] for row in rows):
        lines = [f"**{_plain(what)}**", "", "| setting | t | measured | printed | holds | corrected | holds |"]
        lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for line in summary([row for row in rows if row["what"] == what]):
            setting, *rest = list(line.values())[1:]
            lines.append("| " + " | ".join([_plain(setting), *rest]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def summary(rows: list[Row]) -> list[dict[str, str]]:
    """A line for each setting, in words."""
    lines = []
    for what, setting in dict.fromkeys((row["what"], row["setting"]) for row in rows):
        same = [row for row in rows if (row["what"], row["setting"]) == (what, setting)]
        printed, corrected = ([row for row in same if row["statement"] == s] for s in ("printed", "corrected"))
        worst = min(range(len(printed)), key=lambda i: _margin(printed[i]))
        line = {"what": what, "setting": setting, "t": str(printed[worst]["t"])}
        line["measured"] = _number(printed[worst]["measured"])
        for name, each in (("printed", printed), ("corrected", corrected)):
            line[name] = f"{each[worst]['side']} {_number(each[worst]['bound'])}"
            line[f"{name} holds"] = _holds(each)
        lines.append(line)
    return lines


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

"""Do the paper's claims hold here? Decided by the numbers of all seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from focusfl.algorithms import title
from focusfl.report.certainty import below_best_loss
from focusfl.report.rows import Row
from focusfl.report.section import JudgedClaim
from focusfl.research.paper.reproduction import Claim


def judge(claim: Claim, rows: Sequence[Row], methods: Mapping[str, list[str]] | None = None) -> JudgedClaim:
    """Decide whether a claim holds, over the seeds that all of its methods have: other seeds are other data.

    Args:
        claim: The claim.
        rows: Our runs.
        methods: The methods of the table, by part. While one of them has no row, the claim is not judged.

    Returns:
        "holds": on average and in every seed, in all parts; "holds weakly": on average; otherwise "does not hold".
    """
    every = dict.fromkeys([*(methods or {}), *(row.get("part", "") for row in rows)])
    parts = [claim.part] if claim.part is not None else list(every) or [""]
    verdicts, numbers = [], []
    for part in parts:
        runs = [row for row in rows if row.get("part") == part]
        verdict, text = _judge_part(claim, runs, (methods or {}).get(part, []))
        if verdict == "not measured":
            return JudgedClaim(claim.says, verdict, "missing: " + ": ".join(filter(None, [part, text])))
        verdicts.append(verdict)
        numbers.append(f"{part}: {text}" if part else text)
    verdict = next(verdict for verdict in ("does not hold", "holds weakly", "holds") if verdict in verdicts)
    return JudgedClaim(claim.says, verdict, "; ".join(numbers))


def _judge_part(claim: Claim, runs: Sequence[Row], methods: Sequence[str]) -> tuple[str, str]:
    """The verdict for one part, and its numbers, or what is missing."""
    values = _values(claim, runs)
    ours = values.pop(claim.better, {})
    others = {k: v for k, v in values.items() if not claim.than or k in claim.than}
    absent = set(claim.than or methods) - {claim.better} - set(others) | (set() if ours else {claim.better})
    if absent or not others:
        return "not measured", ", ".join(sorted(map(title, absent))) if ours or others else "all"
    seeds = sorted(ours.keys() & set.intersection(*(set(v) for v in others.values())))
    if not seeds:
        return "not measured", "a seed that all have"
    means = {k: mean(v[s] for s in seeds) for k, v in others.items()}
    rival, our_mean = max(means, key=lambda k: means[k]), mean(ours[s] for s in seeds)
    weakly = our_mean + claim.within >= means[rival]
    strictly = all(ours[s] + claim.within >= v[s] for v in others.values() for s in seeds)
    digits, other, sign = 1 if claim.metric == "rounds" else 4, "worst" if claim.worse else "best", _sign(claim)
    text = f"{title(claim.better)} {sign * our_mean:.{digits}f}, "
    text += f"the {other} other ({title(rival)}) {sign * means[rival]:.{digits}f}"
    text += f" ({len(seeds)} of {len(ours)} seeds)" if len(seeds) < len(ours) else ""
    if claim.metric == "faa" and below_best_loss([row for row in runs if row["method"] == claim.better]):
        text += f"; {title(claim.better)} has agents below their best loss"
    return "holds" if weakly and strictly else "holds weakly" if weakly else "does not hold", text


def _sign(claim: Claim) -> int:
    """1 if larger numbers support the claim, otherwise -1."""
    return 1 if (claim.metric == "avg_acc") != claim.worse else -1


def _values(claim: Claim, rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """The metric by method and seed, with the sign that makes larger numbers support the claim."""
    sign = _sign(claim)
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        value = _mean_rounds(row) if claim.metric == "rounds" else row[claim.metric]
        if value is not None:
            found.setdefault(row["method"], {})[row["seed"]] = sign * value
    return found


def _mean_rounds(row: Row) -> float | None:
    """The mean over the goals; a goal that was never reached counts as all the rounds there were."""
    goals = row.get("rounds_to")
    return mean(row["rounds"] if t is None else t for t in goals.values()) if goals else None

"""What to do about what a run found: warnings where a method has the wrong options, or another one serves better.

One measure decides: the first of the metrics that were measured, or else the loss. Where the loss decides and the
accuracies contradict it, neither does. Every piece of advice is given once, and follows from one of these facts:

1. some agents do worse than alone, or than with FedAvg;
2. another method serves the agents better, on average and beyond noise: then it is the advice, and no other;
3. nothing is gained over FedAvg, and no method is better: FedAvg is sufficient.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from focusfl.algorithms import ALGORITHMS, title
from focusfl.report.gains import (
    Gains,
    Judged,
    compare_losses,
    deciding_metric,
    judge,
    rivals,
)
from focusfl.report.names import CONFIDENT_LABEL, MIXTURES, groups, uncertain_agents, who
from focusfl.report.rows import Row, agent_numbers

PERSONAL = ("ditto", "fedsoft")  # methods that give every agent a model of its own
MIN_ACCURACY_GAP = 0.01  # by which accuracies contradict the losses
MAX_UNCERTAIN_SHARE = 1 / 3  # if more of the agents are uncertain, the groups themselves are in doubt
MIN_ROUNDS_AFTER_WARMUP = 5  # of FOCUS, before anything is said about its groups
MIN_GROUP_EXAMPLES = 50  # training examples: below, scikit-learn's guide to estimators says "get more data"


@dataclass(frozen=True)
class Rival:
    """A method beside the one that is explained.

    Attributes:
        rows: Its runs.
        gains: Who gains and loses against it, by the loss.
        judged: The comparison by the metric that decides; None if the loss does.
        accuracies: The mean accuracies of the method and of this one; None in regression.
    """

    rows: Sequence[Row]
    gains: Gains
    judged: Judged | None
    accuracies: tuple[float, float] | None

    @property
    def name(self) -> str:
        """What sentences call it, at their beginning."""
        return "Training alone" if self.algorithm == "local" else title(self.rows[0]["method"])

    @property
    def algorithm(self) -> str:
        return self.rows[0]["algorithm"]

    @property
    def disputed(self) -> bool:
        """Whether the loss would decide, but the accuracies say the opposite."""
        if self.judged is not None or self.accuracies is None:
            return False
        ours, theirs = self.accuracies
        return self.gains.overall * (ours - theirs) > MIN_ACCURACY_GAP

    @property
    def overall(self) -> int:
        """The verdict of the measure that decides: -1 the explained method is better, 1 this one, 0 not clear."""
        if self.judged is not None:
            return self.judged.overall
        return 0 if self.disputed else self.gains.overall

    @property
    def sufficient(self) -> bool:
        """Whether nobody gains over it, and nobody loses either."""
        nobody = not self.gains.gained and not self.gains.lost and self.gains.overall == 0
        return nobody and self.overall == 0 and not self.disputed

    @cached_property
    def served_better(self) -> list[int]:
        """The agents that have a better value under it than under the method."""
        if self.judged is not None:
            return self.judged.worse
        return [e for e in self.gains.pairs if (means := self.gains.mean_losses([e]))[0] > means[1]]


def compared_with(runs: Sequence[Row], others: Sequence[Row]) -> tuple[str, dict[str, Rival]]:
    """Compare a method with all others.

    Args:
        runs: Its runs.
        others: Runs of other methods; those of the method itself are ignored.

    Returns:
        The metric that decides, "" for the loss; and the other methods that share a seed and an agent with it.
    """
    found = {}
    metric = deciding_metric([*runs, *(row for row in others if row["seed"] in {run["seed"] for run in runs})])
    for method, rows in rivals(runs, others).items():
        gains = compare_losses(runs, rows)
        if gains is not None:
            judged = judge(runs, rows, metric) if metric else None
            found[method] = Rival(rows, gains, judged, _accuracies(runs, rows))
    return metric, found


def _accuracies(runs: Sequence[Row], others: Sequence[Row]) -> tuple[float, float] | None:
    """The mean accuracies on the seeds that both have."""
    pairs = [(a.get("acc"), b.get("acc")) for a in runs for b in others if a["seed"] == b["seed"]]
    known = [(fmean(ours), fmean(theirs)) for ours, theirs in pairs if ours and theirs]
    return (fmean(a for a, _ in known), fmean(b for _, b in known)) if known else None


def by_algorithm(found: Mapping[str, Rival], algorithm: str) -> Rival | None:
    """Return the method with this algorithm; if there are several, with other options, the first."""
    return next((rival for rival in found.values() if rival.algorithm == algorithm), None)


def recommended(runs: Sequence[Row], found: Mapping[str, Rival]) -> Rival | None:
    """Return the method that serves the agents best, if it is better than this one beyond noise.

    Of several it is the one with the least mean validation loss, if the loss decides and all have one; otherwise
    the one with the best test numbers. Where agents adapt the shared model, the validation loss is that of the
    shared model, and does not count.

    Args:
        runs: The runs of this method.
        found: The others (`compared_with`).
    """
    better = [rival for rival in found.values() if rival.overall > 0 and rival.served_better]
    if not better:
        return None
    if validated(runs, better):
        return min(better, key=lambda r: fmean(row["validation_loss"] for row in r.rows))
    return max(better, key=_advantage)


def validated(runs: Sequence[Row], better: Sequence[Rival]) -> bool:
    """Say whether validation losses can decide between methods."""
    rows = [*runs, *(row for rival in better for row in rival.rows)]
    comparable = all("validation_loss" in row and not row["params"].get("adapt") for row in rows)
    return comparable and all(rival.judged is None for rival in better)


def _advantage(rival: Rival) -> float:
    """By how much it is better."""
    if rival.judged is not None:
        return abs(rival.judged.theirs - rival.judged.ours)
    ours, theirs = rival.gains.mean_losses(list(rival.gains.pairs))
    return ours - theirs


def recommendation(runs: Sequence[Row], found: Mapping[str, Rival], metric: str) -> str:
    """Say which method serves the agents better, how many of them and by how much; "" if none does."""
    best = recommended(runs, found)
    if best is None:
        return ""
    worse, beyond = "", ""
    if best.judged is not None:
        measure, (ours, theirs) = f"mean {metric}", (best.judged.ours, best.judged.theirs)
        E = len(best.judged.better) + len(best.judged.worse) + best.judged.tied
    else:
        measure, (ours, theirs) = "mean loss", best.gains.mean_losses(list(best.gains.pairs))
        E, lost, gained = len(best.gains.pairs), best.gains.lost, best.gains.gained
        beyond = f", {len(lost)} of them beyond {best.gains.threshold}" * bool(lost)
        worse = f", but {who(runs[0], gained)} worse" if gained else ""
    how = "chosen by its validation loss"
    if not validated(runs, [rival for rival in found.values() if rival.overall > 0]):
        how = "on these test data: confirm it on others"
    count = f"{len(best.served_better)} of {E} agents better{beyond}{worse}"
    return f"{best.name} serves {count} ({measure} {theirs:.3g} instead of {ours:.3g}; {how})"


def warnings(runs: Sequence[Row], others: Sequence[Row]) -> Iterator[str]:
    """Say where grouping agents is the wrong method or has the wrong options, and what to do.

    Args:
        runs: A method's runs.
        others: Runs of other methods.

    Yields:
        What was measured in one sentence, and advice in another.
    """
    row = runs[0]
    if row["algorithm"] == "focus" and row["params"].get("init") == "split":
        rounds, warmup = row.get("rounds", math.inf), row["params"].get("warmup", 0)
        if isinstance(warmup, int) and rounds < warmup + MIN_ROUNDS_AFTER_WARMUP:
            yield f"only {rounds} rounds with a warm-up of {warmup}: too few to judge. Train for more rounds."
            return
    metric, found = compared_with(runs, others)
    fedavg, local = by_algorithm(found, "fedavg"), by_algorithm(found, "local")
    better, one = recommendation(runs, found, metric), all(len(groups(run)) == 1 for run in runs)
    spread = len(uncertain_agents(runs)) > MAX_UNCERTAIN_SHARE * len(agent_numbers(row))
    mixes = spread and row["algorithm"] in MIXTURES  # then no cluster is anybody's alone
    fewer = [] if mixes else [*_small_groups(row, one), *_doubtful_groups(runs, one)]
    facts = [*_alone_is_better(row, one, local), *_fedavg_is_better(row, fedavg)]
    best = recommended(runs, found)
    if facts and (best is None or best.algorithm == "local"):
        tried = {r["algorithm"] for r in [row, *others]}
        advice = _advice(row, one or mixes, fedavg, local, bool(fewer), [m for m in PERSONAL if m not in tried])
        better = f"{better}. {advice}" if better else advice
    if facts or better:
        yield "".join(f"{part}." for part in ["; ".join(facts), f" {better}" if facts else better] if part)
    else:
        yield from _fedavg_is_sufficient(row, one, fedavg)
    yield from fewer
    yield from _no_skill(runs)


def _alone_is_better(row: Row, one: bool, local: Rival | None) -> Iterator[str]:
    """Agents that lose by taking part, each beyond noise or all of them together."""
    if local is None or not (local.gains.lost or local.gains.overall > 0):
        return
    if local.gains.lost:
        found = _worse(row, local.gains, "alone")
    else:
        ours, theirs = local.gains.mean_losses(list(local.gains.pairs))
        found = f"on average the agents do worse than alone (mean loss {ours:.3g}, alone {theirs:.3g})"
    yield f"all {len(agent_numbers(row))} agents are in one group, but {found}" if one else found


def _fedavg_is_better(row: Row, fedavg: Rival | None) -> Iterator[str]:
    if fedavg is not None and fedavg.gains.lost:
        yield _worse(row, fedavg.gains, "with FedAvg")


def _worse(row: Row, gains: Gains, where: str) -> str:
    ours, theirs = gains.mean_losses(gains.lost)
    do = "does" if len(gains.lost) == 1 else "do"
    return f"{who(row, gains.lost)} {do} worse than {where} (mean loss {ours:.3g}, {where} {theirs:.3g})"


def _advice(
    row: Row, one: bool, fedavg: Rival | None, local: Rival | None, fewer: bool, untried: Sequence[str]
) -> str:
    """Say what to do for agents that lose, where no method that shares models is better on average.

    Args:
        row: A run.
        one: Whether all agents are in one group.
        fedavg: How it compares with FedAvg, and ...
        local: ... with training alone.
        fewer: Whether another warning asks for fewer clusters.
        untried: Methods with a model for every agent that were not compared.
    """
    alone = [] if local is None else local.gains.lost
    with_fedavg = [] if fedavg is None else fedavg.gains.lost
    options = [_better_start(row)] * bool(_better_start(row))
    if not one and with_fedavg:
        options = ["fewer clusters", *(options or _longer_warmup(row))]
    elif not one and not fewer:
        options = ["more clusters", *options]
    elif one and not with_fedavg and len((row["pi"] or [[]])[0]) == 1:
        options = ["M = 2 or more", *options]
    if options:
        return f"Try {' or '.join(options)}"
    if untried and (alone or not with_fedavg):
        return f"Compare with methods that give every agent a model of its own: add {' and '.join(untried)}"
    return ". ".join(_for_each(row, fedavg, local))


def _for_each(row: Row, fedavg: Rival | None, local: Rival | None) -> Iterator[str]:
    """Say by name who should train alone and who should use FedAvg; who loses against both, the better one."""
    alone = [] if local is None else local.gains.lost
    with_fedavg = [] if fedavg is None else fedavg.gains.lost
    if local is not None and not alone and not with_fedavg:  # all together lose, no single agent does beyond noise
        alone = [e for e in local.gains.pairs if (means := local.gains.mean_losses([e]))[0] > means[1]]
    if local is not None and fedavg is not None:
        both = set(alone) & set(with_fedavg)
        better = {e for e in both if local.gains.mean_losses([e])[1] <= fedavg.gains.mean_losses([e])[1]}
        alone = [e for e in alone if e not in both - better]
        with_fedavg = [e for e in with_fedavg if e not in better]
    if alone:
        yield f"Let {who(row, alone)} train alone"
    if with_fedavg:
        yield f"Use FedAvg for {who(row, with_fedavg)}"


def _longer_warmup(row: Row) -> list[str]:
    return [f"a warmup longer than {row['params'].get('warmup')} rounds"] * _is_split(row)


def _fedavg_is_sufficient(row: Row, one: bool, fedavg: Rival | None) -> Iterator[str]:
    """Agents that are alike need no groups. Where agents adapt, that has to be measured."""
    all_in_one, M = f"all {len(agent_numbers(row))} agents are in one group", len((row["pi"] or [[]])[0])
    if fedavg is None:
        if one and not row["params"].get("adapt"):
            alike = ": they look alike. FedAvg is sufficient here"
            forced = ", because M = 1 allows no other. Try M = 2 or more; otherwise FedAvg is sufficient"
            yield f"{all_in_one}{forced if M == 1 else alike}."
    elif fedavg.sufficient:
        ours, theirs = fedavg.gains.mean_losses(list(fedavg.gains.pairs))
        both = f"mean loss {ours:.3g}, with FedAvg {theirs:.3g}"
        none = f"no agent does better than with FedAvg by more than {fedavg.gains.threshold} ({both})"
        yield f"{f'{all_in_one}, and ' * one}{none}. FedAvg is sufficient here."
    elif one and fedavg.overall < 0:
        yield f"{all_in_one}, so the gain over FedAvg is not one of grouping: {_cause(row, fedavg.rows[0])}."


def _cause(row: Row, fedavg: Row) -> str:
    """Say from what a gain over FedAvg comes that is not one of grouping."""
    ours, theirs = row["params"], fedavg["params"]
    causes = []
    if ours.get("adapt") and not theirs.get("adapt"):
        causes.append("agents adapt the shared model to their own data (fedavg:adapt=true does so too)")
    if row["algorithm"] == "focus" and not ours.get("weight_by_n") and theirs.get("weight_by_n") is not False:
        causes.append("FOCUS weighs all agents alike, FedAvg by their numbers of examples (weight_by_n)")
    kind = ALGORITHMS.get(row["algorithm"])
    if kind is not None and kind.personal:
        causes.append("every agent has a model of its own")
    return ", and ".join(causes) or "it comes from how the method trains one model"


def _is_split(row: Row) -> bool:
    return bool(row["algorithm"] == "focus" and row["params"].get("init") == "split")


def _better_start(row: Row) -> str:
    """The start of FOCUS that finds groups most often; empty if the run had it."""
    return 'init = "split"' if row["algorithm"] == "focus" and not _is_split(row) else ""


def _small_groups(row: Row, one: bool) -> Iterator[str]:
    """More clusters than there is data for."""
    n = dict(zip(agent_numbers(row), row.get("n") or [MIN_GROUP_EXAMPLES] * len(row["loss"]), strict=True))
    examples = [(members, sum(n[e] for e in members)) for members in groups(row).values()]
    small = [f"{who(row, members)} ({count})" for members, count in examples if count < MIN_GROUP_EXAMPLES]
    if small:
        advice = "Collect more" if one else "Use fewer clusters, or collect more"
        few = f"fewer than {MIN_GROUP_EXAMPLES} training examples"
        yield f"{few} for the model of {' and of '.join(small)}. {advice}."


def _doubtful_groups(runs: Sequence[Row], one: bool) -> Iterator[str]:
    """Too many agents without a clear group, or groups without agents."""
    E, unsure = len(agent_numbers(runs[0])), len(uncertain_agents(runs))
    if unsure > MAX_UNCERTAIN_SHARE * E:
        yield f"{unsure} of {E} agents are uncertain. Use fewer clusters, or train for more rounds."
    elif not one:
        yield from _empty_clusters(runs)


def _empty_clusters(runs: Sequence[Row]) -> Iterator[str]:
    """Clusters in which no agent is, not even with a small label."""
    M, empty = runs[0]["params"].get("M"), []
    for row in runs:
        columns = enumerate(zip(*(row["pi"] or []), strict=True))
        taken = set(row["clusters"])
        empty.append(sum(m not in taken and max(column) < 1 - CONFIDENT_LABEL for m, column in columns))
    if isinstance(M, int) and min(empty):
        are = "is" if min(empty) == 1 else "are"
        yield f"{min(empty)} of {M} clusters {are} empty. M = {M - min(empty)} is sufficient."


def _no_skill(runs: Sequence[Row]) -> Iterator[str]:
    """Agents for whom the model is no better than a constant prediction."""
    values: dict[int, list[float]] = {}
    for row in runs:
        for e, skill in zip(agent_numbers(row), row.get("metrics", {}).get("skill", ()), strict=False):
            if skill is not None:
                values.setdefault(e, []).append(skill)
    bad = [e for e, each in values.items() if fmean(each) <= 0]
    if bad:
        verb = "has" if len(bad) == 1 else "have"
        found = f"{who(runs[0], bad)} {verb} no skill: a constant prediction has no larger loss there"
        yield f"{found}. Check labels and features, or collect more data."

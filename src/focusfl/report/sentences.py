"""What a run found, in sentences: the groups, which agents are uncertain, who gained and who lost, and warnings
where another method would do as well or better. Pure functions of rows of results.json.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from focusfl.algorithms import title
from focusfl.report.gains import BASELINES, MIN_RELATIVE_GAP, Gains, compare_losses
from focusfl.report.rows import Row, Runs, agent_numbers
from focusfl.util.files import visible

CONFIDENT_LABEL = 0.9  # largest label pi of an agent whose assignment is confident, at least
MAX_RANGES = 40  # ranges of agents, or agents by name, that a sentence lists
PERSONAL = ("ditto", "fedsoft")  # methods that give every agent a model of its own
MIN_ACCURACY_GAP = 0.01  # by which accuracies contradict the losses
MAX_UNCERTAIN_SHARE = 1 / 3  # if more of the agents are uncertain, the groups themselves are in doubt
MIN_ROUNDS_AFTER_WARMUP = 5  # of FOCUS, before anything is said about its groups
MIN_GROUP_EXAMPLES = 50  # training examples: below, scikit-learn's guide to estimators says "get more data"
WARNING = "Warning: "
WHAT_COUNTS = f"gained or lost: by more than noise, and by more than {100 * MIN_RELATIVE_GAP:g} % of the loss"
NO_SHARED_AGENT = "No agent has sent its last numbers in all of these runs."


def explain(runs: Sequence[Row], others: Sequence[Row] = ()) -> list[str]:
    """Say in sentences what one method found.

    Args:
        runs: Its runs, one per seed: the groups are those of the first, labels and gains are means over the seeds.
        others: Runs of other methods on the same data, as far as there are any. Those of FedAvg and of Local show
            who gained and who lost; where agents lost, the best of the others is recommended.

    Returns:
        The sentences. Warnings come last, and begin with `WARNING`.
    """
    baselines = compare_with_baselines(runs, others)
    gains = [_gain_sentence(runs[0], BASELINES[name], found) for name, found in baselines.items()]
    gains += [line for name in baselines for line in _contradictions(runs, _runs_of(name, others), name)]
    if runs[0]["pi"] is None:
        shared = "all agents share one model" if len(groups(runs[0])) == 1 else "every agent has its own model"
        return [f"No groups: {shared}.", *gains]
    tried = {row["algorithm"] for row in others}
    found = warnings(runs, baselines, recommendation(runs, others), [m for m in PERSONAL if m not in tried])
    return [*_group_sentences(runs), *gains, *(WARNING + line for line in found)]


def explain_methods(runs: Runs) -> dict[str, list[str]]:
    """Explain every method that has labels: its title and its sentences."""
    others = [row for rows in runs.values() for row in rows]
    labelled = {name: [row for row in rows if row["pi"] is not None] for name, rows in runs.items()}
    return {name: explain(rows, others) for name, rows in labelled.items() if rows}


def baseline_hint(runs: Runs) -> str:
    """Say what to run to see who gained and who lost; empty if it was run."""
    rows = [row for each in runs.values() for row in each]
    known = {row["algorithm"] for row in rows} | {"local" for row in rows if _alone(row)}
    missing = [name for name in BASELINES if name not in known]
    against = " and ".join(BASELINES[name] for name in missing)
    return f"Add {' and '.join(missing)} to the algorithms to see who gains over {against}." if missing else ""


def compare_with_baselines(runs: Sequence[Row], others: Sequence[Row]) -> dict[str, Gains]:
    """Compare a method with FedAvg and with training alone, as far as there are runs of them.

    Where the losses of agents that train alone were measured for the best losses, they are the runs of training
    alone.
    """
    found = {}
    for name in BASELINES:
        rows = _runs_of(name, others)
        if name == "local" and not rows:
            rows = [alone for row in runs if (alone := _alone(row)) is not None]
        gains = compare_losses(runs, rows) if name != runs[0]["algorithm"] else None
        if gains is not None:
            found[name] = gains
    return found


def _alone(row: Row) -> Row | None:
    """The run of training alone that was part of finding the best losses, if there was one."""
    alone = row | {"method": "local", "algorithm": "local", "gap_se": {}}
    if "alone" in row:
        errors = {row["method"]: row["alone_se"]} if "alone_se" in row else {}
        return alone | {"loss": row["alone"], "gap_se": errors}
    if row["bayes_kind"] != "agent":
        return None
    if "excess_se" in row:
        alone["excess_se"] = [0.0] * len(row["loss"])  # that of the method is already of both
    return alone | {"loss": row["bayes"]}


def _runs_of(algorithm: str, rows: Sequence[Row]) -> list[Row]:
    """The runs of one algorithm; if it ran with several options, of the first."""
    found = [row for row in rows if row["algorithm"] == algorithm]
    return [row for row in found if row["method"] == found[0]["method"]]


def recommendation(runs: Sequence[Row], others: Sequence[Row]) -> str:
    """Name the other method that serves the agents best, if its loss is lower beyond noise; otherwise return "".

    Where that is FedAvg or training alone, nothing is recommended either.

    It is chosen by the mean validation loss if all runs have one. Without validation data it is chosen on the
    test data, and the sentence says so.

    Args:
        runs: A method's runs.
        others: Runs of other methods; those of the method itself are ignored.
    """
    rivals = {row["method"]: [r for r in others if r["method"] == row["method"]] for row in others}
    rivals.pop(runs[0]["method"], None)
    found = {method: gains for method, rows in rivals.items() if (gains := compare_losses(runs, rows)) is not None}
    better = [method for method, gains in found.items() if gains.overall > 0]
    if not better:
        return ""
    validated = all("validation_loss" in row for row in [*runs, *(r for method in better for r in rivals[method])])

    def loss(method: str) -> float:
        if validated:
            return fmean(row["validation_loss"] for row in rivals[method])
        return found[method].mean_losses(list(found[method].pairs))[1]

    best = min(better, key=loss)
    if rivals[best][0]["algorithm"] in BASELINES:  # the comparison with it says so
        return ""
    gains = found[best]
    ours, theirs = gains.mean_losses(list(gains.pairs))
    count = f"{len(gains.lost)} of {len(gains.pairs)} agents" if gains.lost else "the agents on average"
    how = (
        "chosen by validation losses"
        if validated
        else "chosen on these test data: confirm it with validation = 0.2"
    )
    return f"{title(best)} serves {count} better (mean loss {theirs:.3g} instead of {ours:.3g}; {how})"


def groups(row: Row) -> dict[int, list[int]]:
    """Return the agents of each cluster, in the order of their first agents."""
    found: dict[int, list[int]] = {}
    for e, m in zip(agent_numbers(row), row["clusters"], strict=True):
        found.setdefault(m, []).append(e)
    return found


def uncertain_agents(runs: Sequence[Row]) -> dict[int, float]:
    """Return the agents whose largest label, mean over the seeds, is below CONFIDENT_LABEL; with that label."""
    largest: dict[int, list[float]] = {}
    for row in runs:
        for e, pi in zip(agent_numbers(row), row["pi"] or [], strict=True):
            largest.setdefault(e, []).append(max(pi))
    return {e: fmean(labels) for e, labels in sorted(largest.items()) if fmean(labels) < CONFIDENT_LABEL}


def numbered(noun: str, numbers: Sequence[int]) -> str:
    """Name things by their numbers.

    >>> numbered("agent", [9]), numbered("agent", [0, 1, 2, 5, 8, 7])
    ('agent 9', 'agents 0-2, 5 and 7-8')
    """
    ranges: list[list[int]] = []
    for e in sorted(numbers):
        if ranges and ranges[-1][1] == e - 1:
            ranges[-1][1] = e
        else:
            ranges.append([e, e])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in ranges[:MAX_RANGES]]
    left = sum(b - a + 1 for a, b in ranges[MAX_RANGES:])
    *rest, last = [*shown, f"{left} more"] if left else shown
    return f"{noun}{'s' * (len(numbers) > 1)} " + " and ".join([", ".join(rest), last] if rest else [last])


def who(row: Row, agents: Sequence[int]) -> str:
    """Name agents: by their names if they have names, else by their numbers.

    >>> who({"names": ["aarau", "bern", "chur"]}, [2, 0]), who({}, [2, 0])
    ('aarau and chur', 'agents 0 and 2')
    """
    names = row.get("names")
    if not names:
        return numbered("agent", agents)
    shown = [visible(names[e]) for e in sorted(agents)]
    left = len(shown) - MAX_RANGES
    *rest, last = [*shown[:MAX_RANGES], f"{left} more"] if left > 0 else shown
    return " and ".join([", ".join(rest), last] if rest else [last])


def agent_names(names: Sequence[str]) -> str:
    """Say which agent has which number; empty if they have no names.

    >>> agent_names(["aarau", "bern"])
    'Agents: 0 aarau, 1 bern'
    """
    return "Agents: " + ", ".join(f"{e} {name}" for e, name in enumerate(names)) if names else ""


def not_shown(missing: Sequence[int]) -> str:
    """Name the agents that only some of the runs have (rows.shared_agents)."""
    their = "its" if len(missing) == 1 else "their"
    return f"Not shown: {numbered('agent', missing)}, because some of these runs lack {their} last numbers."


def _group_sentences(runs: Sequence[Row]) -> Iterator[str]:
    """The groups of the first seed, whether the other seeds agree, and which agents are uncertain."""
    first, several = groups(runs[0]), len(runs) > 1
    listed = "; ".join(f"{who(runs[0], members)} (cluster {m})" for m, members in first.items())
    count = f"{len(first)} groups" if len(first) > 1 else "one group"
    seed = f" with seed {runs[0]['seed']}" if several else ""
    yield f"Found {count}{seed}: {listed}."
    found = {row["seed"]: {frozenset(members) for members in groups(row).values()} for row in runs}
    same = [seed for seed in found if found[seed] == found[runs[0]["seed"]]]
    other = [seed for seed in found if seed not in same]
    if same[1:]:
        yield f"{numbered('Seed', same[1:])} found the same groups."
    if other:
        counts = " and ".join(str(len(found[seed])) for seed in other)
        different = "a different grouping" if len(other) == 1 else "different groupings"
        yield f"{numbered('Seed', other)} found {different} ({counts} group{'s' * (counts != '1')})."
    unsure, mean = uncertain_agents(runs), "mean over the seeds" * several
    if not unsure:
        confident = f"every largest label pi is {CONFIDENT_LABEL} or more"
        yield f"All assignments are confident: {confident}{mean and f' ({mean})'}."
        return
    are, their = ("is", "its") if len(unsure) == 1 else ("are", "their")
    least = f"{'down to ' * (len(unsure) > 1)}{min(unsure.values()):.2f}"
    labels = f"{their} largest label pi is below {CONFIDENT_LABEL} ({least}{mean and f'; {mean}'})"
    agents = who(runs[0], list(unsure))
    yield f"{agents if runs[0].get('names') else agents.capitalize()} {are} uncertain: {labels}."


def _gain_sentence(row: Row, baseline: str, gains: Gains) -> str:
    ours, theirs = gains.mean_losses(list(gains.pairs))
    kinds = [(gains.gained, f"{{}} of {len(gains.pairs)} agents gained"), (gains.lost, "{} lost")]
    kinds += [(gains.same, "no clear difference for {}")] * bool(gains.same)
    parts = [
        text.format(len(agents) or "none") + (f" ({who(row, agents)})" if agents else "") for agents, text in kinds
    ]
    beyond = f", a difference beyond {gains.threshold}" if gains.overall else ""
    means = f"The mean loss is {ours:.3g} instead of {theirs:.3g}{beyond}."
    return f"Compared with {baseline}: {', '.join(parts)}. {means}"


def _contradictions(runs: Sequence[Row], others: Sequence[Row], name: str) -> Iterator[str]:
    """Say where accuracies and losses disagree: a lower loss beside a lower accuracy, or the reverse."""
    gains = compare_losses(runs, others)
    pairs = [(a, b) for a in runs for b in others if a["seed"] == b["seed"] and a.get("acc") and b.get("acc")]
    if gains is None or not gains.overall or not pairs:
        return
    ours, theirs = (fmean(fmean(row["acc"] or []) for row in rows) for rows in zip(*pairs, strict=True))
    if gains.overall * (ours - theirs) > MIN_ACCURACY_GAP:
        both = "higher" if gains.overall > 0 else "lower"  # a higher accuracy is good, a higher loss is not
        means = f"{ours:.3f} instead of {theirs:.3f}"
        yield (
            f"Accuracy says the opposite: compared with {BASELINES[name]} it is {both} ({means}), and so is the "
            "loss. Decide by the one that matters to you."
        )


def warnings(
    runs: Sequence[Row], baselines: dict[str, Gains], better: str = "", untried: Sequence[str] = PERSONAL
) -> Iterator[str]:
    """Say where grouping agents is the wrong method or has the wrong options, and what to do.

    Args:
        runs: A method's runs.
        baselines: How it compares with fedavg and local, as far as that is known.
        better: A method that serves the agents better (`recommendation`).
        untried: Methods with a model for every agent that were not compared.

    Yields:
        One sentence about what was measured, and one with advice.
    """
    row, fedavg, local = runs[0], baselines.get("fedavg"), baselines.get("local")
    if row["algorithm"] == "focus" and row["params"].get("init") == "split":
        rounds, warmup = row.get("rounds", math.inf), row["params"].get("warmup", 0)
        if isinstance(warmup, int) and rounds < warmup + MIN_ROUNDS_AFTER_WARMUP:
            yield f"only {rounds} rounds with a warm-up of {warmup}: too few to judge. Train for more rounds."
            return
    E, unsure = len(agent_numbers(row)), len(uncertain_agents(runs))
    one = all(len(groups(run)) == 1 for run in runs)
    yield from _alone_is_better(row, one, local, better, untried)
    yield from _fedavg_is_sufficient(row, one, fedavg, local)
    if fedavg is not None and fedavg.lost:
        yield f"{_worse(row, fedavg, 'with FedAvg')}. {better or _advice_to_losers(row, one)}."
    yield from _small_groups(row, one)
    if unsure > MAX_UNCERTAIN_SHARE * E:
        yield f"{unsure} of {E} agents are uncertain. Use fewer clusters, or train for more rounds."
    elif not one:
        yield from _empty_clusters(runs)


def _alone_is_better(
    row: Row, one: bool, local: Gains | None, better: str, untried: Sequence[str]
) -> Iterator[str]:
    """Agents that lose by taking part, each beyond noise or all of them together."""
    if local is None or not (local.lost or local.overall > 0):
        return
    if local.lost:
        found = _worse(row, local, "alone")
    else:
        ours, theirs = local.mean_losses(list(local.pairs))
        found = f"on average the agents do worse than alone (mean loss {ours:.3g}, alone {theirs:.3g})"
    M, them = len((row["pi"] or [[]])[0]), "it" if len(local.lost) == 1 else "them"
    if one:
        found = f"all {len(agent_numbers(row))} agents are in one group, but {found}"
        advice = "Try M = 2 or more" if M == 1 else _better_start(row) and f"Try {_better_start(row)}"
    else:
        advice = f"Let {them} train alone, or try {_better_start(row) or 'more clusters'}"
    personal = f"Compare with methods that give every agent a model of its own: add {', '.join(untried)}"
    yield f"{found}. {better or advice or (personal if untried else f'Let {them} train alone')}."


def _fedavg_is_sufficient(row: Row, one: bool, fedavg: Gains | None, local: Gains | None) -> Iterator[str]:
    """Agents that are alike need no groups; nothing is said where they do worse than alone."""
    all_in_one, M = f"all {len(agent_numbers(row))} agents are in one group", len((row["pi"] or [[]])[0])
    if local is not None and (local.lost or local.overall > 0):
        return
    if one and fedavg is not None and (fedavg.gained or fedavg.overall < 0):
        weights = "FOCUS counts every agent alike, FedAvg by its number of examples (weight_by_n = true does too)"
        cause = weights if row["algorithm"] == "focus" else "it comes from how the method averages"
        yield f"{all_in_one}, so the gain over FedAvg is not one of grouping: {cause}."
    elif one and M == 1:
        yield f"{all_in_one}, because M = 1 allows no other. Try M = 2 or more; otherwise FedAvg is sufficient."
    elif one:
        yield f"{all_in_one}: they look alike. FedAvg is sufficient here."
    elif fedavg is not None and not fedavg.gained and fedavg.overall >= 0:
        ours, theirs = fedavg.mean_losses(list(fedavg.pairs))
        both = f"mean loss {ours:.3g}, with FedAvg {theirs:.3g}"
        none = f"no agent does better than with FedAvg by more than {fedavg.threshold}"
        yield f"{none} ({both}). FedAvg is sufficient here."


def _worse(row: Row, gains: Gains, where: str) -> str:
    ours, theirs = gains.mean_losses(gains.lost)
    do = "does" if len(gains.lost) == 1 else "do"
    return f"{who(row, gains.lost)} {do} worse than {where} (mean loss {ours:.3g}, {where} {theirs:.3g})"


def _advice_to_losers(row: Row, one: bool) -> str:
    """For agents that lose against FedAvg: their group fits them badly, or is too small to learn from."""
    if one:
        return "Use FedAvg"
    warmup = f"a warmup longer than {row['params'].get('warmup')} rounds" if row["algorithm"] == "focus" else ""
    return " or ".join(filter(None, ["Use fewer clusters", _better_start(row) or warmup]))


def _better_start(row: Row) -> str:
    """The start of FOCUS that finds groups most often; empty if the run had it."""
    return 'init = "split"' if row["algorithm"] == "focus" and row["params"].get("init") != "split" else ""


def _small_groups(row: Row, one: bool) -> Iterator[str]:
    """More clusters than there is data for."""
    n = dict(zip(agent_numbers(row), row.get("n") or [MIN_GROUP_EXAMPLES] * len(row["loss"]), strict=True))
    examples = [(members, sum(n[e] for e in members)) for members in groups(row).values()]
    small = [f"{who(row, members)} ({count})" for members, count in examples if count < MIN_GROUP_EXAMPLES]
    if small:
        advice = "Collect more" if one else "Use fewer clusters, or collect more"
        few = f"fewer than {MIN_GROUP_EXAMPLES} training examples"
        yield f"{few} for the model of {' and of '.join(small)}. {advice}."


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

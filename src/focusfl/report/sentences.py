"""What a run found, in sentences: the groups, which agents are uncertain, who gained and who lost, and warnings
where another method would do as well or better. Pure functions of rows of results.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from focusfl.report.advice import Rival, by_algorithm, compared_with, warnings
from focusfl.report.gains import BASELINES, MIN_RELATIVE_GAP, NOISE, Gains, alone_run, compare_with_baselines
from focusfl.report.names import CONFIDENT_LABEL, MANY, MIXTURES, groups, numbered, uncertain_agents, who
from focusfl.report.rows import Row, Runs, agent_numbers

WARNING = "Warning: "
SHARE = f"by more than {100 * MIN_RELATIVE_GAP:g} % of the loss"
WITH_NOISE = f"gained or lost: by more than noise, and {SHARE}"
WITHOUT_NOISE = f"gained or lost: {SHARE}; nothing is known about the noise"
ADAPTED = {  # kinds of models in the prediction of an agent that adapts (run/adaptation.py)
    "shared": "the shared model",
    "intercept": "the shared model with an intercept of its own",
    "weights": "the shared model trained further on its own data",
    "alone": "a model trained alone",
}
SHORT = {"shared": "shared", "intercept": "own intercept", "weights": "trained further", "alone": "trained alone"}
NO_SHARED_AGENT = "No agent has sent its last numbers in all of these runs."


def explain(runs: Sequence[Row], others: Sequence[Row] = ()) -> list[str]:
    """Say in sentences what one method found.

    Args:
        runs: Its runs, one per seed: the groups are those of the first, labels and gains are means over the seeds.
        others: Runs of other methods on the same data, as far as there are any. Those of FedAvg and of Local show
            who gained and who lost; a method that serves the agents better is recommended (report/advice.py).

    Returns:
        The sentences. Warnings come last, and begin with `WARNING`.
    """
    metric, found = compared_with(runs, others)
    baselines = {name: rival for name in BASELINES if (rival := by_algorithm(found, name)) is not None}
    baselines.pop(runs[0]["algorithm"], None)
    gains = [_gain_sentence(runs[0], BASELINES[name], rival.gains) for name, rival in baselines.items()]
    gains += [line for name, rival in baselines.items() for line in _judgement(BASELINES[name], rival, metric)]
    if runs[0]["pi"] is None:
        return [_shared_models(runs[0]), *_adaptation(runs), *gains]
    found_warnings = (WARNING + line for line in warnings(runs, others))
    return [*_group_sentences(runs), *_adaptation(runs), *gains, *found_warnings]


def explain_methods(runs: Runs) -> dict[str, list[str]]:
    """Explain every method that has labels: its title and its sentences."""
    others = [row for rows in runs.values() for row in rows]
    labelled = {name: [row for row in rows if row["pi"] is not None] for name, rows in runs.items()}
    return {name: explain(rows, others) for name, rows in labelled.items() if rows}


def baseline_hint(runs: Runs) -> str:
    """Say what to run to see who gained and who lost; empty if it was run."""
    rows = [row for each in runs.values() for row in each]
    known = {row["algorithm"] for row in rows} | {"local" for row in rows if alone_run(row)}
    missing = [name for name in BASELINES if name not in known]
    against = " and ".join(BASELINES[name] for name in missing)
    return f"Add {' and '.join(missing)} to the algorithms to see who gains over {against}." if missing else ""


def what_counts(runs: Runs) -> str:
    """Say which differences count. Noise is claimed only if it is known in one of the comparisons."""
    others = [row for rows in runs.values() for row in rows]
    labelled = [rows for rows in runs.values() if rows and rows[0]["pi"] is not None]
    found = [gains for rows in labelled for gains in compare_with_baselines(rows, others).values()]
    return WITH_NOISE if any(gains.threshold == NOISE for gains in found) or not found else WITHOUT_NOISE


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
    one = len(unsure) == 1
    are, their = ("is uncertain", "its") if one else ("are uncertain", "their")
    if runs[0]["algorithm"] in MIXTURES:
        are = "mixes several models" if one else "mix several models"
    least = f"{'down to ' * (len(unsure) > 1)}{min(unsure.values()):.2f}"
    labels = f"{their} largest label pi is below {CONFIDENT_LABEL} ({least}{mean and f'; {mean}'})"
    agents = who(runs[0], list(unsure))
    yield f"{agents if runs[0].get('names') else agents.capitalize()} {are}: {labels}."


def _gain_sentence(row: Row, baseline: str, gains: Gains) -> str:
    ours, theirs = gains.mean_losses(list(gains.pairs))
    kinds = [(gains.gained, f"{{}} of {len(gains.pairs)} agents gained"), (gains.lost, "{} lost")]
    kinds += [(gains.same, "no clear difference for {}")] * bool(gains.same)
    parts = []
    for agents, text in kinds:
        listed = agents and not (row.get("names") and agents is gains.same and len(agents) > MANY)
        parts.append(text.format(len(agents) or "none") + (f" ({who(row, agents)})" if listed else ""))
    beyond = f", a difference beyond {gains.threshold}" if gains.overall else ""
    mean = f"Without {'it' if len(gains.unknown) == 1 else 'them'} the mean" if gains.unknown else "The mean"
    means = f"{mean} loss is {ours:.3g} instead of {theirs:.3g}{beyond}."
    has = "it has" if len(gains.unknown) == 1 else "they have"
    why = f"left out, because {has} too few test examples"
    without = f"; {who(row, gains.unknown)} {why}" if gains.unknown else ""
    return f"Compared with {baseline}: {', '.join(parts)}{without}. {means}"


def _judgement(baseline: str, rival: Rival, metric: str) -> Iterator[str]:
    """What the metric that decides says; where the loss does, whether accuracies contradict it."""
    if rival.judged is not None:
        judged = rival.judged
        beyond = ", a difference beyond noise" if judged.overall else ", no clear difference"
        spread = "the spread of the differences over agents" + " and seeds" * (len(rival.rows) > 1)
        opposite = judged.overall * rival.gains.overall < 0
        yield (
            f"Judged by {metric}, which decides: compared with {baseline} its mean is {judged.ours:.3f} instead of "
            f"{judged.theirs:.3f}{beyond} (noise here: {spread}){'; the loss says the opposite' * opposite}."
        )
    elif rival.disputed and rival.accuracies is not None:
        both = "higher" if rival.gains.overall > 0 else "lower"  # a higher accuracy is good, a higher loss is not
        means = "{:.3f} instead of {:.3f}".format(*rival.accuracies)
        yield (
            f"Accuracy says the opposite: compared with {baseline} it is {both} ({means}), and so is the loss, so "
            "neither decides. Name the metric that matters to you: metrics=accuracy, auc or log-loss, for example."
        )


def _shared_models(row: Row) -> str:
    if row["params"].get("adapt"):
        return "No groups: all agents start from what they share."
    shared = "all agents share one model" if len(groups(row)) == 1 else "every agent has its own model"
    return f"No groups: {shared}."


def _adaptation(runs: Sequence[Row]) -> Iterator[str]:
    """That agents adapted the shared model, and the largest share of each prediction, mean over the seeds."""
    if not runs[0]["params"].get("adapt"):
        return
    adapted = "Every agent adapted the shared model to its own data after the last round"
    each = [row["adaptation"] for row in runs if "adaptation" in row]
    if len(each) < len(runs) or len({tuple(agent_numbers(row)) for row in runs}) > 1:
        yield f"{adapted}."
        return
    means = {kind: [fmean(seeds) for seeds in zip(*(one[kind] for one in each), strict=True)] for kind in ADAPTED}
    mostly: dict[str, list[int]] = {}
    for i, e in enumerate(agent_numbers(runs[0])):
        mostly.setdefault(max(means, key=lambda kind: means[kind][i]), []).append(e)
    by_size = sorted(mostly, key=lambda kind: len(mostly[kind]))  # the most common last
    rest = by_size[-1] if len(by_size) > 1 and len(mostly[by_size[-1]]) > MANY and runs[0].get("names") else ""
    parts = [
        f"{ADAPTED[kind]} for {'the others' if kind == rest else who(runs[0], mostly[kind])}" for kind in by_size
    ]
    shares = ", ".join(f"{fmean(values):.0%} {SHORT[kind]}" for kind, values in means.items())
    yield f"{adapted}. The largest share of its prediction is {'; '.join(parts)}. On average: {shares}."

"""The model card: what was trained, on whom, how fair, how certain, and for whom not to use it. In Markdown."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any, cast

from focusfl.report.certainty import below_best_loss
from focusfl.report.markdown import code, grid, plain
from focusfl.report.names import uncertain_agents
from focusfl.report.notes import notes
from focusfl.report.rows import Row, agent_numbers
from focusfl.report.sentences import WARNING, explain
from focusfl.util.files import visible

FEW_EXAMPLES = 30  # training examples of an agent, below which its numbers are mostly noise
BEST_LOSS = {
    "exact": "the best model there can be",
    "true": "a model trained on all data of its true group",
    "validated": "the best of several models, chosen by cross-validation",
    "learned": "a model trained on all data of its learned group",
    "agent": "a model trained on its own data alone",
}


def card(about: Mapping[str, Any]) -> str:
    """Write the card of a saved model.

    Args:
        about: The content of model.json (run/saved/about.py).
    """
    row = cast(Row | None, about["results"])
    lines = [f"# {plain(about['title'])} on {plain(about['data'])}", "", *_what(about), ""]
    if row is not None:
        lines += ["## How well, and how fair", "", *_fairness(row, about), ""]
    lines += ["## For whom not to use it", "", *(f"- {line}" for line in _limits(about, row)), ""]
    lines += ["## What is inside", "", *_inside(about), "", "## How to use it", "", *_use(about), ""]
    return "\n".join(lines)


def _what(about: Mapping[str, Any]) -> Iterator[str]:
    agents, classes = about["agents"], about["classes"]
    task = "Regression" if classes is None else f"Classification into {classes} classes"
    if about["several"]:
        task = f"Which of {classes} labels an example has"
    names = f" ({', '.join(plain(name) for name in about['labels'])})" if about["labels"] else ""
    who = f"{len(agents)} agents" if agents else "a federation whose agents keep their own part"
    joined = about.get("newcomer")
    if joined is not None:
        who = "a federation"
    elif about["received"]:
        who = f"the agent {plain(agents[0])} of a federation, and holds what that agent received"
    form = about["inputs"]
    columns = f" with the columns {', '.join(plain(name) for name in form['columns'])}" if form["columns"] else ""
    shape = f" of shape {'x'.join(map(str, form['shape']))}" if form["shape"] else ""
    yield f"{task}{names} from {form['kind']}{columns or shape}."
    yield (
        f"It was trained by {plain(about['title'])} for {who}, in {about['rounds']} rounds with one seed, "
        f"{about['seed']}, by focusfl {plain(about['focusfl'])}."
    )
    if joined is not None:
        yield from _newcomer(plain(agents[0]), joined)
    if form["scaled"]:
        yield "Inputs are raw values: the scaling is part of the model."


def _newcomer(name: str, joined: Mapping[str, Any]) -> Iterator[str]:
    """How an agent that did not train came to its model."""
    by = f"by its {joined['examples']} labelled examples"
    if not joined["labelled"]:
        by = f"by the confidence of the models on its {joined['examples']} examples without labels"
    labels = ", ".join(f"{m}: {p:.3f}" for m, p in enumerate(joined["pi"] or []) if p > 5e-4)
    yield f"The agent {name} did not train: it was assigned afterwards, {by}."
    if labels:
        yield f"Its labels are {labels}; they are the shares of the clusters' models in its own."
    if not joined["labelled"]:
        sure = "" if joined["sure"] is None else f"How sure that is: {joined['sure']:.0%}. "
        yield f"{sure}Confidence is not correctness: check it with labels."


def _fairness(row: Row, about: Mapping[str, Any]) -> Iterator[str]:
    names = about["agents"] or [str(e) for e in agent_numbers(row)]
    interval = row.get("faa_interval")
    noise = "" if interval is None else f", 95 % interval {interval['low']:.3g} to {interval['high']:.3g}"
    accuracy = "" if row["avg_acc"] is None else f" and a mean accuracy of {row['avg_acc']:.3f}"
    yield f"On test data of their own the agents have a mean loss of {row['avg_loss']:.4g}{accuracy}."
    if row["bayes_kind"] in BEST_LOSS:
        yield (
            f"FAA, the largest difference in excess risk between two agents, is {row['faa']:.3g}{noise}; "
            f"excess risk is the loss of an agent above that of {BEST_LOSS[row['bayes_kind']]}."
        )
    if interval is None:
        yield "How certain that is cannot be said: there are too few test examples, or they stayed at the nodes."
    yield ""
    yield from (f"- {plain(line)}" for line in explain([row]))
    yield ""
    head = ["agent", "training examples", "loss"] + ["accuracy"] * (row["acc"] is not None)
    head += list(measured := row.get("metrics", {}))
    head += ["excess risk"] + ["± standard error"] * ("excess_se" in row) + ["cluster"]
    table, n, se = [], row.get("n"), row.get("excess_se")
    for i, name in enumerate(names[: len(row["loss"])]):
        cells = [plain(name), "-" if n is None else str(n[i]), f"{row['loss'][i]:.4g}"]
        cells += [] if row["acc"] is None else [f"{row['acc'][i]:.3f}"]
        cells += ["-" if values[i] is None else f"{values[i]:.3f}" for values in measured.values()]
        cells += [f"{row['excess_risk'][i]:+.4g}"] + ([] if se is None else [_error(se[i])])
        table.append([*cells, str(row["clusters"][i])])
    yield grid([plain(each) for each in head], table)
    if lines := notes([row]):
        yield ""
        yield from (f"- {plain(line)}" for line in lines)


def _error(se: float | None) -> str:
    return "-" if se is None else f"{se:.2g}"


def _limits(about: Mapping[str, Any], row: Row | None) -> Iterator[str]:
    """For whom the model is not, from what is known."""
    yield (
        "Anyone who is not one of the agents: first assign the newcomer with data of its own "
        "(`focusfl assign`), and measure the loss on data that was not used for that."
    )
    if row is None:
        yield "How good it is has not been measured here: measure it on test data before it decides anything."
        return
    named = dict(zip(agent_numbers(row), about["agents"] or map(str, agent_numbers(row)), strict=False))

    def listed(numbers: list[int]) -> str:
        return ", ".join(plain(named.get(e, str(e))) for e in numbers)

    se, risks = row.get("excess_se"), dict(zip(agent_numbers(row), row["excess_risk"], strict=True))
    if se is not None and row["bayes_kind"] in BEST_LOSS:
        errors = dict(zip(risks, se, strict=True))
        known = {e: error for e, error in errors.items() if error is not None}
        worse = [e for e, error in known.items() if risks[e] > max(2 * error, 0.02 * row["avg_loss"])]
        if worse:
            what = BEST_LOSS[row["bayes_kind"]]
            yield f"With care for {listed(worse)}: {what} is better for them, by more than two standard errors."
    uncertain = uncertain_agents([row]) if row["pi"] is not None else {}
    if uncertain:
        yield f"With care for {listed(list(uncertain))}: which group they belong to is not certain."
    few = [e for e, n in zip(risks, row.get("n") or [], strict=False) if n < FEW_EXAMPLES]
    if few:
        yield f"With care for {listed(few)}: they had fewer than {FEW_EXAMPLES} training examples."
    if below := [e for e in below_best_loss([row]) if e in risks]:
        yield f"The model beats the best loss of {listed(below)}, an estimate: their excess risk says little."
    yield from (plain(line.removeprefix(WARNING)) for line in explain([row]) if line.startswith(WARNING))
    yield "It is one run with one seed: other seeds show how much of this is chance."


def _inside(about: Mapping[str, Any]) -> Iterator[str]:
    yield "Weights of the networks, the agents' labels, the names and numbers on this card. No example of anybody's"
    yield "data. A model can still reveal something about the data it was trained on, as every model can: share it"
    yield "with those who may know that. " + (
        "The scaling reveals the mean and the deviation of each column over all agents."
        if about["inputs"]["scaled"]
        else ""
    )
    if about["inputs"].get("table"):
        yield "Of a table it holds the means of numbers over all agents, and the values of categories."
    yield ""
    yield f"- network: {code(about['network']['kind'])}, method: {code(about['method'])} {code(about['params'])}"
    yield f"- loss: {code(about['loss'])}, local training: {code(about['train'])}"
    yield f"- data: {code(about['data'])}, sha256 {code(about['fingerprint'] or 'not known')}"
    yield f"- written by focusfl {code(about['focusfl'])} with torch {code(about['torch'])}"


def _use(about: Mapping[str, Any]) -> Iterator[str]:
    agent = shlex.quote(visible(about["agents"][0])) if about["agents"] else ""  # no line ends: the fence holds
    network = about["network"]
    if network["kind"] == "own" and not network["function"]:
        yield "Its network is its owner's: load the model in Python, with `ff.load(MODEL, network=make)`."
        return
    own = ":" in about["method"] or network["kind"] == "own"
    allow = " --allow-code" if own else ""
    yield "```sh"
    if agent:
        yield f"focusfl predict MODEL --agent {agent} new.csv --out predictions.csv{allow}"
    yield f"focusfl assign MODEL newcomer.csv{allow}"
    yield "```"
    if own:
        yield ""
        yield "It needs code of its owner, which `--allow-code` imports: only if you trust the model. In Python,"
        yield "`ff.load` takes that code as `network=` and `algorithm=`."

"""The server of a deployment: the rounds over Flower's grid, a checkpoint after each, and numbers at the end.

OUT/experiment.json, results.json      as `focusfl compare` writes them: `focusfl report OUT` shows them
OUT/runs/NAME-seed0/                   history.jsonl (and who was left out, and why), checkpoint, result.json
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from focusfl.core import State
from focusfl.engines import Answers, Scores, plan
from focusfl.flower.apps.run import Run
from focusfl.flower.protocol.exchange import Exchange, TooFew
from focusfl.flower.protocol.roll import Roll
from focusfl.flower.secure_sums.rounds import fits, secure_round
from focusfl.run import checkpoint
from focusfl.run.best_loss import Bayes
from focusfl.run.history import History, read, rounds_to
from focusfl.run.result import clustered, described, scored
from focusfl.util import files
from focusfl.util.errors import InputError

SAY = logging.getLogger("focusfl")
TRIES = 5  # at a round for which too few answer


def server_app(run: Run | Callable[[Context], Run]) -> ServerApp:
    """The ServerApp that trains, evaluates and writes the results. `run` may depend on the context."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, run(context) if callable(run) else run)

    return app


def exchange(grid: Grid, run: Run, say: Callable[[str], None], key: str | None = None) -> Exchange:
    """The talk with the nodes, before it begins."""
    key = key or run.key(secrets.token_hex(16))
    shared = run.algorithm, run.train, run.classes, run.agents, run.rounds, run.seed, key
    return Exchange(Roll(grid, *shared, run.timeout, say, run.secure), run.task(), run.minimum)


def serve(grid: Grid, run: Run, say: Callable[[str], None] = SAY.warning) -> dict[str, Any]:
    """All rounds; the row of results.json."""
    server, begun, key = _begin(run)
    if run.secure:
        fits(run.algorithm, server, run.task())
    folder = run.folder
    history = History(folder, begun) if folder is not None else None
    talk = exchange(grid, run, say, key)
    talk.roll.gather(begun, run.algorithm.enroll(server), begin=begun == 0, wait=run.wait)
    say(f"{len(talk.roll.nodes)} of {run.agents} agents are here, {run.rounds - begun} rounds to go")
    scores, pi, seconds = None, None, 0.0 if history is None else history.seconds
    for t in range(begun, run.rounds):
        clock = time.perf_counter()
        answers = _round(talk, run, server, t)
        server = run.aggregated(server, answers, t)
        took = time.perf_counter() - clock
        seconds += took
        scores, pi, dropped = None, None, dict(answers.dropped)
        if (t + 1) % run.eval_every == 0 or t + 1 == run.rounds:
            scores, pi, silent = talk.evaluate(server, run.rounds)
            dropped |= {e: f"evaluation: {why}" for e, why in silent.items() if e not in dropped}
        if folder is not None and history is not None:
            whole = scores is not None and bool(torch.isfinite(scores.loss).all())
            history.write(t + 1, scores if whole else None, pi if whole else None, took, dropped)
            checkpoint.save(folder, key, t + 1, server, {})
        say(f"round {t + 1} of {run.rounds}: {_told(scores)}, {len(answers.cohort)} agents, {took:.1f} s")
    if scores is None:  # resumed, and there was nothing left to do
        scores, pi, _ = talk.evaluate(server, run.rounds)
    return _result(run, talk, scores, pi, seconds)


def _begin(run: Run) -> tuple[State, int, str]:
    """The server's state to start from, the rounds done and the run's key: new, or those of the last checkpoint."""
    server, nonce = run.algorithm.start(run.networks, run.agents), secrets.token_hex(16)
    if run.folder is None:
        return server, 0, run.key(nonce)
    kept, known = run.folder / checkpoint.NAME, run.folder / "nonce.json"
    if kept.exists() and not run.resume:
        raise InputError(
            f"{run.folder} holds this run: resume = true goes on with it, or name another folder as out"
        )
    if kept.exists():
        if not known.exists():
            raise InputError(
                f"{run.folder} has {kept.name} but no {known.name}, by which the nodes know this run: "
                "copy it from where the run was, or name another folder as out"
            )
        key = run.key(str(files.read_json(known)["nonce"]))
        begun, server, _ = checkpoint.load(run.folder, key, server, {}, run.algorithm.room)
        return server, begun, key
    files.make_folder(run.folder)
    files.write_json(known, {"nonce": nonce})
    return server, 0, run.key(nonce)


def _round(talk: Exchange, run: Run, server: State, t: int) -> Answers:
    """Who joined since is taken in first. Where too few answer, wait for nodes and ask again."""
    cohort = plan.cohort(run.seed, t, run.agents, run.fraction)
    for left in reversed(range(TRIES)):
        talk.roll.gather(t, run.algorithm.enroll(server), begin=t == 0, wait=0.0)
        try:
            return secure_round(talk, server, t, cohort) if run.secure else talk.round(server, t, cohort)
        except TooFew as why:
            if not left:
                advice = "The rounds before are kept: start the nodes and run again with resume"
                raise TooFew(f"{why}. {advice}") from why
            talk.roll.say(f"{why}; waiting for nodes, then asking again")
            talk.roll.gather(t, run.algorithm.enroll(server), begin=t == 0, wait=run.wait)
    raise AssertionError


def _told(scores: Scores | None) -> str:
    if scores is None:
        return "not evaluated"
    loss = f"mean loss {scores.loss.nanmean():.4f}"
    return loss if scores.acc is None else f"{loss}, accuracy {scores.acc.nanmean():.3f}"


def _result(run: Run, talk: Exchange, scores: Scores, pi: Tensor | None, seconds: float) -> dict[str, Any]:
    """FAA from numbers alone: each agent's loss, and the loss it would have alone."""
    best = talk.best() if run.best == "agent" else torch.zeros(run.agents)
    answered = torch.isfinite(scores.loss) & torch.isfinite(best)
    if not answered.any():
        raise TooFew(
            "no agent sent its last numbers. The rounds are kept: start the nodes and run again with resume"
        )
    if not answered.all():
        absent = (~answered).nonzero().flatten().tolist()
        talk.roll.say(f"agents {absent} did not send their last numbers: they are not in the result")
    seen = Scores(scores.loss[answered], None if scores.acc is None else scores.acc[answered])
    label = None if pi is None else pi[answered]
    about = {"data": run.name, "seed": run.seed, "rounds": run.rounds, "engine": "flower"}
    clusters = clustered(run.algorithm, label, int(answered.sum()))
    row = {"method": run.method} | described(run.algorithm) | about
    row |= scored(seen, Bayes(best[answered], run.best), label, clusters, None)
    row |= {"agents": answered.nonzero().flatten().tolist(), "train": asdict(run.train), "seconds": seconds}
    _write(run, row)
    numbers = {"FAA": row["faa"], "mean loss": row["avg_loss"], "agnostic loss": row["agnostic_loss"]}
    talk.roll.say(", ".join(f"{name} {value:.4f}" for name, value in numbers.items()))
    return row


def _write(run: Run, row: dict[str, Any]) -> None:
    """Beside the rows of other methods and seeds that the folder holds."""
    if run.out is None or run.folder is None:
        return
    row["rounds_to"] = rounds_to(read(run.folder))
    files.write_json(run.folder / "result.json", row)
    path = run.out / "results.json"
    others = files.read_json(path) if path.exists() else []
    rows = [other for other in others if (other["method"], other["seed"]) != (row["method"], row["seed"])] + [row]
    files.write_json(path, rows)
    methods, seeds = (list(dict.fromkeys(one[name] for one in rows)) for name in ("method", "seed"))
    said = {"data": {"name": run.name}, "algorithms": methods, "seeds": seeds, "rounds": run.rounds}
    files.write_json(run.out / "experiment.json", said)

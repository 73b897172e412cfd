"""The clusters in use: what the start "split" keeps beside FOCUS's own state, and how labels are handed out.

server  {"w": [m, ...]}                            the models in use: one before the split
        {"t": [], "parted": []}                    the round; the round of the split, 0 before
        {"live": [M]}                              the clusters in use (0, 1)
        {"given": [E, M]}                          first labels, in logs
        {"heard": [H], "sketches": [H, 256]}       who sent which sketch so far (-1: nobody), until the split;
                                                   during the warm-up: agent e's is at e, the sum over the rounds
        {"times": [H]}                             of how many rounds
agent   {"told": []}                               has it taken its first label? (0, 1)

Other starts have none of it; then all clusters are in use, and labels stay as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from focusfl.algorithms.focus import split
from focusfl.core import Models, State, one_hot, row

SURE = 10.0  # nats by which a first label leads: more than `prune` asks for, few rounds to come back from
NEVER = -1e30  # the log label of a cluster that is not in use
ENOUGH, ROOM = 0.8, 1000  # share of the agents, and at most how many, whose sketches the split waits for
PATIENCE = 20  # rounds it waits for them
CLEAR = 0.25  # the silhouette from which groups are more than chance (Kaufman and Rousseeuw 1990)


def begin(w: Models, E: int, M: int) -> State:
    """One shared model, room for M clusters."""
    H = min(E, ROOM)
    return {
        "w": w,
        "t": torch.tensor(0),
        "parted": torch.tensor(0),
        "live": (torch.arange(M) == 0).long(),
        "given": torch.zeros(E, M),
        "heard": torch.full((H,), -1),
        "sketches": torch.zeros(H, split.SIZE),
        "times": torch.zeros(H),
    }


def view(server: State, e: Tensor) -> State:
    """What agent e receives: the models, and its own first label."""
    if "live" not in server:
        return server
    seen = {k: v for k, v in server.items() if k not in ("heard", "sketches", "times")}
    return {**seen, **row({"given": server["given"]}, e)}


def which(server: State) -> Tensor:
    if "live" not in server:
        first = next(iter(server["w"].values()))
        return torch.arange(len(first), device=first.device)
    return torch.as_tensor(server["live"]).nonzero().flatten()


def labels(server: State, state: State) -> Tensor:
    """Log labels of the clusters in use. The first ones after the split are the server's."""
    log_pi = torch.as_tensor(state["log_pi"])
    if "live" not in server:
        return log_pi
    if int(server["parted"]):
        log_pi = torch.where(state["told"] > 0, log_pi, server["given"])
    if "home" in server:  # clusters may have been joined
        joined = torch.where(one_hot(server["home"], len(log_pi)) > 0, 0, -torch.inf)  # [M, M]
        log_pi = (log_pi.unsqueeze(1) + joined).logsumexp(0)
    return torch.log_softmax(log_pi.index_select(0, which(server)), 0)


def kept(server: State, state: State, log_pi: Tensor) -> State:
    """The agent's state with these labels of the clusters in use."""
    if "live" not in server:
        return {"log_pi": log_pi}
    told = torch.ones_like(state["told"]) if int(server["parted"]) else state["told"]
    every = torch.full_like(torch.as_tensor(state["log_pi"]), NEVER).index_copy(0, which(server), log_pi)
    return {**state, "log_pi": every, "told": told}


def advance(server: State, means: Models) -> State:
    """The next round, with new models of the clusters in use."""
    return {**server, "w": means, "t": server["t"] + 1}


def asks(server: State) -> bool:
    """Does the server want to know how an agent would change the shared model?"""
    return "live" in server and not int(server["parted"])


def listen(server: State, before: Models, sketches: Tensor, cohort: Tensor, warmup: int, M: int | None) -> State:
    """Keep these sketches; after the warm-up, with those of enough agents, part them.

    By the last update, where all sent it and it shows clear groups; else by the mean over the warm-up. One cluster
    has nobody to part, and an agent whose update is not finite has said nothing.
    """
    E, H = len(server["given"]), len(server["heard"])
    sound = sketches.isfinite().all(1)
    sketches, cohort = sketches[sound], cohort[sound]
    if not len(cohort):
        return server
    if len(server["live"]) == 1:
        return part(server, sketches, cohort, 1)
    if int(server["t"]) <= warmup and E == H and len(cohort) >= ENOUGH * E:
        server = add_up(server, sketches, cohort)
    if int(server["t"]) < warmup:
        return server
    known = server["heard"] >= 0
    if int(server["t"]) > warmup or not known.any():
        return wait(server, before, sketches, cohort, warmup, M)
    last = split.bounded(sketches)
    if len(cohort) == int(known.sum()) and split.sharpness(last, M) >= CLEAR:
        return part(server, last, cohort, M)
    means = server["sketches"][known] / server["times"][known].unsqueeze(1)
    return part(server, means, server["heard"][known], M)


def add_up(server: State, sketches: Tensor, cohort: Tensor) -> State:
    """Nearly all agents are there: what sets each apart from their mean adds up over the warm-up, every round with
    the same weight; the noise of small batches, different in every round, does not."""
    apart = split.bounded(sketches)
    apart = apart - apart.mean(0)
    apart = (apart / torch.linalg.matrix_norm(apart).clamp_min(1e-30)).to(server["sketches"])
    sums = server["sketches"].index_add(0, cohort, apart)
    times = server["times"].index_add(0, cohort, torch.ones_like(apart[:, 0]))
    return {**server, "heard": server["heard"].index_copy(0, cohort, cohort), "sketches": sums, "times": times}


def wait(server: State, before: Models, sketches: Tensor, cohort: Tensor, warmup: int, M: int | None) -> State:
    """Few agents a round: part them when enough are heard, or when half of all came and none of them is new: the
    others are away. An agent heard twice counts with its last.

    Until then the shared model stays as it was `before` this round: sketches compare only if all are of one model.
    """
    others = (server["heard"] >= 0) & ~torch.isin(server["heard"], cohort)
    who = torch.cat([cohort, server["heard"][others]])
    said = torch.cat([sketches, server["sketches"][others].to(sketches)])
    E, H = len(server["given"]), len(server["heard"])
    all_here = len(who) == int((server["heard"] >= 0).sum()) and 2 * len(cohort) >= E
    if len(who) >= min(ENOUGH * E, ROOM) or all_here or int(server["t"]) >= warmup + PATIENCE:
        return part(server, split.bounded(said), who, M)
    heard, room = torch.full_like(server["heard"], -1), torch.zeros_like(server["sketches"])
    heard[: len(who)], room[: len(who)] = who[:H], said[:H]
    return {**server, "w": before, "heard": heard, "sketches": room}


def part(server: State, sketches: Tensor, who: Tensor, M: int | None) -> State:
    """The shared model for each of M groups (None: as many as show). Who was heard learns its group; the others
    will find theirs by their losses."""
    slots = len(server["live"])
    group = split.how_many(sketches) if M is None else split.groups(sketches, M)
    M = int(group.max()) + 1 if M is None else M
    live = (torch.arange(slots, device=group.device) < M).long()
    given = server["given"].index_copy(0, who, SURE * one_hot(group, slots))
    w = {k: v.expand(M, *v.shape[1:]).clone() for k, v in server["w"].items()}
    freed = {k: torch.zeros_like(server[k]) for k in ("sketches", "times")}
    freed["heard"] = torch.full_like(server["heard"], -1)
    return {**server, **freed, "w": w, "live": live, "given": given, "parted": server["t"].clone()}

"""Rows of results.json that a test writes by hand."""

from focusfl.report.sentences import WARNING, explain

PARAMS = {"M": 2, "init": "split", "warmup": 3}


def hard(clusters, M=2):
    return [[float(m == c) for m in range(M)] for c in clusters]


def run(clusters=(0, 0, 0, 1), loss=None, pi=None, **more):
    """A run of FOCUS with certain labels, every loss 1, and nothing known about noise."""
    E = len(clusters)
    made = {"method": "focus", "algorithm": "focus", "params": PARAMS, "seed": 0, "rounds": 100}
    made |= {"clusters": list(clusters), "n": [100] * E, "loss": loss or [1.0] * E, "pi": pi or hard(clusters)}
    return made | {"bayes": [0.0] * E, "bayes_kind": "true"} | more


def base(algorithm, loss, **more):
    clusters = [0] * len(loss) if algorithm == "fedavg" else list(range(len(loss)))
    row = run(clusters, loss, method=algorithm, algorithm=algorithm, params={}, **more)
    return row | {"pi": None}


def warned(row, others=()):
    return [line.removeprefix(WARNING) for line in explain([row], others) if line.startswith(WARNING)]

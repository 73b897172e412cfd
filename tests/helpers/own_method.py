"""A method in a file of the user's own, as docs/add-an-algorithm.md shows it; tests load it by name."""

from dataclasses import dataclass
from typing import ClassVar

from focusfl.core import Algorithm, Upload


@dataclass(frozen=True)
class FedMedian(Algorithm):
    """All agents share one model, which moves towards the median of their models."""

    step: float = 1.0

    name: ClassVar[str] = "Federated median"
    paper: ClassVar[str] = "Yin et al. 2018, arXiv 1803.01498"

    def start(self, networks, E):
        return {"w": networks.copies(1)}

    def local(self, server, state, agent):
        return state, Upload(add={}, each={"theta": agent.sgd(server["w"])})

    def aggregate(self, server, add, each, cohort):
        w = server["w"]
        return {"w": {k: v + self.step * (each["theta"][k].median(0).values - v) for k, v in w.items()}}

    def predict(self, server, state, h):
        return h(server["w"])[0]

"""A secure sum in one process: the real server and the real nodes, with nothing in between."""

import numpy as np

from focusfl.flower.secure_sums import node
from focusfl.flower.secure_sums.identity import NodeSetup
from focusfl.flower.secure_sums.server import SecureSum

STAGES = ("advertise_keys", "share_keys", "masked_input", "consistency", "unmasking")


class Protocol:
    """A secure sum in one process. dropouts: the stage from which on an agent is silent."""

    def __init__(self, values, dropouts=None, minimum=2, me=None):
        self.values, self.dropouts = values, dropouts or {}
        self.shapes = {k: v.shape for k, v in next(iter(values.values())).items()}
        self.server = SecureSum(self.shapes, minimum)
        self.me = me or {e: NodeSetup.without_authority(e) for e in values}
        self.state = {}
        self.masked = {}

    def alive(self, stage):
        before = STAGES[: STAGES.index(stage) + 1]
        return [e for e in self.values if self.dropouts.get(e) not in before]

    def up_to(self, last):
        for stage in STAGES[: STAGES.index(last) + 1]:
            getattr(self, stage)()
        return self

    def advertise_keys(self):
        for e in self.alive("advertise_keys"):
            self.state[e], keys = node.advertise_keys(self.me[e], self.server.advertise_keys_request())
            self.server.receive_keys(e, keys)

    def share_keys(self):
        request = self.server.share_keys_request()
        for e in self.alive("share_keys"):
            self.state[e], shares = node.share_keys(self.me[e], self.state[e], request)
            self.server.receive_shares(e, shares)

    def masked_input(self):
        for e in self.alive("masked_input"):
            request = self.server.masked_input_request(e)
            self.state[e], self.masked[e] = node.masked_input(self.me[e], self.state[e], request, self.values[e])
            self.server.receive_masked_input(e, self.masked[e])

    def consistency(self):
        request = self.server.consistency_request()
        for e in self.alive("consistency"):
            self.state[e], vote = node.consistency(self.me[e], self.state[e], request)
            self.server.receive_consistency(e, vote)

    def unmasking(self):
        request = self.server.unmasking_request()
        for e in self.alive("unmasking"):
            self.state[e], shares = node.unmasking(self.me[e], self.state[e], request)
            self.server.receive_unmasking(e, shares)

    def result(self):
        return self.up_to("unmasking").server.result()


def numbers(agents, seed=0, size=5):
    rng = np.random.default_rng(seed)
    return {e: {"w": rng.normal(size=(2, size)).astype("f4"), "pi": rng.random(2)} for e in agents}


def same_sum(found, values, answered):
    for name in found:
        plain = sum(values[e][name].astype("f8") for e in answered)
        assert found[name].shape == plain.shape
        assert np.abs(found[name] - plain).max() <= len(values) * 2.0**-33

"""A server that lies: the attacker plays the server against real nodes, whose keys a real authority has certified.

Without the signed consistency stage, the hash of the roster in the keys, certified keys and the node's own minimum
each of these attacks gave one agent's upload in the clear, or a sum over two.
"""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from helpers.secure_protocol import Protocol, numbers, same_sum

from focusfl.deploy import certificates
from focusfl.flower.secure_sums import crypto, fixed_point, messages, node
from focusfl.flower.secure_sums.identity import Anyone, Authority, NodeSetup
from focusfl.flower.secure_sums.messages import PUBLIC, SecureSumFailed
from focusfl.util.errors import InputError

SESSION = b"0123456789abcdef"
START = {"session": SESSION}
ED25519, UNKNOWN = (
    bytes.fromhex("06032b6570"),
    bytes.fromhex("06032b657f"),
)  # kinds of keys, in a certificate


class Issuer:
    """The deployment's authority, with its key."""

    def __init__(self):
        self.key = certificates.new_tls_key()
        self.certificate = certificates.authority_certificate(self.key)
        self.authority = Authority(self.certificate)

    def sign(self, e, public):
        signed = certificates.agent_certificate(public, e, self.certificate, self.key)
        return signed.public_bytes(Encoding.DER)

    def node(self, e, minimum=2):
        key = Ed25519PrivateKey.generate()
        return NodeSetup(e, key, self.sign(e, key.public_key()), self.authority, minimum)


ISSUER = Issuer()


class Attack:
    """n nodes under the attacker's control of all messages. It may tell every node something else."""

    def __init__(self, n, minimum=2, colluding=()):
        self.everyone, self.colluding = list(range(n)), set(colluding)
        self.me = {e: ISSUER.node(e, minimum) for e in self.everyone}
        self.x = numbers(self.everyone)
        self.state, self.keys, self.sealed, self.promised, self.y = {}, {}, {}, {}, {}
        for e in self.everyone:
            self.state[e], self.keys[e] = node.advertise_keys(self.me[e], START)

    def roster(self, agents, threshold):
        names = (*PUBLIC, "credential", "signature")
        lists = {name: [self.keys[e][name] for e in agents] for name in names}
        return START | lists | {"agents": list(agents), "threshold": threshold}

    def share(self, e, agents, threshold=None):
        threshold = threshold or crypto.min_threshold(len(agents))
        self.state[e], reply = node.share_keys(self.me[e], self.state[e], self.roster(agents, threshold))
        self.sealed[e] = dict(zip(reply["to"], reply["sealed"], strict=True))
        pairs = zip(reply["commitments"][::2], reply["commitments"][1::2], strict=True)
        self.promised[e] = dict(zip(agents, pairs, strict=True))

    def mask(self, e, senders, about=b""):
        senders = [i for i in senders if i != e]
        request = START | {"from": senders, "sealed": [self.sealed[i][e] for i in senders]}
        request["commitments"] = [c for i in senders for c in self.promised[i][e]]
        self.state[e], self.y[e] = node.masked_input(self.me[e], self.state[e], request, self.x[e], about)

    def vote(self, e, answered):
        self.state[e], reply = node.consistency(self.me[e], self.state[e], START | {"answered": sorted(answered)})
        return reply["signature"]

    def reveal(self, e, votes):
        request = START | {"signers": sorted(votes), "signatures": [votes[i] for i in sorted(votes)]}
        self.state[e], reply = node.unmasking(self.me[e], self.state[e], request)
        return dict(zip(reply["of"], reply["shares"], strict=True))

    def read(self, e):
        """What a colluding node knows."""
        assert e in self.colluding
        return json.loads(self.state[e])

    def forge(self, e, answered):
        """A colluding node signs any list."""
        return self.me[e].key.sign(messages.answered_text(bytes.fromhex(self.read(e)["sum_"]), answered))


def refused(call, *arguments):
    try:
        call(*arguments)
    except InputError:
        return True
    return False


def test_nodes_that_are_shown_different_rosters_can_neither_decrypt_shares_nor_cancel_masks():
    """The attack on five honest nodes: agent 0 sees agents 0 and 1, the others see all five."""
    attack = Attack(5)
    attack.share(0, [0, 1])
    for e in (1, 2, 3, 4):
        attack.share(e, attack.everyone)
    with pytest.raises(SecureSumFailed, match="1 of 2 agents sent agent 0 shares"):
        attack.mask(0, [0, 1])  # it uploads nothing
    attack.mask(1, attack.everyone)
    assert [int(e) for e in json.loads(attack.state[1])["shares"]] == [1, 2, 3, 4]  # no share of agent 0
    with pytest.raises(SecureSumFailed, match="2 of 5 agents sent shares"):
        attack.mask(2, [2, 3])


def test_masks_cancel_only_between_nodes_with_the_same_roster_senders_and_models():
    def masks_cancel(about, senders=(0, 1, 2, 3, 4)):
        """Whether the uploads add up once the self masks, whose seeds we read at the nodes, are removed."""
        attack = Attack(5)
        for e in attack.everyone:
            attack.share(e, attack.everyone)
        seeds = {e: bytes.fromhex(json.loads(attack.state[e])["secrets"]["seed"]) for e in attack.everyone}
        total = {name: np.zeros(v.shape, "<u8") for name, v in attack.x[0].items()}
        for e in attack.everyone:
            attack.mask(e, senders if e == 0 else attack.everyone, about if e == 0 else b"models")
            sum_ = bytes.fromhex(json.loads(attack.state[e])["sum_"])
            crypto.add_mask(attack.y[e], crypto.derive_key(seeds[e], "self", sum_, e), -1)
            total = {name: total[name] + v for name, v in attack.y[e].items()}
        found = fixed_point.decode(total, 5)["w"]
        return bool(np.allclose(found, sum(x["w"].astype("f8") for x in attack.x.values()), atol=1e-9))

    assert masks_cancel(b"models")
    assert not masks_cancel(b"other models")
    assert not masks_cancel(b"models", [0, 1, 2, 3])
    keys = {e: [bytes([e, k]) * 16 for k in range(4)] for e in range(3)}
    digest = messages.roster_digest(SESSION, 3, keys)
    for other in (keys | {3: keys[0]}, {0: keys[0], 1: keys[1]}, keys | {2: [*keys[2][:3], bytes(32)]}):
        assert messages.roster_digest(SESSION, 3, other) != digest
    assert messages.roster_digest(SESSION, 2, keys) != digest != messages.roster_digest(bytes(16), 3, keys)


def test_a_node_that_was_told_of_other_senders_or_models_reveals_nothing():
    for senders, about in (([0, 1, 2, 3], b"models"), ([0, 1, 2, 3, 4], b"other models")):
        attack = Attack(5)
        for e in attack.everyone:
            attack.share(e, attack.everyone)
        for e in attack.everyone:
            attack.mask(e, senders if e == 0 else attack.everyone, about if e == 0 else b"models")
        votes = {e: attack.vote(e, [0, 1, 2, 3]) for e in (0, 1, 2, 3)}
        assert all(refused(attack.reveal, e, votes) for e in (0, 1, 2, 3))


def test_different_lists_of_the_dropped_reveal_nothing_to_a_server_without_accomplices():
    """The attack on five honest nodes: each is told another list; none gets enough signatures under its own."""
    attack = Attack(5)
    for e in attack.everyone:
        attack.share(e, attack.everyone)
    for e in attack.everyone:
        attack.mask(e, attack.everyone)
    told = {0: [0, 1, 2, 3, 4], 1: [0, 1, 3, 4], 2: [0, 2, 3, 4], 3: [0, 1, 3, 4], 4: [0, 2, 3, 4]}
    votes = {e: attack.vote(e, told[e]) for e in attack.everyone}
    for e in attack.everyone:
        assert refused(attack.reveal, e, votes)
        second = [i for i in attack.everyone if i != (e + 1) % 5]
        assert refused(attack.vote, e, second) or second == told[e]  # it signs no second list
    lists = [0, 1, 2], [0, 3, 4]  # those of the attack before: too short now
    assert all(refused(attack.vote, e, told) for told in lists for e in told)


def both_secrets(n, accomplices, split):
    """Attack agent 0 with the last agents as accomplices: `split` of the others are told that it answered, the rest
    that it dropped out. Return whether the server gets the threshold of shares of both its secrets."""
    attack = Attack(n, colluding=range(n - accomplices, n))
    victim, t = 0, crypto.min_threshold(n)
    for e in attack.everyone:
        attack.share(e, attack.everyone)
    for e in attack.everyone:
        attack.mask(e, attack.everyone)
    honest = [e for e in attack.everyone if e not in attack.colluding]
    lists = {True: attack.everyone, False: attack.everyone[1:]}
    present = {e: k <= split for k, e in enumerate(honest)}  # the victim itself is told that it answered
    votes = {told: {e: attack.forge(e, lists[told]) for e in attack.colluding} for told in lists}
    for e, told in present.items():
        with suppress(SecureSumFailed):
            votes[told][e] = attack.vote(e, lists[told])
    known = {e: attack.read(e)["shares"]["0"] for e in attack.colluding}
    shares = {True: {e: v[0] for e, v in known.items()}, False: {e: v[1] for e, v in known.items()}}
    for e, told in present.items():
        with suppress(InputError):
            shares[told][e] = attack.reveal(e, votes[told])[victim]
    return all(len(found) >= t for found in shares.values())


@pytest.mark.parametrize(("n", "accomplices"), [(3, 1), (5, 1), (9, 1), (9, 2)])
def test_with_colluding_nodes_a_victim_is_not_called_dropped_here_and_present_there(n, accomplices):
    assert not any(both_secrets(n, accomplices, split) for split in range(n - accomplices))


@pytest.mark.parametrize("n", [3, 5, 9])
def test_with_a_threshold_of_half_the_agents_the_same_attack_succeeds(n, monkeypatch):
    """So signatures alone do not suffice: more than two thirds must sign."""
    monkeypatch.setattr(crypto, "min_threshold", lambda n, minimum=2: n // 2 + 1)
    assert any(both_secrets(n, 1, split) for split in range(n - 1))


def test_signatures_that_are_forged_of_another_sum_or_repeated_do_not_count():
    attack, other = Attack(4), Attack(4)
    for one in (attack, other):
        for e in one.everyone:
            one.share(e, one.everyone)
        for e in one.everyone:
            one.mask(e, one.everyone)
    everyone = attack.everyone
    other.me = attack.me  # the same agents sign the same list, in another sum
    votes, old = ({e: one.vote(e, everyone) for e in everyone} for one in (attack, other))
    assert refused(attack.reveal, 0, old)
    assert refused(attack.reveal, 0, dict.fromkeys(everyone, votes[0]))
    assert refused(attack.reveal, 0, {0: votes[0], 1: votes[1]})
    with pytest.raises(InputError, match="repeats an agent"):
        node.unmasking(attack.me[0], attack.state[0], START | {"signers": [0, 0, 0], "signatures": [votes[0]] * 3})
    assert sorted(attack.reveal(0, {e: votes[e] for e in (0, 1, 2)})) == everyone


def test_a_sum_over_two_of_nine_is_refused_by_the_nodes_own_minimum():
    def two_of_nine(minimum):
        values = numbers([2, 7])
        protocol = Protocol(values, me={e: ISSUER.node(e, minimum) for e in values})
        same_sum(protocol.result(), values, [2, 7])

    two_of_nine(2)  # what a node that asks for no more takes part in
    with pytest.raises(InputError, match="of 5 to 1024 agents"):
        two_of_nine(5)


def test_a_node_goes_on_in_no_stage_with_fewer_agents_than_its_minimum():
    """Threshold 4 of 5 agents; the node asks for all 5."""
    attack = Attack(5)
    attack.me[0] = replace(attack.me[0], minimum=5)
    for e in attack.everyone:
        attack.share(e, attack.everyone)
    with pytest.raises(SecureSumFailed, match=r"4 of 5 agents sent shares.*at least 5"):
        attack.mask(0, [0, 1, 2, 3])
    for e in attack.everyone:
        attack.mask(e, attack.everyone)
    with pytest.raises(SecureSumFailed, match=r"4 of 5 agents answered.*at least 5"):
        attack.vote(0, [0, 1, 2, 3])
    votes = {e: attack.vote(e, attack.everyone) for e in attack.everyone}
    with pytest.raises(SecureSumFailed, match=r"4 of 5 agents signed.*at least 5"):
        attack.reveal(0, {e: votes[e] for e in (0, 1, 2, 3)})
    assert attack.reveal(1, {e: votes[e] for e in (0, 1, 2, 3)})
    assert attack.reveal(0, votes)


def invented(attack, e, credential=None, key=None):
    """Keys that the server made in the name of agent e."""
    me = NodeSetup.without_authority(e) if key is None else replace(attack.me[0], e=e, key=key)
    state, keys = node.advertise_keys(me, START)
    return state, keys | ({} if credential is None else {"credential": credential})


def test_the_server_cannot_put_its_own_keys_in_an_agents_place_or_invent_agents():
    """Where keys were not signed, the server put its own in the place of all others, and read an upload."""
    attack, own = Attack(4), Ed25519PrivateKey.generate()
    rogue, tls = Issuer(), certificates.new_tls_key().public_key()
    operator = certificates.operator_certificate(tls, ISSUER.certificate, ISSUER.key, 1)
    invented_keys = {
        "no certificate": invented(attack, 3)[1],
        "agent 3's certificate": invented(attack, 3, attack.me[3].credential)[1],
        "another authority's": invented(attack, 3, rogue.sign(3, own.public_key()), own)[1],
        "an operator's": invented(attack, 3, operator.public_bytes(Encoding.DER), own)[1],
        "the authority's own": invented(attack, 3, ISSUER.certificate.public_bytes(Encoding.DER), own)[1],
        "rubbish": invented(attack, 3, b"0" * 400, own)[1],
        "an unknown kind of key": invented(attack, 3, attack.me[3].credential.replace(ED25519, UNKNOWN), own)[1],
        "another agent's keys": attack.keys[2],
        "another seed": attack.keys[3] | {"seed": bytes(32)},
    }
    for what, keys in invented_keys.items():
        attack.keys[3] = keys
        with pytest.raises(InputError, match="agent 3") as error:
            attack.share(0, attack.everyone)
        assert "\n" not in str(error.value), what


def test_a_malformed_certificate_is_an_input_error_without_an_authority_too():
    good, authority = ISSUER.node(1).credential, ISSUER.certificate.public_bytes(Encoding.DER)
    for credential in (b"0" * 400, good[:-1], good.replace(ED25519, UNKNOWN), authority):
        for trusted in (Anyone(), ISSUER.authority):
            with pytest.raises(InputError, match="agent 1"):
                trusted.signing_key(1, credential)


def test_one_key_cannot_be_two_agents():
    """Agent 2 colludes and signs in the name of agent 4, with its own certificate or under a second number."""
    attack = Attack(4)
    for e in (3, 4):
        _, attack.keys[4] = node.advertise_keys(replace(attack.me[2], e=e), START)
        with pytest.raises(InputError, match=r"agent 4 .*focusfl agent 2"):
            attack.share(0, [*attack.everyone, 4])


def test_keys_of_an_earlier_sum_are_refused():
    attack = Attack(3)
    _, attack.keys[2] = node.advertise_keys(attack.me[2], {"session": bytes(16)})
    with pytest.raises(InputError, match="agent 2 has not signed"):
        attack.share(0, attack.everyone)


def test_an_expired_certificate_is_refused():
    key = Ed25519PrivateKey.generate()
    expired = certificates.agent_certificate(key.public_key(), 1, ISSUER.certificate, ISSUER.key, days=0)
    with pytest.raises(InputError, match="agent 1 is not valid now"):
        ISSUER.authority.signing_key(1, expired.public_bytes(Encoding.DER))
    assert isinstance(Anyone().signing_key(1, expired.public_bytes(Encoding.DER)), type(key.public_key()))


def test_an_agent_without_a_certificate_is_left_out_by_the_server_and_the_others_go_on():
    values = numbers(range(5))
    me = {e: ISSUER.node(e) for e in values} | {3: NodeSetup.without_authority(3)}
    protocol = Protocol(values, {3: "advertise_keys"}, me=me)
    protocol.server.trusted = ISSUER.authority
    _, keys = node.advertise_keys(me[3], protocol.server.advertise_keys_request())
    with pytest.raises(InputError, match=r"authority has not certified .*agent 3"):
        protocol.server.receive_keys(3, keys)
    same_sum(protocol.result(), values, [0, 1, 2, 4])


@pytest.mark.parametrize("liar", range(5))
def test_one_false_share_of_five_costs_neither_the_sum_nor_the_round(liar):
    protocol = Protocol(numbers(range(5))).up_to("consistency")
    request = protocol.server.unmasking_request()
    for e in range(5):
        _, reply = node.unmasking(protocol.me[e], protocol.state[e], request)
        if e == liar:
            reply["shares"][(liar + 1) % 5] = bytes(32)
        protocol.server.receive_unmasking(e, reply)
    same_sum(protocol.server.result(), protocol.values, range(5))
    assert list(protocol.server.liars) == [liar] and f"agent {(liar + 1) % 5}" in protocol.server.liars[liar]


@pytest.mark.parametrize("victims", [[1], [1, 2], [0, 1, 2, 4]])
def test_an_agent_that_deals_false_shares_is_named_and_no_one_else(victims):
    """Agent 3 of five deals shares that do not match its commitments, or that no one can decrypt."""
    protocol = Protocol(numbers(range(5))).up_to("advertise_keys")
    request = protocol.server.share_keys_request()
    for e in range(5):
        protocol.state[e], reply = node.share_keys(protocol.me[e], protocol.state[e], request)
        if e == 3:
            for i in victims:
                reply["sealed"][reply["to"].index(i)] = bytes(crypto.ENCRYPTED_SHARES_SIZE)
        protocol.server.receive_shares(e, reply)
    for stage in ("masked_input", "consistency", "unmasking"):
        getattr(protocol, stage)()
    if len(victims) == 1:
        same_sum(protocol.server.result(), protocol.values, range(5))
    else:
        with pytest.raises(SecureSumFailed, match="agent 3 sent") as failure:
            protocol.server.result()
        assert list(failure.value.culprits) == [3]
    assert protocol.server.liars == {}


def test_an_agent_that_splits_something_else_than_its_secret_is_named(monkeypatch):
    protocol = Protocol(numbers(range(4))).up_to("advertise_keys")
    request, split = protocol.server.share_keys_request(), crypto.split_secret
    for e in range(4):
        with monkeypatch.context() as patched:
            if e == 1:
                patched.setattr(crypto, "split_secret", lambda _, threshold, n: split(bytes(32), threshold, n))
            protocol.state[e], reply = node.share_keys(protocol.me[e], protocol.state[e], request)
        protocol.server.receive_shares(e, reply)
    for stage in ("masked_input", "consistency", "unmasking"):
        getattr(protocol, stage)()
    with pytest.raises(SecureSumFailed, match="agent 1 split") as failure:
        protocol.server.result()
    assert list(failure.value.culprits) == [1]

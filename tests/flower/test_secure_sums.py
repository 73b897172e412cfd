"""Secure sums: the server learns the sum over the agents that answered, and nothing about any single one."""

import json
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from helpers.secure_protocol import STAGES, Protocol, numbers, same_sum
from hypothesis import example, given, settings
from hypothesis import strategies as st

from focusfl.flower.secure_sums import crypto, fixed_point, node
from focusfl.flower.secure_sums.messages import SecureSumFailed
from focusfl.util.errors import InputError


@settings(max_examples=30)
@given(st.data())
def test_the_sum_is_that_of_those_who_answered_whoever_else_drops_out_and_when(data):
    agents = data.draw(st.lists(st.integers(0, 999), min_size=2, max_size=6, unique=True))
    values = numbers(agents, data.draw(st.integers(0, 99)))
    dropouts = {e: at for e in agents if (at := data.draw(st.sampled_from((None, None, *STAGES))))}
    protocol = Protocol(values, dropouts)
    try:
        found = protocol.result()
    except SecureSumFailed:
        here = [sum(at not in STAGES[: k + 1] for at in (dropouts.get(e) for e in agents)) for k in range(5)]
        assert any(n < crypto.min_threshold(here[0]) for n in here)
    else:
        assert sorted(protocol.server.answered) == sorted(e for e in agents if dropouts.get(e) not in STAGES[:3])
        same_sum(found, values, protocol.server.answered)


@pytest.mark.parametrize("stage", STAGES[1:])
def test_every_set_of_dropouts_that_leaves_the_threshold_gives_the_sum_and_no_other_does(stage):
    values = numbers(range(5))  # threshold 4
    for k in range(1, 6):
        for gone in combinations(range(5), k):
            protocol = Protocol(values, dict.fromkeys(gone, stage))
            if 5 - k >= 4:
                same_sum(protocol.result(), values, protocol.server.answered)
            else:
                with pytest.raises(SecureSumFailed, match=f"{5 - k} of 5 agents"):
                    protocol.result()


def test_a_masked_input_looks_like_noise_and_differs_every_time():
    values = {e: {"w": np.zeros(20_000)} for e in range(3)}
    first, second = (Protocol(values).up_to("masked_input").masked[1]["w"] for _ in range(2))
    assert (first != second).all()
    bits = np.unpackbits(first.view("u1"))  # 1,280,000 fair coins: standard deviation of the mean 0.00044
    assert abs(bits.mean() - 0.5) < 7 * 0.00044
    per_bit = np.unpackbits(first.view("u1").reshape(-1, 8), axis=1).mean(0)  # 20,000 coins each: 0.0035
    assert (np.abs(per_bit - 0.5) < 7 * 0.0035).all()
    assert abs(np.corrcoef(first.astype("f8"), second.astype("f8"))[0, 1]) < 7 / np.sqrt(20_000)


def test_without_the_keys_a_masked_input_does_not_reveal_what_is_under_the_mask():
    n = 40_000  # the first half zeros, the second the largest number there is
    values = {e: {"w": np.repeat([0.0, fixed_point.MAX_VALUE], n // 2)} for e in range(3)}
    protocol = Protocol(values).up_to("masked_input")
    for half in np.split(protocol.masked[1]["w"], 2):
        high = np.bincount(half >> np.uint64(56), minlength=256)  # 256 cells of 78: chi squared 255, deviation 22.6
        assert abs(((high - high.mean()) ** 2 / high.mean()).sum() - 255) < 7 * 22.6
    # nor does what else the server sees: public keys, and shares that it cannot decrypt
    seen = [v for keys in protocol.server.advertised.values() for v in keys.values()]
    seen += [text for sent in protocol.server.shares.values() for text in sent.values()]
    secrets = [
        bytes.fromhex(v)
        for e in range(3)
        for held in json.loads(protocol.state[e])["shares"].values()
        for v in held
    ]
    assert len(secrets) == 18 and not any(secret in blob for secret in secrets for blob in seen)


def test_a_late_input_stays_hidden_after_its_pair_masks_were_reconstructed():
    values = {e: {"w": np.zeros(1000)} for e in range(4)}
    protocol = Protocol(values, {2: "masked_input"}).up_to("share_keys")
    request = protocol.server.masked_input_request(2)
    state, late = node.masked_input(protocol.me[2], protocol.state[2], request, values[2])
    protocol.masked_input()
    protocol.consistency()
    protocol.unmasking()
    assert np.array_equal(protocol.server.result()["w"], np.zeros(1000))
    with pytest.raises(InputError, match=r"agent 2 .*late"):
        protocol.server.receive_masked_input(2, late)
    key = protocol.server._reconstruct(2)  # the server has agent 2's mask key now
    for i in (0, 1, 3):
        pair = crypto.pair_mask_key(key, protocol.server.advertised[i]["mask"], protocol.server.sum_, i, 2)
        crypto.add_mask(late, pair, -crypto.pair_mask_sign(2, i))
    assert (late["w"] != 0).all()  # all inputs were zero: the self mask is what is left
    with pytest.raises(InputError, match="must name agent 2"):
        node.consistency(protocol.me[2], state, protocol.server.advertise_keys_request() | {"answered": [0, 1, 3]})


def test_fewer_shares_than_the_threshold_do_not_give_the_secret():
    secret = bytes(range(32))
    shares = crypto.split_secret(secret, 3, 5)
    for chosen in combinations(range(5), 3):
        assert crypto.combine_shares({i: shares[i] for i in chosen}) == secret
    for chosen in combinations(range(5), 2):
        assert crypto.combine_shares({i: shares[i] for i in chosen}) != secret


def test_a_node_never_reveals_both_shares_of_one_agent():
    protocol = Protocol(numbers(range(5))).up_to("masked_input")
    start, state, me = protocol.server.advertise_keys_request(), protocol.state[0], protocol.me[0]
    with pytest.raises(SecureSumFailed, match="2 of 5 agents answered"):
        node.consistency(me, state, start | {"answered": [0, 1]})
    state, vote = node.consistency(me, state, start | {"answered": [0, 1, 2, 3]})
    with pytest.raises(InputError, match=r"agent 0 .*both shares"):
        node.consistency(me, state, start | {"answered": [0, 1, 2, 3, 4]})
    again, same = node.consistency(me, state, start | {"answered": [0, 1, 2, 3]})
    assert same == vote and again == state
    votes = [vote] + [
        node.consistency(protocol.me[e], protocol.state[e], start | {"answered": [0, 1, 2, 3]})[1]
        for e in (1, 2, 3)
    ]
    request = start | {"signers": [0, 1, 2, 3], "signatures": [one["signature"] for one in votes]}
    state, reply = node.unmasking(me, state, request)
    assert reply["of"] == [0, 1, 2, 3, 4]
    again, same = node.unmasking(me, state, request)
    assert same == reply and again == state
    with pytest.raises(InputError, match=r"agent 0 last completed 'unmasking'"):
        node.consistency(me, state, start | {"answered": [0, 1, 2, 3, 4]})


def test_a_node_masks_once_and_deletes_its_keys():
    protocol = Protocol(numbers(range(3))).up_to("share_keys")
    request = protocol.server.masked_input_request(0)
    before = json.loads(protocol.state[0])["secrets"]
    state, _ = node.masked_input(protocol.me[0], protocol.state[0], request, protocol.values[0])
    with pytest.raises(InputError, match=r"agent 0 .*'masked input'"):
        node.masked_input(protocol.me[0], state, request, protocol.values[0])
    assert not any(secret.encode() in state for secret in before.values())


def held_by(state):
    return sorted(int(e) for e in json.loads(state)["shares"])


def test_shares_that_were_altered_or_swapped_or_are_of_another_sum_are_not_used():
    protocol = Protocol(numbers(range(5))).up_to("share_keys")  # threshold 4
    request, me, x = protocol.server.masked_input_request(0), protocol.me[0], protocol.values[0]
    for at in (0, 40, 91):
        sealed = list(request["sealed"])
        sealed[1] = sealed[1][:at] + bytes([sealed[1][at] ^ 1]) + sealed[1][at + 1 :]
        state, _ = node.masked_input(me, protocol.state[0], request | {"sealed": sealed}, x)
        assert held_by(state) == [0, 1, 3, 4]
    broken = [request["commitments"][0][::-1], *request["commitments"][1:]]
    state, _ = node.masked_input(me, protocol.state[0], request | {"commitments": broken}, x)
    assert held_by(state) == [0, 2, 3, 4]
    with pytest.raises(SecureSumFailed, match=r"1 of 5 agents sent agent 0 shares"):
        node.masked_input(me, protocol.state[0], request | {"sealed": request["sealed"][::-1]}, x)
    other = Protocol(numbers(range(5))).up_to("share_keys").server.masked_input_request(0)
    with pytest.raises(SecureSumFailed, match=r"1 of 5 agents sent agent 0 shares"):
        node.masked_input(me, protocol.state[0], other | protocol.server.advertise_keys_request(), x)
    with pytest.raises(InputError, match="agent 0 has no keys"):
        node.masked_input(me, protocol.state[0], other, x)
    with pytest.raises(InputError, match="lost"):
        node.masked_input(me, b"", request, x)


def test_wrong_shares_leave_too_few_and_their_sender_is_named():
    protocol = Protocol(numbers(range(3))).up_to("consistency")  # threshold 3
    request = protocol.server.unmasking_request()
    for e in range(3):
        _, reply = node.unmasking(protocol.me[e], protocol.state[e], request)
        if e == 0:
            reply["shares"][2] = bytes(32)
        protocol.server.receive_unmasking(e, reply)
    with pytest.raises(SecureSumFailed, match=r"agent 0 revealed a wrong share of agent 2") as failure:
        protocol.server.result()
    assert list(failure.value.culprits) == [0]


def test_a_node_does_not_participate_where_a_minority_could_expose_it():
    values = numbers(range(5))
    protocol = Protocol(values).up_to("advertise_keys")
    request = protocol.server.share_keys_request()
    for threshold in (0, 1, 2, 3, 6, True, None):
        with pytest.raises(InputError, match=r"agent 0 .*two thirds"):
            node.share_keys(protocol.me[0], protocol.state[0], request | {"threshold": threshold})
    with pytest.raises(InputError, match="of 6 to 1024 agents"):
        node.share_keys(replace(protocol.me[0], minimum=6), protocol.state[0], request)
    with pytest.raises(InputError, match="agent 0 has not signed"):
        node.share_keys(protocol.me[0], protocol.state[0], request | {"mask": request["mask"][::-1]})
    with pytest.raises(InputError, match="keys that agent 0 sent"):
        fresh, _ = node.advertise_keys(protocol.me[0], protocol.server.advertise_keys_request())
        node.share_keys(protocol.me[0], fresh, request)
    with pytest.raises(SecureSumFailed, match=r"1 of 1 agents .*needs 2"):
        Protocol(numbers([3])).result()
    with pytest.raises(SecureSumFailed, match=r"3 of 3 agents .*needs 4"):
        Protocol(numbers(range(3)), minimum=4).result()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20 + 1, -(2.0**21), 1e30])
def test_an_array_that_could_overflow_is_named_but_not_its_value(bad):
    with pytest.raises(InputError, match=r"'w' .*2\^20") as error:
        fixed_point.encode({"pi": np.ones(2), "w": np.array([0.0, bad])}, 3)
    assert str(bad) not in str(error.value)


@given(st.integers(1, fixed_point.MAX_AGENTS), st.sampled_from([-1.0, 1.0]))
@example(1, 1.0)
@example(512, 1.0)
@example(fixed_point.MAX_AGENTS, 1.0)
def test_the_largest_numbers_of_all_agents_add_up_without_overflow(n, sign):
    one = fixed_point.encode({"w": np.array([sign * fixed_point.MAX_VALUE])}, n)["w"]
    assert fixed_point.decode({"w": one * np.uint64(n)}, n)["w"] == [sign * fixed_point.MAX_VALUE * n]
    assert fixed_point.fraction_bits(n) >= 32


@given(st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=9))
def test_fixed_point_is_off_by_half_a_unit_at_most(values):
    x = np.array(values)
    back = fixed_point.decode(fixed_point.encode({"x": x}, 1024), 1024)["x"]
    assert np.abs(back - x).max() <= 2.0**-33


def test_any_shape_and_real_type_is_summed_and_float32_above_2_to_the_minus_16_is_exact():
    rng = np.random.default_rng(1)
    odd = {"none": np.zeros((0, 3)), "one": np.array(0.5), "half": np.ones(3, "f2"), "whole": np.arange(4)}
    odd |= {
        "turned": rng.normal(size=(3, 5)).astype("f4").T,
        "large": rng.uniform(-1, 1, crypto.MASK_CHUNK_SIZE).astype("f4"),
    }
    found = Protocol(dict.fromkeys(range(3), odd)).result()
    for name, v in odd.items():
        assert (
            found[name].shape == v.shape and np.abs(found[name] - 3 * v.astype("f8")).max(initial=0) <= 3 * 2.0**-33
        )
    big = np.abs(odd["large"]) > 2.0**-16
    assert np.array_equal(found["large"][big], 3 * odd["large"].astype("f8")[big])
    with pytest.raises(InputError, match=r"'c' .*complex128"):
        fixed_point.encode({"c": np.ones(1, complex)}, 2)
    with pytest.raises(InputError, match="1024 agents, not 1025"):
        fixed_point.fraction_bits(1025)


def test_an_agent_that_sends_wrong_arrays_drops_out_and_adds_nothing_to_the_sum():
    values = numbers(range(4))
    protocol = Protocol(values, {3: "masked_input"}).up_to("share_keys")
    request = protocol.server.masked_input_request(3)
    _, sent = node.masked_input(protocol.me[3], protocol.state[3], request, values[3])
    for wrong in ({}, sent | {"x": sent["pi"]}, sent | {"w": sent["w"][:1]}, sent | {"w": sent["w"].view("i8")}):
        with pytest.raises(InputError, match=r"agent 3 .*shapes"):
            protocol.server.receive_masked_input(3, wrong)
    protocol.masked_input()
    protocol.consistency()
    protocol.unmasking()
    same_sum(protocol.server.result(), values, [0, 1, 2])
    with pytest.raises(SecureSumFailed, match="'done'"):
        protocol.server.result()


@pytest.mark.parametrize(
    "junk", [None, 7, b"", [], [b"", b""], ["a"], [True], [-1], [0.5], [2, 1], [1, 1], [b"x" * 32]]
)
@pytest.mark.parametrize("stage", STAGES[1:])
def test_junk_in_the_servers_messages_is_an_input_error(stage, junk):
    protocol = Protocol(numbers(range(3))).up_to(STAGES[STAGES.index(stage) - 1])
    make = getattr(protocol.server, f"{stage}_request")
    request = make(0) if stage == "masked_input" else make()
    more = [protocol.values[0]] if stage == "masked_input" else []
    answer = getattr(node, stage)
    answer(protocol.me[0], protocol.state[0], request, *more)
    for key in request:
        with pytest.raises(InputError):
            answer(protocol.me[0], protocol.state[0], request | {key: junk}, *more)


@pytest.mark.parametrize("junk", [{}, {"to": [1], "sealed": [b""]}, {"mask": b"", "of": None, "shares": 5}])
def test_junk_from_a_node_is_an_input_error(junk):
    protocol = Protocol(numbers(range(4)), {0: "advertise_keys"})
    with pytest.raises(InputError):
        protocol.server.receive_keys(0, junk)
    protocol.dropouts = {0: "share_keys"}
    protocol.up_to("share_keys")
    with pytest.raises(InputError):
        protocol.server.receive_shares(0, junk)
    protocol.masked_input()
    protocol.server.consistency_request()
    with pytest.raises(InputError):
        protocol.server.receive_consistency(1, junk)
    protocol.consistency()
    protocol.server.unmasking_request()
    for wrong in (junk, {"of": [], "shares": []}, {"of": [1], "shares": [bytes(32)]}):
        with pytest.raises(InputError, match="agent 1"):
            protocol.server.receive_unmasking(1, wrong)
    with pytest.raises(InputError, match=r"agent 0 .*late"):
        protocol.server.receive_keys(0, junk)


def test_an_agent_with_an_invalid_public_key_drops_out_and_the_others_continue():
    protocol = Protocol(numbers(range(3)), {2: "advertise_keys"})
    _, keys = node.advertise_keys(protocol.me[2], protocol.server.advertise_keys_request())
    for name in ("mask", "share"):
        with pytest.raises(InputError, match=r"public key of agent 2 .*valid"):
            protocol.server.receive_keys(2, keys | {name: bytes(32)})
    same_sum(protocol.result(), protocol.values, [0, 1])


def test_a_key_is_for_one_purpose_one_sum_and_one_pair_only():
    secret = bytes(32)
    made = [
        crypto.derive_key(secret, *about)
        for about in (("pair", b"s", 1, 2), ("note", b"s", 1, 2), ("pair", b"t", 1, 2))
    ]
    made += [crypto.derive_key(secret, "pair", b"s", *agents) for agents in ((2, 1), (1, 3), (12,), (1, 2, 0))]
    assert len(set(made)) == 7
    a, b = crypto.new_private_key(), crypto.new_private_key()
    both = [crypto.agree_key(x, crypto.public_key(y), "pair", b"s", 1, 2) for x, y in ((a, b), (b, a))]
    assert both[0] == both[1] != crypto.agree_key(a, crypto.public_key(a), "pair", b"s", 1, 2)

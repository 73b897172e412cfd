"""Secure sums: the server learns the sum over those that answered, and nothing of one of them."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from focusfl.flower.secure_sums import fixed, masks, shamir
from focusfl.flower.secure_sums.collector import Collector
from focusfl.util.errors import InputError

AT = ("advertise", "share", "mask", "reveal")  # where an agent may be lost


class Round:
    """A sum played in one process. lost: which agent goes silent at which stage."""

    def __init__(self, values, lost=None, least=2):
        self.values, self.lost = values, lost or {}
        self.shapes = {k: v.shape for k, v in next(iter(values.values())).items()}
        self.server = Collector(self.shapes, least)
        self.state = {}
        self.sent = {}

    def alive(self, stage):
        return [
            e for e in self.values if AT.index(self.lost.get(e, "reveal")) > AT.index(stage) or e not in self.lost
        ]

    def up_to(self, last):
        for stage in AT[: AT.index(last) + 1]:
            getattr(self, stage)()
        return self

    def advertise(self):
        for e in self.alive("advertise"):
            self.state[e], advert = masks.advertise(e, self.server.hello())
            self.server.advertised(e, advert)

    def share(self):
        roster = self.server.roster()
        for e in self.alive("share"):
            self.state[e], sealed = masks.share(self.state[e], roster)
            self.server.shared(e, sealed)

    def mask(self):
        for e in self.alive("mask"):
            self.state[e], self.sent[e] = masks.mask(self.state[e], self.server.inbox(e), self.values[e])
            self.server.uploaded(e, self.sent[e])

    def reveal(self):
        ask = self.server.ask()
        for e in self.alive("reveal"):
            self.state[e], shown = masks.reveal(self.state[e], ask)
            self.server.revealed(e, shown)

    def result(self):
        return self.up_to("reveal").server.result()


def numbers(agents, seed=0, size=5):
    rng = np.random.default_rng(seed)
    return {e: {"w": rng.normal(size=(2, size)).astype("f4"), "pi": rng.random(2)} for e in agents}


def same_sum(found, values, answered):
    for name in found:
        plain = sum(values[e][name].astype("f8") for e in answered)
        assert found[name].shape == plain.shape
        assert np.abs(found[name] - plain).max() <= len(values) * 2.0**-33


@settings(max_examples=30)
@given(st.data())
def test_the_sum_is_that_of_those_who_answered_whoever_else_is_lost_and_when(data):
    agents = data.draw(st.lists(st.integers(0, 999), min_size=2, max_size=6, unique=True))
    values = numbers(agents, data.draw(st.integers(0, 99)))
    lost = {e: at for e in agents if (at := data.draw(st.sampled_from((None, None, *AT))))}
    play = Round(values, lost)
    try:
        found = play.result()
    except masks.NoSum:
        here = [sum(at not in AT[: k + 1] for at in (lost.get(e) for e in agents)) for k in range(4)]
        assert any(n < masks.majority(here[0]) for n in here)
    else:
        assert sorted(play.server.answered) == sorted(e for e in agents if lost.get(e) not in AT[:3])
        same_sum(found, values, play.server.answered)


@pytest.mark.parametrize("stage", AT[1:])
def test_every_set_of_losses_that_leaves_the_threshold_gives_the_sum_and_no_other_does(stage):
    values = numbers(range(5))  # threshold 3
    for k in range(1, 6):
        for gone in combinations(range(5), k):
            play = Round(values, dict.fromkeys(gone, stage))
            if 5 - k >= 3:
                same_sum(play.result(), values, play.server.answered)
            else:
                with pytest.raises(masks.NoSum, match=f"{5 - k} of 5 agents"):
                    play.result()


def test_an_upload_looks_like_noise_and_is_another_every_time():
    values = {e: {"w": np.zeros(20_000)} for e in range(3)}
    first, second = (Round(values).up_to("mask").sent[1]["w"] for _ in range(2))
    assert (first != second).all()
    bits = np.unpackbits(first.view("u1"))  # 1,280,000 fair coins: standard deviation of the mean 0.00044
    assert abs(bits.mean() - 0.5) < 7 * 0.00044
    per_bit = np.unpackbits(first.view("u1").reshape(-1, 8), axis=1).mean(0)  # 20,000 coins each: 0.0035
    assert (np.abs(per_bit - 0.5) < 7 * 0.0035).all()
    assert abs(np.corrcoef(first.astype("f8"), second.astype("f8"))[0, 1]) < 7 / np.sqrt(20_000)


def test_without_the_keys_an_upload_does_not_show_what_is_under_the_mask():
    n = 40_000  # the first half zeros, the second the largest number there is
    values = {e: {"w": np.repeat([0.0, fixed.LARGEST], n // 2)} for e in range(3)}
    play = Round(values).up_to("mask")
    for half in np.split(play.sent[1]["w"], 2):
        high = np.bincount(half >> np.uint64(56), minlength=256)  # 256 cells of 78: chi squared 255, deviation 22.6
        assert abs(((high - high.mean()) ** 2 / high.mean()).sum() - 255) < 7 * 22.6
    # nor does what the server sees besides: keys, and notes that it cannot open
    seen = [v for advert in play.server.adverts.values() for v in advert.values()]
    seen += [note for notes in play.server.notes.values() for note in notes.values()]
    secrets = [
        bytes.fromhex(v) for e in range(3) for held in json.loads(play.state[e])["held"].values() for v in held
    ]
    assert len(secrets) == 18 and not any(secret in blob for secret in secrets for blob in seen)


def test_a_late_upload_stays_hidden_after_its_pair_masks_were_rebuilt():
    values = {e: {"w": np.zeros(1000)} for e in range(4)}
    play = Round(values, {2: "mask"}).up_to("share")
    state, late = masks.mask(play.state[2], play.server.inbox(2), values[2])
    play.mask()
    play.reveal()
    assert np.array_equal(play.server.result()["w"], np.zeros(1000))
    with pytest.raises(InputError, match="agent 2 answers 'mask' too late"):
        play.server.uploaded(2, late)
    key = play.server._rebuilt(3, 2)  # the server has agent 2's mask key now
    for i in (0, 1, 3):
        pair = masks.pair_key(key, play.server.adverts[i]["mask"], play.server.session, i, 2)
        fixed.stream(late, pair, -masks.sign(2, i))
    assert (late["w"] != 0).all()  # all inputs were zero: the self mask is what is left
    with pytest.raises(InputError, match="itself as answered"):
        masks.reveal(state, play.server.hello() | {"answered": [0, 1, 3], "dropped": [2]})


def test_fewer_shares_than_the_threshold_say_nothing():
    secret = bytes(range(32))
    shares = shamir.split(secret, 3, 5)
    for chosen in combinations(range(5), 3):
        assert shamir.combine({i: shares[i] for i in chosen}) == secret
    for chosen in combinations(range(5), 2):
        assert shamir.combine({i: shares[i] for i in chosen}) != secret


def test_a_node_never_reveals_both_shares_of_one_agent():
    play = Round(numbers(range(5))).up_to("mask")
    hello, state = play.server.hello(), play.state[0]
    both = hello | {"answered": [0, 1, 2, 3, 4], "dropped": [4]}
    with pytest.raises(InputError, match="each it has a share of is named once"):
        masks.reveal(state, both)
    with pytest.raises(InputError, match="named once"):
        masks.reveal(state, hello | {"answered": [0, 1, 2, 3], "dropped": []})
    with pytest.raises(masks.NoSum, match="2 of 5 agents answered, 3 must"):
        masks.reveal(state, hello | {"answered": [0, 1], "dropped": [2, 3, 4]})
    ask = hello | {"answered": [0, 1, 2, 3], "dropped": [4]}
    state, shown = masks.reveal(state, ask)
    again, same = masks.reveal(state, ask)
    assert same == shown and again == state
    with pytest.raises(InputError, match="both shares of one agent would expose it"):
        masks.reveal(state, hello | {"answered": [0, 1, 2, 3, 4], "dropped": []})


def test_a_node_masks_once_and_forgets_its_keys():
    play = Round(numbers(range(3))).up_to("share")
    inbox = play.server.inbox(0)
    before = json.loads(play.state[0])["own"]
    state, _ = masks.mask(play.state[0], inbox, play.values[0])
    with pytest.raises(InputError, match="has done 'mask', which this cannot follow"):
        masks.mask(state, inbox, play.values[0])
    assert not any(secret.encode() in state for secret in before.values())


def test_a_note_that_was_altered_or_swapped_is_refused_by_name():
    play = Round(numbers(range(3))).up_to("share")
    inbox = play.server.inbox(0)
    for at in (0, 40, 91):
        sealed = list(inbox["sealed"])
        sealed[1] = sealed[1][:at] + bytes([sealed[1][at] ^ 1]) + sealed[1][at + 1 :]
        with pytest.raises(InputError, match="the note of agent 2 to agent 0 was altered"):
            masks.mask(play.state[0], inbox | {"sealed": sealed}, play.values[0])
    with pytest.raises(InputError, match="the note of agent 1 to agent 0"):
        masks.mask(play.state[0], inbox | {"sealed": inbox["sealed"][::-1]}, play.values[0])
    other = Round(numbers(range(3))).up_to("share").server.inbox(0)
    with pytest.raises(InputError, match="the note of agent 1 to agent 0"):
        masks.mask(play.state[0], other | play.server.hello(), play.values[0])
    with pytest.raises(InputError, match="knows nothing of this secure sum"):
        masks.mask(play.state[0], other, play.values[0])


def test_false_shares_spoil_the_round_and_are_noticed():
    play = Round(numbers(range(3))).up_to("mask")
    ask = play.server.ask()
    for e in range(3):
        _, shown = masks.reveal(play.state[e], ask)
        if e == 0:
            shown["shares"][2] = bytes(32)
        play.server.revealed(e, shown)
    with pytest.raises(masks.NoSum, match=r"the shares of agent 2 do not fit.*\[0, 1\]"):
        play.server.result()


def test_a_node_does_not_take_part_where_few_could_expose_it():
    values = numbers(range(5))
    play = Round(values).up_to("advertise")
    roster = play.server.roster()
    for threshold in (0, 1, 2, 6, None):
        with pytest.raises(InputError, match="only where more than half"):
            masks.share(play.state[0], roster | {"threshold": threshold})
    with pytest.raises(InputError, match="at least 4"):
        masks.share(play.state[0], roster, least=4)
    with pytest.raises(InputError, match="the roster has not the keys that agent 0 sent"):
        masks.share(play.state[0], roster | {"mask": roster["mask"][::-1]})
    with pytest.raises(masks.NoSum, match="1 of 1 agents sent keys, a secure sum needs 2"):
        Round(numbers([3])).result()
    with pytest.raises(masks.NoSum, match="3 of 3 agents sent keys, a secure sum needs 4"):
        Round(numbers(range(3)), least=4).result()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**20 + 1, -(2.0**21), 1e30])
def test_what_could_wrap_is_refused_by_name_but_not_by_value(bad):
    with pytest.raises(InputError, match="'w' is not finite or holds a number beyond") as error:
        fixed.encode({"pi": np.ones(2), "w": np.array([0.0, bad])}, 3)
    assert str(bad) not in str(error.value)


@given(st.integers(1, fixed.MOST), st.sampled_from([-1.0, 1.0]))
@example(1, 1.0)
@example(512, 1.0)
@example(fixed.MOST, 1.0)
def test_the_largest_numbers_of_all_agents_add_up_without_wrapping(n, sign):
    one = fixed.encode({"w": np.array([sign * fixed.LARGEST])}, n)["w"]
    assert fixed.decode({"w": one * np.uint64(n)}, n)["w"] == [sign * fixed.LARGEST * n]
    assert fixed.bits(n) >= 32


@given(st.lists(st.floats(-(2.0**20), 2.0**20), min_size=1, max_size=9))
def test_fixed_point_is_off_by_half_a_unit_at_most(values):
    x = np.array(values)
    back = fixed.decode(fixed.encode({"x": x}, 1024), 1024)["x"]
    assert np.abs(back - x).max() <= 2.0**-33


def test_any_shape_and_real_type_goes_through_and_float32_above_2_to_the_minus_16_is_exact():
    rng = np.random.default_rng(1)
    odd = {"none": np.zeros((0, 3)), "one": np.array(0.5), "half": np.ones(3, "f2"), "whole": np.arange(4)}
    odd |= {"turned": rng.normal(size=(3, 5)).astype("f4").T, "large": rng.uniform(-1, 1, fixed.CHUNK).astype("f4")}
    found = Round(dict.fromkeys(range(3), odd)).result()
    for name, v in odd.items():
        assert (
            found[name].shape == v.shape and np.abs(found[name] - 3 * v.astype("f8")).max(initial=0) <= 3 * 2.0**-33
        )
    big = np.abs(odd["large"]) > 2.0**-16
    assert np.array_equal(found["large"][big], 3 * odd["large"].astype("f8")[big])
    with pytest.raises(InputError, match="'c' holds complex128"):
        fixed.encode({"c": np.ones(1, complex)}, 2)
    with pytest.raises(InputError, match="from 1 to 1024 agents, not 1025"):
        fixed.bits(1025)


def test_an_answer_that_does_not_fit_counts_its_agent_out_and_nothing_of_it_enters():
    values = numbers(range(4))
    play = Round(values, {3: "mask"}).up_to("share")
    _, sent = masks.mask(play.state[3], play.server.inbox(3), values[3])
    for wrong in ({}, sent | {"x": sent["pi"]}, sent | {"w": sent["w"][:1]}, sent | {"w": sent["w"].view("i8")}):
        with pytest.raises(InputError, match="agent 3 sent arrays of other names, shapes or types"):
            play.server.uploaded(3, wrong)
    play.mask()
    play.reveal()
    same_sum(play.server.result(), values, [0, 1, 2])
    with pytest.raises(masks.NoSum, match="at 'done'"):
        play.server.result()


@pytest.mark.parametrize(
    "junk", [None, 7, b"", [], [b"", b""], ["a"], [True], [-1], [0.5], [2, 1], [1, 1], [b"x" * 32]]
)
@pytest.mark.parametrize("key", ["agents", "mask", "share", "threshold", "from", "sealed", "answered", "dropped"])
def test_junk_in_the_servers_messages_is_an_input_error(key, junk):
    play = Round(numbers(range(3))).up_to("advertise")
    roster = play.server.roster()
    if key in roster:
        with pytest.raises(InputError):
            masks.share(play.state[0], roster | {key: junk})
        return
    play.share()
    inbox = play.server.inbox(0)
    if key in inbox:
        with pytest.raises(InputError):
            masks.mask(play.state[0], inbox | {key: junk}, play.values[0])
        return
    play.mask()
    ask = play.server.ask()
    if junk != ask[key]:
        with pytest.raises(InputError):
            masks.reveal(play.state[0], ask | {key: junk})


@pytest.mark.parametrize("junk", [{}, {"to": [1], "sealed": [b""]}, {"mask": b"", "of": None, "shares": 5}])
def test_junk_from_a_node_is_an_input_error(junk):
    play = Round(numbers(range(3)), {0: "advertise"})
    with pytest.raises(InputError):
        play.server.advertised(0, junk)
    play.lost = {0: "share"}
    play.up_to("share")
    with pytest.raises(InputError):
        play.server.shared(0, junk)
    play.mask()
    play.server.ask()
    with pytest.raises(InputError):
        play.server.revealed(1, junk)
    with pytest.raises(InputError, match="too late, twice, or without"):
        play.server.advertised(0, junk)


def test_a_public_key_of_small_order_counts_its_agent_out_and_the_others_go_on():
    play = Round(numbers(range(3)), {2: "advertise"})
    _, advert = masks.advertise(2, play.server.hello())
    for name in ("mask", "share"):
        with pytest.raises(InputError, match=r"public key of agent 2 .* is not valid"):
            play.server.advertised(2, advert | {name: bytes(32)})
    same_sum(play.result(), play.values, [0, 1])


def test_a_key_is_for_one_purpose_one_sum_and_one_pair_alone():
    secret = bytes(32)
    made = [
        shamir.derive(secret, *about)
        for about in (("pair", b"s", 1, 2), ("note", b"s", 1, 2), ("pair", b"t", 1, 2))
    ]
    made += [shamir.derive(secret, "pair", b"s", *agents) for agents in ((2, 1), (1, 3), (12,), (1, 2, 0))]
    assert len(set(made)) == 7
    a, b = shamir.new_key(), shamir.new_key()
    both = [shamir.agree(x, shamir.public(y), "pair", b"s", 1, 2) for x, y in ((a, b), (b, a))]
    assert both[0] == both[1] != shamir.agree(a, shamir.public(a), "pair", b"s", 1, 2)

"""Results: the table, predictions, newcomers and notes."""

import warnings

import pytest
import torch

import focusfl as ff
from focusfl.util.errors import InputError


@pytest.fixture(scope="module")
def synthetic():
    return ff.fit(ff.Focus(M=2), ff.data.synthetic(seed=0))


def test_table_has_a_line_per_agent_and_a_summary(synthetic):
    lines = synthetic.table().splitlines()
    assert lines[0].split()[:3] == ["agent", "examples", "loss"] and len(lines) == 12
    assert f"FAA {synthetic.faa:.4f}" in lines[-1]


def test_predictions_are_the_mixture_of_the_models(synthetic):
    x = synthetic.setup.fed.test(9).x[:5]
    w = synthetic.server["w"]["1.weight"][:, 0]  # [M, d]
    by_hand = (synthetic.pi[9, :, None] * (w @ x.T)).sum(0)
    assert torch.allclose(synthetic.predict(agent=9, x=x), by_hand, atol=1e-5)


def test_reported_loss_is_that_of_the_predictions(synthetic):
    x, y = synthetic.setup.fed.test(3)
    assert abs((synthetic.predict(3, x) - y).square().mean().item() - synthetic.loss[3].item()) < 1e-6


def test_probabilities_and_accuracy_of_a_classifier(ragged):
    result = ff.fit(ff.Focus(M=2), ragged, rounds=5)
    x, y = ragged.test(2)
    p = result.predict(agent=2, x=x)
    assert torch.allclose(p.sum(1), torch.ones(len(y)), atol=1e-5)
    assert abs((p.argmax(1) == y).float().mean().item() - result.acc[2].item()) < 1e-6
    assert abs(-p[torch.arange(len(y)), y].log().mean().item() - result.loss[2].item()) < 1e-5


def test_newcomer_gets_the_right_cluster_and_changes_nothing(synthetic):
    fed = synthetic.setup.fed
    before = {k: v.clone() for k, v in synthetic.server["w"].items()}
    for known in (0, 9):
        newcomer = synthetic.assign(*fed.train(known))
        assert newcomer.pi.argmax() == synthetic.clusters[known]
        w = synthetic.server["w"]["1.weight"][:, 0]
        x, y = fed.train(known)
        by_hand = torch.softmax(-((w @ x.T - y) ** 2).mean(1), 0)  # one E step from 1/M
        assert torch.allclose(newcomer.pi, by_hand, atol=1e-5)
        assert newcomer.predict(x).shape == y.shape
    assert all(torch.equal(before[k], synthetic.server["w"][k]) for k in before)


def test_methods_without_labels_have_one_cluster_or_one_per_agent(ragged):
    assert ff.fit(ff.FedAvg(), ragged, rounds=1).clusters.tolist() == [0] * 5
    alone = ff.fit(ff.Local(), ragged, rounds=1)
    assert alone.clusters.tolist() == [0, 1, 2, 3, 4] and alone.pi is None


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([[float("nan")] * 6], [0], "NaN"),
        ([[0.0] * 5], [0], r"shape \[5\]"),
        ([[0.0] * 6], [7], "label 7"),
        ([[0.0] * 6], [0.5], "label"),
        (torch.zeros(0, 6), torch.zeros(0, dtype=torch.long), "example"),
    ],
)
def test_a_newcomers_data_are_checked(ragged, x, y, expected):
    result = ff.fit(ff.Focus(M=2), ragged, rounds=1)
    with pytest.raises(InputError, match=expected):
        result.assign(x, y)


def test_examples_to_predict_are_checked(ragged):
    result = ff.fit(ff.FedAvg(), ragged, rounds=1)
    x = ragged.test(0).x.numpy()
    assert torch.allclose(result.predict(0, x[::-1]), result.predict(0, x).flip(0), atol=1e-6)
    for wrong, expected in ((x[0], "^x: "), (x[:, :3], r"\[3\].*\[6\]")):
        with pytest.raises(InputError, match=expected):
            result.predict(0, wrong)


def test_an_agent_that_does_not_exist_is_refused(ragged):
    with pytest.raises(InputError, match="agent = 5"):
        ff.fit(ff.FedAvg(), ragged, rounds=1).predict(5, ragged.test(0).x)


def test_more_clusters_than_agents_is_allowed_with_a_note(ragged):
    with pytest.warns(UserWarning, match="M = 7 .* 5 agents"):
        result = ff.fit(ff.Focus(M=7), ragged, rounds=2)
    assert result.pi.shape == (5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ff.fit(ff.Focus(M=5), ragged, rounds=1)


def test_training_starts_from_the_weights_of_a_given_module(ragged):
    network = torch.nn.Sequential(torch.nn.Linear(6, 3))
    tiny = ff.Train(lr=1e-9, steps=1)
    result = ff.fit(ff.FedAvg(), ragged, model=network, rounds=1, train=tiny, seed=5)
    assert torch.allclose(result.server["w"]["0.weight"][0], network[0].weight.detach(), atol=1e-6)

"""Networks by name are those that one would write by hand for the data."""

import sys

import pytest
import torch
from helpers.federations import make_ragged

import focusfl as ff
from focusfl.models.named import named_network
from focusfl.run.experiment import Experiment
from focusfl.util.errors import InputError


@pytest.mark.parametrize(
    ("text", "shape", "by_hand"),
    [
        ("mlp:5,4", [2, 3], lambda: ff.models.mlp(6, 5, 4, 3)),
        ("skip-mlp:5,4", [2, 3], lambda: ff.models.SkipMlp(6, 5, 4, 3)),
        ("linear", [6], lambda: ff.models.linear(6, 3, bias=True)),
        ("resnet18:4", [1, 8, 8], lambda: ff.models.resnet18(3, 4, 1)),
        ("resnet18", [3, 8, 8], lambda: ff.models.resnet18(3)),
    ],
)
def test_inputs_and_outputs_come_from_the_data(text, shape, by_hand):
    made = named_network(text, shape, 3)()
    assert repr(made) == repr(by_hand())
    assert made.eval()(torch.zeros(2, *shape)).shape == (2, 3)


@pytest.mark.parametrize(
    "text", ["mlp:", "mlp:-3", "mlp:a", "mlp:3,,4", "linear:4", "resnet18:4,4", "", ":", "mlp 3"]
)
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match="model = "):
        named_network(text, [1, 8, 8], 3)


def test_fit_and_an_experiment_take_a_network_by_name():
    fed = make_ragged()
    named = ff.fit(ff.FedAvg(), fed, model="mlp:7", rounds=2, bayes="none")
    by_hand = ff.fit(ff.FedAvg(), fed, model=lambda: ff.models.mlp(6, 7, 3), rounds=2, bayes="none")
    assert torch.equal(named.loss, by_hand.loss)

    raw = {"data": "synthetic", "algorithms": ["fedavg"], "rounds": 1}
    plain, other = Experiment.parse(raw), Experiment.parse(raw | {"model": "mlp:7"})
    assert "model" not in plain.model_dump() and other.model_dump()["model"] == "mlp:7"
    assert plain.setups(0)["fedavg"].fingerprint != other.setups(0)["fedavg"].fingerprint
    assert Experiment.model_validate(other.model_dump()).model == "mlp:7"


def test_a_network_named_by_its_module_is_found_again_when_its_model_is_loaded(tmp_path, monkeypatch):
    network = "nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))"
    code = f"from torch import nn\n\ndef make():\n    return {network}\n"
    (tmp_path / "named_by_module.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    fed = make_ragged()
    result = ff.fit(ff.FedAvg(), fed, model="named_by_module:make", rounds=1, bayes="none")
    result.save("model")
    monkeypatch.delitem(sys.modules, "named_by_module")
    with pytest.raises(InputError, match=r"named_by_module:make.*allow_code"):
        ff.load("model")
    x = fed.test(0).x
    assert torch.equal(ff.load("model", allow_code=True).predict(0, x), result.predict(0, x))
    monkeypatch.delitem(sys.modules, "named_by_module")


def test_a_skip_mlp_starts_at_0_and_learns_its_layers_more_slowly():
    """The first predictions are 0; of an output bias b of the layers the share LAYERS counts."""
    torch.manual_seed(3)
    network, x = ff.models.SkipMlp(4, 8, 3), torch.randn(5, 4)
    assert torch.equal(network(x), torch.zeros(5, 3))
    with torch.no_grad():
        network.layers[-1].bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
        network.skip.weight.fill_(1.0)
    assert torch.allclose(network(x), x.sum(1, keepdim=True) + 0.3 * torch.tensor([1.0, 2.0, 3.0]))

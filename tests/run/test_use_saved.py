"""Use of a saved model, from Python and the command line: what a person who has only the docs would try."""

import pytest
import torch
from helpers.hospitals import train_hospitals

import focusfl as ff


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return train_hospitals(tmp_path_factory.mktemp("data") / "hospitals")


@pytest.fixture(scope="module")
def saved(result, tmp_path_factory):
    return result.save(tmp_path_factory.mktemp("saved") / "model")


def test_test_data_goes_into_predict_as_it_is(result, saved):
    """The accuracy of predict on fed.test is that of the run, although the network takes scaled values."""
    model, fed = ff.load(saved), result.setup.fed
    for e, name in enumerate(fed.agents):
        x, y = fed.test(e)
        right = (model.predict(name, x).argmax(1) == y).float().mean()
        assert float(right) == pytest.approx(float(result.acc[e]))
        assert torch.allclose(fed.scaled(x), fed.testing.of(e).x, atol=1e-5)
    assert 100 < float(fed.train(0).x[:, 1].mean()) < 140  # pressures, as in the file


def test_raw_values_are_those_of_the_files(result, tmp_path):
    scaled = train_hospitals(tmp_path / "h").setup.fed
    raw = ff.data.folder(tmp_path / "h", label="diagnosis")
    for e in range(raw.E):
        for a, b in ((raw.train(e), scaled.train(e)), (raw.test(e), scaled.test(e))):
            assert torch.allclose(a.x, b.x, rtol=2e-7, atol=0) and torch.equal(a.y, b.y)


def test_all_files_of_a_model_may_be_read_by_the_same_people(saved, tmp_path):
    exported = ff.load(saved).export("bern", "safetensors", tmp_path / "bern.safetensors")
    (tmp_path / "plain").touch()
    modes = {path.stat().st_mode for path in [*saved.iterdir(), exported, tmp_path / "plain"]}
    assert len(modes) == 1

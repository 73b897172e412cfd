"""Experiments: options of the file against those of the data set's recipe."""

import pytest

from focusfl.core.train import Train
from focusfl.run.experiment import Experiment


@pytest.mark.parametrize(
    "train, steps, epochs",
    [({}, 10, 2), ({"steps": 20}, 20, None), ({"steps": 20, "epochs": 3}, 20, 3), ({"lr": 0.5}, 10, 2)],
)
def test_steps_in_the_file_replace_the_epochs_of_the_recipe(train, steps, epochs):
    experiment = Experiment.parse({"data": "rotated-cifar", "algorithms": ["fedavg"], "train": train})
    found = experiment.train_options(Train(epochs=2, batch=100))
    assert (found.steps, found.epochs, found.batch) == (steps, epochs, 100)


def test_the_data_give_the_number_of_clusters_for_every_start():
    raw = {"name": "x", "algorithms": ["focus"], "data": "rotated-digits", "rounds": 1, "focus": {"init": "tied"}}
    setup = Experiment.parse(raw).setups(0)["focus"]
    assert setup.algorithm.M == 3  # upright, and turned by 90 and by 180 degrees

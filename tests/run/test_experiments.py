"""What an experiment's file says against what the data bring along."""

import pytest

from focusfl.core.train import Train
from focusfl.run.experiment import Experiment


@pytest.mark.parametrize(
    "said, steps, epochs",
    [({}, 10, 2), ({"steps": 20}, 20, None), ({"steps": 20, "epochs": 3}, 20, 3), ({"lr": 0.5}, 10, 2)],
)
def test_steps_that_are_said_replace_the_epochs_of_the_data(said, steps, epochs):
    experiment = Experiment.parse({"data": "rotated-cifar", "algorithms": ["fedavg"], "train": said})
    found = experiment.train_options(Train(epochs=2, batch=100))
    assert (found.steps, found.epochs, found.batch) == (steps, epochs, 100)


def test_the_number_of_clusters_may_be_left_to_the_data_from_every_start():
    said = {"name": "x", "algorithms": ["focus"], "data": "rotated-digits", "rounds": 1, "focus": {"init": "tied"}}
    setup = Experiment.parse(said).setups(0)["focus"]
    assert setup.algorithm.M == 3  # upright, and turned by 90 and by 180 degrees

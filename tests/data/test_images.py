"""Rotated images: their distribution, MNIST and CIFAR-10 as in the paper, ResNet-18."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.data import need

import focusfl as ff
from focusfl.data.sets.rotated import distribute_rotated
from focusfl.run.loop import run
from focusfl.run.setup import Setup
from focusfl.util.errors import InputError

# --- distribution, tested on images that carry their number


def numbered(N=60):
    """Image i is i in its top left corner and 0 elsewhere."""
    x = np.zeros((N, 4, 4), dtype=np.uint8)
    x[:, 0, 0] = np.arange(N)
    return x, np.arange(N) % 7


CORNER = {0: (0, 0), 1: (3, 0), 2: (3, 3), 3: (0, 3)}  # where it is after k quarter turns, anticlockwise


def held(rows, e):
    """(image number, its turn) of agent e's images."""
    out = []
    for image in rows.of(e).x:
        at = tuple(int(v) for v in (image > 0).nonzero()[0])
        turn = next(k for k, corner in CORNER.items() if corner == at)
        out.append((round(image.max().item() * 255), turn))
    return out


def test_every_image_is_in_exactly_one_agent_rotated_as_specified():
    x, y = numbered()
    x[0, 0, 0] = 200  # so that no image is all black
    rows = distribute_rotated(x, y, [0, 1, 2, 3], np.random.default_rng(0))
    found = [pair for e in range(4) for pair in held(rows, e)]
    assert sorted(number for number, _ in found) == [*range(1, 60), 200]
    assert all(turn == e for e in range(4) for _, turn in held(rows, e))
    labels = {
        number: label for e in range(4) for (number, _), label in zip(held(rows, e), rows.of(e).y, strict=True)
    }
    assert all(labels[number].item() == number % 7 for number in range(1, 60))


def test_scenario_two_mixes_80_10_10():
    x, y = numbered()
    x[0, 0, 0] = 200
    rows = distribute_rotated(x, y, [0, 1, 2], np.random.default_rng(0), mix=0.8)
    for e in range(3):
        turns = [turn for _, turn in held(rows, e)]
        assert turns.count(e) == 16 and all(turns.count(k) == 2 for k in range(3) if k != e)


def test_no_more_images_than_there_are():
    x, y = numbered()
    assert distribute_rotated(x, y, [0, 0], np.random.default_rng(0), n=5).sizes.tolist() == [5, 5]
    with pytest.raises(InputError, match=r"data.n = 31.* 30 "):
        distribute_rotated(x, y, [0, 0], np.random.default_rng(0), n=31)


# --- MNIST


@pytest.fixture(scope="module")
def mnist():
    need("mnist")
    return ff.data.rotated_mnist


def test_rotated_mnist_is_the_papers(mnist):
    fed = mnist(seed=0)
    assert fed.E == 10 and fed.training.sizes.tolist() == [6000] * 10 and fed.testing.sizes.tolist() == [1000] * 10
    assert fed.clusters.tolist() == [0] * 7 + [1, 1, 2]
    network = fed.recipe.model()
    assert sum(p.numel() for p in network.parameters()) == 784 * 200 + 200 + 200 * 10 + 10
    # every image once: the pixels add up to those of the raw files
    raw = need("mnist")
    assert fed.training.x.double().sum().item() * 255 == pytest.approx(float(raw["train_x"].sum()), rel=1e-6)
    assert torch.bincount(fed.training.y).tolist() == np.bincount(raw["train_y"]).tolist()
    assert fed.recipe.rounds == 300 and fed.recipe.train == ff.Train(lr=0.1, steps=10)


@pytest.mark.parametrize(("k", "clusters"), [(1, [9, 1]), (3, [7, 2, 1]), (5, [5, 2, 2, 1])])
def test_k_outliers(mnist, k, clusters):
    assert mnist(outliers=k, n=10, n_test=10).clusters.bincount().tolist() == clusters


def test_a_hundred_agents(mnist):
    fed = mnist(E=100)
    assert fed.clusters.bincount().tolist() == [70, 20, 10] and set(fed.training.sizes.tolist()) == {600}


def test_mnist_options_out_of_range(mnist):
    for options, message in (({"E": 7}, "data.E"), ({"outliers": 2}, "data.outliers"), ({"mix": 0.0}, "data.mix")):
        with pytest.raises(InputError, match=message):
            mnist(**options)


def test_focus_learns_on_real_mnist(mnist):
    fed = mnist(n=300, n_test=100)
    setup = Setup.of(ff.Focus(M=3), fed, 8)
    losses = [done.scores.loss.mean().item() for done in run(setup)]
    assert losses[-1] < 0.75 * losses[0] and setup.engine.name == "serial"


def test_a_hundred_agents_and_a_round_fit_into_a_gigabyte(mnist):
    code = (
        "import focusfl as ff; from pathlib import Path; from focusfl.run.loop import run;"
        "from focusfl.run.setup import Setup;"
        "fed = ff.data.rotated_mnist(E=100);"
        "next(run(Setup.of(ff.FedAvg(), fed, 1)));"
        "status = Path('/proc/self/status').read_text().split();"
        "print(status[status.index('VmHWM:') + 1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert int(done.stdout) < 1_000_000  # KiB


# --- CIFAR-10 and ResNet-18


def test_resnet18_has_the_known_number_of_parameters():
    network = ff.models.resnet18()
    assert sum(p.numel() for p in network.parameters()) == 11_173_962
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_rotated_cifar_is_the_papers():
    need("cifar10")
    fed = ff.data.rotated_cifar(seed=0, n=200, n_test=50)
    assert fed.clusters.tolist() == [0] * 7 + [1] * 3 and fed.training.x.shape[1:] == (3, 32, 32)
    assert fed.recipe.train == ff.Train(lr=0.1, batch=100, epochs=2) and fed.recipe.rounds == 300
    # normalised by channel: 2,000 images give mean 0 and deviation 1 to about 0.01
    assert fed.training.x.mean((0, 2, 3)).abs().max() < 0.06
    assert (fed.training.x.std((0, 2, 3)) - 1).abs().max() < 0.06


@pytest.mark.parametrize("algorithm", [ff.Focus(M=2), ff.FedAvg()], ids=lambda a: a.name)
def test_a_narrow_resnet_learns_and_resumes_on_a_cifar_slice(algorithm, tmp_path):
    need("cifar10")
    fed = ff.data.rotated_cifar(E=2, outliers=1, n=200, n_test=100, width=16)
    train = ff.Train(lr=0.05, batch=20, epochs=2)

    def setup(**options):
        return Setup.of(algorithm, fed, 3, train=train, **options)

    whole = [done.scores.loss.mean().item() for done in run(setup(checkpoint_every=2), tmp_path)]
    assert setup().engine.name == "serial" and whole[-1] < 0.95 * whole[0]
    *_, last = run(setup(), tmp_path, resume=True)
    assert last.t == 3 and last.scores.loss.mean().item() == whole[-1]


@pytest.mark.parametrize("width", [2, 6])
def test_narrow_convolutions_do_not_crash(width):
    """With channels innermost, torch's convolutions of fewer than eight channels write out of bounds and crash."""
    program = f"""
import torch, focusfl as ff
from focusfl.models import resnet18
agents = [(torch.randn(30, 3, 32, 32), torch.arange(30) % 10) for _ in range(2)]
fed = ff.Federation.from_agents(agents, test=agents, model=lambda: resnet18(10, {width}))
ff.fit(ff.FedAvg(), fed, rounds=2, train=ff.Train(lr=0.01, batch=15, epochs=1), bayes="agent")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

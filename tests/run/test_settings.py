"""Settings: every option is defined once, and can be set from Python, in TOML and in Flower's run configuration."""

import dataclasses
import inspect
import tomllib
import warnings

import pytest

import focusfl as ff
from focusfl.run import fit as fit_module
from focusfl.run.experiment import SETTINGS, Experiment
from focusfl.util.errors import InputError

VALUES = {  # of every option, one that is not its default
    "rounds": 3,
    "train": ff.Train(lr=0.2, steps=2),
    "seed": 5,
    "engine": "serial",
    "fraction": 0.5,
    "device": "auto",
    "precision": "bf16",
    "joins": {1: 2},
    "leaves": {0: 3},
    "bayes": "agent",
    "eval_every": 2,
    "checkpoint_every": 3,
    "secure": True,
    "minimum": 2,
    "timeout": 9.0,
    "wait": 1.0,
    "loss": "huber",
    "metrics": ("mae", "r2"),
    "validation": 0.25,
    "patience": 2,
}
ON_FLOWER = {"rounds", "train", "seed", "fraction", "bayes", "eval_every", "secure", "minimum", "timeout", "wait"}
ON_FLOWER |= {"loss", "metrics", "validation", "patience"}
OPTIONS = [f.name for f in dataclasses.fields(ff.Settings) if f.init]
PLAIN = {"data": "synthetic", "algorithms": ["fedavg"]}
NEEDED = {"patience": {"validation": 0.2}}  # what an option cannot do without
each_option = pytest.mark.parametrize("name", OPTIONS)


def test_every_option_has_a_value_here_that_is_not_its_default():
    assert list(VALUES) == OPTIONS
    assert all(getattr(ff.Settings(), name) != value for name, value in VALUES.items())


@pytest.fixture
def settings_of_fit(monkeypatch):
    """Calls ff.fit, without training; gives the settings of its run."""
    monkeypatch.setattr(fit_module, "train_and_judge", lambda setup, *_, **__: setup)

    def call(**options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on processors without bfloat16 support
            return ff.fit(ff.FedAvg(), ff.data.synthetic(), **options).settings

    return call


@each_option
def test_fit_takes_every_option_one_by_one_or_all_at_once(name, settings_of_fit):
    options = {"rounds": 4, name: VALUES[name]} | NEEDED.get(name, {})
    assert getattr(settings_of_fit(**options), name) == VALUES[name]
    assert settings_of_fit(settings=ff.Settings(**options)) == settings_of_fit(**options)


@each_option
def test_the_signature_of_fit_shows_every_option_with_its_default(name):
    parameter = inspect.signature(ff.fit).parameters[name]
    assert parameter.kind is parameter.KEYWORD_ONLY
    assert parameter.default == inspect.signature(ff.Settings).parameters[name].default


@each_option
def test_an_experiment_in_toml_takes_every_option(name):
    document = {
        "seed": "seeds = [5]",
        "train": "train = { lr = 0.2, steps = 2 }",
        "joins": "joins = { 1 = 2 }",
        "leaves": "leaves = { 0 = 3 }",
        "secure": "secure = true",
        "metrics": 'metrics = ["mae", "r2"]',
    }.get(name, f"{name} = {VALUES[name]!r}")
    options = {"engine": "serial"} if name == "precision" else NEEDED.get(name, {})
    experiment = Experiment.parse({"rounds": 4, **options, **PLAIN, **tomllib.loads(document)})
    setup = experiment.setups(experiment.seeds[0])["fedavg"]
    if name == "train":  # what the file does not name, the data set's recipe does
        assert (setup.settings.local.lr, setup.settings.local.steps) == (0.2, 2)
    else:
        assert getattr(setup.settings, name) == VALUES[name]


def test_an_experiment_has_the_defaults_of_settings_and_survives_json():
    assert Experiment.parse(PLAIN).settings == ff.Settings()
    options = {name: VALUES[name] for name in SETTINGS}
    experiment = Experiment.parse(PLAIN | options)
    assert experiment.settings == ff.Settings(**options)
    assert Experiment.model_validate_json(experiment.model_dump_json()) == experiment
    changed = experiment.with_settings(precision="float32")
    assert changed.settings == dataclasses.replace(experiment.settings, precision="float32")


@each_option
def test_a_run_configuration_of_flower_takes_its_options_and_refuses_the_others(name):
    pytest.importorskip("flwr")
    from focusfl.flower.apps.configured import RunConfig

    base = {"data.name": "synthetic", "algorithm": "fedavg"}
    default = RunConfig(base).settings
    if name not in ON_FLOWER:
        with pytest.raises(InputError, match=name.replace("_", "-")):
            RunConfig(base | {name.replace("_", "-"): VALUES[name]})
        assert getattr(default, name) == getattr(ff.Settings(), name)
    elif name == "train":
        train = RunConfig(base | {"train.lr": 0.2, "train.steps": 2}).settings.local
        assert (train.lr, train.steps) == (0.2, 2) != (default.local.lr, default.local.steps)
    else:
        key = {"bayes": "best"}.get(name, name.replace("_", "-"))
        value = ",".join(VALUES[name]) if name == "metrics" else VALUES[name]
        assert getattr(RunConfig(base | NEEDED.get(name, {}) | {key: value}).settings, name) == VALUES[name]
        # rounds and validation are the recipe's; bayes is "agent", as an agent's best loss can be computed there
        if name not in ("rounds", "validation", "bayes"):
            assert getattr(default, name) == getattr(ff.Settings(), name)


def test_an_unknown_option_is_refused_with_the_nearest_one(ragged):
    with pytest.raises(InputError, match=r"'eval_evry'.*did you mean 'eval_every'"):
        ff.fit(ff.FedAvg(), ragged, eval_evry=2)
    with pytest.raises(InputError, match=r"mine.toml: .*'checkpoint_evry'.*did you mean 'checkpoint_every'"):
        Experiment.parse(PLAIN | {"checkpoint_evry": 2}, "mine.toml")
    with pytest.raises(InputError, match=r"'fractoin'.*did you mean 'fraction'"):
        Experiment.parse(PLAIN).with_settings(fractoin=0.5)


def test_an_unknown_key_of_a_run_configuration_is_refused_with_the_nearest_one():
    pytest.importorskip("flwr")
    from focusfl.flower.apps.configured import RunConfig

    with pytest.raises(InputError, match=r"eval-evry.*did you mean 'eval-every'"):
        RunConfig({"data.name": "synthetic", "eval-evry": 2})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(
            ("rounds", 0),
            ("seed", -1),
            ("fraction", 0),
            ("precision", "half"),
            ("bayes", "best"),
            ("eval_every", 0),
        ),
        *(("checkpoint_every", 0), ("minimum", -1), ("timeout", 0), ("wait", -1)),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value, ragged):
    with pytest.raises(InputError, match=f"{name} = "):
        ff.fit(ff.FedAvg(), ragged, **{name: value})
    if name in SETTINGS:
        with pytest.raises(InputError, match=f"mine.toml: {name} = "):
            Experiment.parse(PLAIN | {name: value}, "mine.toml")

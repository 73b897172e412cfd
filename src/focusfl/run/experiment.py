"""Experiments as data: a typed description, read from TOML or from the command line. Unknown keys are errors."""

from __future__ import annotations

import inspect
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    create_model,
    model_serializer,
    model_validator,
)

from focusfl.algorithms import ALGORITHMS, PRESETS, Adapted, find_method, split_method, with_common_weights
from focusfl.core import Algorithm
from focusfl.core.train import Train
from focusfl.data import find_data
from focusfl.data.federation import Federation
from focusfl.data.shift import SHIFTS
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from focusfl.util.errors import CannotRun, InputError, nearest

Seed = Annotated[int, Field(ge=0)]
Table = dict[str, Any]
SETTINGS = [f.name for f in fields(Settings) if f.init and f.name not in ("seed", "train")]  # keys in TOML
OMITTED_DEFAULTS = (
    "joins",
    "leaves",
    "secure",
    "minimum",
    "timeout",
    "wait",
    "loss",
    "metrics",
    "validation",
    "patience",
)
"""Settings that experiment.json has only if they are set: in folders of older versions these keys are missing."""


class Experiment(BaseModel):
    """Several methods, each with several seeds, on one data set.

    Attributes:
        name: Names the default folder of the results.
        description: One sentence for `focusfl list experiments`.
        data: The data set's `name` and options.
        algorithms: Names such as "focus" or "qffl:q=0.1", or only "all".
        leave_out_failing: Leave out methods that cannot run or diverge, instead of stopping; with "all" always so.
        seeds: Every method runs once per seed.
        settings: Options of every run, except its seed. In TOML their keys are at the top level.
        model: A network by name, such as "mlp:64,32" (models.named); "" is that of the data set's recipe.
        train: Options of local training that replace those of the data set's recipe.
        shift: Changes to the data, applied in order: each has a `kind` and its options (focusfl.data.shift).
        params: Options of the methods, by name. In TOML each method has a table of its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: str = "compare"
    description: str = ""
    data: Table
    algorithms: list[str] = Field(min_length=1)
    leave_out_failing: bool = False
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    settings: InstanceOf[Settings] = Settings()
    model: str = ""
    train: Table = {}
    shift: list[Table] = []
    params: dict[str, Table] = {}

    @model_validator(mode="before")
    @classmethod
    def _collect_settings(cls, raw: Table) -> Table:
        """Collect the settings, whose keys are at the top level in TOML and experiment.json, in one object."""
        if not isinstance(raw, dict) or "settings" in raw:
            return raw
        options = {k: v for k, v in raw.items() if k in SETTINGS}
        others = {k: v for k, v in raw.items() if k not in SETTINGS}
        settings = Settings(**_typed("", Settings, options))
        _require_names(settings)
        return {**others, "settings": settings}

    @model_serializer
    def _serialise(self) -> Table:
        """Serialise as in TOML, with the settings at the top level."""
        head = {k: getattr(self, k) for k in ("name", "description", "data", "algorithms", "seeds")}
        options = {k: getattr(self.settings, k) for k in SETTINGS}
        default = Settings()
        for k in OMITTED_DEFAULTS:
            if options[k] == getattr(default, k):
                del options[k]
        model = {"model": self.model} if self.model else {}  # older folders have none of these two
        lenient = {"leave_out_failing": True} if self.leave_out_failing else {}
        return head | lenient | model | options | {"train": self.train, "shift": self.shift, "params": self.params}

    def with_settings(self, **options: Any) -> Experiment:
        """Return the same experiment with other settings.

        Args:
            **options: Fields of `Settings`.

        Raises:
            InputError: If an option is unknown or its value is out of range.
        """
        settings = self.settings.updated(**options)
        _require_names(settings)
        return self.model_copy(update={"settings": settings})

    @staticmethod
    def parse(raw: Mapping[str, Any], where: str = "") -> Experiment:
        """Read an experiment from a TOML document and check every name and value in it.

        Args:
            raw: The document.
            where: Precedes the messages of errors, for example the file's name.

        Raises:
            InputError: If a key is unknown or a value cannot be used.
        """
        if isinstance(raw.get("algorithms"), str):  # --set algorithms=focus,fedavg
            raw = {**raw, "algorithms": split_list(raw["algorithms"])}
        written = raw.get("algorithms")
        named = [split_method(m)[0] for m in written if isinstance(m, str)] if isinstance(written, list) else []
        methods = {*ALGORITHMS, *PRESETS, *named} - {"all"}
        keys = {*Experiment.model_fields, *SETTINGS, *methods} - {"params", "settings"}
        params = {k: v for k, v in raw.items() if k in methods}
        body = {k: v for k, v in raw.items() if k not in methods}
        if isinstance(body.get("data"), str):
            body["data"] = {"name": body["data"]}
        try:
            experiment: Experiment = _validated("", partial(Experiment, params=params), body, keys)
            for key, values in (("algorithms", experiment.algorithms), ("seeds", experiment.seeds)):
                if len(set(values)) < len(values):
                    raise InputError(f"{key} = {values}: name each one once")
            if "all" in experiment.algorithms and len(experiment.algorithms) > 1:
                raise InputError(f'algorithms = {experiment.algorithms}: "all" cannot be combined with names')
            for method in dict.fromkeys([*experiment.methods, *params]):
                experiment.algorithm(method, clusters=2)  # any number: the data may know the true one
            experiment._data_functions()
            experiment.train_options()
        except InputError as error:
            raise InputError(f"{where}: {error}" if where else str(error)) from error
        return experiment

    @property
    def methods(self) -> list[str]:
        """The names of the algorithms; "all" is replaced by every name."""
        return list(ALGORITHMS) if self.algorithms == ["all"] else self.algorithms

    @property
    def leaves_out(self) -> bool:
        """Whether methods that cannot run or diverge are left out."""
        return self.leave_out_failing or self.algorithms == ["all"]

    def algorithm(self, method: str, clusters: int | None = None) -> Algorithm:
        """Return a method with its options: those of its table, then those after its name.

        Args:
            method: A name, with options after colons: "qffl:q=0.1", "my_module:MyMethod:lam=0.5".
            clusters: Number of true clusters, if it is known: the default of the option M.

        Raises:
            InputError: If the name or an option is unknown, or a value cannot be used.
        """
        name, changes = split_method(method)
        make = find_method(name)
        options = apply_changes(dict(self.params.get(name, {})), changes, method)
        adapts = "adapt" in options and "adapt" not in inspect.signature(make).parameters and options.pop("adapt")
        if not isinstance(adapts, bool):
            raise InputError(f"{name}.adapt = {adapts!r}: expected true or false")
        if clusters is not None and "M" in inspect.signature(make).parameters:
            options.setdefault("M", clusters)
        algorithm = make(**_typed(name, make, options))
        return Adapted(algorithm) if adapts else algorithm

    def train_options(self, base: Train | None = None) -> Train:
        """Return the options of local training.

        Args:
            base: The data set's recipe, which the experiment's own options change.
        """
        options = _typed("train", Train, self.train)
        if "steps" in options:  # they replace the epochs of the recipe
            options = {"epochs": None, **options}
        return replace(base or Train(), **options)

    def federation(self, seed: int) -> Federation:
        """Make the data and apply the shifts.

        Args:
            seed: The seed of the data, and of every shift without its own `seed`.
        """
        functions = [_seeded(f, seed) for f in self._data_functions()]
        fed = functions[0]()
        for shift in functions[1:]:
            fed = shift(fed)
        return fed

    def _data_functions(self) -> list[partial[Federation]]:
        """Return the function that makes the data and those that shift it, each with its checked options."""
        functions: list[partial[Federation]] = []
        for table in [self.data, *self.shift]:
            where, key, find = ("shift", "kind", _find_shift) if functions else ("data", "name", find_data)
            name, options = str(table.get(key)), {k: v for k, v in table.items() if k != key}
            make = find(name)
            functions.append(partial(make, **_typed(where, make, options)))
        return functions

    def setups(self, seed: int) -> dict[str, Setup | CannotRun]:
        """Return one run per method, all on the same data.

        Args:
            seed: The seed of the data and of every run.

        Returns:
            For each method its run. If it `leaves_out`, a method that cannot run has the reason instead.

        Raises:
            CannotRun: If a method that was named does not apply to the data or the model.
        """
        fed = self.federation(seed)
        clusters = None if fed.clusters is None else len(fed.clusters.unique())
        fed = replace(fed, recipe=replace(fed.recipe, train=self.train_options(fed.recipe.train)))
        settings = self.settings.updated(seed=seed)
        fed = fed.with_validation(settings.updated(fed.recipe).validation, seed)  # once for all methods
        setups: dict[str, Setup | CannotRun] = {}
        algorithms = with_common_weights([self.algorithm(method, clusters) for method in self.methods])
        for method, algorithm in zip(self.methods, algorithms, strict=True):
            try:
                setups[method] = Setup.of(algorithm, fed, model=self.model or None, settings=settings)
            except CannotRun as reason:
                if not self.leaves_out:
                    raise
                setups[method] = reason
        return setups


def _require_names(settings: Settings) -> None:
    """Refuse functions: an experiment is stored as text, by which it is recognised when it is resumed."""
    if settings.loss is not None and not isinstance(settings.loss, str):
        raise InputError("loss: an experiment needs the name of a loss; a torch loss is for ff.fit")
    if isinstance(settings.metrics, Mapping):
        raise InputError("metrics: an experiment needs names of metrics; functions are for ff.fit")


def load(path: Path, changes: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a TOML file.

    Args:
        path: The file.
        changes: `key=value` changes to it (see `apply_changes`).

    Raises:
        InputError: If the file cannot be read or used; the message names the file and the key.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except (ValueError, RecursionError) as error:  # also a number of 5,000 digits, and brackets without end
        raise InputError(f"{path}: not TOML: {error}") from error
    return Experiment.parse(apply_changes(raw, changes), str(path))


def apply_changes(raw: Table, changes: Iterable[str], where: str = "--set") -> Table:
    """Change a TOML document in place, as `--set key=value` does.

    Args:
        raw: The document.
        changes: Keys may have dots; values are TOML, and a word without quotes is text.
        where: Precedes the messages of errors.

    Returns:
        The same document.

    Raises:
        InputError: If a change is not of the form key=value, or a part of its key is not a table.

    Example:
        >>> apply_changes({"focus": {"M": 3}}, ["focus.M=2", "engine=serial", "data.sigma=[0.1, 0.2]"])
        {'focus': {'M': 2}, 'engine': 'serial', 'data': {'sigma': [0.1, 0.2]}}
    """
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip() or "\n" in change:
            raise InputError(f"{where} {change}: expected key=value, for example focus.M=2")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where} {change[:40]}...: not TOML: {error}") from error
        *path, last = key_parts(key.strip())
        table = raw
        for part in path:
            if isinstance(table.get(part), str):  # data = "name"
                table[part] = {"name": table[part]}
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise InputError(f"{where} {change}: {part} is not a table")
        table[last] = value
    return raw


def split_list(text: str) -> list[str]:
    """Split at the commas that are not within brackets.

    >>> split_list("focus, hardcluster:clusters=[0,0,1]")
    ['focus', 'hardcluster:clusters=[0,0,1]']
    """
    return [name.strip() for name in re.split(r",(?![^\[]*\])", text) if name.strip()]


def key_parts(key: str) -> list[str]:
    """Split a key at its dots, except those of a module's name.

    >>> key_parts("focus.M"), key_parts("my_package.methods:MyMethod.lam")
    (['focus', 'M'], ['my_package.methods:MyMethod', 'lam'])
    """
    module, colon, rest = key.rpartition(":")
    first, *others = rest.split(".")
    return [f"{module}{colon}{first}", *others]


def find(name: str) -> Path:
    """Return the file of an experiment.

    Args:
        name: The path of a TOML file, or a name in `catalogue()`.

    Raises:
        InputError: If there is no such file or name.
    """
    known = catalogue()
    if name in known:
        return known[name]
    if name.endswith(".toml") or "/" in name:
        if not Path(name).is_file():
            raise InputError(f"{name}: no such file")
        return Path(name)
    raise InputError(f"unknown experiment {name!r}: {nearest(name, known)}")


def catalogue() -> dict[str, Path]:
    """Return the experiments by name: those of the package, and those in ./experiments, which take precedence."""
    package = Path(__file__).parents[1]
    folders = [package / "_experiments", package.parents[1] / "experiments", Path("experiments")]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def _find_shift(kind: str) -> Callable[..., Federation]:
    if kind not in SHIFTS:
        raise InputError(f"unknown shift {kind!r}: {nearest(kind, SHIFTS)}")
    return SHIFTS[kind]


def _seeded(make: partial[Federation], seed: int) -> partial[Federation]:
    """Return the function with the seed, unless it has one or takes none."""
    takes_seed = "seed" in inspect.signature(make.func).parameters
    return partial(make, seed=seed) if takes_seed and "seed" not in make.keywords else make


def _typed(where: str, target: Any, options: Table) -> Table:
    """Check options against the parameters of a dataclass or function, and return them with its types.

    A parameter `fed` is not an option: it is the federation that a shift changes. The seed may be left out: it is
    that of the run. A function of the user's own may lack types.
    """
    if not isinstance(options, dict):
        raise InputError(f"{where} = {options!r}: expected a table of options")
    hints = typing.get_type_hints(target if inspect.isclass(target) else getattr(target, "__func__", target))
    fields: Table = {
        name: (hints.get(name, Any), ... if parameter.default is parameter.empty and name != "seed" else None)
        for name, parameter in inspect.signature(target).parameters.items()
        if name != "fed" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    config = ConfigDict(arbitrary_types_allowed=True)
    checked = _validated(where, create_model(where, __config__=config, **fields), options, fields)
    return {k: getattr(checked, k) for k in options}


def _validated(where: str, model: Callable[..., Any], options: Table, known: Iterable[str]) -> Any:
    """Build a pydantic model; unknown keys and values that do not fit become an InputError that names the key."""
    names = set(known)
    for key in options:
        if key not in names:
            place = f"{where}.{key}" if where else key
            raise InputError(f"unknown key {place!r}: {nearest(key, names)}")
    try:
        return model(**options)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InputError):  # raised by Settings, which names its options itself
            raise cause from error
        name, *within = first["loc"]  # within: places in a list, and which of several types was tried
        if name == "params":  # in TOML, a table of the method's name
            name, *within = within
        path = [where] * bool(where) + [name] + [part for part in within if isinstance(part, int)]
        key = ".".join(map(str, path))
        if first["type"] == "missing":
            raise InputError(f"{key} is missing") from error
        raise InputError(f"{key} = {first['input']!r}: {first['msg']}") from error

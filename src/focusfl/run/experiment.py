"""Experiments are data: a typed description, from TOML or from the command line. An unknown key is an error."""

from __future__ import annotations

import dataclasses
import inspect
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
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

from focusfl.algorithms import ALGORITHMS, PRESETS
from focusfl.core import Algorithm
from focusfl.core.train import Train
from focusfl.data import DATA
from focusfl.data.federation import Federation
from focusfl.data.shift import SHIFTS
from focusfl.run.settings import Settings
from focusfl.run.setup import Setup
from focusfl.util.errors import CannotRun, InputError, nearest

Seed = Annotated[int, Field(ge=0)]
Table = dict[str, Any]
SETTINGS = [f.name for f in dataclasses.fields(Settings) if f.name not in ("seed", "train")]
LATER = ("joins", "leaves", "secure", "minimum", "timeout", "wait")  # settings that release 0.1 did not write


class Experiment(BaseModel):
    """Methods x seeds on one data set. Options of a method stand in a table of its name."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    name: str = "compare"
    description: str = ""
    data: Table
    algorithms: list[str] = Field(min_length=1)  # names, "qffl:q=0.1", or "all"
    seeds: list[Seed] = Field(default=[0, 1, 2], min_length=1)
    settings: InstanceOf[Settings] = Settings()  # of every run but for its seed; in TOML its keys stand at the top
    train: Table = {}  # changes to the data's own options of local training
    shift: list[Table] = []
    params: dict[str, Table] = {}

    @model_validator(mode="before")
    @classmethod
    def _gather_settings(cls, raw: Table) -> Table:
        """The settings' keys, which stand beside the others, become one object."""
        if "settings" in raw:
            return raw
        given = {k: v for k, v in raw.items() if k in SETTINGS}
        rest = {k: v for k, v in raw.items() if k not in SETTINGS}
        return {**rest, "settings": Settings(**_typed("", Settings, given))}

    @model_serializer
    def _flat(self) -> Table:
        """As in TOML, and as folders of results from release 0.1 have it: later options only where they are set."""
        body = {k: getattr(self, k) for k in ("name", "description", "data", "algorithms", "seeds")}
        options = {k: getattr(self.settings, k) for k in SETTINGS}
        usual = {k: getattr(Settings(), k) for k in LATER}
        options = {k: v for k, v in options.items() if k not in LATER or v != usual[k]}
        return body | options | {"train": self.train, "shift": self.shift, "params": self.params}

    def with_settings(self, **options: Any) -> Experiment:
        """The same experiment with other settings."""
        return self.model_copy(update={"settings": self.settings.updated(**options)})

    @staticmethod
    def parse(raw: Mapping[str, Any], where: str = "") -> Experiment:
        """From a TOML document; every name and value is checked.

        Args:
            raw: The document.
            where: Heads the messages, for example the file's name.

        Raises:
            InputError: If a key is unknown or a value cannot be used.
        """
        try:
            known = {*Experiment.model_fields, *SETTINGS} - {"params", "settings"}
            _known_keys("", raw, known | set(ALGORITHMS))
            body = {k: v for k, v in raw.items() if k in known}
            params = {k: v for k, v in raw.items() if k not in known}
            if isinstance(body.get("data"), str):
                body["data"] = {"name": body["data"]}
            experiment: Experiment = _validated("", partial(Experiment, params=params), body)
            for key, values in (("algorithms", experiment.algorithms), ("seeds", experiment.seeds)):
                if len(set(values)) < len(values):
                    raise InputError(f"{key} = {values}: name each one once")
            if "all" in experiment.algorithms and len(experiment.algorithms) > 1:
                raise InputError(f'algorithms = {experiment.algorithms}: "all" cannot be combined with names')
            for method in {*experiment.methods, *params}:
                experiment.algorithm(method, clusters=2)  # some number, as the data may know theirs
            experiment.source()
            experiment.shifts()
            experiment.train_options()
        except InputError as error:
            raise InputError(f"{where}: {error}" if where else str(error)) from error
        return experiment

    @property
    def methods(self) -> list[str]:
        """The algorithms, with "all" spelt out."""
        return list(ALGORITHMS) if self.algorithms == ["all"] else self.algorithms

    def algorithm(self, method: str, clusters: int | None = None) -> Algorithm:
        """The method with its options: those of its table, then those behind its name, as in "qffl:q=0.1".

        M, where left out, is the number of true clusters if that is known.
        """
        name, *changes = method.split(":")
        make = ALGORITHMS.get(name) or PRESETS.get(name)
        if make is None:
            raise InputError(f"unknown algorithm {name!r}: {nearest(name, [*ALGORITHMS, *PRESETS])}")
        options = apply(dict(self.params.get(name, {})), changes, method)
        if clusters is not None and "M" in inspect.signature(make).parameters:
            options.setdefault("M", clusters)
        return make(**_typed(name, make, options))

    def source(self) -> Callable[..., Federation]:
        """The function that makes the data, options filled in."""
        options = {k: v for k, v in self.data.items() if k != "name"}
        name = self.data.get("name")
        if not isinstance(name, str) or name not in DATA:
            raise InputError(f"unknown data {name!r}: {nearest(str(name), DATA)}")
        return partial(DATA[name], **_typed("data", DATA[name], options))

    def train_options(self, base: Train | None = None) -> Train:
        said = _typed("train", Train, self.train)
        if "steps" in said:  # not the data's own epochs
            said = {"epochs": None, **said}
        return dataclasses.replace(base or Train(), **said)

    def federation(self, seed: int) -> Federation:
        make = self.source()
        keywords = make.keywords  # type: ignore[attr-defined]
        fed = make() if "seed" in keywords else make(seed=seed)
        for shift in self.shifts():
            keywords = shift.keywords  # type: ignore[attr-defined]
            fed = shift(fed) if "seed" in keywords else shift(fed, seed=seed)
        return fed

    def shifts(self) -> list[Callable[..., Federation]]:
        """What is done to the data, in order: [[shift]] tables with `kind` and its options (focusfl.data.shift)."""
        made: list[Callable[..., Federation]] = []
        for table in self.shift:
            kind = str(table.get("kind"))
            if kind not in SHIFTS:
                raise InputError(f"unknown shift {kind!r}: {nearest(kind, SHIFTS)}")
            given = {k: v for k, v in table.items() if k != "kind"}
            made.append(partial(SHIFTS[kind], **_typed("shift", SHIFTS[kind], given, positional=("fed",))))
        return made

    def setups(self, seed: int) -> dict[str, Setup | CannotRun]:
        """A run for each method, on the same data; of "all", those that cannot run give their reason."""
        fed = self.federation(seed)
        clusters = None if fed.clusters is None else len(fed.clusters.unique())
        settings = self.settings.updated(seed=seed, train=self.train_options(fed.recipe.train))
        made: dict[str, Setup | CannotRun] = {}
        for method in self.methods:
            algorithm = self.algorithm(method, clusters)
            try:
                made[method] = Setup.of(algorithm, fed, settings=settings)
            except CannotRun as reason:
                if self.algorithms != ["all"]:
                    raise
                made[method] = reason
        return made


def load(path: Path, changes: Iterable[str] = ()) -> Experiment:
    """Read a TOML file, then apply `key=value` changes."""
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not TOML: {error}") from error
    return Experiment.parse(apply(raw, changes), str(path))


def apply(raw: Table, changes: Iterable[str], where: str = "--set") -> Table:
    """`--set key=value`: dotted keys, TOML values; a word without quotes is text.

    >>> apply({"focus": {"M": 3}}, ["focus.M=2", "engine=serial", "data.sigma=[0.1, 0.2]"])
    {'focus': {'M': 2}, 'engine': 'serial', 'data': {'sigma': [0.1, 0.2]}}
    """
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals or not key.strip() or "\n" in change:
            raise InputError(f"{where} {change}: expected key=value, for instance focus.M=2")
        try:
            value = tomllib.loads(f"v = {text}")["v"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        *path, last = key.strip().split(".")
        table = raw
        for part in path:
            if isinstance(table.get(part), str):  # data = "name"
                table[part] = {"name": table[part]}
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise InputError(f"{where} {change}: {part} is not a table")
        table[last] = value
    return raw


def find(name: str) -> Path:
    """A path, or the name of an experiment here or of those that come with the package."""
    known = catalogue()
    if name in known:
        return known[name]
    if name.endswith(".toml") or "/" in name:
        if not Path(name).is_file():
            raise InputError(f"{name}: no such file")
        return Path(name)
    raise InputError(f"unknown experiment {name!r}: {nearest(name, known)}")


def catalogue() -> dict[str, Path]:
    """Experiments by name: ./experiments first, then the package's own."""
    here = Path(__file__).parents[1]
    folders = [here / "_experiments", here.parents[1] / "experiments", Path("experiments")]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml"))}


def _typed(where: str, target: Any, given: Table, positional: tuple[str, ...] = ()) -> Table:
    """Check names and types of options against a dataclass or a function; gives back what was given, typed."""
    if not isinstance(given, dict):
        raise InputError(f"{where} = {given!r}: expected a table of options")
    names = inspect.signature(target).parameters
    hints = typing.get_type_hints(target if inspect.isclass(target) else getattr(target, "__func__", target))
    fields: Table = {k: (hints[k], None) for k in names if k not in positional}
    _known_keys(where, given, fields)
    required = [p.name for p in inspect.signature(target).parameters.values() if p.default is p.empty]
    for name in required:
        if name not in given and name not in positional:
            raise InputError(f"{where}.{name} is missing")
    model = create_model(where, **fields)
    checked = _validated(where, model, given)
    return {k: getattr(checked, k) for k in given}


def _validated(where: str, model: Callable[..., Any], given: Table) -> Any:
    try:
        return model(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name, *within = first["loc"]  # within: places in a list, and which of several types was tried
        path = [where] * bool(where) + [name] + [part for part in within if isinstance(part, int)]
        key = ".".join(map(str, path))
        if first["type"] == "missing":
            raise InputError(f"{key} is missing") from error
        raise InputError(f"{key} = {first['input']!r}: {first['msg']}") from error


def _known_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    names = set(known)
    for key in given:
        if key not in names:
            place = f"{where}.{key}" if where else key
            raise InputError(f"unknown key {place!r}: {nearest(key, names)}")

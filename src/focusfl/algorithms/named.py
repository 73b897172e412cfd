"""Methods by name: those of this package, entry points of installed packages, and "my_module:MyMethod"."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable

from focusfl.algorithms.afl import AFL
from focusfl.algorithms.cfl import CFL
from focusfl.algorithms.cgsv import CGSV
from focusfl.algorithms.ditto import Ditto
from focusfl.algorithms.fedavg import FedAvg
from focusfl.algorithms.fedem import FedEM
from focusfl.algorithms.fedma import FedMA
from focusfl.algorithms.fedprox import FedProx
from focusfl.algorithms.fedsoft import FedSoft
from focusfl.algorithms.fesem import FeSEM
from focusfl.algorithms.focus.focus import Focus
from focusfl.algorithms.hardcluster import HardCluster
from focusfl.algorithms.ifca import IFCA
from focusfl.algorithms.local import Local
from focusfl.algorithms.pfnm import PFNM
from focusfl.algorithms.qffl import QFFL
from focusfl.core import Algorithm
from focusfl.util import plugins
from focusfl.util.errors import InputError, nearest

_METHODS: list[type[Algorithm]] = [
    *(Focus, FedAvg, QFFL, AFL, Ditto, CGSV, FedProx, FedMA, PFNM, HardCluster),  # the FOCUS paper's tables
    *(IFCA, FedEM, FeSEM, CFL, FedSoft),  # clustered methods it cites
    Local,
]
ALGORITHMS: dict[str, type[Algorithm]] = {kind.__name__.lower(): kind for kind in _METHODS}
PRESETS: dict[str, Callable[..., Algorithm]] = {"focus-algorithm1": Focus.algorithm1}  # methods with preset options
_loaded: dict[str, type[Algorithm]] = {}  # methods of the user's own, by the name that this command gives them


def split_method(method: str) -> tuple[str, list[str]]:
    """Split a method as the user writes it into its name and its options.

    Example:
        >>> split_method("qffl:q=0.1"), split_method("my_module:MyMethod:lam=0.5")
        (('qffl', ['q=0.1']), ('my_module:MyMethod', ['lam=0.5']))
    """
    name, *rest = method.split(":")
    if rest and "=" not in rest[0] and name not in ALGORITHMS and name not in PRESETS:
        return f"{name}:{rest[0]}", rest[1:]
    return name, rest


def find_method(name: str) -> Callable[..., Algorithm]:
    """Return the method of that name; one of the user's own is imported.

    Args:
        name: A key of ALGORITHMS or PRESETS, an entry point of `focusfl.algorithms`, or "my_module:MyMethod".

    Raises:
        InputError: There is no such method, or what was found is not one.
    """
    built_in = ALGORITHMS.get(name) or PRESETS.get(name)
    if built_in is not None:
        return built_in
    if name in _loaded:
        return _loaded[name]
    if plugins.is_reference(name):
        found = plugins.load_object(name)
    elif name in (points := plugins.entry_points("focusfl.algorithms")):
        found = plugins.entry_point("focusfl.algorithms", name)
    else:
        raise InputError(f"unknown algorithm {name!r}: {nearest(name, [*ALGORITHMS, *PRESETS, *points])}")
    _loaded[name] = _checked(name, found)
    return _loaded[name]


def _checked(name: str, found: object) -> type[Algorithm]:
    """Return the object if it is a method: a frozen dataclass that inherits from Algorithm, with its functions."""
    advice = "see docs/add-an-algorithm.md"
    if not inspect.isclass(found) or not issubclass(found, Algorithm):
        raise InputError(f"{name}: expected a class that inherits from focusfl.core.Algorithm; {advice}")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise InputError(f"{name}: the functions {', '.join(missing)} are missing; {advice}")
    if "__dataclass_params__" not in vars(found) or not vars(found)["__dataclass_params__"].frozen:
        raise InputError(f"{name}: write @dataclass(frozen=True) above the class; {advice}")
    options = dataclasses.fields(found)  # type: ignore[arg-type]
    if required := [f.name for f in options if _is_required(f)]:
        raise InputError(f"{name}: give the option {required[0]} a default; {advice}")
    if not isinstance(getattr(found, "name", None), str):
        raise InputError(f'{name}: give the class a name, as in name: ClassVar[str] = "My method"; {advice}')
    return found


def _is_required(f: dataclasses.Field[object]) -> bool:
    return f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def method_name(kind: type[Algorithm]) -> str:
    """Return the name by which `find_method` finds a class: as the user wrote it, if it is the user's own.

    Example:
        >>> method_name(QFFL)
        'qffl'
    """
    if (key := kind.__name__.lower()) in ALGORITHMS and ALGORITHMS[key] is kind:
        return key
    written = (name for name, known in _loaded.items() if known is kind)
    return next(written, f"{kind.__module__}:{kind.__qualname__}")


def title(method: str) -> str:
    """Return the name of a method as its paper writes it, followed by its options; an unknown one stays as it is.

    Args:
        method: A method as the user writes it, for example "qffl:q=0.1".

    Example:
        >>> title("qffl:q=0.1"), title("focus-algorithm1")
        ('q-FFL q=0.1', 'FOCUS (Algorithm 1)')
    """
    name, options = split_method(method)
    if name == "focus-algorithm1":
        base = "FOCUS (Algorithm 1)"
    elif name in ALGORITHMS:
        base = ALGORITHMS[name].name
    else:
        base = _own_title(name)
    return " ".join([base, *options])


def _own_title(name: str) -> str:
    """Return the `name` of a method of the user's own that this command loaded, unless another has the same."""
    if name not in _loaded:
        return name
    others = [kind for key, kind in {**ALGORITHMS, **_loaded}.items() if key != name]
    own = _loaded[name].name
    return name if own in [kind.name for kind in others] else own

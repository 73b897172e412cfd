"""Save and load a trained model: a folder with two files that are checked, and a card for people.

MODEL/model.json              what it is (run/saved/about.py), with a digest
MODEL/weights.safetensors     the server's and the agents' states, the scaling of the inputs; with a digest, and
                              with that of the model.json it belongs to
MODEL/README.md               the model card; it is never read

Nothing is unpickled, and no code is loaded unless the caller allows it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from focusfl.algorithms import Adapted
from focusfl.core import Algorithm, State
from focusfl.core.tree import flatten, unflatten
from focusfl.models import losses
from focusfl.models.describe import OwnSpec
from focusfl.models.losses import LossOption
from focusfl.models.task import TargetScale, Task, shared_weights
from focusfl.report.card import card
from focusfl.report.rows import describe_error, read_row
from focusfl.run import checkpoint
from focusfl.run.saved.about import FORMAT, OWN_LOSS, VERSION, About, options_of
from focusfl.run.saved.trained import TrainedModel
from focusfl.run.saved.trial import try_model
from focusfl.util import files, sealed
from focusfl.util.errors import InputError, refuse_errors, require_instance
from focusfl.util.plugins import load_object

ABOUT, WEIGHTS, CARD = "model.json", "weights.safetensors", "README.md"
MAX_ABOUT_BYTES = 16 * 2**20  # 10,000 agents with 10 labels need 4
MAX_DEPTH = 20  # of the values in model.json
MAX_KEYS = 1000  # of an object in it
MAX_ACTIVATIONS = 100_000_000  # numbers that the network computes at once for an example
Network = nn.Module | Callable[[], nn.Module]


def save(model: TrainedModel, folder: Path) -> Path:
    """Write a model to a folder, atomically file by file; model.json is last, and names what it belongs to.

    Raises:
        InputError: The folder holds something else.
    """
    if folder.exists() and not _may_replace(folder):
        raise InputError(f"{folder} holds something that is not a model: choose another folder")
    files.make_folder(folder)
    described = model.about.model_dump(mode="json")
    digest = _hex(sealed.add_digest(described))
    model = model.on_cpu()
    tensors: dict[str, Tensor] = flatten({"server": model.server, "agents": model.states})
    if model.inputs.mean is not None and model.inputs.deviation is not None:
        tensors |= {"inputs/mean": model.inputs.mean, "inputs/deviation": model.inputs.deviation}
    if isinstance(model.about.network, OwnSpec):
        network = model.task.network
        shared = shared_weights(network)
        tensors |= {f"network/{k}": v for k, v in network.state_dict().items() if k not in shared}
    copies = {k: v.detach().clone() for k, v in tensors.items()}  # safetensors refuses shared memory
    header = {"format": described["format"], "about": digest, "names": list(copies)}  # layers in their order
    sealed.write_tensors(folder / WEIGHTS, copies, header)
    files.write_text(folder / CARD, card(described))
    sealed.write_json(folder / ABOUT, described)
    return folder


def _may_replace(folder: Path) -> bool:
    """Whether a folder is empty, or holds a model; also one that was cut off before its last file, model.json."""
    if not folder.is_dir() or (folder / ABOUT).exists():
        return folder.is_dir()
    found = {path.name for path in folder.iterdir()} - {path.name for path in files.temporary_files(folder)}
    if not found <= {WEIGHTS, CARD}:
        return False
    return not found or (WEIGHTS in found and sealed.read_header(folder / WEIGHTS).get("format") == FORMAT)


def load(
    path: str | Path,
    network: Network | None = None,
    algorithm: Algorithm | None = None,
    loss: LossOption = None,
    allow_code: bool = False,
) -> TrainedModel:
    """Read a saved model and check all of it.

    Args:
        path: The folder that `result.save` wrote.
        network: If the network is your own: the network, or the function that makes it.
        algorithm: If the method is your own: the method with its options.
        loss: If the loss is your own: the loss; only `assign` with labels needs it.
        allow_code: Whether the network and the method may be imported from the module that the file names. Allow
            this only for files that you trust.

    Raises:
        InputError: The folder holds no model, or one that is damaged, incomplete, of a newer release, or does not
            fit; the message says which.

    Example:
        ``ff.load("model").predict("bern", patients)``
    """
    require_instance("path", path, (str, Path), "the folder of a saved model")
    folder = Path(path).expanduser()
    about, tensors = read(folder)
    require_instance("algorithm", algorithm, (Algorithm, NoneType), "a method with its options")
    try:
        with refuse_errors("its method, network and tensors do not fit together"):
            method = algorithm or _own_method(about, allow_code) or about.algorithm()
            if about.adapted and not isinstance(method, Adapted):
                method = Adapted(method)
            named = None if about.loss == OWN_LOSS else about.loss
            chosen = losses.resolve(named if loss is None else loss, about.classes, about.several)
            scale = None if about.target is None else TargetScale(about.target.mean, about.target.deviation)
            if scale is not None and (about.classes is not None or not chosen.default):
                raise InputError("it scales targets, but is not a regression with the squared error")
            task = Task(_network(about, tensors, network, allow_code), about.classes, chosen, scale)
            return _assembled(about, method, task, tensors)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error


def read(folder: Path) -> tuple[About, dict[str, Tensor]]:
    """Read both files, and check that they are whole and belong together. Nothing is built from them.

    Raises:
        InputError: A file is missing, damaged, of a newer release or not a model's.
    """
    if not folder.is_dir() or not (folder / ABOUT).exists():
        raise _no_model(folder)
    for path in (folder / ABOUT, folder / WEIGHTS):
        if path.is_symlink() or not path.is_file():  # reading a pipe may never end
            raise _refused(path, "missing, or not a regular file")
    with refuse_errors(f"{folder}: not a model that can be used"):
        about, digest = _read_about(folder / ABOUT)
        return about, _read_tensors(folder / WEIGHTS, about, digest)


def _read_about(path: Path) -> tuple[About, str]:
    """Return what model.json says, and its digest."""
    if path.stat().st_size > MAX_ABOUT_BYTES:
        raise _refused(path, f"larger than {MAX_ABOUT_BYTES:,} bytes")
    raw = files.read_json(path)
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise _refused(path, "not a model of focusfl")
    _check_plain(raw, path)
    version = raw.get("version")
    if type(version) is not int or version < 1:
        raise _refused(path, "it does not say which version of the format it has")
    if version > VERSION:
        newer = f"a newer focusfl wrote it (version = {version}, this one reads {VERSION})"
        raise InputError(f"{path}: {newer}: update focusfl")
    if sealed.KEY not in raw:
        raise _refused(path, "its digest is missing")
    try:
        about = About.model_validate(sealed.strip_digest(raw, path))
    except sealed.Damaged as error:
        raise _refused(path, error.reason) from error
    except ValidationError as error:
        raise _refused(path, describe_error(error)) from error
    if about.results is not None:
        read_row({**about.results, "seconds": 0.0}, path)
    return about, _hex(raw)


def _check_plain(value: object, path: Path, depth: int = MAX_DEPTH) -> None:
    """Refuse what is nested too deeply or has too many keys, and text that cannot be written as UTF-8."""
    if isinstance(value, str) and not value.isascii():
        value.encode()
    if isinstance(value, dict | list):
        if not depth:
            raise _refused(path, "nested too deeply")
        if isinstance(value, dict) and len(value) > MAX_KEYS:
            raise _refused(path, f"an object has more than {MAX_KEYS} keys")
        for inner in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_plain(inner, path, depth - 1)


def _read_tensors(path: Path, about: About, digest: str) -> dict[str, Tensor]:
    """Return the tensors that belong to a model.json with this digest."""
    try:
        tensors, header, checked = sealed.read_tensors(path)
    except sealed.Damaged as error:
        raise _refused(path, error.reason) from error
    if not checked or header.get("format") != about.format:
        raise _refused(path, "not the weights of a model of focusfl")
    if header.get("about") != digest:
        raise _refused(path.parent, f"{WEIGHTS} and {ABOUT} belong to different models, or one of them was edited")
    names = header.get("names")
    if not isinstance(names, list) or {*names} != tensors.keys() or len(names) != len(tensors):
        raise _refused(path, "its list of tensors is not that of its tensors")
    folders = {name[:i] for name in names for i, letter in enumerate(name) if letter == "/"}
    if folders & tensors.keys():
        raise _refused(path, "a tensor has the name of a group of tensors")
    for name, v in tensors.items():
        if (wrong := checkpoint.problem(name, v)) is not None:
            raise _refused(path, f"{name} {wrong}")
    return {name: tensors[name] for name in names}


def _no_model(folder: Path) -> InputError:
    """Say what a folder without a model is: missing, a file, or a folder above one."""
    if not folder.exists():
        return InputError(f"{folder}: no such folder; name the folder of a saved model")
    if not folder.is_dir():
        return InputError(f"{folder}: a file; name the folder of a saved model, the one with {ABOUT}")
    below = sorted({*folder.glob(f"model/{ABOUT}"), *folder.glob(f"runs/*/model/{ABOUT}")})
    hint = f"there is one in {below[0].parent}" if below else "name the folder that save wrote"
    return InputError(f"{folder}: no model here (no {ABOUT}); {hint}")


def _hex(described: dict[str, Any]) -> str:
    """The digest of model.json without its prefix: with it, it would pass for the digest of the weights."""
    return str(described[sealed.KEY]).removeprefix(sealed.KIND)


def _refused(path: Path, reason: str) -> InputError:
    return InputError(f"{path}: not a model that can be used: {reason}")


def _own_method(about: About, allow_code: bool) -> Algorithm | None:
    """Import a method of the user's own, if that is allowed and the file names one."""
    if ":" not in about.method:
        return None
    if not allow_code:
        raise InputError(
            f"its method is {about.method}, code of its owner: pass algorithm=, or allow_code=True (--allow-code)"
        )
    kind = load_object(about.method)
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise InputError(f"{about.method} is not a method: expected a subclass of Algorithm")
    method: Algorithm = options_of(kind, about.params)
    return method


def _network(about: About, tensors: dict[str, Tensor], given: Network | None, allow_code: bool) -> nn.Module:
    """Build the network: one of ours from its description, the user's own only if it is passed or allowed."""
    spec = about.network
    if not isinstance(spec, OwnSpec) and given is None:
        with torch.device("meta"):  # nothing is allocated before the size is known
            size = sum(p.numel() for p in spec.build().parameters())
        if size > 2 * sum(v.numel() for v in tensors.values()):
            raise InputError("the network it describes is larger than its weights")
        if spec.activations(about.inputs.shape) > MAX_ACTIVATIONS:
            raise InputError(f"its examples, of shape {about.inputs.shape}, are too large for its network")
        with torch.random.fork_rng(devices=[]):
            return spec.build()
    if given is None and isinstance(spec, OwnSpec):
        named = f" ({spec.function})" if spec.function else ""
        if not allow_code or not spec.function:
            allow = ", or allow_code=True (--allow-code)" if spec.function else ""
            raise InputError(f"its network is not one of focusfl's{named}: pass network={allow}")
        given = load_object(spec.function)
    with torch.random.fork_rng(devices=[]):
        built = given() if callable(given) and not isinstance(given, nn.Module) else given
    if not isinstance(built, nn.Module):
        raise InputError("network: expected a torch.nn.Module, or a function that makes one")
    if isinstance(spec, OwnSpec) and repr(built)[:20_000] != spec.structure:
        raise InputError("the network that was passed has other layers than the one that was trained")
    fixed = {k.removeprefix("network/"): v for k, v in tensors.items() if k.startswith("network/")}
    own = built.state_dict()
    if any(k not in own or own[k].shape != v.shape or own[k].dtype != v.dtype for k, v in fixed.items()):
        raise InputError("the network that was passed has other frozen weights than the one that was trained")
    built.load_state_dict(fixed, strict=False)
    return built


def _assembled(about: About, method: Algorithm, task: Task, tensors: dict[str, Tensor]) -> TrainedModel:
    """Put the parts together, and try them: each agent's predictor must work and give sound predictions."""
    tree: State = unflatten(tensors)
    server, states, scaling = tree.get("server", {}), tree.get("agents", {}), tree.get("inputs", {})
    if about.inputs.scaled != (scaling.keys() == {"mean", "deviation"}):
        raise InputError("the scaling of its inputs is missing, or not expected")
    inputs = about.inputs.inputs(scaling.get("mean"), scaling.get("deviation"))
    shape = list(inputs.shape)
    if any(list(v.shape) != shape or v.dtype != torch.float32 for v in scaling.values()):
        raise InputError(f"the scaling of its inputs does not fit examples of shape {shape}")
    if about.inputs.scaled and not (scaling["deviation"] > 0).all():
        raise InputError("the deviations that its inputs are divided by are not all positive")
    if (about.agents and not shape) or (inputs.columns and [len(inputs.columns)] != shape):
        raise InputError(f"it names {len(inputs.columns)} columns for examples of shape {shape}")
    if about.labels and len(about.labels) != about.classes:
        raise InputError(f"it names {len(about.labels)} labels for {about.classes} classes")
    A = len(about.agents)
    if len(set(about.agents)) != A or any(v.dim() == 0 or len(v) != A for v in flatten(states).values()):
        raise InputError("its agents do not fit their names")
    if not _has_models_of(task, tensors):
        raise InputError("its weights do not fit the network it describes")
    if about.received and A != 1:
        raise InputError(f"it is said to be one node's, but has {A} agents")
    common = (method, task, server, states, tuple(about.agents), inputs, tuple(about.labels))
    model = TrainedModel(*common, about.train_options(), about.seed, about.received, about)
    try_model(model)
    return model


def _has_models_of(task: Task, tensors: dict[str, Tensor]) -> bool:
    """Whether each weight of the network is there in its shape; FedMA and PFNM have others besides."""
    for name, w in task.weights().items():
        stored = [v for k, v in tensors.items() if k.endswith(f"/{name}")]
        if not any(v.shape[v.dim() - w.dim() :] == w.shape for v in stored):
            return False
    return True

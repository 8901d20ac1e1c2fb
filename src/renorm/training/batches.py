"""Batches of data, as whoever runs a network over many of them is given them: in memory, or in files of NumPy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.core.files import arrays_of


def arguments(batch: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments for `run`: arrays by name, in order, or the only one."""
    if isinstance(batch, Mapping):
        return (), {str(name): array for name, array in batch.items()}
    return (batch if isinstance(batch, (tuple, list)) else (batch,)), {}


class Files:
    """Batches in files, which are read anew each time that one goes through them: a .npy file holds the array of a
    network's only input, a .npz file one array per input, by name. A folder stands for its files, in the order of their
    names.

    size: files are cut along axis 0 into batches of that many, the last of each file may be smaller; None: a file is a
    batch. Raises InvalidInput for a folder without such files, a file that cannot be read, and one whose arrays are not
    of the same length.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], size: int | None = None):
        if size is not None and size < 1:
            raise InvalidInput(f"batches of {size}", do="give a size of at least 1")
        self.paths, self.size = [file for p in paths for file in _files(os.fspath(p))], size

    def __iter__(self) -> Iterator[Any]:
        for path in self.paths:
            yield from self._cut(path, arrays_of(path))

    def _cut(self, path: str, held: Any) -> Iterator[Any]:
        if self.size is None:
            yield held
            return
        arrays = held if isinstance(held, dict) else {"": held}
        lengths = {name: a.shape[0] if a.ndim else 0 for name, a in arrays.items()}
        if len(set(lengths.values())) > 1 or not all(a.ndim for a in arrays.values()):
            facts = [f"{name or 'the array'}: {list(a.shape)}" for name, a in arrays.items()]
            raise InvalidInput(f"{path}: its arrays cannot be cut along axis 0 into batches", facts)
        for begin in range(0, max(lengths.values(), default=0), self.size):
            part = {name: np.ascontiguousarray(a[begin : begin + self.size]) for name, a in arrays.items()}
            yield part if isinstance(held, dict) else part[""]


def _files(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    found = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith((".npy", ".npz"))]
    if not found:
        raise InvalidInput(f"{path}: no .npy or .npz file is in this folder")
    return found

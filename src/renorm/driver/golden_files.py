"""Inputs and outputs of a network kept in a file, .h5 or .npz, to compare with later.

A file is a tree: `value/I` is output I and `name/I` its name; `input/value/I` and `input/name/I` the same of inputs.
What belongs to a second draw of inputs stands below `1/`, to a third below `2/`. In HDF5 names are attributes of the
group `name` (so that `h5diff` tells names from values, as in the value tests of Samsung ONE, whose files are read too:
they hold one side each); in .npz they are strings, and paths are the keys.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.core.files import replacing
from renorm.driver.draws import Draw

Array = np.ndarray[Any, Any]
Tree = dict[str, Any]  # by path: an array, or a name

_SUFFIXES = (".h5", ".hdf5", ".npz")


def save(path: str | os.PathLike[str], draws: Sequence[Draw]) -> None:
    """Writes draws to a file: whole or not at all. Raises InvalidInput for another suffix, without h5py for HDF5, and
    for elements that such files do not hold."""
    tree: Tree = {}
    for i, draw in enumerate(draws):
        top = f"{i}/" if i else ""
        for side, held in ((top, draw.outputs), (f"{top}input/", [*draw.inputs.items()])):
            for place, (name, array) in enumerate(held):
                if array.dtype.kind == "V":  # of ml_dtypes
                    raise InvalidInput(f"{path}: {name!r} is {array.dtype}, which files of arrays do not hold")
                tree |= {f"{side}name/{place}": name, f"{side}value/{place}": array}
    write = _save_npz if _suffix(path) == ".npz" else _save_h5
    h5py = None if _suffix(path) == ".npz" else _h5py()
    with replacing(path) as file:
        write(file, tree, h5py)


def load(path: str | os.PathLike[str], inputs: str | os.PathLike[str] | None = None) -> list[Draw]:
    """The draws of a file. An .npz file with other keys is the inputs of one draw, by name. inputs: a file of their
    own, for outputs that were kept without."""
    found = _draws(path)
    if inputs is None:
        return found
    given = [Draw(d.inputs or dict(d.outputs)) for d in _draws(inputs)]
    if len(given) != len(found):
        raise InvalidInput(f"{inputs} has {len(given)} draws of inputs, {path} has {len(found)} of outputs")
    return [Draw(g.inputs, f.outputs) for g, f in zip(given, found)]


def _draws(path: str | os.PathLike[str]) -> list[Draw]:
    suffix = _suffix(path)
    try:
        tree = _load_npz(Path(path)) if suffix == ".npz" else _load_h5(Path(path), _h5py())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InvalidInput(f"{path}: {error}") from error
    if suffix == ".npz" and not any("value/" in key for key in tree):
        return [Draw(tree)]
    draws = list[Draw]()
    while True:
        top = f"{len(draws)}/" if draws else ""
        inputs, outputs = _side(tree, f"{top}input/"), _side(tree, top)
        if not inputs and not outputs:
            break
        draws.append(Draw(dict(inputs), outputs))
    if not draws:
        raise InvalidInput(f"{path}: neither inputs nor outputs are in it", [f"it has {', '.join([*tree][:5])}"])
    return draws


def _side(tree: Mapping[str, Any], top: str) -> list[tuple[str, Array]]:
    found = list[tuple[str, Array]]()
    while (value := tree.get(f"{top}value/{len(found)}")) is not None:
        found.append((str(tree.get(f"{top}name/{len(found)}", len(found))), value))
    return found


def _suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in _SUFFIXES:
        raise InvalidInput(f"{path}: values are kept in files of other suffixes", [f"known: {', '.join(_SUFFIXES)}"])
    return suffix


def _h5py() -> Any:
    try:
        return import_module("h5py")
    except ImportError:
        raise InvalidInput("h5py is not installed", do='pip install "renorm[hdf5]", or use an .npz file') from None


def _save_npz(into: IO[bytes], tree: Tree, _: Any) -> None:
    arrays: Tree = {key: np.asarray(held) for key, held in tree.items()}
    np.savez(into, **arrays)


def _load_npz(path: Path) -> Tree:
    with np.load(path, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _save_h5(into: IO[bytes], tree: Tree, h5py: Any) -> None:
    with h5py.File(into, "w") as file:
        for key, held in tree.items():
            if isinstance(held, str):
                group, _, place = key.rpartition("/")
                file.require_group(group).attrs[place] = held
            else:
                file.create_dataset(key, data=held)


def _load_h5(path: Path, h5py: Any) -> Tree:
    tree: Tree = {}

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            tree[key] = np.asarray(item[()])
        for place, name in item.attrs.items():
            tree[f"{key}/{place}"] = name.decode() if isinstance(name, bytes) else str(name)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return tree

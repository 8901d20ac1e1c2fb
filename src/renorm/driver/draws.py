"""Draws of inputs, random or given, with the outputs of a network; and files that keep them, .h5 or .npz, to compare
with later.

A file is a tree: `value/I` is output I and `name/I` its name; `input/value/I` and `input/name/I` the same of inputs.
What belongs to a second draw of inputs stands below `1/`, to a third below `2/`. In HDF5 names are attributes of the
group `name` (so that `h5diff` tells names from values, as in the value tests of Samsung ONE, whose files are read too:
they hold one side each); in .npz they are strings, and paths are the keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput, RenormError
from renorm.core.files import arrays_of, replacing
from renorm.core.limits import DEFAULT, Limits
from renorm.core.random_inputs import random_inputs
from renorm.core.stated import Stated, stated
from renorm.frontends import read
from renorm.graph.conditions import settled
from renorm.graph.counting import cut
from renorm.graph.counts import given_inputs
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]
Tree = dict[str, Any]  # by path: an array, or a name
_File = str | os.PathLike[str]


@dataclass(frozen=True)
class Draw:
    """Inputs and outputs of one run of a network, by name and in order."""

    inputs: dict[str, Array]
    outputs: Sequence[tuple[str, Array]] = ()


def random_draws(
    model: Any,
    given: Mapping[str, Array],
    *,
    seed: int = 0,
    count: int = 1,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    limits: Limits = DEFAULT,
) -> list[Draw]:
    """Return random inputs of a model, with seeds that count up from `seed`; those that are given are the same in
    all."""
    graph = read(model, limits=limits)
    return [Draw(drawn(graph, given, seed + i, shapes or {})) for i in range(count)]


def drawn(graph: Graph, given: Mapping[str, Array], seed: int, shapes: Mapping[str, Sequence[Stated]]) -> Tree:
    """Return an array for each input: given, or random; of extents of which nothing is told the least that nodes can
    take, where inference says which."""
    told = {**shapes, **{name: a.shape for name, a in given.items()}}
    with suppress(RenormError, ZeroDivisionError):  # a call may be read otherwise (driver.readings)
        known = settled(cut(graph.copy(stated(graph.inputs, told, None, graph.name)[0]))).graph
        numbers = {name: shape for name, shape in told.items() if all(isinstance(d, int) for d in shape)}
        return random_inputs(given_inputs(known), seed, numbers, held=given)
    return random_inputs(graph.inputs, seed, shapes, held=given)


def save_draws(path: _File, draws: Sequence[Draw]) -> None:
    """Write draws to a file: whole or not at all. Raise InvalidInput for another suffix, without h5py for HDF5, and for
    elements that such files do not hold."""
    tree: Tree = {}
    for i, draw in enumerate(draws):
        top = f"{i}/" if i else ""
        for side, held in ((top, draw.outputs), (f"{top}input/", draw.inputs.items())):
            for place, (name, array) in enumerate(held):
                if array.dtype.isbuiltin == 2:  # of ml_dtypes
                    raise InvalidInput(f"{path}: {name!r} is {array.dtype}, which files of arrays do not hold")
                tree |= {f"{side}name/{place}": name, f"{side}value/{place}": array}
    h5py = _h5py(path)
    with replacing(path) as file:
        if h5py is None:
            np.savez(file, **tree)
            return
        with h5py.File(file, "w") as root:
            for key, held in tree.items():
                if isinstance(held, str):
                    group, _, place = key.rpartition("/")
                    root.require_group(group).attrs[place] = held
                else:
                    root.create_dataset(key, data=held)


def load_draws(path: _File, inputs: _File | None = None) -> list[Draw]:
    """Return the draws of a file. An .npz file with other keys is the inputs of one draw, by name. inputs: a file of
    their own, for outputs that were kept without. Raise InvalidInput for a file that cannot be read, or has neither."""
    found = _draws(path)
    if inputs is None:
        return found
    given = [Draw(d.inputs or dict(d.outputs)) for d in _draws(inputs)]
    if len(given) != len(found):
        raise InvalidInput(f"{inputs} has {len(given)} draws of inputs, {path} has {len(found)} of outputs")
    return [Draw(g.inputs, f.outputs) for g, f in zip(given, found)]


def _draws(path: _File) -> list[Draw]:
    h5py = _h5py(path)
    try:
        tree = _load_npz(path) if h5py is None else _load_h5(path, h5py)
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    if h5py is None and not any("value/" in key for key in tree):
        return [Draw(tree)]
    tops = (f"{i}/" if i else "" for i in count())
    sides = ((_side(tree, f"{top}input/"), _side(tree, top)) for top in tops)
    draws = [Draw(dict(inputs), outputs) for inputs, outputs in takewhile(any, sides)]
    if not draws:
        raise InvalidInput(f"{path}: neither inputs nor outputs are in it", [f"it has {', '.join([*tree][:5])}"])
    return draws


def _side(tree: Mapping[str, Any], top: str) -> list[tuple[str, Array]]:
    places = takewhile(lambda i: f"{top}value/{i}" in tree, count())
    return [(str(tree.get(f"{top}name/{i}", i)), tree[f"{top}value/{i}"]) for i in places]


def _h5py(path: _File) -> Any:
    """Return the library that reads and writes HDF5; None for .npz. Raise InvalidInput for other suffixes."""
    suffixes = (".h5", ".hdf5", ".npz")
    suffix = Path(path).suffix.lower()
    if suffix not in suffixes:
        raise InvalidInput(f"{path}: values are kept in files of other suffixes", [f"known: {', '.join(suffixes)}"])
    try:
        return None if suffix == ".npz" else import_module("h5py")
    except ImportError:
        raise InvalidInput("h5py is not installed", do='pip install "renorm[hdf5]", or use an .npz file') from None


def _load_npz(path: _File) -> Tree:
    if isinstance(held := arrays_of(path), np.ndarray):
        raise ValueError("it is one array, not a file of several")
    return held


def _load_h5(path: _File, h5py: Any) -> Tree:
    tree: Tree = {}

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            tree[key] = np.asarray(item[()])
        for place, name in item.attrs.items():
            tree[f"{key}/{place}"] = name.decode() if isinstance(name, bytes) else str(name)

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return tree

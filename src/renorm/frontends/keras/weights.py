"""Weights of layers: of a .keras file, of an HDF5 file of whole models, or of a model in memory.

All of them are asked for by layer, then by part of a layer (the cell of an LSTM), then by name of variables.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidModel
from renorm.core.limits import Limits
from renorm.frontends.keras.config import named_in_files

Array = np.ndarray[Any, Any]
T = TypeVar("T")


class Weights(Protocol):
    """Those of one layer, or of one model."""

    def layer(self, place: int, key: str, name: str) -> Weights:
        """Return those of a layer of a model: its place among layers, what .keras files call it, its name."""
        ...

    def part(self, *names: str) -> Weights:
        """Return those of a layer within a layer, by the first of these names that there is."""
        ...

    def own(self, names: Sequence[str]) -> dict[str, Array]:
        """Return the variables of the layer itself, which has these. Raises InvalidModel where some are missing."""
        ...

    def all(self) -> list[Array]:
        """Return the variables of the layer itself, in their order."""
        ...


def ordered(names: Sequence[str], found: Sequence[T], what: str) -> dict[str, T]:
    """Return variables by name. More than asked for are seeds and counters."""
    if len(found) < len(names):
        raise InvalidModel(f"{what}: weights {', '.join(names)} are needed, and {len(found)} are there")
    return dict(zip(names, found))


class Checked:
    """Read datasets of a file within what limits allow. Nothing is read that lies in another file."""

    def __init__(self, label: str, limits: Limits):
        self.label, self.limits = label, limits
        self._read = dict[str, Array]()  # by where they lie
        self._bytes = 0

    def members(self, group: Any) -> dict[str, Any]:
        """Return groups and datasets of a group by name."""
        return {name: found for name in group if (found := self.member(group, name)) is not None}

    def member(self, group: Any, name: str) -> Any:
        """Return a group or dataset of a group, None where there is none."""
        link = group.get(name, getlink=True)
        if link is None:
            return None
        if type(link).__name__ != "HardLink":
            raise InvalidModel(f"{self.label}: {group.name}/{name} lies somewhere else ({type(link).__name__})")
        return group[name]

    def array(self, dataset: Any) -> Array:
        """Return the elements of a dataset. Raises InvalidModel, LimitExceeded."""
        where = str(dataset.name)
        if where in self._read:
            return self._read[where]
        if not hasattr(dataset, "dtype") or dataset.shape is None:
            raise InvalidModel(f"{self.label}: {where} is no array")
        if dataset.external or dataset.is_virtual:
            raise InvalidModel(f"{self.label}: {where} lies in other files")
        is_brief = dataset.attrs.get("dtype") == "bfloat16"
        count = int(np.prod(dataset.shape, dtype=object)) if dataset.shape else 1
        self._bytes += count * dataset.dtype.itemsize
        self.limits.check(self.label, [("elements", count, where), ("bytes", self._bytes, "its weights")])
        elements = np.asarray(dataset[()])
        if is_brief:
            elements = elements.view(dtypes.numpy_dtype("bfloat16")).reshape(dataset.shape)
        elif elements.dtype.kind not in "fiub":
            raise InvalidModel(f"{self.label}: {where} holds {elements.dtype}, and no numbers")
        else:
            elements = elements.astype(elements.dtype.newbyteorder("="), copy=False)
        self._read[where] = elements
        return elements


class Stored:
    """A group of model.weights.h5: `vars` with variables by number, layers of a model in `layers`, parts by name."""

    def __init__(self, checked: Checked, group: Any, path: str = ""):
        self._checked, self._group, self._path = checked, group, path

    def _inside(self, *names: str) -> Stored:
        for name in names:
            found = self._checked.member(self._group, name) if self._group is not None else None
            if found is not None and hasattr(found, "keys"):
                return Stored(self._checked, found, f"{self._path}/{name}")
        return Stored(self._checked, None, f"{self._path}/{names[0]}")

    def layer(self, place: int, key: str, name: str) -> Stored:
        return self._inside("layers", "_layer_checkpoint_dependencies")._inside(key)

    def part(self, *names: str) -> Stored:
        return self._inside(*names)

    def own(self, names: Sequence[str]) -> dict[str, Array]:
        return ordered(names, self.all(), f"{self._checked.label}: {self._path[1:] or 'the model'}")

    def all(self) -> list[Array]:
        if (held := self._inside("vars")._group) is None:
            return []
        found = {n: d for n, d in self._checked.members(held).items() if n.isdecimal()}
        return [self._checked.array(found[n]) for n in sorted(found, key=int)]


class Listed:
    """Weights of a layer in an HDF5 file of whole models, each with the path that it has there. Layers within layers
    are told by parts of paths, which need not name the models in between. is_whole: whether all entries are the
    layer's."""

    def __init__(
        self, checked: Checked, entries: Sequence[tuple[tuple[str, ...], Any]], path: str = "", is_whole: bool = True
    ):
        self._checked, self._entries, self._path, self._is_whole = checked, entries, path, is_whole

    def _inside(self, *names: str) -> Listed:
        for name in names:
            found = [(path, d) for path, d in self._entries if name in path[:-1]]
            if found:
                return Listed(self._checked, found, f"{self._path}/{name}")
        return self

    def layer(self, place: int, key: str, name: str) -> Listed:
        found = self._inside(name)
        return found if found is not self else Listed(self._checked, self._entries, f"{self._path}/{name}", False)

    def part(self, *names: str) -> Listed:
        return self._inside(*(name.removesuffix("_dense") for name in names), *names)

    def own(self, names: Sequence[str]) -> dict[str, Array]:
        held: dict[str, list[Any]] = {}
        for path, dataset in self._entries if self._is_whole else ():
            held.setdefault(path[-1].partition(":")[0], []).append(dataset)
        what = f"{self._checked.label}: {self._path[1:] or 'the model'}"
        if any(len(held.get(name, ())) > 1 for name in names):
            raise InvalidModel(f"{what} has several weights of one name")
        if all(name in held for name in names):
            return {name: self._checked.array(held[name][0]) for name in names}
        return ordered(names, self.all(), what)

    def all(self) -> list[Array]:
        return [self._checked.array(dataset) for _, dataset in self._entries] if self._is_whole else []


class ListedModel(Listed):
    """group: `model_weights`, which has one group for each layer of the model, and in its attributes their order."""

    def __init__(self, checked: Checked, group: Any):
        super().__init__(checked, [])
        self._groups = checked.members(group)

    def layer(self, place: int, key: str, name: str) -> Listed:
        group = self._groups.get(name)
        if group is None or not hasattr(group, "attrs"):
            return Listed(self._checked, [], f"/{name}")
        entries = list[tuple[tuple[str, ...], Any]]()
        for path in _names(group, "weight_names"):
            dataset = group
            for step in path.split("/"):
                dataset = self._checked.member(dataset, step) if hasattr(dataset, "keys") else None
            if dataset is None:
                raise InvalidModel(f"{self._checked.label}: there is no weight {name}/{path}")
            entries.append((tuple(path.split("/")), dataset))
        return Listed(self._checked, entries, f"/{name}")


def _names(group: Any, key: str) -> Iterator[str]:
    """Give the strings of an attribute, which is cut into numbered ones where it is long."""
    keys = [key] if key in group.attrs else [f"{key}{i}" for i in range(len(group.attrs)) if f"{key}{i}" in group.attrs]
    for k in keys:
        for name in group.attrs[k]:
            yield name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)


class Held:
    """Weights of a layer in memory, by its attributes."""

    def __init__(self, layer: Any, path: str = ""):
        self._layer, self._path = layer, path

    def layer(self, place: int, key: str, name: str) -> Held:
        return Held(self._layer.layers[place], f"{self._path}/{name}")

    def part(self, *names: str) -> Held:
        held = self._layer
        if isinstance(held, (list, tuple)):  # cells, which files name by their classes
            within = dict(zip(named_in_files([type(layer).__name__ for layer in held]), held))
        else:
            within = {name: getattr(held, name, None) for name in names}
        found = next((f for name in names if (f := within.get(name)) is not None), None)
        return Held(found, f"{self._path}/{names[0]}")

    def own(self, names: Sequence[str]) -> dict[str, Array]:
        return ordered(names, self.all(), self._path[1:] or "the model")

    def all(self) -> list[Array]:
        store = dict[str, Any]()
        if self._layer is not None:
            self._layer.save_own_variables(store)
        to_numpy = sys.modules["keras"].ops.convert_to_numpy
        return [np.asarray(to_numpy(store[n])) for n in sorted((n for n in store if n.isdecimal()), key=int)]

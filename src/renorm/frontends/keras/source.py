"""Open a model: a .keras file, an HDF5 file of a whole model, a keras.Model in memory."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO

from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.core.limits import Limits
from renorm.frontends.files import called, opened
from renorm.frontends.keras import library
from renorm.frontends.keras.config import Described, described, parsed
from renorm.frontends.keras.weights import Checked, Held, ListedModel, Stored, Weights

_CONFIG, _WEIGHTS = "config.json", "model.weights.h5"
_HDF5 = b"\x89HDF\r\n\x1a\n"


@dataclass(frozen=True)
class Source:
    """label: what errors call it."""

    label: str
    model: Described
    weights: Weights


@contextmanager
def loaded(source: Any, limits: Limits) -> Generator[Source]:
    """Give what a path, or a keras.Model, holds; weights can be read inside. Raises InvalidModel, UnsupportedOp,
    LimitExceeded."""
    if not isinstance(source, (str, os.PathLike)):
        yield Source(str(getattr(source, "name", "model")), _in_memory(source), Held(source))
        return
    label = called(source, "")
    try:
        file = opened(source, limits)
    except (OSError, ValueError) as error:
        raise InvalidModel(f"{source}: {getattr(error, 'strerror', None) or error}") from error
    with file:
        begins = file.read(len(_HDF5))
        file.seek(0)
        if begins == _HDF5:
            with _hdf5(file, label) as root:
                yield _whole(root, label, limits)
            return
        with _archive(file, label) as members:
            model = described(parsed(_member(members, _CONFIG, label, limits), label, _CONFIG), label)
            if _WEIGHTS not in members.namelist():
                raise UnsupportedOp(
                    f"{label}: there is no {_WEIGHTS} in it", [f"it has {', '.join(sorted(members.namelist())[:8])}"]
                )
            with _hdf5(io.BytesIO(_member(members, _WEIGHTS, label, limits)), f"{label}/{_WEIGHTS}") as root:
                yield Source(label, model, Stored(Checked(label, limits), root))


@contextmanager
def _archive(file: BinaryIO, label: str) -> Generator[zipfile.ZipFile]:
    try:
        members = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:  # the last of a newer version of ZIP
        raise InvalidModel(f"{label}: neither a .keras archive nor an HDF5 file: {error}") from error
    with members:
        yield members


def _member(members: zipfile.ZipFile, name: str, label: str, limits: Limits) -> bytes:
    """Return a file of an archive, which may be no larger than it says, nor than limits."""
    try:
        info = members.getinfo(name)
    except KeyError as error:
        raise InvalidModel(f"{label}: there is no {name} in it") from error
    found = [("file_bytes", info.file_size, name), ("bytes", info.file_size, name)]
    limits.check(label, found)
    try:
        with members.open(info) as held:
            return held.read(info.file_size)
    except MemoryError:
        raise
    except Exception as error:  # zipfile's and those of decompressors, of which a Python may lack some
        raise InvalidModel(f"{label}: {name} is damaged: {error}") from error


@contextmanager
def _hdf5(file: BinaryIO, label: str) -> Generator[Any]:
    package = library.h5py(label)
    try:
        with package.File(file, "r") as root:
            yield root
    except RenormError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError) as error:  # all that h5py raises
        raise InvalidModel(f"{label}: the HDF5 file is damaged: {error}") from error


def _whole(root: Any, label: str, limits: Limits) -> Source:
    config = root.attrs.get("model_config")
    if config is None:
        raise InvalidModel(
            f"{label}: there is no model_config in it",
            ["a file of weights alone does not say which network they are of"],
            "save the whole model: model.save('model.keras')",
        )
    checked = Checked(label, limits)
    weights = checked.member(root, "model_weights")
    if weights is None or not hasattr(weights, "keys"):
        raise InvalidModel(f"{label}: there is no group model_weights in it")
    return Source(label, described(parsed(config, label, "model_config"), label), ListedModel(checked, weights))


def _in_memory(model: Any) -> Described:
    """Return the description of a model that Keras would write to a file."""
    import keras

    label = str(getattr(model, "name", type(model).__name__))
    try:
        return described(keras.saving.serialize_keras_object(model), label)
    except (NotImplementedError, TypeError, ValueError) as error:  # the user's own class may have no get_config
        raise UnsupportedOp(f"{label}: Keras cannot describe it: {error}", do=WITHOUT_GRAPH) from error


WITHOUT_GRAPH = (
    "with Keras on the backend torch, compile the model itself: renorm.compile(model, args=(x,)); or export it: "
    'model.export("model.onnx", format="onnx")'
)

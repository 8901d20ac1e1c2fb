"""Readers of model files, and writers where a format can be written back. Only the reader of a format imports its
library.

`read` finds the reader by the file's suffix, or by the type of an object in memory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from renorm.core.errors import InvalidInput, InvalidModel, RenormError
from renorm.core.limits import DEFAULT, Limits
from renorm.core.room import out_of_memory
from renorm.core.stated import STATED, Stated, stated
from renorm.frontends.files import called
from renorm.frontends.onnx.library import required
from renorm.graph.deciding import opened
from renorm.graph.ir import Graph

if TYPE_CHECKING:
    from renorm.frontends.recipe import Undone

_BY_SUFFIX = {
    ".onnx": "renorm.frontends.onnx",
    ".tflite": "renorm.frontends.tflite",
    ".circle": "renorm.frontends.tflite",
    ".pt2": "renorm.frontends.torch",
    ".keras": "renorm.frontends.keras",
    ".h5": "renorm.frontends.keras",
    ".hdf5": "renorm.frontends.keras",
}
_BY_LIBRARY = {
    "onnx": "renorm.frontends.onnx",
    "onnx_ml_pb2": "renorm.frontends.onnx",
    "torch": "renorm.frontends.torch",
    "keras": "renorm.frontends.keras",
}
BUFFERS = "buffers"  # in Graph.metadata: names and arrays of what a program updates: last inputs, and last outputs


def exported(module: Any, args: Any, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None) -> Any:
    """Return a module of PyTorch's as a program: see `renorm.frontends.torch.exported`."""
    return import_module(_BY_LIBRARY["torch"]).exported(module, args, kwargs, dynamic_shapes)


def write(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph that passes have left as a model, in the format of the path's suffix, or where that is none of a
    format in that of its source (ONNX for a graph that was built): whole or not at all.

    Raises UnsupportedOp that names every node which the format cannot express.
    """
    _module_of(graph, path).write(graph, path)


def vocabulary(graph: Graph, path: str | os.PathLike[str]) -> Callable[[str], bool]:
    """Return whether the format that `write` would choose has an op, by the op's name, at the version of the graph."""
    return _module_of(graph, path).vocabulary(graph, path)


def _module_of(graph: Graph, path: str | os.PathLike[str]) -> Any:
    source = ".tflite" if "tflite" in graph.metadata else ".onnx"
    module = import_module(_BY_SUFFIX.get(_suffix(path)) or _BY_SUFFIX[source])
    if not hasattr(module, "write"):
        raise InvalidInput(f"{path}: renorm does not write files of this format", do="write .onnx, which has all of it")
    return module


def write_reversibly(graph: Graph, path: str | os.PathLike[str], before: Any, limits: Limits = DEFAULT) -> None:
    """Write a graph as `write` does, and in the file's metadata the recipe that leads back to `before`, the model that
    it was made of. limits: what that may ask for. Raises InvalidInput where it is of another format than the file."""
    module = _module(before)
    if isinstance(before, Graph):
        raise InvalidInput(
            f"{before.name}: a graph in memory has no file to go back to", do="write it, and optimize that"
        )
    _check_suffix(module, path)
    _part(module, "reversal").write(graph, path, before, limits)


def unfold(source: Any, path: str | os.PathLike[str], *, partial: bool = False, limits: Limits = DEFAULT) -> Undone:
    """Write to `path` the model that `source` was made of by `optimize(reversible=True)`: its operators with their
    names, attributes and constants, bit for bit.

    partial: what was changed in `source` since stays, and is named in the result, instead of an error. limits: what the
    file may ask for. Raises InvalidModel for a file without a recipe, with a damaged one, and where not everything can
    be restored, LimitExceeded where it is more than limits allow.
    """
    module = _module(source)
    if module is None or isinstance(source, Graph):
        raise _unreadable(source)
    _check_suffix(module, path)
    from renorm.frontends.recipe import unfolding  # zlib: only who unfolds pays for it

    with unfolding(called(source, "the model")):
        return _part(module, "reversal").unfold(source, path, partial=partial, limits=limits)


def statistics_of(source: Any, limits: Limits = DEFAULT) -> Any:
    """Return the file of a model as one whose batch norms can be given other statistics: a
    frontends.onnx.statistics.File. limits: what it may ask for. Raises InvalidInput for a format that has none,
    LimitExceeded."""
    module = _module(source)
    if module is None and not isinstance(source, Graph):
        raise _unreadable(source)
    if module != _BY_SUFFIX[".onnx"]:
        what = os.fspath(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
        raise InvalidInput(
            f"{what}: only ONNX files hold statistics of batch norms",
            ["TensorFlow Lite and Circle have no batch norm; renorm writes no files of Keras, and none of PyTorch"],
            "estimate them in the model that this one was converted from, or in an ONNX file of it",
        )
    return _part(module, "statistics").File(source, limits)


def _part(package: str | None, name: str) -> Any:
    """Return a module of the package of a format. Raises InvalidInput where the format has none."""
    if find_spec(f"{package}.{name}") is None:
        raise InvalidInput(
            f"{(package or '').rpartition('.')[2]} files have no {name}", do="use .onnx, .tflite or .circle"
        )
    with required(f"the {name} of ONNX files"):
        return import_module(f"{package}.{name}")


def _check_suffix(module: str | None, path: str | os.PathLike[str]) -> None:
    if module is None or _BY_SUFFIX.get(_suffix(path), module) != module:
        raise InvalidInput(f"{path}: a recipe leads back to a file of the same format", do="keep the source's suffix")


def read(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    is_mapped: bool = False,
    limits: Limits = DEFAULT,
) -> Graph:
    """Return the graph of a model.

    source: path of a .onnx, .tflite, .circle, .pt2, .keras or .h5 file, the bytes of one of the first three, an
    onnx.ModelProto, a torch.export.ExportedProgram, a keras.Model, or a Graph, which is returned as it is where neither
    shapes nor inputs are given. shapes: of inputs, by name, whose extents take the place of the model's open ones:
    numbers, or what core.stated says. inputs: elements of inputs, by name, which become constants.
    is_mapped: weights stay in the file, which
    must not change while the graph is used; those that an ONNX model has in files of their own always do. limits: what
    the file may ask for.

    Raises InvalidInput that lists what is stated and does not fit, InvalidModel for a damaged file, and one
    UnsupportedOp that names every node renorm cannot express; each names the file. LimitExceeded where it is more than
    limits allow, OutOfMemory where it is more than there is.
    """
    if isinstance(source, Graph):
        return _with_stated(source, shapes, inputs)
    module = _module(source)
    if module is None:
        raise _unreadable(source)
    try:
        if module in (_BY_SUFFIX[".onnx"], _BY_SUFFIX[".tflite"]):  # what is stated may choose branches
            return import_module(module).read(source, shapes=shapes, inputs=inputs, is_mapped=is_mapped, limits=limits)
        return _with_stated(import_module(module).read(source, is_mapped=is_mapped, limits=limits), shapes, inputs)
    except RenormError as error:
        name = called(source, "")
        if name in error.headline:
            raise
        raise error.within(name) from error
    except MemoryError as error:
        if not isinstance(source, (str, os.PathLike)):
            raise
        raise out_of_memory(f"{called(source, '')}: no memory to read it", os.path.getsize(source)) from error


def _with_stated(
    graph: Graph, shapes: Mapping[str, Sequence[Stated]] | None, inputs: Mapping[str, Any] | None
) -> Graph:
    graph = opened(graph)
    if not shapes and not inputs:
        return graph
    extents, elements = stated(graph.inputs, shapes, inputs, graph.name)
    made = graph.copy(extents, elements)
    made.metadata[STATED] = extents
    return made


def _module(source: Any) -> str | None:
    """Return the package that reads a source; None where there is none."""
    if isinstance(source, (str, os.PathLike)):
        return _BY_SUFFIX.get(_suffix(source))
    if isinstance(source, (bytes, bytearray, memoryview)):
        is_flat = bytes(source[4:8]) in (b"TFL3", b"CIR0")  # where FlatBuffers have their identifier
        return _BY_SUFFIX[".tflite" if is_flat else ".onnx"]
    known = (_BY_LIBRARY.get(c.__module__.split(".")[0]) for c in type(source).__mro__)  # classes of users' own too
    return next((module for module in known if module), None)


def _suffix(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(os.fsdecode(path))[1].lower()


def _unreadable(source: Any) -> InvalidModel:
    what = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__qualname__
    return InvalidModel(
        f"{what}: not a model that renorm reads",
        [
            f"files: {', '.join(_BY_SUFFIX)}",
            "objects: bytes, onnx.ModelProto, ExportedProgram, keras.Model, renorm Graph",
        ],
    )

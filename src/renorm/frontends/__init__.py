"""Readers of model files, and writers where a format can be written back. Only the reader of a format imports its
library.

`read` finds the reader by the file's suffix, or by the type of an object in memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from renorm.core.errors import InvalidModel
from renorm.graph.ir import Graph

_BY_SUFFIX = {
    ".onnx": "renorm.frontends.onnx",
    ".tflite": "renorm.frontends.tflite",
    ".circle": "renorm.frontends.tflite",
}
_BY_LIBRARY = {"onnx": "renorm.frontends.onnx", "onnx_ml_pb2": "renorm.frontends.onnx"}


def write(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Writes a graph that passes have left as a model, in the format of the path's suffix, or where that is none of a
    format in that of its source (ONNX for a graph that was built): whole or not at all.

    Raises UnsupportedOp that names every node which the format cannot express.
    """
    suffix = os.path.splitext(os.fspath(path))[1].lower()
    source = ".tflite" if "tflite" in graph.metadata else ".onnx"
    import_module(_BY_SUFFIX.get(suffix) or _BY_SUFFIX[source]).write(graph, path)


def read(source: Any, *, shapes: Mapping[str, Sequence[int]] | None = None, is_mapped: bool = False) -> Graph:
    """The graph of a model.

    source: path of a .onnx, .tflite or .circle file, its bytes, an onnx.ModelProto, or a Graph, which is returned as it
    is.
    shapes: shapes of inputs for which the file does not even state a rank. is_mapped: weights stay in the file, which
    must not change while the graph is used.

    Raises InvalidModel for a damaged file, and one UnsupportedOp that names every node renorm cannot express.
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, (str, os.PathLike)):
        suffix = os.path.splitext(os.fspath(source))[1].lower()
        module = _BY_SUFFIX.get(suffix)
    elif isinstance(source, (bytes, bytearray, memoryview)):
        is_flat = bytes(source[4:8]) in (b"TFL3", b"CIR0")  # where FlatBuffers have their identifier
        module = _BY_SUFFIX[".tflite" if is_flat else ".onnx"]
    else:
        module = _BY_LIBRARY.get(type(source).__module__.split(".")[0])
    if module is None:
        what = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__qualname__
        raise InvalidModel(
            f"{what}: not a model that renorm reads",
            [f"files: {', '.join(_BY_SUFFIX)}; objects: bytes, onnx.ModelProto, renorm Graph"],
        )
    return import_module(module).read(source, shapes=shapes, is_mapped=is_mapped)

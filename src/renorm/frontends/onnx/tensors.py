"""Tensors of ONNX files as NumPy arrays, and back; external data is mapped into memory, not copied.

Both ONNX and every machine renorm runs on are little-endian.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from renorm.core import dtypes
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp

Array = np.ndarray[Any, Any]


def dtype_name(code: int | str, what: str) -> str:
    """renorm's dtype for an element type of ONNX: a code, or a word as opset 1 had it. UnsupportedOp names `what` where
    there is none."""
    try:
        name = (TensorProto.DataType.Name(code) if isinstance(code, int) else code).lower()
    except ValueError:
        raise InvalidModel(f"{what} has element type {code}, which ONNX does not define") from None
    name = {"float": "float32", "double": "float64"}.get(name, name)
    if name not in dtypes.BY_NAME:
        raise UnsupportedOp(
            f"{what} has elements of type {name}, which renorm does not compute with",
            [f"known: {', '.join(dtypes.ALL)}"],
        )
    return name


def dtype_code(name: str) -> int:
    """ONNX's element type for a dtype."""
    return int(TensorProto.DataType.Value({"float32": "FLOAT", "float64": "DOUBLE"}.get(name, name.upper())))


def to_array(tensor: TensorProto, directory: Path | None, what: str) -> Array:
    """The elements of `tensor`. directory: of external data. Raises InvalidModel where size and shape disagree."""
    dtype = dtypes.numpy_dtype(dtype_name(tensor.data_type, what))
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise InvalidModel(f"{what} has a negative extent: {list(shape)}")
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            return _external(tensor, dtype, shape, directory, what)
        return np.asarray(numpy_helper.to_array(tensor), dtype).reshape(shape)
    except RenormError:
        raise
    except Exception as error:  # numpy_helper raises whatever NumPy did on damaged data
        raise InvalidModel(f"{what} is damaged", [f"{tensor_type(dtype, shape)}: {error}"]) from error


def from_sparse(sparse: onnx.SparseTensorProto, what: str) -> Array:
    """The dense array of a sparse tensor: values at linear indices, or at rows of coordinates."""
    shape = tuple(sparse.dims)
    values = to_array(sparse.values, None, what)
    indices = to_array(sparse.indices, None, what)
    dense = np.zeros(shape, values.dtype)
    if indices.ndim == 2:
        indices = np.ravel_multi_index(tuple(indices.T), shape)
    dense.reshape(-1)[indices] = values
    return dense


def to_tensor(array: Array, name: str) -> TensorProto:
    """An ONNX tensor with these elements."""
    tensor = TensorProto(name=name, data_type=dtype_code(dtypes.from_numpy(array.dtype)), dims=array.shape)
    tensor.raw_data = np.ascontiguousarray(array).tobytes()
    return tensor


def tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtypes.short(dtypes.from_numpy(dtype))}{list(shape)}"


def _external(
    tensor: TensorProto, dtype: np.dtype[Any], shape: tuple[int, ...], directory: Path | None, what: str
) -> Array:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if directory is None:
        raise InvalidModel(
            f"{what} has its data in the file {location!r}, and a model in memory has no directory",
            do="give the path of the model, or load the data into it first (onnx.load does)",
        )
    root = directory.resolve()
    path = (root / location).resolve()
    if not location or not path.is_relative_to(root):
        raise InvalidModel(f"{what}: external data {location!r} lies outside the model's directory")
    offset = int(entries.get("offset", 0))
    count = int(np.prod(shape, dtype=np.int64))
    needed = count * dtype.itemsize
    length = int(entries.get("length", needed))
    held = os.path.getsize(path) if path.is_file() else None
    if held is None or offset < 0 or length != needed or offset + needed > held:
        raise InvalidModel(
            f"{what}: its external data is damaged or missing",
            [
                f"expected {needed} bytes for {tensor_type(dtype, shape)}; the file states {length} at offset {offset}",
                f"{path.name} " + ("does not exist" if held is None else f"has {held} bytes"),
            ],
        )
    if count == 0:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", offset, shape))

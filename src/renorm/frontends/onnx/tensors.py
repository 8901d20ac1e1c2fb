"""Tensors of ONNX files as NumPy arrays, and back; external data is mapped into memory, not copied.

Both ONNX and every machine renorm runs on are little-endian.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends.files import opened
from renorm.frontends.onnx.messages import ELEMENT_TYPES, EXTERNAL, SparseTensorProto, TensorProto
from renorm.frontends.onnx.wire import LARGE

Array = np.ndarray[Any, Any]

_WORDS = {"FLOAT": "float32", "DOUBLE": "float64"}  # of ONNX for a dtype, where it is not the dtype's name
# where a tensor has its elements that has no raw data, and as what
_FIELDS = {
    "float32": ("float_data", "float32"),
    "float64": ("double_data", "float64"),
    "int64": ("int64_data", "int64"),
    "uint32": ("uint64_data", "uint64"),
    "uint64": ("uint64_data", "uint64"),
}
_OTHERS = ("int32_data", "int32")  # 16-bit floats as the number that their bits are, less than 16 bits as raw data


def dtype_name(code: Any, what: str) -> str:
    """renorm's dtype for an element type of ONNX: a code, or a word as opset 1 had it. UnsupportedOp names `what` where
    there is none."""
    if not isinstance(code, str) and not (isinstance(code, int) and 0 <= code < len(ELEMENT_TYPES)):
        raise InvalidModel(f"{what} has element type {code}, which ONNX does not define")
    word = ELEMENT_TYPES[code] if isinstance(code, int) else code.upper()
    name = _WORDS.get(word, word.lower())
    if name not in dtypes.BY_NAME:
        raise UnsupportedOp(
            f"{what} has elements of type {name}, which renorm does not compute with",
            [f"known: {', '.join(dtypes.MOVED)}"],
        )
    return name


def dtype_code(name: str) -> int:
    """ONNX's element type for a dtype."""
    return next(i for i, word in enumerate(ELEMENT_TYPES) if _WORDS.get(word, word.lower()) == name)


def to_array(
    tensor: TensorProto, file: Path | None, what: str, is_mapped: bool = True, limits: Limits = DEFAULT
) -> Array:
    """Return the elements of `tensor`. file: the model's, external data lies beside it. is_mapped: many of them stay
    where they are. Raises InvalidModel where size and shape disagree."""
    dtype = dtypes.numpy_dtype(dtype_name(tensor.data_type, what))
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise InvalidModel(f"{what} has a negative extent: {list(shape)}")
    try:
        if tensor.data_location == EXTERNAL:
            return _external(tensor, dtype, shape, file, what, limits)
        array = _elements(tensor, dtype, prod(shape)).reshape(shape)
    except RenormError:
        raise
    except Exception as error:  # whatever NumPy raises on damaged data
        raise InvalidModel(f"{what} is damaged", [f"{tensor_type(dtype, shape)}: {error}"]) from error
    return array if is_mapped and array.nbytes >= LARGE else array.copy()


def _elements(tensor: TensorProto, dtype: np.dtype[Any], count: int) -> Array:
    """Return all elements in a row."""
    if tensor.HasField("segment"):
        raise ValueError("it is a segment of a tensor")
    if tensor.HasField("raw_data"):
        return _unpacked(tensor.raw_data, dtype, count)
    field, stored = _FIELDS.get(dtype.name, _OTHERS)
    array, name = np.asarray(getattr(tensor, field), stored), dtypes.from_numpy(dtype)
    if dtypes.is_stored(name):
        return _unpacked(array.astype(np.uint8).data, dtype, count)
    if dtypes.is_float(name) and field == "int32_data":
        return array.astype(np.uint16).view(dtype)
    return array.astype(np.uint8).view(dtype) if dtype == np.bool_ else array.astype(dtype, copy=False)


def _packed_bits(dtype: np.dtype[Any]) -> int:
    """Return how many bits an element has where several share a byte; 8 where none do."""
    return min(8, dtypes.lookup(dtype).bits)


def _unpacked(data: bytes | memoryview, dtype: np.dtype[Any], count: int) -> Array:
    """Return the elements of raw data. Where several share a byte, the first has the lowest bits."""
    bits = _packed_bits(dtype)
    if bits == 8:
        return np.frombuffer(data, dtype)
    packed = np.frombuffer(data, np.uint8)
    if len(packed) != (count * bits + 7) // 8:
        raise ValueError(f"{len(packed)} bytes for {count} elements of {bits} bits")
    return (packed[:, None] >> _shifts(bits) & np.uint8((1 << bits) - 1)).reshape(-1)[:count].view(dtype)


def raw_data(array: Array) -> bytes:
    """Return the elements of an array as raw data of a tensor."""
    bits = _packed_bits(array.dtype)
    if bits == 8:
        return np.ascontiguousarray(array).tobytes()
    codes = np.ascontiguousarray(array).reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    rows = np.append(codes, np.zeros(-codes.size % (8 // bits), np.uint8)).reshape(-1, 8 // bits)
    return np.bitwise_or.reduce(rows << _shifts(bits), axis=1, dtype=np.uint8).tobytes()


def _shifts(bits: int) -> Array:
    return np.arange(0, 8, bits).astype(np.uint8)


def from_sparse(sparse: SparseTensorProto, what: str, limits: Limits = DEFAULT) -> Array:
    """Return the dense array of a sparse tensor: values at linear indices, or at rows of coordinates. Raises
    InvalidModel where they lie outside its shape."""
    shape = tuple(sparse.dims)
    values = to_array(sparse.values, None, what)
    indices = to_array(sparse.indices, None, what)
    count = prod(shape)
    limits.check(what, [("elements", count, ""), ("bytes", count * values.itemsize, "")])
    try:
        dense = np.zeros(shape, values.dtype)
        if indices.ndim != 2:
            indices = np.stack(np.unravel_index(indices, shape), -1)
        dense.reshape(-1)[np.ravel_multi_index(tuple(indices.T), shape)] = values
    except Exception as error:  # as in to_array
        raise InvalidModel(f"{what} is damaged", [f"sparse {tensor_type(values.dtype, shape)}: {error}"]) from error
    return dense


def tensor_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"{dtypes.short(dtypes.from_numpy(dtype))}{list(shape)}"


def external_file(location: str, file: Path, what: str) -> Path:
    """Return where a tensor has its data, beside the model in `file`. Raises InvalidModel for what lies outside of that
    directory, and for a file that has other names."""
    # where a model is a link to a file elsewhere, so is its data, as a rule: caches of downloads are made of such links
    directories = file.parent.resolve(), file.resolve().parent
    path = (directories[0] / location).resolve()
    if not location or not any(path.is_relative_to(d) for d in directories):
        raise InvalidModel(f"{what}: external data {location!r} lies outside the model's directory")
    names = path.stat().st_nlink if path.is_file() else 1
    if names > 1:
        raise InvalidModel(
            f"{what}: its external data {location!r} is a file that has other names too",
            [f"{names} hard links: one of them may be where the model may not read"],
            f"make it a file of its own: cp {path.name} copy && mv copy {path.name}",
        )
    return path


def _external(
    tensor: TensorProto, dtype: np.dtype[Any], shape: tuple[int, ...], file: Path | None, what: str, limits: Limits
) -> Array:
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if file is None:
        raise InvalidModel(
            f"{what} has its data in the file {location!r}, and a model in memory has no directory",
            do="give the path of the model, or load the data into it first (onnx.load does)",
        )
    path = external_file(location, file, what)
    offset = int(entries.get("offset", 0))
    count = prod(shape)
    bits = _packed_bits(dtype)
    needed = count * dtype.itemsize if bits == 8 else (count * bits + 7) // 8
    length = int(entries.get("length", needed))
    held = path.stat().st_size if path.is_file() else None
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
    with opened(path, limits) as data:
        if bits < 8:
            packed = np.memmap(data, np.uint8, "r", offset, needed)
            return _unpacked(packed.data, dtype, count).reshape(shape)
        return np.asarray(np.memmap(data, dtype, "r", offset, shape))


def shortest(stored: float) -> float:
    """Return the shortest decimal that rounds to the stored float32: 1e-05, where widening would give
    9.99999974e-06."""
    return float(str(np.float32(stored)))

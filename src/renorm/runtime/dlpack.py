"""bfloat16 tensors through DLPack, which NumPy does not read: its own dtypes stop at what C has.

The capsule stays as its producer made it, so its destructor still frees the tensor; the array made here keeps the
capsule alive.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from renorm.core import dtypes

_CPU = 1  # kDLCPU
_BFLOAT = 4  # kDLBfloat


class _Tensor(ctypes.Structure):
    """DLTensor of the DLPack ABI. strides count elements; NULL where the tensor is C-contiguous."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


class _Borrowed:
    """An object that NumPy asks for memory, and that keeps it alive."""

    def __init__(self, capsule: Any, interface: dict[str, Any]):
        self.capsule = capsule
        self.__array_interface__ = interface


def bfloat16_view(value: Any) -> np.ndarray[Any, Any] | None:
    """An array over a bfloat16 tensor in CPU memory; None for any other.

    Whatever the producer raises passes through.
    """
    if value.__dlpack_device__()[0] != _CPU:
        return None
    capsule = value.__dlpack__()  # without max_version: the unversioned structure
    tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    if (tensor.code, tensor.bits, tensor.lanes) != (_BFLOAT, 16, 1):
        return None
    shape = tuple(tensor.shape[: tensor.rank])
    strides = tuple(2 * s for s in tensor.strides[: tensor.rank]) if tensor.strides else None
    at = (tensor.data or 0) + tensor.byte_offset
    interface = {"data": (at, False), "shape": shape, "strides": strides, "typestr": "<u2", "version": 3}
    return np.asarray(_Borrowed(capsule, interface)).view(dtypes.numpy_dtype("bfloat16"))


CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged
_KINDS = {0: "int", 1: "uint", 2: "float", _BFLOAT: "bfloat", 6: "bool"}


class GpuTensor:
    """A tensor in the memory of a GPU as its producer exports it. The capsule keeps it alive."""

    def __init__(self, capsule: Any):
        self._capsule = capsule
        t = _Tensor.from_address(_pointer(capsule, b"dltensor"))
        self.address, self.index, self.shape = (t.data or 0) + t.byte_offset, t.device_id, tuple(t.shape[: t.rank])
        kind = _KINDS.get(t.code, f"type {t.code} of ") if t.lanes == 1 else f"{t.lanes} lanes of "
        self.dtype = "bool" if kind == "bool" else f"{kind}{t.bits}"
        steps, dense, is_dense = tuple(t.strides[: t.rank]) if t.strides else None, 1, True
        for extent, step in reversed(list(zip(self.shape, steps or ()))):
            is_dense &= extent == 1 or step == dense
            dense *= extent
        self.is_contiguous = is_dense or 0 in self.shape


def borrowed(value: Any, stream: int) -> GpuTensor:
    """Return a tensor in the memory of a GPU, which is ready in the order of a stream: a handle, or 1 for the legacy
    default one. Whatever the producer raises passes through."""
    return GpuTensor(value.__dlpack__(stream=stream))

"""Arrays that callers give, and arrays they get.

A caller gives NumPy arrays or anything with __dlpack__ in CPU memory. An array is used where it lies when it is
C-contiguous; otherwise it is copied. Its dtype and shape must be exactly those of the input: nothing is converted,
since a silent conversion hides a mistake and costs a pass over memory. All that is wrong is reported at once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import is_static, static
from renorm.core.errors import InvalidInput
from renorm.core.inputs import IDLE
from renorm.core.room import out_of_memory
from renorm.runtime import pool
from renorm.runtime.dlpack import bfloat16_view
from renorm.runtime.nd import NDArray
from renorm.runtime.program import ALIGNMENT, TensorSpec

Array = np.ndarray[Any, Any]

ALIGNED = 4096  # bytes from which a result starts on a cache line, so that no vector store crosses one
LARGE = 1 << 16  # bytes from which the memory of a result is recycled; below, the C library keeps it


class Slot:
    """One input or output, with what a call compares."""

    __slots__ = ("dtype", "nbytes", "shape", "spec")

    def __init__(self, spec: TensorSpec, shape: tuple[int, ...] | None = None):
        """shape: the one of `spec`, where that is open."""
        self.spec = spec if shape is None or shape == spec.shape else replace(spec, shape=shape)
        self.shape = static(spec.shape) if shape is None else shape
        self.dtype = dtypes.numpy_dtype(spec.dtype)
        self.nbytes = prod(self.shape) * self.dtype.itemsize

    def allocate(self) -> Array:
        """A fresh array, which nobody else refers to; its elements are undefined. Raises OutOfMemory."""
        try:
            return self._allocate()
        except MemoryError as error:
            raise out_of_memory(f"no memory for {self.spec}", self.nbytes) from error

    def _allocate(self) -> Array:
        if self.nbytes < ALIGNED:
            return np.empty(self.shape, self.dtype)
        if self.nbytes >= LARGE:
            return pool.RESULTS.array(self.shape, self.dtype, self.nbytes)
        raw = np.empty(self.nbytes + ALIGNMENT, np.uint8)
        return np.ndarray(self.shape, self.dtype, raw, -address(raw) % ALIGNMENT)


def address(array: Any) -> int:
    """Return where the first element lies."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # a fifth of the time of array.ctypes.data
    except (TypeError, ValueError):  # read-only, without elements, or of a dtype that the buffer protocol lacks
        return array.ctypes.data


def bind(module: str, slots: Sequence[Slot], args: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    """The inputs in order, each C-contiguous. Raises InvalidInput that lists everything that does not fit."""
    if not named and len(args) == len(slots):
        values = args
        for value, slot in zip(values, slots):
            if (
                type(value) is not np.ndarray
                or value.dtype != slot.dtype
                or value.shape != slot.shape
                or not _is_direct(value)
            ):
                break
        else:
            return list(values)
    return _bind(module, slots, args, named)


def _is_direct(value: Array) -> bool:
    flags = value.flags
    return flags.c_contiguous and flags.aligned


def _bind(module: str, slots: Sequence[Slot], args: Sequence[Any], named: Mapping[str, Any]) -> list[Array]:
    problems, arrays = list[str](), list[Array]()
    given = dict[str, Any](zip((s.spec.name for s in slots), args))
    if len(args) > len(slots):
        problems.append(f"{len(args)} arrays by position, expected at most {len(slots)}")
    for name, value in named.items():
        if name in given:
            problems.append(f"input {name} is given by position and by name")
        elif all(name != s.spec.name for s in slots):
            problems.append(f"{name!r} is not an input")
        given[name] = value
    for slot in slots:
        if slot.spec.name not in given:
            problems.append(f"input {slot.spec.name}: missing, expected {_type(slot.spec)}")
            continue
        array = view_of(given[slot.spec.name])
        problem = array if isinstance(array, str) else _mismatch(array, slot)
        if problem:
            problems.append(f"input {slot.spec.name}: {problem}, expected {_type(slot.spec)}")
        elif not isinstance(array, str):
            arrays.append(array if _is_direct(array) else np.array(array, order="C"))
    if problems:
        facts = [*problems, f"inputs: {'; '.join(str(s.spec) for s in slots) or 'none'}"]
        raise InvalidInput(f"{module}: the arrays given do not fit its inputs", facts, _advice(problems))
    return arrays


def bind_out(module: str, slots: Sequence[Slot], out: Any) -> list[Array | None]:
    """Return where the results go: for each output an array over the caller's memory, or None where a fresh one is
    wanted.

    Raises InvalidInput that lists everything that does not fit.
    """
    if not isinstance(out, (list, tuple)):
        out = [out]
    problems, arrays = list[str](), list[Array | None]()
    if len(out) != len(slots):
        problems.append(f"out has {len(out)} arrays, expected {len(slots)}")
    for slot, value in zip(slots, out):
        array = None if value is None else view_of(value)
        if isinstance(array, str):
            problem = array
        elif array is None:
            problem = None
        elif not (problem := _mismatch(array, slot)):
            flags = array.flags
            wrong = [
                w for w, ok in (("read-only", flags.writeable), ("not C-contiguous", flags.c_contiguous)) if not ok
            ]
            wrong += [] if flags.aligned else ["not aligned to its elements"]
            problem = ", ".join(wrong)
        if problem:
            problems.append(f"output {slot.spec.name}: {problem}, expected writable C-contiguous {_type(slot.spec)}")
        elif not isinstance(array, str):
            arrays.append(array)
    if not problems:
        for i, a in enumerate(arrays):
            for j in range(i):
                if a is not None and overlap(a, arrays[j]):
                    problems.append(f"outputs {slots[j].spec.name} and {slots[i].spec.name} share memory")
    if problems:
        facts = [*problems, f"outputs: {'; '.join(str(s.spec) for s in slots) or 'none'}"]
        raise InvalidInput(f"{module}: the arrays of out= do not fit its outputs", facts, _advice(problems))
    return arrays


def handed_out(out: Any, given: Sequence[Array | None], written: Sequence[Array]) -> list[Any]:
    """Return the results of a run: what was given for them in `out`, with what was written."""
    if out is None:
        return list(written)
    results = list(out) if isinstance(out, (list, tuple)) else [out]
    for i, (a, made) in enumerate(zip(given, written)):
        if a is None:
            results[i] = made
        elif a is not made:
            np.copyto(a, made)
    return results


def written_in(
    slots: Sequence[Slot],
    held: Sequence[Array],
    given: Sequence[Array | None] = (),
    inputs: Sequence[Array] = (),
) -> list[Array]:
    """Return the arrays that a run writes. held: those that steps may have written which have run, of which an empty
    one has the shape of what was not known then. given: by the caller; what overlaps an input is written elsewhere
    first, since the memory plan may write a result before it has read the last of an input."""
    if not held and not given:
        return [slot.allocate() for slot in slots]
    found: list[Array] = []
    for i, slot in enumerate(slots):
        if i < len(held) and held[i].shape == slot.shape:
            found.append(held[i])
        elif i < len(given) and (a := given[i]) is not None and not any(overlap(a, x) for x in inputs):
            found.append(a)
        else:
            found.append(slot.allocate())
    return found


def overlap(a: Array, b: Array | None) -> bool:
    """Return whether two C-contiguous arrays have a byte in common."""
    if b is None or not a.nbytes or not b.nbytes:
        return False
    first, second = address(a), address(b)
    return first < second + b.nbytes and second < first + a.nbytes


def _type(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _mismatch(array: Array, slot: Slot) -> str:
    """Return how an array differs from what it must be; "" where it fits."""
    if array.dtype == slot.dtype and array.shape == slot.shape:
        return ""
    return given_type(array)


def given_type(array: Array) -> str:
    """Return dtype and shape of what a caller gives, as text."""
    order = "" if array.dtype.isnative else " of foreign byte order"
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]{order}"


def _advice(problems: Sequence[str]) -> str | None:
    if any("float64" in p and "expected float32" in p for p in problems):
        return "convert with array.astype(np.float32); renorm never converts silently"
    return None


def shapes_of(
    module: str, specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of arrays that are given for inputs, by name and in order. Raises InvalidInput for one that is
    open and missing, or no array."""
    found: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for i, spec in enumerate(specs):
        value = args[i] if i < len(args) else named.get(spec.name)
        if type(value) is np.ndarray:
            found[spec.name] = value.shape
        elif isinstance(view := "missing" if value is None else view_of(value), str):
            problems += [f"input {spec.name}: {view}, expected {_type(spec)}"] * bool(
                spec.deciding or not is_static(spec.shape)
            )
        else:
            found[spec.name] = view.shape
    if problems:
        raise InvalidInput(f"{module}: the arrays given do not fit its inputs", problems)
    return found


def elements_of(
    module: str, specs: Sequence[TensorSpec], args: Sequence[Any], named: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Return the elements, row-major, of arrays that are given for inputs which decide shapes, by name and in order.
    Raises InvalidInput for one of another dtype."""
    found: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    for i, spec in enumerate(specs):
        if spec.deciding:
            array = view_of(args[i] if i < len(args) else named.get(spec.name))
            assert not isinstance(array, str)  # which shapes_of has found
            if array.dtype != dtypes.numpy_dtype(spec.dtype):
                problems.append(f"input {spec.name}: {_mismatch(array, Slot(spec))}, expected {_type(spec)}")
            elif array.size == len(spec.deciding):
                found[spec.name] = deciding_elements(spec, array)
    if problems:
        raise InvalidInput(f"{module}: the arrays given do not fit its inputs", problems)
    return found


def deciding_elements(spec: TensorSpec, array: Array) -> tuple[int, ...]:
    """Return the elements of an array for an input that decides shapes, row-major; IDLE for those that do not."""
    elements = zip(spec.deciding, array.reshape(-1).tolist())
    return tuple([IDLE if type(d) is int and d == IDLE else n for d, n in elements])


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array that a caller gives. Raises InvalidInput for what is none."""
    view = view_of(value)
    if isinstance(view, str):
        raise InvalidInput(view)
    return view.shape


def view_of(value: Any) -> Array | str:
    """An array over the memory of `value`, or a sentence on why there is none."""
    if isinstance(value, (np.ndarray, np.generic, NDArray)):
        if isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):  # not imported: there is none
            return "a masked array, whose mask would be lost: give array.filled(...) or array.data"
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        return f"{type(value).__name__}, which is neither a NumPy array nor has __dlpack__"
    try:
        return np.from_dlpack(value)
    except Exception as error:  # whatever its producer raises
        with suppress(Exception):
            if (view := bfloat16_view(value)) is not None:
                return view
        return f"{type(value).__name__} that does not export its memory ({str(error) or type(error).__name__})"

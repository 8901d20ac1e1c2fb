"""A chain of oneDNN primitives: each reads what the one before it wrote, in the layout that it wrote it in.

Where two primitives want different layouts, and at both ends, where renorm's tensors lie in rows, a reorder stands
between them. Constants are brought into their layout once, when the chain is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_float, c_int, c_uint
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.machine import LINE
from renorm.targets.onednn import library as dnnl
from renorm.targets.onednn.library import Library, Opaque

FloatArray = np.ndarray[Any, np.dtype[np.float32]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Window:
    """A convolution besides its weight, axis by axis. before, after: elements of padding."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    group: int


@dataclass(frozen=True)
class _Step:
    """One primitive with the memory it always uses; it reads `source` and writes `result`, numbers of buffers."""

    name: str
    primitive: Opaque
    constants: dict[int, Opaque]
    read: Opaque
    written: Opaque
    source: int
    result: int


class Chain:
    """Primitives over float32, built front to back; `finish` ends it at a tensor in rows.

    Buffers: 0 is the chain's operand, 1 its result, others are its own.
    """

    def __init__(self, shape: Sequence[int]):
        self._dnnl: Library = dnnl.library()
        self._steps: list[_Step] = []
        self._kept: list[Any] = []
        self._buffers: dict[int, Bytes] = {}
        self._shape = tuple(shape)
        self._layout = self._dnnl.rows(shape)
        self._at = 0

    def convolve(
        self, shape: Sequence[int], weight: FloatArray, bias: FloatArray | None, window: Window, has_relu: bool
    ) -> None:
        """y = conv(x, weight) + bias of `shape`, then ReLU if has_relu; weight is [M, C/g, *K]."""
        parted = weight.reshape(window.group, -1, *weight.shape[1:]) if window.group > 1 else weight
        name = "dnnl_convolution_forward_primitive_desc_create"
        self._product("convolution", name, dnnl.DIRECT, shape, parted, bias, window, has_relu)

    def convolve_transposed(
        self, shape: Sequence[int], weight: FloatArray, bias: FloatArray | None, window: Window, has_relu: bool
    ) -> None:
        """y = conv_transpose(x, weight) + bias of `shape`, then ReLU if has_relu; weight is [C, M/g, *K]."""
        parted = weight.reshape(window.group, -1, *weight.shape[1:])
        turned = np.ascontiguousarray(parted.swapaxes(1, 2))
        turned = turned if window.group > 1 else turned[0]
        name = "dnnl_deconvolution_forward_primitive_desc_create"
        self._product("deconvolution", name, dnnl.DECONVOLUTION_DIRECT, shape, turned, bias, window, has_relu)

    def normalize(self, parameters: Sequence[FloatArray], epsilon: float, has_relu: bool) -> None:
        """Batch norm with stored statistics (scale, bias, mean, variance), then ReLU if has_relu."""
        flags = dnnl.GLOBAL_STATS | dnnl.USE_SCALE | dnnl.USE_SHIFT | (dnnl.FUSE_RELU if has_relu else 0)
        description = self._describe(
            "dnnl_batch_normalization_forward_primitive_desc_create",
            *(c_int(dnnl.FORWARD_INFERENCE), self._layout, self._layout, c_float(epsilon), c_uint(flags), None),
        )
        names = (dnnl.SCALE, dnnl.SHIFT, dnnl.MEAN, dnnl.VARIANCE)
        constants = {k: self._constant(p, self._dnnl.rows(p.shape)) for k, p in zip(names, parameters, strict=True)}
        into = self._at if self._at > 1 else self._buffer(self._layout)
        self._append("batch_normalization", description, constants, self._layout, into)

    def finish(self) -> None:
        """End the chain: its result lies in rows."""
        rows = self._dnnl.rows(self._shape)
        last = self._steps[-1] if self._steps else None
        if last is None or not self._dnnl.is_same(self._layout, rows):
            self._reorder(rows, 1)
            return
        # the last primitive writes the result itself
        self._steps[-1] = _Step(last.name, last.primitive, last.constants, last.read, last.written, last.source, 1)

    @property
    def source(self) -> str:
        """The primitives by name, one a line, with what oneDNN chose to run them."""
        return "\n".join(s.name for s in self._steps) + "\n"

    def run(self, x: FloatArray, y: FloatArray) -> None:
        """Write the result for `x` into `y`, both dense, in rows. One thread at a time: the chain has buffers."""
        ends = {0: x.ctypes.data, 1: y.ctypes.data}
        for step in self._steps:
            memories = dict(step.constants)
            for argument, layout, at in ((dnnl.SRC, step.read, step.source), (dnnl.DST, step.written, step.result)):
                address = ends[at] if at in ends else self._buffers[at].ctypes.data
                memories[argument] = self._dnnl.memory(layout, address)
            self._dnnl.execute(step.primitive, memories)

    def _product(
        self, kind: str, function: str, algorithm: int, shape: Sequence[int], weight: FloatArray,
        bias: FloatArray | None, window: Window, has_relu: bool,
    ) -> None:  # fmt: skip
        any_layout = self._dnnl.layout
        biases = None if bias is None else self._dnnl.rows(bias.shape)
        description = self._describe(
            function,
            *(c_int(dnnl.FORWARD_INFERENCE), c_int(algorithm)),
            *(any_layout(self._shape), any_layout(weight.shape), biases, any_layout(shape)),
            *(dnnl.dims(window.strides), dnnl.dims([d - 1 for d in window.dilations])),
            *(dnnl.dims(window.before), dnnl.dims(window.after)),
            self._relu() if has_relu else None,
        )
        wanted = self._dnnl.chosen(description, dnnl.SRC)
        if not self._dnnl.is_same(wanted, self._layout):
            self._reorder(wanted, self._buffer(wanted))
        constants = {dnnl.WEIGHTS: self._constant(weight, self._dnnl.chosen(description, dnnl.WEIGHTS))}
        if bias is not None and biases is not None:
            constants[dnnl.BIAS] = self._constant(bias, biases)
        self._shape = tuple(shape)
        written = self._dnnl.chosen(description, dnnl.DST)
        self._append(kind, description, constants, written, self._buffer(written))

    def _describe(self, function: str, *arguments: Any) -> Opaque:
        arguments = (self._dnnl.engine, *arguments)
        return self._dnnl.create(function, *arguments, destroy="dnnl_primitive_desc_destroy")

    def _relu(self) -> Opaque:
        """Return an attribute that lets a primitive end in ReLU."""
        after = self._dnnl.create("dnnl_post_ops_create", destroy="dnnl_post_ops_destroy")
        self._dnnl.call("dnnl_post_ops_append_eltwise", after, c_int(dnnl.RELU), c_float(0), c_float(0))
        attributes = self._dnnl.create("dnnl_primitive_attr_create", destroy="dnnl_primitive_attr_destroy")
        self._dnnl.call("dnnl_primitive_attr_set_post_ops", attributes, after)
        return attributes

    def _append(self, kind: str, description: Opaque, constants: dict[int, Opaque], written: Opaque, into: int) -> None:
        name = f"{kind} {list(self._shape)} by {self._dnnl.implementation(description)}"
        primitive = self._dnnl.primitive(description)
        self._steps.append(_Step(name, primitive, constants, self._layout, written, self._at, into))
        self._layout, self._at = written, into

    def _reorder(self, layout: Opaque, into: int) -> None:
        self._append("reorder", self._reordering(self._layout, layout), {}, layout, into)

    def _reordering(self, a: Opaque, b: Opaque) -> Opaque:
        arguments = (a, self._dnnl.engine, b, self._dnnl.engine, None)
        return self._dnnl.create(
            "dnnl_reorder_primitive_desc_create", *arguments, destroy="dnnl_primitive_desc_destroy"
        )

    def _constant(self, values: FloatArray, layout: Opaque) -> Opaque:
        """`values` in the layout that a primitive wants them in, kept with the chain."""
        values, rows = np.ascontiguousarray(values, np.float32), self._dnnl.rows(values.shape)
        if self._dnnl.is_same(rows, layout):
            self._kept.append(values)
            return self._dnnl.memory(layout, values.ctypes.data)
        block = _aligned(self._dnnl.size(layout))
        self._kept.append(block)
        memory = self._dnnl.memory(layout, block.ctypes.data)
        ends = {dnnl.SRC: self._dnnl.memory(rows, values.ctypes.data), dnnl.DST: memory}
        self._dnnl.execute(self._dnnl.primitive(self._reordering(rows, layout)), ends)
        return memory

    def _buffer(self, layout: Opaque) -> int:
        """Number of a new buffer of the chain's own."""
        number = 2 + len(self._buffers)
        self._buffers[number] = _aligned(self._dnnl.size(layout))
        return number


def _aligned(size: int) -> Bytes:
    """Memory of its own that starts at a line."""
    block = np.empty(size + LINE, np.uint8)
    start = -block.ctypes.data % LINE
    return block[start : start + size]

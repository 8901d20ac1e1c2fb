"""Discrete Fourier transforms of a signal, and of its frames: products with a constant matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.graph.attributes import Bool, Int
from renorm.graph.op import OnnxNode
from renorm.ops.shared import fourier
from renorm.ops.shared.composite import Composite, apply
from renorm.ops.shared.told import numbers


class Dft(Composite):
    """y[k] = sum over t of x[t] * e^(-2 pi i t k / length), or its inverse. The last axis has the real part, or that
    and the imaginary one. A signal is cut or continued by zeros to dft_length. onesided: half of the result, which the
    other half mirrors where x is real; of an inverse half of x, whose result is real."""

    takes = "x, dft_length?, axis?"
    onnx = {"DFT": 17}
    axis = Int(None)
    inverse = Bool(False)
    onesided = Bool(False)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, *_ = operands
        length, told = numbers(node, 1, "dft_length"), numbers(node, 2, "axis")
        given = self.axis if self.axis is not None else 1 if node.opset < 20 else -2
        axis = normalize_axis(int(told[0]) if told else given, x.rank)
        if axis == x.rank - 1:
            raise OperandError(f"DFT({x.type}): axis {axis} is that of real and imaginary parts")
        n, parts, to_real = x.shape[axis], x.shape[-1], self.inverse and self.onesided
        if parts not in (1, 2) or (not isinstance(n, int) and to_real):
            raise OperandError(f"DFT({x.type}): axis {axis} and the last, 1 or 2, must be known", do="give shapes=")
        if not isinstance(n, int) and not length:
            return _on_parts(x, axis, self._open)
        wanted = int(length[0]) if length else 2 * (n - 1) if to_real else n
        held = wanted // 2 + 1 if to_real else wanted
        if fourier.is_whole(wanted):
            x = x if isinstance(n, int) else _of_length(x, axis, held)
            return self._whole(x, axis, wanted)
        return _on_parts(_of_length(x, axis, held), axis, lambda signal: self._in_parts(signal, wanted))

    def _whole(self, x: Any, axis: int, length: int) -> Any:
        """Return the transform by one matrix, of real and imaginary parts as they lie."""
        n, parts = x.shape[axis], int(x.shape[-1])
        to_real = self.inverse and self.onesided
        made = fourier.real_parts_of(n, length) if to_real else fourier.parts_of(n, length, self.onesided, self.inverse)
        matrix = made[:, :parts]
        order = [*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1]
        flat = apply("reshape", apply("transpose", x, perm=order), np.array([0] * (x.rank - 2) + [n * parts]))
        y = apply("matmul", flat, matrix.reshape(n * parts, -1).astype(numpy_dtype(x.dtype)))
        y = apply("reshape", y, np.array([0] * (x.rank - 2) + list(matrix.shape[2:])))
        return apply("transpose", y, perm=np.argsort(order).tolist())

    def _in_parts(self, signal: list[Any], length: int) -> list[Any]:
        """Return the transform of a signal of known length, part by part."""
        if self.inverse and self.onesided:
            return [fourier.signal_of_half(signal, length, 1.0)]
        made = fourier.transformed(signal, length, self.inverse)
        if self.inverse:
            return [apply("mul", y, np.asarray(1 / length, numpy_dtype(y.dtype))) for y in made]
        return (
            [apply("slice", y, np.array([0]), np.array([length // 2 + 1]), np.array([-1])) for y in made]
            if self.onesided
            else made
        )

    def _open(self, signal: list[Any]) -> list[Any]:
        """Return the transform of a signal of open length n: the matrix is computed in each call, of t k mod n, which
        is exact."""
        first, *imaginary = signal
        n = apply("slice", apply("shape", first), np.array([-1]), np.array([first.rank]))
        count = apply("add", apply("div", n, np.array([2])), np.array([1])) if self.onesided else n
        ends = (apply("reshape", size, np.array([], np.int64)) for size in (n, count))
        t, k = (apply("range", np.array(0), end, np.array(1)) for end in ends)
        turns = apply("mod", apply("mul", apply("unsqueeze", t, axes=(1,)), k), n)
        one_turn = np.array(2 * np.pi * (-1 if self.inverse else 1))
        angle = apply("mul", apply("cast", turns, to="float64"), apply("div", one_turn, apply("cast", n, to="float64")))
        cos, sin = (apply("cast", apply(name, angle), to=first.dtype) for name in ("cos", "sin"))
        made = [apply("matmul", first, cos), apply("neg", apply("matmul", first, sin))]
        for x in imaginary:
            made = [apply("add", y, apply("matmul", x, m)) for y, m in zip(made, (sin, cos))]
        return [apply("div", y, apply("cast", n, to=y.dtype)) for y in made] if self.inverse else made


def _of_length(x: Any, axis: int, n: int) -> Any:
    """Return a signal that is cut to n elements along an axis, or continued by zeros."""
    own, pads = x.shape[axis], np.zeros(2 * x.rank, np.int64)
    if not isinstance(own, int) or own < n:
        pads[x.rank + axis] = n - own if isinstance(own, int) else n
        x = apply("pad", x, pads)
    return x if own == n else apply("slice", x, np.array([0]), np.array([n]), np.array([axis]))


def _on_parts(x: Any, axis: int, f: Callable[[list[Any]], list[Any]]) -> Any:
    """Return what f makes of the real part of x, and the imaginary one if any, along an axis that lies last in them."""
    order = [*(a for a in range(x.rank - 1) if a != axis), axis]
    ends = range(int(x.shape[-1]))
    parts = (apply("slice", x, np.array([p]), np.array([p + 1]), np.array([-1])) for p in ends)
    made = f([apply("transpose", apply("squeeze", p, axes=(-1,)), perm=order) for p in parts])
    both = [apply("unsqueeze", apply("transpose", y, perm=np.argsort(order).tolist()), axes=(-1,)) for y in made]
    return apply("concat", *both, axis=-1)


class Stft(Composite):
    """y[n, f] = the transform of x[n, f * frame_step + t] * window[t], t = 0 .. frame_length - 1."""

    takes = "x, frame_step, window?, frame_length?"
    onnx = {"STFT": 17}
    onesided = Bool(True)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, _, window, _ = operands
        step, given = numbers(node, 1, "frame_step") or [0], numbers(node, 3, "frame_length")
        length = int(given[0]) if given else None if window is None else window.shape[0]
        if not isinstance(length, int) or int(step[0]) < 1 or (window is not None and window.shape[0] != length):
            raise OperandError(f"STFT({x.type}): frame_length must be known, that of the window, and frame_step > 0")
        parts = 1 if x.rank == 2 else x.shape[2]
        if parts not in (1, 2):
            raise OperandError(f"STFT({x.type}): the last axis, of 1 or 2 elements, must be known", do="give shapes=")
        # a convolution: [N, parts, L] by [2 * frequencies, parts, frame_length]
        matrix = fourier.parts_of(length, length, self.onesided, False)[:, :parts].transpose(2, 3, 1, 0)
        weight: Any = matrix.reshape(-1, int(parts), length).astype(numpy_dtype(x.dtype))
        if window is not None:
            weight = apply("mul", window, weight)
        signal = apply("unsqueeze", x, axes=(1,)) if x.rank == 2 else apply("transpose", x, perm=(0, 2, 1))
        y = apply("conv", signal, weight, strides=(int(step[0]),))
        y = apply("reshape", y, np.array([0, len(matrix), 2, -1]))
        return apply("transpose", y, perm=(0, 3, 1, 2))

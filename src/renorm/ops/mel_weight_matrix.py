"""Triangles over the frequencies of a spectrum, as features of speech are weighed by."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core import conversion
from renorm.core.errors import OperandError
from renorm.core.limits import DEFAULT
from renorm.graph.attributes import Type
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite
from renorm.ops.shared.told import numbers

_TAKES = ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz")


class MelWeightMatrix(Composite):
    """y[f, m]: over frequencies f of a spectrum of dft_length, up from 0 at edge m to 1 at edge m + 1, down to 0 at
    edge m + 2. Edges are equally far apart on the mel scale, 2595 log10(1 + hertz / 700), and cut to frequencies."""

    takes = ", ".join(_TAKES)
    output_datatype = Type("float32")
    onnx = {"MelWeightMatrix": 17}

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        told = [numbers(node, k, what) for k, what in enumerate(_TAKES)]
        if any(len(n or ()) != 1 for n in told):
            raise OperandError(f"{node.op_type}: each of {', '.join(_TAKES)} is one number")
        bands, length, rate, lower, upper = (n[0] for n in told if n)
        if bands < 1 or length < 1 or rate < 1 or not 0 <= lower <= upper < np.inf:
            raise OperandError(f"{node.op_type}: {bands} bands of {lower} to {upper} Hz, of {length} at {rate} Hz")
        DEFAULT.check(node.name, [("elements", (length // 2 + 1) * bands, "")])
        return conversion.converted(weights(bands, length, rate, lower, upper), self.output_datatype)


def weights(bands: int, length: int, rate: int, lower: float, upper: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the weight of each frequency in each band. Raises OperandError where an edge is beyond the spectrum."""
    low, high = (2595 * np.log1p(hertz / 700) / np.log(10) for hertz in (lower, upper))
    mel = np.arange(bands + 2) * ((high - low) / (bands + 2)) + low
    hertz = 700 * np.expm1(mel / 2595 * np.log(10))
    edges = np.floor((length + 1) * hertz / rate)
    count = length // 2 + 1
    if edges[-2] >= count or edges[-1] > count:
        raise OperandError(f"an edge at {hertz[-1]:.0f} Hz is beyond {count} frequencies up to {rate / 2:g} Hz")
    f, (left, middle, right) = np.arange(count)[:, None], (edges[k : k + bands] for k in range(3))
    up = np.where(middle > left, (f - left) / np.maximum(middle - left, 1), 1)
    down = (right - f) / np.maximum(right - middle, 1)
    return np.where((middle <= f) & (f < right), down, np.where((left <= f) & (f <= middle), up, 0))

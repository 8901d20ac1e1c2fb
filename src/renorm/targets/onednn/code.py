"""The code of a group of nodes: a chain of primitives, and the recipe it was made by, for artifacts."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from renorm.core import records
from renorm.runtime.external import ExternalCode
from renorm.runtime.report import WorkRecord
from renorm.targets.onednn.chain import Chain, FloatArray, Window


@dataclass(frozen=True)
class Stage:
    """One product or norm of a chain, and a ReLU after it if has_relu.

    kind: an op's name: "conv", "conv_transpose" (arrays: weight, perhaps bias; with a window), or "batch_norm" (arrays:
    scale, bias, mean, variance; with an epsilon). shape: of its result.
    """

    kind: str
    shape: tuple[int, ...]
    arrays: tuple[FloatArray, ...]
    has_relu: bool = False
    window: Window | None = None
    epsilon: float = 0.0

    def append_to(self, chain: Chain) -> None:
        if self.window is None:
            chain.normalize(self.arrays, self.epsilon, self.has_relu)
            return
        weight, bias = self.arrays[0], self.arrays[1] if len(self.arrays) > 1 else None
        append = chain.convolve if self.kind == "conv" else chain.convolve_transposed
        append(self.shape, weight, bias, self.window, self.has_relu)

    def flops(self, operand: Sequence[int]) -> int:
        """Operations at least; a multiplication and an addition count as two."""
        if self.window is None:
            return 2 * prod(self.shape)
        shape = self.shape if self.kind == "conv" else operand  # the weight is applied at each of its positions
        return 2 * prod(shape) // shape[1] * self.arrays[0].size


class Code(ExternalCode):
    """Stages on an operand of `shape`. Raises library.Unimplemented where oneDNN has no primitive for one of them."""

    loader = "onednn"

    def __init__(self, shape: Sequence[int], stages: Sequence[Stage]):
        self._shape, self._stages = tuple(shape), tuple(stages)
        self._chain = Chain(shape)
        flops, operand = 0, self._shape
        for stage in stages:
            stage.append_to(self._chain)
            flops, operand = flops + stage.flops(operand), stage.shape
        self._chain.finish()
        elements = prod(shape) + prod(operand) + sum(a.size for s in stages for a in s.arrays)
        self.work = WorkRecord(flops, 4 * elements)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self._chain.run(inputs[0], outputs[0])

    @property
    def source(self) -> str:
        return self._chain.source

    def save(self) -> bytes:
        """Return the recipe: constants as they are in the model. oneDNN arranges them anew for the machine that loads
        them."""
        recipe = [records.plain(s, without=("arrays",)) for s in self._stages]
        arrays: dict[str, Any] = {f"{i}.{j}": a for i, s in enumerate(self._stages) for j, a in enumerate(s.arrays)}
        file = io.BytesIO()
        np.savez(file, recipe=np.array(json.dumps([self._shape, recipe])), **arrays)
        return file.getvalue()


def load(data: bytes) -> Code:
    """Return the code that `save` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        shape, recipe = json.loads(str(file["recipe"]))
        arrays = [tuple(file[name] for name in file.files if name.startswith(f"{i}.")) for i in range(len(recipe))]
    return Code(shape, [records.record(Stage, stage, arrays=held) for stage, held in zip(recipe, arrays)])

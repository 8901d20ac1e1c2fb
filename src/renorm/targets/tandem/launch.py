"""A launch of Tandem as external code: a program with its weights and parameters, which the simulator runs.

Nothing here needs the compiler: an artifact loads this module.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm.runtime.external import ExternalCode
from renorm.targets.tandem import simulate
from renorm.targets.tandem.instructions import Program, parse
from renorm.targets.tandem.machine import cost

Array = np.ndarray[Any, Any]


class TandemCode(ExternalCode):
    """program: what is executed. weights: int16[M, C/groups, KH, KW]. parameters: float32[2, M], k and t."""

    loader = "tandem"

    def __init__(self, program: Program, weights: Array, parameters: Array):
        self.program, self.weights, self.parameters = program, weights, parameters
        self.cost = cost(program)
        self.work = self.cost.work

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        simulate.run(self.program, self.weights, self.parameters, inputs[0], outputs[0])

    @property
    def source(self) -> str:
        """The program, and what it costs."""
        return f"; {self.cost}\n{self.program}"

    def save(self) -> bytes:
        file = io.BytesIO()
        text = np.frombuffer(str(self.program).encode(), np.uint8)
        np.savez(file, program=text, weights=self.weights, parameters=self.parameters)
        return file.getvalue()


def load(data: bytes) -> TandemCode:
    """Return the launch that `TandemCode.save` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as held:
        return TandemCode(parse(held["program"].tobytes().decode()), held["weights"], held["parameters"])

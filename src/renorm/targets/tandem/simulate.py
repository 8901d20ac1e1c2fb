"""Executes Tandem's programs, instruction by instruction, bit by bit."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.targets.tandem import machine, numbers
from renorm.targets.tandem.instructions import (
    Conv,
    Instruction,
    LoadP,
    LoadW,
    LoadX,
    Norm,
    Program,
    Range,
    Scan,
    Store,
)

Array = np.ndarray[Any, Any]


def run(program: Program, weights: Array, parameters: Array, x: Array, y: Array) -> None:
    """Write what the program makes of x to y. weights: int16[M, C/groups, KH, KW]; parameters: float32[2, M], k and t;
    x: float32[N, C, H, W]; y: float32[N, M, OH, OW].

    Raises InvalidInput for an activation that is not finite, InvalidArtifact for a program that asks for more than the
    machine has, or for what is not there.
    """
    memory = {"input": (x, program.input), "weights": (weights, program.weights), "output": (y, program.output)}
    wrong = [
        f"{name} {list(a.shape)}, expected {list(shape)}" for name, (a, shape) in memory.items() if a.shape != shape
    ]
    if parameters.shape != (2, program.weights[0]):
        wrong.append(f"parameters {list(parameters.shape)}, expected {[2, program.weights[0]]}")
    if wrong:
        raise InvalidArtifact("the arrays do not fit the program", wrong)
    state = _State(weights, parameters, x, y)
    for number, instruction in enumerate(program.instructions):
        try:
            state.execute(instruction)
        except _StopError as error:
            raise InvalidArtifact(f"instruction {number}, `{instruction}`: {error}") from error


class _StopError(Exception):
    """The machine cannot do this."""


@dataclass
class _State:
    """Memory, and what is on the chip: the buffers as the last instructions left them."""

    w: Array
    p: Array
    x: Array
    y: Array
    e: int = 0
    weights: Array = field(default_factory=lambda: np.zeros((0, 0, 0, 0), np.int16))
    parameters: Array = field(default_factory=lambda: np.zeros((2, 0), np.float32))
    inputs: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.int16))
    sums: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.int64))
    outputs: Array = field(default_factory=lambda: np.zeros((0, 0, 0), np.float32))

    def execute(self, i: Instruction) -> None:
        match i:
            case Scan():
                if not np.isfinite(self.x).all():
                    raise InvalidInput("tandem computes with integers: the input holds NaN or infinity")
                self.e = int(numbers.exponent(np.abs(self.x).max(initial=0)))
            case LoadW():
                self.weights = self.w[_within(i.m, self.w.shape[0]), _within(i.c, self.w.shape[1])]
                _fits(self.weights.size, machine.WEIGHTS, "weight buffer")
            case LoadP():
                self.parameters = self.p[:, _within(i.m, self.p.shape[1])]
                _fits(self.parameters.shape[1], machine.CHANNELS, "table of parameters")
            case LoadX():
                self._load(i)
            case Conv():
                self._convolve(i)
            case Norm():
                if len(self.sums) != self.parameters.shape[1]:
                    raise _StopError(f"{len(self.sums)} channels, parameters of {self.parameters.shape[1]}")
                k, t = self.parameters
                self.outputs = numbers.per_channel(self.sums, k, t, self.e, i.relu)
            case Store():
                _within((i.n, i.n + 1), self.y.shape[0])
                box = tuple(_within(r, extent) for r, extent in zip((i.m, i.h, i.w), self.y.shape[1:]))
                into = self.y[i.n][box]
                if into.shape != self.outputs.shape:
                    raise _StopError(f"the output buffer holds {list(self.outputs.shape)}")
                into[...] = self.outputs

    def _load(self, i: LoadX) -> None:
        _within((i.n, i.n + 1), self.x.shape[0])
        channels, height, width = _within(i.c, self.x.shape[1]), *self.x.shape[2:]
        shape = (i.c[1] - i.c[0], i.h[1] - i.h[0], i.w[1] - i.w[0])
        if min(shape) < 0:
            raise _StopError(f"a box of {list(shape)}")
        _fits(prod(shape), machine.INPUT, "input buffer")
        top, left = max(i.h[0], 0), max(i.w[0], 0)
        held = self.x[i.n, channels, top : max(top, min(i.h[1], height)), left : max(left, min(i.w[1], width))]
        self.inputs = np.zeros(shape, np.int16)
        box = self.inputs[:, top - i.h[0] :, left - i.w[0] :][:, : held.shape[1], : held.shape[2]]
        box[...] = numbers.integers(held, self.e)

    def _convolve(self, i: Conv) -> None:
        m, c, *kernel = self.weights.shape
        groups = i.groups
        if min(i.rows, i.columns, *i.strides, *i.dilations, groups) < 1 or not self.weights.size:
            raise _StopError(f"a count or step below 1, or weights of {list(self.weights.shape)}")
        _fits(m * i.rows * i.columns, machine.SUMS, "accumulators")
        reach = [d * (k - 1) + 1 for d, k in zip(i.dilations, kernel)]
        needed = [s * (n - 1) + r for s, n, r in zip(i.strides, (i.rows, i.columns), reach)]
        if m % groups or self.inputs.shape != (c * groups, *needed):
            raise _StopError(f"it reads {[c * groups, *needed]}, the input buffer holds {list(self.inputs.shape)}")
        windows = np.lib.stride_tricks.sliding_window_view(self.inputs, reach, (1, 2))
        windows = windows[:, :: i.strides[0], :: i.strides[1], :: i.dilations[0], :: i.dilations[1]]
        # [G, C, R, C, KH, KW] -> [G, C * KH * KW, R * C]; in float64 all of it is integers below 2^53, hence exact
        columns = windows.reshape(groups, c, i.rows, i.columns, *kernel).transpose(0, 1, 4, 5, 2, 3)
        columns = columns.reshape(groups, -1, i.rows * i.columns).astype(np.float64)
        made = self.weights.reshape(groups, m // groups, -1).astype(np.float64) @ columns
        sums = made.astype(np.int64).reshape(m, i.rows, i.columns)
        if not i.is_first and self.sums.shape != sums.shape:
            raise _StopError(f"the accumulators hold {list(self.sums.shape)}")
        self.sums = sums if i.is_first else self.sums + sums
        if np.abs(self.sums).max(initial=0) >= 1 << 47:
            raise _StopError("a sum overflows 48 bits")


def _within(r: Range, extent: int) -> slice:
    if not 0 <= r[0] <= r[1] <= extent:
        raise _StopError(f"{r[0]}:{r[1]} of {extent}")
    return slice(*r)


def _fits(size: int, capacity: int, buffer: str) -> None:
    if size > capacity:
        raise _StopError(f"{size} elements, the {buffer} holds {capacity}")

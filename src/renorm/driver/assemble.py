"""Kernels become a program: an address for every parameter, weights in one array, buffers in one arena."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from renorm.codegen.abi import CompiledKernel
from renorm.core.dims import static
from renorm.core.dtypes import itemsize, numpy_dtype
from renorm.driver import barriers
from renorm.driver.barriers import Launch
from renorm.driver.groups import Call
from renorm.driver.lowering import Parameter
from renorm.graph.ir import Graph, Value
from renorm.ops.schedules.layout import Form
from renorm.passes import memory
from renorm.runtime.program import ALIGNMENT, Argument, Code, Machine, Program, Step, TensorSpec, Weight, align
from renorm.runtime.report import MemoryRecord, Report


def assemble(
    graph: Graph,
    lowered: Sequence[Call],
    compiled: Sequence[CompiledKernel],
    codes: Sequence[int],
    machine: Machine,
) -> tuple[Program, np.ndarray[Any, Any]]:
    """The program and its weights. codes: for each step of `lowered`, the index of its kernel in `compiled`."""
    weights = _Weights()
    where: dict[int, Argument] = {id(v): Argument("input", i) for i, v in enumerate(graph.inputs)}
    where |= {id(v): Argument("output", i) for i, v in enumerate(graph.outputs)}
    lifetimes, index = _lifetimes(lowered, compiled, codes, set(where))
    plan = memory.plan(lifetimes)

    def address(p: Parameter | Value) -> Argument:
        value = p.value if isinstance(p, Parameter) else p
        if isinstance(p, Parameter) and value.is_constant:
            return Argument("weight", weights.place(p))
        return where[id(value)] if id(value) in where else Argument("arena", plan.offsets[index[id(value)]])

    launches: list[Launch] = []
    for at, (one, code) in enumerate(zip(lowered, codes)):
        args = [address(p) for p in (*one.reads, *one.writes)]
        spaces = [Argument("arena", plan.offsets[index[at, w]]) for w in range(len(compiled[code].workspace))]
        nbytes = (*one.nbytes, *compiled[code].workspace)
        launches.append(Launch(compiled[code], (*args, *spaces), nbytes))
    steps = tuple(
        Step(one.name, code, tuple(launch.args), waits)
        for one, code, launch, waits in zip(lowered, codes, launches, barriers.waits(launches))
    )
    stored = weights.array()
    program = Program(
        machine=machine,
        inputs=_specs(graph.inputs),
        outputs=_specs(graph.outputs),
        codes=tuple(Code(i, c.phases, align(c.scratch), barriers.chunks(c)) for i, c in enumerate(compiled)),
        steps=steps,
        arena_bytes=plan.size,
        weight_bytes=stored.nbytes,
        nanoseconds=sum(compiled[code].nanoseconds for code in codes),
        weights=tuple(weights.records),
        report=Report(memory=MemoryRecord(stored.nbytes, plan.size, plan.lower_bound)),
    )
    return program, stored


def _lifetimes(
    lowered: Sequence[Call], compiled: Sequence[CompiledKernel], codes: Sequence[int], elsewhere: set[int]
) -> tuple[list[memory.Lifetime], dict[Any, int]]:
    """What must be in the arena, from which step to which; and where in that list a value or a workspace stands."""
    lifetimes: list[memory.Lifetime] = []
    index: dict[Any, int] = {}
    last: dict[int, int] = {}
    for at, one in enumerate(lowered):
        last.update({id(p.value): at for p in one.reads})
    for at, (one, code) in enumerate(zip(lowered, codes)):
        for v in one.writes:
            if id(v) not in elsewhere:
                index[id(v)] = len(lifetimes)
                lifetimes.append(memory.Lifetime(_nbytes(v), at, last.get(id(v), at)))
        for w, size in enumerate(compiled[code].workspace):
            index[at, w] = len(lifetimes)
            lifetimes.append(memory.Lifetime(size, at, at))
    return lifetimes, index


class _Weights:
    """Constants at aligned offsets; one that several kernels read in one form is stored once."""

    def __init__(self) -> None:
        self.records: list[Weight] = []
        self._parameters: list[Parameter] = []
        self._placed: dict[tuple[int, Form | None], int] = {}
        self._end = 0

    def place(self, p: Parameter) -> int:
        """Byte offset of a constant."""
        key = (id(p.value.data), p.form)
        if key not in self._placed:
            self._placed[key] = self._end
            self.records.append(Weight(p.value.name, p.value.dtype, p.shape, self._end))
            self._parameters.append(p)
            self._end = align(self._end + prod(p.shape) * itemsize(p.value.dtype))
        return self._placed[key]

    def array(self) -> np.ndarray[Any, Any]:
        """All of them, ALIGNMENT-aligned."""
        held = np.empty(self._end + ALIGNMENT, np.uint8)
        start = -held.ctypes.data % ALIGNMENT
        held = held[start : start + self._end]
        for record, p in zip(self.records, self._parameters):
            end = record.offset + prod(p.shape) * itemsize(record.dtype)
            p.write(held[record.offset : end].view(numpy_dtype(record.dtype)).reshape(p.shape))
            held[end : align(end)] = 0
        held.flags.writeable = False  # the module then uses it as it is
        return held


def _nbytes(v: Value) -> int:
    return prod(static(v.shape)) * itemsize(v.dtype)


def _specs(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(v.name, v.dtype, static(v.shape)) for v in values)

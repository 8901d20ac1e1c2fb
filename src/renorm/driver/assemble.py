"""Kernels become a program: an address for every parameter, weights in one array, buffers in one arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.codegen.abi import CompiledKernel
from renorm.core.dims import static
from renorm.core.limits import Limits
from renorm.driver import barriers
from renorm.driver.barriers import BoundKernel, Operand
from renorm.driver.buffers import Buffers
from renorm.driver.groups import KernelCall
from renorm.driver.lowering import Parameter
from renorm.driver.weights import Weights
from renorm.graph.ir import Graph, Value
from renorm.graph.strided_region import StridedRegion
from renorm.passes import memory
from renorm.runtime.program import Argument, Code, External, Machine, Program, Step, TensorSpec, align
from renorm.runtime.report import MemoryRecord, Report, RunRecord


def assemble(
    graph: Graph,
    lowered: Sequence[KernelCall],
    compiled: Sequence[CompiledKernel],
    codes: Sequence[int],
    machine: Machine,
    limits: Limits,
) -> tuple[Program, np.ndarray[Any, Any]]:
    """Return the program and its weights. codes: for each step of `lowered`, the index of its kernel in `compiled`.
    Raises LimitExceeded where they take more memory than is allowed."""
    weights = Weights()
    kernels = [compiled[code] for code in codes]
    buffers = Buffers(graph, lowered, kernels)
    lifetimes = buffers.lifetimes()
    spaces = [(step, size) for step, kernel in enumerate(kernels) for size in static(kernel.workspace)]
    plan = memory.plan([*lifetimes.values(), *([memory.Lifetime(size, step, step)] for step, size in spaces)])
    where = {v: Argument("arena", at) for v, at in zip(lifetimes, plan.offsets)}
    where |= {v: Argument("input", i) for i, v in enumerate(graph.inputs)}
    where |= {v: Argument("output", i) for i, v in enumerate(graph.outputs)}
    space_offsets = iter(plan.offsets[len(lifetimes) :])

    def operand(p: Parameter) -> Operand:
        buffer, region = buffers.region(p.value)
        if buffer.is_constant:
            at = Argument("weight", weights.place(replace(p, value=buffer)), region.offset)
        else:
            at = replace(where[buffer], offset=region.offset)
        return Operand(at, region)

    launches: list[BoundKernel] = []
    for one, kernel in zip(lowered, kernels):
        operands = [operand(p) for p in (*one.reads, *(Parameter(v) for v in one.writes))]
        operands += [
            Operand(Argument("arena", next(space_offsets)), StridedRegion(0, size)) for size in static(kernel.workspace)
        ]
        launches.append(BoundKernel(kernel, operands))
    steps = tuple(
        Step(one.name, code, tuple(o.at for o in launch.operands), waits)
        for one, code, launch, waits in zip(lowered, codes, launches, barriers.waits(launches))
    )
    limits.check(graph.name, [("bytes", plan.size + weights.nbytes, f"{plan.size} between kernels, and weights")])
    stored = weights.array(graph)
    chunks = [barriers.chunks(kernel) for kernel in compiled]
    run = RunRecord(
        sum(extent > 0 for kernel in kernels for extent in static(kernel.phases)),
        sum(wait for step in steps for wait in step.waits),
        sum(chunk > 0 for code in codes for chunk in chunks[code]),
    )
    program = Program(
        machine=machine,
        inputs=_specs(graph.inputs),
        outputs=_specs(graph.outputs),
        codes=_codes(compiled, chunks),
        externals=tuple(
            External(kernel.external.loader, _specs([p.value for p in one.reads]), _specs(one.writes))
            for one, kernel in zip(lowered, kernels)
            if kernel.external
        ),
        steps=steps,
        arena_bytes=plan.size,
        weight_bytes=stored.nbytes,
        nanoseconds=sum(compiled[code].nanoseconds for code in codes),
        weights=tuple(weights.records),
        report=Report(memory=MemoryRecord(stored.nbytes, plan.size, plan.lower_bound), run=run),
    )
    return program, stored


def _codes(compiled: Sequence[CompiledKernel], chunks: Sequence[tuple[int, ...]]) -> tuple[Code, ...]:
    """Machine code and external code are counted apart."""
    found, counts = list[Code](), [0, 0]
    for c, chunk in zip(compiled, chunks):
        is_external = c.external is not None
        found.append(Code(counts[is_external], static(c.phases), align(*static([c.scratch])), chunk, is_external))
        counts[is_external] += 1
    return tuple(found)


def _specs(values: Sequence[Value]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(v.name, v.dtype, static(v.shape)) for v in values)

"""Digests of one compiled program: of each kernel, and of how the program is put together.

Only what a user can measure is in them (code, memory, weights, fates of norms), and the loops, which say whether a
difference of code comes from above `codegen` or from within. They are read off the stages of driver.compile, since a
module does not keep what its kernels were predicted to take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from renorm.codegen import llvm, structural_hash
from renorm.codegen.cuda.source import generate
from renorm.core.errors import RenormError
from renorm.core.target import Target
from renorm.driver.assemble import assemble
from renorm.driver.cache import Cache
from renorm.driver.compile import optimized, options_of
from renorm.driver.kernels import Compiler, machine_for
from renorm.driver.lowering import lower_group
from renorm.graph.ir import Graph
from renorm.passes import pipeline
from renorm.runtime.report import Report
from renorm.tir.nodes import Kernel

DIGITS = 16  # hexadecimal, of each digest


@dataclass(frozen=True)
class KernelDigest:
    """One launch. nodes: names of those that it runs. loops: of the loop program, where schedules have all registers.
    code: of the object, or of the CUDA text; "" where only loops were asked for. spills: in hot loops. nanoseconds: of
    one thread, as predicted."""

    loops: str
    code: str = ""
    spills: int = 0
    nanoseconds: int = 0
    nodes: str = ""


@dataclass(frozen=True)
class Program:
    """A compiled graph. kernels: by name. layouts: of values that are not row-major, or lie within another one. norms:
    what became of each. refusals: of rewrites. arena, weights: bytes. plan: of addresses and barriers; constants: of
    all weights as they are stored. error: why there is no program."""

    kernels: dict[str, KernelDigest] = field(default_factory=dict[str, KernelDigest])
    layouts: dict[str, str] = field(default_factory=dict[str, str])
    norms: dict[str, str] = field(default_factory=dict[str, str])
    refusals: str = ""
    arena: int = 0
    weights: int = 0
    plan: str = ""
    constants: str = ""
    error: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON: what is empty is left out."""
        kernels = {name: _filled(k) for name, k in self.kernels.items()}
        return _filled(self) | ({"kernels": kernels} if kernels else {})

    @staticmethod
    def of(data: dict[str, Any]) -> Program:
        """Return the program of which `plain` gave the data."""
        kernels = {name: KernelDigest(**k) for name, k in data.get("kernels", {}).items()}
        given: dict[str, Any] = {**data, "kernels": kernels}
        return Program(**given)


def network(source: Graph, target: Target, level: int, cache: Cache | None) -> Program:
    """Return the digests of a graph of fixed extents. cache: of kernels; None stops before LLVM, which takes most of
    the time."""
    try:
        if target.is_gpu:  # kernels as texts: nothing launches them yet
            graph, report = pipeline.optimize(source.copy(), level=level, target=target)
            return _about(graph, report, _lowered(graph, target))
        options = options_of(target, level)
        graph, report = optimized(source, {}, options)
        lowered = _lowered(graph, target)
        if cache is None:
            return _about(graph, report, lowered)
        compiler = Compiler(graph, target, cache, lambda stage, done, of: None)
        compiler.lower()
        kernels, _ = compiler.compile()
        required = machine_for(target, cache)
        made, weights = assemble(graph, kernels.calls, kernels.compiled, kernels.codes, required, options.limits)
        for call, code in zip(kernels.calls, (kernels.compiled[i] for i in kernels.codes), strict=True):
            one = lowered[call.name]
            lowered[call.name] = replace(
                one, code=_bytes(code.object), spills=code.spills, nanoseconds=code.nanoseconds
            )
        return replace(
            _about(graph, report, lowered),
            arena=made.arena_bytes,
            weights=made.weight_bytes,
            plan=_text(*(f"{step.code} {step.args} {step.waits}" for step in made.steps)),
            constants=_bytes(weights.tobytes()),
        )
    except RenormError as error:
        return Program(error=_failure(error))


def single(kernels: Sequence[Kernel], target: Target, cache: Cache | None) -> Program:
    """Return the digests of kernels that were built one by one."""
    try:
        found = dict[str, KernelDigest]()
        for i, kernel in enumerate(kernels):
            found[f"{i} {kernel.name}"] = one = _kernel(kernel, target)
            if cache is not None and not target.is_gpu:
                code = llvm.compile_kernel(kernel, target)
                found[f"{i} {kernel.name}"] = replace(
                    one, code=_bytes(code.object), spills=code.spills, nanoseconds=code.nanoseconds
                )
        return Program(found)
    except RenormError as error:
        return Program(error=_failure(error))


def _lowered(graph: Graph, target: Target) -> dict[str, KernelDigest]:
    users = graph.user_map()
    return {
        group.name: replace(
            _kernel(lower_group(graph, group, target, users).kernel, target),
            nodes=" ".join(n.name for n in group.nodes),
        )
        for group in graph.launches
    }


def _kernel(kernel: Kernel, target: Target) -> KernelDigest:
    """Loops, and the CUDA text of a GPU, which costs nothing."""
    loops = _text(structural_hash.text(kernel))
    if not target.is_gpu:
        return KernelDigest(loops)
    made = generate(kernel, target)
    return KernelDigest(loops, _text(made.source, *(f"{x.name} {x.grid} {x.block}" for x in made.launches)))


def _about(graph: Graph, report: Report, kernels: dict[str, KernelDigest]) -> Program:
    layouts = {v.name: str(v.layout) for v in graph.values() if v.layout and not v.is_constant}
    for v in graph.values():
        if v.within:
            p = v.within.region
            at = f"in {v.within.value.name} at {p.offset}, {p.rows} x {p.run} every {p.pitch}"
            layouts[v.name] = f"{layouts.get(v.name, '')} {at}".strip()
    norms = {n.name: f"{n.kind} {n.fate} {' '.join(n.into)} {n.reason}".strip() for n in report.norms}
    return Program(kernels, layouts, norms, _text(*map(str, report.refusals)) if report.refusals else "")


def _filled(record: Program | KernelDigest) -> dict[str, Any]:
    return {k: v for k, v in vars(record).items() if v}


def _failure(error: RenormError) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def _text(*lines: str) -> str:
    return _bytes("\n".join(lines).encode())


def _bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGITS]

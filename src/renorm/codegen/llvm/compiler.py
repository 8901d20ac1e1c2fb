"""`compile_kernel` turns a loop program into a CompiledKernel (see codegen.abi)."""

from __future__ import annotations

from renorm.codegen import structural_hash as structures
from renorm.codegen.abi import CompiledKernel
from renorm.codegen.accesses import access
from renorm.codegen.estimates import Estimates
from renorm.codegen.identity import identity
from renorm.codegen.in_place import in_place
from renorm.codegen.llvm import machine
from renorm.codegen.llvm.kernel import module
from renorm.codegen.llvm.spills import spills
from renorm.codegen.open_sizes import OpenSizes
from renorm.codegen.phases import cut
from renorm.core.errors import InvalidTarget
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.tir.nodes import Kernel
from renorm.tir.passes import prepare
from renorm.tir.verify import verify


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Machine code of a kernel.

    The loops are verified first, and go through tir.passes. Raises InvalidTarget, InvalidLoops, and InternalError with
    the IR where LLVM rejects what was generated.
    """
    _check(target)
    verify(kernel, target)
    phases, workspaces = cut(prepare(kernel))
    text, scratch = module(kernel, target, phases, workspaces)
    of_extents, pairs = OpenSizes(kernel), in_place(kernel)
    estimates = Estimates(kernel, phases, pairs, Machine.of(target))
    code = machine.emit_object(text, target, kernel.name)
    return CompiledKernel(
        name=kernel.name,
        object=code,
        phases=tuple(of_extents(phase.extent) for phase in phases),
        accesses=tuple(
            access(phase, (*kernel.params, *workspaces), n) for phase, n in zip(phases, estimates.of_iterations)
        ),
        in_place=pairs,
        workspace=tuple(of_extents.nbytes(buffer) for buffer in workspaces),
        scratch=of_extents(scratch),
        spills=spills(code, f"kernel {kernel.name}"),
        llvm=text,
        loops=str(kernel),
        extents=of_extents.names,
        positive=of_extents.positive(),
        near=estimates.near,
        far=estimates.far,
    )


def assembly(compiled: CompiledKernel, target: Target) -> str:
    """The machine code of a compiled kernel as assembly text."""
    _check(target)
    return machine.emit_assembly(compiled.llvm, target, compiled.name)


def structure(kernel: Kernel, target: Target) -> str:
    """Equal for kernels that have equal code on the target, whatever their names; the same in every process."""
    _check(target)
    return structures.digest(kernel, *identity(target))


def _check(target: Target) -> None:
    if target.kind != "llvm":
        raise InvalidTarget(f"target {target}: LLVM makes code for the kind llvm only")

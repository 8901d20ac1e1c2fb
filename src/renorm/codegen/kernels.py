"""Code of a kernel by the kind of its target, and the key of that code. What makes code is loaded when it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from renorm.codegen.abi import CompiledKernel
from renorm.codegen.identity import identity
from renorm.core.target import Target

if TYPE_CHECKING:
    from renorm.tir.nodes import Kernel


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Return the code of a kernel: machine code of a CPU by LLVM, or of a GPU by CUDA C. Raises what these raise."""
    if target.is_gpu:
        from renorm.codegen.cuda.compiler import compile_kernel as compiled
    else:
        from renorm.codegen.llvm.compiler import compile_kernel as compiled
    return compiled(kernel, target)


def structure(kernel: Kernel, target: Target) -> str:
    """Equal for kernels that have equal code on the target, whatever their names; the same in every process."""
    from renorm.codegen import structural_hash

    return structural_hash.digest(kernel, *identity(target))


def compile_all(
    kernels: Sequence[Kernel], target: Target, most: int, told: Callable[[int], None]
) -> tuple[list[CompiledKernel], int]:
    """Return the code of each kernel, in order, and how many processes made it. most: processes, or for a GPU threads,
    at a time. told: is called with how many are done. Raises what `compile_kernel` raises."""
    if target.is_gpu:
        from renorm.codegen.cuda import compiler

        return compiler.compile_all(kernels, target, most, told), 1
    from renorm.codegen import workers

    return workers.compile_all(kernels, target, most, told)

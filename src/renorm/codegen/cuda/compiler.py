"""`compile_kernel` turns a loop program into a CompiledKernel whose phases are launches on a GPU (codegen.abi)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from renorm.codegen.abi import Access, CompiledKernel
from renorm.codegen.cuda.assemblers import assembler
from renorm.codegen.cuda.source import generate
from renorm.codegen.in_place import in_place
from renorm.core.errors import InvalidLoops, InvalidTarget
from renorm.core.target import Target
from renorm.runtime.launches import Launch
from renorm.tir.nodes import Kernel


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """Return the code of a kernel. Raises InvalidLoops where a GPU cannot run its loops, InvalidTarget where extents
    are open, or nothing here makes code for that architecture."""
    if kernel.extents:
        facts = [f"open: {', '.join(v.name for v in kernel.extents)}"]
        raise InvalidTarget(f"{kernel.name}: kernels for GPUs are made for known extents", facts)
    made = generate(kernel, target)
    places = {b: i for i, b in enumerate((*kernel.params, *made.workspace))}
    sizes = [b.nbytes for b in made.workspace if b.nbytes is not None]
    if len(sizes) != len(made.workspace):
        raise InvalidLoops(f"{kernel.name}: a buffer between launches has an open size")
    return CompiledKernel(
        name=kernel.name,
        object=assembler(target.arch)(made.source, target.arch),
        phases=(1,) * len(made.launches),
        accesses=tuple(
            Access(tuple(places[b] for b in x.reads), tuple(places[b] for b in x.writes), 0.0) for x in made.launches
        ),
        in_place=in_place(kernel),
        workspace=tuple(sizes),
        scratch=0,
        spills=0,
        llvm=made.source,
        loops=str(kernel),
        launches=tuple(
            Launch(x.name, x.grid, x.block, tuple(places[b] for b in x.params), x.shared) for x in made.launches
        ),
    )


def compile_all(
    kernels: Sequence[Kernel], target: Target, threads: int, told: Callable[[int], None]
) -> list[CompiledKernel]:
    """Return the code of each kernel, in order, made in so many threads: what assembles runs outside of Python's lock.
    told: is called with how many are done. Raises what `compile_kernel` raises, for the first that cannot be made."""
    made = list[CompiledKernel]()
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for compiled in pool.map(lambda kernel: compile_kernel(kernel, target), kernels):
            made.append(compiled)
            told(len(made))
    return made

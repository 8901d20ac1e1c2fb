"""renorm.lower and renorm.build: one scheduled tensor program as loops, and as a module that can be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm import targets, te
from renorm.codegen import cuda, llvm
from renorm.codegen.abi import CompiledKernel
from renorm.codegen.llvm import walk
from renorm.codegen.llvm.requirements import requirements
from renorm.core.errors import InvalidInput, InvalidSchedule, InvalidTarget
from renorm.core.target import Target
from renorm.runtime.module import Module
from renorm.runtime.program import Argument, Code, Program, Step, TensorSpec, align
from renorm.tir import text
from renorm.tir.nodes import Kernel


@dataclass(frozen=True)
class Loops:
    """What `lower` gives: str() is the loops, in the article's style (simple) or with the kernel's signature, which
    parses.
    """

    kernel: Kernel
    is_simple: bool = False

    def __str__(self) -> str:
        return text.simple(self.kernel) if self.is_simple else str(self.kernel)


def lower(s: te.Schedule, args: Sequence[te.Tensor], *, name: str = "main", simple_mode: bool = False) -> Loops:
    """The loops of a schedule. args: tensors that the caller passes, in order; tensors that are missing from it are
    allocated.
    """
    return Loops(te.lower(s, _arguments(args), name=name), simple_mode)


def build(
    s: te.Schedule | Loops,
    args: Sequence[te.Tensor] = (),
    target: str | Target = "llvm",
    name: str = "main",
    threads: int | None = None,
) -> BuiltModule | CudaModule:
    """A module to call with one array per argument, inputs and outputs alike; outputs are written in place. An argument
    with strides comes as the flat array that holds it.

    s: a schedule, or what `lower` gave. threads: how many run it; None means as many as this process may use. For
    target "cuda -arch=sm_90" the source is made at once, and CUDA is needed at the first call. Raises InvalidSchedule,
    InvalidLoops, InvalidTarget.
    """
    chosen = targets.find(target)
    kernel = s.kernel if isinstance(s, Loops) else te.lower(s, _arguments(args), name=name)
    if chosen.kind == "cuda":
        return CudaModule(cuda.generate(kernel, chosen))
    if chosen.kind != "llvm":
        raise InvalidTarget(f"target {str(chosen)!r} has no code generator for single kernels", ["known: llvm, cuda"])
    shapes = {t.name: t.shape for t, p in zip(args, kernel.params) if p.size == t.size}
    return BuiltModule(kernel, llvm.compile_kernel(kernel, chosen), shapes, chosen, threads)


def _arguments(args: Sequence[te.Tensor]) -> list[te.Tensor]:
    strangers = [repr(a) for a in args if not isinstance(a, te.Tensor)]
    if strangers:
        raise InvalidSchedule(f"args must be tensors, not {', '.join(strangers)}")
    return list(args)


class BuiltModule:
    """A compiled kernel. `module(a, b, out)` takes NumPy arrays or renorm.nd arrays in the order of its arguments."""

    def __init__(
        self,
        kernel: Kernel,
        compiled: CompiledKernel,
        shapes: dict[str, tuple[int, ...]],
        target: Target,
        threads: int | None = None,
    ):
        self.kernel, self.compiled, self.target = kernel, compiled, target
        specs = [TensorSpec(p.name, p.dtype, shapes.get(p.name, (p.size,))) for p in kernel.params]
        self._writes = [p.name in kernel.outputs for p in kernel.params]
        outputs = [s for s, w in zip(specs, self._writes) if w]
        inputs = [s for s, w in zip(specs, self._writes) if not w]
        args, i, o, end = list[Argument](), 0, 0, 0
        for writes in self._writes:
            args.append(Argument("output", o) if writes else Argument("input", i))
            i, o = i + (not writes), o + writes
        for size in compiled.workspace:
            args.append(Argument("arena", end))
            end += align(size)
        program = Program(
            machine=requirements(target),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            codes=(Code(0, compiled.phases, align(compiled.scratch)),),
            steps=(Step(kernel.name, 0, tuple(args)),),
            arena_bytes=end,
            name=kernel.name,
        )
        walker = walk.compile_walker(target)
        self._module = Module(program, [compiled.object], b"", walker, threads)

    def __call__(self, *arrays: Any) -> None:
        if len(arrays) != len(self._writes):
            shown = ", ".join(str(p.name) for p in self.kernel.params)
            raise InvalidInput(
                f"kernel {self.kernel.name} takes {len(self._writes)} arrays, not {len(arrays)}", [shown]
            )
        outs = [a for a, writes in zip(arrays, self._writes) if writes]
        self._module.run(*[a for a, writes in zip(arrays, self._writes) if not writes], out=outs)

    def get_source(self, form: str = "ll") -> str:
        """form: "ll" LLVM IR, "asm" assembly, "loops"."""
        forms = {"ll": lambda: self.compiled.llvm, "asm": lambda: llvm.assembly(self.compiled, self.target)}
        if form == "loops":
            return str(self.kernel)
        if form not in forms:
            raise InvalidInput(f"{form!r} is not a form of source", ["known: ll, asm, loops"])
        return forms[form]()

    @property
    def imported_modules(self) -> list[Any]:
        """Modules for devices; none on a CPU."""
        return []


class CudaModule:
    """A kernel as CUDA C. Launching it needs CUDA, which this version does not do yet."""

    def __init__(self, generated: cuda.CudaKernel):
        self.generated = generated

    @property
    def imported_modules(self) -> list[CudaModule]:
        return [self]

    def get_source(self) -> str:
        """CUDA C of all launches."""
        return self.generated.source

    def __call__(self, *arrays: Any) -> None:
        raise InvalidTarget(
            f"kernel {self.generated.name} is CUDA C for {self.generated.arch}: renorm does not launch it yet",
            [f"launches: {', '.join(f'{x.name} {x.grid} x {x.block}' for x in self.generated.launches)}"],
            "compile get_source() with nvcc, or build for target='llvm'",
        )

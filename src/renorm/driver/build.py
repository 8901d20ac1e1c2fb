"""renorm.lower and renorm.build: one scheduled tensor program as loops, and as a module that can be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renorm import targets, te
from renorm.codegen import kernels, llvm
from renorm.codegen.abi import CompiledKernel
from renorm.codegen.cuda.source import generate
from renorm.codegen.llvm import walk
from renorm.codegen.llvm.requirements import requirements
from renorm.core import system
from renorm.core.dims import Dim, static, substitute
from renorm.core.errors import InvalidInput, InvalidLoops, InvalidSchedule, InvalidTarget
from renorm.core.lazy import cached_property
from renorm.core.locks import check_imports
from renorm.core.target import Target
from renorm.driver.open import OpenFunction, OpenLoops, OpenProgram, Values
from renorm.expr.nodes import OpenVar
from renorm.runtime.function import Entry, Function
from renorm.runtime.gpu.module import GpuModule
from renorm.runtime.launches import GPU
from renorm.runtime.module import Module
from renorm.runtime.program import Argument, Code, Machine, Program, Step, TensorSpec, align
from renorm.te.arguments import checked
from renorm.te.open import open_variables
from renorm.tir import text
from renorm.tir.nodes import Kernel


@dataclass(frozen=True)
class Loops:
    """The result of `lower`: str() is the loops, in the article's style (simple) or with the kernel's signature, which
    parses. shapes: of the arrays that its arguments are given as, in order.
    """

    kernel: Kernel
    shapes: tuple[tuple[int, ...], ...]
    is_simple: bool = False

    def __str__(self) -> str:
        return text.simple(self.kernel) if self.is_simple else str(self.kernel)


@checked("renorm.", InvalidSchedule)
def lower(
    inputs: te.Schedule,
    args: Sequence[te.Tensor | OpenVar],
    name: str = "main",
    binds: None = None,
    simple_mode: bool = False,
) -> Loops | OpenLoops:
    """Return the loops of a schedule. args: tensors that the caller passes, in order; tensors that are missing from it
    are allocated. binds: nothing, arguments have buffers of their own. simple_mode: print them in the short style.

    Where extents are open (te.var), so are those of the loops; args may hold the variables, too.
    """

    if open_variables(inputs, args):
        program = OpenProgram(inputs, args, name)
        kernel = te.lower(inputs, program.tensors, name=name)
        return OpenLoops(program, kernel, text.simple(kernel) if simple_mode else str(kernel))
    return _loops(inputs, [a for a in args if isinstance(a, te.Tensor)], name, simple_mode)


def _loops(s: te.Schedule, args: Sequence[te.Tensor], name: str, is_simple: bool = False) -> Loops:
    kernel = te.lower(s, args, name=name)
    sizes = [p.size for p in kernel.params if isinstance(p.size, int)]  # as the extents of all tensors are
    shapes = tuple(t.shape if size == t.size else (size,) for t, size in zip(args, sizes, strict=True))
    return Loops(kernel, shapes, is_simple)


@checked("renorm.", InvalidSchedule)
def build(
    inputs: te.Schedule | Loops | OpenLoops,
    args: Sequence[te.Tensor | OpenVar] | None = None,
    target: str | Target | None = None,
    target_host: str | Target | None = None,
    name: str = "main",
    binds: None = None,
    *,
    threads: int | None = None,
) -> BuiltModule | CudaModule | OpenFunction:
    """Return a module to call with one array per argument, inputs and outputs alike; outputs are written in place. An
    argument with strides comes as the flat array that holds it.

    inputs: a schedule, or what `lower` gave. Where its extents are open (te.var), it is compiled once for all that are
    1 at least; variables among args come as numbers. target: "llvm" without one; for "cuda
    -arch=sm_90" the source is made at once. target_host: of CUDA's host code, of which there is none. threads: how many
    run it; None means as many as this process may use. Raises InvalidSchedule, InvalidLoops, InvalidTarget.
    """
    check_imports()
    chosen = targets.find(target or "llvm")
    system.require(chosen)
    if target_host is not None:
        targets.find(target_host)
    if not isinstance(inputs, te.Schedule) and args is not None:
        raise InvalidSchedule("build: what lower gave has its arguments already", do="call build(loops)")
    loops = lower(inputs, args or (), name=name) if isinstance(inputs, te.Schedule) else inputs
    if chosen.kind not in ("llvm", "cuda"):
        raise InvalidTarget(f"target {str(chosen)!r} has no code generator for single kernels", ["known: llvm, cuda"])
    if isinstance(loops, OpenLoops):
        if chosen.kind == "cuda":
            raise InvalidTarget(
                f"{name}: CUDA C is made for known extents", [str(loops.program)], "build what te.specialize gives"
            )
        return OpenFunction(loops.program, _Open(loops, chosen, threads).at)
    if chosen.kind == "cuda":
        return CudaModule(loops, chosen)
    return _compiled(loops, chosen, threads)


def _compiled(loops: Loops, target: Target, threads: int | None) -> BuiltModule:
    return BuiltModule(loops, llvm.compile_kernel(loops.kernel, target), target, threads)


class _Open:
    """A kernel with open extents, compiled when it is first asked for."""

    def __init__(self, loops: OpenLoops, target: Target, threads: int | None):
        self._loops, self._target, self._threads = loops, target, threads
        self._variables = open_variables(loops.program.schedule, loops.program.tensors)

    @cached_property
    def _kernel(self) -> CompiledKernel | None:
        try:
            return llvm.compile_kernel(self._loops.kernel, self._target)
        except InvalidLoops:  # an index that depends on numbers among the arguments
            return None

    def at(self, values: Values) -> BuiltModule:
        """Return the function where variables have these values. What has no elements, and numbers below 1, have a
        kernel of their own; and all have, where the accesses of one kernel for all cannot be proved."""
        s, tensors = self._loops.program.specialized(values)
        given = [values[v] for v in self._variables]
        is_positive = min((*given, *(d for t in tensors for d in t.shape)), default=1) >= 1
        compiled = self._kernel if is_positive else None
        if compiled is not None:
            numbers = dict(zip(compiled.extents, given, strict=True))
            if all(static([substitute(d, numbers)])[0] >= 1 for d in compiled.positive):
                loops = Loops(self._loops.kernel, tuple(t.shape for t in tensors))
                return BuiltModule(loops, compiled, self._target, self._threads, given)
        return _compiled(_loops(s, tensors, self._loops.program.name), self._target, self._threads)


class BuiltModule(Function):
    """A compiled kernel as a function of arrays, with its texts."""

    def __init__(
        self,
        loops: Loops,
        compiled: CompiledKernel,
        target: Target,
        threads: int | None = None,
        extents: Sequence[int] = (),
    ):
        """extents: of the kernel that are open, for these arrays."""
        self.kernel, self.compiled, self.target = loops.kernel, compiled, target
        program = _program(loops, compiled, requirements(target), extents)
        super().__init__(Module(program, [compiled.object], b"", walk.compile_walker(target), threads))

    def get_source(self, fmt: str = "ll") -> str:
        """fmt: "ll" LLVM IR, "asm" assembly, "loops"."""
        forms = {"ll": lambda: self.compiled.llvm, "asm": lambda: llvm.assembly(self.compiled, self.target)}
        if fmt == "loops":
            return str(self.kernel)
        if fmt not in forms:
            raise InvalidInput(f"{fmt!r} is not a form of source", ["known: ll, asm, loops"])
        return forms[fmt]()


def _program(loops: Loops, compiled: CompiledKernel, machine: Machine, extents: Sequence[int] = ()) -> Program:
    """Return the program of one kernel, whose arguments are its inputs and outputs in the order of its parameters."""
    kernel, values = loops.kernel, dict(zip(compiled.extents, extents, strict=True))

    def known(dims: Sequence[Dim]) -> tuple[int, ...]:
        return static([substitute(d, values) for d in dims])

    specs = [TensorSpec(p.name, p.dtype, shape) for p, shape in zip(kernel.params, loops.shapes, strict=True)]
    writes = [p.name in kernel.outputs for p in kernel.params]
    args, i, o, end = list[Argument](), 0, 0, 0
    for is_output in writes:
        args.append(Argument("output", o) if is_output else Argument("input", i))
        i, o = i + (not is_output), o + is_output
    for size in known(compiled.workspace):
        args.append(Argument("arena", end))
        end += align(size)
    args += [Argument("extent", n) for n in extents]
    return Program(
        machine=machine,
        inputs=tuple(s for s, w in zip(specs, writes) if not w),
        outputs=tuple(s for s, w in zip(specs, writes) if w),
        codes=(Code(0, known(compiled.phases), align(*known([compiled.scratch])), launches=compiled.launches),),
        steps=(Step(kernel.name, 0, tuple(args)),),
        arena_bytes=end,
        name=kernel.name,
    )


class CudaModule(Entry):
    """A kernel as CUDA C, whose code is made when it is first called. Calls take arrays of the host and of the GPU."""

    def __init__(self, loops: Loops, target: Target):
        self._loops, self._target = loops, target
        self.generated, self.imported_modules = generate(loops.kernel, target), [self]

    @property
    def entry_name(self) -> str:
        return self.generated.name

    def get_source(self, fmt: str = "cu") -> str:
        """CUDA C of all launches."""
        if fmt != "cu":
            raise InvalidInput(f"{fmt!r} is not a form of source", ["known: cu"])
        return self.generated.source

    @cached_property
    def _function(self) -> Function:
        compiled = kernels.compile_kernel(self._loops.kernel, self._target)
        program = _program(self._loops, compiled, Machine(GPU, self._target.arch))
        return Function(GpuModule(program, [compiled.object], b"", b""))

    def __call__(self, *arrays: Any) -> None:
        """Run it on one array per argument. Raises InvalidTarget where there is no such GPU."""
        self._function(*arrays)

    def export_library(self, file_name: Any) -> None:
        """Write it to a file of renorm's own format, which `load_module` reads."""
        self._function.export_library(file_name)

    save = export_library

"""How a compiled kernel is called: the contract between code generators and the runtime.

A kernel is cut at its root into phases. Each parallel loop at the root is one phase, whose extent is its trip count; a
run of other statements between them is one phase of extent 1. Phase k is the function

    void phase<k>(void **args, int64_t lo, int64_t hi, int64_t thread)

which runs the iterations [lo, hi) of its loop, counted from 0; iterations are independent, so threads may share them
out as they like. Phase k may begin when all that wrote what it reads, and all that read or wrote what it writes, is
done: `accesses` says which arguments those are. `args` holds one pointer per parameter in
order, then one per workspace (the global buffers that the kernel allocates at its root), then, for each open extent,
the extent itself in the place of a pointer, then, where scratch is not 0, the base of the threads' private memory: the
thread numbered t owns the `scratch` bytes at base + t * scratch. Where extents are open, sizes and trip counts are
polynomials of them (core.dims), and what is in `positive` is 1 at least: what has no elements is not computed by such
a kernel.

On a GPU each phase is a launch (runtime.launches.Launch), of extent 1, which takes pointers alone; they run one after
the other.

A parameter or workspace that the kernel writes overlaps no other, but for the pairs in `in_place`: one array may be
passed as the parameter that is written and as one that is read. Parameters need the alignment of their elements only;
workspaces and the scratch base are aligned to runtime.program.ALIGNMENT bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from renorm.core.dims import Dim
from renorm.runtime.external import ExternalCode
from renorm.runtime.launches import Launch


@dataclass(frozen=True)
class Access:
    """The accesses of a phase to the arguments (parameters, then workspaces), by their indices in order.

    nanoseconds: about how long one iteration takes (codegen.estimates).
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    nanoseconds: float


@dataclass(frozen=True)
class Estimate:
    """About how long one thread takes for a kernel, at typical extents, and what most of that is for, in words; 0 where
    nobody knows."""

    nanoseconds: float = 0.0
    bound: str = ""


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel.

    name: the kernel's. object: on a CPU, a relocatable ELF file that defines phase0, phase1, ...; it has no undefined
    symbols and no writable data. phases: the extent of each; accesses: what each touches. in_place: pairs (written,
    read) of parameters that may be one array, see codegen.in_place. workspace: bytes of each workspace. scratch: bytes
    per thread, a multiple of ALIGNMENT. spills: how many instructions of hot loops move vector registers to or from
    the stack. near, far: about how long it takes with weights in the last cache, and in memory. extents: names of
    the open ones. positive: what of them must not be less than 1. llvm: the LLVM IR before optimisation, or the CUDA C.
    loops: the loop program it was made from, as text. external: what runs it in place of an object, in one phase of one
    iteration. launches: on a GPU, what each phase is; the object is what the driver loads.
    """

    name: str
    object: bytes
    phases: tuple[Dim, ...]
    accesses: tuple[Access, ...]
    in_place: tuple[tuple[int, int], ...]
    workspace: tuple[Dim, ...]
    scratch: Dim
    spills: int
    llvm: str
    loops: str
    external: ExternalCode | None = None
    extents: tuple[str, ...] = ()
    positive: tuple[Dim, ...] = ()
    near: Estimate = Estimate()
    far: Estimate = Estimate()
    launches: tuple[Launch, ...] = ()

    @staticmethod
    def of_external(name: str, code: ExternalCode, reads: int, writes: int) -> CompiledKernel:
        """Return a phase that calls external code. How long that takes is not known; no thread can help."""
        parameters = tuple(range(reads + writes))
        access = Access(parameters[:reads], parameters[reads:], 0.0)
        return CompiledKernel(name, b"", (1,), (access,), (), (), 0, 0, "", "", code)

    @property
    def nanoseconds(self) -> int:
        """About how long one thread takes for all phases of a known extent."""
        return round(sum(n * access.nanoseconds for n, access in zip(self.phases, self.accesses) if isinstance(n, int)))

"""What a CPU must have to run the code of a target: stored with a program, compared when it is loaded."""

from __future__ import annotations

from renorm.core.target import Target
from renorm.runtime.program import Machine

_WIDTHS = {64: ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma"), 32: ("avx2", "fma", "f16c")}


def requirements(target: Target) -> Machine:
    """The machine that the code of `target` needs. Of the host all features count, since LLVM was free to use any of
    them; of a CPU that is named, those that its vector width stands for.
    """
    if target.is_host:
        import llvmlite.binding as llvm  # loaded only where nothing of this is in the cache

        features = [name for name, present in llvm.get_host_cpu_features().items() if present]
        return Machine(target.machine, llvm.get_host_cpu_name(), tuple(sorted(features)))
    named = _WIDTHS.get(target.vector_bytes, ()) if target.machine == "x86_64" else ()
    return Machine(target.machine, target.cpu, (*named, *(f.lstrip("+") for f in target.features if f[0] != "-")))

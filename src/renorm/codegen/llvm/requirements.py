"""Requirements of a target's code on a CPU: stored with a program, compared when it is loaded."""

from __future__ import annotations

from renorm.core.target import Target
from renorm.runtime.program import Machine


def requirements(target: Target) -> Machine:
    """The machine that the code of `target` needs: all features that LLVM was free to use."""
    from renorm.codegen.llvm.subtarget import subtarget  # loads LLVM, where nothing of this is in the cache

    of = subtarget(target)
    return Machine(of.arch, of.tuned, of.features)

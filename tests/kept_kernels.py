"""Kernels that tests compile, kept from test to test and from run to run by what their loops are.

    loops, target, sources of codegen ─structure─▶ compiled kernel        a file below .pytest_cache

A schedule that a test puts in another's place makes other loops, hence another key; so this may be kept where the
driver's cache, which goes by groups, may not. Tests of code generation itself (tests/codegen) do without.
"""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

from renorm.codegen import structural_hash
from renorm.codegen.abi import CompiledKernel
from renorm.codegen.llvm import compiler
from renorm.core.target import Target
from renorm.driver.cache import Cache
from renorm.tir.nodes import Kernel

MIB = 256

is_on = True


def keep(root: Path) -> None:
    """Puts a compiler of kernels in the place of codegen's, which looks below `root` first."""
    compile_kernel = compiler.compile_kernel
    root.mkdir(parents=True, exist_ok=True)
    kept = Cache(root, MIB << 20)

    def look_first(kernel: Kernel, target: Target) -> CompiledKernel:
        if not is_on or not structural_hash.SOURCES:
            return compile_kernel(kernel, target)
        key = compiler.structure(kernel, target)
        if held := kept.get(key):
            found: CompiledKernel = pickle.loads(held)
            return replace(found, name=kernel.name, loops=str(kernel))
        made = compile_kernel(kernel, target)
        kept.put(key, pickle.dumps(made))
        return made

    compiler.compile_kernel = look_first

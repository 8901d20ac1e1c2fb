"""LLVM, loaded where there is room for it: its initializers end the process where memory runs out."""

from __future__ import annotations

import sys

from renorm.core.room import require

LIBRARY = 192 << 20  # bytes of address space that llvmlite's library takes on x86-64 Linux, by far the largest

if "llvmlite.binding" not in sys.modules:
    require(LIBRARY, "no memory to load LLVM")

import llvmlite.binding as llvm  # noqa: E402 - after it was asked for

__all__ = ["llvm"]

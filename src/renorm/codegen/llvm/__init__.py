"""Machine code through LLVM, which is loaded when code is made: code from the cache needs none of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from renorm.codegen.llvm.compiler import assembly, compile_kernel, structure

__all__ = ["assembly", "compile_kernel", "structure"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from renorm.codegen.llvm import compiler

    return getattr(compiler, name)

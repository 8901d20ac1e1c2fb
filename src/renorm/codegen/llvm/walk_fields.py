"""Fields of what the walker's memory holds (runtime.layout), as LLVM IR reads them."""

from __future__ import annotations


def field(name: str, of: str, offset: int, type: str = "i64") -> str:
    """Return the statements that make `%name` what stands `offset` bytes after `%of`, and `%name.at` where it does."""
    return f"%{name}.at = getelementptr i8, ptr %{of}, i64 {offset}\n  %{name} = load {type}, ptr %{name}.at"

"""ONNX files, read and written. The only package of renorm that imports onnx (`library.py`): to write, and to read what
functions define."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from renorm.frontends.onnx.library import required
from renorm.frontends.onnx.provenance import KEY
from renorm.frontends.onnx.reader import read

if TYPE_CHECKING:
    from renorm.frontends.onnx.writer import vocabulary, write

__all__ = ["KEY", "read", "vocabulary", "write"]


def __getattr__(name: str) -> Any:
    if name not in ("vocabulary", "write"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with required("writing ONNX files"):
        from renorm.frontends.onnx import writer

    return getattr(writer, name)

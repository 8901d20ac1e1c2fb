"""ONNX files, read and written. The only package of renorm that imports onnx."""

from renorm.frontends.onnx.provenance import KEY
from renorm.frontends.onnx.reader import read
from renorm.frontends.onnx.writer import write

__all__ = ["KEY", "read", "write"]

"""Compiled kernels as bytes, for a pipe or a file: a line of JSON, then the object."""

from __future__ import annotations

import json

from renorm.codegen.abi import CompiledKernel
from renorm.core import records

# A name is the reader's own: kernels of other names have equal code. Texts are made again when somebody asks.
_LEFT_OUT = {"name": "", "llvm": "", "loops": "", "external": None}


def encode(compiled: CompiledKernel) -> bytes:
    """All but name and texts."""
    head = records.plain(compiled, without=("object", *_LEFT_OUT))
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + compiled.object


def decode(data: bytes, name: str) -> CompiledKernel:
    """Return the kernel that `encode` wrote, under another name and without texts. Raises ValueError for anything
    else."""
    head, _, code = data.partition(b"\n")
    return records.record(CompiledKernel, json.loads(head), object=code, **{**_LEFT_OUT, "name": name})

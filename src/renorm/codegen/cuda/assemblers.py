"""What makes code of CUDA C, by the architecture that a target names: NVRTC for "sm_90" and its like."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

Assembler = Callable[[str, str], bytes]
"""Returns the code of a text of CUDA C for an architecture. Raises InvalidTarget where it cannot be made here."""

_OTHERS: dict[str, Assembler] = {}  # architectures that are no NVIDIA GPU: the processor that proves the text


def register(arch: str, assembler: Assembler) -> None:
    """Make an architecture known beside NVIDIA's: `-arch=<arch>` then takes the text to `assembler`."""
    _OTHERS[arch] = assembler


def assembler(arch: str) -> Assembler:
    """Return what makes code for an architecture."""
    if arch in _OTHERS:
        return _OTHERS[arch]
    return import_module("renorm.codegen.cuda.nvrtc").assemble


def identity(arch: str) -> str:
    """Return what the code of a text depends on besides the architecture."""
    return arch if arch in _OTHERS else import_module("renorm.codegen.cuda.nvrtc").identity()

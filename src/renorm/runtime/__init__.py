"""Runs compiled programs: artifact format, loader, threads, arrays. Imports only NumPy beyond the standard library."""

from renorm.runtime.function import load_module
from renorm.runtime.memory import Memory
from renorm.runtime.module import Module, load
from renorm.runtime.program import Argument, Code, Machine, Program, Step, TensorSpec, Weight

__all__ = [
    "Argument", "Code", "Machine", "Memory", "Module", "Program", "Step", "TensorSpec", "Weight", "load", "load_module",
]  # fmt: skip

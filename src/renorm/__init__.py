"""A deep-learning compiler in which normalization is a first-class citizen.

    m = renorm.compile("model.onnx")                 # .tflite and .circle too: a Module
    results = m.run(array)                           # NumPy, or anything with __dlpack__
    print(m.report)                                  # what became of each normalization, and why
    m.save("model.renorm")                           # renorm.load("model.renorm") needs NumPy only
    renorm.optimize("model.onnx", "folded.onnx")     # folding alone, from file to file

`renorm.training` is batch norm in training, on arrays; `renorm.torch` and `renorm.keras` are layers of these libraries,
and are imported by name. `renorm.register` adds an op, `renorm.register_target` an accelerator. Kernels by hand:
`renorm.te`, `renorm.topi`, `renorm.create_schedule`, `renorm.build`.

This is the whole public surface. Names are loaded when they are first used: importing renorm loads neither onnx nor
llvmlite, and a process that only runs a saved module never does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from renorm.core.collector import collection_put_off

__version__ = "0.1.0"

if TYPE_CHECKING:
    from renorm import errors, ops, te, topi, training
    from renorm.core.target import Target, register_target
    from renorm.driver.build import build, lower
    from renorm.driver.compile import compile
    from renorm.driver.optimize import optimize
    from renorm.driver.state import write_state
    from renorm.frontends import read, unfold
    from renorm.graph.op import OpDef
    from renorm.graph.registry import override, register
    from renorm.runtime import nd
    from renorm.runtime.external import ExternalCode, register_loader
    from renorm.runtime.module import Module, load
    from renorm.te import compute, const, create_schedule, intrin, max, min, placeholder, reduce_axis, sum, thread_axis

# public name -> (module, name in it, or None for the module itself)
_PUBLIC: dict[str, tuple[str, str | None]] = {
    # whole models
    "compile": ("renorm.driver.compile", "compile"),
    "read": ("renorm.frontends", "read"),
    "optimize": ("renorm.driver.optimize", "optimize"),
    "unfold": ("renorm.frontends", "unfold"),
    "write_state": ("renorm.driver.state", "write_state"),
    "load": ("renorm.runtime.module", "load"),
    "Module": ("renorm.runtime.module", "Module"),
    "errors": ("renorm.errors", None),
    "training": ("renorm.training", None),
    # tensor expressions; the second block is where articles of TVM 0.4 to 0.6 look for them
    "te": ("renorm.te", None),
    "topi": ("renorm.topi", None),
    "nd": ("renorm.runtime.nd", None),
    "build": ("renorm.driver.build", "build"),
    "lower": ("renorm.driver.build", "lower"),
    **{
        name: ("renorm.te", name)
        for name in (
            "placeholder", "compute", "reduce_axis", "sum", "max", "min", "const", "create_schedule", "thread_axis",
            "intrin",
        )
    },
    # extending
    "register": ("renorm.graph.registry", "register"),
    "override": ("renorm.graph.registry", "override"),
    "OpDef": ("renorm.graph.op", "OpDef"),
    "ops": ("renorm.ops", None),
    "Target": ("renorm.core.target", "Target"),
    "ExternalCode": ("renorm.runtime.external", "ExternalCode"),
    "register_target": ("renorm.core.target", "register_target"),
    "register_loader": ("renorm.runtime.external", "register_loader"),
}  # fmt: skip

__all__ = [
    "ExternalCode", "Module", "OpDef", "Target", "build", "compile", "compute", "const", "create_schedule", "errors",
    "intrin", "load", "lower", "max", "min", "nd", "ops", "optimize", "override", "placeholder", "read", "reduce_axis",
    "register", "register_loader", "register_target", "sum", "te", "thread_axis", "topi", "training", "unfold",
    "write_state",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'renorm' has no attribute {name!r}")
    module, inside = _PUBLIC[name]
    with collection_put_off():
        found = import_module(module)
    value = found if inside is None else getattr(found, inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])

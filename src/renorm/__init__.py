"""A deep-learning compiler in which normalization is a first-class citizen.

    m = renorm.compile("model.onnx")                 # .tflite, .circle, .pt2, .keras too: a Module
    results = m.run(array)                           # NumPy, or anything with __dlpack__
    print(m.report)                                  # what became of each normalization, and why
    m.save("model.renorm")                           # renorm.load("model.renorm") needs NumPy only
    renorm.optimize("model.onnx", "folded.onnx")     # folding alone, from file to file

`renorm.training` is batch norm in training, on arrays; `renorm.torch` and `renorm.keras` are layers of these libraries,
and are imported by name. `renorm.register` adds an op, `renorm.register_target` an accelerator,
`renorm.register_keras_layer` a layer of Keras. Kernels by hand: `renorm.te`, `renorm.topi`, `renorm.create_schedule`,
`renorm.build`.

This is the whole public surface. Names are loaded when they are first used: importing renorm loads neither onnx nor
llvmlite, and a process that only runs a saved module never does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from renorm.core import locks as locks  # before anything is imported that a fork should wait for
from renorm.core.collector import collection_put_off
from renorm.core.lazy import imported

__version__ = "0.1.0"

if TYPE_CHECKING:
    from renorm import errors, ops, target, te, testing, topi, training
    from renorm.core.errors import RenormError as TVMError
    from renorm.core.limits import Limits
    from renorm.core.target import Target, register_target
    from renorm.driver.build import build, lower
    from renorm.driver.compile import compile
    from renorm.driver.optimize import optimize
    from renorm.driver.state import write_state
    from renorm.frontends import read, unfold
    from renorm.frontends.keras.layers.table import register_keras_layer
    from renorm.graph.op import OpDef
    from renorm.graph.registry import register
    from renorm.ops.shared.builders import override
    from renorm.runtime import function as module
    from renorm.runtime import nd
    from renorm.runtime.device import context, cpu, cuda, device, gpu
    from renorm.runtime.external import ExternalCode, register_loader
    from renorm.runtime.module import Module, load
    from renorm.te import (
        abs,
        all,
        any,
        ceil,
        comm_reducer,
        compute,
        const,
        convert,
        create_schedule,
        div,
        erf,
        exp,
        floor,
        floordiv,
        floormod,
        fmod,
        if_then_else,
        indexdiv,
        indexmod,
        intrin,
        log,
        max,
        max_value,
        min,
        min_value,
        placeholder,
        popcount,
        power,
        prod,
        reduce_axis,
        round,
        rsqrt,
        select,
        sigmoid,
        size_var,
        sqrt,
        sum,
        tanh,
        thread_axis,
        trunc,
        truncdiv,
        truncmod,
        var,
    )

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
    "module": ("renorm.runtime.function", None),
    "target": ("renorm.target", None),
    "testing": ("renorm.testing", None),
    "TVMError": ("renorm.errors", "RenormError"),
    **{name: ("renorm.runtime.device", name) for name in ("cpu", "cuda", "gpu", "device", "context")},
    "build": ("renorm.driver.build", "build"),
    "lower": ("renorm.driver.build", "lower"),
    **{
        name: ("renorm.te", name)
        for name in (
            "placeholder", "compute", "reduce_axis", "sum", "max", "min", "prod", "const", "convert",
            "create_schedule", "thread_axis", "comm_reducer", "var", "size_var", "min_value", "max_value", "all",
            "any", "if_then_else", "select", "intrin", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf",
            "abs", "floor", "ceil", "round", "trunc", "power", "popcount", "fmod", "div", "truncdiv", "truncmod",
            "floordiv", "floormod", "indexdiv", "indexmod",
        )
    },
    # extending
    "register": ("renorm.graph.registry", "register"),
    "override": ("renorm.ops.shared.builders", "override"),
    "OpDef": ("renorm.graph.op", "OpDef"),
    "ops": ("renorm.ops", None),
    "Target": ("renorm.core.target", "Target"),
    "Limits": ("renorm.core.limits", "Limits"),
    "ExternalCode": ("renorm.runtime.external", "ExternalCode"),
    "register_target": ("renorm.core.target", "register_target"),
    "register_loader": ("renorm.runtime.external", "register_loader"),
    "register_keras_layer": ("renorm.frontends.keras.layers.table", "register_keras_layer"),
}  # fmt: skip

__all__ = [
    "ExternalCode", "Limits", "Module", "OpDef", "TVMError", "Target", "abs", "all", "any", "build", "ceil",
    "comm_reducer",
    "compile", "compute", "const", "context", "convert", "cpu", "create_schedule", "cuda", "device", "div", "erf",
    "errors", "exp", "floor", "floordiv", "floormod", "fmod", "gpu", "if_then_else", "indexdiv", "indexmod",
    "intrin", "load", "log", "lower", "max", "max_value", "min", "min_value", "module", "nd", "ops", "optimize",
    "override", "placeholder", "popcount", "power", "prod", "read", "reduce_axis", "register", "register_keras_layer",
    "register_loader", "register_target", "round", "rsqrt", "select", "sigmoid", "size_var", "sqrt", "sum", "tanh",
    "target", "te", "testing", "thread_axis", "topi", "training", "trunc", "truncdiv", "truncmod", "unfold", "var",
    "write_state",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        from renorm.core.absent_names import missing

        raise missing("renorm", name)
    module, inside = _PUBLIC[name]
    with collection_put_off():
        found = imported(module)
    value = found if inside is None else getattr(found, inside)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])

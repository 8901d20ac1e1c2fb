"""Models of one operator of ONNX Runtime, run by renorm and by that runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import helper
from tests.frontends import onnx_runtime

import renorm

RNG = np.random.default_rng(27)
MICROSOFT = "com.microsoft"


def f(*shape: int, dtype: Any = np.float32, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Return random numbers."""
    return RNG.uniform(low, high, shape).astype(dtype)


def i(*shape: int, below: int, dtype: Any = np.int32) -> np.ndarray:
    """Return random integers."""
    return RNG.integers(0, below, shape).astype(dtype)


def model(op_type: str, operands: Sequence[Any], outputs: int | Sequence[str], domain: str, attributes: Any) -> Any:
    """Return a model of one node. Operands are x0, x1, ..., as arrays are; outputs: their names, or how many."""
    names = [f"x{n}" if a is not None else "" for n, a in enumerate(operands)]
    made = [f"y{n}" for n in range(outputs)] if isinstance(outputs, int) else list(outputs)
    node = helper.make_node(op_type, names, made, domain=domain, **attributes)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, operands)
        if a is not None
    ]
    results = [onnx.ValueInfoProto(name=name) for name in made if name]
    graph = helper.make_graph([node], "g", given, results)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def check(
    op_type: str,
    *operands: Any,
    outputs: int | Sequence[str] = 1,
    domain: str = MICROSOFT,
    **attributes: Any,
) -> None:
    """Compare what renorm and ONNX Runtime compute, and what the latter does of the file that renorm writes."""
    held = model(op_type, operands, outputs, domain, attributes)
    given = {f"x{n}": a for n, a in enumerate(operands) if a is not None}
    expected = onnx_runtime.run(held, given)
    module = renorm.compile(held)
    got = module.run(*[given[v.name] for v in module.inputs])
    with TemporaryDirectory() as folder:
        renorm.optimize(held, path := Path(folder, "written.onnx"))
        written = onnx_runtime.run(onnx.load(path), given)
    for found in (got, written):
        assert len(found) == len(expected)
        for a, b in zip(found, expected):
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


def run(op_type: str, operands: Sequence[Any], outputs: int, **attributes: Any) -> list[np.ndarray]:
    """Return what renorm computes."""
    module = renorm.compile(model(op_type, operands, outputs, MICROSOFT, attributes))
    return module.run(*[operands[int(v.name[1:])] for v in module.inputs])

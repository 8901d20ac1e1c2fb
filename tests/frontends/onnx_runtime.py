"""ONNX Runtime, the peer of everything that reads or writes ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as Unsupported

from renorm.core.dots import QUADS
from renorm.targets import find

Array = np.ndarray[Any, Any]
Model = onnx.ModelProto | bytes | str | Path

# Where a CPU has no VNNI, it cuts sums of two products of uint8 and int8 to 16 bits (vpmaddubsw). A session that is
# asked for precision does not, of constant weights of most operators.
SATURATES = not find("llvm").has_dot(QUADS)


def session(model: Model, rewrites: bool = True) -> onnxruntime.InferenceSession:
    """Return a model, or a file of one, in one thread that logs nothing. rewrites: whether it folds and fuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not rewrites:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    try:
        options.add_session_config_entry("session.x64quantprecision", str(int(SATURATES)))
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Unsupported:  # it then has no convolutions of int8, which cut nothing
        options.add_session_config_entry("session.x64quantprecision", "0")
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run(model: Model | onnxruntime.InferenceSession, given: Array | Mapping[str, Any]) -> list[Array]:
    """Return the outputs, which are all tensors here. given: the inputs by name, or the only one."""
    made = model if isinstance(model, onnxruntime.InferenceSession) else session(model)
    feeds = {made.get_inputs()[0].name: given} if isinstance(given, np.ndarray) else dict(given)
    return cast("list[Array]", made.run(None, feeds))

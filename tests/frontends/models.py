"""Models that several tests read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"
SHARED = ROOT.parent / "shared"  # trained networks and the benchmark's; not part of the repository


def model(
    body: str, held: Mapping[str, np.ndarray] = {}, *, opset: int = 17, ir: int = 8, **more: np.ndarray
) -> onnx.ModelProto:
    """Return a model from ONNX's text form: its graph, and the initializers `held` and `more` beside those that the
    text holds."""
    parsed = parser.parse_model(f'<ir_version: {ir}, opset_import: ["" : {opset}]>\n{body}')
    for name, array in {**held, **more}.items():
        parsed.graph.initializer.append(numpy_helper.from_array(array, name))
    return parsed


def running(*shape: int) -> onnx.ModelProto:
    """One BatchNormalization in training mode, whose running statistics `m` and `v` go half of the way from 0 and 1 to
    those of a batch."""
    ones, zeros, extents = np.ones(shape[1], np.float32), np.zeros(shape[1], np.float32), ", ".join(map(str, shape))
    body = f"""running (float[{extents}] x) => (float[{extents}] y)
        {{ y, mean, var = BatchNormalization <training_mode = 1, momentum = 0.5> (x, s, b, m, v) }}"""
    return model(body, s=ones, b=zeros, m=zeros, v=ones)


def batch_norm(var: list[float], epsilon: float = 1e-5) -> onnx.ModelProto:
    """One BatchNormalization with these stored variances."""
    c = len(var)
    ones, zeros = np.ones(c, np.float32), np.zeros(c, np.float32)
    return model(
        f"""norm (float[N, {c}, 4] x) => (float[N, {c}, 4] y)
        {{ [bn] y = BatchNormalization <epsilon = {epsilon}> (x, s, b, m, v) }}""",
        s=ones, b=zeros, m=zeros, v=np.asarray(var, np.float32),
    )  # fmt: skip

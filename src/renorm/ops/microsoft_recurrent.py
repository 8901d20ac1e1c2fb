"""LSTM of ONNX Runtime with weights of 8 bits, which its dynamic quantizer writes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from renorm.graph import registry
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import NEWEST, Composite, apply


class DynamicQuantizeLstm(Composite):
    """LSTM of x, which is quantized to uint8 by its own range first, with weights (w - w_zero) * w_scale and the same
    of r, which have a scale and a zero point for each direction, or for each of its columns. Weights of a direction are
    [I, K] and [H, K], the transposes of those of LSTM.

    ONNX Runtime also quantizes h before each step by its range then; h is float32 here, which is nearer to the LSTM
    that was quantized.
    """

    takes = "x, w, r, b?, sequence_lens?, initial_h?, initial_c?, p?, w_scale, w_zero, r_scale, r_zero"
    onnx = {"com.microsoft::DynamicQuantizeLSTM": 1}
    onnx_ignored = (  # but by LSTM
        "activation_alpha", "activation_beta", "activations", "clip", "direction", "hidden_size", "input_forget",
    )  # fmt: skip

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, w, r, *between, w_scale, w_zero, r_scale, r_zero = operands
        x = apply("dequantize_linear", *apply("dynamic_quantize_linear", x))
        own = (x, _turned(w, w_scale, w_zero), _turned(r, r_scale, r_zero), *between)
        lstm = registry.find_onnx("LSTM", NEWEST)
        assert lstm is not None
        return lstm.from_onnx(replace(node, op_type="LSTM", opset=NEWEST, operands=own))


def _turned(w: Any, scale: Any, zero: Any) -> Any:
    """Return the numbers that weights [D, I, K] stand for, as [D, K, I]. scale, zero: [D] or [D, K]."""
    axes = (1, 2) if scale.rank == 1 else (1,)
    scale, zero = (apply("unsqueeze", p, axes=axes) for p in (scale, apply("cast", zero, to="float32")))
    real = apply("mul", apply("sub", apply("cast", w, to="float32"), zero), scale)
    return apply("transpose", real, perm=(0, 2, 1))

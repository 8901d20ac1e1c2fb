"""Long short-term memory."""

from __future__ import annotations

from typing import Any

from renorm.graph.attributes import Bool, Float
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64, i32
from renorm.ops.shared.recurrent import FLOATS_OF_GATES, OverTime


class Lstm(OverTime):
    """i, o, f, g = gates of x, h and c; c' = f * c + i * g; h' = o * tanh(c'). Gates are functions of x * w + h * r +
    b, with peepholes also of p * c (o: of c'); input_forget: f = 1 - i. c' is held within state_clip, which ONNX has
    not. y = all h', y_h and y_c: the last ones."""

    signature = (
        "x: T[A, B, I], w: T[D, K, I], r: T[D, K, H], b?: T[D, E], sequence_lens?: i32[N], initial_h?: T[P, Q, H], "
        "initial_c?: T[P, Q, H], p?: T[D, F] -> y: T[...], y_h: T[...], y_c: T[...]"
    )
    types = {"T": FLOATS_OF_GATES}
    input_forget = Bool(False)
    state_clip = Float(None, at_least=0.0)
    onnx = {"LSTM": 7}
    onnx_changed = {"LSTM": "before 7 output_sequence said whether there is Y"}

    def to_onnx(self, node: Any, opset: int) -> Any:
        return None if self.state_clip is not None else super().to_onnx(node, opset)

    samples = [
        Sample(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 3]),
        Sample(
            f32[3, 2, 2], f32[2, 12, 2], f32[2, 12, 3], f32[2, 24], i32[2].of([3, 1]), f32[2, 2, 3], f32[2, 2, 3],
            f32[2, 9], direction="bidirectional", clip=0.9, hidden_size=3,
        ),
        Sample(
            f32[3, 4, 5], f32[1, 8, 5], f32[1, 8, 2], None, i32[3].of([4, 0, 2]), f32[3, 1, 2], f32[3, 1, 2],
            direction="reverse", layout=True, input_forget=True, state_clip=0.4,
        ),
        Sample(
            f32[3, 2, 1], f32[1, 68, 1], f32[1, 68, 17], f32[1, 136], activations=["HardSigmoid", "Relu", "Affine"],
            activation_alpha=[0.3, 0.5], activation_beta=[0.4, 0.1],
        ),
        Sample(f64[2, 3, 2], f64[1, 4, 2], f64[1, 4, 1], f64[1, 8]),
        Sample(f16[2, 3, 2], f16[1, 12, 2], f16[1, 12, 3], f16[1, 24], tolerance=4e-3),
        Sample(bf16[2, 1, 2], bf16[1, 12, 2], bf16[1, 12, 3], tolerance=2e-2),
        Sample(f32[0, 2, 3], f32[1, 8, 3], f32[1, 8, 2], f32[1, 16], None, f32[1, 2, 2], f32[1, 2, 2]),
    ]  # fmt: skip
    rejects = [
        Reject(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 4], because="it has 12 where 16 is expected"),
        Reject(f32[4, 2, 5], f32[2, 12, 5], f32[2, 12, 3], because="it has 2 where 1 is expected"),
        Reject(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 3], hidden_size=4, because="hidden_size is 4"),
        Reject(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 3], f32[1, 12], because="b: f32[1, 12]"),
        Reject(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 3], activations=["Tanh"], because="expected 3"),
        Reject(f32[4, 2, 5], f32[1, 0, 5], f32[1, 0, 0], because="hidden units"),
    ]

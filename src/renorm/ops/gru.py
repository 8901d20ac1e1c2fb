"""Gated recurrent units."""

from __future__ import annotations

from renorm.graph.attributes import Bool
from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64, i32
from renorm.ops.shared.recurrent import FLOATS_OF_GATES, OverTime


class Gru(OverTime):
    """z, r, g = gates of x and h; h' = (1 - z) * g + z * h. g is given (r * h) * R + Rb, or for linear_before_reset
    r * (h * R + Rb). y = all h', y_h: the last one."""

    signature = (
        "x: T[A, B, I], w: T[D, K, I], r: T[D, K, H], b?: T[D, E], sequence_lens?: i32[N], initial_h?: T[P, Q, H] "
        "-> y: T[...], y_h: T[...]"
    )
    types = {"T": FLOATS_OF_GATES}
    reads = ("b", "sequence_lens", "initial_h")
    linear_before_reset = Bool(False)
    onnx = {"GRU": 7}
    onnx_changed = {"GRU": "before 7 output_sequence said whether there is Y"}

    samples = [
        Sample(f32[4, 2, 5], f32[1, 9, 5], f32[1, 9, 3]),
        Sample(
            f32[3, 2, 2], f32[2, 9, 2], f32[2, 9, 3], f32[2, 18], i32[2].of([3, 1]), f32[2, 2, 3],
            direction="bidirectional", hidden_size=3, linear_before_reset=True, clip=1,
        ),
        Sample(
            f32[3, 4, 5], f32[1, 6, 5], f32[1, 6, 2], f32[1, 12], i32[3].of([4, 0, 2]), f32[3, 1, 2],
            direction="reverse", layout=True,
        ),
        Sample(
            f32[3, 2, 1], f32[1, 51, 1], f32[1, 51, 17], f32[1, 102], linear_before_reset=True,
            activations=["HardSigmoid", "Elu"], activation_alpha=[0.3, 0.5], activation_beta=[0.4],
        ),
        Sample(f64[2, 3, 2], f64[1, 3, 2], f64[1, 3, 1], f64[1, 6]),
        Sample(f16[2, 3, 2], f16[1, 9, 2], f16[1, 9, 3], f16[1, 18], tolerance=4e-3),
        Sample(bf16[2, 1, 2], bf16[1, 9, 2], bf16[1, 9, 3], tolerance=2e-2),
        Sample(f32[3, 0, 2], f32[1, 6, 2], f32[1, 6, 2]),
    ]  # fmt: skip
    rejects = [
        Reject(f32[4, 2, 5], f32[1, 12, 5], f32[1, 12, 3], because="it has 12 where 9 is expected"),
        Reject(f32[4, 2, 5], f32[1, 9, 5], f32[1, 9, 3], None, i32[3], because="sequence_lens"),
    ]

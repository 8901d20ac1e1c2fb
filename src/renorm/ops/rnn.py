"""Simple recurrent networks."""

from __future__ import annotations

from renorm.graph.op import Reject, Sample
from renorm.graph.types import bf16, f16, f32, f64, i32
from renorm.ops.shared.recurrent import FLOATS_OF_GATES, OverTime


class Rnn(OverTime):
    """h' = tanh(x * w + h * r + b). y = all h', y_h: the last one."""

    signature = (
        "x: T[A, B, I], w: T[D, K, I], r: T[D, K, H], b?: T[D, E], sequence_lens?: i32[N], initial_h?: T[P, Q, H] "
        "-> y: T[...], y_h: T[...]"
    )
    types = {"T": FLOATS_OF_GATES}
    reads = ("b", "sequence_lens", "initial_h")
    onnx = {"RNN": 7}
    onnx_changed = {"RNN": "before 7 output_sequence said whether there is Y"}

    samples = [
        Sample(f32[4, 2, 5], f32[1, 3, 5], f32[1, 3, 3]),
        Sample(
            f32[3, 2, 2], f32[2, 3, 2], f32[2, 3, 3], f32[2, 6], i32[2].of([3, 1]), f32[2, 2, 3],
            direction="bidirectional", hidden_size=3, activations=["Softplus", "LeakyRelu"], activation_alpha=[0.2],
            clip=1.5,
        ),
        Sample(f32[3, 4, 5], f32[1, 2, 5], f32[1, 2, 2], None, i32[3].of([4, 0, 2]), layout=True, direction="reverse"),
        Sample(
            f32[2, 3, 1], f32[1, 17, 1], f32[1, 17, 17], f32[1, 34], activations=["ScaledTanh"],
            activation_alpha=[0.3], activation_beta=[0.4],
        ),
        Sample(f64[2, 3, 2], f64[1, 1, 2], f64[1, 1, 1], f64[1, 2]),
        Sample(f16[2, 3, 2], f16[1, 3, 2], f16[1, 3, 3], f16[1, 6], tolerance=4e-3),
        Sample(bf16[2, 1, 2], bf16[1, 3, 2], bf16[1, 3, 3], tolerance=2e-2),
        Sample(f32[2, 1, 0], f32[1, 2, 0], f32[1, 2, 2], f32[1, 4]),
    ]  # fmt: skip
    rejects = [
        Reject(f32[4, 2, 5], f32[1, 6, 5], f32[1, 6, 3], because="it has 6 where 3 is expected"),
        Reject(f32[4, 2, 5], f32[1, 3, 5], f32[1, 3, 3], activations=["Sine"], because="no activation 'Sine'"),
    ]

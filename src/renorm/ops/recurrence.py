"""Steps of recurrent networks, after what their data give to the gates is computed for all of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim
from renorm.graph.attributes import Bool, Float, Int, String
from renorm.graph.op import Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, f16, f32, f64, i32
from renorm.ops.shared import recurrent_reference
from renorm.ops.shared.cells import GATES, STATES
from renorm.ops.shared.recurrent import FLOATS_OF_GATES, Cells
from renorm.ops.shared.recurrent_loops import over_time

_OPTIONAL = ("bias", "lengths", "h", "c", "peepholes")


class Recurrence(Cells):
    """y = h after each step, and behind it the last h, and the last c of an LSTM: [steps + 1 or 2, direction, batch,
    units]. Units lie in tiles of V: x has gates of a tile side by side (direction, tile, gate, V), r is [direction,
    tile, hidden, gate, V]. Units beyond the hidden ones fill the last tile. rows: of the batch, computed at once."""

    signature = (
        "x: T[S, N, K], r: T[D, L, H, G, V], bias?: T[D, U], lengths?: i32[N], h?: T[D, N, U], c?: T[D, N, U], "
        "peepholes?: T[D, 3, U] -> y: T[...]"
    )
    types = {"T": FLOATS_OF_GATES}
    kind = String(among=tuple(GATES))
    input_forget = Bool(False)
    state_clip = Float(None, at_least=0.0)
    linear_before_reset = Bool(False)
    rows = Int(1, at_least=1)

    def infer(self, x: Operand, r: Operand, *optional: Operand | None) -> tuple[Dim, ...]:
        steps, batch, width = x.shape
        directions, tiles, _, gates, lanes = r.shape
        self.cell()
        self.expect(f"direction is {self.direction!r}, and {r}", directions, self.directions)
        self.expect(f"the gates of a {self.kind} in {r}", gates, GATES[self.kind])
        self.expect(f"what the gates of {r} are given by {x}", width, self.directions * tiles * gates * lanes)
        for operand in optional:
            if operand is not None and operand.name != "lengths":
                self.expect(str(operand), operand.shape[-1], tiles * lanes)
        return (steps + STATES[self.kind], self.directions, batch, tiles * lanes)

    def compute(self, x: te.Tensor, r: te.Tensor, *optional: te.Tensor | None) -> te.Tensor:
        directions, (_, tiles, _, _, lanes) = self.directions, r.shape
        steps, batch, _ = x.shape
        cell = self.cell()
        given = {name: t for name, t in zip(_OPTIONAL, optional, strict=True) if t is not None}
        return te.extern(
            (steps + cell.states, directions, batch, tiles * lanes),
            [x, r, *given.values()],
            over_time(cell, tuple(given), self.rows),
            name="recurrence",
            rounds=directions * ((batch + (self.rows - 1)) // self.rows),
        )

    def reference(self, x: Any, r: Any, bias: Any, lengths: Any, h: Any, c: Any, peepholes: Any) -> Any:
        directions, tiles, hidden, gates, lanes = r.shape
        given = np.asarray(x).reshape(*x.shape[:2], directions, tiles, gates, lanes).swapaxes(3, 4)
        rows = np.asarray(r).transpose(0, 2, 3, 1, 4).reshape(directions, hidden, gates, tiles * lanes)
        whole = given.reshape(*given.shape[:4], tiles * lanes)
        return recurrent_reference.states(self.cell(), whole, rows, bias, lengths, h, c, peepholes)

    def nominal_flops(self, operands: Any, results: Any) -> Dim | None:
        x, r = operands[:2]
        assert isinstance(x, TensorType)
        assert isinstance(r, TensorType)
        return 2 * x.shape[0] * x.shape[1] * x.shape[2] * r.shape[2]

    samples = [
        Sample(f32[3, 2, 16], f32[1, 1, 3, 4, 4], kind="lstm"),
        Sample(
            f32[3, 3, 48], f32[2, 2, 3, 3, 4], f32[2, 8], i32[3].of([3, 0, 2]), f32[2, 3, 8],
            kind="gru", linear_before_reset=True, direction="bidirectional", rows=2,
        ),
        Sample(
            f32[3, 3, 16], f32[1, 1, 4, 4, 4], None, i32[3].of([1, 5, -1]), f32[1, 3, 4], f32[1, 3, 4], f32[1, 3, 4],
            kind="lstm", input_forget=True, clip=0.7, state_clip=0.3, direction="reverse", rows=3,
        ),
        Sample(f32[2, 5, 12], f32[1, 1, 3, 3, 4], kind="gru", rows=2, activations=["Softsign", "Relu"]),
        Sample(
            f32[4, 1, 8], f32[2, 1, 4, 1, 4], kind="rnn", direction="bidirectional",
            activations=["HardSigmoid", "ScaledTanh"], activation_alpha=[0.3, 0.9], activation_beta=[0.4, 1.5],
        ),
        Sample(f64[3, 2, 4], f64[1, 1, 3, 1, 4], kind="rnn"),
        Sample(f16[3, 2, 16], f16[1, 1, 4, 4, 4], kind="lstm", tolerance=4e-3),
        Sample(bf16[2, 1, 6], bf16[1, 1, 2, 3, 2], kind="gru", tolerance=2e-2),
        Sample(f32[0, 2, 8], f32[1, 2, 3, 1, 4], kind="rnn"),
        Sample(f32[3, 0, 8], f32[1, 2, 3, 1, 4], kind="rnn"),
    ]  # fmt: skip
    rejects = [
        Reject(f32[3, 2, 16], f32[1, 1, 3, 3, 4], kind="lstm", because="it has 3 where 4 is expected"),
        Reject(f32[3, 2, 15], f32[1, 1, 3, 4, 4], kind="lstm", because="it has 15 where 16 is expected"),
        Reject(f32[3, 2, 32], f32[2, 1, 3, 4, 4], kind="lstm", because="direction is 'forward'"),
        Reject(f32[3, 2, 4], f32[1, 1, 3, 1, 4], kind="rnn", activations=["Affine"], because="has no default"),
        Reject(f32[3, 2, 4], f32[1, 1, 3, 1, 4], kind="rnn", activations=["Sine"], because="no activation 'Sine'"),
        Reject(f32[3, 2, 4], f32[1, 1, 3, 1, 4], kind="rnn", activations=["Relu", "Tanh"], because="2 names"),
    ]

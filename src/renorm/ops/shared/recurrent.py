"""What recurrent ops share: attributes and the cell that they say; operands and results of ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from renorm import te
from renorm.core.dims import Dim, take
from renorm.core.errors import OperandError
from renorm.expr.nodes import Expr, const
from renorm.graph.attributes import Bool, Float, Floats, Int, String
from renorm.graph.ir import Node
from renorm.graph.op import OpDef
from renorm.graph.types import Operand
from renorm.ops.shared import recurrent_reference
from renorm.ops.shared.cells import GATES, STATES, Cell, Words, functions
from renorm.ops.shared.composite import apply
from renorm.ops.shared.precision import wide
from renorm.ops.shared.recurrent_loops import over_time

FLOATS_OF_GATES = ("float32", "float64", "float16", "bfloat16")
_BACK = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
_LANES = 16  # units of a tile, where no target is asked


class Cells(OpDef):
    """Ops that apply a cell again and again."""

    direction = String("forward", among=tuple(_BACK))
    activations = Words(None)
    activation_alpha = Floats(None)
    activation_beta = Floats(None)
    clip = Float(None, at_least=0.0)
    scheduled_as = "given_loops"

    @property
    def directions(self) -> int:
        return len(_BACK[self.direction])

    def cell(self) -> Cell:
        """Return the cell; OperandError for activations that are none."""
        given = self.values
        kind = given.get("kind") or self.name
        return Cell(
            kind,
            functions(kind, self.directions, self.activations, self.activation_alpha, self.activation_beta),
            _BACK[self.direction],
            self.clip,
            bool(given.get("input_forget")),
            given.get("state_clip"),
            kind == "gru" and bool(given.get("linear_before_reset")),
        )

    def expect(self, what: str, own: Dim, extent: Dim) -> None:
        """Raise OperandError where two extents differ."""
        if isinstance(own, int) and isinstance(extent, int) and own != extent:
            raise OperandError(f"{self.name}: {what}: it has {own} where {extent} is expected")
        take(own, "==", extent)


class OverTime(Cells):
    """An operator of ONNX: w and r have the rows of all gates, b those of w and then of r. x is [time, batch,
    channels], y [time, direction, batch, units]; in layout 1 batches come first."""

    reads: ClassVar[tuple[str, ...]] = ("b", "sequence_lens", "initial_h", "initial_c", "p")
    hidden_size = Int(None, at_least=1)
    layout = Bool(False)

    def infer(self, x: Operand, w: Operand, r: Operand, *optional: Operand | None) -> list[tuple[Dim, ...]]:
        (steps, batch), (directions, rows, hidden) = self.turned(x.shape[:2]), r.shape
        gates = GATES[self.name]
        self.cell()
        if hidden == 0:
            raise OperandError(f"{self.name}: {r} has no hidden units")
        take(1, "<=", hidden)
        self.expect(f"direction is {self.direction!r}, and {r}", directions, self.directions)
        self.expect(f"hidden_size is {self.hidden_size}, and {r}", hidden, self.hidden_size or hidden)
        self.expect(f"the rows of {gates} gates in {r}", rows, gates * hidden)
        states = (*self.turned((self.directions, batch)), hidden)
        shapes: dict[str, tuple[Dim, ...]] = {
            "b": (self.directions, 2 * gates * hidden), "sequence_lens": (batch,), "initial_h": states,
            "initial_c": states, "p": (self.directions, 3 * hidden),
        }  # fmt: skip
        for operand in optional:
            for own, extent in zip(operand.shape, shapes[operand.name]) if operand else ():
                self.expect(str(operand), own, extent)
        y = (batch, steps, self.directions, hidden) if self.layout else (steps, self.directions, batch, hidden)
        return [y, *[states] * STATES[self.name]]

    def turned(self, axes: Sequence[Any]) -> tuple[Any, ...]:
        """Return two axes, of which the batch is one, as operands have them, or as they are without layout."""
        return (axes[1], axes[0]) if self.layout else (axes[0], axes[1])

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        """Runtimes ask for hidden_size, and have kernels for layout 0 alone."""
        said, r = super().to_onnx(node, opset), node.operands[2]
        if said is None or self.layout or not isinstance(r.shape[2], int):
            return None
        op_type, written, operands = said
        return op_type, {**written, "hidden_size": r.shape[2]}, operands

    def in_onnx(self, node: Node) -> Any:
        """With times first."""
        if not self.layout:
            return None

        def turned(x: Any, *perm: int) -> Any:
            return None if x is None else apply("transpose", x, perm=perm)

        x, w, r, *optional = node.operands
        states = [turned(v, 1, 0, 2) if name.startswith("initial") else v for name, v in zip(self.reads, optional)]
        made = self.with_attributes(layout=False)(turned(x, 1, 0, 2), w, r, *states)
        return [turned(made[0], 2, 0, 1, 3), *(turned(s, 1, 0, 2) for s in made[1:])]

    def compute(self, x: te.Tensor, w: te.Tensor, r: te.Tensor, *optional: te.Tensor | None) -> list[te.Tensor]:
        cell, given = self.cell(), dict(zip(self.reads, optional, strict=True))
        (steps, batch), (directions, hidden) = self.turned(x.shape[:2]), (self.directions, r.shape[2])
        lanes = min(hidden, _LANES) if isinstance(hidden, int) else _LANES
        tiles, gates = (hidden + (lanes - 1)) // lanes, cell.gates
        units = tiles * lanes
        i = te.reduce_axis((0, x.shape[2]), name="i")
        sums = te.compute(
            (steps, batch, directions, gates * hidden),
            lambda t, n, d, row: te.sum(wide(x[(*self.turned((t, n)), i)]) * wide(w[d, row, i]), axis=i),
            name="of_data",
        )

        def filled(value: Callable[[Expr], Expr], unit: Expr) -> Expr:
            """Return an element of a unit, 0 behind the last one."""
            held = value(te.min(unit, hidden - 1))
            return held if units is hidden else te.if_then_else(unit < hidden, held, const(0, held.dtype))

        def of_data(t: Expr, n: Expr, at: Expr) -> Expr:
            gate, tile = at // lanes % gates, at // (lanes * gates)
            d = tile // tiles

            def value(unit: Expr) -> Expr:
                row = gate * hidden + unit
                e, b = sums[t, n, d, row], given["b"]
                if b is None:
                    return e
                of_state = wide(b[d, row + gates * hidden])
                if cell.resets_after:
                    of_state = te.select(gate < 2, of_state, const(0, of_state.dtype))
                return e + wide(b[d, row]) + of_state

            return filled(value, tile % tiles * lanes + at % lanes)

        def states(value: te.Tensor | None, name: str) -> te.Tensor | None:
            return value and te.compute(
                (directions, batch, units),
                lambda d, n, u: filled(lambda unit: value[(*self.turned((d, n)), unit)], u),
                name=name,
            )

        b, p = given["b"], given.get("p")
        arrays: dict[str, te.Tensor | None] = {
            "x": te.compute((steps, batch, directions * units * gates), of_data, name="data"),
            "r": te.compute(
                (directions, tiles, hidden, gates, lanes),
                lambda d, tile, k, gate, lane: filled(lambda u: r[d, gate * hidden + u, k], tile * lanes + lane),
                name="weights",
            ),
            "bias": te.compute(
                (directions, units), lambda d, u: filled(lambda unit: b[d, 5 * hidden + unit], u), name="bias"
            ) if b is not None and cell.resets_after else None,
            "lengths": given["sequence_lens"],
            "h": states(given["initial_h"], "h"),
            "c": states(given.get("initial_c"), "c"),
            "peepholes": te.compute(
                (directions, 3, units), lambda d, k, u: filled(lambda unit: p[d, k * hidden + unit], u), name="holes"
            ) if p is not None else None,
        }  # fmt: skip
        there = {name: t for name, t in arrays.items() if t is not None}
        made = te.extern(
            (steps + cell.states, directions, batch, units), [*there.values()], over_time(cell, tuple(there)[2:], 1),
            name="steps", dtype=x.dtype, rounds=directions * batch,
        )  # fmt: skip

        def y(a: Expr, b: Expr, c: Expr, unit: Expr) -> Expr:
            t, d, n = (b, c, a) if self.layout else (a, b, c)
            return made[t, d, n, unit]

        def last(k: int) -> Callable[..., Expr]:
            return lambda a, b, unit: made[(steps + k, *self.turned((a, b)), unit)]

        shape = (batch, steps, directions, hidden) if self.layout else (steps, directions, batch, hidden)
        state = (*self.turned((directions, batch)), hidden)
        lasts = [te.compute(state, last(k), name=f"last_{k}") for k in range(cell.states)]
        return [te.compute(shape, y, name="y"), *lasts]

    def reference(self, x: Any, w: Any, r: Any, *optional: Any) -> list[Any]:
        cell, given = self.cell(), dict(zip(self.reads, optional, strict=True))
        gates, (directions, _, hidden) = cell.gates, r.shape
        rows = np.asarray(x).swapaxes(0, 1) if self.layout else np.asarray(x)
        data = np.einsum("tni,dki->tndk", rows, w).reshape(*rows.shape[:2], directions, gates, hidden)
        of_state = None
        if given["b"] is not None:
            b = np.array(given["b"]).reshape(directions, 2, gates, hidden)
            if cell.resets_after:
                of_state = b[:, 1, 2].copy()
                b[:, 1, 2] = 0
            data = data + b.sum(1)
        h, c = (s.swapaxes(0, 1) if s is not None and self.layout else s
                for s in (given["initial_h"], given.get("initial_c")))  # fmt: skip
        p = given.get("p")
        p = None if p is None else np.reshape(p, (directions, 3, hidden))
        turned = np.reshape(r, (directions, gates, hidden, hidden)).transpose(0, 3, 1, 2)
        made = recurrent_reference.states(cell, data, turned, of_state, given["sequence_lens"], h, c, p)
        y, lasts = made[: len(rows)], list(made[len(rows) :])
        return [y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in lasts)] if self.layout else [y, *lasts]

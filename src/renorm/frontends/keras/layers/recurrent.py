"""Recurrent layers: each is one op, for any number of time steps. Those with a mask, or with an activation that the op
has not, are written out one step after the other, as many as the sequence is long, which must be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.gates import in_order
from renorm.frontends.keras.call import Call, Tensor
from renorm.frontends.keras.config import Described, described, leaves, named_in_files
from renorm.frontends.keras.layers.activating import activation
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.keras.weights import Array, Weights
from renorm.graph.ir import Value

_PARTS = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}  # gates
_STATES = {"SimpleRNN": 1, "LSTM": 2, "GRU": 1}
_MOST = 512  # steps that are written out; each is as many nodes as its cell has
# where ONNX's gates are among Keras': i, f, g, o; z, r, g
_ORDERS = {"SimpleRNN": (0,), "LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}
# what an activation is among ONNX's functions of gates: its name, alpha and beta
_FUNCTIONS: dict[str, tuple[str, float | None, float | None]] = {
    "tanh": ("Tanh", None, None), "sigmoid": ("Sigmoid", None, None), "relu": ("Relu", None, None),
    "linear": ("Affine", 1.0, 0.0), "softplus": ("Softplus", None, None), "softsign": ("Softsign", None, None),
    "hard_sigmoid": ("HardSigmoid", 1 / 6, 0.5), "elu": ("Elu", 1.0, None),
}  # fmt: skip


@dataclass(frozen=True)
class _Cell:
    """kind: of the layer that has it. held: kernel, recurrent_kernel, and bias where there is one."""

    c: Call
    kind: str
    layer: Described
    held: dict[str, Array]

    @property
    def units(self) -> int:
        return self.held["recurrent_kernel"].shape[0]

    def given(self, x: Value) -> Value:
        """Return what the data, [batch, time, channels], give to all gates."""
        y = ops.matmul(x, self.c.constant(self.held["kernel"], "kernel"))
        bias = self.held.get("bias")
        if bias is None:
            return y
        return ops.add(y, self.c.constant(bias[0] if bias.ndim == 2 else bias, "bias"))

    def act(self, x: Value, key: str, default: str) -> Value:
        found = activation(self.c, x, self.layer.config.get(key, default))
        assert isinstance(found, Value)
        return found

    def gate(self, x: Value) -> Value:
        return self.act(x, "recurrent_activation", "sigmoid")

    def part(self, x: Value, i: int, n: int = 1) -> Value:
        return self.c.sliced(x, 1, i * self.units, (i + n) * self.units)


Step = Callable[[_Cell, Value, Sequence[Value], "dict[str, Value]"], "list[Value]"]


def _simple(cell: _Cell, x: Value, states: Sequence[Value], own: dict[str, Value]) -> list[Value]:
    return [cell.act(ops.add(x, ops.matmul(states[0], own["recurrent_kernel"])), "activation", "tanh")]


def _lstm(cell: _Cell, x: Value, states: Sequence[Value], own: dict[str, Value]) -> list[Value]:
    z = ops.add(x, ops.matmul(states[0], own["recurrent_kernel"]))
    i, f, g, o = (cell.part(z, n) for n in range(4))
    carry = ops.add(ops.mul(cell.gate(f), states[1]), ops.mul(cell.gate(i), cell.act(g, "activation", "tanh")))
    return [ops.mul(cell.gate(o), cell.act(carry, "activation", "tanh")), carry]


def _gru(cell: _Cell, x: Value, states: Sequence[Value], own: dict[str, Value]) -> list[Value]:
    (h,) = states
    z, r, new = (cell.part(x, n) for n in range(3))
    if cell.layer.config.get("reset_after", True):
        inner = ops.matmul(h, own["recurrent_kernel"])
        inner = ops.add(inner, own["recurrent_bias"]) if "recurrent_bias" in own else inner
        z, r = (cell.gate(ops.add(a, cell.part(inner, n))) for n, a in enumerate((z, r)))
        new = ops.add(new, ops.mul(r, cell.part(inner, 2)))
    else:
        inner = ops.matmul(h, own["gates"])
        z, r = (cell.gate(ops.add(a, cell.part(inner, n))) for n, a in enumerate((z, r)))
        new = ops.add(new, ops.matmul(ops.mul(r, h), own["candidate"]))
    candidate = cell.act(new, "activation", "tanh")
    return [ops.add(candidate, ops.mul(z, ops.sub(h, candidate)))]


_STEPS: dict[str, Step] = {"SimpleRNN": _simple, "LSTM": _lstm, "GRU": _gru}


def _constants(cell: _Cell) -> dict[str, Value]:
    """Return the weights that each step reads, made once."""
    c, kernel, bias = cell.c, cell.held["recurrent_kernel"], cell.held.get("bias")
    if cell.kind == "GRU" and not cell.layer.config.get("reset_after", True):
        n = 2 * cell.units
        return {"gates": c.constant(kernel[:, :n], "gates"), "candidate": c.constant(kernel[:, n:], "candidate")}
    found = {"recurrent_kernel": c.constant(kernel, "recurrent_kernel")}
    if bias is not None and bias.ndim == 2:
        found["recurrent_bias"] = c.constant(bias[1], "recurrent_bias")
    return found


def _cells(c: Call) -> list[tuple[Described, Weights]]:
    """Return the cells of a layer, of which each reads the results of the one before."""
    if c.layer.kind != "RNN":
        return [(c.layer, c.weights.part("cell", f"{c.layer.kind.lower()}_cell"))]
    cell = described(c.option("cell"), "cell")
    if cell.kind != "StackedRNNCells":
        return [(cell, c.weights.part("cell"))]
    parts = [described(given, "cell") for given in cell.config.get("cells") or ()]
    whole = c.weights.part("cell").part("cells")
    return [(part, whole.part(key)) for part, key in zip(parts, named_in_files([p.kind for p in parts]))]


def _made(c: Call, layer: Described, weights: Weights) -> _Cell:
    kind = {"SimpleRNNCell": "SimpleRNN", "LSTMCell": "LSTM", "GRUCell": "GRU"}.get(layer.kind, layer.kind)
    if kind not in _STEPS or (layer.module and layer.module.partition(".")[0] not in ("keras", "tf_keras")):
        raise UnsupportedOp(f"renorm does not read the cell {layer.kind}")
    names = ["kernel", "recurrent_kernel", *(["bias"] if layer.config.get("use_bias", True) else [])]
    held, units, gates = weights.own(names), int(layer.config.get("units") or 0), _PARTS[kind]
    if held["recurrent_kernel"].shape != (units, gates * units):
        raise InvalidModel(
            f"recurrent_kernel has shape {list(held['recurrent_kernel'].shape)}, expected {[units, gates * units]}"
        )
    return _Cell(c, kind, layer, held)


@reads("SimpleRNN", "LSTM", "GRU", "RNN")
def _recurrent(c: Call, x: Tensor, *states: Any, initial_state: Any = None) -> Any:
    if c.option("stateful"):
        raise UnsupportedOp("it is stateful: what it computes depends on the calls before", do="stateful=False")
    value, steps = x.stored(), x.value.shape[1]
    cells = [_made(c, *given) for given in _cells(c)]
    given = [*leaves([initial_state if initial_state is not None else states])]
    held = _initial(c, cells, value, given)
    # Keras hands the mask of a sequence to layers that are called with no other tensor, and else what the call says
    mask = None if given and not x.is_told else x.mask
    if mask is None and all(_activations(cell) for cell in cells):
        return _whole(c, cells, x, held)
    if not isinstance(steps, int):
        raise UnsupportedOp(f"the number of time steps, {steps}, is open", do="build the model for a fixed length")
    if steps > _MOST:
        raise UnsupportedOp(f"it has {steps} time steps, and is read step by step up to {_MOST}")
    return _unrolled(c, cells, x, steps, held, mask)


def _initial(c: Call, cells: Sequence[_Cell], x: Value, given: Sequence[Tensor]) -> list[list[Value]]:
    counts = [_STATES[cell.kind] for cell in cells]
    if not given:
        return [[c.zeros((x.shape[0], cell.units), x.dtype)] * n for cell, n in zip(cells, counts)]
    flat = [t.stored() for t in given]
    if len(flat) != sum(counts):
        raise InvalidModel(f"it is given {len(flat)} states, expected {sum(counts)}")
    return [[flat.pop(0) for _ in range(n)] for n in counts]


def _activations(cell: _Cell) -> dict[str, Any] | None:
    """Return what the op is told of a cell's activations; None where it has none such."""
    own, of_gates = (
        cell.layer.config.get("activation", "tanh"),
        cell.layer.config.get("recurrent_activation", "sigmoid"),
    )
    given = {"SimpleRNN": [own], "LSTM": [of_gates, own, own], "GRU": [of_gates, own]}[cell.kind]
    names = ["linear" if name is None else name for name in given]
    if not all(isinstance(name, str) and name in _FUNCTIONS for name in names):
        return None
    found = [_FUNCTIONS[name] for name in names]
    return {
        "activations": [name for name, _, _ in found],
        "activation_alpha": [alpha for _, alpha, _ in found if alpha is not None],
        "activation_beta": [beta for _, _, beta in found if beta is not None],
    }


def _whole(c: Call, cells: Sequence[_Cell], x: Tensor, states: Sequence[Sequence[Value]]) -> Any:
    """Return what a layer gives, of which each cell is an op. The first one reads backward, where the layer does, and
    the others what it makes, in its order."""
    y, lasts, is_back = x.stored(), list[Value](), bool(c.option("go_backwards"))
    for i, (cell, own) in enumerate(zip(cells, states, strict=True)):
        made, *after = _over_time(cell, y, own, is_back and not i)
        y = c.reshaped(made, (*made.shape[:2], cell.units))
        y = backward(c, y) if is_back and not i else y
        lasts += [c.reshaped(v, (v.shape[0], cell.units)) for v in after]
    has_all = c.option("return_sequences")
    result = c.tensor(y if has_all else lasts[-_STATES[cells[-1].kind]], x.mask if has_all else None)
    return [result, *lasts] if c.option("return_state") else result


def _over_time(cell: _Cell, x: Value, states: Sequence[Value], is_back: bool) -> Sequence[Value]:
    """Return [batch, time, 1, units], and the last states, [batch, 1, units]."""
    c, kind, units = cell.c, cell.kind, cell.units
    order, bias, b = _ORDERS[kind], cell.held.get("bias"), None
    w, r = (in_order(c, c.weight(cell.held[k], k, (1, 0)), order) for k in ("kernel", "recurrent_kernel"))
    if bias is not None:
        held = c.constant(bias, "bias")
        own = (
            [c.reshaped(c.sliced(held, 0, k, k + 1), (bias.shape[1],)) for k in range(2)] if bias.ndim == 2 else [held]
        )
        own += [c.zeros(held.shape, held.dtype)] * (2 - len(own))
        b = c.reshaped(ops.concat([in_order(c, v, order) for v in own], axis=0), (1, 2 * own[0].shape[0]))
    others = dict(_activations(cell) or {})
    if kind == "GRU":
        others["linear_before_reset"] = bool(cell.layer.config.get("reset_after", True))
    build: Callable[..., Any] = {"SimpleRNN": ops.rnn, "LSTM": ops.lstm, "GRU": ops.gru}[kind]
    starts = [c.reshaped(s, (s.shape[0], 1, units)) for s in states]
    w, r = (c.reshaped(v, (1, *v.shape)) for v in (w, r))
    return build(x, w, r, b, None, *starts, layout=True, direction="reverse" if is_back else "forward", **others)


def _unrolled(
    c: Call, cells: Sequence[_Cell], x: Tensor, steps: int, states: list[list[Value]], mask: Value | None
) -> Any:
    own = [_constants(cell) for cell in cells]
    data, batch = cells[0].given(x.stored()), x.value.shape[0]
    order = range(steps - 1, -1, -1) if c.option("go_backwards") else range(steps)
    outputs, before = list[Value](), c.zeros((batch, cells[-1].units), x.value.dtype)
    zero = before
    zeroes = bool(c.option("zero_output_for_mask"))
    for t in order:
        at = c.reshaped(c.sliced(data, 1, t, t + 1), (batch, data.shape[2]))
        counts = None if mask is None else c.sliced(mask, 1, t, t + 1)
        for i, cell in enumerate(cells):
            if i:
                rows = c.reshaped(at, (batch, 1, at.shape[1]))
                at = c.reshaped(cell.given(rows), (batch, _PARTS[cell.kind] * cell.units))
            new = _STEPS[cell.kind](cell, at, states[i], own[i])
            at = new[0]
            states[i] = new if counts is None else [ops.where(counts, a, b) for a, b in zip(new, states[i])]
        before = at if counts is None else ops.where(counts, at, before)
        outputs.append(before if counts is None or not zeroes else ops.where(counts, at, zero))
    if c.option("return_sequences"):
        rows = [c.reshaped(v, (batch, 1, cells[-1].units)) for v in outputs]
        result = c.tensor(ops.concat(rows, axis=1), x.mask)
    else:
        result = c.tensor(outputs[-1])
    return [result, *(v for held in states for v in held)] if c.option("return_state") else result


def backward(c: Call, x: Value) -> Value:
    """Return [batch, time, ..] from the last time step to the first one."""
    return c.sliced(x, 1, -1, -(2**31), -1)

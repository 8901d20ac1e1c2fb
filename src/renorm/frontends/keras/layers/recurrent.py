"""Recurrent layers, one step after the other: as many as the sequence is long, which must be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Tensor
from renorm.frontends.keras.config import Described, described, named_in_files
from renorm.frontends.keras.layers.activating import activation
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.keras.weights import Array, Weights
from renorm.graph.ir import Value

_PARTS = {"SimpleRNN": 1, "LSTM": 4, "GRU": 3}  # gates
_STATES = {"SimpleRNN": 1, "LSTM": 2, "GRU": 1}
_MOST = 512  # steps; each is as many nodes as its cell has


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
    if not isinstance(steps, int):
        raise UnsupportedOp(f"the number of time steps, {steps}, is open", do="build the model for a fixed length")
    if steps > _MOST:
        raise UnsupportedOp(f"it has {steps} time steps, and is read step by step up to {_MOST}")
    cells = [_made(c, *given) for given in _cells(c)]
    held = _initial(c, cells, value, initial_state if initial_state is not None else [*states] or None)
    return _unrolled(c, cells, value, steps, held, x.mask)


def _initial(c: Call, cells: Sequence[_Cell], x: Value, given: Any) -> list[list[Value]]:
    counts = [_STATES[cell.kind] for cell in cells]
    if given is None:
        return [[c.zeros((x.shape[0], cell.units), x.dtype)] * n for cell, n in zip(cells, counts)]
    flat = [t.stored() for t in (given if isinstance(given, (list, tuple)) else [given])]
    if len(flat) != sum(counts):
        raise InvalidModel(f"it is given {len(flat)} states, expected {sum(counts)}")
    return [[flat.pop(0) for _ in range(n)] for n in counts]


def _unrolled(
    c: Call, cells: Sequence[_Cell], x: Value, steps: int, states: list[list[Value]], mask: Value | None
) -> Any:
    own = [_constants(cell) for cell in cells]
    data, batch = cells[0].given(x), x.shape[0]
    order = range(steps - 1, -1, -1) if c.option("go_backwards") else range(steps)
    outputs, before = list[Value](), c.zeros((batch, cells[-1].units), x.dtype)
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
    y: Value = outputs[-1]
    result = Tensor(c.graph, c.name)
    if c.option("return_sequences"):
        y = ops.concat([c.reshaped(v, (batch, 1, cells[-1].units)) for v in outputs], axis=1)
        result.mask = mask
    result.make(y)
    return [result, *(v for held in states for v in held)] if c.option("return_state") else result


@reads("Bidirectional")
def _bidirectional(c: Call, x: Tensor, initial_state: Any = None) -> Any:
    layers = [described(c.option(key), key) for key in ("layer", "backward_layer") if c.option(key) is not None]
    if len(layers) == 1:
        name = layers[0].name.removeprefix("forward_")
        config = {**layers[0].config, "go_backwards": not layers[0].config.get("go_backwards")}
        layers = [
            _renamed(layers[0], {**layers[0].config, "name": f"forward_{name}"}),
            _renamed(layers[0], {**config, "name": f"backward_{name}"}),
        ]
    found = list[list[Any]]()
    halves: list[Any] = [None, None]
    if initial_state is not None:
        n = len(initial_state) // 2
        halves = [initial_state[:n], initial_state[n:]]
    has_all, has_state = (bool(layers[0].config.get(key)) for key in ("return_sequences", "return_state"))
    for layer, key, states in zip(layers, ("forward_layer", "backward_layer"), halves):
        own = _renamed(layer, {**layer.config, "zero_output_for_mask": has_all})
        given = {} if states is None else {"initial_state": states}
        found.append(c.inner(own, c.weights.part(key, layer.name), [x], given))
    ahead, back = (f[0].stored() for f in found)
    if has_all:
        back = _reversed(c, back)
    merged = _together(c, str(c.option("merge_mode", "concat")), ahead, back)
    made = list[Any]()
    for value in merged:
        tensor = Tensor(c.graph, c.name)
        tensor.make(value)
        tensor.mask = x.mask if has_all else None
        made.append(tensor)
    return [*made, *(s for f in found for s in f[1:])] if has_state else made


def _renamed(layer: Described, config: Any) -> Described:
    return Described(layer.kind, layer.registered, layer.module, config, layer.shared)


def _reversed(c: Call, x: Value) -> Value:
    steps = x.shape[1]
    assert isinstance(steps, int)
    return c.sliced(x, 1, -1, -steps - 1, -1)


def _together(c: Call, mode: str, a: Value, b: Value) -> list[Value]:
    match mode:
        case "concat":
            return [ops.concat([a, b], axis=a.rank - 1)]
        case "sum":
            return [ops.add(a, b)]
        case "ave":
            return [ops.mean([a, b])]
        case "mul":
            return [ops.mul(a, b)]
        case "None":
            return [a, b]
        case _:
            raise InvalidModel(f"merge_mode is {mode!r}")


@reads("TimeDistributed", keeps_mask=True)
def _time_distributed(c: Call, x: Tensor) -> Any:
    """The layer over all time steps as if they were further members of the batch."""
    layer, value = described(c.option("layer"), "layer"), x.stored()
    batch, steps = value.shape[:2]
    rows = Tensor(c.graph, c.name)
    rows.make(c.reshaped(value, (batch * steps, *value.shape[2:])))
    (y,) = c.inner(layer, c.weights.part("layer", layer.name), [rows], {})
    made = y.stored()
    return c.reshaped(made, (batch, steps, *made.shape[1:]))

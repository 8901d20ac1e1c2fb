"""Overloads of recurrent layers, each layer of which is one op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from renorm import ops
from renorm.core.errors import UnsupportedOp
from renorm.frontends.gates import in_order
from renorm.frontends.torch.call import Call
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value

# where ONNX's gates are among PyTorch's: i, f, g, o; r, z, n
_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}


def _layers(
    c: Call, kind: str, x: Value, states: Sequence[Value], params: Sequence[Value], given: Sequence[Any], **others: Any
) -> list[Value]:
    """Return y, and each state of all layers. given: has_biases, num_layers, dropout, train, bidirectional,
    batch_first."""
    has_biases, layers, dropout, train, is_bidirectional, batch_first = given
    if train and dropout:
        raise UnsupportedOp(f"{kind} drops elements between its layers", do="export the module in eval()")
    directions, each = 1 + is_bidirectional, 2 + 2 * has_biases
    if len(params) != layers * directions * each:
        raise UnsupportedOp(f"{kind} projects its states", do="proj_size=0")
    y = ops.transpose(x, perm=(1, 0, 2)) if batch_first else x
    found: list[list[Value]] = [[] for _ in states]
    for layer in range(layers):
        first = layer * directions
        held = [[in_order(c, p, _ORDERS[kind]) for p in params[(first + d) * each :][:each]] for d in range(directions)]
        weights = [_stacked(c, [h[i] for h in held]) for i in range(2)]
        bias = _stacked(c, [ops.concat([h[2], h[3]], axis=0) for h in held]) if has_biases else None
        own = [c.sliced(s, 0, first, first + directions) for s in states]
        build: Callable[..., Any] = getattr(ops, kind)
        direction = "bidirectional" if is_bidirectional else "forward"
        made, *lasts = build(y, *weights, bias, None, *own, direction=direction, **others)
        steps, _, batch, units = made.shape
        y = c.reshaped(ops.transpose(made, perm=(0, 2, 1, 3)), (steps, batch, directions * units))
        for all_layers, last in zip(found, lasts, strict=True):
            all_layers.append(last)
    y = ops.transpose(y, perm=(1, 0, 2)) if batch_first else y
    return [y, *(s[0] if len(s) == 1 else ops.concat(s, axis=0) for s in found)]


def _stacked(c: Call, values: Sequence[Value]) -> Value:
    """Return values along a new first axis."""
    rows = [c.reshaped(v, (1, *v.shape)) for v in values]
    return rows[0] if len(rows) == 1 else ops.concat(rows, axis=0)


@reads("lstm.input")
def _lstm(c: Call, x: Value, hx: Sequence[Value], params: Sequence[Value], *given: Any) -> Any:
    return _layers(c, "lstm", x, hx, params, given)


@reads("gru.input")
def _gru(c: Call, x: Value, hx: Value, params: Sequence[Value], *given: Any) -> Any:
    return _layers(c, "gru", x, [hx], params, given, linear_before_reset=True)


@reads("rnn_tanh.input")
def _rnn_tanh(c: Call, x: Value, hx: Value, params: Sequence[Value], *given: Any) -> Any:
    return _layers(c, "rnn", x, [hx], params, given)


@reads("rnn_relu.input")
def _rnn_relu(c: Call, x: Value, hx: Value, params: Sequence[Value], *given: Any) -> Any:
    directions = 1 + bool(given[4])
    return _layers(c, "rnn", x, [hx], params, given, activations=("Relu",) * directions)


# --- cells: one step -------------------------------------------------------------------------------------------------


def _cell(c: Call, kind: str, x: Value, states: Sequence[Value], params: Sequence[Value | None], **others: Any) -> Any:
    """Return the states after a step of rows of data."""
    held = [p for p in params if p is not None]
    own = [c.reshaped(s, (1, *s.shape)) for s in states]
    given = (len(held) > 2, 1, 0.0, False, False, False)
    lasts = _layers(c, kind, c.reshaped(x, (1, *x.shape)), own, held, given, **others)[1:]
    made = [c.reshaped(v, v.shape[1:]) for v in lasts]
    return made if kind == "lstm" else made[0]


@reads("lstm_cell")
def _lstm_cell(c: Call, x: Value, hx: Sequence[Value], *params: Value | None) -> Any:
    return _cell(c, "lstm", x, hx, params)


@reads("gru_cell")
def _gru_cell(c: Call, x: Value, hx: Value, *params: Value | None) -> Any:
    return _cell(c, "gru", x, [hx], params, linear_before_reset=True)


@reads("rnn_tanh_cell")
def _rnn_tanh_cell(c: Call, x: Value, hx: Value, *params: Value | None) -> Any:
    return _cell(c, "rnn", x, [hx], params)


@reads("rnn_relu_cell")
def _rnn_relu_cell(c: Call, x: Value, hx: Value, *params: Value | None) -> Any:
    return _cell(c, "rnn", x, [hx], params, activations=("Relu",))

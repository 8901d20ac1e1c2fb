"""Recurrent networks: sequences through one cell, whose state is 0 where a run begins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.operator import Operator
from renorm.graph.ir import Value

# what a cell's activation is among ONNX's functions of gates: its name, alpha and beta
_FUNCTIONS: dict[str, tuple[str, list[float], list[float]]] = {
    "NONE": ("Affine", [1.0], [0.0]), "RELU": ("Relu", [], []), "TANH": ("Tanh", [], []),
}  # fmt: skip


def _function(call: OperatorCall) -> tuple[str, list[float], list[float]]:
    if call.activation not in _FUNCTIONS:
        raise UnsupportedOp(f"activation {call.activation} of a cell is not one renorm computes")
    return _FUNCTIONS[call.activation]


def _joined(values: Sequence[Value]) -> Value:
    """Return the rows of several gates as those of one direction."""
    rows = values[0] if len(values) == 1 else ops.concat([*values], axis=0)
    return ops.unsqueeze(rows, axes=[0])


def _start(call: OperatorCall, index: int, is_first: bool) -> Value | None:
    """Return the state that an operand begins with; None for zeros."""
    given = call.bias(index)
    if given is None or (given.data is not None and not given.data.any()):
        return None
    return ops.unsqueeze(given, axes=[0 if is_first else 1])


def _bias(call: OperatorCall, gates: Sequence[Value]) -> Value:
    """Return biases of data, and zeros in the place of those of states."""
    rows = ops.concat([*gates], axis=0) if len(gates) > 1 else gates[0]
    zeros = call.graph.constant(np.zeros(static(rows.shape), numpy_dtype(rows.dtype)), "zeros")
    return _joined([rows, zeros])


def rnn(call: OperatorCall) -> Value:
    """x, weight [U, I], recurrent weight [U, U], bias [U], state [N, U]."""
    is_first = bool(call.option("time_major", False))
    name, alpha, beta = _function(call)
    x, w, r, b = (call.stored(i) for i in range(4))
    made = ops.rnn(
        x, _joined([w]), _joined([r]), _bias(call, [b]), None, _start(call, 4, is_first), layout=not is_first,
        activations=[name], activation_alpha=alpha, activation_beta=beta,
    )  # fmt: skip
    return _result(made[0], is_first)


def lstm(call: OperatorCall) -> Value:
    """x; weights of input, forget, cell and output gate (1 to 4), those of states (5 to 8), peepholes of input, forget
    and output gate (9 to 11), biases (12 to 15), states h and c (18, 19). Without weights of the input gate that is 1 -
    forget gate."""
    for index, what in ((16, "projects its states"), (20, "normalizes its gates")):
        if any(call.has(i) for i in range(index, min(index + 4, 18 if index == 16 else 24))):
            raise UnsupportedOp(f"it {what}, which renorm does not compute")
    if call.activation == "NONE":
        raise UnsupportedOp("its cell has no activation, of which LiteRT has no defined result")
    if call.option("diagonal_recurrent_tensors", False):
        raise UnsupportedOp("its recurrent weights are diagonal")
    is_first, is_coupled = bool(call.option("time_major", False)), not call.has(1)
    name, alpha, beta = _function(call)
    clip = call.option("cell_clip", 0.0)

    def gates(first: int) -> list[Value]:
        """Return the operands of the gates in ONNX's order: input, output, forget, cell."""
        forget, cell, output = (call.stored(first + i) for i in (1, 2, 3))
        return [ops.neg(forget) if is_coupled else call.stored(first), output, forget, cell]

    peepholes = None
    if call.has(10) and call.has(11):  # 1 - sigmoid(x) is sigmoid(-x)
        of_input = ops.neg(call.stored(10)) if is_coupled else call.stored(9)
        peepholes = _joined([of_input, call.stored(11), call.stored(10)])
    made = ops.lstm(
        call.stored(0), _joined(gates(1)), _joined(gates(5)), _bias(call, gates(12)), None,
        _start(call, 18, is_first), _start(call, 19, is_first), peepholes, layout=not is_first,
        input_forget=is_coupled, state_clip=clip or None, activations=["Sigmoid", name, name],
        activation_alpha=alpha * 2, activation_beta=beta * 2,
    )  # fmt: skip
    return _result(made[0], is_first)


def _result(y: Value, is_first: bool) -> Value:
    """Return [time, batch, units], or [batch, time, units], without the axis of directions."""
    return ops.squeeze(y, axes=[1 if is_first else 2])


OPERATORS = [
    Operator("UNIDIRECTIONAL_SEQUENCE_LSTM", "lstm", lstm, has_cell=True),
    Operator("UNIDIRECTIONAL_SEQUENCE_RNN", "rnn", rnn, has_cell=True),
]

"""Recurrent networks: sequences through one cell, or one step of it. States are variables, which runs hand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InvalidModel, UnsupportedOp, UntoldOperand
from renorm.frontends.tflite import activations
from renorm.frontends.tflite.call import OperatorCall
from renorm.frontends.tflite.operator import Operator, Reader, Result
from renorm.graph.ir import Value

# what a cell's activation is among ONNX's functions of gates: its name, alpha and beta
_FUNCTIONS: dict[str, tuple[str, list[float], list[float]]] = {
    "NONE": ("Affine", [1.0], [0.0]), "RELU": ("Relu", [], []), "TANH": ("Tanh", [], []),
}  # fmt: skip

_EPSILON = 1e-8  # of the layer norm of gates


def _function(call: OperatorCall) -> tuple[str, list[float], list[float]]:
    if call.activation not in _FUNCTIONS:
        raise UnsupportedOp(f"activation {call.activation} of a cell is not one renorm computes")
    return _FUNCTIONS[call.activation]


def _joined(values: Sequence[Value]) -> Value:
    """Return the rows of several gates as those of one direction."""
    rows = values[0] if len(values) == 1 else ops.concat([*values], axis=0)
    return ops.unsqueeze(rows, axes=[0])


def _bias(call: OperatorCall, gates: Sequence[Value]) -> Value:
    """Return biases of data, and zeros in the place of those of states."""
    rows = ops.concat([*gates], axis=0) if len(gates) > 1 else gates[0]
    zeros = call.graph.constant(np.zeros(static(rows.shape), numpy_dtype(rows.dtype)), "zeros")
    return _joined([rows, zeros])


@dataclass(frozen=True)
class _Way:
    """One direction. x: what it reads, [time, batch, channels] if `is_first`, otherwise [batch, time, channels]. first:
    its first weight among the operands. aux: the first weight of what is read beside x. states: where its states are.
    norms: the first parameter of the norms of its gates."""

    call: OperatorCall
    x: Value
    first: int
    states: Sequence[int]
    is_first: bool
    is_back: bool = False
    aux: int | None = None
    norms: int | None = None

    def weight(self, index: int) -> Value:
        """Return a weight of data, with that of what is read beside it."""
        own = self.call.stored(self.first + index)
        return own if self.aux is None else ops.concat([own, self.call.stored(self.aux + index)], axis=1)

    def of_states(self, index: int) -> Value:
        """Return a weight of states, which may be said by its diagonal."""
        held = self.call.stored(self.first + index)
        return (
            held
            if held.rank == 2
            else ops.mul(ops.unsqueeze(held, axes=[0]), np.eye(static(held.shape)[0], dtype=held.dtype))
        )

    def state(self, number: int, units: Any) -> Value | None:
        """Return a state before the first step, [batch, units]; None for zeros."""
        return self.call.state(self.states[number], (self.x.shape[1 if self.is_first else 0], units))

    def started(self, state: Value | None) -> Value | None:
        """Return a state with the axis of directions that ops have."""
        return None if state is None else ops.unsqueeze(state, axes=[0 if self.is_first else 1])

    def result(self, made: Sequence[Value]) -> Value:
        """Return [time, batch, units], or [batch, time, units], and note the last states."""
        for index, last in zip(self.states, made[1:]):
            self.call.becomes(index, ops.squeeze(last, axes=[0 if self.is_first else 1]))
        return ops.squeeze(made[0], axes=[1 if self.is_first else 2])

    @property
    def said(self) -> dict[str, Any]:
        return {"layout": not self.is_first, "direction": "reverse" if self.is_back else "forward"}


_Cell = Callable[[_Way], Value]


def _rnn(way: _Way) -> Value:
    """weight [U, I], recurrent weight [U, U], bias [U]."""
    name, alpha, beta = _function(way.call)
    r, b = way.call.stored(way.first + 1), way.call.stored(way.first + 2)
    start = way.started(way.state(0, r.shape[0]))
    made = ops.rnn(
        way.x, _joined([way.weight(0)]), _joined([r]), _bias(way.call, [b]), None, start, activations=[name],
        activation_alpha=alpha, activation_beta=beta, **way.said,
    )  # fmt: skip
    return way.result(made)


def _lstm(way: _Way) -> Value:
    """From `first` on: weights of input, forget, cell and output gate, those of states (4 to 7), peepholes of input,
    forget and output gate (8 to 10), biases (11 to 14), projection and its bias (15, 16). Without weights of the input
    gate that is 1 - forget gate."""
    call, first = way.call, way.first
    if call.activation == "NONE":
        raise UnsupportedOp("its cell has no activation, of which LiteRT has no defined result")
    if call.has(first + 15) or (way.norms is not None and call.has(way.norms + 1)):
        return _step_by_step(way)
    is_coupled = not call.has(first)
    name, alpha, beta = _function(call)

    def gates(place: int) -> list[Value]:
        """Return the operands of the gates in ONNX's order: input, output, forget, cell."""
        read = {0: way.weight, 4: way.of_states}.get(place, lambda i: call.stored(first + i))
        forget, cell, output = (read(place + i) for i in (1, 2, 3))
        return [ops.neg(forget) if is_coupled else read(place), output, forget, cell]

    peepholes = None
    if call.has(first + 9) and call.has(first + 10):  # 1 - sigmoid(x) is sigmoid(-x)
        forget, output = call.stored(first + 9), call.stored(first + 10)
        peepholes = _joined([ops.neg(forget) if is_coupled else call.stored(first + 8), output, forget])
    r = _joined(gates(4))
    h, c = (way.started(way.state(k, r.shape[2])) for k in (0, 1))
    made = ops.lstm(
        way.x, _joined(gates(0)), r, _bias(call, gates(11)), None, h, c, peepholes, input_forget=is_coupled,
        state_clip=call.option("cell_clip", 0.0) or None, activations=["Sigmoid", name, name],
        activation_alpha=alpha * 2, activation_beta=beta * 2, **way.said,
    )  # fmt: skip
    return way.result(made)


def _step_by_step(way: _Way) -> Value:
    """An LSTM that projects its states, or normalizes its gates: each step of it as products, norms and gates."""
    call, first, time = way.call, way.first, 0 if way.is_first else 1
    steps, units = way.x.shape[time], call.stored(first + 5).shape[0]
    if not isinstance(steps, int):
        what = "the number of steps of an LSTM that projects its states, or normalizes its gates"
        raise UntoldOperand(f"{what}, {steps}, is not known", do="give shapes", operand=steps)
    call.scope.reader.expand(steps * 20, 1, call.name)
    projection = call.bias(first + 15)
    h = way.state(0, units if projection is None else projection.shape[0])
    c = way.state(1, units)
    kept = [i for i in range(4) if i or call.has(first)]
    rows = ops.concat([way.weight(i) for i in kept], axis=0)
    columns = ops.concat([way.of_states(4 + i) for i in kept], axis=0)
    biases = [call.bias(first + 11 + i) for i in range(4)]

    def normed(gate: Value, i: int) -> Value:
        bias = biases[i]
        if way.norms is None or not call.has(way.norms + 1):
            return gate if bias is None else ops.add(gate, bias)
        scale = call.stored(way.norms + i)
        return ops.layer_norm(gate, scale, bias, axis=-1, epsilon=_EPSILON)

    def peeped(gate: Value, i: int, state: Value | None) -> Value:
        if state is None or not call.has(first + 8 + i):
            return gate
        return ops.add(gate, ops.mul(state, call.stored(first + 8 + i)))

    def cut(value: Value, option: str) -> Value:
        most = np.asarray(call.option(option, 0.0), value.dtype)
        return ops.clip(value, -most, most) if most > 0 else value

    made = list[Value]()
    for t in range(steps)[:: -1 if way.is_back else 1]:
        step = ops.gather(way.x, np.asarray(t, np.int64), axis=time)
        sums = ops.gemm(step, rows, transB=True)
        if h is not None:
            sums = ops.add(sums, ops.gemm(h, columns, transB=True))
        parts = ops.split(sums, axis=1, num_outputs=len(kept))
        gate = dict(zip(kept, parts))
        forget = ops.sigmoid(normed(peeped(gate[1], 1, c), 1))
        new = activations.apply(call.activation, normed(gate[2], 2))
        one = np.asarray(1, forget.dtype)
        enter = ops.sigmoid(normed(peeped(gate[0], 0, c), 0)) if 0 in gate else ops.sub(one, forget)
        entered = ops.mul(enter, new)
        c = cut(entered if c is None else ops.add(ops.mul(forget, c), entered), "cell_clip")
        output = ops.sigmoid(normed(peeped(gate[3], 2, c), 3))
        h = ops.mul(output, activations.apply(call.activation, c))
        if projection is not None:
            h = cut(ops.gemm(h, projection, call.bias(first + 16), transB=True), "proj_clip")
        made.append(h)
    if h is None or c is None:
        raise InvalidModel(f"{way.x.name!r} has no steps")
    for index, last in zip(way.states, (h, c)):
        call.becomes(index, last)
    ordered = made[:: -1 if way.is_back else 1]
    return ops.concat([ops.unsqueeze(v, axes=[time]) for v in ordered], axis=time)


def _sequence(apply: _Cell, states: Sequence[int], norms: int | None = None) -> Reader:
    return lambda call: apply(_Way(call, call.stored(0), 1, states, bool(call.option("time_major")), norms=norms))


def _both_ways(apply: _Cell, firsts: Sequence[int], states: Sequence[Sequence[int]], aux: Sequence[int]) -> Reader:
    """Two directions, whose results are joined where merge_outputs says so. aux: where what is read beside x is, and
    its weights of both. Without weights it is what the second direction reads in the place of x."""

    def read(call: OperatorCall) -> Result:
        x, beside, made = call.stored(0), call.bias(aux[0]), list[Value]()
        has_weights = beside is not None and call.has(aux[1] + 1)
        both = ops.concat([x, beside], axis=2) if has_weights else x
        for k, (first, held) in enumerate(zip(firsts, states)):
            given = beside if k and beside is not None and not has_weights else both
            way = _Way(call, given, first, held, bool(call.option("time_major")), bool(k))
            made.append(apply(replace(way, aux=aux[1 + k]) if has_weights else way))
        return ops.concat(made, axis=2) if call.option("merge_outputs", False) else made

    return read


def _one_step(apply: _Cell, states: Sequence[int], norms: int | None = None) -> Reader:
    """A cell that is applied once: x is [batch, channels]."""

    def read(call: OperatorCall) -> Value:
        x = ops.unsqueeze(call.stored(0), axes=[0])
        return ops.squeeze(apply(_Way(call, x, 1, states, True, norms=norms)), axes=[0])

    return read


def _one_lstm(call: OperatorCall) -> Result:
    """Of kernel type BASIC: x, h, weight [4 U, I + U] of input, cell, forget and output gate, bias, c."""
    if not call.option("kernel_type", 0):
        return _one_step(_lstm, [18, 19], 20)(call)
    x, h, w, b, c = (call.stored(i) for i in range(5))
    sums = ops.gemm(ops.concat([x, h], axis=-1), w, b, transB=True)
    enter, new, forget, output = ops.split(sums, axis=-1, num_outputs=4)
    after = ops.add(ops.mul(ops.sigmoid(enter), ops.tanh(new)), ops.mul(ops.sigmoid(forget), c))
    return [ops.mul(ops.sigmoid(output), ops.tanh(after)), after, ops.concat([x, h], axis=-1), sums]


def _svdf(call: OperatorCall) -> Value:
    """y = sums over rank of sums over the last steps of (x * weight [F, I]) * weight of time [F, M]; the state is what
    the last M steps made, [N, F * M]."""
    x, w, times = call.stored(0), call.stored(1), call.stored(2)
    (filters, steps), rank = static(times.shape), int(call.option("rank", 1))
    if rank < 1 or filters % rank:
        raise InvalidModel(f"its {filters} filters are no multiple of rank {rank}")
    state = call.state(4, (x.shape[0], filters * steps))
    new = ops.unsqueeze(ops.gemm(x, w, transB=True), axes=[2])
    if state is None:
        sums = ops.mul(new, ops.slice(times, *(np.asarray([i], np.int64) for i in (steps - 1, steps, 1))))
    else:
        last = ops.reshape(state, shape=np.asarray([-1, filters, steps], np.int64))
        kept = ops.slice(last, *(np.asarray([i], np.int64) for i in (1, steps, 2)))
        whole = ops.concat([kept, new], axis=2)
        call.becomes(4, ops.reshape(whole, shape=np.asarray([-1, filters * steps], np.int64)))
        sums = ops.mul(whole, times)
    y = ops.reduce_sum(sums, axes=(2,), keepdims=False)
    if rank > 1:
        ranks = ops.reshape(y, shape=np.asarray([-1, filters // rank, rank], np.int64))
        y = ops.reduce_sum(ranks, axes=(2,), keepdims=False)
    return ops.add(y, call.stored(3)) if call.has(3) else y


_BOTH_LSTM = _both_ways(_lstm, (1, 18), ((35, 36), (37, 38)), (39, 40, 44))

OPERATORS = [
    Operator(
        "BIDIRECTIONAL_SEQUENCE_LSTM",
        read=_both_ways(_lstm, (1, 18), ((35, 36), (37, 38)), (39, 40, 44)),
        has_cell=True,
    ),
    Operator("BIDIRECTIONAL_SEQUENCE_RNN", read=_both_ways(_rnn, (1, 5), ((4,), (8,)), (9, 10, 11)), has_cell=True),
    Operator("LSTM", read=_one_lstm, has_cell=True),
    Operator("RNN", read=_one_step(_rnn, [4]), has_cell=True),
    Operator("SVDF", read=_svdf, fuses=True),
    Operator("UNIDIRECTIONAL_SEQUENCE_LSTM", "lstm", _sequence(_lstm, [18, 19], 20), has_cell=True),
    Operator("UNIDIRECTIONAL_SEQUENCE_RNN", "rnn", _sequence(_rnn, [4]), has_cell=True),
]

"""Recurrent operators of TensorFlow Lite, whose states are variables, against LiteRT in its first run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.errors import UnsupportedOp

BATCH, STEPS, CHANNELS, UNITS = 2, 5, 3, 20


def f(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def lstm(has_input: bool = True, has_peepholes: bool = False, more: int = 0, **fields: Any) -> tuple[bytes, Any]:
    """A file of one LSTM, and data. has_input: whether the input gate is one of its own. more: operand that is there
    beside what it is read with."""
    file, shape = File(), (STEPS, BATCH) if fields.get("time_major") else (BATCH, STEPS)
    gates = "ifco" if has_input else "fco"
    names: list[str | None] = [file.tensor("x", (*shape, CHANNELS))]
    for part, columns in (("w", CHANNELS), ("r", UNITS)):
        names += [file.constant(part + g, f(UNITS, columns)) if g in gates else None for g in "ifco"]
    names += [file.constant(f"p{g}", f(UNITS)) if has_peepholes and g in gates else None for g in "ifo"]
    names += [file.constant(f"b{g}", f(UNITS)) if g in gates else None for g in "ifco"]
    names += [None, None, variable(file, "h"), variable(file, "c"), None, None, None, None]
    if more:
        names[more] = file.constant("more", f(UNITS, UNITS))
    file.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", names, [file.tensor("y", (*shape, UNITS))],
        "UnidirectionalSequenceLSTMOptions", **{"fused_activation_function": 4, **fields},
    )  # fmt: skip
    return file.written(["x"], ["y"]), f(*shape, CHANNELS) * 3


def variable(file: File, name: str) -> str:
    file.tensor(name, (BATCH, UNITS))
    file.tables[name]["is_variable"] = True
    return name


@pytest.mark.parametrize("has_peepholes", [False, True])
@pytest.mark.parametrize("has_input", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"time_major": True}, {"cell_clip": 0.3}, {"cell_clip": 10.0, "fused_activation_function": 1}],
    ids=str,
)  # fmt: skip
def test_lstm(has_input: bool, has_peepholes: bool, fields: dict[str, Any]) -> None:
    content, x = lstm(has_input, has_peepholes, **fields)
    module = renorm.compile(renorm.read(content))
    for _ in range(2):  # each run is a first one
        np.testing.assert_allclose(module.run(x)[0], litert(content, x)[0], rtol=1e-5, atol=1e-5)
    assert any("'h' is a variable" in a for a in module.report.assumptions)


@pytest.mark.parametrize("activation", [0, 1, 4])
@pytest.mark.parametrize("is_first", [False, True])
def test_rnn(is_first: bool, activation: int) -> None:
    file, shape = File(), (STEPS, BATCH) if is_first else (BATCH, STEPS)
    weights = [file.constant("w", f(UNITS, CHANNELS)), file.constant("r", f(UNITS, UNITS) * 0.2)]
    names = [file.tensor("x", (*shape, CHANNELS)), *weights, file.constant("b", f(UNITS)), variable(file, "h")]
    file.operator(
        "UNIDIRECTIONAL_SEQUENCE_RNN", names, [file.tensor("y", (*shape, UNITS))], "SequenceRNNOptions",
        time_major=is_first, fused_activation_function=activation,
    )  # fmt: skip
    content, x = file.written(["x"], ["y"]), f(*shape, CHANNELS)
    found = renorm.compile(renorm.read(content)).run(x)[0]
    np.testing.assert_allclose(found, litert(content, x)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("more", "fields", "words"),
    [
        (16, {}, "projects its states"),
        (21, {}, "normalizes its gates"),
        (0, {"fused_activation_function": 3}, "activation RELU6 of a cell"),
        (0, {"fused_activation_function": 0}, "has no activation"),
    ],
)
def test_what_is_not_read(more: int, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedOp, match=words):
        renorm.read(lstm(more=more, **fields)[0])

"""Recurrent operators of TensorFlow Lite, whose states are variables that runs hand on, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert_runs
from tests.random_numbers import RNG

import renorm
from renorm.errors import UnsupportedOp

BATCH, STEPS, CHANNELS, UNITS, PROJECTED = 2, 5, 3, 20, 7


def f(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def variable(file: File, name: str, width: int, batch: int = BATCH) -> str:
    return file.tensor(name, (batch, width), is_variable=True)


def agrees(content: bytes, *shape: int, times: float = 1.0, atol: float = 1e-5) -> Any:
    """Check three runs, of which each goes on where the one before ended; the module."""
    runs = [(f(*shape) * np.float32(times),) for _ in range(3)]
    module = renorm.compile(content)
    for xs, expected in zip(runs, litert_runs(content, *runs), strict=True):
        for found, one in zip(module.run(*xs), expected, strict=True):
            np.testing.assert_allclose(found, one, rtol=1e-5, atol=atol)
    return module


def gates(
    file: File, p: str, has_input: bool = True, holes: bool = False, inner: int = UNITS, columns: int = CHANNELS
) -> list[Any]:
    """Weights, peepholes and biases of one direction. p: what names begin with."""
    kept, found = "ifco" if has_input else "fco", list[str | None]()
    for part, width in (("w", columns), ("r", inner)):
        found += [file.constant(f"{p}{part}{g}", f(UNITS, width) * 0.5) if g in kept else None for g in "ifco"]
    found += [file.constant(f"{p}p{g}", f(UNITS)) if holes and g in kept else None for g in "ifo"]
    return found + [file.constant(f"{p}b{g}", f(UNITS)) if g in kept else None for g in "ifco"]


def lstm(
    has_input: bool = True, holes: bool = False, projects: bool = False, norms: bool = False, batch: int = BATCH,
    **fields: Any,
) -> tuple[bytes, tuple[int, ...]]:  # fmt: skip
    file, shape = File(), (STEPS, BATCH) if fields.get("time_major") else (BATCH, STEPS)
    inner = PROJECTED if projects else UNITS
    names: list[str | None] = [file.tensor("x", (*shape, CHANNELS)), *gates(file, "", has_input, holes, inner)]
    names += [file.constant("pw", f(inner, UNITS)), file.constant("pb", f(inner))] if projects else [None, None]
    names += [variable(file, "h", inner, batch), variable(file, "c", UNITS, batch)]
    kept = "ifco" if has_input else "fco"
    names += [file.constant(f"n{g}", f(UNITS)) if norms and g in kept else None for g in "ifco"]
    file.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", names, [file.tensor("y", (*shape, inner))],
        "UnidirectionalSequenceLSTMOptions", **{"fused_activation_function": 4, **fields},
    )  # fmt: skip
    return file.written(["x"], ["y"]), (*shape, CHANNELS)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("has_input", [False, True])
@pytest.mark.parametrize(
    "fields", [{}, {"time_major": True}, {"cell_clip": 0.3}, {"cell_clip": 10.0, "fused_activation_function": 1}],
    ids=str,
)  # fmt: skip
def test_lstm(has_input: bool, holes: bool, fields: dict[str, Any]) -> None:
    content, shape = lstm(has_input, holes, **fields)
    module = agrees(content, *shape, times=3)
    assert [*module.state] == ["h", "c"]


@pytest.mark.parametrize("projects", [False, True])
@pytest.mark.parametrize("norms", [False, True])
@pytest.mark.parametrize("has_input", [False, True])
def test_lstm_step_by_step(projects: bool, norms: bool, has_input: bool) -> None:
    """With peepholes and a projection that is cut; gates' norms are nodes that the report lists."""
    content, shape = lstm(has_input, True, projects, norms, proj_clip=0.8, cell_clip=2.0)
    module = agrees(content, *shape)
    assert bool(module.report.norms) == norms


def test_states_of_another_batch_begin_with_zeros_in_each_run() -> None:
    content, shape = lstm(batch=1)
    module, x = renorm.compile(content), f(*shape)
    for _ in range(2):
        np.testing.assert_array_equal(module.run(x)[0], module.run(x)[0])
    assert any("'h' is a variable" in a for a in module.report.assumptions)


@pytest.mark.parametrize("merges", [False, True])
@pytest.mark.parametrize("beside", ["", "read", "weighed"])
def test_lstm_in_both_directions(merges: bool, beside: str) -> None:
    """beside: whether there is an auxiliary input: a constant here, read by the second direction, or by both. LiteRT
    2.3 joins results with the batch first at wrong places."""
    file, shape = File(), (STEPS, BATCH) if merges else (BATCH, STEPS)
    names: list[str | None] = [file.tensor("x", (*shape, CHANNELS))]
    for p in "fb":
        names += [*gates(file, p), None, None]
    names += [variable(file, p + s, UNITS) for p in "fb" for s in "hc"]
    names.append(file.constant("aux", f(*shape, CHANNELS)) if beside else None)
    names += [
        file.constant(f"{p}a{g}", f(UNITS, CHANNELS)) if beside == "weighed" else None for p in "fb" for g in "ifco"
    ]
    outs = [file.tensor(f"y{k}", (*shape, UNITS * (2 if merges else 1))) for k in range(1 if merges else 2)]
    file.operator(
        "BIDIRECTIONAL_SEQUENCE_LSTM", names, outs, "BidirectionalSequenceLSTMOptions", fused_activation_function=4,
        merge_outputs=merges, time_major=merges,
    )  # fmt: skip
    agrees(file.written(["x"], outs), *shape, CHANNELS)


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("merges", [False, True])
def test_rnn_in_both_directions(is_first: bool, merges: bool) -> None:
    file, shape = File(), (STEPS, BATCH) if is_first else (BATCH, STEPS)
    names: list[str | None] = [file.tensor("x", (*shape, CHANNELS))]
    for p in "fb":
        names += [file.constant(f"{p}w", f(UNITS, CHANNELS)), file.constant(f"{p}r", f(UNITS, UNITS) * 0.2)]
        names += [file.constant(f"{p}b", f(UNITS)), variable(file, f"{p}h", UNITS)]
    names += [None, None, None]
    outs = [file.tensor(f"y{k}", (*shape, UNITS * (2 if merges else 1))) for k in range(1 if merges else 2)]
    file.operator(
        "BIDIRECTIONAL_SEQUENCE_RNN", names, outs, "BidirectionalSequenceRNNOptions", fused_activation_function=4,
        merge_outputs=merges, time_major=is_first,
    )  # fmt: skip
    agrees(file.written(["x"], outs), *shape, CHANNELS)


@pytest.mark.parametrize("activation", [0, 1, 4])
@pytest.mark.parametrize("is_first", [False, True])
def test_rnn(is_first: bool, activation: int) -> None:
    file, shape = File(), (STEPS, BATCH) if is_first else (BATCH, STEPS)
    weights = [file.constant("w", f(UNITS, CHANNELS)), file.constant("r", f(UNITS, UNITS) * 0.2)]
    names = [file.tensor("x", (*shape, CHANNELS)), *weights, file.constant("b", f(UNITS)), variable(file, "h", UNITS)]
    file.operator(
        "UNIDIRECTIONAL_SEQUENCE_RNN", names, [file.tensor("y", (*shape, UNITS))], "SequenceRNNOptions",
        time_major=is_first, fused_activation_function=activation,
    )  # fmt: skip
    agrees(file.written(["x"], ["y"]), *shape, CHANNELS)


def test_one_step_of_an_rnn_and_of_an_lstm() -> None:
    file = File()
    weights = [file.constant("w", f(UNITS, CHANNELS)), file.constant("r", f(UNITS, UNITS) * 0.2)]
    names = [file.tensor("x", (BATCH, CHANNELS)), *weights, file.constant("b", f(UNITS)), variable(file, "s", UNITS)]
    file.operator("RNN", names, [file.tensor("z", (BATCH, UNITS))], "RNNOptions", fused_activation_function=4)
    names = ["x", *gates(file, ""), None, None, variable(file, "h", UNITS), variable(file, "c", UNITS)]
    file.operator("LSTM", names, [file.tensor("y", (BATCH, UNITS))], "LSTMOptions", fused_activation_function=4)
    agrees(file.written(["x"], ["y", "z"]), BATCH, CHANNELS)


def test_an_lstm_of_kernel_type_basic() -> None:
    file = File()
    for name, width in (("x", CHANNELS), ("h", UNITS), ("c", UNITS)):
        file.tensor(name, (BATCH, width))
    file.constant("w", f(4 * UNITS, CHANNELS + UNITS))
    file.constant("b", f(4 * UNITS))
    outs = [
        file.tensor(n, (BATCH, w)) for n, w in (("y", UNITS), ("s", UNITS), ("t", UNITS + CHANNELS), ("u", 4 * UNITS))
    ]
    file.operator(
        "LSTM", ["x", "h", "w", "b", "c"], outs, "LSTMOptions", version=2, kernel_type=1, fused_activation_function=4
    )
    content, xs = file.written(["x", "h", "c"], outs[:2]), (f(BATCH, CHANNELS), f(BATCH, UNITS), f(BATCH, UNITS))
    for found, expected in zip(renorm.compile(content).run(*xs), litert_runs(content, xs)[0], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def svdf(rank: int, has_bias: bool, **more: Any) -> tuple[bytes, int]:
    file, filters, memory = File(), 12, 5
    names: list[str | None] = [file.tensor("x", (BATCH, CHANNELS)), file.constant("w", f(filters, CHANNELS))]
    names.append(file.constant("t", f(filters, memory)))
    names += [file.constant("b", f(filters // rank)) if has_bias else None, variable(file, "s", filters * memory)]
    file.operator("SVDF", names, [file.tensor("y", (BATCH, filters // rank))], "SVDFOptions", rank=rank, **more)
    return file.written(["x"], ["y"]), filters * memory


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_svdf(rank: int, has_bias: bool) -> None:
    content, width = svdf(rank, has_bias, fused_activation_function=1)
    module = agrees(content, BATCH, CHANNELS)
    assert [a.shape for a in module.state.values()] == [(BATCH, width)]
    module.state["s"] = np.zeros((BATCH, width), np.float32)  # as reset_all_variables of LiteRT
    x = f(BATCH, CHANNELS)
    np.testing.assert_allclose(module.run(x)[0], litert_runs(content, (x,))[0][0], rtol=1e-5, atol=1e-5)


def test_svdf_in_integers() -> None:
    """int8 with a state in int16, as keyword spotters have it: within a step of LiteRT's."""
    file, filters, memory, rank = File(), 8, 4, 2
    rng = np.random.default_rng(3)
    file.tensor("x", (1, CHANNELS), "int8", scale=([0.04], [3], 0))
    file.constant("w", rng.integers(-127, 128, (filters, CHANNELS)).astype(np.int8), scale=([0.01], [0], 0))
    file.constant("t", rng.integers(-3000, 3000, (filters, memory)).astype(np.int16), scale=([0.0002], [0], 0))
    file.constant("b", rng.integers(-9000, 9000, filters // rank).astype(np.int32), scale=([0.001 * 0.0002], [0], 0))
    file.tensor("s", (1, filters * memory), "int16", scale=([0.001], [0], 0), is_variable=True)
    file.tensor("y", (1, filters // rank), "int8", scale=([0.02], [-128], 0))
    file.operator(
        "SVDF", ["x", "w", "t", "b", "s"], ["y"], "SVDFOptions", version=3, rank=rank, fused_activation_function=1
    )
    content = file.written(["x"], ["y"])
    runs = [(rng.integers(-128, 128, (1, CHANNELS)).astype(np.int8),) for _ in range(6)]
    module = renorm.compile(content)
    for xs, (expected,) in zip(runs, litert_runs(content, *runs), strict=True):
        assert np.abs(module.run(*xs)[0].astype(int) - expected).max() <= 1


def test_an_lstm_with_weights_in_int8_is_computed_in_floats() -> None:
    """LiteRT rounds what it multiplies with them to 8 bits, too."""
    file, rng = File(), np.random.default_rng(4)
    names: list[str | None] = [file.tensor("x", (BATCH, STEPS, CHANNELS))]
    for part, width in (("w", CHANNELS), ("r", UNITS)):
        held = [rng.integers(-127, 128, (UNITS, width)).astype(np.int8) for _ in "ifco"]
        names += [file.constant(f"{part}{g}", a, scale=([0.004], [0], 0)) for g, a in zip("ifco", held)]
    names += [None, None, None, *(file.constant(f"b{g}", f(UNITS)) for g in "ifco"), None, None]
    names += [variable(file, "h", UNITS), variable(file, "c", UNITS), None, None, None, None]
    file.operator(
        "UNIDIRECTIONAL_SEQUENCE_LSTM", names, [file.tensor("y", (BATCH, STEPS, UNITS))],
        "UnidirectionalSequenceLSTMOptions", version=2, fused_activation_function=4,
    )  # fmt: skip
    agrees(file.written(["x"], ["y"]), BATCH, STEPS, CHANNELS, atol=0.02)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fused_activation_function": 3}, "activation RELU6 of a cell"),
        ({"fused_activation_function": 0}, "has no activation"),
    ],
)
def test_what_is_not_read(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedOp, match=words):
        renorm.read(lstm(**fields)[0])

"""LSTM, GRU and RNN as networks: a product and loops over time, against ONNX Runtime, and PyTorch's gates."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from tests.random_numbers import RNG

import renorm
from renorm.core.target import Target
from renorm.errors import RenormError
from renorm.ops.schedules import recurrent
from renorm.targets import find

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# steps, batch, channels, units: tiles with a rest and without, blocks of rows with a rest and without
SIZES = [(5, 3, 2, 33), (4, 9, 3, 40), (1, 1, 1, 1)]


def f(*shape: int) -> Any:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


def network(
    kind: str, sizes: tuple[int, int, int, int], left_out: tuple[str, ...] = (), shape: Any = None, opset: int = 14,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Any]]:  # fmt: skip
    """A network of one node whose weights are constant, and what its inputs may be. shape: of x, as it is declared."""
    (steps, batch, channels, units), gates = sizes, GATES[kind]
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    state = (directions, batch, units)
    weights = {"W": f(directions, gates * units, channels), "R": f(directions, gates * units, units) * 0.5}
    given: dict[str, Any] = {"X": f(steps, batch, channels), **weights, "B": f(directions, 2 * gates * units)}
    given["lengths"] = RNG.integers(1, steps + 1, batch).astype(np.int32)
    given["H"] = f(*state)
    given |= {"C": f(*state), "P": f(directions, 3 * units)} if kind == "LSTM" else {}
    names = ["" if n in left_out else n for n in given]
    outputs = ["Y", "Y_h", "Y_c"][: 3 if kind == "LSTM" else 2]
    node = helper.make_node(kind, names, outputs, hidden_size=units, **attributes)
    held = {n: a for n, a in given.items() if n in names and n not in ("W", "R", "B", "P")}
    constants = [numpy_helper.from_array(given[n], n) for n in ("W", "R", "B", "P") if n in names]
    declared = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), shape if n == "X" and shape else a.shape
        )
        for n, a in held.items()
    ]
    results = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None) for n in outputs]
    graph = helper.make_graph([node], "network", declared, results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), held


def expected(model: onnx.ModelProto, given: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [np.asarray(r) for r in session.run(None, given)]


def agree(found: Any, wanted: list[Any]) -> None:
    for y, e in zip(found, wanted, strict=True):
        assert y.shape == e.shape
        np.testing.assert_allclose(y, e, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", [*GATES])
def test_all_operands(kind: str, direction: str, sizes: tuple[int, int, int, int]) -> None:
    model, given = network(kind, sizes, direction=direction)
    agree(renorm.compile(model).run(**given), expected(model, given))


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LSTM", {"clip": 0.4, "input_forget": 1}),
        ("LSTM", {"activations": ["HardSigmoid", "Softsign", "ScaledTanh"], "activation_alpha": [0.3, 0.7],
                  "activation_beta": [0.4, 1.3]}),
        ("GRU", {"clip": 0.4, "linear_before_reset": 1}),
        ("GRU", {"activations": ["Sigmoid", "Tanh", "HardSigmoid", "LeakyRelu"], "activation_alpha": [0.3, 0.1],
                 "activation_beta": [0.4], "direction": "bidirectional"}),
        ("GRU", {"activations": ["Sigmoid", "Elu"], "linear_before_reset": 1}),
        ("RNN", {"activations": ["Affine"], "activation_alpha": [0.3], "activation_beta": [0.1]}),
        ("RNN", {"activations": ["Softplus"], "clip": 0.5, "direction": "reverse"}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("left_out", [("lengths",), ("H", "C", "P"), ("B", "lengths", "H", "C", "P")], ids=str)
def test_attributes(kind: str, attributes: dict[str, Any], left_out: tuple[str, ...]) -> None:
    for opset in (7, 22):
        model, given = network(kind, (4, 5, 3, 20), left_out, opset=opset, **attributes)
        agree(renorm.compile(model).run(**given), expected(model, given))


@pytest.mark.parametrize("kind", [*GATES])
def test_any_number_of_steps_and_rows(kind: str) -> None:
    """One module for all lengths and batches, none included."""
    left_out = ("lengths", "H", "C", "P")
    model, _ = network(kind, (4, 3, 5, 20), left_out, shape=("s", "n", 5), direction="bidirectional")
    module = renorm.compile(model)
    assert type(module).__name__ == "OpenModule"
    for steps, batch in ((1, 1), (6, 2), (3, 5), (9, 13)):
        given = {"X": f(steps, batch, 5)}
        agree(module.run(**given), expected(model, given))
    for steps, batch in ((0, 2), (3, 0)):
        y, last, *_ = module.run(X=f(steps, batch, 5))
        assert y.shape == (steps, 2, batch, 20)
        np.testing.assert_array_equal(last, np.zeros((2, batch, 20), np.float32))


@pytest.mark.parametrize("kind", [*GATES])
def test_levels_and_whole_ops_agree(kind: str) -> None:
    model, given = network(kind, (4, 3, 5, 20), direction="bidirectional")
    wanted = expected(model, given)
    choices: list[dict[str, Any]] = [{"opt_level": 0}, {"opt_level": 1}, {"keep": [kind.lower()]}, {"threads": 1}]
    for options in choices:
        agree(renorm.compile(model, **options).run(**given), wanted)


def test_data_are_multiplied_once_for_all_steps() -> None:
    model, _ = network("LSTM", (4, 3, 5, 20), ("lengths", "H", "C", "P"))
    kernels = [k.name for k in renorm.compile(model).report.kernels]
    assert kernels[:2] == ["fused_matmul_add", "recurrence"]


def test_tiles_fill_registers() -> None:
    """Weights are read once for some rows, as long as the sums of these are in registers."""
    wide, narrow = find("llvm -mcpu=znver4"), find("llvm -mcpu=haswell")
    for target, lanes in ((wide, 16), (narrow, 8)):
        for gates in GATES.values():
            for batch in (1, 2, 3, 32):
                units, rows = recurrent.tile(gates, 256, batch, "float32", target)
                assert units % lanes == 0
                assert rows <= batch
                assert rows * gates * units // lanes <= target.vector_registers
    assert recurrent.tile(4, 256, 32, "float32", wide)[1] > 1
    assert recurrent.tile(4, 5, 1, "float32", wide)[0] == 16


def test_gpus_have_a_thread_for_each_row() -> None:
    assert recurrent.tile(4, 256, 32, "float32", Target(kind="cuda")) == (4, 1)


def test_words_say_what_is_wrong() -> None:
    model, _ = network("RNN", (2, 1, 1, 1), activations=["Affine"])
    with pytest.raises(RenormError, match="which has no default"):
        renorm.compile(model)
    model, _ = network("GRU", (2, 1, 1, 1), activations=["Sigmoid"])
    with pytest.raises(RenormError, match="activations has 1 names, expected 2"):
        renorm.compile(model)

"""Layers of experts, MoE and QMoE, against ONNX Runtime and, in the forms that it has on GPUs only, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.frontends import onnx_runtime
from tests.frontends.runtime_nodes import MICROSOFT, check, f, i, model

import renorm
from renorm.errors import OperandError

EXPERTS, WIDTH, HIDDEN = 5, 12, 20
Array = np.ndarray[Any, Any]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _expected(x: Array, router: Array, k: int, network: Callable[[Array, int], Array]) -> Array:
    """Return float64 numbers. network: what an expert makes of a row."""
    shares = np.exp(router.astype(np.float64))
    shares /= shares.sum(1, keepdims=True)
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    taken = np.argsort(-shares, axis=1)[:, :k]
    y = [sum(shares[t, e] * network(rows[t], e) for e in taken[t]) for t in range(len(rows))]
    return np.reshape(y, x.shape)


@pytest.mark.parametrize("activation", ["relu", "identity", "silu", "gelu"])
@pytest.mark.parametrize("is_normalized", [0, 1])
def test_experts(activation: str, is_normalized: int) -> None:
    for x, rows in ((f(7, WIDTH), 7), (f(2, 3, WIDTH), 6), (f(1, 1, WIDTH), 1)):
        w1, w2 = f(EXPERTS, HIDDEN, WIDTH), f(EXPERTS, WIDTH, HIDDEN)
        biases = (f(EXPERTS, HIDDEN), f(EXPERTS, WIDTH)) if rows > 1 else (None, None)
        given = x, f(rows, EXPERTS), w1, biases[0], w2, biases[1]
        check("MoE", *given, k=1 + rows % 3, activation_type=activation, normalize_routing_weights=is_normalized)


def test_gates_in_turn() -> None:
    given = f(9, WIDTH), f(9, EXPERTS), f(EXPERTS, 2 * HIDDEN, WIDTH), f(EXPERTS, 2 * HIDDEN), f(EXPERTS, WIDTH, HIDDEN)
    check("MoE", *given, k=2, activation_type="swiglu", swiglu_fusion=1)
    own: Any = {"activation_alpha": 1.702, "activation_beta": 1.0, "swiglu_limit": 0.7}
    check("MoE", *given, f(EXPERTS, WIDTH), k=EXPERTS, activation_type="swiglu", swiglu_fusion=1, **own)


@pytest.mark.parametrize("activation", ["silu", "relu2", "swiglu", "geglu", "swiglu of three"])
def test_forms_of_gpus(activation: str) -> None:
    """Gates in halves of a row, and those of a third matrix."""
    kind, _, third = activation.partition(" of ")
    is_gated, has_third = kind in ("swiglu", "geglu"), bool(third) or kind == "silu"
    width = 2 * HIDDEN if is_gated and not has_third else HIDDEN
    x, router, w1, w2 = f(2, 3, WIDTH), f(6, EXPERTS), f(EXPERTS, width, WIDTH), f(EXPERTS, WIDTH, HIDDEN)
    w3, b3 = f(EXPERTS, HIDDEN, WIDTH), f(EXPERTS, HIDDEN)
    own: Any = {"activation_type": kind, "k": 2, "swiglu_fusion": 2 * (is_gated and not has_third)}

    def network(row: Array, e: int) -> Array:
        y = w1[e] @ row
        gate, through = (y, w3[e] @ row + b3[e]) if has_third else np.split(y, 2) if is_gated else (y, 1)
        made = {"silu": gate * _sigmoid(gate), "relu2": np.maximum(gate, 0) ** 2, "geglu": _gelu(gate)}
        return w2[e] @ (made.get(kind, gate * _sigmoid(gate)) * through)

    given = x, router, w1, None, w2, None, *([w3, b3] if has_third else [])
    module = renorm.compile(model("MoE", given, 1, MICROSOFT, own))
    (found,) = module.run(*(a for a in given if a is not None))
    np.testing.assert_allclose(found, _expected(x, router, 2, network), rtol=1e-4, atol=1e-4)


def test_rows_that_are_open() -> None:
    w1, w2 = f(EXPERTS, HIDDEN, WIDTH), f(EXPERTS, WIDTH, HIDDEN)
    held = model("MoE", [f(4, WIDTH), f(4, EXPERTS), w1, None, w2], 1, MICROSOFT, {"k": 2})
    for value in held.graph.input[:2]:
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    module = renorm.compile(held, inputs={"x2": w1, "x4": w2})
    for rows in (1, 2, 7, 64):
        x, router = f(rows, WIDTH), f(rows, EXPERTS)
        wanted = _expected(x, router, 2, lambda row, e: w2[e] @ np.maximum(w1[e] @ row, 0))
        np.testing.assert_allclose(module.run(x, router)[0], wanted, rtol=1e-4, atol=1e-4)


def _packed(rows: int, depth: int, bits: int, block: int, has_zeros: bool) -> list[Array | None]:
    """Return random integers, their scales, and zero points."""
    blocks = depth // block if block else 1
    scales = f(EXPERTS, rows, blocks, low=0.01, high=0.1) / 2 ** (bits - 2)
    of_rows = (rows, -(-blocks * bits // 8)) if block else (-(-rows * bits // 8),)
    return [
        i(EXPERTS, rows, depth * bits // 8, below=256, dtype=np.uint8),
        scales if block else scales[..., 0],
        i(EXPERTS, *of_rows, below=256, dtype=np.uint8) if has_zeros else None,
    ]


def _constants(operands: list[Array | None], **attributes: Any) -> Any:
    held = model("QMoE", operands, 1, MICROSOFT, attributes)
    for n, a in enumerate(operands[2:], 2):
        if a is not None:
            held.graph.initializer.append(helper.make_tensor(f"x{n}", 2 if a.dtype == np.uint8 else 1, a.shape, a))
    del held.graph.input[2:]
    return held


def _quantized(bits: int, block: int, has_zeros: bool, rows: int = 6) -> list[Array | None]:
    w1, s1, z1 = _packed(64, 32, bits, block, has_zeros)
    w2, s2, z2 = _packed(32, 64, bits, block, has_zeros)
    first = [f(rows, 32), f(rows, EXPERTS), w1, s1, f(EXPERTS, 64), w2, s2, f(EXPERTS, 32)]
    return [*first, None, None, None, z1, z2, None, f(rows, EXPERTS, low=0.1)]


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("block", "has_zeros"), [(0, False), (0, True), (16, False), (16, True), (32, True)])
def test_experts_of_few_bits(bits: int, block: int, has_zeros: bool) -> None:
    operands = _quantized(bits, block, has_zeros)
    own = {"block_size": block} if block else {}
    own |= {"k": 2, "expert_weight_bits": bits, "normalize_routing_weights": 1}
    (found,) = renorm.compile(_constants(operands, **own)).run(*operands[:2])
    # of constants of 8 bits in blocks ONNX Runtime quantizes data, too
    given = {f"x{n}": a for n, a in enumerate(operands) if a is not None}
    (wanted,) = onnx_runtime.run(model("QMoE", operands, 1, MICROSOFT, own), given)
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_what_is_not_read() -> None:
    given = f(3, WIDTH), f(3, EXPERTS), f(EXPERTS, HIDDEN, WIDTH), None, f(EXPERTS, WIDTH, HIDDEN)
    for own, told in (
        ({"activation_type": "tanh"}, "activation_type = 'tanh' is none of identity"),
        ({"activation_type": "swiglu"}, "lacks fc3_experts_weights"),
        ({"use_sparse_mixer": 1, "swiglu_fusion": 7}, "swiglu_fusion = 7 is none of 0, 1 and 2"),
    ):
        with pytest.raises(OperandError, match=told):
            renorm.compile(model("MoE", given, 1, MICROSOFT, own))
    operands = _quantized(4, 16, True)
    for own, told in (
        ({"expert_weight_bits": 3}, "bits = 3"),
        ({"quant_type": "fp8"}, "quant_type = 'fp8'"),
        ({"block_size": 32}, "fc1_scales has 640 elements, expected 320"),
    ):
        with pytest.raises(OperandError, match=told):
            renorm.compile(_constants(operands, k=1, **{"block_size": 16, **own}))

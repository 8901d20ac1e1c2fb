"""Ops of ONNX that are read as several: losses and rotary embeddings, against PyTorch and the onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, reference

import renorm
from renorm import frontends
from renorm.core.errors import OperandError, RenormError

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

RNG = np.random.default_rng(3)
F = torch.nn.functional


def f(*shape: int) -> np.ndarray:
    return RNG.uniform(-2, 2, shape).astype(np.float32)


def model(op_type: str, *operands: np.ndarray | None, outputs: int = 1, open_axes: Any = (), **attributes: Any) -> Any:
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(operands)]
    made = [f"y{i}" for i in range(outputs)]
    given = list[onnx.ValueInfoProto]()
    for i, (n, a) in enumerate(zip(names, operands)):
        if a is not None:
            shape = ["open" if (i, axis) in open_axes else extent for axis, extent in enumerate(a.shape)]
            given.append(helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), shape))
    node = helper.make_node(op_type, names, made, **attributes)
    graph = helper.make_graph([node], "g", given, [onnx.ValueInfoProto(name=n) for n in made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def run(m: onnx.ModelProto, *operands: np.ndarray | None) -> list[np.ndarray]:
    module = renorm.compile(m)
    given = {f"x{i}": a for i, a in enumerate(operands) if a is not None}
    return module.run(*[given[v.name] for v in module.inputs])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignored", [None, 2, -100])
@pytest.mark.parametrize("is_weighted", [True, False])
@pytest.mark.parametrize("plane", [(), (3,), (3, 4)])
def test_losses(reduction: str, ignored: int | None, is_weighted: bool, plane: tuple[int, ...]) -> None:
    x, target = f(7, 5, *plane), RNG.integers(0, 5, (7, *plane))
    target.reshape(-1)[::4] = 1 if ignored is None else ignored
    weight = np.abs(f(5)) if is_weighted else None
    given: dict[str, Any] = {"reduction": reduction, **({} if ignored is None else {"ignore_index": ignored})}
    by_torch: dict[str, Any] = {**given, "weight": None if weight is None else torch.tensor(weight)}
    labels = torch.tensor(target)
    expected = F.cross_entropy(torch.tensor(x), labels, **by_torch).numpy()
    operands = (x, target, weight)[: 3 if is_weighted else 2]
    loss, logarithms = run(model("SoftmaxCrossEntropyLoss", *operands, outputs=2, **given), *operands)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(logarithms, F.log_softmax(torch.tensor(x), 1).numpy(), rtol=1e-5, atol=1e-5)
    expected = F.nll_loss(torch.tensor(x), labels, **by_torch).numpy()
    (loss,) = run(model("NegativeLogLikelihoodLoss", *operands, **given), *operands)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-6)


def test_what_is_ignored_may_be_no_number() -> None:
    x, target = f(4, 3), np.array([0, 2, 9, 1])
    x[2] = np.nan
    (loss,) = run(model("NegativeLogLikelihoodLoss", x, target, ignore_index=9, reduction="none"), x, target)
    np.testing.assert_allclose(loss, [-x[0, 0], -x[1, 2], 0, -x[3, 1]])


def test_losses_that_are_refused() -> None:
    x, target = f(4, 3), np.array([0, 2, 1, 1])
    with pytest.raises(OperandError, match="ranks differ by one"):
        frontends.read(model("NegativeLogLikelihoodLoss", x, np.stack([target] * 2, 1)))
    with pytest.raises(RenormError, match="known: mean, sum, none"):
        frontends.read(model("NegativeLogLikelihoodLoss", x, target, reduction="most"))
    with pytest.raises(RenormError, match="operand target is missing"):
        frontends.read(model("NegativeLogLikelihoodLoss", x))
    with pytest.raises(RenormError, match="attribute axis is not defined here"):
        frontends.read(model("NegativeLogLikelihoodLoss", x, target, axis=1))


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 4])
@pytest.mark.parametrize("has_positions", [True, False])
@pytest.mark.parametrize("is_flat", [True, False])
def test_rotary_embedding(interleaved: int, width: int, has_positions: bool, is_flat: bool) -> None:
    pairs = (width or 10) // 2
    positions = RNG.integers(0, 9, (2, 5)) if has_positions else None
    angles = RNG.uniform(-3, 3, (9, pairs) if has_positions else (2, 5, pairs))
    x = f(2, 5, 30) if is_flat else f(2, 3, 5, 10)
    operands = [x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), positions]
    operands = operands if has_positions else operands[:3]
    attributes = {"interleaved": interleaved, "num_heads": 3 if is_flat else 0, "rotary_embedding_dim": width}
    row = 1 if is_flat else 2
    rows = {(0, row), (3, 1)} if has_positions else {(0, row), (1, 1), (2, 1)}
    for open_axes in (set[tuple[int, int]](), rows):
        m = model("RotaryEmbedding", *operands, open_axes=open_axes, **attributes)
        expected: Any = reference.ReferenceEvaluator(m).run(None, {f"x{i}": a for i, a in enumerate(operands)})
        np.testing.assert_allclose(run(m, *operands)[0], expected[0], rtol=1e-5, atol=1e-6)

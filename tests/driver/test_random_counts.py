"""Random networks in which data decide how many rows there are, again and again: compiled once, they give what ONNX
Runtime does, also where nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.frontends import onnx_runtime

import renorm
from renorm.driver.module import OpenModule
from renorm.errors import InvalidInput

pytestmark = pytest.mark.usefixtures("kept_code")
CALLS = ((1, 1, 0.0), (5, 3, 0.0), (30, 40, 0.1), (7, 2, -9.0), (200, 9, 0.0), (6, 6, 9.0))  # rows, rows, mean
FIRST = np.array([0])  # an axis, and where slices begin


class _Network:
    """Values of rows of floats. rows: which of them have equally many, by the name of what decided it."""

    def __init__(self, seed: int):
        self._random, self._nodes = random.Random(seed), list[onnx.NodeProto]()
        self._constants, self._outputs = dict[str, np.ndarray[Any, Any]](), list[str]()
        columns = self._random.choice([1, 3, 4, 8])
        self.inputs = {"x": ("N", columns)} | ({"u": ("M", columns)} if self._random.random() < 0.5 else {})
        self._values = [(name, rows, columns) for name, (rows, _) in self.inputs.items()]
        for _ in range(self._random.randint(3, 9)):
            self._random.choice([self._unary, self._select, self._select, self._select, self._join, self._give])()
        self._outputs.append(self._op("Identity", self._values[-1][0]))

    def _op(self, kind: str, *operands: Any, **attributes: Any) -> str:
        name = f"t{len(self._nodes)}"
        names = list[str]()
        for i, x in enumerate(operands):
            names.append(x if isinstance(x, str) else f"{name}.{i}")
            if not isinstance(x, str):
                self._constants[names[-1]] = np.asarray(x)
        self._nodes.append(helper.make_node(kind, names, [name], name, **attributes))
        return name

    def _unary(self) -> None:
        x, rows, columns = self._random.choice(self._values)
        kinds: list[Callable[[], str]] = [
            lambda: self._op("Sigmoid", x),
            lambda: self._op("Softmax", x, axis=1),
            lambda: self._op("Neg", self._op("Clip", x, np.float32(-3), np.float32(3))),
        ]
        self._values.append((self._random.choice(kinds)(), rows, columns))
        others = [v for v, r, c in self._values if (r, c) == (rows, columns)]
        self._values.append((self._op("Add", x, self._random.choice(others)), rows, columns))

    def _select(self) -> None:
        """Rows by whether their mean is large, or the first of them, as many as these are."""
        x, _, columns = self._random.choice(self._values)
        mean = self._op("ReduceMean", x, axes=[1], keepdims=0)
        is_large = self._op("Greater", mean, np.float32(self._random.choice([-0.3, 0, 0.2])))
        kind = self._random.randrange(3)
        if kind == 0:
            found = self._op("Compress", x, is_large, axis=0)
        elif kind == 1:
            found = self._op("Gather", x, self._op("Squeeze", self._op("NonZero", is_large), FIRST), axis=0)
        else:
            count = self._op("ReduceSum", self._op("Cast", is_large, to=TensorProto.INT64), FIRST, keepdims=1)
            found = self._op("Slice", x, FIRST, count, FIRST)
            if self._random.random() < 0.5:
                self._outputs.append(count)
            if self._random.random() < 0.5:
                found = self._op("Add", found, self._op("Cast", count, to=TensorProto.FLOAT))
        self._values.append((found, found, columns))

    def _join(self) -> None:
        x, rows, columns = self._random.choice(self._values)
        if self._random.random() < 0.5:
            other = self._random.choice([v for v, _, c in self._values if c == columns])
            joined = self._op("Concat", x, other, axis=0)
            self._values.append((joined, joined, columns))
        else:
            width = self._random.choice([1, 2, 5, 16])
            weights = np.random.default_rng(width).standard_normal((columns, width)).astype(np.float32)
            self._values.append((self._op("MatMul", x, weights), rows, width))

    def _give(self) -> None:
        x, _, _ = self._random.choice(self._values)
        kind = self._random.randrange(4)
        if kind == 0:
            self._outputs.append(self._op("ReduceSum", x, FIRST, keepdims=0))
        elif kind == 1:
            self._outputs.append(self._op("MatMul", self._op("Transpose", x, perm=[1, 0]), x))
        elif kind == 2:
            self._outputs.append(self._op("Tanh", self._op("Reshape", x, np.array([-1]))))
        else:
            places = self._op("NonZero", self._op("Greater", x, np.float32(0.3)))
            self._outputs += [places, self._op("GatherND", x, self._op("Transpose", places, perm=[1, 0]))]

    def model(self) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in self.inputs.items()]
        outputs = [helper.make_empty_tensor_value_info(o) for o in dict.fromkeys(self._outputs)]
        constants = [numpy_helper.from_array(a, n) for n, a in self._constants.items()]
        graph = helper.make_graph(self._nodes, "counts", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def _compare(found: list[Any], expected: list[Any], where: str) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape, where
        most = max(1.0, float(np.abs(theirs).max(initial=0)))
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-3 * most, err_msg=where)


@pytest.mark.parametrize("seed", range(24))
def test_random_networks_with_counts(seed: int, tmp_path: Path) -> None:
    network, rng = _Network(seed), np.random.default_rng(seed)
    model = network.model()
    module, session = renorm.compile(model, threads=1), onnx_runtime.session(model)
    assert isinstance(module, OpenModule), getattr(module, "obstacle", module)
    module.save(tmp_path / "net.renorm")
    loaded = renorm.load(tmp_path / "net.renorm", threads=2)
    for n, m, mean in CALLS:
        rows, given = {"N": n, "M": m}, dict[str, Any]()
        for name, (r, columns) in network.inputs.items():
            given[name] = (rng.standard_normal((rows[r], columns)) + mean).astype(np.float32)
        expected, where = onnx_runtime.run(session, given), f"{n} and {m} rows around {mean}"
        _compare(module.run(**given), expected, where)
        found: list[Any] | None = None
        with suppress(InvalidInput):  # open kernels may take an extent to be 1 at least, and it has no others
            found = loaded.run(**given)
        assert found is not None or 0 in module.extents(**given).values() or module.serving(**given) is not module
        if found is not None:
            _compare(found, expected, where)

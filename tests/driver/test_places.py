"""Random networks of concats, splits, slices and views: whatever lies in what, the numbers are those of NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import renorm
from renorm import ops
from renorm.core.dims import static
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value


class Draw:
    """Makes one network; `values` are what later nodes may read."""

    def __init__(self, data: st.DataObject, dtype: str):
        self.data, self.dtype = data, dtype
        self.rng = np.random.default_rng(0)
        self.graph = Graph("g")
        n, spatial = self.pick(1, 2, 3), (self.pick(4, 7, 8), self.pick(5, 8))
        first = self.pick(3, 16, 32)
        self.values: list[Value] = [self.graph.input("x", dtype, (n, first, *spatial))]

    def pick(self, *choices: Any) -> Any:
        return self.data.draw(st.sampled_from(choices))

    def some(self) -> Value:
        return self.pick(*self.values[-4:])

    def like(self, x: Value) -> list[Value]:
        """All values that differ from x in their channels at most."""
        return [v for v in self.values if v.rank == x.rank and (v.shape[0], v.shape[2:]) == (x.shape[0], x.shape[2:])]

    def conv(self) -> None:
        x = self.pick(*[v for v in self.values if v.rank == 4])
        c, k = x.shape[1], self.pick(1, 3)
        groups = self.pick(1, 1, c)
        out = c if groups == c else self.pick(3, 16, 16, 32)
        w = self.rng.standard_normal((out, c // groups, k, k)) / np.sqrt(c // groups * k * k)
        y = ops.conv(x, w.astype(self.dtype), pads=(k // 2,) * 4, group=groups)
        self.values.append(ops.relu(y) if self.pick(True, False) else y)

    def add(self) -> None:
        x = self.some()
        others = [v for v in self.values if v.shape == x.shape]
        self.values.append(ops.add(x, self.pick(*others)))

    def pool(self) -> None:
        x = self.pick(*[v for v in self.values if v.rank == 4])
        self.values.append(ops.average_pool(x, kernel_shape=(3, 3), pads=(1, 1, 1, 1)))

    def concat(self) -> None:
        x = self.some()
        parts = [x, *(self.pick(*self.like(x)) for _ in range(self.pick(1, 1, 2)))]
        if self.pick(True, True, False):  # values of its own can lie in it
            parts = list(dict.fromkeys(parts))
        axis = self.pick(1, 1, 1, 0) if len({v.shape for v in parts}) == 1 else 1
        self.values.append(ops.concat(parts, axis=axis))

    def split(self) -> None:
        x, axis = self.some(), self.pick(1, 1, 1, 0)
        extent = static(x.shape)[axis]
        if extent > 1:
            cut = min(self.pick(1, 16), extent - 1)
            self.values += ops.split(x, np.array([cut, extent - cut]), axis=axis)

    def slice(self) -> None:
        x = self.some()
        axis = self.pick(*range(x.rank))
        extent = static(x.shape)[axis]
        begin = self.pick(*sorted({0, min(16, extent - 1), extent // 2}))
        end = self.pick(extent, begin + 1)
        self.values.append(ops.slice(x, *(np.array([k]) for k in (begin, end, axis))))

    def view(self) -> None:
        x = self.some()
        n, c, *_ = extents = static(x.shape)
        shape = self.pick((n, -1), (n, c, -1), (1, -1, extents[-1]))
        self.values.append(ops.reshape(x, np.array(shape)))

    def network(self) -> Graph:
        kinds = [self.conv] * 4 + [self.concat] * 4 + [self.split, self.slice, self.view, self.add, self.pool]
        self.conv()
        for _ in range(self.pick(3, 5, 8)):
            self.pick(*kinds)()
        inside = [v for v in self.values[1:] if not v.users]
        outs = [self.pick(*self.values[1:])] if self.pick(True, False) else []
        self.graph.outputs = list(dict.fromkeys([*inside[-4:], *outs]))
        return self.graph


def check(dtype: str, data: st.DataObject) -> None:
    g = Draw(data, dtype).network()
    rng = np.random.default_rng(1)
    feeds = {v.name: rng.standard_normal(static(v.shape)).astype(v.dtype) for v in g.inputs}
    expected = interpret.run(g, feeds)
    module = renorm.compile(g, threads=2)
    tolerance = 1e-4 if dtype == "float32" else 2e-2
    for _ in range(2):
        for ours, theirs in zip(module.run(*feeds.values()), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * max(1.0, np.abs(theirs).max()))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(max_examples=8, deadline=None)
@given(st.data())
def test_against_the_interpreter(dtype: str, data: st.DataObject) -> None:
    check(dtype, data)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@settings(max_examples=40, deadline=None)
@given(st.data())
def test_many_against_the_interpreter(dtype: str, data: st.DataObject) -> None:
    check(dtype, data)

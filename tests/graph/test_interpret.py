"""The interpreter runs references in float64, rounds where asked, and names what fails."""

import numpy as np
import pytest

from renorm import ops
from renorm.core.errors import InvalidInput, UserCodeError
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.graph.op import OpDef


def test_floats_are_float64_inside_and_rounded_where_asked() -> None:
    g = Graph()
    x = g.input("x", "float32", (1,))
    g.outputs = [ops.sub(ops.add(x, g.constant(np.array([1e8], np.float32))), g.constant(np.array([1e8], np.float32)))]
    exact, rounded = (interpret.run(g, [np.array([1.0], np.float32)], rounded=r)[0] for r in (False, True))
    assert exact.tolist() == [1.0]
    assert rounded.tolist() == [0.0]
    assert exact.dtype == rounded.dtype == np.float32


def test_what_is_beyond_a_dtype_becomes_infinite() -> None:
    g = Graph()
    x = g.input("x", "float16", (2,))
    g.outputs = [ops.mul(x, x)]
    assert interpret.run(g, [np.array([300.0, 1e6])])[0].tolist() == [np.inf, np.inf]


def test_integers_stay_exact_and_several_results_come_in_order() -> None:
    g = Graph()
    x = g.input("x", "int64", (3,))
    a, b = ops.split(ops.mul(x, g.constant(np.array([2**60 + 1, 1, 1]))), np.array([1, 2]))
    g.outputs = [b, a]
    second, first = interpret.run(g, {"x": np.array([1, 2, 3])})
    assert first.tolist() == [2**60 + 1]
    assert second.tolist() == [2, 3]
    assert first.dtype == np.int64


def test_wrong_inputs_are_named_at_once() -> None:
    g = Graph("net")
    g.outputs = [ops.add(g.input("x", "float32", (1,)), g.input("y", "float32", (1,)))]
    with pytest.raises(InvalidInput) as error:
        interpret.run(g, {"x": np.zeros(1), "z": np.zeros(1)})
    assert error.value.facts == ("'z' is not an input", "input 'y': f32[1] is missing")


class Faulty(OpDef):
    """y = an error, or one element too many."""

    signature = "x: T[*S] -> y: T[*S]"

    def reference(self, x: np.ndarray) -> np.ndarray:
        return np.zeros(len(x) + 1) if x[0] > 0 else x[100]


@pytest.mark.parametrize(("x", "what"), [(0.0, "IndexError"), (1.0, "gives another shape")])
def test_a_failing_reference_is_named(x: float, what: str) -> None:
    g = Graph()
    g.outputs = [Faulty()(g.input("x", "float32", (2,)), name="mine")]
    with pytest.raises(UserCodeError, match=f"node 'mine': reference of faulty .*{what}"):
        interpret.run(g, [np.array([x, 0], np.float32)])

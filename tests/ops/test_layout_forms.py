"""Forms of memory: the index arithmetic of blocks and the packed arrays agree, on random shapes."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from renorm import te
from renorm.core.dtypes import numpy_dtype
from renorm.graph.layout import Layout
from renorm.te.interpret import run
from renorm.topi import layout
from renorm.topi.layout import Blocking


@st.composite
def forms(draw: st.DrawFn) -> tuple[Blocking, tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=3))  # one may be cut again
    first = draw(st.sampled_from([None, axes[-1]]))
    return Blocking(tuple((a, draw(st.integers(2, 5))) for a in axes), first), shape


@given(forms())
@settings(max_examples=60, deadline=None)
def test_memory_holds_each_element_where_its_index_says(case: tuple[Blocking, tuple[int, ...]]) -> None:
    form, shape = case
    data = np.arange(1, 1 + np.prod(shape)).reshape(shape)
    held = np.full(form.shape(shape), -1)
    form.pack(data, held)
    for index in np.ndindex(shape):
        place: Any = form.index(index)
        assert held[place] == data[index]
        assert form.element(place) == index
    assert np.count_nonzero(held) == data.size  # what fills up blocks is zero
    np.testing.assert_array_equal(form.unpack(held, shape), data)


def test_blocks_of_channels_keep_the_order_of_axes() -> None:
    assert Blocking.of(Layout(1, 16)).shape((2, 48, 5, 7)) == (2, 3, 5, 7, 16)
    weight = Blocking(((1, 16), (0, 8)), first=0)
    assert weight.shape((24, 32, 3, 3)) == (3, 2, 3, 3, 16, 8)
    assert weight.index((17, 20, 1, 2)) == (2, 1, 1, 2, 4, 1)


def test_pairs_lie_side_by_side_within_a_block() -> None:
    pairs = Blocking(((1, 16), (0, 8), (1, 2)), first=0)
    assert pairs.lanes(1) == 32
    assert pairs.shape((24, 64, 3, 3)) == (3, 2, 3, 3, 16, 8, 2)
    assert pairs.index((17, 37, 1, 2)) == (2, 1, 1, 2, 2, 1, 1)
    assert pairs.element((2, 1, 1, 2, 2, 1, 1)) == (17, 37, 1, 2)


def test_what_memory_holds_in_another_dtype_is_rounded_once_and_widened_where_it_is_read() -> None:
    form = Blocking((), dtype="bfloat16")
    given = te.placeholder((5,), "float32", "x")
    stored = layout.result(given, form)
    assert stored.dtype == "bfloat16"
    back = layout.view(stored, (5,), form)
    assert back.dtype == "float32"
    x = np.array([1.0, 1.00390625, -3.14159274, 65280.0, 1e-3], np.float32)
    held = np.zeros(5, numpy_dtype("bfloat16"))
    form.pack(x, held)
    (found,) = run([te.compute((5,), lambda i: back[i] * 1.0)], {given: x})
    np.testing.assert_array_equal(found, held.astype(np.float32))

"""Arrays of tutorials."""

from __future__ import annotations

import numpy as np
import pytest

import renorm
from renorm import te
from renorm.core import dtypes
from renorm.errors import InvalidExpression, InvalidInput
from renorm.runtime import nd


def test_array_copies():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = nd.array(x)
    x[:] = 0
    assert a.shape == (2, 3)
    assert a.dtype == "float32"
    assert a.ndim == 2
    assert len(a) == 2
    np.testing.assert_array_equal(a.asnumpy(), np.arange(6).reshape(2, 3))
    a.numpy()[:] = 7
    assert a[1, 2] == 5
    assert nd.array(a).asnumpy()[0, 1] == 1
    np.testing.assert_array_equal(np.asarray(a), a.asnumpy())
    np.testing.assert_array_equal(np.from_dlpack(a), a.asnumpy())


def test_dtypes():
    assert nd.array([1, 2]).dtype == "float32"
    assert nd.array(np.array([1, 2])).dtype == "int64"
    assert nd.array([1, 2], dtype="int8").dtype == "int8"
    assert nd.array([1.5], dtype="bfloat16").dtype == "bfloat16"
    assert nd.array(3.0).shape == ()
    assert nd.empty((3, 0), "bool").shape == (3, 0)
    with pytest.raises(InvalidExpression, match="complex64"):
        nd.array(np.zeros(2, np.complex64))


def test_functions_take_every_dtype():
    reads = [te.placeholder((4,), d, name=f"x_{d}") for d in dtypes.MOVED]
    writes = [te.compute((4,), lambda i, x=x: x[i], name=f"y_{x.dtype}") for x in reads]
    given = [nd.array([0, 1, 0, 1], dtype=d) for d in dtypes.MOVED]
    found = [nd.empty((4,), d) for d in dtypes.MOVED]
    renorm.build(te.create_schedule([y.op for y in writes]), [*reads, *writes])(*given, *found)
    for x, y in zip(given, found):
        assert np.asarray(y).dtype == x.numpy().dtype
        np.testing.assert_array_equal(y.numpy().astype("float32"), [0, 1, 0, 1])


def test_written_in_place(mirrors, mirrored):
    a, b = nd.array(np.arange(20, dtype=np.float32)), nd.empty((20,))
    mirrors(20, 2).run(a, out=[b])
    np.testing.assert_array_equal(b.asnumpy(), mirrored(a.asnumpy(), 2))
    b[:] = 4
    assert b[3] == 4
    b.copyfrom(np.ones(20))
    assert (b.asnumpy() == 1).all()
    with pytest.raises(InvalidInput, match=r"\(3,\) into one of shape \(20,\)"):
        b.copyfrom([1, 2, 3])
    assert "NDArray float32[20]" in repr(b)

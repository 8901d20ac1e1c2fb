"""Copies to shared memory that are on their way while threads compute (cp.async), in the text that a GPU gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.host_assembler import ARCH, needs_compiler
from tests.gpu.host_device import run, run_text

from renorm import te
from renorm.codegen.cuda import nvrtc
from renorm.codegen.cuda.source import generate
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import InternalError
from renorm.core.target import parse
from renorm.tir import interpret

HOST = f"cuda -arch={ARCH}"
COPY, WAIT, BARRIER = "__pipeline_memcpy_async", "__pipeline_wait_prior(0);", "__syncthreads();"
ROWS, COLUMNS, TILE = 8, 16, 8


def product(terms: int, dtype: str = "float32", vector: int = 1) -> tuple[te.Schedule, list[te.Tensor]]:
    """Return sums over terms, in rounds of some, whose rows and columns are copied for each round. Beyond the last term
    they are zeros. vector: elements that a thread copies at once."""
    a = te.placeholder((ROWS, terms), name="A", dtype=dtype)
    b = te.placeholder((COLUMNS, terms), name="B", dtype=dtype)
    padded = -(-terms // TILE) * TILE

    def copy(rows: int, t: te.Tensor, name: str) -> te.Tensor:
        def element(i: Any, j: Any) -> Any:  # whole vectors lie before the last term, or behind it
            return te.if_then_else(j // vector < terms // vector, t[i, j], te.const(0, dtype))

        return te.compute((rows, padded), element, name=name)

    of_a, of_b = copy(ROWS, a, "P"), copy(COLUMNS, b, "Q")
    k = te.reduce_axis((0, padded), name="k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(te.cast("float32", of_a[i, k]) * te.cast("float32", of_b[j, k]), axis=k)

    c = te.compute((ROWS, COLUMNS), element, name="C")
    s = te.create_schedule(c.op)
    sums = s.cache_write(c, "local")
    i, j = s[c].op.axis
    jo, ji = s[c].split(j, factor=COLUMNS // 2)
    s[c].bind(jo, te.thread_axis("blockIdx.x"))
    s[c].bind(i, te.thread_axis("threadIdx.y"))
    s[c].bind(ji, te.thread_axis("threadIdx.x"))
    s[sums].compute_at(s[c], ji)
    outer, inner = s[sums].split(s[sums].op.reduce_axis[0], factor=TILE)
    s[sums].reorder(outer, inner, *s[sums].op.axis)
    for t in (of_a, of_b):
        s[t].compute_at(s[sums], outer)
        s[t].set_scope("shared")
        s[t].double_buffer()
        rest, lane = s[t].split(s[t].op.axis[1], factor=vector)
        rest, x = s[t].split(s[t].fuse(s[t].op.axis[0], rest), factor=COLUMNS // 2)
        rest, y = s[t].split(rest, factor=ROWS)
        s[t].bind(x, te.thread_axis("threadIdx.x"))
        s[t].bind(y, te.thread_axis("threadIdx.y"))
        if vector > 1:
            s[t].vectorize(lane)
    return s, [a, b, c]


def arrays(terms: int, dtype: str) -> list[Any]:
    rng = np.random.default_rng(2)
    given = [rng.normal(size=(n, terms)).astype(numpy_dtype(dtype)) for n in (ROWS, COLUMNS)]
    return [*given, np.full((ROWS, COLUMNS), np.nan, np.float32)]


def assert_right(given: list[Any]) -> None:
    a, b, c = given
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-4, atol=1e-5)


CASES = [
    (32, "float32", 1),
    (32, "float32", 4),
    (29, "float32", 1),
    (28, "float32", 4),
    (40, "float16", 8),
    (20, "bfloat16", 2),
]


@needs_compiler
@pytest.mark.parametrize(("terms", "dtype", "vector"), CASES)
def test_copies_on_their_way(terms: int, dtype: str, vector: int) -> None:
    s, args = product(terms, dtype, vector)
    kernel = te.lower(s, args)
    text = generate(kernel, parse(HOST)).source
    assert text.count(COPY) == 4  # of both factors, before the rounds and in them
    assert text.count(WAIT) == text.count(BARRIER) == 1
    given = arrays(terms, dtype)
    run(kernel, given, target=HOST)
    assert_right(given)
    given = arrays(terms, dtype)
    interpret.run(kernel, given)
    assert_right(given)


@needs_compiler
def test_what_is_narrower_than_a_copy_is_stored() -> None:
    s, args = product(40, "float16", 1)
    kernel = te.lower(s, args)
    assert COPY not in generate(kernel, parse(HOST)).source
    given = arrays(40, "float16")
    run(kernel, given, target=HOST)
    assert_right(given)


@needs_compiler
@pytest.mark.parametrize("left_out", [WAIT, BARRIER, "__pipeline_commit();"])
def test_each_wait_is_needed(left_out: str) -> None:
    s, args = product(32, vector=4)
    kernel = te.lower(s, args)
    made = generate(kernel, parse(HOST))
    given = arrays(32, "float32")
    run_text(made.source, made.launches, kernel.params, given, made.workspace)
    assert_right(given)
    faulty = made.source.replace(left_out, "")
    assert faulty != made.source
    given = arrays(32, "float32")
    try:
        run_text(faulty, made.launches, kernel.params, given, made.workspace)
    except InternalError:
        return
    with pytest.raises(AssertionError):
        assert_right(given)


@pytest.mark.skipif(not nvrtc.identity(), reason="there is no NVRTC")
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize(("terms", "dtype", "vector"), CASES)
def test_assembled(terms: int, dtype: str, vector: int, arch: str) -> None:
    """Turing has no such copies: it gets loads and stores."""
    s, args = product(terms, dtype, vector)
    text = generate(te.lower(s, args), parse(f"cuda -arch={arch}")).source
    assert (COPY in text) == (arch != "sm_75")
    assert nvrtc.assemble(text, arch)

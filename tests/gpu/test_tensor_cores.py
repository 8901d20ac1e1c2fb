"""Tensorized loops as instructions of tensor cores: where they are such, where they stay loops, and what is right."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run

from renorm import te
from renorm.codegen.cuda import source
from renorm.codegen.cuda.source import generate
from renorm.core.conversion import converted
from renorm.core.dtypes import itemsize, numpy_dtype
from renorm.core.errors import InternalError
from renorm.core.target import Target, parse
from renorm.tir import interpret
from renorm.tir.nodes import Kernel
from renorm.tir.parse import parse as parse_loops
from renorm.tir.text import full

DTYPES = ["float16", "bfloat16", "tf32"]
ROUNDS = 2
CALL = re.compile(r"\b(renorm_mma_\w+)\((Y.*)\);")
TARGET = parse("cuda -arch=sm_90")


def program(
    dtype: str, terms: int = 32, rows: int = 2, warps: int = 1, scope: str = "", is_bound: bool = True
) -> tuple[te.Schedule, list[te.Tensor]]:
    """Return a product of 16 rows for each warp by 8 columns, in the digits of lanes, and its arrays. terms: of a
    round; scope: where rows are read, if not from their array. is_bound: whether a thread has the rows of a lane alone,
    and not all of the warp's."""
    depth = ROUNDS * terms
    a = te.placeholder((warps * rows * 8, depth), name="A", dtype=dtype)
    b = te.placeholder((8, depth), name="B", dtype=dtype)
    k = te.reduce_axis((0, depth), name="k")

    def element(w: Any, half: Any, g: Any, t: Any, place: Any) -> Any:
        x, y = a[(w * rows + half) * 8 + g, k], b[t * 2 + place, k]
        return te.sum(te.cast("float32", x) * te.cast("float32", y), axis=k)

    y = te.compute((warps, rows, 8, 4, 2), element, name="Y")
    s = te.create_schedule(y.op)
    sums = s.cache_write(y, "local")
    w, half, g, t, place = s[y].op.axis
    s[y].reorder(w, g, t, half, place)
    of_row = s[y].fuse(w, g)
    if is_bound:
        s[y].bind(of_row, te.thread_axis((0, 8 * warps), "threadIdx.y"))
    s[y].bind(t, te.thread_axis((0, 4), "threadIdx.x"))
    s[sums].compute_at(s[y], t)
    w, half, g, t, place = s[sums].op.axis
    rounds, k = s[sums].split(k, factor=terms)
    s[sums].reorder(w, g, t, rounds, half, place, k)
    s[sums].tensorize(half)
    if scope:
        copy = s.cache_read(a, scope, [sums])
        s[copy].compute_at(s[sums], t)
    return s, [a, b, y]


def assert_right(kernel: Kernel, args: list[te.Tensor], target: str = "cuda -arch=host") -> None:
    rng = np.random.default_rng(1)
    a, b = (converted(rng.normal(size=t.shape), t.dtype) for t in args[:2])
    y = np.full(args[2].shape, np.nan, np.float32)
    run(kernel, [a, b, y], target=target)
    warps, rows = y.shape[:2]
    expected = (a.astype(np.float64) @ b.astype(np.float64).T).reshape(warps, rows, 8, 4, 2)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("terms", "warps"), [(8, 1), (16, 1), (32, 1), (48, 3), (64, 2)])
def test_a_warp_multiplies(terms: int, warps: int, dtype: str) -> None:
    """An instruction for each 32 bytes of a round's terms."""
    s, args = program(dtype, terms, warps=warps)
    kernel = te.lower(s, args)
    assert len(CALL.findall(generate(kernel, TARGET).source)) == terms * itemsize(dtype) // 32
    assert_right(kernel, args)


@needs_compiler
def test_older_ones_take_8_terms_of_float16() -> None:
    s, args = program("float16", 16)
    kernel = te.lower(s, args)
    found = generate(kernel, parse("cuda -arch=sm_75")).source
    assert found.count("m16n8k8.row.col.f32.f16.f16.f32") == 2
    assert_right(kernel, args, "cuda -arch=sm_75")
    for dtype in ("bfloat16", "tf32"):
        s, args = program(dtype, 16)
        assert "mma" not in generate(te.lower(s, args), parse("cuda -arch=sm_75")).source


@needs_compiler
def test_what_tf32_multiplies_was_rounded() -> None:
    """Of a float32 tensor cores would leave out the last bits."""
    s, args = program("tf32")
    ones = [np.ones(t.shape, np.float32) for t in args]
    run(te.lower(s, args), ones)
    with pytest.raises(InternalError, match="not rounded to tf32"):
        run(te.lower(s, args), [a * np.float32(1.0001) for a in ones])


@needs_compiler
@pytest.mark.parametrize("source", ["float32", "float64", "float16", "int32", "bool"])
def test_casts_to_tf32(source: str) -> None:
    """To nearest, ties away from zero, and on in float32; memory holds what was rounded, too."""
    rng = np.random.default_rng(4)
    with np.errstate(all="ignore"):
        values = rng.integers(0, 1 << 32, 512, np.uint32).view(np.float32)
        ties = (np.arange(64, dtype=np.uint32) * 0x03F81000 + 0x1000).view(np.float32)
        x = np.concatenate([values, ties, -ties, np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3.4e38], np.float32)])
        given = x.astype(numpy_dtype(source))
    a = te.placeholder((len(x),), name="A", dtype=source)
    wide = te.compute(a.shape, lambda i: te.cast("float32", te.cast("tf32", a[i])), name="W")
    held = te.compute(a.shape, lambda i: te.cast("tf32", a[i]), name="H")
    s = te.create_schedule([wide.op, held.op])
    for t in (wide, held):
        s[t].bind(t.op.axis[0], te.thread_axis("threadIdx.x"))
    found = [np.zeros(len(x), np.float32) for _ in range(2)]
    run(te.lower(s, [a, wide, held]), [given, *found])
    for array in found:
        np.testing.assert_array_equal(array, converted(given, "tf32"))


@needs_compiler
@pytest.mark.parametrize(
    "changed",
    [{"terms": 24}, {"rows": 3}, {"scope": "local"}, {"dtype": "float32"}, {"dtype": "int8"}],
    ids=lambda x: "-".join(map(str, *x.items())),
)
def test_what_no_instruction_does_stays_loops(changed: dict[str, Any]) -> None:
    """Terms that are no multiple of 16, other rows for a lane, factors that a lane keeps to itself, other dtypes."""
    options: dict[str, Any] = {"dtype": "float16", **changed}
    s, args = program(**options)
    kernel = te.lower(s, args)
    assert "renorm_mma" not in generate(kernel, TARGET).source
    if changed.get("dtype") != "int8":
        assert_right(kernel, args)


@needs_compiler
def test_lanes_that_other_loops_have_are_no_warp() -> None:
    """Eight threads along y copy; of them one multiplies, with the others along x."""
    s, args = program("float16", scope="shared", is_bound=False)
    (copy,) = (x for x in s.stages if x.tensor.name == "A.shared")
    copy.bind(copy.split(copy.op.axis[1], nparts=8)[0], te.thread_axis((0, 8), "threadIdx.y"))
    kernel = te.lower(s, args)
    assert "renorm_mma" not in generate(kernel, TARGET).source
    assert_right(kernel, args)


@needs_compiler
@pytest.mark.parametrize(
    ("condition", "is_one"),
    [("threadIdx.x < 3", 0), ("threadIdx.y < 4", 0), ("float32(A[0]) < 9f", 0), ("k.outer < 1", 1)],
)
def test_under_a_condition(condition: str, is_one: bool) -> None:
    """A warp multiplies together where all of its lanes do. (Of memory, other threads may have written what a lane
    reads.)"""
    s, args = program("float16")
    text, whole = full(te.lower(s, args)), r"tensorized \(half, 0, 2\) \{.*?\n        \}"
    kernel = parse_loops(re.sub(whole, lambda m: f"if ({condition}) {{ {m[0]} }}", text, flags=re.DOTALL))
    assert ("renorm_mma" in generate(kernel, TARGET).source) == is_one
    arrays = [np.ones(t.shape, numpy_dtype(t.dtype)) for t in args]
    expected = [a.copy() for a in arrays]
    run(kernel, arrays)
    interpret.run(kernel, expected)
    np.testing.assert_array_equal(arrays[-1], expected[-1])


@pytest.mark.parametrize("extents", [(8, 3), (7, 4), (4, 4)])
def test_lanes_lie_as_the_instruction_wants_them(extents: tuple[int, int]) -> None:
    """4 along x, and a multiple of 8 along y: of other blocks, lanes of a warp are others."""
    s, args = program("float16")
    text = full(te.lower(s, args))
    for axis, (was, n) in zip("yx", zip((8, 4), extents)):
        text = text.replace(f"threadIdx.{axis})] thread_extent = {was}", f"threadIdx.{axis})] thread_extent = {n}")
    assert "renorm_mma" not in generate(parse_loops(text), TARGET).source


@needs_compiler
@pytest.mark.parametrize(("x", "y"), [(4, 5), (4, 6), (8, 9), (0, 1)])
def test_the_order_of_fragments_matters(x: int, y: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another one, sums are others."""

    def exchanged(call: re.Match[str]) -> str:
        args = re.split(r", (?=\*|Y)", call[2])
        args[x], args[y] = args[y], args[x]
        return f"{call[1]}({', '.join(args)});"

    whole = source.generate

    def changed(kernel: Kernel, target: Target) -> source.CudaKernel:
        made = whole(kernel, target)
        return replace(made, source=CALL.sub(exchanged, made.source))

    monkeypatch.setattr(source, "generate", changed)
    s, args = program("float16")
    with pytest.raises(AssertionError, match="Not equal"):
        assert_right(te.lower(s, args), args)

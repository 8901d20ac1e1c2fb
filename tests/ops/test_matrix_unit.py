"""Sums of products of bfloat16, and of bytes, on a matrix unit: loops against NumPy in float64, and in int64, on every
machine, by the interpreter; the code, where the machine has AMX; that there is code, everywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.codegen.native import HOST, run_native

from renorm import te
from renorm.codegen.llvm import assembly, compile_kernel
from renorm.core.dots import PAIRS, QUADS, Dot
from renorm.core.dtypes import numpy_dtype
from renorm.core.target import Target
from renorm.ops import schedules
from renorm.ops.byte_conv import ByteConv
from renorm.ops.byte_matmul import ByteMatmul
from renorm.ops.conv import Conv
from renorm.ops.gemm import Gemm
from renorm.ops.schedules import cpu_matrix, dot_weights
from renorm.targets import find
from renorm.tir import interpret
from renorm.tir.nodes import For, Kernel, walk
from renorm.tir.passes import prepare
from renorm.topi import layout
from renorm.topi.layout import Blocking

AMX = find("llvm -mcpu=sapphirerapids")
ALONE = re.compile(r"\bv(mul|fn?m(add|sub)\d*)ss\b")  # one product
BF16 = numpy_dtype("bfloat16")


def numbers(rng: np.random.Generator, *shape: int) -> Any:
    """Numbers that bfloat16 has, as float32."""
    return rng.standard_normal(shape).astype(BF16).astype(np.float32)


def _held(form: Blocking, array: Any) -> Any:
    out = np.zeros(form.shape(array.shape), numpy_dtype(form.dtype) if form.dtype else array.dtype)
    form.pack(array, out)
    return out


@dataclass
class Program:
    """Schedules `op` with a ReLU and, maybe, a residual behind it. x, y: how memory holds these."""

    op: Any
    operands: Sequence[Any]
    x: Blocking
    weights: Blocking
    y: Blocking
    residual: bool = False
    target: Target = AMX
    dot: Dot = PAIRS

    def lowered(self) -> tuple[Kernel, list[Any], Any]:
        """The kernel, its arrays, and the result in float64, as memory holds it."""
        forms = [self.x, self.weights, None]
        placeholders, views, arrays = list[te.Tensor](), list[Any](), list[Any]()
        for name, array, form in zip("xwb", self.operands, forms):
            shape = form.shape(array.shape) if form else array.shape
            placeholders.append(te.placeholder(shape, (form and form.dtype) or array.dtype.name, name))
            views.append(layout.view(placeholders[-1], array.shape, form) if form else placeholders[-1])
            arrays.append(_held(form, array) if form else array)
        y = self.op.compute(*views)
        expected = self.op.reference(*(a.astype(np.float64) for a in self.operands))
        if self.residual:
            r = numbers(np.random.default_rng(1), *y.shape)
            placeholders.append(te.placeholder(self.y.shape(y.shape), "bfloat16", "r"))
            view, sums = layout.view(placeholders[-1], y.shape, self.y), y
            y = te.compute(y.shape, lambda *i: sums[i] + view[i], name="added", tag="elemwise")
            arrays.append(_held(self.y, r))
            expected = expected + r
        before = y
        y = te.compute(y.shape, lambda *i: te.maximum(before[i], te.const(0, y.dtype)), name="relu", tag="elemwise")
        out = layout.result(y, self.y)
        s = te.create_schedule(out.op)
        schedules.schedule(self.op, s, [out], self.target)
        kernel = te.lower(s, [*placeholders, out], name="products")
        held = np.zeros(self.y.shape(expected.shape), np.float64)
        self.y.pack(np.maximum(expected, 0), held)
        return kernel, arrays, held


def check(program: Program) -> None:
    kernel, arrays, expected = program.lowered()
    assert any(isinstance(s, For) and s.kind == "tensorized" for s in walk(kernel.body))
    is_here = HOST.has_tiles if program.target.has_tiles else HOST.has_dot(program.dot)
    runs = [lambda k, a: interpret.run(k, a), *([lambda k, a: run_native(k, a, HOST, threads=2)] * is_here)]
    prepared = prepare(kernel)
    is_exact = program.dot.is_exact
    instruction = "tdpbusd" if is_exact else "tdpbf16ps" if program.target.has_tiles else "vdpbf16ps"
    assert instruction in assembly(compile_kernel(prepared, program.target), program.target)
    for run in runs:
        out = np.full(expected.shape, -1, np.int32) if is_exact else np.full(expected.shape, np.nan).astype(BF16)
        run(prepared, [*arrays, out])
        if is_exact:
            np.testing.assert_array_equal(out, expected)
            continue
        # one rounding to 8 bits; sums in float32
        limit = 2.0**-8 * np.abs(expected) + 1e-5 * np.abs(expected).max(initial=1.0)
        assert (np.abs(out.astype(np.float64) - expected) <= limit).all()


@st.composite
def convolutions(draw: st.DrawFn) -> Program:
    whole = st.integers
    lanes = draw(st.sampled_from([16, 32]))
    channels, results = lanes * draw(whole(1, 2)), lanes * draw(whole(1, 3))
    reads, writes = lanes, lanes
    if draw(st.booleans()):  # a block is all channels
        reads = channels = draw(st.sampled_from([4, 8, 12, 24, 40]))
    if draw(st.booleans()):
        writes = results = draw(st.sampled_from([8, 18, 24, 40, 66]))
    kernel = draw(st.sampled_from([(3, 7), (3, 3), (1, 3)] if reads < 8 else [(1, 1), (3, 3), (1, 3), (2, 1)]))
    strides = (draw(whole(1, 2)), draw(whole(1, 2)))
    pads = (
        (draw(whole(0, 1)), draw(whole(0, 1)), draw(whole(0, 1)), draw(whole(0, 1))) if kernel != (1, 1) else (0,) * 4
    )
    plane = (draw(whole(kernel[0], 6)), draw(whole(kernel[1], 35)))
    rng = np.random.default_rng(draw(whole(0, 2**32)))
    x = numbers(rng, draw(whole(1, 2)), channels, *plane)
    w = numbers(rng, results, channels, *kernel)
    form = dot_weights.panels(0, 1, results, reads, AMX, kernel[1] if reads == channels else 1)
    assert form is not None
    x_blocks, y_blocks = (Blocking(((1, n),), dtype="bfloat16") for n in (reads, writes))
    bias = rng.standard_normal(results).astype(np.float32)
    return Program(Conv(strides=strides, pads=pads), [x, w, bias], x_blocks, form, y_blocks, draw(st.booleans()))


@pytest.mark.parametrize(
    ("channels", "results", "plane"), [(512, 1000, (13, 13)), (64, 16, (55, 55)), (16, 64, (9, 7))]
)
def test_no_product_is_computed_alone(channels: int, results: int, plane: tuple[int, int]) -> None:
    """Nor beyond the last row, or the last block of channels: a condition inside a loop that is one instruction makes
    it one of scalars."""
    rng = np.random.default_rng(0)
    w, bias = numbers(rng, results, channels, 1, 1), numbers(rng, results)
    form = dot_weights.panels(0, 1, results, channels, AMX, 1)
    assert form is not None
    blocks = (Blocking(((1, n),), dtype="bfloat16") for n in (min(channels, 32), results if results % 32 else 32))
    x_blocks, y_blocks = blocks
    kernel, _, _ = Program(Conv(), [numbers(rng, 1, channels, *plane), w, bias], x_blocks, form, y_blocks).lowered()
    assert not ALONE.search(assembly(compile_kernel(prepare(kernel), AMX), AMX))


@given(convolutions())
@settings(max_examples=10, deadline=None)
def test_convolutions(program: Program) -> None:
    check(program)


@pytest.mark.parametrize(("groups", "channels", "results", "stride"), [(2, 32, 32, 1), (3, 64, 32, 2), (2, 32, 96, 1)])
def test_groups_of_whole_blocks(groups: int, channels: int, results: int, stride: int) -> None:
    rng = np.random.default_rng(groups)
    x = numbers(rng, 2, groups * channels, 3, 19)
    w = numbers(rng, groups * results, channels, 3, 3)
    form = dot_weights.panels(0, 1, groups * results, 32, AMX)
    assert form is not None
    bias, blocks = rng.standard_normal(groups * results).astype(np.float32), Blocking(((1, 32),), dtype="bfloat16")
    conv = Conv(strides=(stride, 1), pads=(1, 1, 1, 0), group=groups)
    check(Program(conv, [x, w, bias], blocks, form, blocks, residual=stride == 1))


@given(
    rows=st.integers(1, 70),
    depth=st.sampled_from([8, 16, 32, 40, 96]),
    columns=st.integers(4, 35).map(lambda n: 2 * n),
    data=st.data(),
)
@settings(max_examples=10, deadline=None)
def test_products_of_matrices(rows: int, depth: int, columns: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    form = dot_weights.panels(1, 0, columns, depth, AMX)
    assert form is not None
    operands = [
        numbers(rng, rows, depth),
        numbers(rng, depth, columns),
        rng.standard_normal(columns).astype("float32"),
    ]
    plain = Blocking((), dtype="bfloat16")
    check(Program(Gemm(), operands, plain, form, plain, data.draw(st.booleans())))


@st.composite
def byte_convolutions(draw: st.DrawFn) -> Program:
    whole = st.integers
    reads = draw(st.sampled_from([32, 64]))
    channels, results = reads * draw(whole(1, 2)), draw(st.sampled_from([32, 64, 96]))
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 3), (2, 1)]))
    pads = tuple(draw(whole(0, k // 2)) for k in kernel * 2)
    plane = (draw(whole(kernel[0], 6)), draw(whole(kernel[1], 35)))
    rng = np.random.default_rng(draw(whole(0, 2**32)))
    x = rng.integers(0, 256, (draw(whole(1, 2)), channels, *plane), np.uint8)
    w = rng.integers(-128, 128, (results, channels, *kernel), np.int8)
    bias = rng.integers(-(2**20), 2**20, results, np.int32)
    form = dot_weights.panels(0, 1, results, reads, AMX, kernel[1] if reads == channels else 1, QUADS)
    assert form is not None
    conv = ByteConv(strides=(draw(whole(1, 2)), draw(whole(1, 2))), pads=pads, outside=draw(whole(0, 255)))
    blocks = [Blocking(((1, n),)) for n in (reads, draw(st.sampled_from([16, 32])))]
    return Program(conv, [x, w, bias], blocks[0], replace(form, dtype=None), blocks[1], dot=QUADS)


@given(byte_convolutions())
@settings(max_examples=10, deadline=None)
def test_convolutions_of_bytes(program: Program) -> None:
    check(program)


@pytest.mark.parametrize(("rows", "depth", "columns"), [(70, 96, 66), (33, 64, 8), (16, 36, 35), (1, 128, 32)])
def test_products_of_matrices_of_bytes(rows: int, depth: int, columns: int) -> None:
    rng = np.random.default_rng(rows)
    form = dot_weights.panels(1, 0, columns, depth, AMX, dot=QUADS)
    assert form is not None
    operands = [rng.integers(0, 256, (rows, depth), np.uint8), rng.integers(-128, 128, (depth, columns), np.int8)]
    plain = Blocking(())
    check(Program(ByteMatmul(), operands, plain, replace(form, dtype=None), plain, dot=QUADS))


def test_tiles_are_as_high_as_registers_have_rows() -> None:
    assert cpu_matrix.choose([56, 56], 32, AMX) == (1, 28)
    assert cpu_matrix.choose([14, 14], 32, AMX) == (2, 14)
    assert cpu_matrix.choose([64], 32, AMX) == (1, 32)
    assert cpu_matrix.choose([1], 32, AMX) == (1, 1)


def test_what_the_unit_has_no_instruction_for_runs_as_loops() -> None:
    x, w = te.placeholder((16, 32), "float32", "x"), te.placeholder((16, 16, 2), "float32", "w")
    k = te.reduce_axis((0, 32), "k")
    y = te.compute((16, 16), lambda i, j: te.sum(x[i, k] * w[k // 2, j, k % 2], axis=k), name="y")
    s = te.create_schedule(y.op)
    sums = s.cache_write(y, "tile")
    s[sums].compute_at(s[y], s[y].op.axis[0])
    pairs, pair = s[sums].split(s[sums].op.reduce_axis[0], factor=2)
    s[sums].reorder(*s[sums].op.axis, pairs, pair)
    s[sums].tensorize(s[sums].op.axis[0])
    kernel = prepare(te.lower(s, [x, w, y], name="sums"))
    arrays = [np.ones(t.shape, np.float32) for t in (x, w, y)]
    interpret.run(kernel, arrays)
    assert (arrays[2] == 32).all()
    for target in (AMX, find("llvm -mcpu=haswell")):
        compile_kernel(kernel, target)
    run_native(kernel, [*arrays[:2], found := np.zeros((16, 16), np.float32)])
    assert (found == 32).all()

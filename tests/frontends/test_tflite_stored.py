"""Constants of TensorFlow Lite files that are sparse, or several to a byte, against LiteRT."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.errors import InvalidModel, LimitExceeded
from renorm.frontends.tflite.flatbuffer import Table

DENSE, SPARSE = 0, 1


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def level(file: File, size: int = 0, segments: Any = None, indices: Any = None, kind: str = "Int32Vector") -> Table:
    if segments is None:
        return file.table("DimensionMetadata", format=DENSE, dense_size=size)
    number = {"Int32Vector": 1, "Uint16Vector": 2, "Uint8Vector": 3}[kind]
    dtype = {1: np.int32, 2: np.uint16, 3: np.uint8}[number]
    both = [file.table(kind, values=np.asarray(v, dtype)) for v in (segments, indices)]
    return file.table(
        "DimensionMetadata", format=SPARSE, array_segments_type=number, array_segments=both[0],
        array_indices_type=number, array_indices=both[1],
    )  # fmt: skip


def encoded(file: File, whole: Any, block: tuple[int, int], kind: str) -> tuple[Any, Table]:
    """A matrix as rows of blocks of which some are left out: its elements, and what says where they are."""
    rows, columns = (n // b for n, b in zip(whole.shape, block))
    blocks = whole.reshape(rows, block[0], columns, block[1]).transpose(0, 2, 1, 3)
    kept = blocks.any(axis=(2, 3))
    segments = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    indices = np.nonzero(kept)[1]
    levels = [level(file, rows), level(file, 0, segments, indices, kind)]
    order, of_axis = [0, 1], list[int]()
    for axis, size in enumerate(block):
        if size > 1:
            order.append(2 + len(of_axis))
            of_axis.append(axis)
            levels.append(level(file, size))
    said = file.table(
        "SparsityParameters", traversal_order=np.asarray(order, np.int32), block_map=np.asarray(of_axis, np.int32),
        dim_metadata=levels,
    )  # fmt: skip
    return blocks[kept], said


def sparse(rows: int, columns: int, block: tuple[int, int], dtype: str) -> Any:
    whole = RNG.integers(-100, 100, (rows, columns)).astype(dtype)
    keep = RNG.random((rows // block[0], columns // block[1])) < 0.4
    return whole * np.kron(keep, np.ones(block)).astype(dtype)


@pytest.mark.parametrize("block", [(1, 1), (1, 4), (2, 3)])
@pytest.mark.parametrize("kind", ["Int32Vector", "Uint16Vector", "Uint8Vector"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_sparse_weight_is_read_dense(block: tuple[int, int], kind: str, dtype: str) -> None:
    file = File()
    whole = sparse(6, 12, block, dtype)
    stored, said = encoded(file, whole, block, kind)
    scale = ([0.01], [0], 0) if dtype == "int8" else None
    file.tensor("x", (2, 12))
    file.tensor("w", whole.shape, dtype, stored, scale, sparsity=said)
    file.tensor("dense", whole.shape, dtype, None, scale)
    file.tensor("y", (2, 6))
    file.operator("DENSIFY", ["w"], ["dense"], "DensifyOptions")
    file.operator("FULLY_CONNECTED", ["x", "dense", None], ["y"], "FullyConnectedOptions", version=4)
    content, x = file.written(["x"], ["y"]), f(2, 12)
    module = renorm.compile(content)
    real = whole.astype(np.float32) * (np.float32(0.01) if dtype == "int8" else 1)
    np.testing.assert_allclose(module.run(x)[0], x @ real.T, rtol=1e-4, atol=1e-4)
    if dtype == "float32":  # of integers LiteRT makes integers of x, too
        np.testing.assert_allclose(module.run(x)[0], litert(content, x)[0], rtol=1e-4, atol=1e-4)


def test_levels_in_another_order() -> None:
    """Columns first, and rows of them sparse; an axis whose level is sparse below another sparse one."""
    file, whole = File(), np.zeros((3, 2, 4), np.float32)
    whole[0, 1, 3], whole[2, 1, 0], whole[2, 1, 2] = 1, 2, 3
    levels = [level(file, 0, [0, 1], [1]), level(file, 0, [0, 2], [0, 2]), level(file, 0, [0, 1, 3], [3, 0, 2])]
    said = file.table("SparsityParameters", traversal_order=np.asarray([1, 0, 2], np.int32), dim_metadata=levels)
    file.tensor("w", whole.shape, data=np.asarray([1, 2, 3], np.float32), sparsity=said)
    file.tensor("y", whole.shape)
    file.operator("DENSIFY", ["w"], ["y"], "DensifyOptions")
    np.testing.assert_array_equal(renorm.compile(file.written([], ["y"])).run()[0], whole)


def damaged(change: Any, shape: tuple[int, ...] = (6, 12)) -> bytes:
    file = File()
    stored, said = encoded(file, sparse(6, 12, (1, 1), "float32"), (1, 1), "Int32Vector")
    change(said)
    file.tensor("w", shape, data=stored, sparsity=said)
    file.tensor("y", (6, 12))
    file.operator("DENSIFY", ["w"], ["y"], "DensifyOptions")
    return file.written([], ["y"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.fields.update(traversal_order=np.asarray([0, 0], np.int32)), "are none of a tensor"),
        (lambda s: s.fields.update(dim_metadata=s["dim_metadata"][:1]), "are none of a tensor"),
        (lambda s: s["dim_metadata"][0].fields.update(dense_size=99), "has more elements than the tensor"),
        (lambda s: s["dim_metadata"][0].fields.update(dense_size=7), "segments that do not fit"),
        (lambda s: s["dim_metadata"][1]["array_segments"].fields.update(values=np.arange(7, dtype=np.int32) * 99),
         "fewer than its segments say"),
        (lambda s: s["dim_metadata"][1]["array_segments"].fields.update(values=np.arange(7, dtype=np.int32) - 3),
         "fewer than its segments say"),
        (lambda s: s["dim_metadata"][1]["array_indices"]["values"].__iadd__(5), "lie outside of"),
        (lambda s: s["dim_metadata"][0].fields.update(dense_size=3), "its buffer has"),
    ],
)  # fmt: skip
def test_what_sparse_files_say_wrongly(change: Any, words: str) -> None:
    with pytest.raises(InvalidModel, match=words):
        renorm.read(damaged(change))


def test_a_few_bytes_do_not_take_all_memory() -> None:
    with pytest.raises(LimitExceeded, match="elements"):
        renorm.read(damaged(lambda s: None, (1 << 30, 1 << 30)))


@pytest.mark.parametrize(("kind", "bits"), [("INT4", 4), ("UINT4", 4), ("INT2", 2)])
@pytest.mark.parametrize("count", [5, 8])
def test_weights_of_a_few_bits(kind: str, bits: int, count: int) -> None:
    file, low = File(), -(1 << (bits - 1)) if kind.startswith("INT") else 0
    whole = RNG.integers(low, low + (1 << bits), (3, count))
    flat = np.zeros(-(-whole.size * bits // 8) * 8 // bits, np.uint8)
    flat[: whole.size] = whole.reshape(-1) & ((1 << bits) - 1)
    packed = (flat.reshape(-1, 8 // bits) << np.arange(0, 8, bits)).sum(axis=1).astype(np.uint8)
    file.tensor("x", (2, count))
    scales = np.asarray([0.1, 0.2, 0.05], np.float32)
    file.tensor("w", whole.shape, kind, packed, (scales, np.zeros(3), 0))
    file.tensor("y", (2, 3))
    file.operator("FULLY_CONNECTED", ["x", "w", None], ["y"], "FullyConnectedOptions", version=10)
    x = f(2, count)
    found = renorm.compile(file.written(["x"], ["y"])).run(x)[0]
    np.testing.assert_allclose(found, x @ (whole * scales[:, None]).T.astype(np.float32), rtol=1e-5, atol=1e-5)


def test_outputs_that_are_constants_of_integers() -> None:
    """One of them twice, and one that an operator reads as well."""
    file, q = File(), np.asarray([-128, -127, 1, 126, 127], np.int8)
    file.tensor("x", (5,))
    file.constant("q", q, ([0.1], [3], 0))
    file.constant("w", np.asarray([[1, 2], [3, 4]], np.int8), ([0.1, 0.7], [0, 0], 1))
    file.tensor("real", (5,))
    file.tensor("y", (5,))
    file.operator("DEQUANTIZE", ["q"], ["real"], "DequantizeOptions")
    file.operator("ADD", ["real", "x"], ["y"], "AddOptions")
    x, content = f(5), file.written(["x"], ["q", "w", "y", "q"])
    for made, expected in zip(renorm.compile(content).run(x), litert(content, x), strict=True):
        assert made.dtype == expected.dtype
        np.testing.assert_allclose(made, expected, rtol=1e-6)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("is_constant", [True, False])
def test_integers_that_stand_for_more_than_the_largest_number(is_constant: bool) -> None:
    """They are infinite, as in LiteRT: ONNX Runtime has finite ones."""
    file, q = File(), np.asarray([-128, -127, 1, 126, 127], np.int8)
    scale = ([2.7e36], [0], 0)
    x = file.constant("q", q, scale) if is_constant else file.tensor("q", (5,), "int8", scale=scale)
    file.tensor("x", (5,))
    file.tensor("real", (5,))
    file.operator("DEQUANTIZE", [x], ["real"], "DequantizeOptions")
    content, given = file.written(["x", *([] if is_constant else [x])], ["real"]), [f(5), q][: 2 - is_constant]
    (made,), (expected,) = renorm.compile(content).run(*given), litert(content, *given)
    assert np.isinf(expected).sum() == 3
    np.testing.assert_array_equal(made, expected)

"""Operators by index, and others that make integers or choose, against LiteRT; operands are constants or fed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm
from renorm.frontends.tflite.operators import READ


@dataclass
class Fed:
    """An operand that is an input."""

    data: Any


@dataclass
class Case:
    """outs: dtypes of results, renorm's or the format's."""

    kind: str
    xs: list[Any]
    options: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    outs: tuple[str, ...] = ("float32",)
    version: int = 1

    def __str__(self) -> str:
        shown = [x.data.shape if isinstance(x, Fed) else None if x is None else np.shape(x) for x in self.xs]
        return f"{self.kind}-{shown}-{self.fields}".replace(" ", "")


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def i(*values: Any) -> Any:
    return np.asarray(values, np.int32)


def scalar(value: Any, dtype: str = "int32") -> Any:
    return np.asarray(value, dtype)


X = f(2, 3, 4, 5)
BITS = np.asarray([[-7, 5, 0], [127, -128, 64]], np.int32)

CASES = [
    Case("GATHER", [Fed(X), i([1, 0], [2, 2])], "GatherOptions", {"axis": 1, "batch_dims": 1}),
    Case("GATHER", [Fed(X), i([3, 0, 1], [2, 2, 0])], "GatherOptions", {"axis": 2, "batch_dims": 1}),
    Case("GATHER", [Fed(X), Fed(i(*RNG.integers(0, 4, (2, 3, 2))))], "GatherOptions", {"axis": 2, "batch_dims": 2}),
    Case("GATHER", [Fed(X), i([1], [0])], "GatherOptions", {"axis": -1, "batch_dims": -1}),
    Case("EMBEDDING_LOOKUP", [Fed(i(2, 0, 2, 1)), f(3, 4)]),
    Case("SCATTER_ND", [i([0], [3], [0]), Fed(f(3, 2)), i(5, 2)], "ScatterNdOptions"),
    Case("SCATTER_ND", [Fed(i([0, 1], [3, 0])), Fed(f(2)), i(5, 2)], "ScatterNdOptions"),
    Case("SPARSE_TO_DENSE", [i([0, 1], [2, 0]), i(3, 4), Fed(f(2)), scalar(7, "float32")], "SparseToDenseOptions"),
    Case("SPARSE_TO_DENSE", [i(1, 3), i(5), scalar(2, "float32"), scalar(7, "float32")], "SparseToDenseOptions"),
    Case("SPARSE_TO_DENSE", [scalar(3), i(5), scalar(2, "float32"), scalar(0, "float32")], "SparseToDenseOptions"),
    Case("TOPK_V2", [Fed(f(3, 7)), scalar(4)], "TopKV2Options", outs=("float32", "int32")),
    Case("TOPK_V2", [Fed(i([3, 1, 3], [2, 2, 5])), scalar(2)], "TopKV2Options", outs=("int32", "int32")),
    Case("WHERE", [Fed(RNG.integers(0, 2, (3, 4)).astype(bool))], "WhereOptions", outs=("int64",)),
    Case("UNIQUE", [Fed(i(5, 3, 5, 5, 9, 3))], "UniqueOptions", {"idx_out_type": 2}, ("int32", "int32")),
    Case("UNIQUE", [Fed(f(4))], "UniqueOptions", {"idx_out_type": 4}, ("float32", "int64")),
    Case("SEGMENT_SUM", [Fed(f(5, 3)), i(0, 0, 1, 2, 2)], "SegmentSumOptions"),
    *(
        Case(f"UNSORTED_SEGMENT_{kind}", [Fed(f(5, 3)), Fed(i(3, 0, -1, 3, 1)), scalar(5)])
        for kind in ("MAX", "MIN", "PROD", "SUM")
    ),
    Case("UNSORTED_SEGMENT_SUM", [Fed(f(2, 3, 2)), i([1, 0, 1], [2, -1, 1]), scalar(3)]),
    Case("DYNAMIC_UPDATE_SLICE", [Fed(X), Fed(f(2, 3, 2, 5)), i(0, 0, 1, 0)], "DynamicUpdateSliceOptions"),
    Case("DYNAMIC_UPDATE_SLICE", [Fed(X), Fed(f(2, 3, 2, 5)), Fed(i(0, 1, 3, 7))], "DynamicUpdateSliceOptions"),
    Case("DYNAMIC_UPDATE_SLICE", [Fed(X), Fed(f(1, 3, 2, 1)), Fed(i(-1, 0, 1, 4))], "DynamicUpdateSliceOptions"),
    Case("DYNAMIC_UPDATE_SLICE", [Fed(X), Fed(f(2, 3, 4, 5)), Fed(i(0, 0, 0, 1))], "DynamicUpdateSliceOptions"),
    Case("MATRIX_DIAG", [Fed(f(2, 3))], "MatrixDiagOptions"),
    Case("MATRIX_SET_DIAG", [Fed(f(2, 3, 4)), Fed(f(2, 3))], "MatrixSetDiagOptions"),
    Case("MATRIX_SET_DIAG", [Fed(f(2, 4, 3)), Fed(f(2, 3))], "MatrixSetDiagOptions"),
    Case("BUCKETIZE", [Fed(np.asarray([[-1, 0, 5], [9.5, 10, 11]], np.float32))], "BucketizeOptions",
         {"boundaries": np.asarray([0, 5, 10], np.float32)}, ("int32",)),
    Case("REVERSE_SEQUENCE", [Fed(f(3, 4, 5)), Fed(i(2, 5, 0, 1))], "ReverseSequenceOptions",
         {"seq_dim": 2, "batch_dim": 1}),
    Case("REVERSE_SEQUENCE", [Fed(f(3, 4)), i(4, 1, 2)], "ReverseSequenceOptions", {"seq_dim": 1, "batch_dim": 0}),
    Case("BROADCAST_ARGS", [i(3, 1), i(2, 1, 4)], outs=("int32",)),
    Case("SELECT", [Fed(np.asarray([True, False])), Fed(f(2, 3)), Fed(f(2, 3))], "SelectOptions"),
    Case("SELECT", [Fed(RNG.integers(0, 2, (2, 3)).astype(bool)), Fed(f(2, 3)), Fed(f(2, 3))], "SelectOptions"),
    Case("REDUCE_ANY", [Fed(RNG.integers(0, 2, (3, 4)).astype(bool)), i(1)], "ReducerOptions", outs=("bool",)),
    Case("REDUCE_ALL", [Fed(RNG.integers(0, 2, (3, 2)).astype(bool)), i(0)], "ReducerOptions", {"keep_dims": True},
         ("bool",)),
    Case("BITWISE_XOR", [Fed(BITS), Fed(BITS[::-1].copy())], "BitwiseXorOptions", outs=("int32",)),
    Case("RIGHT_SHIFT", [Fed(BITS), Fed(i([1, 0, 3], [-2, 40, 7]))], "RightShiftOptions", outs=("int32",)),
    Case("ATAN2", [Fed(np.asarray([1, -1, 0, 0, 2, -2, 0, np.inf, 3], np.float32)),
                   Fed(np.asarray([2, -2, -1, 0, 0, 0, 1, np.inf, -np.inf], np.float32))], "ATan2Options"),
    Case("ATAN2", [Fed(f(3, 4)), Fed(f(3, 4))], "ATan2Options"),
    Case("FAKE_QUANT", [Fed(f(5, 7) * 3)], "FakeQuantOptions", {"min": -1.3, "max": 2.7, "num_bits": 8}),
    Case("FAKE_QUANT", [Fed(f(5, 7))], "FakeQuantOptions", {"min": 0.1, "max": 1.0, "num_bits": 4}),
    *(
        Case("STRIDED_SLICE", [Fed(X), i(*begin), i(*end), i(*steps)], "StridedSliceOptions", masks)
        for begin, end, steps, masks in (
            ((0, 1), (0, 3), (1, 2), {"ellipsis_mask": 1}),
            ((1, 0, 2), (2, 0, 3), (1, 1, 1), {"ellipsis_mask": 2, "shrink_axis_mask": 4}),
            ((0, 0, 1), (0, 0, 2), (1, 1, 1), {"new_axis_mask": 1, "ellipsis_mask": 2, "begin_mask": 4}),
            ((0, 1, 0, -1), (0, 2, 0, 0), (1, 1, 1, -2), {"new_axis_mask": 4, "shrink_axis_mask": 2, "end_mask": 9}),
            ((1, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1), {"shrink_axis_mask": 1, "new_axis_mask": 2, "end_mask": 12}),
        )
    ),
    Case("SQUEEZE", [Fed(f(2, 1, 3, 1))], "SqueezeOptions", {"squeeze_dims": i(-1)}),
    Case("EXPAND_DIMS", [Fed(f(2, 3)), scalar(-1)], "ExpandDimsOptions"),
]  # fmt: skip


def build(case: Case) -> tuple[bytes, list[Any]]:
    file, names, given = File(), list[str | None](), list[str]()
    for n, x in enumerate(case.xs):
        if isinstance(x, Fed):
            given.append(file.tensor(f"x{n}", x.data.shape, x.data.dtype.name))
        names.append(given[-1] if isinstance(x, Fed) else None if x is None else file.constant(f"c{n}", x))
    outs = [file.tensor(f"y{n}", (), dtype) for n, dtype in enumerate(case.outs)]
    file.operator(case.kind, names, outs, case.options, case.version, **case.fields)
    return file.written(given, outs), [x.data for x in case.xs if isinstance(x, Fed)]


def check(case: Case, level: int = 2) -> None:
    content, xs = build(case)
    found, expected = renorm.compile(content, opt_level=level).run(*xs), litert(content, *xs)
    for y, e in zip(found, expected, strict=True):
        assert (y.dtype, y.shape) == (e.dtype, e.shape)
        np.testing.assert_allclose(y, e, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_compute_what_litert_computes(case: Case) -> None:
    check(case)


def test_where_nothing_is() -> None:
    content, xs = build(Case("WHERE", [Fed(np.zeros((2, 3), bool))], "WhereOptions", outs=("int64",)))
    assert renorm.compile(content).run(*xs)[0].shape == (0, 2)


def test_every_operator_has_a_test() -> None:
    """By its name, or what stands behind the prefix of its kind in a table of tests."""
    folder = Path(__file__).parent
    text = "".join(path.read_text() for form in ("test_tflite_*.py", "test_circle*.py") for path in folder.glob(form))

    def is_named(kind: str) -> bool:
        name = kind.removeprefix("CUSTOM '").removesuffix("'")
        short = name.removeprefix("STABLEHLO_").removeprefix("UNSORTED_SEGMENT_")
        return any(f'"{n}"' in text for n in (name, short, name.lower()))

    assert [kind for kind in READ if not is_named(kind)] == []
